"""The bytes of the handshake and of control messages: an independent reading of the document, and fuzz."""

import hashlib
import hmac
import json
import random
import socket
import struct
import threading
import time

import pytest
from net_fakes import mutated

from hetccl.net import control, handshake
from hetccl.net.handshake import HandshakeError, Hello, Keys, Stream

SECRET = bytes(range(100, 116))
KEYS = Keys.of(SECRET)
HELLO = Hello(handshake.CONTROL, KEYS.communicator, 3, 1, 4)


def mac(key, *parts):
    """HMAC-SHA256, written out (RFC 2104): the key is shorter than a block of 64 bytes."""
    pad = key.ljust(64, b"\0")
    inner = hashlib.sha256(bytes(b ^ 0x36 for b in pad) + b"".join(parts)).digest()
    return hashlib.sha256(bytes(b ^ 0x5C for b in pad) + inner).digest()


def go(hello):
    return handshake.GO, KEYS


@pytest.fixture
def ends():
    """Two ends of a connection."""
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def stream(sock, seconds=20):
    return Stream(sock, time.monotonic() + seconds)


def shake(hello=HELLO, lookup=go, keys=KEYS):
    """Both sides of a handshake, connected by a pair of sockets: (client's session, server's Hello and session)."""
    one, other = socket.socketpair()
    answer = []

    def serve():
        try:
            answer.append(handshake.accept(stream(other), lookup))
        except HandshakeError as error:
            answer.append(error)

    thread = threading.Thread(target=serve)
    with one, other:
        thread.start()
        try:
            proof, session = handshake.connect(stream(one), hello, keys)
            one.sendall(proof)
        finally:
            one.shutdown(socket.SHUT_WR)
            thread.join()
    return session, *answer[0]


@pytest.mark.parametrize("kind, index, session", [(1, 0, bytes(16)), (2, 5, bytes(range(16)))])
def test_both_sides_prove_themselves(kind, index, session):
    hello = Hello(kind, KEYS.communicator, 3, 1, 4, index, session)
    ours, heard, theirs = shake(hello)
    assert heard == hello
    assert ours == theirs
    assert len({ours.name, ours.client_key, ours.server_key}) == 3
    assert shake(hello)[0] != ours


def test_bytes_as_documented(ends):
    """A client written from docs/wire-protocol.md alone."""
    mine, theirs = ends
    answers = []
    thread = threading.Thread(target=lambda: answers.append(handshake.accept(stream(theirs), go)))
    thread.start()
    name = mac(SECRET, b"communicator\0")[:16]
    key = mac(SECRET, b"handshake\0")
    said = b"hetccl\r\n" + struct.pack("<HBBIIIII", 1, 1, 0, 3, 1, 4, 0, 0) + name + bytes(16) + bytes(range(32))
    assert len(said) == 96
    mine.sendall(said)
    answer = mine.recv(80, socket.MSG_WAITALL)
    assert answer[:16] == b"hetccl\r\n" + struct.pack("<HB5x", 1, 0)
    assert answer[48:] == mac(key, b"server\0", said, answer[:48])
    mine.sendall(mac(key, b"client\0", said, answer))
    thread.join()
    hello, session = answers[0]
    assert hello == HELLO
    assert session.name == mac(key, b"session\0", said, answer)[:16]
    assert session.client_key == mac(key, b"client frames\0", said, answer)
    assert session.server_key == mac(key, b"server frames\0", said, answer)
    # The first frame of the client, and the second of the server.
    talk = control.Talk(stream(theirs), session, False)
    head = struct.pack("<IHHQ", 2, 3, 0, 0)
    mine.sendall(head + b"{}" + mac(session.client_key, b"frame\0", head, b"{}"))
    assert talk.hear(control.READY) == (control.READY, {})
    talk.say(control.READY, {})
    talk.say(control.BYE, {"a": [1, "\u00e9"]})
    mine.recv(16 + 2 + 32, socket.MSG_WAITALL)
    nbytes, kind, zero, number = struct.unpack("<IHHQ", head := mine.recv(16, socket.MSG_WAITALL))
    assert (kind, zero, number) == (4, 0, 1)
    body = mine.recv(nbytes, socket.MSG_WAITALL)
    assert json.loads(body) == {"a": [1, "\u00e9"]}
    assert mine.recv(32, socket.MSG_WAITALL) == mac(session.server_key, b"frame\0", head, body)


def test_mac_of_the_tests_is_hmac():
    assert mac(b"key", b"text") == hmac.digest(b"key", b"text", "sha256")


@pytest.mark.parametrize("status", [handshake.UNKNOWN, handshake.BAD_RANKS, handshake.BUSY, handshake.BAD_SESSION])
def test_refusals_are_told(status, monkeypatch):
    with pytest.raises(HandshakeError) as raised:
        shake(lookup=lambda hello: (status, None))
    assert raised.value.status == status
    assert handshake.STATUS[status] in str(raised.value)


