"""A rank that is killed: the others raise PeerError in bounded time, whatever they were doing, and can free."""

import signal
import tempfile
import time

import device_jobs
import pytest

import launch
from mpi import jobs

# The survivors have this long: the watch's period and grace are seconds, the time-out of a wait is longer.
LIMIT_S = 240
READY_S = 120


def wait_until_ready(folder, ranks):
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        if sum("ready" in line for line in jobs.read_reports(folder, ranks)) == ranks:
            return
        time.sleep(0.05)
    raise AssertionError("the ranks did not get ready")


@pytest.mark.parametrize("what", ["call", "wait", "idle"])
@pytest.mark.parametrize("place, ranks", [("fake", 2), ("fake", 3), ("cupy", 2), ("torch", 2)])
def test_killed_rank(place, ranks, what):
    why = device_jobs.missing(place, ranks)
    if why:
        pytest.skip(why)
    env = {**device_jobs.environment(place), "HETCCL_TIMEOUT": "100"}
    program = device_jobs.HERE / "prog_peer_lost.py"
    with tempfile.TemporaryDirectory() as folder:
        with launch.start(ranks, program, folder, "A" * ranks, what, env=env, keep_alive=True) as job:
            wait_until_ready(folder, ranks)
            time.sleep(0.5)
            launch._signal(job.pid(1), signal.SIGKILL)
            job.wait(LIMIT_S)
        lines = jobs.Outcome(jobs.read_reports(folder, ranks), job.report())
    errors = lines.by_rank("error")
    survivors = [rank for rank in range(ranks) if rank != 1]
    assert sorted(errors) == survivors, lines.text
    for rank in survivors:
        assert "PeerError" in errors[rank]["classes"], errors[rank]
        assert 1 in errors[rank]["peers"], errors[rank]
    assert sorted(lines.by_rank("freed")) == survivors, lines.text
