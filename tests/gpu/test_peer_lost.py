"""A rank that is killed: the others raise PeerError in bounded time, whatever they were doing, and can free."""

import signal
import tempfile
import time
from typing import NamedTuple

import device_jobs
import pytest

import launch
from mpi import jobs

# The survivors have this long: the watch's period and grace are seconds, the time-out of a wait is longer.
LIMIT_S = 240
READY_S = 120
VICTIM = 1


class Loss(NamedTuple):
    """A job of prog_peer_lost.py whose rank 1 is killed, for jobs.Pool; env: pairs of all ranks' variables."""

    islands: str
    what: str
    env: tuple

    def run(self):
        program, ranks = device_jobs.HERE / "prog_peer_lost.py", len(self.islands)
        options = {"env": dict(self.env), "per_rank_env": jobs.environment(self.islands), "keep_alive": True}
        with tempfile.TemporaryDirectory() as folder:
            with launch.start(ranks, program, folder, self.islands, self.what, **options) as job:
                wait_until_ready(folder, ranks)
                time.sleep(0.5)
                launch._signal(job.pid(VICTIM), signal.SIGKILL)
                job.wait(LIMIT_S)
            return jobs.Outcome(jobs.read_reports(folder, ranks), job.report())

    def check(self, outcome):
        """AssertionError unless all others were told who has died, and could free."""
        errors, survivors = outcome.by_rank("error"), [rank for rank in range(len(self.islands)) if rank != VICTIM]
        assert sorted(errors) == survivors, outcome.text
        for rank in survivors:
            assert "PeerError" in errors[rank]["classes"] and VICTIM in errors[rank]["peers"], errors[rank]
        assert sorted(outcome.by_rank("freed")) == survivors, outcome.text


def wait_until_ready(folder, ranks):
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        if sum("ready" in line for line in jobs.read_reports(folder, ranks)) == ranks:
            return
        time.sleep(0.05)
    raise AssertionError("the ranks did not get ready")


def ranks_of(case):
    return case["ranks"] if "ranks" in case else len(case["islands"])


def pool_of(request, test, loss_of):
    """The jobs of those selected cases of a test that can run here, ahead of the tests. loss_of: the job of a case"""
    chosen = [item.callspec.params for item in request.session.items if getattr(item, "function", None) is test]
    return jobs.Pool(loss_of(**case) for case in chosen if not device_jobs.missing(case["place"], ranks_of(case)))


def loss_of(place, ranks, what):
    env = {**device_jobs.environment(place), "HETCCL_TIMEOUT": "100"}
    return Loss("A" * ranks, what, tuple(env.items()))


@pytest.fixture(scope="module")
def pool(request):
    running = pool_of(request, test_killed_rank, loss_of)
    yield running
    running.close()


@pytest.mark.parametrize("what", ["call", "wait", "idle"])
@pytest.mark.parametrize("place, ranks", [("fake", 2), ("fake", 3), ("cupy", 2), ("torch", 2)])
def test_killed_rank(place, ranks, what, pool):
    why = device_jobs.missing(place, ranks)
    if why:
        pytest.skip(why)
    loss = loss_of(place, ranks, what)
    loss.check(pool[loss])
