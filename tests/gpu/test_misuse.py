"""Programs that are wrong, and libraries that fail, on the fakes: an error that says what, and nothing else broken."""

import device_jobs
import pytest

from fakes import build
from mpi import jobs

PROGRAM = str(device_jobs.HERE / "check_misuse.py")
STAYS = (("FAKE_CCL_NONBLOCKING", "1"), ("FAKE_CCL_HANG", "ncclAllReduce"), ("HETCCL_TIMEOUT", "3"))
BUSY = (("FAKE_CUDA_FAIL", "cuEventQuery=600"), ("HETCCL_TIMEOUT", "5"))
LACKS = (("HETCCL_NCCL_LIB", build.build("fakeccl", without=["ncclBroadcast"]) if build.compiler() else ""),)
# Checks that need another job than two ranks without faults.
SPECIAL = {
    "check_calls_from_a_signal_handler": ("fake", 1, STAYS),
    "check_interrupted_wait": ("fake", 1, BUSY),
    "check_library_without_broadcast": ("fake", 2, LACKS),
    "check_library_cannot_free": ("fake", 2, (("FAKE_CCL_FAIL", "ncclCommDestroy=3"),)),
    "check_claims_beyond_the_memory": ("fake", 1, ()),
}
CASES = [(SPECIAL.get(name, ("fake", 2, ())), name) for name in jobs.check_names(PROGRAM)]


@pytest.fixture(autouse=True)
def compiler():
    if build.compiler() is None:
        pytest.skip("no C compiler to make the fakes")


@pytest.fixture(scope="module")
def runs(request):
    return device_jobs.CheckRuns.of(request, test_check, PROGRAM)


@pytest.mark.parametrize("layout, name", CASES, ids=[f"fake-{layout[1]}-{name}" for layout, name in CASES])
def test_check(layout, name, runs):
    runs.verify(PROGRAM, layout, name)
