"""Inside a guest: the exactness matrix of tests/mpi on one list of islands, LAYOUT, its ranks on NODES hosts.

A program without MPI: it starts the job.
"""

import os

import launch
from mpi import jobs, matrix
from softroce.alone import limit, run_checks

LIMIT_S = 900
LAYOUT, NODES = os.environ.pop("LAYOUT"), int(os.environ.pop("NODES"))


@limit(LIMIT_S)
def check_every_case():
    launch.HOSTS[:] = [f"node{node}" for node in range(NODES)]
    env = {name: value for name, value in os.environ.items() if name.startswith("HETCCL_")}
    outcome, by_case = jobs.exact(LAYOUT, matrix.QUICK, timeout=LIMIT_S - 30, env=env)
    wanted = [case for group in matrix.groups(len(LAYOUT)).values() for case in group]
    wrong = jobs.faults(by_case, wanted, len(LAYOUT))
    assert not wrong, "\n".join([*wrong[:20], f"{len(wrong)} of {len(wanted)}", "" if by_case else outcome.text])
    ended = outcome.by_rank("end")
    assert sorted(ended) == list(range(len(LAYOUT))) and outcome.job.returncode == 0, outcome.text


if __name__ == "__main__":
    run_checks(globals())
