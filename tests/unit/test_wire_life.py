"""The life of a wire: nothing is left behind however it ends, and what it cannot be told is refused in words."""

import contextlib
import gc
import os
import subprocess
import sys

import pytest
from mailboxes import Room, body
from wires_over_tcp import Net, nets, resources

from hetccl import _tcp, _wire

ENETWORK = -7


@pytest.fixture
def net():
    """Function: Net's arguments -> Net, closed at the end."""
    with nets() as make:
        yield make


def use(nrails=2):
    """A connection's whole life, traffic under way at its end."""
    ranks = Net()
    ranks.connect(nrails=nrails)
    rooms = [Room(5000), Room(5000)]
    for rank in range(2):
        ranks.trials[rank].send(body(1, 5000), 1 - rank, 0)
        ranks.trials[rank].send(body(1, 5), 1 - rank, 1)
    ranks.trials[0].receive(rooms[0].view, 1, 0)
    ranks.trials[0].poll(), ranks.trials[1].poll(), ranks.trials[0].poll()
    ranks.trials[0].wait(ranks.trials[0].receive(rooms[1].view, 1, 7), 10**6)
    return ranks


@pytest.mark.parametrize("ending", ["close", "drop", "lost", "broken rail"])
def test_nothing_is_left_behind(ending):
    def once():
        ranks = use()
        if ending == "lost":
            ranks.wires[0].lost(1, "it has ended")
        if ending == "broken rail":
            ranks.pull(1)
            ranks.trials[0].poll()
            ranks.wires[0].close_rail(1, 1)
        if ending == "drop":
            for plug in ranks.plugs:
                plug.close()
        else:
            ranks.close()
            ranks.close()

    once()
    gc.collect()
    before = resources()
    for _ in range(200 if ending == "close" else 20):
        once()
    gc.collect()
    after = resources()
    assert after[:2] == before[:2]
    assert after[2] <= before[2] + 4  # the allocator may have mapped some of its own


def test_a_closed_wire_answers():
    ranks = use()
    ranks.close()
    wire = ranks.wires[0]
    wire.retry(1), wire.lost(1, "x"), wire.refuse(1, "x")
    assert (wire.wanted(), wire.failures(), wire.connected(), wire.counters(), wire.flush(1)) == ([], [], [], {}, True)


@pytest.mark.parametrize(
    "call",
    [
        lambda wire: wire.prepare(1, []),
        lambda wire: wire.attach(1, {}),
        lambda wire: wire.go(1),
        lambda wire: wire.close_rail(1, 0),
        lambda wire: wire.resume(1, 0, {}),
        lambda wire: wire.add_port(_tcp.TcpPort()),
    ],
    ids=["prepare", "attach", "go", "close_rail", "resume", "add_port"],
)
def test_a_closed_wire_refuses(call):
    ranks = use()
    ranks.close()
    with pytest.raises(ValueError, match="closed"):
        call(ranks.wires[0])


def test_a_child_of_a_fork_leaves_the_connection_alone(net):
    ranks = use()
    child = os.fork()
    if child == 0:
        try:
            ranks.wires[0].close()
            del ranks
            gc.collect()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    rooms = [Room(5000), Room(5)]
    received = [ranks.trials[1].receive(rooms[k].view, 0, k) for k in range(2)]
    ranks.settle()
    assert [letter.state for letter in received] == ["complete"] * 2
    assert rooms[0].got(5000) == body(1, 5000)
    ranks.close()


def test_a_child_of_a_fork_holds_no_end_of_a_connection():
    gc.collect()
    before = sockets()
    ranks = use()
    plugs = {str(plug.fileno()) for plug in ranks.plugs}
    assert sockets() - before > plugs
    child = os.fork()
    if child == 0:
        try:
            os._exit(sockets() - before != plugs)
        finally:
            os._exit(255)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    ranks.close()
    for plug in ranks.plugs:
        plug.close()


def sockets():
    """Descriptors of this process that are sockets."""
    found = set()
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself
            if os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                found.add(entry)
    return found


@pytest.mark.parametrize("attached", [False, True])
def test_an_attempt_that_failed_leaves_nothing(net, attached):
    """At once, not only when the wire is closed; and traffic of other peers goes on."""
    ranks = net(3)
    ranks.connect(0, 2)
    room = Room(5)
    received = ranks.trials[0].receive(room.view, 2, 3)

    def attempt():
        rails = ranks.rails(0, 1, 2)
        inboxes = [ranks.wires[a].prepare(b, rails[i]) for i, (a, b) in enumerate(((0, 1), (1, 0)))]
        ranks.join(rails)
        if attached:
            ranks.wires[0].attach(1, inboxes[1])
        for plug in ranks.plugs[-2:]:
            plug.close()
        del ranks.plugs[-2:]
        ranks.wires[0].retry(1)
        ranks.wires[1].retry(0)

    attempt()
    before = resources()
    for _ in range(20):
        attempt()
    assert resources() == before
    ranks.trials[2].send(body(2, 5), 0, 3)
    ranks.settle()
    assert received.state == "complete" and room.got(5) == body(2, 5)


