"""bench's peers: which take part, and that the bindings of NCCL are called with CuPy's and nccl4py's arguments.

The libraries are stand-ins of one rank, on host memory, with the signatures that CuPy and nccl4py document: what is
shown is who is called with what, nothing of NCCL.
"""

import ctypes
import dataclasses
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from hetccl.cli import memory, peers, peers_device
from hetccl.cli.collectives import COLLECTIVES
from hetccl.cli.measure import Bench
from hetccl.cli.points import POINTS


class World:
    """An MPI communicator of one rank."""

    rank, size = 0, 1

    def Barrier(self):
        pass

    def allgather(self, value):
        return [value]

    def bcast(self, value):
        return value


class Array(np.ndarray):
    """An array whose address is read as CuPy's."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)


class Memory(memory.Host):
    kind, stream_pointer = "cuda", 77

    def array(self, values):
        return np.array(values).view(Array)


ITEMSIZES = {0: 1, 1: 1, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 8, 9: 2}


class NcclCommunicator:
    """CuPy's, of one rank: what it moves it copies. Source: CuPy's reference, cupy.cuda.nccl.NcclCommunicator"""

    def __init__(self, ndev, commId, rank):
        assert (ndev, commId, rank) == (1, b"id", 0)
        self.messages, self.ended = [], False

    def allReduce(self, sendbuf, recvbuf, count, datatype, op, stream):
        assert op in range(5)
        self.copy(sendbuf, recvbuf, count, datatype, stream)

    def reduce(self, sendbuf, recvbuf, count, datatype, op, root, stream):
        assert root == 0 and op in range(5)
        self.copy(sendbuf, recvbuf, count, datatype, stream)

    def bcast(self, buff, count, datatype, root, stream):
        self.copy(buff, buff, count, datatype, stream)

    def allGather(self, sendbuf, recvbuf, count, datatype, stream):
        self.copy(sendbuf, recvbuf, count, datatype, stream)

    def reduceScatter(self, sendbuf, recvbuf, recvcount, datatype, op, stream):
        self.copy(sendbuf, recvbuf, recvcount, datatype, stream)

    def send(self, sendbuf, count, datatype, peer, stream):
        self.messages.append((sendbuf, count, datatype, stream))

    def recv(self, recvbuf, count, datatype, peer, stream):
        sent, number, kind, _ = self.messages.pop()
        assert (number, kind) == (count, datatype)
        self.copy(sent, recvbuf, count, datatype, stream)

    def copy(self, source, target, count, datatype, stream):
        assert stream == Memory.stream_pointer
        ctypes.memmove(target, source, count * ITEMSIZES[datatype])

    def destroy(self):
        self.ended = True


class Nccl4pyCommunicator:
    """nccl4py's, of one rank."""

    @classmethod
    def init(cls, nranks, rank, unique_id):
        assert (nranks, rank, unique_id) == (1, 0, b"id")
        return cls()

    def allreduce(self, sendbuf, recvbuf, op, *, stream):
        assert op == "SUM" and stream == Memory.stream_pointer
        recvbuf[:] = sendbuf

    reduce_scatter = allreduce

    def allgather(self, sendbuf, recvbuf, *, stream):
        assert stream == Memory.stream_pointer
        recvbuf[:] = sendbuf

    alltoall = allgather

    def destroy(self):
        pass


@pytest.fixture
def bindings(monkeypatch):
    cupy = SimpleNamespace(
        NcclCommunicator=NcclCommunicator,
        get_unique_id=lambda: b"id",
        groupStart=lambda: None,
        groupEnd=lambda: None,
    )
    nccl4py = SimpleNamespace(Communicator=Nccl4pyCommunicator, get_unique_id=lambda: b"id", SUM="SUM")
    for name, found in (("cupy", None), ("cupy.cuda", None), ("cupy.cuda.nccl", cupy)):
        monkeypatch.setitem(sys.modules, name, found or ModuleType(name))
    for name, found in (("nccl", None), ("nccl.core", nccl4py)):
        monkeypatch.setitem(sys.modules, name, found or ModuleType(name))


def want(name, dtype="float32", op="sum", one_island=True, place=None):
    benchmark = {**COLLECTIVES, **POINTS}[name]
    dtype = np.dtype(dtype)
    return peers.Want(benchmark, dtype, op if benchmark.reduces else None, place or Memory(), 400, one_island)


@pytest.mark.parametrize(
    "peer, name",
    [
        *(("cupy", name) for name in ("allreduce", "reduce", "broadcast", "allgather", "reduce_scatter", "alltoall")),
        *(("nccl4py", name) for name in ("allreduce", "allgather", "reduce_scatter", "alltoall")),
        ("cupy", "sendrecv"),
        ("copy", "allreduce"),
    ],
)
def test_bindings_of_nccl(bindings, peer, name):
    wanted = want(name)
    sides, absent = peers.open_peers([peer], World(), wanted, None)
    assert absent == {} and [side.name for side in sides] == [peer]
    # The one in the place of hetccl is the peer too: with it, all results are looked at.
    modes = tuple(mode for mode in wanted.collective.modes if mode == "out" or sides[0].in_place is not None)
    benchmark = dataclasses.replace(wanted.collective, modes=modes)
    bench = Bench(benchmark, World(), sides, wanted.dtype, wanted.op, 0, [100], wanted.memory)
    row = bench.row(100, warmup=1, iters=2, check=True)
    assert {timings[peer].wrong for timings in row.modes()} == ({None} if peer == "copy" else {0})
    sides[0].close()


@pytest.mark.parametrize(
    "peer, wanted, why",
    [
        ("cupy", want("scan"), "does not call CuPy's NCCL for Scan"),
        ("cupy", want("allreduce", one_island=False), "one island"),
        ("cupy", want("allreduce", dtype="int16"), "int16"),
        ("nccl4py", want("broadcast"), "nccl4py for Bcast"),
        ("oneccl", want("allreduce", place=memory.Host(), one_island=False), "one island"),
        ("torch-gloo", want("allreduce", op="avg"), "no average"),
        ("torch-gloo", want("gatherv"), "Gatherv"),
        ("torch-nccl", want("allreduce", one_island=False), "one island"),
        ("mpi4py", want("allreduce", op="avg"), "no average"),
        ("mpi4py", want("allreduce", dtype="float16"), "float16"),
        ("mpi4py-staged", want("gather"), "Gather"),
        ("oneccl", want("allreduce"), "cuda memory"),
        ("cupy", want("allreduce", place=memory.Host()), "host memory"),
    ],
)
def test_who_does_not_take_part_and_why(peer, wanted, why):
    sides, absent = peers.open_peers([peer], World(), wanted, None)
    assert sides == [] and why in absent[peer]


def test_ranks_that_lack_a_peer_are_named(monkeypatch):
    class TwoRanks(World):
        size = 2

        def allgather(self, value):
            return ["cuda", "cuda"] if value == "cuda" else ["", "it is not installed"]

    monkeypatch.setattr(peers_device, "_missing", lambda module: "")
    _, absent = peers.open_peers(["nccl4py"], TwoRanks(), want("allreduce"), None)
    assert absent == {"nccl4py": "rank 1: it is not installed"}


def test_numbers_of_nccl():
    """Written out from nccl.h: ncclDataType_t and ncclRedOp_t."""
    names = ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16"]
    assert {name: number for number, name in enumerate(names)} == peers_device.DTYPES
    assert peers_device.OPS == {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}


def test_a_memory_that_nobody_has_says_why():
    with pytest.raises(memory.MemoryMissing, match="cupy"):
        memory.open_memory("hip", np.dtype("float32"), 0)
