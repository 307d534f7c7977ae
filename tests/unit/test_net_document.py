"""A peer that is written from docs/wire-protocol.md, without a line of hetccl's, connects to a rank."""

import hashlib
import hmac
import json
import os
import socket
import struct

import pytest
from net_fakes import Net, nothing_left  # noqa: F401

pytestmark = pytest.mark.usefixtures("nothing_left")
REFUSED, RECORD, READY, BYE, FAULT, ASK_ENTERED, ENTERED, RAIL_DOWN = range(1, 9)


def h(key, label, text):
    return hmac.new(key, label.encode() + b"\0" + text, hashlib.sha256).digest()


class Documented:
    """One connection of the peer, as a client, after its handshake."""

    def __init__(self, secret, port, sender, receiver, ranks, kind=1, index=0, session=bytes(16)):
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.settimeout(20)
        key = h(secret, "handshake", b"")
        hello = b"hetccl\r\n" + struct.pack("<HBBIIIII", 1, kind, 0, sender, receiver, ranks, index, 0)
        hello += h(secret, "communicator", b"")[:16] + session + os.urandom(32)
        self.sock.sendall(hello)
        answer = self.read(80)
        assert answer[10] == 0
        assert answer[48:] == h(key, "server", hello + answer[:48])
        self.sock.sendall(h(key, "client", hello + answer))
        self.session = h(key, "session", hello + answer)[:16]
        self.mine = h(key, "client frames", hello + answer)
        self.theirs = h(key, "server frames", hello + answer)
        self.said = self.heard = 0

    def read(self, nbytes):
        data = self.sock.recv(nbytes, socket.MSG_WAITALL)
        assert len(data) == nbytes
        return data

    def say(self, kind, /, **members):
        body = json.dumps(members).encode()
        frame = struct.pack("<IHHQ", len(body), kind, 0, self.said) + body
        self.said += 1
        self.sock.sendall(frame + h(self.mine, "frame", frame))

    def hear(self):
        head = self.read(16)
        nbytes, kind, zero, number = struct.unpack("<IHHQ", head)
        body = self.read(nbytes)
        assert (zero, number) == (0, self.heard)
        assert self.read(32) == h(self.theirs, "frame", head + body)
        self.heard += 1
        return kind, json.loads(body)


INBOX = {"address": 1 << 40, "cells": 8, "cell_bytes": 4096, "rkeys": [1, 2]}


@pytest.mark.parametrize("kind", ["verbs", "tcp"])
@pytest.mark.parametrize("me", [0, 2])
def test_a_peer_written_from_the_document(kind, me):
    with Net(3, here=[1], kind=kind, rails=2, connections=3) as net:
        port, wire = net.card["port"], net.wires[1]
        control = Documented(net.secret, port, me, 1, 3)
        record = {"kind": kind, "rails": [{"a": 1}, {"b": 2}], "inbox": INBOX, "connections": 2}
        if me < 1:
            control.say(RECORD, **record)
        heard, theirs = control.hear()
        assert heard == RECORD
        assert theirs == {
            "kind": kind,
            "rails": [{"qpn": 1000 + 10 * me}, {"qpn": 1001 + 10 * me}],
            "inbox": {"address": 8192, "cells": 16, "cell_bytes": 8192, "rkeys": [1, 1]},
            "connections": 3,
        }
        if me > 1:
            control.say(RECORD, **record)
        data = [
            Documented(net.secret, port, me, 1, 3, 2, index, control.session)
            for index in range(4 if kind == "tcp" else 0)
        ]
        assert control.hear() == (READY, {})
        assert wire.events("attach") == [(me, INBOX)]
        assert wire.events("go") == []
        control.say(READY)
        wire.until("go", me)
        assert [one.read(2) for one in data] == [bytes((index // 2, index % 2)) for index in range(len(data))]
        assert [rail.remote for rail in wire.rails[me]] == record["rails"]
        net.boards[1].position = (3, 9)
        control.say(ASK_ENTERED, question=77)
        assert control.hear() == (ENTERED, {"question": 77, "entered": 3, "call": 9})
        control.say(RAIL_DOWN, rail=1, state={"x": 5}, text="gone")
        assert control.hear()[1]["state"] == {"cells": [1, 1], "of": me}
        assert wire.until("resume", me)[2:4] == (1, {"x": 5})
        control.say(FAULT, reason=3, reporter=me, culprit=1)
        wire.until("break_off", 3, me, 1)
        assert control.hear() == (FAULT, {"reason": 3, "reporter": me, "culprit": 1})
        control.say(BYE)
        wire.until("lost", me)
        assert net.boards[1].gone == {me: "left"}
        for one in (control, *data):
            one.sock.close()
