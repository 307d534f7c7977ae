"""A job on the devices of two vendors, by rank in turn: arguments are <report folder> <layout>."""

import sys

import device_arrays
import numpy as np
from mpi4py import MPI
from support import Guarded, Report, equal, make_comm, raises

import hetccl

RANK, SIZE = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
VENDORS = ("nvidia", "amd")


def device_sum(comm, library, count):
    """Sum over a communicator of one vendor, in guarded device memory."""
    values = np.arange(count, dtype="f4") * (RANK + 1)
    send, out = (device_arrays.Guarded(library, Guarded(v)) for v in (values, np.zeros(count, "f4")))
    comm.Allreduce(send.array, out.array)
    ranks = range(RANK % 2, SIZE, 2)
    fetched = out.fetch()
    equal(fetched.array, np.arange(count, dtype="f4") * sum(rank + 1 for rank in ranks))
    equal(send.fetch().array, values)
    assert not fetched.overwritten() and not send.host.overwritten()


def main():
    report = Report(sys.argv[1])
    mine = RANK % 2
    library = (device_arrays.Fake, device_arrays.Emulated)[mine](RANK // 2)
    comm = make_comm()
    array = device_arrays.from_numpy(library, np.ones(5, "f4"))
    # No vendor's library joins both: refused on all ranks, before anything moves.
    with raises(hetccl.HetcclError, names=VENDORS):
        comm.Allreduce(array, device_arrays.from_numpy(library, np.zeros(5, "f4")))
    report.write(refused=True)
    out = np.zeros(5)
    comm.Allreduce(np.arange(5.0) * RANK, out)
    equal(out, np.arange(5.0) * sum(range(SIZE)))
    report.write(host=True)
    with comm.Split(mine, RANK) as vendor:
        for count in (0, 1, 3, 1001):
            device_sum(vendor, library, count)
        report.write(device=True)
    comm.Free()
    report.write(end=True)


if __name__ == "__main__":
    main()
