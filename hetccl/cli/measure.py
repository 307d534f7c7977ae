"""bench's stopwatch: runs a collective at one size in each mode, times it on every rank and checks what it leaves."""

import time
from dataclasses import dataclass

import numpy as np

from hetccl.cli.collectives import Inputs

POISON = 0x5A
PERCENTILE = 95


@dataclass
class Timing:
    """One library in one mode and size.

    us           : microseconds, the median over iterations of the slowest rank's time
    min_us       : the least of them: the time without what else the machine does
    p95_us       : their 95th percentile
    algbw, busbw : GB/s (1e9 bytes)
    """

    us: float
    min_us: float
    p95_us: float
    algbw: float
    busbw: float


@dataclass
class Result:
    """One mode and size.

    peer  : the other library, None without --compare
    ratio : time of hetccl / time of the peer, None without --compare
    wrong : elements on all ranks that differ from what NumPy expects, None with --no-check
    """

    ours: Timing
    peer: Timing | None
    ratio: float | None
    wrong: int | None


@dataclass
class Row:
    """One size.

    nbytes              : of a rank's larger buffer
    count               : elements, counted as nccl-tests does
    out_place, in_place : None where the collective has no such mode
    """

    nbytes: int
    count: int
    out_place: Result | None
    in_place: Result | None

    def results(self):
        """The modes that were run."""
        return [result for result in (self.out_place, self.in_place) if result is not None]


class Bench:
    """Buffers for the largest size, used by all sizes.

    collective : collectives.Collective
    world      : MPI communicator for barriers and for bringing times together
    sides      : one or two collectives.Side: hetccl, then the library to compare with
    dtype, op  : NumPy dtype; name of the reduction or None
    """

    def __init__(self, collective, world, sides, dtype, op, root, max_count):
        self.collective = collective
        self.world = world
        self.sides = sides
        self.root = root
        self.inputs = Inputs(dtype, op, world.size)
        self.send_units, self.recv_units = collective.units(world.size)
        self.send = self.inputs.of(world.rank, 0, self.send_units * max_count)
        self.recv = np.zeros(self.recv_units * max_count, dtype)
        # In place, the one buffer is the larger of the two.
        self.place = self.recv if self.recv_units >= self.send_units else self.send

    def row(self, count, warmup, iters, check):
        """Measure one size, in each mode that the collective has. Collective."""
        nbytes = count * max(self.send_units, self.recv_units) * self.recv.itemsize
        results = {mode: self._result(mode, count, nbytes, warmup, iters, check) for mode in self.collective.modes}
        return Row(nbytes, count, results.get("out"), results.get("in"))

    def _result(self, mode, count, nbytes, warmup, iters, check):
        self._prepare(mode, count)
        send, recv = self._buffers(mode, count)
        calls = [self._bind(side, send, recv) for side in self.sides]
        seconds = self._time(calls, warmup, iters)
        timings = [self._timing(row, nbytes) for row in seconds]
        peer = timings[1] if len(timings) > 1 else None
        wrong = self._wrong(mode, count, calls[0], recv) if check else None
        return Result(timings[0], peer, timings[0].us / peer.us if peer else None, wrong)

    def _buffers(self, mode, count):
        if mode == "in":
            return None, self.place[: max(self.send_units, self.recv_units) * count]
        return self.send[: self.send_units * count], self.recv[: self.recv_units * count]

    def _bind(self, side, send, recv):
        call, root = self.collective.call, self.root
        return lambda: call(side, send, recv, root)

    def _time(self, calls, warmup, iters):
        """Seconds of the slowest rank: array (calls, iters)."""
        seconds = np.zeros((len(calls), iters))
        turns = list(enumerate(calls))
        for iteration in range(-warmup, iters):
            for index, call in turns if iteration % 2 == 0 else reversed(turns):
                self.world.Barrier()
                start = time.perf_counter()
                call()
                elapsed = time.perf_counter() - start
                if iteration >= 0:
                    seconds[index, iteration] = elapsed
        return np.max(self.world.allgather(seconds), axis=0)

    def _timing(self, seconds, nbytes):
        median = float(np.median(seconds))
        algbw = nbytes / median / 1e9
        least, p95 = float(np.min(seconds)), float(np.percentile(seconds, PERCENTILE))
        busbw = algbw * self.collective.factor(self.world.size)
        return Timing(median * 1e6, least * 1e6, p95 * 1e6, algbw, busbw)

    def _prepare(self, mode, count):
        """Fill the buffers with this rank's input, and what is to be overwritten with bytes that no result has."""
        rank, recv = self.world.rank, self._buffers(mode, count)[1]
        recv.view(np.uint8).fill(POISON)
        start, target = 0, self.send
        if mode == "in":
            # Where a receive buffer holds a block of each rank, MPI takes this rank's input from its own block.
            start, target = (rank * count if self.send_units < self.recv_units else 0), self.place
        target[start : start + self.send_units * count] = self.inputs.of(rank, 0, self.send_units * count)

    def _wrong(self, mode, count, call, recv):
        """Elements on all ranks that differ from what NumPy expects. Collective."""
        self._prepare(mode, count)
        call()
        expected = self.collective.expected(self.inputs, self.world.rank, self.root, count)
        here = 0 if expected is None else int(np.count_nonzero(recv[: len(expected)] != expected))
        return sum(self.world.allgather(here))
