"""For the programs: point-to-point cases with mpi4py and with hetccl, compared byte by byte and status by status."""

import time

import numpy as np
from compare_buffers import Buffer
from compare_run import WAIT_S, Mismatch, compare_bytes, seed_of
from compare_types import base_type, numpy_dtype
from mpi4py import MPI

# What hetccl has and mpi4py has not runs there as plain nonblocking messages.
REFERENCE = {"group": "nonblocking"}


def outcome(status, library, dtype):
    """What a status says, to be compared: source, tag, count of numbers, cancelled."""
    nbytes = status.Get_count(MPI.BYTE)
    # hetccl moves the padding of pairs, MPI does not.
    size = base_type(dtype).Get_size() if library.request is MPI.Request else numpy_dtype(dtype).itemsize
    count = nbytes // size if nbytes % size == 0 else f"{nbytes} bytes"
    return (status.Get_source(), status.Get_tag(), count, status.Is_cancelled())


class Exchange:
    """The buffers and calls of one rank in a Messages case, on one library."""

    def __init__(self, library, case, rank, pattern):
        self.library, self.case, self.rank, self.pattern = library, case, rank, pattern
        self.comm = library.comms[case.comm]
        self.sends = [n for n, message in enumerate(case.messages) if message[0] == rank]
        self.recvs = [n for n in case.order if case.messages[n][1] == rank]
        self.buffers = {}
        self.statuses = {}
        for number in self.sends:
            self.buffers["send", number] = self._buffer(number, case.send, 1, 0)
        for number in self.recvs:
            self.buffers["recv", number] = self._buffer(number, case.recv, 2, case.room[number])

    def _buffer(self, number, side, which, room):
        seed = [seed_of(self.case), self.rank, which, number]
        return Buffer(self.case, side, "one", [self.case.messages[number][3] + room], self.rank, seed)

    def to(self, number):
        """Arguments of the send of a message."""
        _, dest, tag, _ = self.case.messages[number]
        return self.buffers["send", number].argument, MPI.PROC_NULL if dest < 0 else dest, tag

    def envelope(self, number):
        """Source and tag that the receive of a message asks for."""
        source, _, tag, _ = self.case.messages[number]
        wild = self.case.wild[number]
        source = MPI.PROC_NULL if source < 0 else source
        return MPI.ANY_SOURCE if wild == 2 else source, MPI.ANY_TAG if wild == 1 else tag

    def into(self, number):
        return (self.buffers["recv", number].argument, *self.envelope(number))

    def call(self, prefix="", suffix=""):
        """The send call of the case's mode: Send, Issend, Bsend_init."""
        name = self.case.mode + "send"
        return getattr(self.comm, prefix + (name if prefix else name.capitalize()) + suffix)

    def _outcome(self, status):
        return outcome(status, self.library, self.case.dtype)

    def run(self):
        getattr(self, "_" + self.pattern)()

    def finish(self, requests, keys):
        """Complete requests as the case says; keys tell which statuses to keep."""
        for key, status in zip(keys, _FINISH[self.case.finish](self.library.request, requests)):
            if key is not None:
                self.statuses[key] = self._outcome(status)

    def _post(self):
        return [self.comm.Irecv(*self.into(number)) for number in self.recvs]

    def _keys(self):
        return [*self.recvs, *[None] * len(self.sends)]

    def _nonblocking(self):
        requests = self._post()
        if self.case.mode == "r":
            self.comm.Barrier()
        requests += [self.call("I")(*self.to(number)) for number in self.sends]
        self.finish(requests, self._keys())

    def _late(self):
        sends = [self.call("I")(*self.to(number)) for number in self.sends]
        self.comm.Barrier()
        self.finish(self._post() + sends, self._keys())

    def _blocking_sends(self):
        requests = self._post()
        self.comm.Barrier()
        for number in self.sends:
            self.call()(*self.to(number))
        self.finish(requests, self.recvs)

    def _one_by_one(self, receive):
        sends = [self.call("I")(*self.to(number)) for number in self.sends]
        for number in self.recvs:
            status = MPI.Status()
            receive(number, status)
            self.statuses[number] = self._outcome(status)
        self.finish(sends, [None] * len(sends))

    def _blocking_receives(self):
        self._one_by_one(lambda number, status: self.comm.Recv(*self.into(number), status))

    def _probe(self):
        def receive(number, status):
            self.comm.Probe(*self.envelope(number), status)
            self._take_probed(number, status)

        self._one_by_one(receive)

    def _iprobe(self):
        def receive(number, status):
            _until(lambda: self.comm.Iprobe(*self.envelope(number), status), "Iprobe")
            self._take_probed(number, status)

        self._one_by_one(receive)

    def _take_probed(self, number, status):
        self.statuses["probed", number] = self._outcome(status)
        buffer = self.buffers["recv", number].argument
        self.comm.Recv(buffer, status.Get_source(), status.Get_tag(), status)

    def _mprobe(self):
        def receive(number, status):
            message = self.comm.Mprobe(*self.envelope(number), status)
            self.statuses["probed", number] = self._outcome(status)
            message.Recv(self.buffers["recv", number].argument, status)

        self._one_by_one(receive)

    def _improbe(self):
        def receive(number, status):
            message = _until(lambda: self.comm.Improbe(*self.envelope(number), status), "Improbe")
            self.statuses["probed", number] = self._outcome(status)
            message.Irecv(self.buffers["recv", number].argument).Wait(status)

        self._one_by_one(receive)

    def _turns(self):
        for number, (source, dest, _, _) in enumerate(self.case.messages):
            sending = receiving = None
            if source == self.rank == dest:
                sending = self.call("I")(*self.to(number))
            elif source == self.rank:
                self.call()(*self.to(number))
            if dest == self.rank:
                receiving = MPI.Status()
                self.comm.Recv(*self.into(number), receiving)
                self.statuses[number] = self._outcome(receiving)
            if sending is not None:
                sending.Wait()

    def _persistent(self):
        receives = [self.comm.Recv_init(*self.into(number)) for number in self.recvs]
        sends = [self.call(suffix="_init")(*self.to(number)) for number in self.sends]
        for start in range(self.case.starts):
            for number in self.sends if start else ():
                self.buffers["send", number].fill(start)
            self._start(receives)
            if self.case.mode == "r":
                self.comm.Barrier()
            self._start(sends)
            # Waitany and its like would never end: a persistent request stays in the list, inactive.
            self.finish(receives + sends, self._keys())
        for request in receives + sends:
            request.Free()

    def _start(self, requests):
        for request in requests[:1]:
            request.Start()
        if requests[1:]:
            type(requests[0]).Startall(requests[1:])

    def _group(self):
        received = {number: MPI.Status() for number in self.recvs}
        with self.comm.group():
            for number in self.sends:
                self.call()(*self.to(number))
            for number, status in received.items():
                self.comm.Recv(*self.into(number), status)
        self.statuses.update({number: self._outcome(status) for number, status in received.items()})


