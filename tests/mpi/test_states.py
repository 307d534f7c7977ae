"""Over TCP: a peer ends or stops in each state of the protocol between ranks that share no memory. What has arrived
counts, and the other rank's call ends with an error that names it, in bounded time. Programs end in many ways."""

import pytest

import launch
from mpi import jobs

# The time-out is far above the bound, so that it is not what ends the wait.
NOTICED_S, TIME_OUT, SHORT = 30, "60", "3"
VICTIM, SURVIVOR = 0, 1
# How many messages the survivor must have got before; of those of a loop, not all.
ARRIVED = {"eager_arrived": range(10, 11), "eager_under_way": range(10, 11)}
ARRIVED |= {"writes_begun": range(8), "writes_half": range(8), "writes_the_last": range(9)}
KILLED = (
    "idle", "waited_for", "eager_arrived", "eager_under_way", "eager_not_taken", "rts_sent", "rts_come", "cts_sent",
    "writes_begun", "writes_half", "writes_the_last", "written", "both_ways",
)  # fmt: skip
STOPPED = ("stopped", "stopped_and_sent_to")
EXITS = ("freed", "plain", "deleted", "cycle", "many", "finalize", "finalize_only", "sys_exit", "requests")
ABORT = """
    import threading
    import numpy as np
    from mpi4py import MPI
    import hetccl

    comm = hetccl.Comm(MPI.COMM_WORLD)
    comm.Barrier()
    if comm.rank == 0:
        threading.Timer(0.5, comm.Abort, (7,)).start()
    comm.Recv(np.zeros(3), 1 - comm.rank)
    print("never reached")
"""


TCP = (("HETCCL_TRANSPORT", "tcp"),)


def spec(state, timeout=TIME_OUT):
    return jobs.Spec("prog_states.py", "AA", (state, "22"), (*TCP, ("HETCCL_TIMEOUT", timeout)), keep_alive=True)


@pytest.fixture(scope="module")
def pool(request):
    items = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    running = jobs.Pool(item.callspec.params["job"] for item in items)
    yield running
    running.close()


def ended(outcome, error, within_s):
    """The survivor's last line on how its wait ended, looked at."""
    found = outcome.by_rank("outcome")
    assert sorted(found) == [SURVIVOR], outcome.text
    line = found[SURVIVOR]
    assert line["outcome"] == "error" and error in line["classes"] and line["peers"] == [VICTIM], (line, outcome.text)
    assert 0 <= line["seconds"] < within_s, line
    again = outcome.by_rank("again")[SURVIVOR]
    assert again["again"] in ("PeerError", "CommClosed", "CommTimeout", "HetcclError"), again
    assert again["free_seconds"] < NOTICED_S, again
    assert sorted(outcome.by_rank("ended")) == [SURVIVOR], outcome.text
    return line


@pytest.mark.parametrize("job", [spec(state) for state in KILLED], ids=str)
def test_killed_peer(pool, job):
    outcome, state = pool[job], job.args[0]
    ended(outcome, "PeerError", NOTICED_S)
    took = outcome.by_rank("took")[SURVIVOR]["took"]
    assert took in ARRIVED.get(state, range(1)), f"{took} messages came whole"


@pytest.mark.parametrize("job", [spec("before_connect")], ids=str)
def test_peer_killed_before_it_is_connected(pool, job):
    """Its listener is gone: that is believed only after it has refused for a while."""
    line = ended(pool[job], "PeerError", float(TIME_OUT))
    assert "Connection refused" in line["text"], line


@pytest.mark.parametrize("job", [spec(state, SHORT) for state in STOPPED], ids=str)
def test_stopped_peer(pool, job):
    """It is not dead: only the time-out ends the wait."""
    ended(pool[job], "CommTimeout", NOTICED_S + float(SHORT))


@pytest.mark.parametrize("job", [jobs.Spec("prog_exit.py", "AAB", (how,), TCP) for how in EXITS], ids=str)
def test_end_of_a_program(pool, job):
    """With a live communicator, connected or not: status 0 and no message."""
    outcome = pool[job]
    assert sorted(outcome.by_rank("reached")) == [0, 1, 2], outcome.text
    assert outcome.job.returncode == 0 and not any(outcome.job.stderr), outcome.text


def test_abort_in_another_thread():
    """The whole job ends, though both ranks wait."""
    job = launch.mpirun(2, ABORT, env=dict(TCP), check=False, timeout=60)
    assert job.returncode == 7, job.report()
    assert not any(job.stdout), job.report()
