"""The handshake: how two processes prove each other that they know a communicator's secret. Bytes, and no threads.

The caller of connect() begins, that of accept() answers; both have a blocking socket and a deadline. What is proved
covers every byte said before it, with a fresh nonce of each side: a recorded handshake proves nothing. The document is
docs/wire-protocol.md. Called by connector.py and pair.py; control.py frames what comes after.
"""

import hmac
import os
import socket
import struct
import time
from dataclasses import dataclass

MAGIC = b"hetccl\r\n"
VERSION = 1
CONTROL, DATA = 1, 2
NONCE_BYTES = 32
PROOF_BYTES = 32
ID_BYTES = 16
# magic, version, kind, 0, from, to, ranks, index, 0, communicator, session, nonce
_HELLO = struct.Struct(f"<8sHBBIIIII{ID_BYTES}s{ID_BYTES}s{NONCE_BYTES}s")
# magic, version, status, 0, nonce, proof
_ANSWER = struct.Struct(f"<8sHB5s{NONCE_BYTES}s{PROOF_BYTES}s")
_FIRST = struct.Struct("<8sH")  # both begin so, in every version

# The answer's status: go on, or why not.
GO, BAD_VERSION, UNKNOWN, BAD_RANKS, BUSY, CLOSED, BAD_SESSION = range(7)
STATUS = {
    BAD_VERSION: "it speaks another version of the protocol",
    UNKNOWN: "it does not know this communicator",
    BAD_RANKS: "it is not that rank",
    BUSY: "it has too many connections under way",
    CLOSED: "it has freed the communicator",
    BAD_SESSION: "it expects no such data connection",
}
LINGER_SECONDS = 0.5


class HandshakeError(Exception):
    """A handshake that failed: str() says why. status : of the answer that refused it, either side's; else 0."""

    def __init__(self, text, status=0):
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Keys:
    """What follows from a communicator's secret: its public name, and the key of the proofs."""

    communicator: bytes
    key: bytes

    @classmethod
    def of(cls, secret):
        """secret : bytes that only the ranks of the communicator know, at least 16."""
        return cls(digest(secret, b"communicator")[:ID_BYTES], digest(secret, b"handshake"))


@dataclass(frozen=True)
class Hello:
    """Who opens a connection, and to whom.

    kind    : CONTROL | DATA     sender, receiver, ranks : of the communicator     index : of the data connection
    session : DATA: of the control connection that it belongs to, else zeros
    """

    kind: int
    communicator: bytes
    sender: int
    receiver: int
    ranks: int
    index: int = 0
    session: bytes = bytes(ID_BYTES)

    def pack(self, nonce):
        """The bytes of it."""
        return _HELLO.pack(
            MAGIC,
            VERSION,
            self.kind,
            0,
            self.sender,
            self.receiver,
            self.ranks,
            self.index,
            0,
            self.communicator,
            self.session,
            nonce,
        )


@dataclass(frozen=True)
class Session:
    """What both sides know after a handshake: the session's name, and the keys of what either says."""

    name: bytes
    client_key: bytes
    server_key: bytes


def digest(key, label, *parts):
    """HMAC-SHA256 of the label, a zero byte and the parts."""
    return hmac.digest(key, label + b"\0" + b"".join(parts), "sha256")


class Stream:
    """A blocking socket with one deadline for all that is done with it: slow bytes do not extend it."""

    def __init__(self, sock, deadline):
        self.sock = sock
        self.deadline = deadline

    def _arm(self):
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self.sock.settimeout(left)

    def send(self, data):
        """Send all of it. Raises OSError, TimeoutError."""
        self._arm()
        self.sock.sendall(data)

    def receive(self, nbytes):
        """Receive exactly so many bytes. Raises OSError, TimeoutError, HandshakeError (the connection ended)."""
        data = bytearray()
        while len(data) < nbytes:
            self._arm()
            piece = self.sock.recv(nbytes - len(data))
            if not piece:
                raise HandshakeError(f"the connection ended after {len(data)} of {nbytes} bytes")
            data += piece
        return bytes(data)


