"""What the tests of the mailbox share: mailboxes over one segment in this process, and guarded memory."""

import os

import numpy as np

from hetccl import _shm
from hetccl._mailbox_trial import Trial

ANY = -1
SECRET = bytes(range(16))
GUARD = b"\xa5" * 32
# A ring of 8 cells of 256 bytes, so that a few KiB are a stream; messages above 32 KiB go by address.
RING_BYTES = 2048
BY_ADDRESS = 40000
STREAM = 5000


class Group:
    """The mailboxes of a few ranks."""

    def __init__(self, nranks, single_copy=True, limit=None, ring_bytes=RING_BYTES):
        descriptor = _shm.create(nranks, SECRET, ring_bytes)
        path = f"/proc/{os.getpid()}/fd/{descriptor}"
        self.segments = [_shm.Segment(rank, nranks, path, SECRET) for rank in range(nranks)]
        os.close(descriptor)
        for segment in self.segments:
            segment.probe_peers()
        for segment in self.segments:
            segment.connect(single_copy)
        self.trials = [Trial(segment, limit) for segment in self.segments]

    def __getitem__(self, rank):
        return self.trials[rank]

    def settle(self):
        """Poll until nothing moves any more."""
        for _ in range(100000):
            moved = [trial.poll() for trial in self.trials]
            if not any(moved):
                return
        raise AssertionError("the mailboxes move for ever")

    def assert_empty(self):
        assert [trial.counts for trial in self.trials] == [(0, 0, 0, 0)] * len(self.trials)

    def close(self):
        self.trials.clear()
        for segment in self.segments:
            segment.close()


class Room:
    """Memory to receive into, between guard bytes."""

    def __init__(self, nbytes):
        self.memory = bytearray(GUARD + b"\x5a" * nbytes + GUARD)
        self.view = memoryview(self.memory)[len(GUARD) : len(GUARD) + nbytes]

    def got(self, nbytes):
        """The first nbytes; what lies behind them is as it was."""
        assert self.memory.startswith(GUARD) and self.memory.endswith(GUARD)
        assert bytes(self.view[nbytes:]) == b"\x5a" * (len(self.view) - nbytes)
        return bytes(self.view[:nbytes])


def body(seed, nbytes):
    """Bytes that differ by message and by index."""
    return bytearray(np.random.default_rng(seed).bytes(nbytes))
