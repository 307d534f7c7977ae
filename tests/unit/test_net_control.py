"""Control messages and their bodies: order, length, JSON, and what each must hold; fuzz."""

import random
import socket
import struct

import pytest
from net_fakes import mutated

from hetccl.net import control, records
from hetccl.net.handshake import HandshakeError


@pytest.fixture
def ends():
    """Two ends of a connection."""
    one, other = socket.socketpair()
    with one, other:
        yield one, other


FRAMES = [
    (control.RECORD, {"kind": "tcp", "rails": [{}], "inbox": {}, "connections": 2}),
    (control.READY, {}),
    (control.FAULT, {"reason": 1, "reporter": 0, "culprit": 3}),
]
KEY = bytes(range(32))


def sealed():
    sealer = control.Sealer(KEY)
    return [sealer.seal(*frame) for frame in FRAMES]


class Endpoint:
    """As much of a Talk as Connection takes over."""

    def __init__(self):
        self.sealer, self.opener = control.Sealer(KEY), control.Opener(KEY)


def test_torn_frames_come_whole(ends):
    """Byte by byte, and all at once."""
    mine, theirs = ends
    connection = control.Connection(theirs, Endpoint())
    heard = []
    for byte in b"".join(sealed()):
        mine.sendall(bytes([byte]))
        heard += connection.receive()[0]
    assert heard == FRAMES
    connection = control.Connection(theirs, Endpoint())
    mine.sendall(b"".join(sealed()))
    assert connection.receive() == (FRAMES, False)
    assert connection.receive() == ([], False)
    mine.close()
    assert connection.receive() == ([], True)


@pytest.mark.parametrize("seed", range(10))
def test_fuzzed_frames_are_refused(seed):
    """What comes before the damage is taken; then the connection is an error or waits for bytes that never come."""
    rng = random.Random(seed)
    good = b"".join(sealed())
    for _ in range(1000):
        mine, theirs = socket.socketpair()
        with mine, theirs:
            connection = control.Connection(theirs, Endpoint())
            data = mutated(rng, good)
            mine.sendall(data)
            mine.shutdown(socket.SHUT_WR)
            heard = []
            try:
                ended = False
                while not ended:
                    frames, ended = connection.receive()
                    heard += frames
            except HandshakeError:
                pass
            assert heard == FRAMES[: len(heard)]
            assert len(heard) < len(FRAMES)


@pytest.mark.parametrize(
    "frames",
    [[1], [0, 0], [0, 2], [2, 1, 0]],
    ids=["the first is missing", "one comes twice", "one is missing", "in another order"],
)
def test_frames_have_their_order(frames):
    opener = control.Opener(KEY)
    good = sealed()
    with pytest.raises(HandshakeError, match="where number"):
        for index in frames:
            opener.open(good[index])


@pytest.mark.parametrize("nbytes", [(64 << 10) + 1, 1 << 31, (1 << 32) - 1])
def test_a_long_frame_is_refused_before_it_comes(ends, nbytes):
    mine, theirs = ends
    connection = control.Connection(theirs, Endpoint())
    mine.sendall(struct.pack("<IHHQ", nbytes, 1, 0, 0))
    with pytest.raises(HandshakeError, match="announces"):
        connection.receive()


def test_a_long_message_is_not_sent():
    with pytest.raises(ValueError):
        control.Sealer(KEY).seal(control.BYE, {"text": "x" * (64 << 10)})


def test_a_peer_that_reads_nothing(ends):
    """What waits for it is bounded, and goes once it reads."""
    _, theirs = ends
    connection = control.Connection(theirs, Endpoint())
    with pytest.raises(TimeoutError):
        for _ in range(1000):
            connection.send(control.BYE, {"text": "x" * 60000})
    assert len(connection._pending) < 2 * control.PENDING_BYTES


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"1",
        b"{",
        b'{"a":1,"a":1}',
        b'{"a":{"b":1,"b":2}}',
        b'{"a":1.0}',
        b'{"a":1e3}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b"{} {}",
        b"\xff{}",
        b'{"a":"\xff"}',
        b'{"a":' * 9000,
        b"[" * 60000,
        b'{"a":' + b"9" * 5000 + b".5}",
    ],
)
def test_what_is_no_json_of_ours(text):
    with pytest.raises(HandshakeError):
        control.parse(text)


