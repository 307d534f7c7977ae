"""Inside a guest: a peer over verbs is killed or stopped in each state of the protocol, interrupted, or ends in its own
way; with NODES=2 the ranks are on two hosts.

A program without MPI: it starts the jobs of tests/mpi. Rank 0 has rxe0 and rank 1 rxe1, or packets would not leave the
device.
"""

import os

import launch
from mpi import jobs
from softroce.alone import limit, resources, run_checks

LIMIT_S = 120
NOTICED_S, TIME_OUT_S, SHORT_S = 30, 90, 5
VICTIM, SURVIVOR = 0, 1
# 2 MiB: registered and written in a second, and far more than one write.
LARGE = "18"
NODES = int(os.environ.pop("NODES", "1"))
DEVICES = [{"HETCCL_IB_HCA": "rxe0"}, {"HETCCL_IB_HCA": "rxe1"}]


def run(program, *args, seconds=TIME_OUT_S, **options):
    """Outcome of a job of two ranks; the kernel has as many objects afterwards as before."""
    launch.HOSTS[:] = [f"node{node}" for node in range(NODES)] if NODES > 1 else []
    before = resources()
    env = {"HETCCL_TRANSPORT": "verbs", "HETCCL_TIMEOUT": str(seconds)}
    outcome = jobs.run(program, "AA", *args, env=env, per_rank_env=DEVICES, timeout=LIMIT_S - 10, **options)
    assert resources() == before, f"left behind: {resources()}, before: {before}\n{outcome.text}"
    return outcome


def state(name, took=range(1), error="PeerError", seconds=TIME_OUT_S):
    """The survivor got so many messages whole and right, then an error that names the victim, and could free."""
    outcome = run("prog_states.py", name, LARGE, seconds=seconds, keep_alive=True)
    found = outcome.by_rank("outcome")
    assert sorted(found) == [SURVIVOR], outcome.text
    line = found[SURVIVOR]
    assert line["outcome"] == "error" and error in line["classes"] and line["peers"] == [VICTIM], (line, outcome.text)
    assert 0 <= line["seconds"] < NOTICED_S, line
    assert outcome.by_rank("took")[SURVIVOR]["took"] in took, outcome.text
    assert outcome.by_rank("again")[SURVIVOR]["free_seconds"] < NOTICED_S, outcome.text
    assert sorted(outcome.by_rank("ended")) == [SURVIVOR], outcome.text


@limit(LIMIT_S)
def check_killed_before_it_is_connected():
    state("before_connect")


@limit(LIMIT_S)
def check_killed_while_idle():
    state("idle")


@limit(LIMIT_S)
def check_killed_while_waited_for():
    state("waited_for")


@limit(LIMIT_S)
def check_killed_after_small_messages_have_arrived():
    state("eager_arrived", took=[10])


@limit(LIMIT_S)
def check_killed_after_small_messages_were_written():
    state("eager_under_way", took=[10])


@limit(LIMIT_S)
def check_killed_before_it_takes_small_messages():
    state("eager_not_taken")


@limit(LIMIT_S)
def check_killed_after_rts_to_it():
    state("rts_sent")


@limit(LIMIT_S)
def check_killed_after_its_rts():
    state("rts_come")


@limit(LIMIT_S)
def check_killed_after_cts_to_it():
    state("cts_sent")


@limit(LIMIT_S)
def check_killed_when_it_begins_to_write():
    state("writes_begun", took=range(8))


@limit(LIMIT_S)
def check_killed_in_the_middle_of_its_writes():
    state("writes_half", took=range(8))


@limit(LIMIT_S)
def check_killed_before_its_last_fin():
    state("writes_the_last", took=range(9))


@limit(LIMIT_S)
def check_killed_while_it_is_written_to():
    state("written")


@limit(LIMIT_S)
def check_killed_while_both_write():
    state("both_ways")


@limit(LIMIT_S)
def check_stopped():
    state("stopped", error="CommTimeout", seconds=SHORT_S)


@limit(LIMIT_S)
def check_stopped_while_it_is_sent_to():
    state("stopped_and_sent_to", error="CommTimeout", seconds=SHORT_S)


def interrupted(where):
    """Ctrl-C ends the wait of rank 0, and rank 1's next call names it."""
    outcome = run("prog_fail.py", "interrupt", where, keep_alive=True)
    found = outcome.by_rank("outcome")
    assert sorted(found) == [VICTIM, SURVIVOR], outcome.text
    assert found[VICTIM]["error"] == "KeyboardInterrupt" and found[VICTIM]["seconds"] < NOTICED_S, found
    assert "PeerError" in found[SURVIVOR]["classes"] and found[SURVIVOR]["peers"] == [VICTIM], found


@limit(LIMIT_S)
def check_interrupted_in_a_barrier():
    interrupted("Barrier")


@limit(LIMIT_S)
def check_interrupted_in_a_large_collective():
    interrupted("large")


def ends(how):
    """A program may end with a live communicator: status 0 and no message."""
    outcome = run("prog_exit.py", how)
    assert sorted(outcome.by_rank("reached")) == [0, 1], outcome.text
    assert outcome.job.returncode == 0 and not any(outcome.job.stderr), outcome.text


@limit(LIMIT_S)
def check_ends_without_free():
    ends("plain")


@limit(LIMIT_S)
def check_ends_by_sys_exit():
    ends("sys_exit")


@limit(LIMIT_S)
def check_ends_with_requests():
    ends("requests")


@limit(LIMIT_S)
def check_ends_after_finalize():
    ends("finalize_only")


@limit(LIMIT_S)
def check_exception_in_one_rank():
    outcome = run("prog_fail.py", "raise_in_one")
    line = outcome.by_rank("outcome")[SURVIVOR]
    assert "PeerError" in line["classes"] and line["peers"] == [VICTIM], (line, outcome.text)


@limit(LIMIT_S)
def check_no_memory_may_be_locked():
    """`ulimit -l 64`: both ranks hear which device, which limit, and what to do."""
    outcome = run("prog_memlock.py")
    found = outcome.by_rank("problem")
    assert sorted(found) == [0, 1], outcome.text
    for rank, line in found.items():
        assert "PeerError" in line["problem"]["classes"] and line["problem"]["peers"] == [1 - rank], line
        for part in ("rxe", "RLIMIT_MEMLOCK, which is 64 KiB", "ulimit -l unlimited"):
            assert part in line["problem"]["text"], (part, line)


@limit(LIMIT_S)
def check_threads_and_forks():
    names = ("two_communicators_in_two_threads", "two_threads_on_one_communicator", "fork", "fork_and_free")
    names += ("fork_in_the_middle", "multiprocessing_and_subprocess", "free_waits_for_other_threads")
    names = [f"check_{name}" for name in names]
    outcome = run("check_life.py", *names)
    ran = {(line["name"], line["rank"]): line["problem"] for line in outcome.lines if "problem" in line}
    problems = {key: problem for key, problem in ran.items() if problem}
    assert not problems, problems
    assert len(ran) == 2 * len(names), outcome.text


if __name__ == "__main__":
    run_checks(globals())
