"""Options and the hard time-out of every test."""

import signal

import launch
import pytest

# Longer than any job's own limit on a slow machine: this one is for what hangs outside of a job.
LIMIT_S = 400


def pytest_addoption(parser):
    parser.addoption("--rdma", action="store_true", help="run the long tests over Soft-RoCE, too (make test-rdma)")
    parser.addoption("--transport", help="run the ranks of all jobs with this HETCCL_TRANSPORT, such as tcp")
    parser.addoption("--full", action="store_true", help="run the whole product of the exactness matrix (hours)")


def pytest_configure(config):
    if config.getoption("--transport"):
        launch.COMMON["HETCCL_TRANSPORT"] = config.getoption("--transport")
    config.addinivalue_line("markers", "rdma: long, over Soft-RoCE: run with --rdma alone")
    config.addinivalue_line("markers", "limit(seconds): the test's hard time-out, instead of the common one")


def pytest_collection_modifyitems(config, items):
    """Leave out what takes too long for every change, so that no guest is booted for it."""
    if not config.getoption("--rdma"):
        items[:] = [item for item in items if not item.get_closest_marker("rdma")]


@pytest.fixture(autouse=True)
def hard_limit(request):
    """End a test that hangs: with its own `limit` mark, else after the common time."""
    mark = request.node.get_closest_marker("limit")
    seconds = mark.args[0] if mark else LIMIT_S
    if request.config.getoption("--full"):
        seconds *= 60

    def expire(signum, frame):
        pytest.fail(f"still running after {seconds} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
