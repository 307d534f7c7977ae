"""Threads: one that waits for file descriptors and times, and helpers for what blocks. They know no protocol."""

import heapq
import itertools
import os
import selectors
import threading
import time
from collections import deque

from hetccl import config

POLL_SECONDS = 0.05  # between two looks whether the thread lives
JOIN_SECONDS = 5.0
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Loop:
    """One daemon thread. Everything but soon(), at() and stop() is called on it, by what it calls.

    soon() may be called from a finalizer, which the collector of cycles runs in the middle of anything, even of soon().
    """

    def __init__(self):
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector.register(self._wake, READ, self._woken)
        self._calls = deque()
        self._times = []  # heap of (when, number, callable)
        self._numbers = itertools.count()
        self._running = True
        self._closing = threading.RLock()  # soon() must not write to a descriptor that is another's by now
        self.thread = threading.Thread(target=self._run, name="hetccl-connector", daemon=True)
        self.thread.start()

    def soon(self, function):
        """Call it on the thread."""
        self._calls.append(function)
        with self._closing:
            if self._wake is not None:
                os.eventfd_write(self._wake, 1)

    def call(self, function, seconds):
        """Call it on the thread, or here once the thread has ended; wait for that, so many seconds at most."""
        done = threading.Event()
        until = time.monotonic() + seconds
        self.soon(lambda: (function(), done.set()))
        while not done.wait(POLL_SECONDS) and time.monotonic() < until:
            if not self.thread.is_alive() and not done.is_set():
                function()
                return

    def at(self, seconds, function):
        """Call it on the thread, so many seconds from now."""
        self.soon(lambda: heapq.heappush(self._times, (time.monotonic() + seconds, next(self._numbers), function)))

    def watch(self, fd, function, events=READ):
        """Call function(events) whenever fd is ready, until forget(fd)."""
        self._selector.register(fd, events, function)

    def change(self, fd, events):
        """Wait for other events of fd."""
        self._selector.modify(fd, events, self._selector.get_key(fd).data)

    def forget(self, fd):
        """Wait for fd no longer; also if it never was."""
        try:
            self._selector.unregister(fd)
        except (KeyError, ValueError):
            return

    def stop(self):
        """End the thread soon; what was asked of it before is still done."""
        self.soon(self._end)

    def join(self):
        """Wait until it has ended."""
        if threading.get_ident() != self.thread.ident:
            self.thread.join(JOIN_SECONDS)

    def close(self):
        """Give the descriptors back: the thread does it at its end, and the child of a fork, which has no thread."""
        wake, self._wake = self._wake, None
        if wake is not None:
            os.close(wake)
        self._selector.close()

    def _end(self):
        self._running = False

    def _woken(self, events):
        os.eventfd_read(self._wake)

    def _run(self):
        while self._running:
            for key, events in self._selector.select(self._pause()):
                # What an earlier one of them has closed may be another descriptor by now.
                if self._selector.get_map().get(key.fd) is key:
                    _call(key.data, events)
            while self._calls:
                _call(self._calls.popleft())
            while self._times and self._times[0][0] <= time.monotonic():
                _call(heapq.heappop(self._times)[2])
        with self._closing:
            self.close()

    def _pause(self):
        if self._calls:
            return 0
        return max(0, self._times[0][0] - time.monotonic()) if self._times else None


def _call(function, *arguments):
    """All communicators of the process share the thread: what goes wrong for one must not end it for the others."""
    try:
        function(*arguments)
    except Exception:  # noqa: BLE001, it is said in full
        config.LOGGER.exception(
            "a fault in hetccl, on the connector's thread; what waits for it ends with its time-out"
        )


class Helpers:
    """At most `limit` daemon threads, which exist while there is work."""

    def __init__(self, limit, freed=None):
        self.limit = limit
        self._freed = freed  # called when a thread has ended
        self._lock = threading.Lock()
        self._waiting = deque()
        self._running = 0

    def is_free(self):
        """Whether run() would run its function at once."""
        with self._lock:
            return self._running < self.limit

    def run(self, function):
        """Call it on a thread, now or when one is free. Raises RuntimeError (none runs, and none can be started)."""
        with self._lock:
            self._waiting.append(function)
            if self._running == self.limit:
                return
            self._running += 1
        try:
            threading.Thread(target=self._work, name="hetccl-handshake", daemon=True).start()
        except RuntimeError:  # the interpreter is being taken down, or there are too many threads
            with self._lock:
                self._running -= 1
                if self._running > 0 or function not in self._waiting:
                    return  # another thread takes it, or has taken it
                self._waiting.remove(function)
            raise

    def _work(self):
        try:
            while True:
                with self._lock:
                    if not self._waiting:
                        return
                    function = self._waiting.popleft()
                function()
        finally:
            with self._lock:
                self._running -= 1
            if self._freed:
                self._freed()
