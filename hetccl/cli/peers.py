"""What bench compares hetccl with: each peer is a Side whose communicator has mpi4py's methods, as far as it has them.

A peer is opened on all ranks or on none; why it is not is told by name, on rank 0's page.
"""

import ctypes
import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

import hetccl
from hetccl import config, oneccl
from hetccl.cli import job, peers_device, peers_torch
from hetccl.cli.collectives import Side

# mpi4py maps neither to an MPI datatype that can be reduced.
UNREDUCED_BY_MPI = ("float16", "bfloat16")
HOST, DEVICE = ("host",), ("cuda", "hip")
# Copies are the same for calls in place: anything but None says that there are such.
COPIED = "copy"
# The calls whose first arguments are a send and a receive buffer, all of whose bytes count on every rank.
STAGED = ("Allreduce", "Allgather", "Reduce_scatter_block", "Alltoall", "Scan", "Exscan")


class Want(NamedTuple):
    """What a peer is opened for.

    collective : collectives.Collective     dtype : NumPy's     op : name, None for a call that takes none
    memory     : memory.Host or the like    nbytes : of the largest row
    one_island : whether all ranks are in one island
    """

    collective: object
    dtype: object
    op: str | None
    memory: object
    nbytes: int
    one_island: bool


class Peer(NamedTuple):
    """One peer.

    memories : kinds of memory.KINDS whose buffers it takes
    lacks    : Want -> "" or why it does not do this at all, whatever is installed
    missing  : (Want, config.Config) -> "" or why this rank cannot have it
    open     : (MPI communicator, Want) -> Side; collective
    """

    memories: tuple
    lacks: Callable
    missing: Callable
    open: Callable


class Copies:
    """No library but a limit: all ranks at once copy as many bytes, each in its own memory.

    Between islands a GPU's go to the host, while as many come back.
    """

    def __init__(self, want):
        self.memory = want.memory
        self.copy = self.memory.copy if want.one_island else self.memory.exchange
        self.source, self.target = (self.memory.array(np.full(want.nbytes, byte, np.uint8)) for byte in (1, 2))

    def move(self, nbytes, times):
        """Copy so many bytes, one time after another."""
        for _ in range(times):
            self.copy(self.target[:nbytes], self.source[:nbytes])


class Staged:
    """mpi4py on pinned copies of a GPU's buffers, as programs do it by hand where MPI is not GPU-aware."""

    def __init__(self, world, want):
        self.world, self.memory = world, want.memory
        self.rank, self.size = world.rank, world.size
        # In place, the one buffer is as long as the larger of the two.
        count = want.nbytes // want.dtype.itemsize
        self.sent, self.received = (self.memory.pinned(np.zeros(count, want.dtype)) for _ in range(2))

    def __getattr__(self, name):
        method = getattr(self.world, name)

        def call(send, recv, *rest):
            into = self.received[: len(recv)]
            if send is job.constants().IN_PLACE:
                self.memory.fetch(recv, into)
            else:
                mine = self.sent[: len(send)]
                self.memory.fetch(send, mine)
                send = mine
            method(send, into, *rest)
            self.memory.put(recv, into)

        return call


def names(kinds):
    """The peers that take buffers of some of these kinds of memory: list of str."""
    return [name for name, peer in PEERS.items() if set(kinds) & set(peer.memories)]


def unfit(name, kinds):
    """ "" or which kinds of memory, of those of all ranks, a peer does not take."""
    others = sorted(set(kinds) - set(PEERS[name].memories))
    return f"does not take buffers in {' or '.join(others)} memory" if others else ""


def open_peers(wanted, world, want, settings):
    """Open peers, each on all ranks or on none. Collective.

    wanted  : names     world : MPI communicator     want : Want     settings : config.Config
    Returns : (list of Side, {name: why it does not take part})
    """
    sides, absent = [], {}
    kinds = world.allgather(want.memory.kind)
    for name in wanted:
        peer = PEERS[name]
        why = unfit(name, kinds) or peer.lacks(want)
        if not why:
            why = "; ".join(job.by_text(world.allgather(peer.missing(want, settings))))
        if why:
            absent[name] = why
        else:
            sides.append(dataclasses.replace(peer.open(world, want), name=name))
    return sides, absent


