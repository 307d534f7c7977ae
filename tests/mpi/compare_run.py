"""For the programs: run a case with mpi4py and with hetccl on copies of the same buffers, and compare every byte."""

import time
import zlib
from typing import NamedTuple

import numpy as np
from compare_buffers import Buffer
from compare_case import COLLECTIVES, COMPLEX, DIFFERENCES, dump, units
from compare_faults import spoil

WAIT_S = 60


class Library(NamedTuple):
    """mpi4py or hetccl.

    comms : communicators by the names of Collective.comm
    request : class of requests          ops : ops by name          in_place : its IN_PLACE
    refusals : exceptions by which it refuses a call
    """

    comms: dict
    request: type
    ops: dict
    in_place: object
    refusals: tuple = (Exception,)


class Mismatch(AssertionError):
    """hetccl did something else than mpi4py. usable: all ranks got to the end of their calls."""

    def __init__(self, text, usable=True):
        super().__init__(text)
        self.usable = usable


def seed_of(case):
    return zlib.crc32(dump(case).encode())


class Call:
    """One collective call on one library: its buffers and arguments on this rank.

    send, recv : Buffer or None      extra : uint8 array that must not change, or None
    arguments  : dict, in the order of the call's parameters
    """

    def __init__(self, library, case, rank, size, ours=False):
        self.library, self.case, self.rank, self.size = library, case, rank, size
        self.comm = library.comms[case.comm]
        self.shape = COLLECTIVES[case.call]
        self.extra = np.arange(3, dtype=np.uint8)
        scatters = case.call in ("Scatter", "Scatterv")
        replaced = case.in_place and (not self.shape.rooted or rank == case.root)
        self.in_place = ("recv" if scatters else "send") if replaced else None
        self.send, self.recv = self._buffer("send", 1), self._buffer("recv", 2)
        constants = library if not ours or case.whose == "hetccl" else library._replace(**MPI_CONSTANTS)
        self.arguments = self._arguments(constants)

    def _buffer(self, name, number):
        counts = units(self.case, name, self.rank, self.size)
        if counts is None or name == self.in_place:
            return None
        side = getattr(self.case, name)
        if self.case.call == "Bcast" and self.rank != self.case.root:
            side = self.case.recv
        kind = getattr(self.shape, name)
        if self.in_place and self.case.call == "Reduce_scatter_block":
            kind = "blocks"
        seed = [seed_of(self.case), self.rank, number]
        return Buffer(self.case, side, kind, counts, self.rank, seed, self.case.op)

    def _arguments(self, constants):
        case, arguments = self.case, {}
        for name in ("send", "recv"):
            buffer = getattr(self, name)
            if name == self.in_place:
                arguments[name] = constants.in_place
            elif buffer is not None:
                arguments[name] = buffer.argument
            elif getattr(self.shape, name) is not None:
                arguments[name] = {"none": None, "text": "unused", "array": self.extra}[case.unused]
        if case.call == "Reduce_scatter":
            counts = case.counts[0]
            arguments["recvcounts"] = {"array": np.array(counts), "list": counts}.get(case.recv.counts)
            if arguments["recvcounts"] is None and case.in_place:
                arguments["recvcounts"] = tuple(counts)
        if self.shape.reduces:
            arguments["op"] = constants.ops[case.op]
        if self.shape.rooted:
            arguments["root"] = case.root
        return arguments

    def buffers(self):
        return [buffer for buffer in (self.send, self.recv) if buffer is not None]

    def refill(self, salt):
        """New contents before the next start: of what is sent, and of what is reduced or sent in place."""
        if self.send is not None and not (self.case.call == "Bcast" and self.rank != self.case.root):
            self.send.fill(salt)
        if self.in_place == "send":
            self.recv.fill(salt)

    def free(self):
        for buffer in self.buffers():
            buffer.free()

    def method(self, form):
        name = self.case.call
        return getattr(self.comm, {"blocking": name, "nonblocking": "I" + name.lower()}.get(form, name + "_init"))

    def block(self):
        self.method("blocking")(*self.arguments.values())

    def start(self):
        """Start it and return the request."""
        return self.method("nonblocking")(*self.arguments.values())


MPI_CONSTANTS = {}


def complete(request, finish):
    """Wait for a request, or test it until it is complete."""
    if finish == "wait":
        request.Wait()
        return
    end = time.monotonic() + WAIT_S
    while not request.Test():
        if time.monotonic() > end:
            raise Mismatch(f"Test() is still false after {WAIT_S} s", usable=False)


