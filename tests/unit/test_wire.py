"""Wires of one process, over TCP rails: how peers are connected, lost and repaired, and who is woken by what."""

import os
import select
import time

import pytest
from mailboxes import Room, body
from wires_over_tcp import CHUNK, EAGER, nets, together

EPEER, ENETWORK = -1, -7
# A thread that is not woken is found by this.
LONG_NS = 20 * 10**9
ROUNDS = 20000


@pytest.fixture
def net():
    """Function: Net's arguments -> Net, closed at the end."""
    with nets() as make:
        yield make


def wakes(wire):
    return bool(select.select([wire.wake_fd], [], [], 0)[0])


def hear(wire):
    """What the connector does when the wire has written wake_fd."""
    os.eventfd_read(wire.wake_fd)
    return wire.wanted()


sizes = pytest.mark.parametrize("nbytes", [0, 1, EAGER, EAGER + 1, CHUNK, 3 * CHUNK + 7, 100003])


@pytest.mark.parametrize("nrails, connections", [(1, 1), (1, 3), (2, 1), (4, 2)])
@pytest.mark.parametrize("sync", [False, True], ids=["standard", "synchronous"])
@sizes
def test_messages_arrive(net, nbytes, sync, nrails, connections):
    ranks = net()
    ranks.connect(nrails=nrails, connections=connections)
    data, rooms = [body(rank, nbytes) for rank in range(2)], [Room(nbytes + 3) for _ in range(2)]
    sent = [ranks.trials[rank].send(data[rank], 1 - rank, 5, sync=sync) for rank in range(2)]
    ranks.settle()
    assert {letter.state for letter in sent} == {"moving" if sync or nbytes > EAGER else "complete"}
    received = [ranks.trials[rank].receive(rooms[rank].view, 1 - rank, 5) for rank in range(2)]
    ranks.settle()
    assert [letter.state for letter in sent + received] == ["complete"] * 4
    assert [room.got(nbytes) for room in rooms] == data[::-1]
    assert [wire.flush(10) for wire in ranks.wires] == [True, True]


def test_many_messages_both_ways(net):
    ranks = net()
    ranks.connect(nrails=2)
    bodies = [body(k, 37 * k) for k in range(60)]
    rooms = {}
    for k, data in enumerate(bodies):
        for rank in range(2):
            ranks.trials[rank].send(data, 1 - rank, k)
    for k in reversed(range(60)):
        for rank in range(2):
            rooms[rank, k] = Room(len(bodies[k]))
            ranks.trials[rank].receive(rooms[rank, k].view, 1 - rank, k)
        ranks.settle()
    for (_, k), room in rooms.items():
        assert room.got(len(bodies[k])) == bodies[k]
    assert [trial.counts for trial in ranks.trials] == [(0, 0, 0, 0)] * 2


def test_traffic_asks_for_the_connection_once(net):
    ranks = net(3)
    wire, trial = ranks.wires[0], ranks.trials[0]
    assert not wakes(wire) and wire.wanted() == [] and "not connected" in wire.describe(1)
    rooms = [Room(1), Room(1)]
    sent = [trial.send(body(k, 1), 1, k) for k in range(2)]
    ranks.settle()
    assert hear(wire) == [1] and wire.wanted() == []
    ranks.settle()
    assert not wakes(wire) and [letter.state for letter in sent] == ["moving", "posted"]
    ranks.connect()
    for k in range(2):
        ranks.trials[1].receive(rooms[k].view, 0, k)
    ranks.settle()
    assert [room.got(1) for room in rooms] == [body(0, 1), body(1, 1)]
    assert (wire.connected(), ranks.wires[2].connected()) == ([1], [])
    assert "rank 1 on host1 is connected: tcp" in wire.describe(1)


def test_an_attempt_that_failed_is_made_again(net):
    ranks = net()
    wire = ranks.wires[0]
    ranks.trials[0].send(body(1, 1), 1, 0)
    for _ in range(20):
        assert hear(wire) == [1]
        wire.prepare(1, ranks.rails(0, 1)[0])
        wire.retry(1)
        ranks.settle()
    assert hear(wire) == [1]
    room = Room(1)
    ranks.connect()
    ranks.trials[1].receive(room.view, 0, 0)
    ranks.settle()
    assert room.got(1) == body(1, 1)


def test_half_connected_peers_receive_and_do_not_send(net):
    ranks = net()
    rails = ranks.rails(0, 1)
    inboxes = [ranks.wires[rank].prepare(1 - rank, rails[rank]) for rank in range(2)]
    ranks.join(rails)
    ranks.wires[0].attach(1, inboxes[1])
    early = ranks.trials[0].send(body(1, 1), 1, 0)
    ranks.settle()
    assert early.state == "moving"
    ranks.wires[1].attach(0, inboxes[0])
    ranks.wires[1].go(0)
    room = Room(5)
    sent, received = ranks.trials[1].send(body(2, 5), 0, 0), ranks.trials[0].receive(room.view, 1, 0)
    ranks.settle()
    assert (early.state, sent.state, received.state) == ("moving", "complete", "complete")
    ranks.wires[0].go(1)
    ranks.settle()
    assert early.state == "complete"


