"""AMD's code path, and jobs of two vendors, on fakes of HIP and CUDA: hetccl's own code, nothing of the vendors'."""

import device_cases
import device_jobs
import pytest

from fakes import build
from mpi import jobs

FLOAT8 = "float8_e4m3fn"


def variables(**more):
    """Both vendors' fakes; NCCL's serves as RCCL, whose interface it is."""
    more.update(HETCCL_HIP_LIB=build.build("fakehip"), HETCCL_RCCL_LIB=build.build("fakeccl"))
    return {**device_jobs.environment("fake"), **more}


@pytest.fixture(autouse=True)
def compiler():
    if build.compiler() is None:
        pytest.skip("no C compiler to make the fakes")


def amd_matrix(ranks, wanted, arch):
    """{case: {rank: problem}} of the matrix in an island of fake AMD devices."""
    env = variables(FAKE_HIP_ARCH=arch)
    program = device_jobs.HERE / "prog_matrix.py"
    outcome = jobs.run(program, "A" * ranks, "emulated", device_cases.QUICK, wanted, env=env, timeout=300)
    by_case = outcome.by_case()
    assert by_case, outcome.text
    return by_case


def cases(ranks, wanted=""):
    return [str(case) for case in device_cases.cases(ranks, device_cases.QUICK, "emulated") if wanted in str(case)]


@pytest.mark.parametrize("ranks", [3])
def test_amd_island(ranks):
    """Every case, on devices whose float8 is the standard's."""
    assert jobs.faults(amd_matrix(ranks, "", "gfx950"), cases(ranks), ranks) == []


def test_float8_of_older_devices():
    """gfx942 reads float8's bits otherwise than the standard: it is moved, and not reduced."""
    reducing, moving = (f"{name}-{FLOAT8}-" for name in ("Allreduce", "Allgather"))
    problems = amd_matrix(2, FLOAT8, "gfx942")
    assert {case for case in problems if reducing in case}
    for case, by_rank in problems.items():
        if reducing in case:
            assert all("FNUZ" in str(problem) for problem in by_rank.values()), case
    assert jobs.faults(problems, cases(2, moving), 2) == []


@pytest.mark.parametrize("ranks", [2, 4, 5])
def test_two_vendors(ranks):
    """Refused together, each vendor's ranks alone right, host buffers as ever."""
    outcome = jobs.run(device_jobs.HERE / "prog_vendors.py", "A" * ranks, env=variables())
    for field in ("refused", "host", "device", "end"):
        assert sorted(outcome.by_rank(field)) == list(range(ranks)), outcome.text
