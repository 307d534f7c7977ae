"""HETCCL_HOST_CCL=oneccl: Intel's library serves host buffers, with the same results, errors and ends.

Its ranks spin, so most jobs here have two. It is asked how many of its calls have ended: what it should have done, it
has done itself, and what it should not, hetccl has.
"""

import functools
import re

import pytest

import launch
from mpi import jobs, matrix
from mpi.test_failures import NOTICED_S
from oneccl_files import absent

pytestmark = pytest.mark.skipif(bool(absent()), reason=absent())

ENV = {"HETCCL_HOST_CCL": "oneccl", "HETCCL_TIMEOUT": "60"}
SCOPES = {"AA": matrix.QUICK, "AAAA": matrix.BRIEF}
CALLS = ("Allreduce", "Reduce", "Reduce_scatter_block", "Bcast", "Allgather", "Alltoall", "Scatter")
INTEGERS = ("int8", "uint8", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
# What oneCCL says once, on rank 0's stdout, when CCL_LOG_LEVEL is set.
CHATTER = re.compile(r".*\|CCL_WARN\| value of CCL_LOG_LEVEL changed.*\n")
CHECKS = (
    ("check_ops.py", "all"), ("check_reduce.py", "all"), ("check_semantics_ops.py", "all"),
    ("check_life.py", "check_fork,check_fork_and_free,check_fork_in_the_middle,check_buffers_are_released"),
    ("check_life.py", "check_two_threads_on_one_communicator,check_many_small_allreduces"),
)  # fmt: skip


def is_oneccls(case):
    """Whether oneCCL does a case of the matrix: the calls and types it has, where its results are hetccl's."""
    if case.collective not in CALLS or case.count == 0:
        return False
    if case.op == "move":
        return case.collective != "Alltoall" or case.form == "out"
    if case.op in ("MIN", "MAX", "PROD", "SUM", "AVG"):
        return case.dtype in INTEGERS or case.dtype in FLOATS and case.op not in ("MIN", "MAX")
    return False


def said(job):
    """Each rank's own output."""
    return tuple(CHATTER.sub("", text) for text in job.stdout)


def pytest_generate_tests(metafunc):
    if "group" in metafunc.fixturenames:
        pairs = [(layout, group) for layout, scope in SCOPES.items() for group in matrix.groups(len(layout), scope)]
        metafunc.parametrize("layout, group", pairs)


@pytest.fixture(scope="module")
def results():
    """Function: layout -> (Outcome, {case: {rank: problem}})."""
    return functools.cache(lambda layout: jobs.exact(layout, SCOPES[layout], env=ENV))


def test_equals_numpy(layout, group, results):
    outcome, by_case = results(layout)
    wrong = jobs.faults(by_case, matrix.groups(len(layout), SCOPES[layout])[group], len(layout))
    assert not wrong, "\n".join([*wrong, "" if by_case else outcome.text])


@pytest.mark.parametrize("layout", SCOPES)
def test_oneccl_does_what_it_should(layout, results):
    outcome, _ = results(layout)
    calls = {(line["case"], line["rank"]): line["oneccl"] for line in outcome.lines if "case" in line}
    wrong = []
    for case in matrix.cases(len(layout), SCOPES[layout]):
        for rank in range(len(layout)):
            if calls.get((str(case), rank)) != int(is_oneccls(case)):
                wrong.append(f"{case}, rank {rank}: {calls.get((str(case), rank))} calls of oneCCL")
    assert not wrong, "\n".join(wrong[:20])
    assert len(calls) > 500 and sum(calls.values()) > 200


@pytest.mark.parametrize("layout", SCOPES)
def test_ends_well(layout, results):
    outcome, _ = results(layout)
    assert sorted(outcome.by_rank("end")) == list(range(len(layout))) and outcome.job.returncode == 0, outcome.text


@pytest.mark.parametrize("program, names", CHECKS)
def test_checks(program, names):
    chosen = jobs.check_names(program) if names == "all" else names.split(",")
    outcome = jobs.run(program, "AA", *chosen, env=ENV, timeout=400)
    ran = {(line["name"], line["rank"]): line["problem"] for line in outcome.lines}
    assert {key: problem for key, problem in ran.items() if problem} == {}
    assert sorted(ran) == sorted((name, rank) for name in chosen for rank in range(2)), outcome.text


@pytest.mark.parametrize("call, count", [("Allreduce", 4), ("Allreduce", 1 << 19), ("Bcast", 4), ("Allgather", 4)])
def test_killed_rank(call, count):
    """prog_fail.py's victim is rank 0 of two."""
    outcome = jobs.run("prog_fail.py", "AA", "kill", call, count, env=ENV, keep_alive=True)
    line = outcome.by_rank("outcome").get(1)
    assert line and "PeerError" in line["classes"] and line["peers"] == [0], outcome.text
    assert 0 <= line["seconds"] < NOTICED_S, line
    assert outcome.by_rank("again")[1]["again"] == "PeerError", outcome.text


def test_rank_never_calls():
    env = {**ENV, "HETCCL_TIMEOUT": "3"}
    outcome = jobs.run("prog_fail.py", "AA", "never_calls", "Allreduce", 4, env=env, keep_alive=True)
    assert "CommTimeout" in outcome.by_rank("outcome")[1]["classes"], outcome.text
    assert outcome.job.returncodes == (0, 0), outcome.text


@pytest.mark.parametrize("where", ["Allreduce", "large"])
def test_interrupted_rank(where):
    """Ctrl-C ends the wait; the buffers outlive the call that oneCCL goes on with when the other rank comes."""
    env = {**ENV, "HETCCL_TIMEOUT": "3"}
    outcome = jobs.run("prog_fail.py", "AA", "interrupt", where, env=env, keep_alive=True)
    line = outcome.by_rank("outcome")[0]
    assert line["error"] == "KeyboardInterrupt" and line["seconds"] < NOTICED_S, outcome.text
    assert outcome.job.returncodes == (0, 0), outcome.text


@pytest.mark.parametrize("how", ["plain", "deleted", "finalize", "finalize_only", "sys_exit", "requests"])
def test_end_of_a_program(how):
    outcome = jobs.run("prog_exit.py", "AA", how, env=ENV)
    assert sorted(outcome.by_rank("reached")) == [0, 1] and outcome.job.returncode == 0, outcome.text
    assert outcome.job.stderr == ("", "")


PARTS = """
import sys
import numpy as np
from mpi4py import MPI
import hetccl
from hetccl import _oneccl

def served(comm):
    before, total = _oneccl.ndone(), np.zeros(5)
    comm.Allreduce(np.full(5, comm.rank + 1.0), total)
    assert (total == comm.size * (comm.size + 1) / 2).all(), total
    return _oneccl.ndone() - before

world = MPI.COMM_WORLD
if sys.argv[1] == "all_first":
    with hetccl.Comm(world) as everybody:
        found = [served(everybody)]
        for color, key in ((world.rank // 2, 0), (world.rank % 2, -world.rank), (0, -world.rank)):
            part = everybody.Split(color, key)
            found += [served(part), served(everybody)]
            part.Free()
else:
    part = hetccl.Comm(world.Split(world.rank // 2))
    everybody = hetccl.Comm(world)
    found = [served(part), served(everybody), served(part)]
print(*found)
"""


def test_parts_after_all():
    """A part's communicator is oneCCL's too, in whatever order its ranks are."""
    job = launch.mpirun(4, PARTS, "all_first", env=ENV, timeout=120)
    assert said(job) == ("1 1 1 1 1 1 1\n",) * 4


def test_all_after_a_part():
    """oneCCL does not reach ranks that its first communicator had not: hetccl serves them, and says so."""
    job = launch.mpirun(4, PARTS, "part_first", env={**ENV, "HETCCL_LOG": "info"}, timeout=120)
    assert said(job) == ("1 0 1\n",) * 4
    assert "not by oneCCL" in job.stderr[0]


def test_absent_library_is_named():
    """All ranks raise the same, and none waits."""
    code = """
    from mpi4py import MPI
    import hetccl
    try:
        hetccl.Comm(MPI.COMM_WORLD)
    except hetccl.LibraryNotFound as error:
        print("nowhere/libccl.so.2" in str(error), error.peer)
    """
    job = launch.mpirun(2, code, env={**ENV, "HETCCL_ONECCL_LIB": "/nowhere/libccl.so.2"})
    assert job.stdout == ("True (0, 1)\n",) * 2


def test_users_environment_stays():
    code = """
    import os
    from mpi4py import MPI
    import hetccl
    hetccl.Comm(MPI.COMM_WORLD).Free()
    print(os.environ["CCL_ATL_SHM"], os.environ["CCL_LOCAL_RANK"], os.environ["CCL_LOCAL_SIZE"])
    """
    job = launch.mpirun(2, code, env={**ENV, "CCL_ATL_SHM": "0"})
    assert said(job) == ("0 0 2\n", "0 1 2\n")


def test_not_touched_unless_asked_for():
    code = """
    import os
    import numpy as np
    from mpi4py import MPI
    import hetccl
    with hetccl.Comm(MPI.COMM_WORLD) as comm:
        comm.Allreduce(np.ones(3), np.zeros(3))
    print("libccl" in open("/proc/self/maps").read(), any(name.startswith("CCL_") for name in os.environ))
    """
    assert launch.mpirun(2, code).stdout == ("False False\n",) * 2
