"""Collectives of up to 1 GiB, and of more than 2^31 elements, with guard bytes; compared on the device, with CuPy.

Expected values are NumPy's for one period of the inputs, repeated.
"""

import cupy as cp
import numpy as np
from device_support import NEXT, PREVIOUS, RANK, SIZE
from reference import folded, inputs
from support import GUARD_BYTES, GUARD_VALUE, run_checks

import hetccl

MIB = 1 << 20


def repeated(period, count, start=0):
    return cp.resize(cp.roll(cp.asarray(period), -(start % period.size)), count)


class Guarded:
    """count elements between guard bytes, on the device."""

    def __init__(self, dtype, count, values=None):
        nbytes = count * np.dtype(dtype).itemsize
        self.raw = cp.full(nbytes + 2 * GUARD_BYTES, GUARD_VALUE, np.uint8)
        self.array = self.raw[GUARD_BYTES:-GUARD_BYTES].view(dtype)
        if values is not None:
            self.array[:] = values

    def check(self, want):
        wrong = cp.flatnonzero(self.array != want)[:1].get()
        assert not wrong.size, f"rank {RANK}: element {wrong[0]} of {self.array.size} is {self.array[wrong[0]]}"
        for guard in (self.raw[:GUARD_BYTES], self.raw[-GUARD_BYTES:]):
            assert bool((guard == GUARD_VALUE).all()), f"rank {RANK}: guard bytes overwritten"


def allreduce(comm, dtype, count, op):
    mine, want = repeated(inputs(dtype, op, RANK), count), repeated(folded(dtype, op, SIZE), count)
    out = Guarded(dtype, count)
    comm.Allreduce(mine, out.array, op=getattr(hetccl, op))
    out.check(want)
    out.array[:] = mine
    comm.Allreduce(hetccl.IN_PLACE, out.array, op=getattr(hetccl, op))
    out.check(want)


def check_allreduce(comm):
    for nbytes in (16 * MIB, 256 * MIB, 1024 * MIB):
        allreduce(comm, "float32", nbytes // 4 - 1, "SUM")


def check_allreduce_of_more_than_2_gib(comm):
    """2^31 + 7 elements of a byte, and of 8 bytes more than 2^31 bytes."""
    allreduce(comm, "int8", (1 << 31) + 7, "MAX")
    allreduce(comm, "float64", (1 << 28) + 7, "SUM")


def check_moves(comm):
    """A GiB in all on each rank."""
    period = [inputs("float32", "move", rank).view(np.uint32) for rank in range(SIZE)]
    each = 256 * MIB // SIZE - 1
    send = repeated(period[RANK], each)
    whole = cp.concatenate([repeated(period[rank], each) for rank in range(SIZE)])
    out = Guarded(np.uint32, SIZE * each)
    comm.Allgather(send, out.array)
    out.check(whole)
    parts = [repeated(period[RANK], each, peer * each) for peer in range(SIZE)]
    comm.Alltoall(cp.concatenate(parts), out.array)
    out.check(cp.concatenate([repeated(period[peer], each, RANK * each) for peer in range(SIZE)]))
    one = Guarded(np.uint32, each)
    comm.Sendrecv(send, NEXT, 1, one.array, PREVIOUS, 1)
    one.check(repeated(period[PREVIOUS], each))
    root = SIZE - 1
    comm.Bcast(send if root == RANK else one.array, root=root)
    if root != RANK:
        one.check(repeated(period[root], each))
    comm.Scatter(whole if RANK == 0 else None, one.array, root=0)
    one.check(send)
    comm.Gather(send, out.array if root == RANK else None, root=root)
    if root == RANK:
        out.check(whole)


def check_reduce_scatter(comm):
    each = 256 * MIB // SIZE - 1
    want = repeated(folded("float32", "SUM", SIZE), each, RANK * each)
    send = repeated(inputs("float32", "SUM", RANK), SIZE * each)
    out = Guarded("float32", each)
    comm.Reduce_scatter_block(send, out.array)
    out.check(want)
    comm.Reduce_scatter(send, out.array, [each] * SIZE)
    out.check(want)


if __name__ == "__main__":
    run_checks(globals())
