"""What the tests of the wire share: both ends of one in this process, with rows of messages as a mailbox keeps them."""

import numpy as np
from mailboxes import Room

from hetccl._wire_trial import Pair

DONE, AGAIN, MOVED, EPEER, ELENGTH, ETAG, ENETWORK = 1, 0, 2, -1, -2, -4, -7
COLLECTIVE, POINT_TO_POINT = 0, 1
CELL, CTS, FIN, CREDIT = range(4)
HEADER_BYTES = 32
LOST, FAILED = 5, 6
# Of the cells that connect() has unless told otherwise.
PAYLOAD = 256 - HEADER_BYTES


def imm(kind, cls, value, parts=1, part=0):
    return kind << 30 | cls << 29 | (parts - 1) << 27 | part << 25 | value & (1 << 25) - 1


def connect(**kwargs):
    """A Pair whose sides may both send."""
    pair = Pair(**kwargs)
    for step in (pair.open, pair.attach):
        for side in range(2):
            assert step(side) == (DONE, -1)
    for side in range(2):
        pair.go(side)
        assert pair.state(side) == "up"
    return pair


def body(seed, nbytes):
    """Bytes that differ by message and by index."""
    return bytearray(np.random.default_rng(seed).bytes(nbytes))


class Task:
    """A message that its row advances; result: DONE or a fault, once it is final."""

    def __init__(self, message, advance, room=None):
        self.message, self.advance, self.room, self.result = message, advance, room, None

    def got(self):
        """The bytes received, and nothing around them is touched."""
        assert self.result == DONE
        return self.room.got(self.message.nbytes)


class Fetched:
    """A receive that reads the bytes where they landed, `step` at most at a time."""

    def __init__(self, message, nbytes, step):
        self.message, self.nbytes, self.step, self.bytes = message, nbytes, step, b""

    def advance(self):
        moved = False
        while self.message.done < self.nbytes:
            available = self.message.available()
            if available <= 0:
                return available if available < 0 else MOVED if moved else AGAIN
            piece = min(available, self.step)
            self.bytes += self.message.fetch(piece)
            self.message.consume(piece)
            moved = True
        return DONE

    def got(self, nbytes):
        return self.bytes


class Named:
    """A message with what the tests ask of it."""

    def __init__(self, message, nbytes):
        self.message, self.nbytes = message, nbytes


class Ends:
    """Both sides of a pair. The keyword arguments are connect()'s."""

    def __init__(self, **kwargs):
        self.pair = connect(**kwargs)
        self.nrails = kwargs.get("nrails", 1)
        self.rows = {(side, cls, receive): [] for side in range(2) for cls in range(2) for receive in range(2)}
        self.tasks = []

    def send(self, side, data, tag=7, cls=POINT_TO_POINT, **kwargs):
        message = self.pair.message(side, False, cls, data, tag, **kwargs)
        return self.add(side, cls, False, Task(message, message.send))

    def receive(self, side, nbytes, tag=7, cls=POINT_TO_POINT, room=None, **kwargs):
        room = room or Room(nbytes)
        message = self.pair.message(side, True, cls, room.view, tag, nbytes=nbytes, **kwargs)
        return self.add(side, cls, True, Task(Named(message, nbytes), message.recv, room))

    def fetch(self, side, nbytes, tag=7, cls=COLLECTIVE, step=1 << 30):
        message = self.pair.message(side, True, cls, None, tag, nbytes=nbytes)
        fetched = Fetched(message, nbytes, step)
        return self.add(side, cls, True, Task(Named(message, nbytes), fetched.advance, fetched))

    def add(self, side, cls, receive, task):
        self.rows[side, cls, receive].append(task)
        self.tasks.append(task)
        return task

    def advance(self, side):
        """Poll this side and its messages once: whether anything moved."""
        moved = self.pair.poll(side) != AGAIN
        for key, row in self.rows.items():
            if key[0] != side:
                continue
            for task in list(row):
                status = task.advance()
                moved |= status != AGAIN
                if status == DONE or status < 0:
                    task.result = status
                    row.remove(task)
                elif not getattr(task.message, "message", task.message).posted:
                    break
        return moved

    def advance_both(self):
        moved = [self.advance(side) for side in range(2)]
        return any(moved)

    def carry(self, rails=None):
        """Deliver and complete everything that is under way: whether there was anything."""
        moved = False
        for side in range(2):
            for rail in range(self.nrails) if rails is None else rails:
                while self.pair.deliver(side, rail):
                    moved = True
                moved |= self.pair.complete(side, rail)
        return moved

    def settle(self):
        """Until nothing moves any more."""
        for _ in range(100000):
            moved = self.advance_both()
            if not self.carry() and not moved:
                return
        raise AssertionError("the wire moves for ever")

    def mend(self, rail, first=0, between=lambda: None):
        """Both sides close a rail and resume, side `first` before the other."""
        got = [None, None]
        for side in (first, 1 - first):
            got[side] = self.pair.close_rail(side, rail)
        status = [None, None]
        status[1 - first] = self.pair.resume(1 - first, rail, got[first])
        between()
        status[first] = self.pair.resume(first, rail, got[1 - first])
        return status

    def assert_clean(self):
        """Every message is done, every byte is complete, and the user's memory is let go."""
        assert [task.result for task in self.tasks] == [DONE] * len(self.tasks)
        for side in range(2):
            assert self.pair.is_idle(side)
            assert self.pair.registrations(side)[0] == 0
        assert self.pair.broken == []
