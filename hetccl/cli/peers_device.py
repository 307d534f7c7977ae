"""Bindings of NCCL as peers of bench, on arrays in GPU memory: CuPy's and nccl4py.

Each calls the library on the stream of the memory's own; results are those of the same NCCL, whoever calls it.
"""

import importlib

from hetccl.cli.collectives import Side

IN_PLACE = "in place"
CUPY_METHODS = ("Allreduce", "Reduce", "Bcast", "Allgather", "Reduce_scatter_block", "Alltoall", "Sendrecv", "Send")
NCCL4PY_METHODS = ("Allreduce", "Allgather", "Reduce_scatter_block", "Alltoall")
# NCCL's numbers of dtypes, by NumPy's names. Source: nccl.h, ncclDataType_t
DTYPES = {
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
# ncclRedOp_t
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}


def pointer(array):
    """The address of an array of CuPy's or PyTorch's."""
    return array.data_ptr() if hasattr(array, "data_ptr") else array.data.ptr


class Cupy:
    """cupy.cuda.nccl under mpi4py's names, as its users call it."""

    def __init__(self, world, want):
        self.nccl = importlib.import_module("cupy.cuda.nccl")
        self.rank, self.size, self.stream = world.rank, world.size, want.memory.stream_pointer
        self.dtype, self.op = DTYPES[want.dtype.name], OPS[want.op or "sum"]
        self.itemsize = want.dtype.itemsize
        unique = world.bcast(self.nccl.get_unique_id() if world.rank == 0 else None)
        self.comm = self.nccl.NcclCommunicator(world.size, unique, world.rank)

    def Allreduce(self, send, recv, op):
        source, target = pointer(recv if send is IN_PLACE else send), pointer(recv)
        self.comm.allReduce(source, target, len(recv), self.dtype, self.op, self.stream)

    def Reduce(self, send, recv, op, root):
        source = recv if send is IN_PLACE else send
        target = source if recv is None else recv
        self.comm.reduce(pointer(source), pointer(target), len(source), self.dtype, self.op, root, self.stream)

    def Bcast(self, buffer, root):
        self.comm.bcast(pointer(buffer), len(buffer), self.dtype, root, self.stream)

    def Allgather(self, send, recv):
        count = len(recv) // self.size
        source = pointer(recv) + self.rank * count * self.itemsize if send is IN_PLACE else pointer(send)
        self.comm.allGather(source, pointer(recv), count, self.dtype, self.stream)

    def Reduce_scatter_block(self, send, recv, op):
        self.comm.reduceScatter(pointer(send), pointer(recv), len(recv), self.dtype, self.op, self.stream)

    def Alltoall(self, send, recv):
        count = len(send) // self.size
        source, target, step = pointer(send), pointer(recv), count * self.itemsize
        self.nccl.groupStart()
        for peer in range(self.size):
            self.comm.send(source + peer * step, count, self.dtype, peer, self.stream)
            self.comm.recv(target + peer * step, count, self.dtype, peer, self.stream)
        self.nccl.groupEnd()

    def Sendrecv(self, send, dest, recvbuf, source):
        self.nccl.groupStart()
        self.comm.send(pointer(send), len(send), self.dtype, dest, self.stream)
        self.comm.recv(pointer(recvbuf), len(recvbuf), self.dtype, source, self.stream)
        self.nccl.groupEnd()

    def Send(self, buffer, peer, tag):
        self.comm.send(pointer(buffer), len(buffer), self.dtype, peer, self.stream)

    def Recv(self, buffer, peer, tag):
        self.comm.recv(pointer(buffer), len(buffer), self.dtype, peer, self.stream)


class Nccl4py:
    """nccl4py under mpi4py's names."""

    def __init__(self, world, want):
        self.nccl = importlib.import_module("nccl.core")
        self.rank, self.size, self.stream = world.rank, world.size, want.memory.stream_pointer
        self.op = getattr(self.nccl, (want.op or "sum").upper())
        unique = world.bcast(self.nccl.get_unique_id() if world.rank == 0 else None)
        self.comm = self.nccl.Communicator.init(world.size, world.rank, unique)

    def Allreduce(self, send, recv, op):
        self.comm.allreduce(recv if send is IN_PLACE else send, recv, self.op, stream=self.stream)

    def Allgather(self, send, recv):
        self.comm.allgather(send, recv, stream=self.stream)

    def Reduce_scatter_block(self, send, recv, op):
        self.comm.reduce_scatter(send, recv, self.op, stream=self.stream)

    def Alltoall(self, send, recv):
        self.comm.alltoall(send, recv, stream=self.stream)


def cupy_lacks(want):
    """See peers.Peer.lacks."""
    return _lacks(want, "CuPy's NCCL", CUPY_METHODS)


def nccl4py_lacks(want):
    """See peers.Peer.lacks."""
    return _lacks(want, "nccl4py", NCCL4PY_METHODS)


def cupy_missing(want, settings):
    """See peers.Peer.missing."""
    return _missing("cupy.cuda.nccl")


def nccl4py_missing(want, settings):
    """See peers.Peer.missing."""
    return _missing("nccl.core")


def open_cupy(world, want):
    """See peers.Peer.open."""
    made = Cupy(world, want)
    return Side(made, None, _in_place(want, ("Allreduce", "Reduce", "Bcast", "Allgather")), close=made.comm.destroy)


def open_nccl4py(world, want):
    """See peers.Peer.open."""
    made = Nccl4py(world, want)
    return Side(made, None, _in_place(want, ("Allreduce",)), close=made.comm.destroy)


def _in_place(want, methods):
    return IN_PLACE if want.collective.method in methods else None


def _lacks(want, name, methods):
    if not want.one_island:
        return "NCCL serves the ranks of one island"
    if want.collective.method not in methods:
        return f"bench does not call {name} for {want.collective.method}"
    return "" if want.dtype.name in DTYPES else f"NCCL does not have {want.dtype.name}"


def _missing(module):
    try:
        importlib.import_module(module)
    except (ImportError, OSError) as error:
        return str(error).splitlines()[0]
    return ""
