"""What a user meets whose memory may not be locked, over verbs: arguments are <report folder> <layout>.

Each rank writes {"problem": null, or the error that its first message met, as in prog_fail.py}.
"""

import ctypes
import resource
import sys

import numpy as np
from mpi4py import MPI
from support import Report, equal, make_comm, say_error

import hetccl

RANK = MPI.COMM_WORLD.Get_rank()
LIMIT_BYTES = 64 << 10
LINUX_CAPABILITY_VERSION_3, CAP_IPC_LOCK = 0x20080522, 14


def give_up_ipc_lock():
    """root may lock whatever it wants."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, caps = (ctypes.c_uint32 * 2)(LINUX_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, caps) == 0
    caps[0] &= ~(1 << CAP_IPC_LOCK)
    assert libc.capset(header, caps) == 0


if __name__ == "__main__":
    report = Report(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (LIMIT_BYTES, LIMIT_BYTES))
    give_up_ipc_lock()
    try:
        with make_comm() as comm:
            out = np.zeros(5)
            comm.Sendrecv(np.full(5, RANK + 1.0), 1 - RANK, 0, out, 1 - RANK, 0)
            equal(out, np.full(5, 2.0 - RANK))
        report.write(problem=None)
    except hetccl.HetcclError as error:
        report.write(problem=say_error(error))
