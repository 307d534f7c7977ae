"""Device arrays on the fakes (anywhere) and on GPUs: the matrix, and the checks that hold for every library."""

import functools

import device_cases
import device_jobs
import pytest

from mpi import jobs

# (place, ranks, how much). PyTorch brings the dtypes that CuPy lacks.
MATRICES = (
    *(("fake", ranks, device_cases.QUICK) for ranks in (1, 2, 3, 4)),
    *(("cupy", ranks, device_cases.WIDE) for ranks in (1, 2)),
    *(("torch", ranks, device_cases.BRIEF) for ranks in (1, 2)),
)
LAYOUTS = [("fake", 1), ("fake", 2), ("fake", 3), ("cupy", 1), ("cupy", 2), ("torch", 2)]
PROGRAM = str(device_jobs.HERE / "check_device.py")
# What asks the system for its GPUs, which the fakes are not.
REAL_ONLY = {"check_device_is_named_at_construction"}
CASES = [
    ((place, ranks, ()), name)
    for place, ranks in LAYOUTS
    for name in jobs.check_names(PROGRAM)
    if place != "fake" or name not in REAL_ONLY
]


def name_of(value):
    return "-".join(map(str, value[:2])) if isinstance(value, tuple) else None


@pytest.fixture(scope="module")
def results():
    """Function: (place, ranks, scope) -> (Outcome, {case: {rank: problem}})."""
    return functools.cache(device_jobs.matrix)


@pytest.fixture(scope="module")
def runs(request):
    return device_jobs.CheckRuns.of(request, test_check, PROGRAM)


@pytest.mark.parametrize(
    "matrix, group",
    [(matrix, group) for matrix in MATRICES for group in device_cases.groups(matrix[1], matrix[2], matrix[0])],
    ids=name_of,
)
def test_equals_numpy(matrix, group, results):
    outcome, by_case = results(*matrix)
    place, ranks, scope = matrix
    wrong = jobs.faults(by_case, device_jobs.wanted_of(place, ranks, scope, group), ranks)
    assert not wrong, "\n".join([*wrong[:5], "" if by_case else outcome.text])


@pytest.mark.parametrize("matrix", MATRICES, ids=name_of)
def test_ends_well(matrix, results):
    outcome, _ = results(*matrix)
    assert sorted(outcome.by_rank("end")) == list(range(matrix[1])) and outcome.job.returncode == 0, outcome.text


@pytest.mark.parametrize("layout, name", CASES, ids=name_of)
def test_check(layout, name, runs):
    runs.verify(PROGRAM, layout, name)
