"""Every MPI of this machine: each collective once over two islands, a dead rank, and a rank that never comes.

The whole matrix runs on the default MPI. hetccl uses MPI for bootstrap alone, so this is what may differ: how ranks
find each other, and what happens to the others when one dies.
"""

import json

import pytest

import launch

MPIS = sorted(launch.launchers())
ISLANDS = [{"HETCCL_ISLAND": label} for label in "ABA"]

START = """
import json, os, sys
import numpy as np
from mpi4py import MPI
import hetccl
world = MPI.COMM_WORLD
rank, size = world.rank, world.size
"""
# Whole numbers that differ by rank and index: sums are exact in float32, so any order gives the same.
COLLECTIVES = (
    START
    + """
N = 1023
def given(r, n=N):
    return (np.arange(n) % 97 + 100 * r).astype(np.float32)
every = [given(r) for r in range(size)]
wide = [given(r, N * size) for r in range(size)]
comm = hetccl.Comm(world)
got = {}
def case(name, call, n, expected):
    out = np.full(n + 2, -7, np.float32)
    call(out[1:-1])
    got[name] = bool(out[0] == out[-1] == -7 and np.array_equal(out[1:-1], expected))
def bcast(buf):
    buf[:] = given(rank)
    comm.Bcast(buf, root=1)
def reduce(buf):
    comm.Reduce(given(rank), buf if rank == 2 else None, root=2)
    if rank != 2:
        buf[:] = sum(every)
case("Allreduce", lambda buf: comm.Allreduce(given(rank), buf), N, sum(every))
case("Allreduce MAX", lambda buf: comm.Allreduce(given(rank), buf, op=MPI.MAX), N, np.maximum.reduce(every))
case("Reduce", reduce, N, sum(every))
case("Bcast", bcast, N, given(1))
case("Allgather", lambda buf: comm.Allgather(given(rank), buf), N * size, np.concatenate(every))
mine = slice(N * rank, N * (rank + 1))
case("Reduce_scatter_block", lambda buf: comm.Reduce_scatter_block(wide[rank], buf), N, sum(wide)[mine])
case("Alltoall", lambda buf: comm.Alltoall(wide[rank], buf), N * size, np.concatenate([w[mine] for w in wide]))
right_peer, left_peer = (rank + 1) % size, (rank - 1) % size
case("Sendrecv", lambda buf: comm.Sendrecv(given(rank), right_peer, 3, buf, left_peer, 3), N, given(left_peer))
big = np.full(1 << 20, rank + 1.0)
def in_place(buf):
    comm.Allreduce(hetccl.IN_PLACE, big)
    buf[:] = big[:N] if big.min() == big.max() else -1
case("Allreduce 8 MiB", in_place, N, np.full(N, 6.0))
comm.Barrier()
got["islands"] = [[i.label, list(i.ranks)] for i in comm.islands] == [["A", [0, 2]], ["B", [1]]]
comm.Free()
print(json.dumps(got))
"""
)
DEATH = (
    START
    + """
comm = hetccl.Comm(world)
x = np.ones(1 << 16)
try:
    for i in range(1000000):
        if rank == 1 and i == 20:
            os.kill(os.getpid(), 9)
        comm.Allreduce(hetccl.IN_PLACE, x)
except hetccl.PeerError as error:
    print("PeerError", error.peer)
os._exit(0)
"""
)
ABSENCE = (
    START
    + """
import time
from pathlib import Path
folder = Path(sys.argv[1])
if rank == 1:
    until = time.monotonic() + 100
    while len(list(folder.iterdir())) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    os._exit(0)
try:
    hetccl.Comm(world)
except hetccl.CommTimeout as error:
    print("CommTimeout", error.peer)
(folder / str(rank)).touch()
os._exit(0)
"""
)
CASES = ["Allreduce", "Allreduce MAX", "Reduce", "Bcast", "Allgather", "Reduce_scatter_block", "Alltoall", "Sendrecv"]
CASES += ["Allreduce 8 MiB", "islands"]


@pytest.mark.parametrize("mpi", MPIS)
def test_collectives(mpi):
    job = launch.mpirun(3, COLLECTIVES, per_rank_env=ISLANDS, mpi=mpi, timeout=240)
    assert [json.loads(text) for text in job.stdout] == [dict.fromkeys(CASES, True)] * 3
    assert job.stderr == ("", "", "")


@pytest.mark.parametrize("mpi", MPIS)
def test_dead_rank(mpi):
    job = launch.mpirun(3, DEATH, per_rank_env=ISLANDS, mpi=mpi, timeout=240, keep_alive=True, check=False)
    assert job.returncodes == (0, 137, 0)
    # A rank may hear of the death from another one; either way it learns who died.
    assert [text.split()[0] for text in (job.stdout[0], job.stdout[2])] == ["PeerError"] * 2
    assert all("1" in text for text in (job.stdout[0], job.stdout[2]))


@pytest.mark.parametrize("mpi", MPIS)
def test_absent_rank(mpi, tmp_path):
    env = {"HETCCL_TIMEOUT": "3"}
    job = launch.mpirun(3, ABSENCE, tmp_path, env=env, mpi=mpi, timeout=240, keep_alive=True, check=False)
    assert job.returncodes == (0, 0, 0)
    assert [job.stdout[0].split()[0], job.stdout[2].split()[0]] == ["CommTimeout"] * 2
    assert "1" in job.stdout[0] and "1" in job.stdout[2]


@pytest.mark.parametrize("mpi", MPIS)
def test_one_rank(mpi):
    code = START + "x = np.arange(5.0); hetccl.Comm(world).Allreduce(hetccl.IN_PLACE, x); print(x.sum())"
    assert launch.mpirun(1, code, mpi=mpi).stdout == ("10.0\n",)
