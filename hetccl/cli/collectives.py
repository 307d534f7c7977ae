"""What bench knows of each collective: its call, its buffers, its bandwidth formula, and the result that NumPy expects.

A row of bench has `count` elements and p ranks. Sizes and bus bandwidths follow nccl-tests (doc/PERFORMANCE.md there):
the size is the bytes of the larger buffer of a rank, algbw = size / time, busbw = algbw * factor(p), where the factor
makes busbw comparable with the speed of the slowest link whatever p is. Messages between two ranks are in points.py.
"""

import functools
import itertools
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
    """A library that is timed.

    comm     : communicator, with mpi4py's methods, or those of them that the library has
    op       : its reduction
    in_place : its IN_PLACE; None: it has no calls in place
    name     : as in --compare
    adopt    : array -> what the library's calls take for it, made before the clock runs
    byte     : its datatype of one byte, where calls take datatypes
    close    : gives back what was opened; collective
    kind     : "peer"; "limit": moves as many bytes, but is no collective, so that its results are not looked at
    """

    comm: Any
    op: Any
    in_place: Any
    name: str = "hetccl"
    adopt: Callable = lambda array: array
    byte: Any = None
    close: Callable = lambda: None
    kind: str = "peer"


@dataclass(frozen=True)
class Collective:
    """One collective, or one way of sending messages.

    units    : (blocks of count elements in the send buffer, in the receive buffer), from p
    factor   : busbw / algbw, from p
    call     : (side, send, recv, root) -> None; send is None in place, where recv holds the input
    expected : (inputs, rank, root, count) -> array, or None on a rank that receives nothing
    method   : the communicator's method that it calls
    reduces  : takes an op
    averages : of these, whether the average is one
    rooted   : takes a root
    parts    : "count" is size / p, as in nccl-tests' all-gather, because one buffer holds p blocks
    modes    : which of "out" (of place) and "in" (place) exist
    repeats  : bytes -> how many times a call does what is timed; the row's time is that of one
    ways     : directions whose bytes algbw counts
    window   : whether a call has many messages under way; a block is then one of them
    pair     : between the first rank and the last, the others wait
    """

    units: Callable
    factor: Callable
    call: Callable
    expected: Callable
    method: str = ""
    reduces: bool = False
    averages: bool = True
    rooted: bool = False
    parts: bool = False
    modes: tuple = ("out", "in")
    repeats: Callable = lambda nbytes: 1
    ways: int = 1
    window: bool = False
    pair: bool = False


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

    def reduced(self, start, count, nranks=None):
        """Elements [start, start + count) of the reduction over all ranks, or the first `nranks`."""
        patterns = (self.pattern(rank) for rank in range(nranks or self.size))
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


@functools.cache
def lengths(count, p):
    """Unequal parts of p blocks of count elements: (lengths, starts). By twos, one half as long, one as much longer."""
    half = count // 2
    parts = [count] * p
    for rank in range(0, p - 1, 2):
        parts[rank : rank + 2] = count - half, count + half
    return tuple(parts), tuple(itertools.accumulate(parts[:-1], initial=0))


@functools.cache
def rows(count, p, rank):
    """The parts that a rank exchanges with each other in an unequal all-to-all: (lengths, starts)."""
    parts = [lengths(count, p)[0][(rank + peer) % p] for peer in range(p)]
    return tuple(parts), tuple(itertools.accumulate(parts[:-1], initial=0))


def _gather(side, send, recv, root):
    comm = side.comm
    if comm.rank == root:
        comm.Gather(side.in_place if send is None else send, recv, root)
    else:
        comm.Gather(recv.reshape(comm.size, -1)[comm.rank] if send is None else send, None, root)


def _scatter(side, send, recv, root):
    side.comm.Scatter(send if side.comm.rank == root else None, recv, root)