def connect(stream, hello, keys):
    """Begin a handshake; the other side is proved when this returns, and has not got our own proof yet.

    Returns : (proof to send, Session)
    Raises  : HandshakeError, with .status if it was refused; OSError
    """
    said = hello.pack(os.urandom(NONCE_BYTES))
    stream.send(said)
    head = stream.receive(_FIRST.size)
    magic, version = _FIRST.unpack(head)
    if magic != MAGIC:
        raise HandshakeError("the other side is no hetccl")
    if version != VERSION:
        raise HandshakeError(f"it speaks version {version} of the protocol, this rank version {VERSION}", BAD_VERSION)
    answer = head + stream.receive(_ANSWER.size - _FIRST.size)
    status, proof = answer[_FIRST.size], answer[-PROOF_BYTES:]
    proved = hmac.compare_digest(proof, digest(keys.key, b"server", said, answer[:-PROOF_BYTES]))
    if status not in (GO, CLOSED) or proof == bytes(PROOF_BYTES):
        raise HandshakeError(STATUS.get(status, f"it answers with status {status}"), status if status != CLOSED else 0)
    if not proved:
        raise HandshakeError("it does not know the secret of the communicator")
    if status == CLOSED:
        raise HandshakeError(STATUS[CLOSED], CLOSED)
    ours = digest(keys.key, b"client", said, answer)
    return ours, _session(keys, said, answer)


def accept(stream, lookup):
    """Answer a handshake; the other side is proved when this returns.

    lookup  : callable, Hello -> (status, Keys or None): whether to go on; with GO and CLOSED there are Keys
    Returns : (Hello, Session)
    Raises  : HandshakeError (also if lookup refuses: the other side has been told), OSError
    """
    head = stream.receive(_FIRST.size)
    magic, version = _FIRST.unpack(head)
    if magic != MAGIC:
        raise HandshakeError("it does not speak the protocol of hetccl")
    if version != VERSION:
        refuse(stream, BAD_VERSION)
        raise HandshakeError(f"it speaks version {version} of the protocol, this rank version {VERSION}", BAD_VERSION)
    said = head + stream.receive(_HELLO.size - _FIRST.size)
    hello = _unpack(said)
    status, keys = lookup(hello)
    answer = _ANSWER.pack(MAGIC, VERSION, status, bytes(5), os.urandom(NONCE_BYTES), bytes(PROOF_BYTES))
    if keys is not None:
        answer = answer[:-PROOF_BYTES]
        answer += digest(keys.key, b"server", said, answer)
    if status != GO:
        _say_and_end(stream, answer)
        raise HandshakeError(_refusal(status, hello), status)
    stream.send(answer)
    if not hmac.compare_digest(stream.receive(PROOF_BYTES), digest(keys.key, b"client", said, answer)):
        raise HandshakeError(f"it says it is rank {hello.sender} and does not know the secret of the communicator")
    return hello, _session(keys, said, answer)


def refuse(stream, status):
    """Answer a connection of which nothing more is read."""
    _say_and_end(stream, _ANSWER.pack(MAGIC, VERSION, status, bytes(5), bytes(NONCE_BYTES), bytes(PROOF_BYTES)))


def _unpack(said):
    """Hello of its bytes; raises HandshakeError."""
    _, _, kind, zero, sender, receiver, ranks, index, zeros, communicator, session, _ = _HELLO.unpack(said)
    if kind not in (CONTROL, DATA) or zero or zeros:
        raise HandshakeError("its greeting has fields that version 1 of the protocol does not know")
    if kind == CONTROL and (index or session != bytes(ID_BYTES)):
        raise HandshakeError("its greeting contradicts itself")
    return Hello(kind, communicator, sender, receiver, ranks, index, session)


def _session(keys, said, answer):
    name = digest(keys.key, b"session", said, answer)[:ID_BYTES]
    return Session(name, *(digest(keys.key, label, said, answer) for label in (b"client frames", b"server frames")))


def _refusal(status, hello):
    """What the log says of a connection that lookup refused."""
    texts = {
        UNKNOWN: "there is no such communicator here",
        BAD_RANKS: f"it says it is rank {hello.sender} of {hello.ranks} and asks for rank {hello.receiver}",
        BUSY: "too many connections are under way",
        CLOSED: "the communicator has been freed here",
        BAD_SESSION: f"no control connection expects data connection {hello.index} of rank {hello.sender}",
    }
    return texts[status]


def _say_and_end(stream, answer):
    """Send a last answer so that it is read: closing a socket with unread bytes would throw it away."""
    stream.deadline = min(stream.deadline, time.monotonic() + LINGER_SECONDS)
    try:
        stream.send(answer)
        stream.sock.shutdown(socket.SHUT_WR)
        while stream.sock.recv(4096):
            stream._arm()
    except OSError:  # it has gone, or stays longer than we do
        return
