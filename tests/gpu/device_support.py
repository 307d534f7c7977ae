"""For the check programs of this folder: this rank's arrays, and what to compare them with."""

import os

import device_arrays
import numpy as np
from mpi4py import MPI
from support import equal

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.Get_size(), WORLD.Get_rank()
NEXT, PREVIOUS = (RANK + 1) % SIZE, (RANK - 1) % SIZE
ARRAYS = device_arrays.LIBRARIES[os.environ["TEST_ARRAYS"]](RANK)


class Device:
    """A device array and its bytes. `values`: ndarray, copied; `array`: the library's; `get`: its values now."""

    def __init__(self, values):
        values = np.ascontiguousarray(values)
        self.dtype = values.dtype
        self.raw = ARRAYS.upload(values.reshape(-1).view(np.uint8))
        self.array = ARRAYS.view(self.raw, 0, values.nbytes, values.dtype)

    def get(self):
        return ARRAYS.download(self.raw).view(self.dtype)


def ramp(rank=RANK, count=12, dtype=np.float64):
    """Values that differ by rank and index, whose sums are exact."""
    return (np.arange(count) * 3 + 100 * rank + 1).astype(dtype)


def total(count=12, dtype=np.float64):
    return sum(ramp(rank, count, dtype) for rank in range(SIZE)).astype(dtype)


def zeros(count=12, dtype=np.float64):
    return Device(np.zeros(count, dtype))


def device_works(comm):
    """A collective on device arrays gives the right answer: nothing is left over from a call that was refused."""
    out = zeros(33, np.float32)
    comm.Allreduce(Device(ramp(count=33, dtype=np.float32)).array, out.array)
    equal(out.get(), total(33, np.float32))
