"""torch.distributed as a peer of bench: Gloo on host and GPU tensors, and NCCL.

Its collectives are in place; a call out of place is a copy and that. Tensors are made of the arrays beforehand.
"""

import datetime
import importlib
import socket

import numpy as np

from hetccl.cli import job
from hetccl.cli.collectives import Side

OPS = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX", "avg": "AVG"}
METHODS = (
    "Allreduce",
    "Bcast",
    "Allgather",
    "Reduce_scatter_block",
    "Alltoall",
    "Sendrecv",
    "Send",
    "Isend",
    "Barrier",
)
DTYPES = ("int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64")
IN_PLACE = "in place"
# What it waits for a rank that does not come; its own default is half an hour.
TIMEOUT = datetime.timedelta(seconds=60)


class Request:
    """A message under way, with the one method that bench calls."""

    def __init__(self, work):
        self.work = work

    def Wait(self):
        self.work.wait()


class Comm:
    """A process group under mpi4py's names.

    distributed : torch.distributed     group : of all ranks     op : its reduction
    """

    def __init__(self, distributed, group, rank, size, op):
        self.distributed, self.group, self.rank, self.size = distributed, group, rank, size
        self.op = op
        # Newer releases have new names for these two, and warn of the old ones.
        self.all_gather = _either(distributed, "all_gather_single", "all_gather_into_tensor")
        self.reduce_scatter = _either(distributed, "reduce_scatter_single", "reduce_scatter_tensor")

    def Allreduce(self, send, recv, op):
        if send is not IN_PLACE:
            recv.copy_(send)
        self.distributed.all_reduce(recv, self.op, group=self.group)

    def Bcast(self, buffer, root):
        self.distributed.broadcast(buffer, root, group=self.group)

    def Allgather(self, send, recv):
        own = recv.view(self.size, -1)[self.rank] if send is IN_PLACE else send
        self.all_gather(recv, own, group=self.group)

    def Reduce_scatter_block(self, send, recv, op):
        self.reduce_scatter(recv, send, self.op, group=self.group)

    def Alltoall(self, send, recv):
        self.distributed.all_to_all_single(recv, send, group=self.group)

    def Sendrecv(self, send, dest, recvbuf, source):
        message = self.distributed.P2POp
        calls = [
            message(self.distributed.isend, send, dest, self.group),
            message(self.distributed.irecv, recvbuf, source, self.group),
        ]
        for work in self.distributed.batch_isend_irecv(calls):
            work.wait()

    def Send(self, buffer, peer, tag):
        self.distributed.send(buffer, peer, self.group, tag)

    def Recv(self, buffer, peer, tag):
        self.distributed.recv(buffer, peer, self.group, tag)

    def Isend(self, buffer, peer, tag):
        return Request(self.distributed.isend(buffer, peer, self.group, tag))

    def Irecv(self, buffer, peer, tag):
        return Request(self.distributed.irecv(buffer, peer, self.group, tag))

    def Barrier(self):
        self.distributed.barrier(self.group)


def _either(module, *names):
    return next(getattr(module, name) for name in names if hasattr(module, name))


def lacks(want):
    """See peers.Peer.lacks."""
    if want.collective.method not in METHODS:
        return f"bench does not call torch.distributed for {want.collective.method}"
    if want.dtype.name not in DTYPES:
        return f"torch.distributed does not take {want.dtype.name}"
    return ""


def lacks_nccl(want):
    """The same for NCCL."""
    return lacks(want) if want.one_island else "NCCL serves the ranks of one island"


def lacks_gloo(want):
    """The same for Gloo."""
    if want.op == "avg":
        return "Gloo has no average"
    return lacks(want)


def missing(want, settings):
    """See peers.Peer.missing."""
    try:
        distributed = importlib.import_module("torch.distributed")
    except (ImportError, OSError) as error:
        return f"PyTorch: {str(error).splitlines()[0]}"
    return "" if distributed.is_available() else "this PyTorch was built without torch.distributed"


def missing_nccl(want, settings):
    """The same for NCCL."""
    why = missing(want, settings)
    if why:
        return why
    available = importlib.import_module("torch.distributed").is_nccl_available()
    return "" if available else "this PyTorch was built without NCCL"


def open_gloo(world, want):
    """See peers.Peer.open."""
    return _open(world, want, "gloo")


def open_nccl(world, want):
    """See peers.Peer.open."""
    return _open(world, want, "nccl")


def _open(world, want, backend):
    distributed, torch = importlib.import_module("torch.distributed"), importlib.import_module("torch")
    if want.memory.kind != "host":
        # It works on its own current stream: that of the memory, which bench waits for.
        torch.cuda.set_device(want.memory.index)
        torch.cuda.set_stream(torch.cuda.ExternalStream(want.memory.stream_pointer))
    if not distributed.is_initialized():
        one_host = job.ranks_of_host(world) == world.size
        place = world.bcast(_address(one_host) if world.rank == 0 else None)
        distributed.init_process_group(
            "gloo", f"tcp://{place}", rank=world.rank, world_size=world.size, timeout=TIMEOUT
        )
    group = distributed.new_group(backend=backend, timeout=TIMEOUT)
    op = getattr(distributed.ReduceOp, OPS[want.op or "sum"])
    has_in_place = want.collective.method in ("Allreduce", "Bcast", "Allgather")
    in_place = IN_PLACE if has_in_place else None
    comm = Comm(distributed, group, world.rank, world.size, op)
    return Side(comm, None, in_place, adopt=_adopter(torch, want), close=lambda: _close(distributed))


def _close(distributed):
    # With the first of its peers all groups end.
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _address(one_host):
    """Where the ranks meet: an address and port of this one."""
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
    return f"{'127.0.0.1' if one_host else socket.gethostname()}:{port}"


def _adopter(torch, want):
    if want.memory.kind != "host":
        return torch.from_dlpack

    def adopt(array):
        # The bytes are shared, also where NumPy's own types lack the dtype.
        return torch.from_numpy(array.view(np.uint8)).view(getattr(torch, want.dtype.name))

    return adopt