def test_a_freed_communicator_is_proved():
    with pytest.raises(HandshakeError) as raised:
        shake(lookup=lambda hello: (handshake.CLOSED, KEYS))
    assert raised.value.status == handshake.CLOSED


@pytest.mark.parametrize("keys", [None, Keys.of(b"another secret..")])
def test_a_freed_communicator_is_not_believed_without_proof(keys):
    with pytest.raises(HandshakeError) as raised:
        shake(lookup=lambda hello: (handshake.CLOSED, keys))
    assert raised.value.status == 0


def test_a_server_without_the_secret_gets_no_proof(ends):
    mine, theirs = ends
    answer = b"hetccl\r\n" + struct.pack("<HB5x", 1, 0) + bytes(32) + bytes(range(32))
    theirs.sendall(answer)
    with pytest.raises(HandshakeError, match="secret"):
        handshake.connect(stream(mine), HELLO, KEYS)
    assert len(theirs.recv(1000)) == 96


def test_another_version_is_told_by_both_sides(ends):
    mine, theirs = ends
    mine.sendall(b"hetccl\r\n" + struct.pack("<H", 7) + bytes(200))
    mine.shutdown(socket.SHUT_WR)
    with pytest.raises(HandshakeError, match="version 7 .* this rank version 1") as raised:
        handshake.accept(stream(theirs), go)
    assert raised.value.status == handshake.BAD_VERSION
    answer = mine.recv(80)
    assert (len(answer), answer[8], answer[10]) == (80, 1, handshake.BAD_VERSION)


def test_a_server_of_another_version(ends):
    mine, theirs = ends
    theirs.sendall(b"hetccl\r\n" + struct.pack("<HB", 9, 1))
    with pytest.raises(HandshakeError, match="version 9 .* this rank version 1") as raised:
        handshake.connect(stream(mine), HELLO, KEYS)
    assert raised.value.status == handshake.BAD_VERSION


def test_slow_bytes_do_not_extend_the_deadline(ends):
    mine, theirs = ends
    ended = threading.Event()

    def drip():
        for byte in bytes(1000):
            if ended.wait(0.02):
                return
            mine.sendall(bytes([byte]))

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        with pytest.raises(TimeoutError):
            stream(theirs, 0.2).receive(1000)
    finally:
        ended.set()
        thread.join()


# Fuzz: with known nonces, all that a client says is known beforehand, and no thread is needed.


@pytest.fixture
def known_nonces(monkeypatch):
    monkeypatch.setattr(handshake.os, "urandom", lambda nbytes: bytes(range(nbytes)))


def client_bytes():
    """(what the client says, what the server answers), with known nonces."""
    said = HELLO.pack(bytes(range(32)))
    answer = b"hetccl\r\n" + struct.pack("<HB5x", 1, 0) + bytes(range(32))
    answer += mac(KEYS.key, b"server\0", said, answer)
    return said + mac(KEYS.key, b"client\0", said, answer), answer


def played(data, function):
    """Call function(Stream) at the end of a connection on which `data` comes, and nothing more."""
    mine, theirs = socket.socketpair()
    with mine, theirs:
        mine.sendall(data)
        mine.shutdown(socket.SHUT_WR)
        return function(stream(theirs))


def test_a_known_handshake_passes(known_nonces):
    said, answer = client_bytes()
    assert played(said, lambda of: handshake.accept(of, go))[0] == HELLO
    assert played(answer, lambda of: handshake.connect(of, HELLO, KEYS))[0] == said[96:]


@pytest.mark.parametrize("seed", range(10))
def test_fuzzed_clients_are_refused(known_nonces, seed):
    rng = random.Random(seed)
    said, _ = client_bytes()
    for _ in range(1000):
        with pytest.raises(HandshakeError):
            played(mutated(rng, said), lambda of: handshake.accept(of, go))


@pytest.mark.parametrize("seed", range(10))
def test_fuzzed_servers_are_refused(known_nonces, seed):
    rng = random.Random(seed)
    _, answer = client_bytes()
    for _ in range(1000):
        with pytest.raises(HandshakeError):
            played(mutated(rng, answer), lambda of: handshake.connect(of, HELLO, KEYS))


@pytest.mark.parametrize("seed", range(5))
def test_random_bytes_are_refused(seed):
    rng = random.Random(seed)
    for _ in range(1000):
        data = rng.choice((b"", b"hetccl\r\n", b"hetccl\r\n\1\0")) + rng.randbytes(rng.randrange(300))
        with pytest.raises(HandshakeError):
            played(data, lambda of: handshake.accept(of, go))
