"""Run the exactness matrix on this layout; report each case: arguments are <report folder> <layout> <scope>."""

import sys
import traceback

import numpy as np
from matrix import cases
from mpi4py import MPI
from reference import dtype_of, expected, sent
from support import Guarded, Report, first_difference, make_comm

import hetccl

OPS = {"SUM": hetccl.SUM, "PROD": hetccl.PROD, "MIN": hetccl.MIN, "MAX": hetccl.MAX, "AVG": hetccl.AVG}


def prepare(case, size, rank, shift):
    """(send or None, receive or None) as Guarded arrays; in place, the receive buffer holds what the rank sends."""
    data = sent(case, size, rank)
    blocks = size if case.collective in ("Allgather", "Alltoall") else 1
    if case.collective == "Bcast":
        if rank == case.root:
            return Guarded(data, shift=shift), None
        return None, Guarded(dtype=dtype_of(case.dtype), count=case.count, shift=shift)
    if case.form == "out" or (case.collective == "Reduce" and rank != case.root):
        takes_part = case.collective != "Reduce" or rank == case.root
        receive = Guarded(dtype=data.dtype, count=blocks * case.count, shift=1 - shift) if takes_part else None
        return Guarded(data, shift=shift), receive
    if case.collective == "Allgather":
        receive = Guarded(dtype=data.dtype, count=size * case.count, shift=shift)
        receive.array[rank * case.count : (rank + 1) * case.count] = data
        return None, receive
    return None, Guarded(data, shift=shift)


def call(comm, case, send, receive):
    size, rank = comm.Get_size(), comm.Get_rank()
    source = MPI.IN_PLACE if send is None else send.array
    target = None if receive is None else receive.array
    if case.collective == "Allreduce":
        comm.Allreduce(source, target, op=OPS[case.op])
    elif case.collective == "Reduce":
        comm.Reduce(source, target, op=OPS[case.op], root=case.root)
    elif case.collective == "Reduce_scatter_block":
        comm.Reduce_scatter_block(source, target, op=OPS[case.op])
    elif case.collective == "Bcast":
        comm.Bcast(source if receive is None else target, root=case.root)
    elif case.collective == "Sendrecv":
        comm.Sendrecv(source, (rank + 1) % size, 5, target, (rank - 1) % size, 5)
    else:
        getattr(comm, case.collective)(source, target)


def problem_of(comm, case, shift):
    """Run one case; None or what is wrong with it on this rank."""
    size, rank = comm.Get_size(), comm.Get_rank()
    send, receive = prepare(case, size, rank, shift)
    call(comm, case, send, receive)
    want = expected(case, size, rank)
    if want is not None and receive is not None:
        # In place, MPI leaves only the first block of a Reduce_scatter_block's buffer defined.
        difference = first_difference(receive.array[: want.size], want)
        if difference:
            return difference
    if send is not None and first_difference(send.array, sent(case, size, rank)):
        return {"send buffer": first_difference(send.array, sent(case, size, rank))}
    for name, buffer in (("send", send), ("receive", receive)):
        offset = None if buffer is None else buffer.overwritten()
        if offset is not None:
            return {"guard byte overwritten": f"{name} buffer, offset {offset}"}
    return None


def main():
    report = Report(sys.argv[1])
    comm = make_comm()
    with np.errstate(all="ignore"):
        for number, case in enumerate(cases(comm.Get_size(), sys.argv[3])):
            try:
                problem = problem_of(comm, case, shift=number % 2)
            except hetccl.HetcclError:
                # The communicator is of no more use; cases that did not run count as failed.
                report.write(case=str(case), problem=traceback.format_exc())
                break
            except (BufferError, TypeError, ValueError):
                problem = traceback.format_exc()
            report.write(case=str(case), problem=problem)
    comm.Free()
    report.write(end=True)


main()
