"""For the check programs of this folder: this rank's arrays, and what to compare them with.

The variables TEST_ARRAYS and TEST_KINDS say where they are. TEST_KINDS has one letter per rank: G, the library
TEST_ARRAYS; H, HIP's memory; N, host memory. Without it all ranks are G.
"""

import os

import device_arrays
import numpy as np
from mpi4py import MPI
from support import equal

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.Get_size(), WORLD.Get_rank()
NEXT, PREVIOUS = (RANK + 1) % SIZE, (RANK - 1) % SIZE
PLACE = os.environ["TEST_ARRAYS"]
KINDS = os.environ.get("TEST_KINDS", "G" * SIZE)
KIND = KINDS[RANK]


class Host:
    """NumPy's arrays, as device_arrays has those of GPUs."""

    def upload(self, values):
        return values.copy()

    def view(self, raw, start, stop, dtype):
        return raw[start:stop].view(dtype)

    def download(self, raw):
        return raw.copy()


def library():
    """This rank's library of arrays; each rank of a kind has its own device."""
    if KIND == "N":
        return Host()
    return device_arrays.LIBRARIES["emulated" if KIND == "H" else PLACE](KINDS[:RANK].count(KIND))


ARRAYS = library()


class Device:
    """An array of this rank's kind and its bytes. `values`: ndarray, copied; `array`: the library's; `get`: its values
    now."""

    def __init__(self, values):
        values = np.ascontiguousarray(values)
        self.dtype = values.dtype
        self.raw = ARRAYS.upload(values.reshape(-1).view(np.uint8))
        self.array = ARRAYS.view(self.raw, 0, values.nbytes, values.dtype)

    def get(self):
        return ARRAYS.download(self.raw).view(self.dtype)


def ramp(rank=RANK, count=12, dtype=np.float64):
    """Values that differ by rank and index, whose sums are exact."""
    return (np.arange(count) % 1009 * 3 + 100 * rank + 1).astype(dtype)


def total(count=12, dtype=np.float64):
    return sum(ramp(rank, count, dtype) for rank in range(SIZE)).astype(dtype)


def zeros(count=12, dtype=np.float64):
    return Device(np.zeros(count, dtype))


def device_works(comm, count=33):
    """A collective on these arrays gives the right answer: nothing is left over from what came before."""
    out = zeros(count, np.float32)
    comm.Allreduce(Device(ramp(count=count, dtype=np.float32)).array, out.array)
    equal(out.get(), total(count, np.float32))
