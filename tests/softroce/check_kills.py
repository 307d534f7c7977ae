"""Inside a guest: a rank that uses verbs is killed, and each of the others gets an error that names it, in
bounded time.

A program without MPI: it starts the jobs of tests/mpi/prog_fail.py.
"""

from mpi import jobs
from softroce.alone import limit, resources, run_checks

LIMIT_S = 150
# A dead peer is noticed long before the time-out, also where everything is ten times slower.
NOTICED_S, TIME_OUT_S = 30, 100
LARGE, SMALL = 1 << 19, 4


def killed(layout, scenario, *arguments):
    """Every survivor's call ends with a PeerError that names the victim, a further one too; nothing is left behind."""
    before = resources()
    outcome = jobs.run(
        "prog_fail.py",
        layout,
        scenario,
        *map(str, arguments),
        env={"HETCCL_TRANSPORT": "verbs", "HETCCL_TIMEOUT": str(TIME_OUT_S)},
        keep_alive=True,
        timeout=LIMIT_S - 10,
    )
    victim = len(layout) - 2
    others = [rank for rank in range(len(layout)) if rank != victim]
    found, again = outcome.by_rank("outcome"), outcome.by_rank("again")
    assert sorted(found) == sorted(again) == others, outcome.text
    for rank, line in found.items():
        assert line["outcome"] == "error" and "PeerError" in line["classes"], f"rank {rank}: {line}"
        assert victim in line["peers"], f"rank {rank} does not name {victim}: {line}"
        assert 0 <= line["seconds"] < NOTICED_S, f"rank {rank}: {line}"
        assert again[rank]["again"] in ("PeerError", "CommClosed"), again
        assert again[rank]["free_seconds"] < NOTICED_S, again
    assert resources() == before, f"left behind: {resources()}, before: {before}"


@limit(LIMIT_S)
def check_killed_in_a_large_transfer():
    killed("AA", "kill", "Send_requests", LARGE)


@limit(LIMIT_S)
def check_killed_in_small_messages():
    killed("AA", "kill", "Sendrecv", SMALL)


@limit(LIMIT_S)
def check_killed_in_a_collective_of_three():
    killed("AAA", "kill", "Allreduce", LARGE)


@limit(LIMIT_S)
def check_killed_in_a_barrier():
    killed("AAA", "kill", "Barrier", SMALL)


@limit(LIMIT_S)
def check_killed_while_all_are_idle():
    killed("AAA", "kill_idle", "Allreduce", LARGE)


@limit(LIMIT_S)
def check_killed_while_the_others_wait_for_it():
    killed("AAA", "kill_waited_for", "Allreduce", LARGE)


if __name__ == "__main__":
    run_checks(globals())