def _mpi_lacks(want):
    if want.op == "avg":
        return "MPI has no average"
    if want.op and want.dtype.name in UNREDUCED_BY_MPI:
        return f"mpi4py does not reduce {want.dtype.name}"
    return "mpi4py does not take bfloat16" if want.dtype.name == "bfloat16" else ""


def _mpi_missing(want, settings):
    kind = want.memory.kind
    if kind == "host" or gpu_aware(kind):
        return ""
    return f"{job.describe_mpi().library} does not say that it takes buffers of {kind}"


def _mpi(world, want):
    mpi = job.constants()
    return Side(world, getattr(mpi, (want.op or "sum").upper(), None), mpi.IN_PLACE, byte=mpi.BYTE)


def _staged_lacks(want):
    if want.collective.method not in STAGED:
        return f"bench does not copy through the host for {want.collective.method}"
    return _mpi_lacks(want)


def _staged(world, want):
    return dataclasses.replace(_mpi(world, want), comm=Staged(world, want))


def _oneccl_lacks(want):
    return "" if want.one_island else "it serves communicators of one island"


def _oneccl_missing(want, settings):
    return job.first_line(oneccl.describe(dataclasses.replace(settings, host_ccl="oneccl")).problem)


def _oneccl(world, want):
    with config.changed("HETCCL_HOST_CCL", "oneccl"):
        comm = job.communicator(world)
    op = getattr(hetccl, (want.op or "sum").upper())
    return Side(comm, op, hetccl.IN_PLACE, byte=job.constants().BYTE, close=comm.Free)


def _none(*ignored):
    return ""


def gpu_aware(kind):
    """Whether the MPI of this process says that it takes buffers in the memory of CUDA or HIP GPUs.

    Source : mpi-ext.h of Open MPI (MPIX_Query_cuda_support, _rocm_), mpi_proto.h of MPICH (MPIX_GPU_query_support)
    """
    lines = (line.split(None, 5) for line in Path("/proc/self/maps").read_text().splitlines())
    paths = {line[5] for line in lines if len(line) == 6 and re.search(r"/libmpi\.so[.0-9]*$", line[5])}
    if len(paths) != 1:
        return False
    program = ctypes.CDLL(paths.pop())
    query = {"cuda": "MPIX_Query_cuda_support", "hip": "MPIX_Query_rocm_support"}[kind]
    if hasattr(program, query):
        return bool(getattr(program, query)())
    if hasattr(program, "MPIX_GPU_query_support"):
        answer = ctypes.c_int(0)
        number = {"cuda": 0, "hip": 2}[kind]
        return not program.MPIX_GPU_query_support(number, ctypes.byref(answer)) and bool(answer.value)
    return False


PEERS = {
    "mpi4py": Peer((*HOST, *DEVICE), _mpi_lacks, _mpi_missing, _mpi),
    "mpi4py-staged": Peer(DEVICE, _staged_lacks, _none, _staged),
    "oneccl": Peer(HOST, _oneccl_lacks, _oneccl_missing, _oneccl),
    "torch-gloo": Peer((*HOST, *DEVICE), peers_torch.lacks_gloo, peers_torch.missing, peers_torch.open_gloo),
    "torch-nccl": Peer(DEVICE, peers_torch.lacks_nccl, peers_torch.missing_nccl, peers_torch.open_nccl),
    "cupy": Peer(DEVICE, peers_device.cupy_lacks, peers_device.cupy_missing, peers_device.open_cupy),
    "nccl4py": Peer(("cuda",), peers_device.nccl4py_lacks, peers_device.nccl4py_missing, peers_device.open_nccl4py),
    "copy": Peer((*HOST, *DEVICE), _none, _none, lambda world, want: Side(Copies(want), None, COPIED, kind="limit")),
}
