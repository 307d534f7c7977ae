"""What bench knows of each collective: its call, its buffers, its bandwidth formula, and the result that NumPy expects.

A row of bench has `count` elements and p ranks. Sizes and bus bandwidths follow nccl-tests (doc/PERFORMANCE.md there):
the size is the bytes of the larger buffer of a rank, algbw = size / time, busbw = algbw * factor(p), where the factor
makes busbw comparable with the speed of the slowest link whatever p is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

# Elements after which the inputs repeat. A prime, so that no block or chunk of a collective is a multiple of it and
# data that land in the wrong place do not look right.
PERIOD = 65521
# Sums of up to 51 ranks stay exact in bfloat16 (8 bits of mantissa) and so can be compared for equality.
LARGEST = 5


@dataclass(frozen=True)
class Side:
    """One of the two that are timed. comm : communicator; op : its reduction; in_place : its IN_PLACE"""

    comm: Any
    op: Any
    in_place: Any


@dataclass(frozen=True)
class Collective:
    """One collective.

    reduces  : takes an op          rooted : takes a root
    parts    : "count" is size / p, as in nccl-tests' all-gather, because one buffer holds p blocks
    units    : (blocks of count elements in the send buffer, in the receive buffer), from p
    modes    : which of "out" (of place) and "in" (place) exist
    factor   : busbw / algbw, from p
    call     : (side, send, recv, root) -> None; send is None in place, where recv holds the input
    expected : (inputs, rank, root, count) -> array, or None on a rank that receives nothing
    """

    reduces: bool
    rooted: bool
    parts: bool
    units: Callable
    modes: tuple
    factor: Callable
    call: Callable
    expected: Callable


class Inputs:
    """Every rank's input, computed anywhere: it depends on rank and index, and repeats after PERIOD elements.

    op : "sum", "prod", "min", "max", "avg" or None; chooses values whose result is exact in every dtype
    """

    def __init__(self, dtype, op, size):
        self.dtype = dtype
        self.op = op
        self.size = size

    def pattern(self, rank):
        """One period of a rank's input, as int64."""
        random = np.random.default_rng((rank, 20))
        if self.op == "prod":
            # At most one rank holds a 2 at any index: products are 0, 1 or 2.
            values = (random.random(PERIOD) < 0.99).astype(np.int64)
            return values + (np.arange(PERIOD) % self.size == rank) * values
        lowest = 0 if self.op == "avg" or np.issubdtype(self.dtype, np.unsignedinteger) else -LARGEST
        return random.integers(lowest, LARGEST + 1, PERIOD)

    def of(self, rank, start, count):
        """Elements [start, start + count) of a rank's input."""
        return _stretch(self.pattern(rank).astype(self.dtype), start, count)

    def reduced(self, start, count):
        """Elements [start, start + count) of the reduction over all ranks."""
        patterns = (self.pattern(rank) for rank in range(self.size))
        total = next(patterns)
        combine = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[self.op]
        for pattern in patterns:
            total = combine(total, pattern)
        if self.op == "avg":
            total = total // self.size if np.issubdtype(self.dtype, np.integer) else total / self.size
        return _stretch(total.astype(self.dtype), start, count)


def _stretch(pattern, start, count):
    return np.resize(np.roll(pattern, -(start % PERIOD)), count)


def _allreduce(side, send, recv, root):
    side.comm.Allreduce(side.in_place if send is None else send, recv, side.op)


def _reduce(side, send, recv, root):
    at_root = side.comm.rank == root
    if send is not None:
        side.comm.Reduce(send, recv if at_root else None, side.op, root)
    elif at_root:
        side.comm.Reduce(side.in_place, recv, side.op, root)
    else:
        side.comm.Reduce(recv, None, side.op, root)


def _broadcast(side, send, recv, root):
    side.comm.Bcast(recv, root)


def _allgather(side, send, recv, root):
    side.comm.Allgather(side.in_place if send is None else send, recv)


def _reduce_scatter(side, send, recv, root):
    side.comm.Reduce_scatter_block(side.in_place if send is None else send, recv, side.op)


def _alltoall(side, send, recv, root):
    side.comm.Alltoall(side.in_place if send is None else send, recv)


def _sendrecv(side, send, recv, root):
    comm = side.comm
    comm.Sendrecv(send, (comm.rank + 1) % comm.size, recvbuf=recv, source=(comm.rank - 1) % comm.size)


def _blocks_from_all(inputs, start, count):
    return np.concatenate([inputs.of(rank, start, count) for rank in range(inputs.size)])


COLLECTIVES = {
    "allreduce": Collective(
        reduces=True,
        rooted=False,
        parts=False,
        units=lambda p: (1, 1),
        modes=("out", "in"),
        factor=lambda p: 2 * (p - 1) / p,
        call=_allreduce,
        expected=lambda inputs, rank, root, count: inputs.reduced(0, count),
    ),
    "reduce": Collective(
        reduces=True,
        rooted=True,
        parts=False,
        units=lambda p: (1, 1),
        modes=("out", "in"),
        factor=lambda p: 1.0,
        call=_reduce,
        expected=lambda inputs, rank, root, count: inputs.reduced(0, count) if rank == root else None,
    ),
    # MPI's broadcast has one buffer.
    "broadcast": Collective(
        reduces=False,
        rooted=True,
        parts=False,
        units=lambda p: (1, 1),
        modes=("in",),
        factor=lambda p: 1.0,
        call=_broadcast,
        expected=lambda inputs, rank, root, count: inputs.of(root, 0, count),
    ),
    "allgather": Collective(
        reduces=False,
        rooted=False,
        parts=True,
        units=lambda p: (1, p),
        modes=("out", "in"),
        factor=lambda p: (p - 1) / p,
        call=_allgather,
        expected=lambda inputs, rank, root, count: _blocks_from_all(inputs, 0, count),
    ),
    "reduce_scatter": Collective(
        reduces=True,
        rooted=False,
        parts=True,
        units=lambda p: (p, 1),
        modes=("out", "in"),
        factor=lambda p: (p - 1) / p,
        call=_reduce_scatter,
        expected=lambda inputs, rank, root, count: inputs.reduced(rank * count, count),
    ),
    "alltoall": Collective(
        reduces=False,
        rooted=False,
        parts=True,
        units=lambda p: (p, p),
        modes=("out", "in"),
        factor=lambda p: (p - 1) / p,
        call=_alltoall,
        expected=lambda inputs, rank, root, count: _blocks_from_all(inputs, rank * count, count),
    ),
    # Each rank sends to the next and receives from the one before.
    "sendrecv": Collective(
        reduces=False,
        rooted=False,
        parts=False,
        units=lambda p: (1, 1),
        modes=("out",),
        factor=lambda p: 1.0,
        call=_sendrecv,
        expected=lambda inputs, rank, root, count: inputs.of((rank - 1) % inputs.size, 0, count),
    ),
}
