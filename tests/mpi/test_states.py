"""A peer ends or stops in each state of the protocol between ranks that share no memory, here over TCP: what has arrived
counts, and the other rank's call ends with an error that names it, in bounded time."""

import pytest

from mpi import jobs

# The time-out is far above the bound, so that it is not what ends the wait.
NOTICED_S, TIME_OUT, SHORT = 10, "60", "3"
VICTIM, SURVIVOR = 0, 1
# How many messages the survivor must have got before; of those of a loop, not all.
ARRIVED = {"eager_arrived": range(10, 11), "eager_under_way": range(10, 11)}
ARRIVED |= {"writes_begun": range(8), "writes_half": range(8), "writes_the_last": range(9)}
KILLED = (
    "idle", "waited_for", "eager_arrived", "eager_under_way", "eager_not_taken", "rts_sent", "rts_come", "cts_sent",
    "writes_begun", "writes_half", "writes_the_last", "written", "both_ways",
)  # fmt: skip
STOPPED = ("stopped", "stopped_and_sent_to")


def spec(state, timeout=TIME_OUT):
    env = (("HETCCL_TRANSPORT", "tcp"), ("HETCCL_TIMEOUT", timeout))
    return jobs.Spec("prog_states.py", "AA", (state,), env, keep_alive=True)


@pytest.fixture(scope="module")
def pool(request):
    running = jobs.Pool(item.callspec.params["job"] for item in request.session.items if item.path == request.path)
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
    outcome, (state,) = pool[job], job.args
    ended(outcome, "PeerError", NOTICED_S)
    took = outcome.by_rank("took")[SURVIVOR]["took"]
    assert took in ARRIVED.get(state, range(1)), f"{took} messages came whole"


@pytest.mark.parametrize("job", [spec("before_connect")], ids=str)
def test_peer_killed_before_it_is_connected(pool, job):
    """Its listener is gone: that is believed only after it has refused for a while."""
    line = ended(pool[job], "PeerError", 3 * NOTICED_S)
    assert "Connection refused" in line["text"], line


@pytest.mark.parametrize("job", [spec(state, SHORT) for state in STOPPED], ids=str)
def test_stopped_peer(pool, job):
    """It is not dead: only the time-out ends the wait."""
    ended(pool[job], "CommTimeout", NOTICED_S + float(SHORT))