CYCLE = """
import gc, socket
from hetccl import _tcp, _wire

held = {}  # the collector clears it last, and with it the wire
wire = _wire.Wire(0, 2, 4, 256, (held, held))
wire.add_port(port := _tcp.TcpPort())
ends = socket.socketpair()
wire.prepare(1, [rail := port.rail(1, 0)])
rail.connect(rail.local(), [ends[0].detach()])
held["wire"] = wire
del held, wire, port, rail
ends[1].settimeout(10)
print(gc.collect() > 0, ends[1].recv(1))
"""


def test_rails_outlive_their_wire_in_the_collectors_order():
    """It clears a wire's dict of rails before it takes the wire, which gives their memory back at its end."""
    done = subprocess.run([sys.executable, "-c", CYCLE], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "True b''\n"), done.stderr


# What is wrong is said.


@pytest.mark.parametrize(
    "cells, cell_bytes", [(0, 256), (1, 256), (3, 256), (2048, 256), (4, 64), (4, 200), (4, 1 << 21)]
)
def test_shapes_that_no_inbox_has(cells, cell_bytes):
    with pytest.raises(ValueError, match="cell"):
        _wire.Wire(0, 2, cells, cell_bytes)


@pytest.mark.parametrize("peer", [-1, 0, 2])
def test_ranks_that_are_no_peers(net, peer):
    ranks = net()
    with pytest.raises(ValueError, match="peer"):
        ranks.wires[0].lost(peer, "x")


GOOD = {"address": 4096, "cells": 4, "cell_bytes": 256, "rkeys": [1]}


@pytest.mark.parametrize(
    "inbox",
    [
        None,
        [],
        {},
        {**GOOD, "more": 1},
        {key: GOOD[key] for key in ("address", "cells", "cell_bytes")},
        {**GOOD, "address": -1},
        {**GOOD, "address": 1 << 64},
        {**GOOD, "address": 1.0},
        {**GOOD, "address": True},
        {**GOOD, "cells": 3},
        {**GOOD, "cells": 2048},
        {**GOOD, "cells": 1 << 32},
        {**GOOD, "cell_bytes": 100},
        {**GOOD, "cell_bytes": "256"},
        {**GOOD, "rkeys": []},
        {**GOOD, "rkeys": [1, 2]},
        {**GOOD, "rkeys": [None]},
        {**GOOD, "rkeys": "a"},
    ],
)
def test_inboxes_that_are_none(net, inbox):
    ranks = net()
    ranks.wires[0].prepare(1, ranks.rails(0, 1)[0])
    with pytest.raises(ValueError, match="inbox"):
        ranks.wires[0].attach(1, inbox)
    ranks.wires[0].attach(1, GOOD)


ARRIVED = {"cells": [0, 0], "cts": [0, 0], "open": [[], []]}


@pytest.mark.parametrize(
    "got",
    [
        None,
        {},
        {**ARRIVED, "more": 1},
        {**ARRIVED, "cells": [0]},
        {**ARRIVED, "cells": [0, -1]},
        {**ARRIVED, "cells": [0, 1 << 32]},
        {**ARRIVED, "cts": [0, True]},
        {**ARRIVED, "cts": 0},
        {**ARRIVED, "open": [[]]},
        {**ARRIVED, "open": [[], [[0, 0]]]},
        {**ARRIVED, "open": [[], [[0, 5, 0]]]},
        {**ARRIVED, "open": [[], [[0, 1, 16]]]},
        {**ARRIVED, "open": [[], [[0, 1, 1]] * 65]},
    ],
)
def test_records_of_arrival_that_are_none(net, got):
    ranks = net()
    ranks.connect(nrails=2)
    ranks.wires[0].close_rail(1, 0)
    with pytest.raises(ValueError, match="arrived"):
        ranks.wires[0].resume(1, 0, got)
    ranks.wires[0].resume(1, 0, ranks.wires[1].close_rail(0, 0))
    assert ranks.wires[0].connected() == [1]


def test_a_record_that_cannot_be_true_ends_the_connection(net):
    ranks = net()
    ranks.connect(nrails=2)
    ranks.wires[0].close_rail(1, 0)
    ranks.wires[0].resume(1, 0, {**ARRIVED, "cells": [0, 77]})
    assert ranks.trials[0].status(1) == ENETWORK


@pytest.mark.parametrize("index", [-1, 2, 4])
def test_rails_that_are_none(net, index):
    ranks = net()
    ranks.connect(nrails=2)
    with pytest.raises(ValueError, match="no rail"):
        ranks.wires[0].close_rail(1, index)
    with pytest.raises(ValueError, match="no rail"):
        ranks.wires[0].resume(1, index, ARRIVED)


def test_peers_are_connected_once(net):
    ranks = net()
    rails = ranks.connect()
    with pytest.raises(ValueError, match="is connected"):
        ranks.wires[0].prepare(1, ranks.rails(0, 1)[0])
    with pytest.raises(ValueError, match="is connected"):
        ranks.wires[0].attach(1, GOOD)
    with pytest.raises(ValueError, match="rails"):
        ranks.wires[0].prepare(1, rails[0] * 5)


def test_ports_are_not_without_end(net):
    ranks = net()
    for _ in range(31):
        ranks.wires[0].add_port(_tcp.TcpPort())
    with pytest.raises(ValueError, match="32 ports"):
        ranks.wires[0].add_port(_tcp.TcpPort())
