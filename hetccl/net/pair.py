"""One peer of a communicator: how the connection to it is made and by whom, and what its control connection says.

Both ranks may begin a connection at once. The lower rank decides which one stands: on each connection it speaks first
once both have proved themselves, with its record or with a refusal. Handshakes run on helper threads, everything else
on the connector's thread; Group.lock guards the fields. The document is docs/wire-protocol.md.
"""

import errno
import os
import socket
import time

from hetccl import config
from hetccl.net import control, handshake, records
from hetccl.net.handshake import HandshakeError, Hello, Stream
from hetccl.net.listener import AT_ONCE
from hetccl.net.loop import READ, WRITE
from hetccl.net.meeting import FAULTS, Refused, line, meet, words

DIAL_SECONDS = 5.0
PROOF_SECONDS = 10.0  # longer than the other side may wait until it knows the communicator
PAUSES = (0.05, 2.0)  # between two attempts: first and longest
# All addresses refuse: the listener, which is older than the peer's card, is gone, and its process with it.
REFUSED_SECONDS = 10.0
# The sockets of a process that dies are closed one after another: so long a failed rail waits for the news of it.
DEATH_SECONDS = 0.05

IDLE, STANDING, UP, GONE = "idle", "standing", "up", "gone"


class Pair:
    """This rank and one peer.

    group : connector.Group     peer : int, rank     path : net.paths.Path
    """

    def __init__(self, group, peer, path):
        self.group = group
        self.peer = peer
        self.path = path
        self.name = f"rank {peer} on host {group.hosts[peer]}"
        self.state = IDLE
        self.connection = None
        self._wanted_until = None  # monotonic seconds; None: nobody here wants it
        self._begun_at = None
        self._attempting = False
        self._scheduled = False
        self._pause = PAUSES[0]
        self._errors = {}  # address -> what the last attempt met there
        self._sockets = set()  # of the handshakes under way
        self._session = None  # whose data connections are awaited
        self._data = {}
        self._down, self._resumed = set(), set()  # rails

    # Making the connection.

    def want(self):
        """Connect it, unless that is being done or has been."""
        with self.group.lock:
            if self.state in (UP, GONE) or self._wanted_until is not None:
                return
            self._begun_at = time.monotonic()
            self._wanted_until = self._begun_at + self.group.timeout
        self._next()

    def _next(self):
        """Begin an attempt now; on the connector's thread."""
        with self.group.lock:
            self._scheduled = False
            if self._wanted_until is None or self._attempting or self.group.ended or self.state in (UP, GONE):
                return
            if self.state == STANDING:
                return  # release() comes back if it fails
            self._attempting = True
        try:
            self.group.dispatch(self._attempt)
        except RuntimeError as error:
            self._errors["this host"] = str(error)
            self._attempting = False
            self._later()

    def _later(self):
        """Attempt it again after a pause, or give it up."""
        with self.group.lock:
            if self._wanted_until is None or self._attempting or self._scheduled:
                return
            if self.group.ended or self.state in (UP, GONE):
                return
            if time.monotonic() < self._deadline():
                self._scheduled = True
                pause, self._pause = self._pause, min(2 * self._pause, PAUSES[1])
                self.group.loop.at(pause, self._next)
                return
            if self.state == STANDING:
                return
        self.give_up()

    def _deadline(self):
        refused = self._errors and all(text == os.strerror(errno.ECONNREFUSED) for text in self._errors.values())
        return min(self._wanted_until, self._begun_at + REFUSED_SECONDS) if refused else self._wanted_until

    def give_up(self, text=None):
        """The peer cannot be connected; text: why, without it the addresses that were tried."""
        if text is None:
            tried = "; ".join(f"{address}: {error}" for address, error in self._errors.items())
            seconds = time.monotonic() - self._begun_at
            text = f"{self.name} could not be reached in {seconds:.3g} s: {tried or 'it has no address'}"
        with self.group.lock:
            if self.state != IDLE or self.group.ended:
                return
            self.state = GONE
        self.group.wire.refuse(self.peer, text)

    def _attempt(self):
        """Try all addresses once; on a helper thread."""
        self._errors.clear()
        try:
            any(self._try(*address) for address in self.path.addresses)
        finally:
            self._attempting = False
            self.group.loop.soon(self._later)

    def _try(self, mine, theirs, port):
        """Connect by way of one address. Returns whether it is of no use to try another one now."""
        where = f"{theirs} port {port}"
        sock = None
        try:
            sock = self._dial(mine, theirs, port)
            stream = Stream(sock, time.monotonic() + min(PROOF_SECONDS, self.group.timeout))
            hello = self._hello(handshake.CONTROL)
            proof, session = handshake.connect(stream, hello, self.group.keys)
            stream.send(proof)
            meet(self, stream, session, (mine, theirs, port))
            return True
        except Refused as refused:
            self._errors[where] = str(refused)
            if refused.reason == records.FAILED:
                self.give_up(f"{self.name} could not be connected: {refused}")
            elif refused.reason == records.ENDED:
                self._freed()
            return True
        except HandshakeError as error:
            self._errors[where] = str(error)
            if error.status == handshake.CLOSED:
                self._freed()
            return error.status == handshake.CLOSED
        except OSError as error:
            self._errors[where] = words(error)
            return False
        finally:
            self.undial(sock)

    def _hello(self, kind, **fields):
        group = self.group
        return Hello(kind, group.keys.communicator, group.rank, self.peer, group.nranks, **fields)

    def _dial(self, mine, theirs, port):
        """A TCP connection to the address, from `mine` if that is given. Raises OSError."""
        family, kind, protocol, _, address = socket.getaddrinfo(
            theirs, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )[0]
        sock = self.group.process.own(socket.socket(family, kind, protocol))
        with self.group.lock:
            self._sockets.add(sock)
            ended = self.group.ended
        try:
            if ended:  # cancel() has not seen this socket
                raise OSError(errno.ECANCELED, "the communicator is being freed")
            sock.setsockopt(*AT_ONCE)
            sock.settimeout(min(DIAL_SECONDS, self.group.timeout))
            if mine is not None:
                sock.bind(socket.getaddrinfo(mine, 0, type=kind, flags=socket.AI_NUMERICHOST)[0][4])
            sock.connect(address)
            if sock.getsockname() == sock.getpeername():
                # Nobody listens, and the kernel has chosen just this port for our end: TCP connects it to itself.
                raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        except OSError:
            self.undial(sock)
            raise
        return sock

    def undial(self, sock):
        """Close a socket of a handshake, unless it has become somebody's."""
        with self.group.lock:
            if sock in self._sockets:
                self._sockets.discard(sock)
                self.group.process.disown(sock)
                sock.close()

    def _freed(self):
        with self.group.lock:
            if self.state in (UP, GONE) or self.group.ended:
                return
            self.state = GONE
        self.group.board.left(self.peer)
        self.group.wire.lost(self.peer, f"{self.name} has freed the communicator")

    # What both sides do once they have proved themselves; on helper threads.

    def take(self, stream, session):
        """Go on with a connection that the peer has begun and proved. Raises HandshakeError, OSError."""
        with self.group.lock:
            self._sockets.add(stream.sock)
        try:
            meet(self, stream, session, None)
        except Refused as refused:
            if refused.reason == records.FAILED:
                self.give_up(f"{self.name} could not be connected: {refused}")
        finally:
            self.undial(stream.sock)

    def claim(self, begun, session):
        """Let this connection be the one that stands. Returns None, or why not: (records.REASONS, text).

        begun : whether this side has begun it; else data connections of the session may come from now on
        """
        with self.group.lock:
            if self.group.ended:
                return records.ENDED, "the communicator has been freed"
            if self.state == GONE:
                return records.FAILED, "the connection of the pair has been lost or given up before"
            if self.state == IDLE:
                self.state = STANDING
                self._session = None if begun else session.name
                return None
            if self.state == UP and not begun:
                config.LOGGER.info("%s: it opened a second connection, which was refused", self.name)
            return records.CROSSED, "the pair has another connection"

    def release(self):
        """The connection that stood has failed."""
        # Before another connection can stand and bring rails of its own.
        self.group.wire.retry(self.peer)
        with self.group.lock:
            self.state, self._session = IDLE, None
            self._drop_data()
        self.group.loop.soon(self._later)

    def come_up(self, sock, talk):
        """The connection that stood is made; sock is the pair's."""
        with self.group.lock:
            if self.group.ended:
                return
            self._sockets.discard(sock)
            self._wanted_until = None
            # In one step: whoever has sent something may end at once, and must find a connection to say good-bye on.
            # The wire knows that the peer is there before the connection can say that it is lost.
            self.group.wire.go(self.peer)
            self.connection = control.Connection(sock, talk)
            self.state = UP
        self.group.loop.soon(self._watch)

    # Data connections: the side that began the control connection dials them, each proves itself.

    def expects(self, hello):
        """Whether a data connection with this Hello is awaited."""
        with self.group.lock:
            limit = len(self.path.rails) * self.group.connections
            return self._session == hello.session and hello.index < limit and hello.index not in self._data

    def deliver(self, hello, sock):
        """Take in a data connection that is proved. Raises HandshakeError if it is no longer awaited."""
        with self.group.lock:
            if not self.expects(hello):
                raise HandshakeError(f"data connection {hello.index} of {self.name} is not awaited any more")
            self._data[hello.index] = sock
            self._sockets.add(sock)
            self.group.changed.notify_all()

    def dial_data(self, total, address, session, deadline):
        """Dial so many data connections. Returns the sockets. Raises HandshakeError, OSError."""
        for index in range(total):
            self._data[index] = sock = self._dial(*address)
            stream = Stream(sock, deadline)
            hello = self._hello(handshake.DATA, index=index, session=session.name)
            stream.send(handshake.connect(stream, hello, self.group.keys)[0])
        return [self._data.pop(index) for index in range(total)]

    def await_data(self, total, deadline):
        """Wait until so many data connections are here. Returns the sockets. Raises HandshakeError."""

        def complete():
            return self.group.ended or self._data.keys() >= set(range(total))

        with self.group.lock:
            if not self.group.changed.wait_for(complete, deadline - time.monotonic()) or self.group.ended:
                raise HandshakeError(f"only {len(self._data)} of {total} data connections came")
            self._session = None  # nothing more is awaited
            sockets = [self._data.pop(index) for index in range(total)]
            self._drop_data()
            return sockets

    def _drop_data(self):
        for sock in self._data.values():
            self.undial(sock)
        self._data = {}

    def hand_over(self, sock):
        """The descriptor of a socket that a rail owns from now on."""
        with self.group.lock:
            self._sockets.discard(sock)
            self.group.process.disown(sock)
            sock.setblocking(False)
            return sock.detach()

    # The control connection; on the connector's thread.

    def _watch(self):
        with self.group.lock:
            if self.connection is None:
                return
        self.group.loop.watch(self.connection.sock, self._ready)
        self.group.connected(self)

    def say(self, kind, body):
        """Send a control message, if there is a connection; from any thread."""
        with self.group.lock:
            connection = self.connection
            if connection is None:
                return
            try:
                waits = connection.send(kind, body)
            except OSError:  # receive() meets it too, after what the peer has said before
                return
        if waits:
            self.group.loop.soon(lambda: self._write_later(connection))

    def _write_later(self, connection):
        if connection is self.connection:
            self.group.loop.change(connection.sock, READ | WRITE)

    def _ready(self, events):
        connection = self.connection
        try:
            if events & WRITE and not connection.flush():
                self.group.loop.change(connection.sock, READ)
            frames, ended = connection.receive()
            for kind, body in frames:
                self._heard(kind, body)
                if self.connection is None:
                    return
        except HandshakeError as error:
            self.group.process.warn(self.name, f"its control connection is given up: {error}")
            self._lost(f"{self.name} broke the protocol: {error}")
        except OSError as error:
            self._lost(f"the control connection of {self.name} failed: {words(error)}")
        else:
            if ended:
                self._lost(f"the process of {self.name} has ended: it closed its control connection")

    def _heard(self, kind, body):
        group = self.group
        if kind == control.BYE:
            records.nothing(body)
            if self.close() and not group.ended:
                group.board.left(self.peer)
                group.wire.lost(self.peer, f"{self.name} has freed the communicator")
        elif kind == control.FAULT:
            group.hear_fault(*records.fault(body, group.nranks))
        elif kind == control.ASK_ENTERED:
            number, call = group.board.entered()
            answer = {"question": records.question(body), "entered": number, "call": call}
            self.say(control.ENTERED, answer)
        elif kind == control.ENTERED:
            group.answered(self.peer, *records.entered(body))
        elif kind == control.RAIL_DOWN:
            self._rail_down(*records.rail_down(body, len(self.path.rails)))
        else:
            raise HandshakeError(f"control message of type {kind}, which the protocol does not know here")

    def _lost(self, text):
        if self.close() and not self.group.ended:
            self.group.board.died(self.peer)
            self.group.wire.lost(self.peer, text)

    def close(self):
        """Close the control connection; on the connector's thread. Returns whether there was one."""
        with self.group.lock:
            connection, self.connection = self.connection, None
            self.state = GONE
            if connection is None:
                return False
            self.group.loop.forget(connection.sock)
            self.group.process.disown(connection.sock)
            connection.sock.close()
            self.group.changed.notify_all()
            return True

    def cancel(self):
        """End the handshakes under way: their threads meet an error."""
        with self.group.lock:
            for sock in self._sockets:
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:  # not connected yet
                    continue

    # Rails.

    def rail_failed(self, index, text):
        """The wire has found a rail failed: close it on both sides, once it is clear that the peer lives."""
        self.group.loop.at(DEATH_SECONDS, lambda: self._close_rail(index, text))

    def _close_rail(self, index, text):
        if self.state == STANDING:
            self.rail_failed(index, text)  # it failed before this side knew that it is up
            return
        if self.connection is None or index in self._down or self.group.ended:
            return
        self._down.add(index)
        try:
            state = self.group.wire.close_rail(self.peer, index)
        except FAULTS as error:
            self._lost(f"rail {index} of {self.name} cannot be closed: {words(error)}")
            return
        self.say(control.RAIL_DOWN, {"rail": index, "state": state, "text": line(text)})

    def _rail_down(self, index, state, text):
        if index in self._resumed:
            raise HandshakeError(f"rail {index} goes down twice")
        self._resumed.add(index)
        why = f"{self.name} closed it: {text}"
        self._close_rail(index, why)
        try:
            self.group.wire.resume(self.peer, index, state, why)
        except FAULTS as error:
            raise HandshakeError(f"rail {index} cannot be resumed: {error}") from error