def _gatherv(side, send, recv, root):
    comm = side.comm
    parts = lengths(len(recv) // comm.size, comm.size)
    comm.Gatherv(send[: parts[0][comm.rank]], [recv, parts] if comm.rank == root else None, root)


def _scatterv(side, send, recv, root):
    comm = side.comm
    parts = lengths(len(send) // comm.size, comm.size)
    comm.Scatterv([send, parts] if comm.rank == root else None, recv[: parts[0][comm.rank]], root)


def _allgatherv(side, send, recv, root):
    comm = side.comm
    parts = lengths(len(recv) // comm.size, comm.size)
    comm.Allgatherv(send[: parts[0][comm.rank]], [recv, parts])


def _reduce_scatterv(side, send, recv, root):
    comm = side.comm
    counts, _ = lengths(len(send) // comm.size, comm.size)
    comm.Reduce_scatter(send, recv[: counts[comm.rank]], counts, side.op)


def _alltoallv(side, send, recv, root):
    comm = side.comm
    parts = rows(len(send) // comm.size, comm.size, comm.rank)
    comm.Alltoallv([send, parts], [recv, parts])


def _alltoallw(side, send, recv, root):
    comm, (counts, starts) = side.comm, rows(len(send) // side.comm.size, side.comm.size, side.comm.rank)
    itemsize = recv.itemsize
    counts, starts = [n * itemsize for n in counts], [n * itemsize for n in starts]
    types = [side.byte] * comm.size
    comm.Alltoallw([send, counts, starts, types], [recv, counts, starts, types])


def _barrier(side, send, recv, root):
    side.comm.Barrier()


def _scan(side, send, recv, root):
    side.comm.Scan(side.in_place if send is None else send, recv, side.op)


def _exscan(side, send, recv, root):
    side.comm.Exscan(side.in_place if send is None else send, recv, side.op)


def _sendrecv(side, send, recv, root):
    comm = side.comm
    comm.Sendrecv(send, (comm.rank + 1) % comm.size, recvbuf=recv, source=(comm.rank - 1) % comm.size)


def _blocks_from_all(inputs, start, count):
    return np.concatenate([inputs.of(rank, start, count) for rank in range(inputs.size)])


def _parts_from_all(inputs, count):
    counts, _ = lengths(count, inputs.size)
    return np.concatenate([inputs.of(rank, 0, part) for rank, part in enumerate(counts)])


def _part(count, size, rank):
    counts, starts = lengths(count, size)
    return starts[rank], counts[rank]


def _parts_to(inputs, rank, count):
    sent = [rows(count, inputs.size, peer) for peer in range(inputs.size)]
    return np.concatenate([inputs.of(peer, starts[rank], counts[rank]) for peer, (counts, starts) in enumerate(sent)])


def _all_but_own(p):
    return (p - 1) / p


# The largest part of unequal ones is one and a half blocks.
COLLECTIVES = {
    "allreduce": Collective(
        method="Allreduce",
        reduces=True,
        units=lambda p: (1, 1),
        factor=lambda p: 2 * (p - 1) / p,
        call=_allreduce,
        expected=lambda inputs, rank, root, count: inputs.reduced(0, count),
    ),
    "reduce": Collective(
        method="Reduce",
        reduces=True,
        rooted=True,
        units=lambda p: (1, 1),
        factor=lambda p: 1.0,
        call=_reduce,
        expected=lambda inputs, rank, root, count: inputs.reduced(0, count) if rank == root else None,
    ),
    # MPI's broadcast has one buffer.
    "broadcast": Collective(
        method="Bcast",
        rooted=True,
        modes=("in",),
        units=lambda p: (1, 1),
        factor=lambda p: 1.0,
        call=_broadcast,
        expected=lambda inputs, rank, root, count: inputs.of(root, 0, count),
    ),
    "allgather": Collective(
        method="Allgather",
        parts=True,
        units=lambda p: (1, p),
        factor=_all_but_own,
        call=_allgather,
        expected=lambda inputs, rank, root, count: _blocks_from_all(inputs, 0, count),
    ),
    "allgatherv": Collective(
        method="Allgatherv",
        parts=True,
        modes=("out",),
        units=lambda p: (min(p, 2), p),
        factor=_all_but_own,
        call=_allgatherv,
        expected=lambda inputs, rank, root, count: _parts_from_all(inputs, count),
    ),
    "gather": Collective(
        method="Gather",
        rooted=True,
        parts=True,
        units=lambda p: (1, p),
        factor=_all_but_own,
        call=_gather,
        expected=lambda inputs, rank, root, count: _blocks_from_all(inputs, 0, count) if rank == root else None,
    ),
    "gatherv": Collective(
        method="Gatherv",
        rooted=True,
        parts=True,
        modes=("out",),
        units=lambda p: (min(p, 2), p),
        factor=_all_but_own,
        call=_gatherv,
        expected=lambda inputs, rank, root, count: _parts_from_all(inputs, count) if rank == root else None,
    ),
    "scatter": Collective(
        method="Scatter",
        rooted=True,
        parts=True,
        modes=("out",),
        units=lambda p: (p, 1),
        factor=_all_but_own,
        call=_scatter,
        expected=lambda inputs, rank, root, count: inputs.of(root, rank * count, count),
    ),
    "scatterv": Collective(
        method="Scatterv",
        rooted=True,
        parts=True,
        modes=("out",),
        units=lambda p: (p, min(p, 2)),
        factor=_all_but_own,
        call=_scatterv,
        expected=lambda inputs, rank, root, count: inputs.of(root, *_part(count, inputs.size, rank)),
    ),
    "reduce_scatter": Collective(
        method="Reduce_scatter_block",
        reduces=True,
        parts=True,
        units=lambda p: (p, 1),
        factor=_all_but_own,
        call=_reduce_scatter,
        expected=lambda inputs, rank, root, count: inputs.reduced(rank * count, count),
    ),
    "reduce_scatterv": Collective(
        method="Reduce_scatter",
        reduces=True,
        parts=True,
        modes=("out",),
        units=lambda p: (p, min(p, 2)),
        factor=_all_but_own,
        call=_reduce_scatterv,
        expected=lambda inputs, rank, root, count: inputs.reduced(*_part(count, inputs.size, rank)),
    ),
    "alltoall": Collective(
        method="Alltoall",
        parts=True,
        units=lambda p: (p, p),
        factor=_all_but_own,
        call=_alltoall,
        expected=lambda inputs, rank, root, count: _blocks_from_all(inputs, rank * count, count),
    ),
    "alltoallv": Collective(
        method="Alltoallv",
        parts=True,
        modes=("out",),
        units=lambda p: (p, p),
        factor=_all_but_own,
        call=_alltoallv,
        expected=lambda inputs, rank, root, count: _parts_to(inputs, rank, count),
    ),
    "scan": Collective(
        method="Scan",
        reduces=True,
        averages=False,
        units=lambda p: (1, 1),
        factor=lambda p: 1.0,
        call=_scan,
        expected=lambda inputs, rank, root, count: inputs.reduced(0, count, rank + 1),
    ),
    # The first rank receives nothing.
    "exscan": Collective(
        method="Exscan",
        reduces=True,
        averages=False,
        units=lambda p: (1, 1),
        factor=lambda p: 1.0,
        call=_exscan,
        expected=lambda inputs, rank, root, count: inputs.reduced(0, count, rank) if rank else None,
    ),
    # As alltoallv, but each part with its own datatype: that of bytes.
    "alltoallw": Collective(
        method="Alltoallw",
        parts=True,
        modes=("out",),
        units=lambda p: (p, p),
        factor=_all_but_own,
        call=_alltoallw,
        expected=lambda inputs, rank, root, count: _parts_to(inputs, rank, count),
    ),
    # It moves no data: its rows have size 0, and there is nothing to check.
    "barrier": Collective(
        method="Barrier",
        modes=("out",),
        units=lambda p: (0, 0),
        factor=lambda p: 0.0,
        call=_barrier,
        expected=lambda inputs, rank, root, count: None,
    ),
    # Each rank sends to the next and receives from the one before.
    "sendrecv": Collective(
        method="Sendrecv",
        modes=("out",),
        units=lambda p: (1, 1),
        factor=lambda p: 1.0,
        call=_sendrecv,
        expected=lambda inputs, rank, root, count: inputs.of((rank - 1) % inputs.size, 0, count),
    ),
}
