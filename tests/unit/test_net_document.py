"""A peer that is written from docs/wire-protocol.md, without a line of hetccl's, connects to a rank."""

import pytest
from net_fakes import Net, nothing_left  # noqa: F401

from softroce.documented_control import ASK_ENTERED, BYE, ENTERED, FAULT, RAIL_DOWN, READY, RECORD, Control

pytestmark = pytest.mark.usefixtures("nothing_left")
INBOX = {"address": 1 << 40, "cells": 8, "cell_bytes": 4096, "rkeys": [1, 2]}


@pytest.mark.parametrize("kind", ["verbs", "tcp"])
@pytest.mark.parametrize("me", [0, 2])
def test_a_peer_written_from_the_document(kind, me):
    with Net(3, here=[1], kind=kind, rails=2, connections=3) as net:
        address, wire = ("127.0.0.1", net.card["port"]), net.wires[1]
        control = Control(net.secret, address, me, 1, 3)
        record = {"kind": kind, "rails": [{"a": 1}, {"b": 2}], "inbox": INBOX, "connections": 2}
        if me < 1:
            control.say(RECORD, **record)
        assert control.hear(RECORD)[1] == {
            "kind": kind,
            "rails": [{"qpn": 1000 + 10 * me}, {"qpn": 1001 + 10 * me}],
            "inbox": {"address": 8192, "cells": 16, "cell_bytes": 8192, "rkeys": [1, 1]},
            "connections": 3,
        }
        if me > 1:
            control.say(RECORD, **record)
        data = [
            Control(net.secret, address, me, 1, 3, data=(index, control.session))
            for index in range(4 if kind == "tcp" else 0)
        ]
        assert control.hear(READY) == (READY, {})
        assert wire.events("attach") == [(me, INBOX)]
        assert wire.events("go") == []
        control.say(READY)
        wire.until("go", me)
        assert [one.read(2) for one in data] == [bytes((index // 2, index % 2)) for index in range(len(data))]
        assert [rail.remote for rail in wire.rails[me]] == record["rails"]
        net.boards[1].position = (3, 9)
        control.say(ASK_ENTERED, question=77)
        assert control.hear(ENTERED) == (ENTERED, {"question": 77, "entered": 3, "call": 9})
        control.say(RAIL_DOWN, rail=1, state={"x": 5}, text="gone")
        assert control.hear(RAIL_DOWN)[1]["state"] == {"cells": [1, 1], "of": me}
        assert wire.until("resume", me)[2:4] == (1, {"x": 5})
        control.say(FAULT, reason=3, reporter=me, culprit=1)
        wire.until("break_off", 3, me, 1)
        assert control.hear(FAULT) == (FAULT, {"reason": 3, "reporter": me, "culprit": 1})
        control.say(BYE)
        wire.until("lost", me)
        assert net.boards[1].gone == {me: "left"}
        for one in (control, *data):
            one.sock.close()
