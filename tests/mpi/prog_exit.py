"""Ends of a program with a live communicator: arguments are <report folder> <layout> <how>."""

import sys

import numpy as np
from mpi4py import MPI
from support import Report, raises, still_works

import hetccl

HOW = sys.argv[3]
report = Report(sys.argv[1])
comm = hetccl.Comm(MPI.COMM_WORLD)
still_works(comm)
data, out = np.ones(100_000), np.zeros(100_000)
comm.Allreduce(data, out)

if HOW == "freed":
    comm.Free()
elif HOW == "deleted":
    del comm
elif HOW == "cycle":
    # Only the interpreter's end collects this.
    holder = [comm]
    holder.append(holder)
elif HOW == "requests":
    # Under way, complete but not waited for, never started, and under way on a communicator of Dup's.
    copy = comm.Dup()
    pending = [comm.Irecv(out, MPI.ANY_SOURCE, 5), copy.Irecv(out.copy(), MPI.ANY_SOURCE, 5)]
    pending += [comm.Iallreduce(data, out.copy()), comm.Allreduce_init(data, out.copy())]
    if comm.rank:
        # Rank 0 never comes: the program ends with a collective under way.
        pending += [comm.Iallreduce(data, np.zeros(100_000))]
    MPI.COMM_WORLD.Barrier()
elif HOW == "finalize":
    MPI.Finalize()
    with raises(hetccl.CommClosed):
        comm.Allreduce(data, out)
    comm.Free()
    with raises(hetccl.CommClosed, ValueError):
        hetccl.Comm(MPI.COMM_WORLD)
elif HOW == "finalize_only":
    MPI.Finalize()
elif HOW == "many":
    more = [hetccl.Comm(MPI.COMM_WORLD) for _ in range(5)]
    for each in more:
        still_works(each)
report.write(reached=True)
if HOW == "sys_exit":
    sys.exit(0)
if HOW == "sys_exit_3":
    sys.exit(3)