def _until(ask, name):
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        answer = ask()
        if answer:
            return answer
    raise Mismatch(f"{name} finds nothing within {WAIT_S} s", usable=False)


def _wait(request_class, requests):
    statuses = [MPI.Status() for _ in requests]
    for request, status in zip(requests, statuses):
        request.Wait(status)
    return statuses


def _test(request_class, requests):
    statuses = [MPI.Status() for _ in requests]
    for request, status in zip(requests, statuses):
        _until(lambda request=request, status=status: request.Test(status), "Test")
    return statuses


def _waitall(request_class, requests):
    statuses = [MPI.Status() for _ in requests]
    request_class.Waitall(requests, statuses)
    return statuses


def _testall(request_class, requests):
    statuses = [MPI.Status() for _ in requests]
    _until(lambda: request_class.Testall(requests, statuses), "Testall")
    return statuses


def _one_of(requests, ask):
    """Complete all by calls that complete one: ask(status) -> index or None."""
    statuses = [None] * len(requests)
    end = time.monotonic() + WAIT_S
    while None in statuses and time.monotonic() < end:
        status = MPI.Status()
        index = ask(status)
        if index is not None:
            if statuses[index] is not None:
                raise Mismatch(f"request {index} is reported twice")
            statuses[index] = status
    return statuses


def _waitany(request_class, requests):
    return _one_of(requests, lambda status: request_class.Waitany(requests, status))


def _testany(request_class, requests):
    def ask(status):
        index, flag = request_class.Testany(requests, status)
        return index if flag else None

    return _one_of(requests, ask)


