"""What needs a real GPU: streams and lifetimes, large buffers, and the driver's own switches."""

import device_cases
import device_jobs
import pytest

from mpi import jobs

STREAMS, TORCH, LARGE = (str(device_jobs.HERE / f"check_{name}.py") for name in ("streams", "torch", "large"))
BLOCKING = (("CUDA_LAUNCH_BLOCKING", "1"),)
ONE_QUEUE = (("CUDA_DEVICE_MAX_CONNECTIONS", "1"),)
LAYOUTS = {
    STREAMS: [("cupy", 1, ()), ("cupy", 2, ()), ("cupy", 2, BLOCKING), ("cupy", 2, ONE_QUEUE)],
    TORCH: [("torch", 1, ()), ("torch", 2, ())],
    LARGE: [("cupy", 1, ()), ("cupy", 2, ())],
}
# What the driver's switches could change: the order of work in different streams.
SWITCHED = {
    "check_ten_thousand_calls_on_changing_streams",
    "check_temporaries",
    "check_arrays_of_another_streams_pool",
    "check_two_communicators_on_two_streams",
    "check_requests_on_a_busy_stream",
}
CASES = [
    (program, layout, name)
    for program, layouts in LAYOUTS.items()
    for layout in layouts
    for name in jobs.check_names(program)
    if not layout[2] or name in SWITCHED
]


def name_of(value):
    if isinstance(value, tuple):
        place, ranks, env = value
        return "-".join([place, str(ranks), *(f"{name}={setting}" for name, setting in env)])
    return value.rpartition("/")[2].removesuffix(".py")


@pytest.fixture(scope="module")
def runs(request):
    return device_jobs.CheckRuns.of(request, test_check)


@pytest.mark.parametrize("program, layout, name", CASES, ids=name_of)
def test_check(program, layout, name, runs):
    runs.verify(program, layout, name)


@pytest.mark.parametrize("env", [{"CUDA_VISIBLE_DEVICES": "1,0"}, {"CUDA_LAUNCH_BLOCKING": "1"}], ids=str)
def test_matrix_under(env):
    """Results are in MPI's order of ranks, whatever the order of the devices."""
    wanted = "-int32-"
    outcome, by_case = device_jobs.matrix("cupy", 2, device_cases.BRIEF, wanted, env=env)
    cases = [str(case) for case in device_cases.cases(2, device_cases.BRIEF, "cupy") if wanted in str(case)]
    wrong = jobs.faults(by_case, cases, 2)
    assert not wrong, "\n".join([*wrong[:5], "" if by_case else outcome.text])
