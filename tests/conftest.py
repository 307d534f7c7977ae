"""Options and the hard time-out of every test."""

import os
import signal
from pathlib import Path

import pytest

import launch
from fakes import build

# Longer than any job's own limit on a slow machine: this one is for what hangs outside of a job.
LIMIT_S = 900


def pytest_addoption(parser):
    parser.addoption("--rdma", action="store_true", help="run the long tests over Soft-RoCE, too (make test-rdma)")
    parser.addoption("--transport", help="run the ranks of all jobs with this HETCCL_TRANSPORT, such as tcp")
    parser.addoption("--fake-verbs", action="store_true", help="the ranks' libibverbs is tests/fakes/fakeverbs.c")
    parser.addoption(
        "--hosts", help="deal the ranks of all jobs out to these hosts of tests/hosts.py, such as node0,node1"
    )
    parser.addoption("--full", action="store_true", help="run the whole product of the exactness matrix (hours)")


def pytest_configure(config):
    if config.getoption("--transport"):
        launch.COMMON["HETCCL_TRANSPORT"] = config.getoption("--transport")
    if config.getoption("--hosts"):
        launch.HOSTS[:] = config.getoption("--hosts").split(",")
    if config.getoption("--fake-verbs"):
        library = Path(build.build("fakeverbs"))
        launch.COMMON["LD_LIBRARY_PATH"] = os.pathsep.join([str(library.parent), os.environ.get("LD_LIBRARY_PATH", "")])
        launch.COMMON["FAKEVERBS_ARENA"] = str(library.parent / f"arena.{os.getpid()}")
    config.addinivalue_line("markers", "rdma: long, over Soft-RoCE: run with --rdma alone")
    config.addinivalue_line("markers", "limit(seconds): the test's hard time-out, instead of the common one")


def pytest_collection_modifyitems(config, items):
    """Leave out what takes too long for every change, so that no guest is booted for it; pytest counts it."""
    if config.getoption("--hosts") and "HOSTS" not in os.environ:
        reason = f"no hosts: {os.environ.get('NO_HOSTS', 'start pytest with tests/hosts.py')}"
        for item in items:
            item.add_marker(pytest.mark.skip(reason=reason))
    if config.getoption("--rdma"):
        return
    config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("rdma")])
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
