"""A call between islands that fails on one rank: arguments are <report folder> <layout> <what>.

what: "late" (rank 1 never comes), "late_later" (the others look only afterwards), "unsent" (the same, of a message),
"length" (rank 1 sends a message that is shorter than the receive that rank 0 has queued), "driver" (rank 1's driver
refuses a function while the call is queued), "set_up" (rank 1's driver has no waits; it then uses host buffers)
"""

import os
import sys
import time

import numpy as np
from device_support import RANK, SIZE, WORLD, Device, device_works, ramp, zeros
from support import Report, make_comm, say_error, still_works, wait_for_reports

import hetccl


def late(comm, what):
    """What the others meet; rank 1 only waits until they have."""
    if RANK == 1:
        return
    x, out = Device(ramp()), zeros()
    request = comm.Iallreduce(x.array, out.array)
    if what == "late_later":
        # The stream goes on although nobody asks.
        out.get()
    request.Wait()


def unsent(comm, what):
    if RANK == 0:
        out = zeros()
        comm.Recv(out.array, 1)
        # The stream goes on, and the next call says why.
        out.get()
        comm.Send(out.array, 1)


def length(comm, what):
    if RANK == 1:
        comm.Send(zeros(5).array, 0)
        while True:
            device_works(comm)
    out = zeros(12)
    comm.Recv(out.array, 1)
    out.get()
    device_works(comm)


def driver(comm, what):
    if RANK == 1:
        os.environ["FAKE_CUDA_FAIL"] = "cuLaunchHostFunc=801"
    out = zeros()
    comm.Allreduce(Device(ramp()).array, out.array)
    while True:
        out.get()
        comm.Allreduce(Device(ramp()).array, out.array)


def set_up(comm, what):
    """An error on the rank alone, before anything is told to the others."""
    x, out = Device(ramp()), zeros()
    if RANK == 1:
        os.environ["FAKE_CUDA_FAIL"] = "cuStreamWaitValue32=801"
        try:
            comm.Allreduce(x.array, out.array)
        finally:
            del os.environ["FAKE_CUDA_FAIL"]
            comm.Allreduce(ramp(), np.zeros(12))
            still_works(comm)
            device_works(comm)
    comm.Allreduce(x.array, out.array)
    still_works(comm)
    device_works(comm)


def main():
    report, what = Report(sys.argv[1]), sys.argv[3]
    # The time-out may be shorter than what one rank's start takes longer than another's.
    WORLD.Barrier()
    comm = make_comm()
    if what != "set_up":
        device_works(comm)
    begin = time.monotonic()
    try:
        calls = {
            "late": late,
            "late_later": late,
            "unsent": unsent,
            "length": length,
            "driver": driver,
            "set_up": set_up,
        }
        calls[what](comm, what)
        report.write(fine=True)
    except hetccl.HetcclError as error:
        report.write(seconds=time.monotonic() - begin, code=error.code, **say_error(error))
    report.write(over=True)
    wait_for_reports(sys.argv[1], range(SIZE), "over")
    try:
        comm.Free()
        report.write(freed=True)
    except hetccl.HetcclError as error:
        report.write(freed=False, free=say_error(error))
    os._exit(0)


main()
