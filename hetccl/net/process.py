"""What the communicators of one process share: the thread, its helpers, the listening sockets, and who is known here.

Used by connector.py. A connection that comes in is nobody's until its handshake has named a communicator.
"""

import os
import threading
import time
from collections import OrderedDict, deque

from hetccl import config
from hetccl.net import handshake
from hetccl.net.handshake import HandshakeError, Stream
from hetccl.net.listener import Listener
from hetccl.net.loop import Helpers, Loop

PROOF_SECONDS = 5.0  # for a stranger to prove itself
# Ranks leave Comm() at different times: so long a peer may be ahead of this one.
AHEAD_SECONDS = 2.0
DIALLING = 8
CLOSING = 4  # threads for communicators that are dropped without Free
# Threads for connections that come in. Those of peers that are being connected wait for data connections, which need
# threads, too: so these have some of their own.
ANSWERING, MEETING = 32, 24
CLOSED_KEPT = 1024  # communicators that have been freed here, whose peers are told so
PAUSE_SECONDS = 0.1  # after accept() failed for want of descriptors
WARNINGS, WARNING_SECONDS = 20, 10.0  # so many lines in so much time


class Process:
    """The connector's state in one process. `lock` guards it and all groups; it may be taken by whoever holds it."""

    def __init__(self):
        self.lock = threading.RLock()
        self.sockets = set()  # all that must not outlive a fork
        self.dialling = Helpers(DIALLING)
        self.closing = Helpers(CLOSING)
        self._answering = Helpers(ANSWERING, self._resume)
        self._changed = threading.Condition(self.lock)  # a group has been added
        self._meeting = 0
        self._loop = None
        self._listeners = {}
        self._promised = 0  # calls of listen() whose groups are still to come
        self._users = 0  # groups that have begun and are not removed
        self._groups = {}  # by (communicator, rank)
        self._closed = OrderedDict()
        self._warned = deque()  # when
        self._unsaid = 0

    # Life.

    def listen(self, addresses):
        """See connector.listen."""
        key = tuple(addresses)
        with self.lock:
            if key not in self._listeners:
                self._listeners[key] = Listener(key)
                self.sockets.update(self._listeners[key].sockets)
                self._resume()
            self._promised += 1
            return dict(self._listeners[key].card)

    def begin(self):
        """A group is being made: returns the Loop."""
        with self.lock:
            self._promised = max(0, self._promised - 1)
            self._users += 1
            if self._loop is None:
                self._loop = Loop()
                self._resume()
            return self._loop

    def add(self, group):
        """The group can be met from now on."""
        with self.lock:
            self._groups[group.name] = group
            self._changed.notify_all()

    def has(self, group):
        """Whether it is here."""
        return self._groups.get(group.name) is group

    def groups(self):
        """All of them."""
        with self.lock:
            return list(self._groups.values())

    def remove(self, group):
        """Forget a group that is closed; with the last one, stop."""
        with self.lock:
            if self._groups.pop(group.name, None) is None:
                return
            self._closed[group.name] = group.keys
            if len(self._closed) > CLOSED_KEPT:
                self._closed.popitem(last=False)
            self._users -= 1
        self._rest()

    def forgo(self):
        """See connector.forgo."""
        with self.lock:
            self._promised = max(0, self._promised - 1)
        self._rest()

    def _rest(self):
        with self.lock:
            loop = None if self._users or self._promised else self._stop()
        if loop is not None:
            loop.join()

    def stop(self):
        """End the thread and close the listening sockets; its groups count as closed from now on."""
        with self.lock:
            loop = self._stop()
            self._groups = {}
        if loop is not None:
            loop.join()

    def _stop(self):
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.stop()
        for listener in self._listeners.values():
            self.sockets.difference_update(listener.sockets)
            listener.close()
        self._listeners = {}
        return loop

    def close_in_child(self):
        """After a fork; locks may be held by threads that are not there, so that none is taken."""
        for sock in list(self.sockets):
            sock.close()
        if self._loop is not None:
            self._loop.close()
        for group in self._groups.values():
            if group.wire.wake_fd >= 0:
                os.close(group.wire.wake_fd)

    def own(self, sock):
        """The socket must be closed in the children of forks. Returns it."""
        self.sockets.add(sock)
        return sock

    def disown(self, sock):
        """It is closed, or somebody else's."""
        self.sockets.discard(sock)

    def warn(self, who, text):
        """Log it, unless there has been too much lately: strangers must not be able to fill a disk."""
        now = time.monotonic()
        with self.lock:
            while self._warned and self._warned[0] < now - WARNING_SECONDS:
                self._warned.popleft()
            if len(self._warned) >= WARNINGS:
                self._unsaid += 1
                return
            self._warned.append(now)
            unsaid, self._unsaid = self._unsaid, 0
        more = f" ({unsaid} warnings before this one were not logged)" if unsaid else ""
        config.LOGGER.warning("%s: %s%s", who, text, more)

    # Connections that come in; on the connector's thread.

    def _resume(self):
        """Listen, from the connector's thread; also for what it has stopped to listen to."""
        with self.lock:
            loop = self._loop
            listening = [sock for listener in self._listeners.values() for sock in listener.sockets]
        if loop is not None:
            loop.soon(lambda: [self._attend(loop, sock) for sock in listening])

    def _attend(self, loop, sock):
        loop.forget(sock)
        if sock.fileno() >= 0:
            loop.watch(sock, lambda events: self._accept(loop, sock))

    def _accept(self, loop, sock):
        if not self._answering.is_free():
            loop.forget(sock)  # the backlog keeps them until a thread has ended
            return
        try:
            caller, address = sock.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:
            self.warn("the listening socket", f"accept failed: {error}")
            loop.forget(sock)
            loop.at(PAUSE_SECONDS, lambda: self._attend(loop, sock))
            return
        self.own(caller)
        try:
            self._answering.run(lambda: self._answer(caller, f"{address[0]} port {address[1]}"))
        except RuntimeError as error:
            self.warn("the listening socket", f"no thread for a connection: {error}")
            self.disown(caller)
            caller.close()

    # The same, on helper threads.

    def _answer(self, sock, address):
        """Shake hands with a stranger, and give the connection to its pair."""
        stream = Stream(sock, time.monotonic() + PROOF_SECONDS)
        admitted = []  # (group, whether it is a control connection), once it is known
        try:
            hello, session = handshake.accept(stream, lambda hello: self._admit(hello, admitted))
            pair = admitted[0][0].pairs[hello.sender]
            if hello.kind == handshake.DATA:
                pair.deliver(hello, sock)
            else:
                pair.take(stream, session)
            sock = None
        except (HandshakeError, OSError) as error:
            # These two are not the stranger's fault.
            if getattr(error, "status", 0) not in (handshake.BUSY, handshake.CLOSED):
                self.warn(address, f"its connection was refused: {error}")
        finally:
            if sock is not None:
                self.disown(sock)
                sock.close()
            for group, control in admitted:
                self._dismiss(group, control)

    def _admit(self, hello, admitted):
        """(status, Keys or None) for handshake.accept; who is admitted is counted, until _dismiss()."""
        name, control = (hello.communicator, hello.receiver), hello.kind == handshake.CONTROL
        with self.lock:
            self._changed.wait_for(lambda: self._knows(hello.communicator), AHEAD_SECONDS)
            group = self._groups.get(name)
            if group is None and name not in self._closed:
                return handshake.BAD_RANKS if self._knows(hello.communicator) else handshake.UNKNOWN, None
            if group is None or group.ended:
                return handshake.CLOSED, group.keys if group else self._closed[name]
            if hello.ranks != group.nranks or hello.sender not in group.pairs:
                return handshake.BAD_RANKS, None
            if not control and not group.pairs[hello.sender].expects(hello):
                return handshake.BAD_SESSION, None
            if control and self._meeting == MEETING:
                return handshake.BUSY, None
            self._meeting += control
            group.helpers += 1
            admitted.append((group, control))
            return handshake.GO, group.keys

    def _knows(self, communicator):
        return any(communicator == name[0] for names in (self._groups, self._closed) for name in names)

    def _dismiss(self, group, control):
        with self.lock:
            self._meeting -= control
            group.helpers -= 1
            group.changed.notify_all()
