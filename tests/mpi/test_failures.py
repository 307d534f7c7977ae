"""Nothing hangs: killed, missing, late, mismatched and interrupted ranks become errors on the others, in bounded time.

Each test looks at one job; the jobs mostly wait, so that a pool runs a few at a time, ahead of the tests.
"""

import os
import time

import pytest

from mpi import jobs

# A dead peer is noticed within this time. The time-out is far above it, so that it is not what ends the wait.
NOTICED_S = 30
LONG, SHORT = "60", "3"
COLLECTIVES = ("Allreduce", "Reduce", "Bcast", "Allgather", "Reduce_scatter_block", "Alltoall", "Sendrecv", "Send")
SMALL, LARGE = 4, 1 << 19
SIZED = [(name, count) for name in COLLECTIVES for count in (SMALL, LARGE)] + [("Barrier", SMALL)]
# Requests that are pending, and counts of one's own.
SIZED += [(name, LARGE) for name in ("Iallreduce", "Send_requests", "Alltoallv")]
# prog_fail.py's VICTIM is the last rank but one.
LAYOUT, VICTIM, OTHERS = "AAB", 1, [0, 2]
EVERYBODY = [0, 1, 2]
MISMATCHES = (
    "count", "large_count", "gather_count", "scatter_count", "total_count", "bcast_count", "collective", "vector_count",
    "pair_count", "request_count",
)  # fmt: skip
CHECKED_MISMATCHES = (*MISMATCHES, "dtype", "same_size_dtype", "op", "root", "barrier")
INTERRUPTED = ("Allreduce", "large", "Barrier", "Bcast", "Recv", "Send", "Iallreduce", "Probe", "building")
EXITS = ("freed", "plain", "deleted", "cycle", "many", "finalize", "finalize_only", "sys_exit", "requests")


def fault(*args, layout=LAYOUT, timeout=LONG, check=False):
    """The job of a scenario of prog_fail.py; timeout is HETCCL_TIMEOUT in seconds."""
    env = (("HETCCL_TIMEOUT", timeout), *((("HETCCL_CHECK", "1"),) * check))
    return jobs.Spec("prog_fail.py", layout, tuple(map(str, args)), env, keep_alive=True)


def each(*specs):
    """Parametrise a test over jobs; its fixture `outcome` is what the job left."""
    return pytest.mark.parametrize("job", specs, ids=str)


@pytest.fixture(scope="module")
def pool(request):
    items = [item for item in request.session.items if item.path == request.path]
    running = jobs.Pool(item.callspec.params["job"] for item in items)
    yield running
    running.close()


@pytest.fixture
def outcome(pool, job):
    return pool[job]


@pytest.fixture
def found(outcome):
    """{rank: how it ended}"""
    return outcome.by_rank("outcome")


def assert_all(ranks, found, outcome, error, peer):
    """Every one of `ranks` ended with `error`, or a subclass, that names `peer`."""
    assert sorted(found) == sorted(ranks), f"outcomes of {sorted(found)}, expected of {ranks}\n{outcome.text}"
    for rank in ranks:
        line = found[rank]
        assert line["outcome"] == "error" and error in line["classes"], f"rank {rank}: {line}\n{outcome.text}"
        assert peer in line["peers"], f"rank {rank} does not name {peer}: {line}"


def assert_done(ranks, found, outcome):
    assert {rank: line["outcome"] for rank, line in found.items()} == dict.fromkeys(ranks, "done"), outcome.text


def assert_left_well(ranks, outcome):
    """After the error a further call is refused at once and Free returns at once."""
    again = outcome.by_rank("again")
    assert sorted(again) == ranks, outcome.text
    for rank, line in again.items():
        assert line["again"] in ("PeerError", "CommClosed", "CommTimeout", "HetcclError"), f"rank {rank}: {line}"
        assert line["free_seconds"] < NOTICED_S, f"rank {rank}: {line}"
    assert sorted(outcome.by_rank("ended")) == ranks, outcome.text


def assert_nothing_left(outcome):
    files = {name for line in outcome.lines for name in line.get("shared", [])}
    left = [name for name in files if os.path.exists(name)]
    assert not left, left
    # A communicator that another job builds just now has a name there for a moment.
    left, deadline = in_shared_memory(), time.monotonic() + NOTICED_S
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left &= in_shared_memory()
    assert not left, left


def in_shared_memory():
    return {name for name in os.listdir("/dev/shm") if "hetccl" in name}


@each(
    *(fault("kill", *sized) for sized in SIZED),
    fault("kill", "Allreduce", LARGE, layout="AA"),
    fault("kill", "Allreduce", LARGE, layout="ABABA"),
)
def test_killed_rank(job, outcome, found):
    victim = len(job.layout) - 2
    others = [rank for rank in range(len(job.layout)) if rank != victim]
    assert_all(others, found, outcome, "PeerError", victim)
    late = {rank: line["seconds"] for rank, line in found.items() if not 0 <= line["seconds"] < NOTICED_S}
    assert not late, f"seconds until the error: {late}"
    assert_left_well(others, outcome)


@each(fault("kill_before_building", timeout="5"))
def test_killed_while_the_others_build(outcome, found):
    assert_all(OTHERS, found, outcome, "HetcclError", VICTIM)


@each(fault("never_builds", timeout=SHORT))
def test_rank_never_builds(outcome, found):
    assert_all(OTHERS, found, outcome, "CommTimeout", VICTIM)


@each(*(fault("never_calls", *sized, timeout=SHORT) for sized in SIZED if not sized[0].startswith("Send")))
def test_rank_never_calls(outcome, found):
    assert_all(OTHERS, found, outcome, "CommTimeout", VICTIM)
    assert_left_well(OTHERS, outcome)