def _some_of(requests, ask):
    """Complete all by calls that complete some: ask(statuses) -> indices or None."""
    found = [None] * len(requests)
    end = time.monotonic() + WAIT_S
    while None in found and time.monotonic() < end:
        statuses = [MPI.Status() for _ in requests]
        for index, status in zip(ask(statuses) or (), statuses):
            if found[index] is not None:
                raise Mismatch(f"request {index} is reported twice")
            found[index] = status
    return found


_FINISH = {
    "wait": _wait,
    "test": _test,
    "waitall": _waitall,
    "testall": _testall,
    "waitany": _waitany,
    "testany": _testany,
    "waitsome": lambda cls, requests: _some_of(requests, lambda statuses: cls.Waitsome(requests, statuses)),
    "testsome": lambda cls, requests: _some_of(requests, lambda statuses: cls.Testsome(requests, statuses)),
}


def run_messages(theirs, ours, case, rank, size):
    """Raise Mismatch unless both libraries deliver the same messages and statuses."""
    want = Exchange(theirs, case, rank, REFERENCE.get(case.pattern, case.pattern))
    want.run()
    # MPI moves messages only inside its calls: a rank that went on would leave the others waiting.
    want.comm.Barrier()
    got = Exchange(ours, case, rank, case.pattern)
    got.run()
    for key, buffer in want.buffers.items():
        compare_bytes(buffer, got.buffers[key], buffer.meaningless(), f"{key[0]} buffer of message {key[1]}")
    if got.statuses != want.statuses:
        wrong = {key: (got.statuses.get(key), said) for key, said in want.statuses.items()}
        wrong = {key: pair for key, pair in wrong.items() if pair[0] != pair[1]}
        raise Mismatch(f"statuses (source, tag, count, cancelled) {wrong}: hetccl's, mpi4py's")
    for exchange in (want, got):
        for buffer in exchange.buffers.values():
            buffer.free()


def run_shift(theirs, ours, case, rank, size):
    """One of the Sendrecv calls to a neighbour."""
    found = []
    for library, name in ((theirs, case.call.replace("Isend", "Send")), (ours, case.call)):
        comm = library.comms[case.comm]
        dest, source = (rank + case.distance, rank - case.distance)
        dest, source = (other % size if case.wrap else other for other in (dest, source))
        dest, source = (other if 0 <= other < size else MPI.PROC_NULL for other in (dest, source))
        tag = MPI.ANY_TAG if case.any_tag else case.tag
        buffers = [
            Buffer(case, side, "one", [case.count], rank, [seed_of(case), rank, which])
            for which, side in enumerate((case.send, case.recv))
        ]
        method, status = getattr(comm, name), MPI.Status()
        if name.endswith("replace"):
            arguments = (buffers[0].argument, dest, case.tag, source, tag)
        else:
            arguments = (buffers[0].argument, dest, case.tag, buffers[1].argument, source, tag)
        if name.startswith("I"):
            method(*arguments).Wait(status)
        else:
            method(*arguments, status)
        found.append((buffers, outcome(status, library, case.dtype)))
    (want, want_status), (got, got_status) = found
    for one, other, what in zip(want, got, ("first buffer", "second buffer")):
        compare_bytes(one, other, one.meaningless(), what)
        one.free()
        other.free()
    if want_status != got_status:
        raise Mismatch(f"status (source, tag, count, cancelled) {got_status}, with mpi4py {want_status}")


def run_refused(theirs, ours, case, rank, size):
    """A call that is wrong on every rank: both refuse it; mpi4py takes a fraction for a whole number."""
    differs = case.fault.startswith("float")
    for library in (theirs, ours):
        if differs and library.refusals == theirs.refusals:
            continue
        buffer, peer, tag = np.zeros(4, np.int32), rank, 3
        if case.fault == "strided":
            buffer = buffer[::2]
        elif case.fault == "readonly":
            buffer.flags.writeable = False
        elif case.fault == "number":
            buffer = 7
        elif case.fault == "peer_beyond":
            peer = size
        elif case.fault == "float_rank":
            peer = 0.5
        else:
            tag = {"tag_negative": -7, "float_tag": 1.5}[case.fault]
        try:
            getattr(library.comms["world"], case.call)(buffer, peer, tag)
        except library.refusals:
            continue
        raise Mismatch(
            f"{'mpi4py' if library is theirs else 'hetccl'} accepts {case.fault} in {case.call}", usable=False
        )