def test_a_peer_that_cannot_be_reached(net):
    ranks = net(3)
    trial, wire = ranks.trials[0], ranks.wires[0]
    room = Room(1)
    letters = [trial.send(body(1, 1), 1, 0), trial.receive(room.view, 1, 0)]
    ranks.settle()
    wire.refuse(1, "10.0.0.1 port 5: no route to host")
    ranks.settle()
    letters += [trial.send(body(1, 1), 1, 0)]
    assert [letter.fault for letter in letters] == [(ENETWORK, 0)] * 3
    assert (trial.status(1), trial.status(2)) == (ENETWORK, 0)
    assert wire.describe(1) == "rank 1 on host1 cannot be reached: 10.0.0.1 port 5: no route to host"
    with pytest.raises(ValueError, match="cannot be reached"):
        wire.prepare(1, ranks.rails(0, 1)[0])


@pytest.mark.parametrize("polled", [False, True])
def test_what_came_before_the_end_is_received(net, polled):
    ranks = net()
    ranks.connect()
    data, rooms = [body(k, 9) for k in range(3)], [Room(9) for _ in range(4)]
    for k in range(3):
        ranks.trials[1].send(data[k], 0, k)
    if polled:
        ranks.settle()
    ranks.pull(0)
    ranks.wires[0].lost(1, "its process has ended")
    received = [ranks.trials[0].receive(rooms[k].view, 1, k) for k in (2, 0, 1, 3)]
    ranks.settle()
    assert [room.got(9) for room in rooms[:3]] == data
    assert [letter.state for letter in received] == ["complete"] * 3 + ["failed"]
    assert received[3].fault == (EPEER, 0) and ranks.trials[0].status(1) == EPEER
    assert ranks.wires[0].describe(1).startswith("the connection to rank 1 on host1 was lost: its process has ended")
    assert ranks.wires[0].connected() == []


@pytest.mark.parametrize("broken", [0, 1])
@pytest.mark.parametrize("nbytes", [1, EAGER + 1, 100003])
def test_a_rail_breaks_and_the_other_goes_on(net, nbytes, broken):
    ranks = net()
    ranks.connect(nrails=2)
    data, rooms = [body(k, nbytes) for k in range(6)], [Room(nbytes) for _ in range(6)]
    for k in range(3):
        ranks.trials[0].send(data[k], 1, k)
    ranks.trials[0].poll()
    ranks.trials[1].receive(rooms[0].view, 0, 0)
    ranks.trials[1].poll()
    ranks.pull(broken)
    for k in range(3, 6):
        ranks.trials[0].send(data[k], 1, k)
    ranks.settle()
    for rank, wire in enumerate(ranks.wires):
        assert wakes(wire)
        ((peer, index, text),) = wire.failures()
        assert (peer, index) == (1 - rank, broken) and "closed the connection" in text
        assert wire.failures() == []
    ranks.repair(broken)
    for k in range(1, 6):
        ranks.trials[1].receive(rooms[k].view, 0, k)
    ranks.settle()
    assert [room.got(nbytes) for room in rooms] == data
    assert ranks.trials[0].counts == ranks.trials[1].counts == (0, 0, 0, 0)


def test_no_rail_is_left(net):
    ranks = net()
    ranks.connect(nrails=2)
    room = Room(5)
    received = ranks.trials[0].receive(room.view, 1, 0)
    for index in (1, 0):
        ranks.pull(index)
        ranks.settle()
        assert [failure[:2] for failure in ranks.wires[0].failures()] == [(1, index)]
        ranks.repair(index)
        ranks.settle()
        assert received.state == ("posted" if index else "failed")
    assert received.fault == (ENETWORK, 0)
    text = ranks.wires[0].describe(1)
    assert text.startswith("the connection to rank 1 on host1 was lost: ")
    assert text.count("the peer closed the connection") == 2


def test_the_peer_says_why_it_has_closed_the_last_rail(net):
    ranks = net()
    ranks.connect()
    got = ranks.wires[1].close_rail(0, 0)
    ranks.wires[0].close_rail(1, 0)
    ranks.wires[0].resume(1, 0, got, "rank 1 closed it: IBV_WC_RETRY_EXC_ERR")
    text = ranks.wires[0].describe(1)
    assert text == "the connection to rank 1 on host1 was lost: rank 1 closed it: IBV_WC_RETRY_EXC_ERR"


def test_a_rail_can_be_closed_that_has_not_failed(net):
    ranks = net()
    ranks.connect(nrails=2)
    ranks.repair(0)
    data, room = body(1, 5000), Room(5000)
    ranks.trials[0].send(data, 1, 0)
    ranks.trials[1].receive(room.view, 0, 0)
    ranks.settle()
    assert room.got(5000) == data
    assert ranks.wires[0].counters()[1]["rails"][0] == (0, 0)


