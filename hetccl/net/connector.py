"""The connector: one thread of the process that meets the peers of its communicators over TCP.

bootstrap.py makes a Group for each communicator that has peers on other hosts. The Group tells the wire when a peer is
connected, and the board when one has left or died. The thread (loop.py) owns the listening sockets and the control
connections; handshakes run on helper threads, at most so many at a time. All of them are daemons: none holds up the
end of the program.
"""

import atexit
import functools
import itertools
import os
import threading
import time

from hetccl.net import control
from hetccl.net.handshake import Keys
from hetccl.net.pair import UP, Pair
from hetccl.net.process import Process

# The fault word of a host's shared memory is written by other processes, which cannot wake this one's connector.
LOOK_SECONDS = 1.0
GOODBYE_SECONDS = 1.0
HELPER_SECONDS = 5.0
LAST_SECONDS = 1.0  # for handshakes that the end of the program breaks off

_process = None  # of this process; a fork's child gets another


def listen(addresses=()):
    """Listen for peers; once per process and set of addresses, whatever the number of communicators.

    addresses : str, numeric IPv4 and IPv6 addresses of this host; none: all addresses, and the card has none
    Returns   : {"port": int, "addresses": [str]}, what the other ranks need to know. Each call must be followed by a
                Group, or by forgo(): the socket is closed with the last Group
    Raises    : OSError (naming the address)
    """
    return _here().listen(addresses)


def forgo():
    """There will be no Group for a call of listen()."""
    process = _process
    if process is not None:
        process.forgo()


def _here():
    global _process  # noqa: PLW0603
    with _guard:
        if _process is None:
            _end_with_the_program()
            _process = Process()
        return _process