def run_collective(theirs, ours, case, rank, size):
    """Raise Mismatch unless the case does the same with both libraries on this rank."""
    if case.fault:
        run_fault(theirs, ours, case, rank, size)
        return
    want, got = Call(theirs, case, rank, size), Call(ours, case, rank, size, ours=True)
    problem = None
    request = got.method(case.form)(*got.arguments.values()) if case.form == "persistent" else None
    for number in range(case.starts):
        if number:
            want.refill(number)
            got.refill(number)
        want.block()
        if case.form == "blocking":
            got.block()
        elif case.form == "nonblocking":
            complete(got.start(), case.finish)
        else:
            request.Start()
            complete(request, case.finish)
        problem = problem or difference(want, got, number)
    if request is not None:
        request.Free()
    want.free()
    got.free()
    if problem is not None:
        raise problem


def run_together(theirs, ours, case, rank, size):
    """Several collectives under way at once."""
    want = [Call(theirs, one, rank, size) for one in case.cases]
    got = [Call(ours, one, rank, size, ours=True) for one in case.cases]
    for call in want:
        call.block()
    requests = [call.start() for call in got]
    if case.order:
        for place in case.order:
            complete(requests[place], case.cases[place].finish)
    else:
        ours.request.Waitall(requests)
    problems = [difference(one, other, 0) for one, other in zip(want, got)]
    for call in want + got:
        call.free()
    for problem in filter(None, problems):
        raise problem


def run_fault(theirs, ours, case, rank, size):
    """Both libraries must refuse the call on every rank, and hetccl must leave all bytes as they were."""
    if case.fault in DIFFERENCES and ours.refusals == theirs.refusals:
        return
    got = Call(ours, case, rank, size, ours=True)
    spoil(got, size)
    before = [buffer.raw.copy() for buffer in got.buffers()]
    if case.fault not in DIFFERENCES:
        want = Call(theirs, case, rank, size)
        spoil(want, size)
        try:
            want.block()
        except Exception:
            pass
        else:
            raise Mismatch(f"mpi4py accepts {case.fault}", usable=False)
        want.free()
    try:
        got.method(case.form)(*got.arguments.values())
    except ours.refusals:
        pass
    else:
        raise Mismatch(f"hetccl accepts {case.fault}", usable=False)
    for buffer, bytes_before in zip(got.buffers(), before):
        if not np.array_equal(buffer.raw, bytes_before):
            raise Mismatch("bytes changed in a call that was refused")
    got.free()


def difference(want, got, number):
    """None, or the Mismatch of the buffers of two calls. It is not raised here: other ranks may have starts to come."""
    try:
        compare_calls(want, got, number)
    except Mismatch as problem:
        return problem
    return None


def compare_calls(want, got, number):
    """Raise Mismatch if the buffers of two calls differ."""
    if not np.array_equal(got.extra, np.arange(3)):
        raise Mismatch("a buffer changed that does not count on this rank")
    for name in ("send", "recv"):
        one, other = getattr(want, name), getattr(got, name)
        if one is None:
            continue
        ignored = one.meaningless()
        if name == "recv":
            ignored |= undefined(got)
        loose = name == "recv" and rounds(want.case)
        compare_bytes(one, other, ignored, f"{want.case.call}, {name}, start {number}", loose)


def rounds(case):
    """Whether the order of a reduction may show: in rounding, and in the signs of zeros in complex products."""
    return case.data == "random" or case.op == "PROD" and case.dtype in COMPLEX


def undefined(call):
    """Mask of the bytes that MPI leaves undefined: in place, what a reduce-scatter does not return."""
    buffer = call.recv
    mask = np.zeros(buffer.raw.size, bool)
    if call.in_place and call.case.call.startswith("Reduce_scatter"):
        counts = call.case.counts[0]
        mine = counts[call.rank] if call.case.call == "Reduce_scatter" else counts[0]
        whole = sum(counts) if call.case.call == "Reduce_scatter" else counts[0] * call.size
        first, itemsize = buffer.first, buffer.dtype.itemsize
        mask[first + mine * itemsize : first + whole * itemsize] = True
    return mask


def compare_bytes(want, got, ignored, what, loose=False):
    """Raise Mismatch with the first byte of two Buffers that differs; loose: sums of random numbers may be rounded
    differently, since MPI leaves the order open."""
    wrong = (want.raw != got.raw) & ~ignored
    if loose:
        close = np.isclose(got.array, want.array, rtol=1e-4 if want.dtype.itemsize <= 8 else 1e-9, atol=1e-5)
        wrong[want.start : want.stop] &= np.repeat(~close, want.dtype.itemsize)
    if not wrong.any():
        return
    offset = int(np.flatnonzero(wrong)[0])
    place = offset - want.start
    where = f"byte {place} of {want.array.nbytes}" if 0 <= place < want.array.nbytes else f"guard byte {place}"
    index = place // want.dtype.itemsize
    values = ""
    if 0 <= place < want.array.nbytes:
        values = f": {got.array[index]!r}, with mpi4py {want.array[index]!r}"
    raise Mismatch(f"{what}, {where} ({int(wrong.sum())} bytes wrong), element {index}{values}")