@each(*(fault("never_calls", *sized, timeout=SHORT) for sized in SIZED if sized[0].startswith("Send")))
def test_rank_never_sends(outcome, found):
    """A message has one partner: the error names that one, who may itself be waiting for the victim."""
    assert sorted(found) == OTHERS, outcome.text
    for rank, line in found.items():
        assert "CommTimeout" in line["classes"] and line["peers"], f"rank {rank}: {line}"
    assert_left_well(OTHERS, outcome)


@each(*(fault("mismatch", what, timeout=SHORT) for what in MISMATCHES))
def test_mismatch_is_an_error(outcome, found):
    """Without HETCCL_CHECK somebody notices, and everybody comes back."""
    assert sorted(found) == EVERYBODY, outcome.text
    assert any(line["outcome"] == "error" for line in found.values()), found


@each(*(fault("mismatch", what, timeout=SHORT) for what in ("root", "collective")))
def test_messages_of_another_collective_are_not_taken(outcome, found):
    """A rank that finds one in its ring says so, rather than to wait for the right one or to reduce the wrong one."""
    assert sorted(found) == EVERYBODY, outcome.text
    assert any("PeerError" in line["classes"] for line in found.values()), found


@each(*(fault("mismatch", what, check=True) for what in CHECKED_MISMATCHES))
def test_checked_mismatch_names_the_ranks(outcome, found):
    """With HETCCL_CHECK=1 all ranks raise, at once and not by a time-out, and say who differs."""
    assert sorted(found) == EVERYBODY, outcome.text
    for rank, line in found.items():
        assert line["outcome"] == "error", f"rank {rank}: {line}"
        assert {"ValueError", "TypeError", "HetcclError"} & set(line["classes"]), f"rank {rank}: {line}"
        assert "CommTimeout" not in line["classes"], f"rank {rank}: {line}"
        # Of counts for each pair it says what a rank sends to whom.
        named = VICTIM in line["peers"] or f"[{VICTIM}]" in line["text"] or f"rank {VICTIM} sends" in line["text"]
        assert named, f"rank {rank} does not name {VICTIM}: {line}"


@each(fault("checked_and_right", check=True))
def test_checked_calls_that_agree(outcome, found):
    assert_done(EVERYBODY, found, outcome)


@each(*(fault("interrupt", where) for where in INTERRUPTED))
def test_interrupted_rank(job, outcome, found):
    """Ctrl-C: KeyboardInterrupt where the rank waits, PeerError for those who come later."""
    assert VICTIM in found and found[VICTIM]["error"] == "KeyboardInterrupt", outcome.text
    assert found[VICTIM]["seconds"] < NOTICED_S, found[VICTIM]
    if "building" not in job.args:
        assert_all(OTHERS, {r: line for r, line in found.items() if r != VICTIM}, outcome, "PeerError", VICTIM)


@each(fault("interrupt", "Waitany"))
def test_interrupted_in_a_wait_for_any(outcome, found):
    """Ctrl-C ends it as any wait; it breaks nothing: the others hear only that the rank, or one of them, has left."""
    assert VICTIM in found and found[VICTIM]["error"] == "KeyboardInterrupt", outcome.text
    assert found[VICTIM]["seconds"] < NOTICED_S, found[VICTIM]
    assert all("PeerError" in found[rank]["classes"] for rank in OTHERS), found


@each(fault("stop_and_continue"))
def test_stopped_and_continued_rank(outcome, found):
    assert_done(EVERYBODY, found, outcome)


@each(fault("other_signals"))
def test_harmless_signals(outcome, found):
    assert_done(EVERYBODY, found, outcome)
    assert sorted(outcome.by_rank("handled")) == sorted(outcome.by_rank("both")) == [VICTIM], outcome.text


@each(fault("raise_in_one"))
def test_exception_in_one_rank(outcome, found):
    """A rank dies of its own exception, in the usual way: the others get PeerError, the job ends, nothing is left."""
    assert_all(OTHERS, found, outcome, "PeerError", VICTIM)
    assert "a fault of the user's own" in outcome.job.stderr[VICTIM]
    assert_nothing_left(outcome)


@each(*(fault("leaves_files", how) for how in ("freed", "kill", "kill_all")))
def test_nothing_left_in_shared_memory(outcome):
    assert sorted(outcome.by_rank("shared")) == EVERYBODY, outcome.text
    assert_nothing_left(outcome)


@each(*(jobs.Spec("prog_exit.py", layout, (how,)) for layout in ("A", "AB") for how in EXITS))
def test_end_of_a_program(job, outcome):
    """A program may end with a live communicator, also after MPI.Finalize: status 0 and no message."""
    assert sorted(outcome.by_rank("reached")) == list(range(len(job.layout))), outcome.text
    assert outcome.job.returncode == 0 and not any(outcome.job.stderr), outcome.text


@each(jobs.Spec("prog_exit.py", "A", ("sys_exit_3",)))
def test_exit_status_is_kept(outcome):
    assert outcome.job.returncode == 3


@each(jobs.Spec("prog_crowd.py", "AAAAABBB"))
def test_more_ranks_than_cores(outcome):
    """Eight ranks on any machine finish: waits that spin would melt it."""
    assert sorted(outcome.by_rank("calls")) == list(range(8)) and outcome.job.returncode == 0, outcome.text


@each(jobs.Spec("prog_hash.py", "AABA"))
def test_runs_agree(job, outcome):
    """The same sums of random numbers in two jobs have the same bits, on all ranks."""
    runs = [outcome, job.run()]
    digests = [str(line["digests"]) for run in runs for line in run.by_rank("digests").values()]
    assert len(digests) == 8, "\n".join(run.text for run in runs)
    assert len(set(digests)) == 1
