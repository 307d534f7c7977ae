"""Nothing hangs: killed, missing, late, mismatched and interrupted ranks become errors on the others, in bounded time."""

import os

import pytest

from mpi import jobs

# A dead peer is noticed within this time. The time-out is far above it, so that it is not what ends the wait.
NOTICED_S = 10
COLLECTIVES = (
    "Allreduce", "Reduce", "Bcast", "Allgather", "Reduce_scatter_block", "Alltoall", "Barrier", "Sendrecv", "Send",
)  # fmt: skip
SMALL, LARGE = 4, 1 << 19
# prog_fail.py's VICTIM: the last but one.
LAYOUT, VICTIM = "AAB", 1
OTHERS = [0, 2]
SHORT = {"HETCCL_TIMEOUT": "3"}
CHECKED = {"HETCCL_TIMEOUT": "20", "HETCCL_CHECK": "1"}


def outcomes(scenario, *args, layout=LAYOUT, env=None, timeout=60):
    """({rank: outcome line}, Outcome) of a scenario of prog_fail.py."""
    env = {"HETCCL_TIMEOUT": "60", **(env or {})}
    outcome = jobs.run("prog_fail.py", layout, scenario, *map(str, args), env=env, timeout=timeout, keep_alive=True)
    return outcome.by_rank("outcome"), outcome


def assert_all(ranks, found, outcome, error, peer):
    """Every one of `ranks` ended with `error`, or a subclass, that names `peer`."""
    assert sorted(found) == sorted(ranks), f"outcomes of {sorted(found)}, expected of {ranks}\n{outcome.text}"
    for rank in ranks:
        line = found[rank]
        assert line["outcome"] == "error" and error in line["classes"], f"rank {rank}: {line}\n{outcome.text}"
        assert peer in line["peers"], f"rank {rank} does not name {peer}: {line}"


def assert_left_well(ranks, outcome):
    """After the error a further call is refused at once and Free returns at once."""
    for rank, line in outcome.by_rank("again").items():
        assert line["again"] in ("PeerError", "CommClosed", "CommTimeout", "HetcclError"), f"rank {rank}: {line}"
        assert line["free_seconds"] < NOTICED_S, f"rank {rank}: {line}"
    assert sorted(outcome.by_rank("ended")) == sorted(ranks), outcome.text


@pytest.mark.parametrize("count", [SMALL, LARGE])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_killed_rank(collective, count):
    if collective == "Barrier" and count == LARGE:
        pytest.skip("a barrier has no size")
    found, outcome = outcomes("kill", collective, count)
    assert_all(OTHERS, found, outcome, "PeerError", VICTIM)
    late = {rank: line["seconds"] for rank, line in found.items() if not 0 <= line["seconds"] < NOTICED_S}
    assert not late, f"seconds until the error: {late}"
    assert_left_well(OTHERS, outcome)


@pytest.mark.parametrize("layout", ["AA", "ABABA"])
def test_killed_rank_of_other_layouts(layout):
    found, outcome = outcomes("kill", "Allreduce", LARGE, layout=layout)
    victim = len(layout) - 2
    assert_all([rank for rank in range(len(layout)) if rank != victim], found, outcome, "PeerError", victim)


def test_killed_while_the_others_build():
    found, outcome = outcomes("kill_before_building", env={"HETCCL_TIMEOUT": "5"})
    assert_all(OTHERS, found, outcome, "HetcclError", VICTIM)


def test_rank_never_builds():
    found, outcome = outcomes("never_builds", env=SHORT)
    assert_all(OTHERS, found, outcome, "CommTimeout", VICTIM)


@pytest.mark.parametrize("count", [SMALL, LARGE])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_rank_never_calls(collective, count):
    if collective == "Barrier" and count == LARGE:
        pytest.skip("a barrier has no size")
    found, outcome = outcomes("never_calls", collective, count, env=SHORT)
    assert sorted(found) == OTHERS, outcome.text
    # Whoever times out first leaves, and the others may learn of that instead.
    assert all(line["outcome"] == "error" for line in found.values()), found
    assert any("CommTimeout" in line["classes"] and VICTIM in line["peers"] for line in found.values()), found
    assert_left_well(OTHERS, outcome)


@pytest.mark.parametrize(
    "what", ["count", "large_count", "gather_count", "scatter_count", "total_count", "bcast_count", "collective"]
)
def test_mismatch_is_an_error(what):
    """Without HETCCL_CHECK somebody notices, and everybody comes back."""
    found, outcome = outcomes("mismatch", what, env=SHORT)
    assert sorted(found) == [0, 1, 2], outcome.text
    assert any(line["outcome"] == "error" for line in found.values()), found


