"""The device matrix through hetccl's HIP and RCCL code, on emulated AMD GPUs: no AMD hardware or software is run.

The ranks take themselves for AMD's, their arrays are exported as ROCm's, and libamdhip64 and librccl are those of
tests/emulation: compiled against AMD's headers, they hand each call on to what lies under them: the CUDA driver and
NCCL of a machine with NVIDIA GPUs, or the tests' fakes of both. docs/evidence.md says what that proves.
"""

import functools
from pathlib import Path

import device_arrays
import device_cases
import device_jobs
import pytest

from emulation import build
from emulation import runs as emulated_runs
from fakes import build as fake_build
from hetccl import config, libraries
from hetccl.errors import LibraryNotFound
from mpi import jobs

# (what lies under the emulation, HIP's release, ranks, how much)
MATRICES = (
    ("fakes", 7, 2, device_cases.BRIEF),
    ("fakes", 5, 3, device_cases.BRIEF),
    ("gpu", 7, 1, device_cases.WIDE),
    ("gpu", 7, 2, device_cases.WIDE),
    ("gpu", 5, 2, device_cases.BRIEF),
)
CHECKED = (("fakes", 7, 2), ("fakes", 5, 2), ("gpu", 7, 2))
CHECKS = device_jobs.HERE / "check_device.py"
PLACE = "emulated"
EMULATED = "emulated AMD"  # what prog_emulated prints
JOB_S = 500


@functools.cache
def nccl():
    """NCCL's file, of a wheel or of the system; None without one."""
    known = next(library for library in libraries.LIBRARIES if library.name == "NCCL")
    try:
        return known.open(config.Config()).path
    except LibraryNotFound:
        return None


@functools.cache
def environment(under, release):
    """The variables of a job; the test is skipped where what lies under the emulation, or builds it, is missing."""
    if under == "fakes":
        fakes = device_jobs.fakes()
        lower = {"EMULATION_CUDA": fakes["HETCCL_CUDA_LIB"], "EMULATION_NCCL": fakes["HETCCL_NCCL_LIB"]}
        lower["FAKE_CUDA_DEVICES"] = fakes["FAKE_CUDA_DEVICES"]
    else:
        lower = {"EMULATION_NCCL": nccl()}
    try:
        upper = {"HETCCL_HIP_LIB": str(build.hip(release)), "HETCCL_RCCL_LIB": str(build.rccl())}
    except build.Unavailable as error:
        pytest.skip(str(error))
    return {**device_jobs.environment(PLACE), **lower, **upper, "HETCCL_TIMEOUT": "60"}


def missing(under, ranks):
    """Why jobs of so many ranks cannot run there; "" if they can."""
    if under == "fakes":
        return "" if fake_build.compiler() else "no C compiler to make the fakes"
    found = device_arrays.device_count()
    if found < ranks:
        return f"{ranks} NVIDIA GPUs are needed under the emulation, this machine has {found}"
    return "" if nccl() else "NCCL is needed under the emulation, and not installed"


def run(under, release, ranks, program, *args):
    """Run a program of this folder on emulated GPUs: Outcome."""
    why = missing(under, ranks)
    if why:
        pytest.skip(why)
    variables = environment(under, release)
    return jobs.run(
        device_jobs.HERE / "prog_emulated.py", "A" * ranks, str(program), *args, env=variables, timeout=JOB_S
    )


@pytest.fixture(scope="module")
def matrices():
    """Function: one of MATRICES -> (Outcome, {case: {rank: problem}})."""

    @functools.cache
    def make(under, release, ranks, scope):
        outcome = run(under, release, ranks, device_jobs.HERE / "prog_matrix.py", PLACE, scope)
        return outcome, outcome.by_case()

    return make


class CheckRuns(jobs.CheckRuns):
    """jobs.CheckRuns on emulated GPUs: a layout is one of CHECKED."""

    def start(self, program, layout, names):
        return run(*layout, program, *names)

    def ranks(self, layout):
        return layout[2]


@pytest.fixture(scope="module")
def runs(request):
    return CheckRuns.of(request, test_check, CHECKS)


def name_of(value):
    if isinstance(value, tuple):
        under, release, ranks = value[:3]
        return f"emulated_hip{release}_on_{under}-{ranks}"
    return None


def is_refused(matrix, group):
    """HIP 5's emulation takes itself for a gfx90a, where the numbers of float8 mean another format."""
    _, dtype, op = group.split("-")
    return matrix[1] == 5 and dtype.startswith("float8") and op != "move"


GROUPS = [(matrix, group) for matrix in MATRICES for group in device_cases.groups(matrix[2], matrix[3], PLACE)]


@pytest.mark.limit(JOB_S + 60)
@pytest.mark.parametrize("matrix, group", [each for each in GROUPS if is_refused(*each)], ids=name_of)
def test_float8_of_another_format_is_refused(matrix, group, matrices):
    outcome, by_case = matrices(*matrix)
    for case in device_cases.groups(matrix[2], matrix[3], PLACE)[group]:
        problems = by_case.get(case, {})
        assert sorted(problems) == list(range(matrix[2])), outcome.text
        assert all("TypeError: op:" in problem and "FNUZ" in problem for problem in problems.values()), problems


@pytest.mark.limit(JOB_S + 60)
@pytest.mark.parametrize("matrix, group", [each for each in GROUPS if not is_refused(*each)], ids=name_of)
def test_equals_numpy(matrix, group, matrices):
    outcome, by_case = matrices(*matrix)
    wanted = device_cases.groups(matrix[2], matrix[3], PLACE)[group]
    wrong = jobs.faults(by_case, wanted, matrix[2])
    assert not wrong, "\n".join([*wrong[:5], "" if by_case else outcome.text])


@pytest.mark.limit(JOB_S + 60)
@pytest.mark.parametrize("matrix", MATRICES, ids=name_of)
def test_it_was_the_emulation(matrix, matrices):
    """Every rank ended well and had loaded both emulated libraries, and no library of AMD's own."""
    outcome, _ = matrices(*matrix)
    assert sorted(outcome.by_rank("end")) == list(range(matrix[2])) and outcome.job.returncode == 0, outcome.text
    for text in outcome.job.stdout:
        files = text.partition(f"{EMULATED}: ")[2].split()
        assert [Path(file).name for file in files] == [f"libamdhip64.so.{matrix[1]}", "librccl.so.1"], outcome.text
        assert all(Path(file).is_relative_to(build.OUT) for file in files)


@pytest.mark.limit(JOB_S + 60)
@pytest.mark.parametrize(
    "layout, name", [(layout, name) for layout in CHECKED for name in jobs.check_names(CHECKS)], ids=name_of
)
def test_check(layout, name, runs):
    runs.verify(CHECKS, layout, name)


@pytest.fixture(params=[5, 7], ids=["emulated_hip5_on_gpu", "emulated_hip7_on_gpu"])
def library(request):
    why = missing("gpu", 1)
    if why:
        pytest.skip(why)
    return environment("gpu", request.param)["HETCCL_HIP_LIB"]


def test_whole_table_of_the_runtime(library):
    """hetccl's whole HIP table, through the emulation, on real memory, streams and events of a GPU."""
    # dma-bufs are exported by HSA, which is not emulated: a real one on the machine knows nothing of these devices.
    assert emulated_runs.whole_table(library, "hip-0 and not dmabufs") >= 15


def test_launch(library):
    emulated_runs.launch(library, device_jobs.HERE / "increment.ptx")
