"""A program with types, for mypy: what the stubs say of every kind of call. It is checked, not run."""

from typing import Any

import numpy as np
from mpi4py import MPI
from mpi4py.typing import SupportsDLPack

import hetccl


def power(comm: hetccl.Comm, rows: np.ndarray[Any, np.dtype[np.float64]], counts: list[int]) -> float:
    """One step of a power iteration."""
    size: int = comm.size
    x, y = np.ones(sum(counts)), np.empty(counts[comm.rank])
    comm.Allgatherv(y, [x, counts])
    total = np.zeros(1)
    comm.Allreduce(np.ones(1), total, op=hetccl.SUM)
    comm.Allreduce(hetccl.IN_PLACE, total, op=MPI.MAX)
    request: hetccl.Request = comm.Iallreduce(MPI.IN_PLACE, [total, 1, MPI.DOUBLE])
    request.Wait()
    step: hetccl.Prequest = comm.Bcast_init(total, root=size - 1)
    hetccl.Prequest.Startall([step])
    hetccl.Request.Waitall([step])
    return float(total[0])


def messages(comm: hetccl.Comm, data: bytearray) -> None:
    """Messages, a matched probe and a group."""
    status = MPI.Status()
    with comm.group():
        comm.Send(data, 0, tag=3)
        comm.Recv(data, MPI.ANY_SOURCE, MPI.ANY_TAG, status)
    found = comm.Improbe()
    if found is not None:
        found.Recv(data, status)
    index, done = hetccl.Request.Testany([comm.Irecv(data), comm.Isend(data, 1)])
    assert isinstance(index, int) or not done


def on_gpu(x: SupportsDLPack, stream: object) -> None:
    """Buffers in GPU memory."""
    with hetccl.Comm(MPI.COMM_WORLD, device=0) as comm:
        comm.Allreduce(hetccl.IN_PLACE, x, stream=stream)
        if comm.supports("register_buffer"):
            with comm.register(x):
                comm.Bcast(x)
        known: hetccl.Registration = comm.register(x)
        known.Free()


def run() -> None:
    """A part of the world, and what may go wrong in it."""
    try:
        with hetccl.Comm(MPI.COMM_WORLD) as comm:
            part = comm.Split(0, comm.rank)
            if part != MPI.COMM_NULL:
                part.Allreduce(np.ones(1), np.zeros(1), hetccl.premul_sum(0.5))
            labels: list[str] = [island.label for island in comm.islands]
            print(labels)
    except hetccl.PeerError as error:
        print(error.call, error.peer)
    except (hetccl.NcclError, hetccl.GpuError) as error:
        print(error.code)


def add(inbuf: memoryview, inoutbuf: memoryview, datatype: MPI.Datatype | None) -> None:
    """A user function."""


OP: hetccl.Op = hetccl.Op.Create(add, commute=True)
