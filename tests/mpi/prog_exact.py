"""Run the exactness matrix on this layout; report each case: arguments are <report folder> <layout> <scope> <way>...

A way is JSON of variables, for a communicator of its own that runs the whole matrix; without any there is one, with the
variables of the job.
"""

import json
import os
import sys
import traceback

import numpy as np
from matrix import REDUCING, ROOTED, cases, lengths
from mpi4py import MPI
from reference import dtype_of, expected, part_lengths, sent
from support import Guarded, Report, first_difference, make_comm

import hetccl
from hetccl import _oneccl


def prepare(case, size, rank, shift):
    """(send or None, receive or None) as Guarded arrays; in place, one of them holds what the rank sends."""
    data, want = sent(case, size, rank), expected(case, size, rank)
    if case.collective == "Bcast":
        if rank == case.root:
            return Guarded(data, shift=shift), None
        return None, Guarded(dtype=dtype_of(case.dtype), count=case.count, shift=shift)
    if case.form == "out" or case.collective in ROOTED and rank != case.root:
        count = case.count if case.collective == "Exscan" else None if want is None else want.size
        receive = None if count is None else Guarded(dtype=dtype_of(case.dtype), count=count, shift=1 - shift)
        return None if data is None else Guarded(data, shift=shift), receive
    if case.collective in ("Scatter", "Scatterv"):
        return Guarded(data, shift=shift), None
    if case.collective in ("Gather", "Gatherv", "Allgather", "Allgatherv"):
        receive = Guarded(dtype=data.dtype, count=want.size, shift=shift)
        each = lengths(case.count, size) if case.collective.endswith("v") else [case.count] * size
        start = sum(each[:rank])
        receive.array[start : start + data.size] = data
        return None, receive
    return None, Guarded(data, shift=shift)


def call(comm, case, send, receive):
    size, rank = comm.Get_size(), comm.Get_rank()
    name, each = case.collective, lengths(case.count, size)
    if name == "Bcast":
        comm.Bcast((send or receive).array, root=case.root)
        return
    # A buffer that is not there is another's, or stands in place.
    outside = name in ROOTED and rank != case.root
    source, target = (
        buffer.array if buffer is not None else None if outside or case.form == "out" else MPI.IN_PLACE
        for buffer in (send, receive)
    )
    if name == "Sendrecv":
        comm.Sendrecv(source, (rank + 1) % size, 5, target, (rank - 1) % size, 5)
        return
    keywords = {"root": case.root} if name in ROOTED else {}
    if name in REDUCING:
        keywords["op"] = getattr(hetccl, case.op)
    if name == "Reduce_scatter":
        keywords["recvcounts"] = each
    if name in ("Gatherv", "Allgatherv") and target is not None:
        target = [target, each]
    if name == "Scatterv" and source is not None:
        source = [source, each]
    if name == "Alltoallv":
        counts = part_lengths(case, size, rank)
        source, target = source if source is MPI.IN_PLACE else [source, counts], [target, counts]
    getattr(comm, name)(source, target, **keywords)


def problem_of(comm, case, shift):
    """Run one case; None or what is wrong with it on this rank."""
    send, receive = prepare(case, comm.Get_size(), comm.Get_rank(), shift)
    call(comm, case, send, receive)
    return verdict(comm, case, shift, send, receive)


def verdict(comm, case, shift, send, receive):
    """What is wrong with the buffers after the call, or None."""
    size, rank = comm.Get_size(), comm.Get_rank()
    want = expected(case, size, rank)
    if want is not None and receive is not None:
        # In place, MPI leaves only the first block of a Reduce_scatter_block's buffer defined.
        difference = first_difference(receive.array[: want.size], want)
        if difference:
            return difference
    elif receive is not None:
        # The first rank of an Exscan receives nothing.
        before = prepare(case, size, rank, shift)[1]
        if not np.array_equal(receive.raw, before.raw):
            return "bytes changed that do not take part"
    if send is not None and first_difference(send.array, sent(case, size, rank)):
        return {"send buffer": first_difference(send.array, sent(case, size, rank))}
    for name, buffer in (("send", send), ("receive", receive)):
        offset = None if buffer is None else buffer.overwritten()
        if offset is not None:
            return {"guard byte overwritten": f"{name} buffer, offset {offset}"}
    return None


def run(report, number_of_way):
    """Run the matrix on a new communicator."""
    comm = make_comm()
    with np.errstate(all="ignore"):
        for number, case in enumerate(cases(comm.Get_size(), sys.argv[3])):
            before = _oneccl.ndone()
            try:
                problem = problem_of(comm, case, shift=number % 2)
            except hetccl.HetcclError:
                # The communicator is of no more use; cases that did not run count as failed.
                report.write(way=number_of_way, case=str(case), problem=traceback.format_exc())
                break
            except (BufferError, TypeError, ValueError):
                problem = traceback.format_exc()
            fields = {"case": str(case), "problem": problem, "oneccl": _oneccl.ndone() - before}
            report.write(way=number_of_way, **fields)
    comm.Free()


def main():
    report = Report(sys.argv[1])
    given = dict(os.environ)
    for number, way in enumerate(sys.argv[4:] or ["{}"]):
        os.environ.update(json.loads(way))
        run(report, number)
        for name in json.loads(way):
            os.environ.pop(name)
        os.environ.update(given)
    report.write(end=True)


if __name__ == "__main__":
    main()