INBOX = {"address": 1 << 47, "cells": 16, "cell_bytes": 8192, "rkeys": [0, (1 << 32) - 1]}
RECORD = {"kind": "tcp", "rails": [{"a": 1}, {}], "inbox": INBOX, "connections": 2}


def test_a_good_record():
    assert records.endpoint(RECORD, "tcp", 2) == ([{"a": 1}, {}], INBOX, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "verbs"},
        {"kind": 1},
        {"rails": [{}]},
        {"rails": [{}, []]},
        {"rails": {}},
        {"rails": None},
        {"connections": 0},
        {"connections": 17},
        {"connections": True},
        {"connections": "2"},
        {"inbox": []},
        {"more": 1},
        *(
            {"inbox": {**INBOX, **inbox}}
            for inbox in (
                {"address": -4096},
                {"address": 0},
                {"address": (1 << 47) + 1},
                {"address": 1 << 64},
                {"address": "1"},
                {"cells": 0},
                {"cells": 12},
                {"cells": 2048},
                {"cells": 1},
                {"cell_bytes": 64},
                {"cell_bytes": 8200},
                {"cell_bytes": 1 << 21},
                {"rkeys": [0]},
                {"rkeys": [0, 1 << 32]},
                {"rkeys": [0, -1]},
                {"rkeys": [0, True]},
                {"rkeys": "00"},
                {"more": 1},
            )
        ),
    ],
    ids=str,
)
def test_a_bad_record(change):
    with pytest.raises(HandshakeError):
        records.endpoint({**RECORD, **change}, "tcp", 2)


@pytest.mark.parametrize("name", RECORD)
def test_a_record_lacks_something(name):
    with pytest.raises(HandshakeError):
        records.endpoint({key: value for key, value in RECORD.items() if key != name}, "tcp", 2)


def random_json(rng, depth=0):
    kinds = "nbisl" + "o" * (3 - depth)
    kind = rng.choice(kinds)
    if kind == "o":
        names = ["kind", "rails", "inbox", "connections", "address", "cells", "reason", "rail", "state", "text", "x"]
        return {name: random_json(rng, depth + 1) for name in rng.sample(names, rng.randrange(5))}
    if kind == "l":
        return [] if depth > 2 else [random_json(rng, depth + 1) for _ in range(rng.randrange(4))]
    values = {"n": None, "b": rng.random() < 0.5, "i": rng.choice((0, 1, -1, 1 << 40, 1 << 70)), "s": "tcp\n"}
    return values[kind]


def damaged(rng, value):
    """The value with something in it replaced."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        name = rng.choice(list(value))
        return {**value, name: damaged(rng, value[name])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return [*value[:at], damaged(rng, value[at]), *value[at + 1 :]]
    return random_json(rng)


CHECKS = {
    "endpoint": (lambda body: records.endpoint(body, "tcp", 2), RECORD),
    "fault": (lambda body: records.fault(body, 4), {"reason": 1, "reporter": 0, "culprit": 3}),
    "entered": (records.entered, {"question": 1, "entered": 2, "call": 3}),
    "question": (records.question, {"question": 1}),
    "rail_down": (lambda body: records.rail_down(body, 2), {"rail": 1, "state": {}, "text": "why"}),
    "refusal": (records.refusal, {"reason": "failed", "text": "why"}),
    "nothing": (records.nothing, {}),
}


@pytest.mark.parametrize("name", CHECKS)
def test_fuzzed_bodies(name):
    """A check answers or refuses; nothing else comes out of it."""
    check, good = CHECKS[name]
    check(good)
    rng = random.Random(name)
    refused = 0
    for _ in range(3000):
        body = damaged(rng, good)
        if not isinstance(body, dict):
            continue  # parse() has refused it
        try:
            check(body)
        except HandshakeError:
            refused += 1
    assert refused > 500
