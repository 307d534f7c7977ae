"""Frames: what is said on a control connection after the handshake, each with a number and a proof of its sender.

`seal` and `Opener` are the bytes; `exchange` parts of the handshake use them on a blocking stream, Connection on a
non-blocking socket in the connector's thread. The document is docs/wire-protocol.md.
"""

import hmac
import json
import struct
import threading

from hetccl.net.handshake import PROOF_BYTES, HandshakeError, digest

# length of the body, type, 0, number
HEAD = struct.Struct("<IHHQ")
BODY_BYTES = 64 << 10  # longest body
# What may wait for a peer that does not read. Control messages are few; more than this is no traffic of ours.
PENDING_BYTES = 1 << 20
RECEIVE_BYTES = 64 << 10

REFUSED, RECORD, READY, BYE, FAULT, ASK_ENTERED, ENTERED, RAIL_DOWN = range(1, 9)


class Sealer:
    """One direction of a session, at the sender's end."""

    def __init__(self, key):
        self.key = key
        self.number = 0

    def seal(self, kind, body):
        """The next frame. body : dict. Raises ValueError if it is too long."""
        text = json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
        if len(text) > BODY_BYTES:
            raise ValueError(f"a control message of {len(text)} bytes; the protocol allows {BODY_BYTES}")
        frame = HEAD.pack(len(text), kind, 0, self.number) + text
        self.number += 1
        return frame + digest(self.key, b"frame", frame)


class Opener:
    """One direction of a session, at the receiver's end."""

    def __init__(self, key):
        self.key = key
        self.number = 0

    def length(self, head):
        """Bytes of the frame after its head. Raises HandshakeError before anything is read or kept."""
        nbytes, _, _, _ = HEAD.unpack(head)
        if nbytes > BODY_BYTES:
            raise HandshakeError(f"it announces a control message of {nbytes} bytes; the protocol allows {BODY_BYTES}")
        return nbytes + PROOF_BYTES

    def open(self, frame):
        """(type, body) of a whole frame. Raises HandshakeError."""
        said, proof = frame[:-PROOF_BYTES], frame[-PROOF_BYTES:]
        if not hmac.compare_digest(proof, digest(self.key, b"frame", said)):
            raise HandshakeError("a control message has been changed on its way")
        _, kind, zero, number = HEAD.unpack(said[: HEAD.size])
        if number != self.number or zero:
            raise HandshakeError(f"control message {number} where number {self.number} belongs")
        self.number += 1
        return kind, parse(said[HEAD.size :])


def parse(text):
    """A dict of JSON bytes: no numbers but integers, no name twice, nothing but an object. Raises HandshakeError."""
    try:
        body = json.loads(text.decode(), object_pairs_hook=_object, parse_float=_refuse, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise HandshakeError(f"a control message is no JSON of ours: {type(error).__name__}") from None
    if not isinstance(body, dict):
        raise HandshakeError("a control message is no JSON object")
    return body


def _object(pairs):
    body = dict(pairs)
    if len(body) < len(pairs):
        raise ValueError("a name comes twice")
    return body


def _refuse(text):
    raise ValueError(text)


class Talk:
    """Frames on a blocking Stream, both directions: the last part of the handshake.

    begun : whether this side has begun the connection
    """

    def __init__(self, stream, session, begun):
        keys = (session.client_key, session.server_key)
        self.stream = stream
        self.sealer, self.opener = Sealer(keys[not begun]), Opener(keys[begun])

    def say(self, kind, body):
        """Send one frame."""
        self.stream.send(self.sealer.seal(kind, body))

    def hear(self, *kinds):
        """(type, body) of the next frame. Raises HandshakeError if it is of none of these types."""
        head = self.stream.receive(HEAD.size)
        kind, body = self.opener.open(head + self.stream.receive(self.opener.length(head)))
        if kind not in kinds:
            raise HandshakeError(f"control message of type {kind} where type {' or '.join(map(str, kinds))} belongs")
        return kind, body


class Connection:
    """A control connection in use. receive() is the connector's thread's; send() anybody's.

    sock : connected socket, owned from now on     talk : Talk that has made the connection
    """

    def __init__(self, sock, talk):
        sock.setblocking(False)
        self.sock = sock
        self.opener = talk.opener
        self._sealer = talk.sealer
        self._received = bytearray()
        self._pending = bytearray()
        self._lock = threading.Lock()

    def send(self, kind, body):
        """Send a frame, or keep what does not go now. Returns whether flush() has to be called later. Raises OSError.

        Blocks : no
        """
        with self._lock:
            if len(self._pending) > PENDING_BYTES:
                raise TimeoutError("the peer reads nothing from its control connection")
            self._pending += self._sealer.seal(kind, body)
        return self.flush()

    def flush(self):
        """Send what waits. Returns whether some of it still waits. Raises OSError."""
        with self._lock:
            try:
                while self._pending:
                    del self._pending[: self.sock.send(self._pending)]
            except BlockingIOError:
                return True
        return False

    def receive(self):
        """([(type, body)] of the frames that have come, whether the connection has ended).

        Raises : HandshakeError (the peer broke the protocol), OSError
        """
        try:
            data = self.sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return [], False
        self._received += data
        frames = []
        while (nbytes := self._whole()) is not None:
            frames.append(self.opener.open(bytes(self._received[:nbytes])))
            del self._received[:nbytes]
        return frames, not data

    def _whole(self):
        """Length of the first frame, if all of it is here."""
        if len(self._received) < HEAD.size:
            return None
        nbytes = HEAD.size + self.opener.length(self._received[: HEAD.size])
        return nbytes if nbytes <= len(self._received) else None
