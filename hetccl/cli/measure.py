"""bench's stopwatch: runs a collective at one size in each mode, times it on every rank and checks what it leaves."""

import time
from dataclasses import dataclass

import numpy as np

from hetccl.cli import points
from hetccl.cli.collectives import Inputs
from hetccl.cli.memory import POISON, Host

PERCENTILE = 95


@dataclass
class Timing:
    """One library in one mode and size.

    us           : microseconds, the median over iterations of the slowest rank's time
    min_us       : the least of them: the time without what else the machine does
    p95_us       : their 95th percentile
    algbw, busbw : GB/s (1e9 bytes)
    wrong        : elements on all ranks that differ from what NumPy expects, None where they were not looked at
    ratio        : time of hetccl / time of this one, None for hetccl itself and for a limit
    """

    us: float
    min_us: float
    p95_us: float
    algbw: float
    busbw: float
    wrong: int | None = None
    ratio: float | None = None


@dataclass
class Row:
    """One size.

    nbytes              : of a rank's larger buffer, or of a message
    count               : elements, counted as nccl-tests does
    out_place, in_place : {name of the library: Timing}, hetccl first; None where the collective has no such mode
    """

    nbytes: int
    count: int
    out_place: dict | None
    in_place: dict | None

    def modes(self):
        """The modes that were run: list of dict."""
        return [timings for timings in (self.out_place, self.in_place) if timings is not None]

    def wrong(self):
        """Wrong elements of hetccl's in all modes, 0 where nothing was looked at."""
        return sum(timings["hetccl"].wrong or 0 for timings in self.modes())


class Bench:
    """Buffers for the largest size, used by all sizes.

    collective : collectives.Collective
    world      : MPI communicator for barriers and for bringing times together
    sides      : list of collectives.Side: hetccl, then the libraries to compare with
    dtype, op  : NumPy dtype; name of the reduction or None
    counts     : of the rows
    memory     : where the buffers are: memory.Host() or another of that module
    """

    def __init__(self, collective, world, sides, dtype, op, root, counts, memory=None):
        self.collective = collective
        self.world = world
        self.sides = sides
        self.root = root
        self.memory = memory or Host()
        self.inputs = Inputs(dtype, op, world.size)
        self.send_units, self.recv_units = collective.units(world.size)
        nsend = max(count * self.send_units for count in counts)
        nrecv = max(count * self.recv_units * self._window(count) for count in counts)
        self.send = self.memory.array(self.inputs.of(world.rank, 0, nsend))
        self.recv = self.memory.array(np.zeros(nrecv, dtype))
        # In place, the one buffer is the larger of the two.
        self.place = self.recv if self.recv_units >= self.send_units else self.send

    def row(self, count, warmup, iters, check):
        """Measure one size, in each mode that the collective has. Collective."""
        nbytes = count * max(self.send_units, self.recv_units) * self.inputs.dtype.itemsize
        results = {mode: self._timings(mode, count, nbytes, warmup, iters, check) for mode in self.collective.modes}
        return Row(nbytes, count if nbytes else 0, results.get("out"), results.get("in"))

    def drop_unable(self, count):
        """Let each library make its calls once, and drop those that raise: {name: what they said}. Collective."""
        said = {}
        for side in self.sides:
            whys = [why for why in self.world.allgather(self._trial(side, count)) if why]
            if whys:
                said[side.name] = whys[0]
        self.sides = [side for side in self.sides if side.name not in said]
        return said

    def _trial(self, side, count):
        """ "" or what a library raised in a call of each mode."""
        nbytes = count * max(self.send_units, self.recv_units) * self.inputs.dtype.itemsize
        try:
            for mode in self.collective.modes:
                if mode == "out" or side.in_place is not None:
                    self._prepare(mode, count)
                    self._bind(side, mode, count, nbytes)()
        except (RuntimeError, ValueError, TypeError, BufferError, AttributeError, NotImplementedError) as error:
            return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        return ""

    def _timings(self, mode, count, nbytes, warmup, iters, check):
        sides = [side for side in self.sides if mode == "out" or side.in_place is not None]
        calls = [self._bind(side, mode, count, nbytes) for side in sides]
        self._prepare(mode, count)
        seconds = self._time(calls, warmup, iters) / self.collective.repeats(nbytes)
        timings = {side.name: self._timing(times, nbytes, side) for side, times in zip(sides, seconds, strict=True)}
        ours = timings[sides[0].name]
        for side in sides[1:]:
            if side.kind == "peer":
                timings[side.name].ratio = ours.us / timings[side.name].us
        for side, call in zip(sides, calls, strict=True):
            if check and side.kind == "peer" and nbytes:
                timings[side.name].wrong = self._wrong(mode, count, call)
        return timings

    def _window(self, count):
        return points.window(count * self.inputs.dtype.itemsize) if self.collective.window else 1

    def _buffers(self, mode, count):
        if mode == "in":
            return None, self.place[: max(self.send_units, self.recv_units) * count]
        return self.send[: self.send_units * count], self.recv[: self.recv_units * count * self._window(count)]

    def _bind(self, side, mode, count, nbytes):
        """A function that makes the call and waits for its end."""
        call, root, wait = self.collective.call, self.root, self.memory.wait
        if side.kind == "limit":
            arguments = nbytes, self.collective.repeats(nbytes)
            call = side.comm.move
        else:
            send, recv = (None if array is None else side.adopt(array) for array in self._buffers(mode, count))
            arguments = side, send, recv, root

        def run():
            call(*arguments)
            wait()

        return run

    def _time(self, calls, warmup, iters):
        """Seconds of the slowest rank: array (calls, iters). The libraries take turns, in alternating order."""
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

    def _timing(self, seconds, nbytes, side):
        median = float(np.median(seconds))
        least, p95 = float(np.min(seconds)), float(np.percentile(seconds, PERCENTILE))
        algbw = self.collective.ways * nbytes / median / 1e9
        factor = 1.0 if side.kind == "limit" else self.collective.factor(self.world.size)
        return Timing(median * 1e6, least * 1e6, p95 * 1e6, algbw, algbw * factor)

    def _prepare(self, mode, count):
        """Fill the buffers with this rank's input, and what is to be overwritten with bytes that no result has."""
        rank, recv = self.world.rank, self._buffers(mode, count)[1]
        self.memory.fill(recv, POISON)
        start, target = 0, self.send
        if mode == "in":
            # Where a receive buffer holds a block of each rank, MPI takes this rank's input from its own block.
            start, target = (rank * count if self.send_units < self.recv_units else 0), self.place
        ninputs = self.send_units * count
        self.memory.put(target[start : start + ninputs], self.inputs.of(rank, 0, ninputs))

    def _wrong(self, mode, count, call):
        """Elements on all ranks that differ from what NumPy expects. Collective."""
        self._prepare(mode, count)
        call()
        expected = self.collective.expected(self.inputs, self.world.rank, self.root, count)
        here = 0
        if expected is not None:
            expected = np.tile(expected, self._window(count))
            got = self.memory.get(self._buffers(mode, count)[1])[: len(expected)]
            here = int(np.count_nonzero(got != expected))
        return sum(self.world.allgather(here))