class Group:
    """The network side of one communicator.

    secret      : 16 bytes that the ranks of the communicator share and nobody else knows
    rank        : int
    hosts       : str per rank, host names for messages
    wire        : _wire.Wire     board : _board.Board
    paths       : {peer: net.paths.Path}, with the ports of this rank, one for each rail, in the place of its `rails`
    timeout     : seconds in which a peer that is wanted must be reached
    connections : TCP connections for data of each rail (kind "tcp")
    """

    def __init__(self, secret, rank, hosts, wire, board, paths, timeout, connections=2):
        self.process = _here()
        self.lock, self.loop = self.process.lock, self.process.begin()
        self.changed = threading.Condition(self.lock)
        self.keys = Keys.of(secret)
        self.rank, self.nranks, self.hosts = rank, len(hosts), hosts
        self.name = (self.keys.communicator, rank)
        self.wire, self.board = wire, board
        self.wake_fd = wire.wake_fd
        self.timeout, self.connections = timeout, connections
        self.ended = False
        self.helpers = 0  # threads that work for it
        self._told = None  # the fault that the peers have been told
        self._questions = itertools.count()
        self._answers = {}  # question -> {peer: answer}
        self.pairs = {peer: Pair(self, peer, path) for peer, path in paths.items()}
        self.process.add(self)
        self.loop.soon(self._watch)

    def close(self, seconds):
        """Let what has been sent arrive, say good-bye to all peers, and close their connections; idempotent.

        seconds : most that sent data may take; the rest takes a few seconds at most
        Returns : bool, whether everything had arrived
        """
        if not self.lives():
            return True
        arrived = self.wire.flush(seconds)
        self.leave()
        with self.lock:
            self.changed.wait_for(self._alone, GOODBYE_SECONDS)
        self.loop.call(self._close_all, HELPER_SECONDS)
        self.settle(HELPER_SECONDS)
        self.process.remove(self)
        return arrived

    def drop(self, close):
        """Have a communicator that nobody freed closed, by a function, on a thread of its own.

        A finalizer asks for it. The collector of cycles runs it on any thread and in the middle of anything: on the
        connector's, for which close() waits, or where a lock is held that close() takes.
        """
        self.loop.soon(functools.partial(self._close_apart, close))

    def leave(self):
        """Say good-bye at once: the program ends. Idempotent; waits for nothing."""
        if not self.lives():
            return
        # A peer that hears of the end alone would take it for the reason.
        self._tell_fault()
        with self.lock:
            if self.ended:
                return
            self.ended = True
            self.changed.notify_all()
        for pair in self.pairs.values():
            pair.say(control.BYE, {})
            pair.cancel()

    def entered(self, peers, seconds):
        """Ask which collective each peer has entered last; their main threads may be anywhere.

        peers   : ranks     seconds : how long to wait for answers
        Returns : {peer: (how many it has entered, index of the last call)}, of those that have answered
        """
        if not self.lives():
            return {}
        with self.lock:
            asked = [pair for peer, pair in self.pairs.items() if peer in peers and pair.state == UP]
            question = next(self._questions)
            answers = self._answers[question] = {}
        for pair in asked:
            pair.say(control.ASK_ENTERED, {"question": question})
        with self.lock:
            self.changed.wait_for(
                lambda: all(pair.peer in answers or pair.state != UP for pair in asked),
                seconds,
            )
            del self._answers[question]
            return dict(answers)

    def resources(self):
        """What it holds: {"connected": [ranks], "sockets": int, "threads": int}; sockets are the whole process's."""
        with self.lock:
            connected = sorted(peer for peer, pair in self.pairs.items() if pair.state == UP)
            return {"connected": connected, "sockets": len(self.process.sockets), "threads": self.helpers}

    def settle(self, seconds):
        """Wait until no thread works for it any more, so many seconds at most."""
        with self.lock:
            self.changed.wait_for(lambda: self.helpers == 0, seconds)

    def lives(self):
        """Whether this is the process that made it, and it is not closed. Takes no lock."""
        return self.process is _process and self.process.has(self)

    # For pair.py.

    def dispatch(self, function):
        """Run it on a helper thread that close() waits for. Raises RuntimeError (no thread can be started)."""
        with self.lock:
            self.helpers += 1
        try:
            self.process.dialling.run(functools.partial(self.helped, function))
        except RuntimeError:
            with self.lock:
                self.helpers -= 1
                self.changed.notify_all()
            raise

    def helped(self, function):
        """Run it, on a helper thread that has been counted."""
        try:
            if not self.ended:
                function()
        finally:
            with self.lock:
                self.helpers -= 1
                self.changed.notify_all()

    def connected(self, pair):
        """A pair has come up: it may not know of a fault that the others know."""
        self._tell_fault()
        with self.lock:
            told = self._told
        if told is not None:
            pair.say(control.FAULT, dict(zip(("reason", "reporter", "culprit"), told)))

    def hear_fault(self, reason, reporter, culprit):
        """A peer says that the communicator is broken."""
        if self.board.fault() is None and not self.ended:
            self.board.break_off(reason, reporter, culprit)
        self._tell_fault()

    def answered(self, peer, question, number, call):
        """A peer has answered a question; one that nobody waits for any more is forgotten."""
        with self.lock:
            if question in self._answers:
                self._answers[question][peer] = (number, call)
                self.changed.notify_all()

    # On the connector's thread, but _tell_fault(), which leave() calls too.

    def _watch(self):
        if not self.ended:
            self.loop.watch(self.wake_fd, self._woken)
            self._look_again()

    def _woken(self, events):
        try:
            os.eventfd_read(self.wake_fd)
        except BlockingIOError:
            return
        self._look()

    def _look_again(self):
        if not self.ended:
            self._look()
            self.loop.at(LOOK_SECONDS, self._look_again)

    def _look(self):
        if self.ended:
            return
        for peer in self.wire.wanted():
            self.pairs[peer].want()
        for peer, index, text in self.wire.failures():
            self.pairs[peer].rail_failed(index, text)
        self._tell_fault()

    def _tell_fault(self):
        # All under the lock: whoever finds it told may say good-bye next.
        with self.lock:
            if self._told is not None or self.ended:
                return
            self._told = fault = self.board.fault()
            if fault is None:
                return
            for pair in self.pairs.values():
                pair.say(control.FAULT, dict(zip(("reason", "reporter", "culprit"), fault)))

    def _close_apart(self, close):
        try:
            self.process.closing.run(close)
        except RuntimeError:  # too many threads
            self.loop.at(LOOK_SECONDS, functools.partial(self._close_apart, close))

    def _close_all(self):
        self.loop.forget(self.wake_fd)
        for pair in self.pairs.values():
            pair.close()

    def _alone(self):
        return all(pair.connection is None for pair in self.pairs.values())


_guard = threading.Lock()


@functools.cache
def _end_with_the_program():
    atexit.register(_leave_all)
    os.register_at_fork(after_in_child=_forget)


def _leave_all():
    """Say good-bye and end the thread: it must not run while the interpreter is taken down.

    From then on a close() takes no lock: a daemon thread that the interpreter has stopped may hold it.
    """
    if _process is not None:
        groups = _process.groups()
        for group in groups:
            group.leave()
        until = time.monotonic() + LAST_SECONDS
        for group in groups:
            group.settle(max(0, until - time.monotonic()))
        _process.stop()


def _forget():
    """In the child of a fork: what it keeps open, the parent's peers would take for a sign of life."""
    global _process, _guard
    parent, _process, _guard = _process, None, threading.Lock()
    if parent is not None:
        parent.close_in_child()