def test_counters(net):
    ranks = net()
    assert ranks.wires[0].counters() == {}
    ranks.connect()
    rooms = [Room(EAGER), Room(EAGER + 1)]
    for k, nbytes in enumerate((EAGER, EAGER + 1)):
        ranks.trials[0].send(body(k, nbytes), 1, k)
        ranks.trials[1].receive(rooms[k].view, 0, k)
    ranks.settle()
    mine, theirs = ranks.wires[0].counters()[1], ranks.wires[1].counters()[0]
    assert (mine["eager"], mine["rts"], theirs["cts"]) == (1, 1, 1)
    assert mine["direct_out"] + mine["staged_out"] == theirs["direct_in"] + theirs["landed_in"] == EAGER + 1
    assert sum(writes for writes, _ in mine["rails"]) == 3


def test_flush_waits_for_the_peer(net):
    ranks = net()
    assert ranks.wires[0].flush(0)
    ranks.connect()
    ranks.trials[0].send(body(1, 1), 1, 0)
    assert not ranks.wires[0].flush(0.05)
    assert together(lambda: ranks.wires[0].flush(30), lambda: ranks.wires[1].flush(1) or ranks.settle())[0]


def test_small_messages_that_the_socket_does_not_take(net):
    ranks = net(cells=1024, cell_bytes=65536)
    ranks.connect()
    trial = ranks.trials[0]
    sent = []
    while not trial.is_busy():
        sent.append(trial.send(body(len(sent), 60000), 1, 0))
        assert sent[-1].state == "complete" and len(sent) < 250
    ranks.settle()
    assert not trial.is_busy()
    for k in range(len(sent)):
        room = Room(60000)
        ranks.trials[1].receive(room.view, 0, 0)
        ranks.settle()
        assert room.got(60000) == body(k, 60000)


def test_nothing_is_written_after_a_communicator_breaks(net):
    ranks = net()
    ranks.connect()
    nbytes = 1 << 20
    room = Room(nbytes)
    ranks.trials[0].send(body(1, nbytes), 1, 0)
    received = ranks.trials[1].receive(room.view, 0, 0)
    while ranks.wires[1].counters()[0]["direct_in"] == 0:
        ranks.trials[0].poll(), ranks.trials[1].poll()
    ranks.trials[1].quiet()
    before = bytes(room.view)
    assert received.state == "moving"
    for _ in range(1000):
        ranks.trials[0].poll(), ranks.trials[1].poll()
    assert bytes(room.view) == before
    ranks.wires[1].lost(0, "it has ended")
    assert ranks.wires[1].flush(0)


# Threads: who sleeps is woken.


def test_ping_pong_with_sleep_loses_no_wake_up(net):
    ranks = net()
    ranks.connect()
    assert together(
        lambda: ranks.trials[0].exchange(1, ROUNDS, True, LONG_NS),
        lambda: ranks.trials[1].exchange(0, ROUNDS, False, LONG_NS),
    ) == [ROUNDS, ROUNDS]


def test_ping_pong_of_four_ranks_over_one_port_each(net):
    ranks = net(4)
    for one in range(4):
        for other in range(one):
            ranks.connect(one, other)
    rounds = ROUNDS // 4
    calls = [(0, 1, True), (1, 0, False), (2, 3, True), (3, 2, False)]
    played = together(
        *(lambda call=call: ranks.trials[call[0]].exchange(call[1], rounds, call[2], LONG_NS) for call in calls)
    )
    assert played == [rounds] * 4


def later(action):
    """The action, once the other thread sleeps; if it does not yet, the test shows less, and does not fail."""

    def act():
        time.sleep(0.1)
        action()
        return True

    return act


@pytest.mark.parametrize("action", ["connect", "refuse", "lost", "retry"])
def test_a_sleeper_is_woken_by_what_becomes_of_its_peer(net, action):
    ranks = net()
    wire = ranks.wires[0]
    letter = ranks.trials[0].send(body(1, 1), 1, 0)

    def retry():
        wire.retry(1)
        assert select.select([wire.wake_fd], [], [], 20)[0], "nobody asks again"
        ranks.connect()

    if action == "retry":
        assert hear(wire) == [1]
    act = {
        "connect": ranks.connect,
        "refuse": lambda: wire.refuse(1, "no"),
        "lost": lambda: wire.lost(1, "it has ended"),
        "retry": retry,
    }[action]
    assert together(lambda: ranks.trials[0].wait(letter, LONG_NS), later(act)) == [True, True]
    assert letter.fault[0] == {"refuse": ENETWORK, "lost": EPEER}.get(action, 0)


def test_a_sleeper_is_woken_when_a_rail_is_repaired(net):
    ranks = net()
    ranks.connect(nrails=2)
    ranks.pull(0)
    ranks.settle()
    letter = ranks.trials[0].send(body(1, 1), 1, 0)
    assert letter.state in ("posted", "moving")
    assert together(lambda: ranks.trials[0].wait(letter, LONG_NS), later(lambda: ranks.repair(0))) == [True, True]
    assert letter.state == "complete"