@pytest.mark.parametrize(
    "what",
    [
        "count", "large_count", "gather_count", "scatter_count", "total_count", "bcast_count", "dtype",
        "same_size_dtype", "op", "root", "collective", "barrier",
    ],
)  # fmt: skip
def test_checked_mismatch_names_the_ranks(what):
    """With HETCCL_CHECK=1 all ranks raise, at once and not by a time-out, and say who differs."""
    found, outcome = outcomes("mismatch", what, env=CHECKED)
    assert sorted(found) == [0, 1, 2], outcome.text
    for rank, line in found.items():
        assert line["outcome"] == "error", f"rank {rank}: {line}"
        assert {"ValueError", "TypeError", "HetcclError"} & set(line["classes"]), f"rank {rank}: {line}"
        assert "CommTimeout" not in line["classes"], f"rank {rank}: {line}"
        assert VICTIM in line["peers"] or str(VICTIM) in line["text"], f"rank {rank} does not name {VICTIM}: {line}"


def test_checked_calls_that_agree():
    found, outcome = outcomes("checked_and_right", env=CHECKED)
    assert {rank: line["outcome"] for rank, line in found.items()} == {0: "done", 1: "done", 2: "done"}, outcome.text


@pytest.mark.parametrize("where", ["Allreduce", "large", "Barrier", "Bcast", "Recv", "Send", "building"])
def test_interrupted_rank(where):
    """Ctrl-C: KeyboardInterrupt where the rank waits, PeerError for those who come later."""
    found, outcome = outcomes("interrupt", where)
    assert VICTIM in found and found[VICTIM]["classes"][0] == "KeyboardInterrupt", outcome.text
    assert found[VICTIM]["seconds"] < 3, found[VICTIM]
    if where != "building":
        assert_all(OTHERS, {r: line for r, line in found.items() if r != VICTIM}, outcome, "PeerError", VICTIM)


@pytest.mark.parametrize("scenario", ["stop_and_continue", "other_signals"])
def test_harmless_signals(scenario):
    found, outcome = outcomes(scenario)
    assert {rank: line["outcome"] for rank, line in found.items()} == {0: "done", 1: "done", 2: "done"}, outcome.text


def test_exception_in_one_rank():
    """A rank dies of its own exception, in the usual way: the others get PeerError, the job ends, nothing is left."""
    found, outcome = outcomes("raise_in_one")
    assert_all(OTHERS, found, outcome, "PeerError", VICTIM)
    assert "a fault of the user's own" in outcome.job.stderr[VICTIM]
    assert_nothing_left(outcome)


def assert_nothing_left(outcome):
    files = {name for line in outcome.lines for name in line.get("shared", [])}
    left = [name for name in files if os.path.exists(name)]
    left += [name for name in os.listdir("/dev/shm") if "hetccl" in name]
    assert not left, left


@pytest.mark.parametrize("how", ["freed", "kill", "kill_all"])
def test_nothing_left_in_shared_memory(how):
    _, outcome = outcomes("leaves_files", how)
    assert sorted(outcome.by_rank("shared")) == [0, 1, 2], outcome.text
    assert_nothing_left(outcome)


EXITS = ["freed", "plain", "deleted", "cycle", "many", "finalize", "finalize_only", "sys_exit"]


@pytest.mark.parametrize("layout", ["A", LAYOUT])
@pytest.mark.parametrize("how", EXITS)
def test_end_of_a_program(how, layout):
    """A program may end with a live communicator, also after MPI.Finalize: status 0 and no message."""
    outcome = jobs.run("prog_exit.py", layout, how)
    assert sorted(outcome.by_rank("reached")) == list(range(len(layout))), outcome.text
    assert outcome.job.returncode == 0 and not any(outcome.job.stderr), outcome.text


def test_exit_status_is_kept():
    assert jobs.run("prog_exit.py", "A", "sys_exit_3").job.returncode == 3


def test_more_ranks_than_cores():
    """Eight ranks on any machine finish: waits that spin would melt it."""
    outcome = jobs.run("prog_crowd.py", "AAAAABBB", timeout=120)
    assert sorted(outcome.by_rank("calls")) == list(range(8)) and outcome.job.returncode == 0, outcome.text


def test_runs_agree():
    """The same sums of random numbers in two jobs have the same bits."""
    runs = [jobs.run("prog_hash.py", "AABA") for _ in range(2)]
    digests = [{rank: line["digests"] for rank, line in run.by_rank("digests").items()} for run in runs]
    assert sorted(digests[0]) == [0, 1, 2, 3], runs[0].text
    assert digests[0] == digests[1]
    assert len(set(map(str, digests[0].values()))) == 1
