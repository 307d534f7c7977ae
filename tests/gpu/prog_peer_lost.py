"""A rank is killed while the others reduce with it: arguments are <report folder> <layout> <what>.

what: "call" (the others go on calling), "wait" (they wait for a queued call), "idle" (they call again later),
"message" (they receive from the rank that is killed, or send to it)
"""

import os
import sys
import time

import numpy as np
from device_support import RANK, Device, zeros
from support import Report, make_comm, say_error

import hetccl

# The victim's last calls, so that the others are in the middle of theirs.
ROUNDS = 20


def main():
    report, what = Report(sys.argv[1]), sys.argv[3]
    comm = make_comm()
    send, out = Device(np.ones(1000)), zeros(1000)
    for _ in range(ROUNDS):
        comm.Allreduce(send.array, out.array)
    out.get()
    report.write(ready=True)
    if RANK == 1:
        time.sleep(600)
    begin = time.monotonic()
    try:
        if what == "idle":
            time.sleep(6)
        while what == "message":
            if RANK == 0:
                comm.Recv(out.array, 1)
            else:
                comm.Issend(send.array, 1).Wait()
            out.get()
        while True:
            comm.Allreduce(send.array, out.array)
            if what == "wait":
                comm.Iallreduce(send.array, out.array).Wait()
            out.get()
            time.sleep(0.05)
    except hetccl.HetcclError as error:
        report.write(seconds=time.monotonic() - begin, **say_error(error))
    try:
        comm.Free()
        report.write(freed=True)
    except hetccl.HetcclError as error:
        report.write(freed=True, free=say_error(error))
    # MPI's own end would wait for the dead rank.
    os._exit(0)


main()
