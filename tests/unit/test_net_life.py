"""Connected ranks: who leaves, who dies, what breaks, what they ask each other, and rails that fail."""

import os
import socket
import threading
import time

import pytest
from net_fakes import WAIT_S, Net, descriptors, nothing_left, until  # noqa: F401

from hetccl._calls import CALLS
from hetccl.net import connector, control, pair

pytestmark = pytest.mark.usefixtures("nothing_left")


def connected(net, *pairs):
    for one, other in pairs:
        net.connect(one, other)
    return net


def test_close_says_good_bye():
    with Net(3) as net:
        connected(net, (0, 1), (0, 2))
        assert net.groups[0].close(2) is True
        assert net.wires[0].events("flush") == [(2,)]
        for rank in (1, 2):
            assert net.wires[rank].until("lost", 0)[2] == "rank 0 on host host0 has freed the communicator"
            assert net.boards[rank].gone == {0: "left"}
        assert net.boards[0].gone == {}
        assert net.wires[0].events("lost") == []
        assert net.groups[0].close(2) is True
        assert len(net.wires[0].events("flush")) == 1


def test_close_says_that_something_has_not_arrived():
    with Net(2) as net:
        connected(net, (0, 1))
        net.wires[0].arrived = False
        assert net.groups[0].close(0.1) is False


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_both_close(order):
    with Net(2) as net:
        connected(net, (0, 1))
        threads = [threading.Thread(target=net.groups[rank].close, args=(5,)) for rank in order]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()


def test_a_freed_communicator_is_not_connected_any_more():
    """The rank that freed it proves so to the one that comes late, which does not wait for its time-out."""
    with Net(2, timeout=1000) as net:
        net.groups[1].close(1)
        net.wires[0].want(1)
        assert "has freed the communicator" in net.wires[0].until("lost", 1)[2]
        assert net.boards[0].gone == {1: "left"}


def test_leave_tells_all_at_once():
    with Net(3) as net:
        connected(net, (0, 1), (2, 0))
        net.groups[0].leave()
        for rank in (1, 2):
            net.wires[rank].until("lost", 0)
            assert net.boards[rank].gone == {0: "left"}


def test_close_ends_handshakes_under_way(monkeypatch):
    """A peer that never answers: close() is not held up until the handshake's time is over."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        with Net(2, here=[0], addresses=[(None, "127.0.0.1", deaf.getsockname()[1])], timeout=1000) as net:
            net.wires[0].want(1)
            until(lambda: net.groups[0].resources()["threads"] == 1)
            began = time.monotonic()
            net.groups[0].close(1)
            assert net.groups[0].resources()["threads"] == 0
            assert time.monotonic() - began < pair.PROOF_SECONDS / 2


def test_hosts_that_vanish_are_noticed():
    """By the kernel: a connection at rest by keepalive, one that sends by its time-out, both after 20 s."""
    with Net(2) as net:
        connected(net, (0, 1))
        for rank in (0, 1):
            sock = net.groups[rank].pairs[1 - rank].connection.sock
            names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            idle, between, count, sending_ms = (sock.getsockopt(socket.IPPROTO_TCP, name) for name in names)
            assert idle + between * count == 20
            assert sending_ms == 20_000


def test_eof_is_death():
    with Net(2) as net:
        connected(net, (0, 1))
        net.groups[0].pairs[1].connection.sock.shutdown(socket.SHUT_RDWR)
        for rank in (0, 1):
            text = net.wires[rank].until("lost", 1 - rank)[2]
            assert f"the process of rank {1 - rank} on host host{1 - rank} has ended" in text
            until(lambda rank=rank: net.boards[rank].gone == {1 - rank: "died"})


def test_a_lost_peer_does_not_come_back():
    with Net(2) as net:
        connected(net, (0, 1))
        net.groups[0].pairs[1].connection.sock.shutdown(socket.SHUT_RDWR)
        net.wires[0].until("lost", 1)
        net.wires[1].until("lost", 0)
        net.wires[0].want(1)
        time.sleep(0.1)
        assert len(net.wires[0].events("prepare")) == 1


def test_faults_reach_all_by_way_of_others():
    """0 - 1 - 2 - 3 in a row: each tells the next, once; a rank that connects later hears of it, too."""
    with Net(5) as net:
        connected(net, (0, 1), (2, 1), (2, 3))
        net.boards[0].word = (3, 0, 2)
        net.wires[0].wake()
        for rank in (1, 2, 3):
            net.wires[rank].until("break_off", 3, 0, 2)
        net.connect(4, 0)
        net.wires[4].until("break_off", 3, 0, 2)
        time.sleep(0.1)
        assert [len(net.wires[rank].events("break_off")) for rank in range(5)] == [0, 1, 1, 1, 1]


def test_a_fault_of_shared_memory_is_found_without_being_woken(monkeypatch):
    monkeypatch.setattr(connector, "LOOK_SECONDS", 0.05)
    with Net(2) as net:
        connected(net, (0, 1))
        net.boards[0].word = (1, 0, 0)
        net.wires[1].until("break_off", 1, 0, 0)


def test_the_first_fault_stays():
    with Net(2) as net:
        connected(net, (0, 1))
        net.boards[1].word = (2, 1, 1)
        net.boards[0].word = (1, 0, 0)
        net.wires[0].wake()
        net.wires[1].wake()
        time.sleep(0.2)
        assert (net.boards[0].word, net.boards[1].word) == ((1, 0, 0), (2, 1, 1))


def test_who_has_entered_what():
    with Net(4) as net:
        connected(net, (0, 1), (2, 0))
        net.boards[1].position, net.boards[2].position = (7, 3), (1 << 40, 0)
        assert net.groups[0].entered([1, 2, 3], 10) == {1: (7, 3), 2: (1 << 40, 0)}
        assert net.groups[0].entered([2], 10) == {2: (1 << 40, 0)}
        assert net.groups[0].entered([], 10) == {}


def test_a_peer_that_does_not_answer_is_left_out(monkeypatch):
    asked = threading.Event()
    with Net(3) as net:
        connected(net, (0, 1), (0, 2))
        heard = pair.Pair._heard
        monkeypatch.setattr(
            pair.Pair, "_heard", lambda of, kind, body: asked.set() if of.group.rank == 1 else heard(of, kind, body)
        )
        assert net.groups[0].entered([1, 2], 0.3) == {2: (0, 0)}
        assert asked.is_set()


def test_a_peer_that_dies_is_not_waited_for():
    with Net(2) as net:
        connected(net, (0, 1))
        net.boards[1].entered = lambda: net.groups[1].pairs[0].connection.sock.shutdown(socket.SHUT_RDWR) or (0, 0)
        began = time.monotonic()
        assert net.groups[0].entered([1], 100) == {}
        assert time.monotonic() - began < 50


@pytest.mark.parametrize("finders", [[0], [1], [0, 1]])
def test_a_failed_rail_is_closed_on_both_sides(finders):
    """Each side closes it once, tells what has arrived, and resumes with what the other has told."""
    with Net(2, rails=2) as net:
        connected(net, (0, 1))
        for rank in finders:
            net.wires[rank].fail(1 - rank, 1, "retry counter exceeded")
        for rank in (0, 1):
            peer = 1 - rank
            assert net.wires[rank].until("resume", peer, 1)[3] == {"cells": [1, peer], "of": rank}
            assert net.wires[rank].events("close_rail") == [(peer, 1)]
        time.sleep(2 * pair.DEATH_SECONDS)
        assert [len(net.wires[rank].events("resume")) for rank in (0, 1)] == [1, 1]
        assert net.wires[0].events("lost") == []


def test_a_rail_that_fails_because_the_peer_dies_is_not_closed(monkeypatch):
    """The sockets of a dying process close one after another: its death is what is reported."""
    monkeypatch.setattr(pair, "DEATH_SECONDS", 0.3)
    with Net(2) as net:
        connected(net, (0, 1))
        net.wires[0].fail(1, 0, "the connection was closed")
        until(lambda: net.wires[0]._failures == [])
        net.groups[1].pairs[0].connection.sock.shutdown(socket.SHUT_RDWR)
        net.wires[0].until("lost", 1)
        time.sleep(0.5)
        assert net.wires[0].events("close_rail") == []


def test_a_state_that_the_wire_refuses_ends_the_connection(caplog):
    with Net(2, rails=2) as net:
        connected(net, (0, 1))
        net.groups[1].pairs[0].say(control.RAIL_DOWN, {"rail": 0, "state": {"bad": 1}, "text": ""})
        assert "broke the protocol" in net.wires[0].until("lost", 1)[2]
        assert net.boards[0].gone == {1: "died"}


@pytest.mark.parametrize(
    "kind, body",
    [
        (control.BYE, {"more": 1}),
        (control.FAULT, {"reason": 0, "reporter": 0, "culprit": 0}),
        (control.FAULT, {"reason": 6, "reporter": 1, "culprit": 0}),
        (control.FAULT, {"reason": 1, "reporter": 2, "culprit": 0}),
        (control.FAULT, {"reason": 1, "reporter": 0, "culprit": -1}),
        (control.FAULT, {"reason": 1, "reporter": 0, "culprit": True}),
        (control.ASK_ENTERED, {"question": "0"}),
        (control.ENTERED, {"question": 0, "entered": 1 << 64, "call": 0}),
        (control.ENTERED, {"question": 0, "entered": 1, "call": len(CALLS)}),
        (control.RAIL_DOWN, {"rail": 1, "state": {}, "text": ""}),
        (control.RAIL_DOWN, {"rail": 0, "state": [], "text": ""}),
        (control.RAIL_DOWN, {"rail": 0, "state": {}, "text": "two\nlines"}),
        (control.READY, {}),
        (control.RECORD, {}),
        (99, {}),
    ],
)
def test_a_message_that_breaks_the_protocol(kind, body, caplog):
    """The connection is given up, and the log says why; nothing of it is believed."""
    with Net(2) as net:
        connected(net, (0, 1))
        net.groups[1].pairs[0].say(kind, body)
        assert "broke the protocol" in net.wires[0].until("lost", 1)[2]
        assert net.boards[0].word is None
        assert net.wires[0].events("resume") == []
        assert "given up" in caplog.text


@pytest.mark.parametrize("when", ["soon", "at", "watched"])
def test_a_fault_on_the_thread_is_not_the_others_end(when, caplog):
    def fault(*events):
        if when == "watched":
            loop.forget(fd)
        raise KeyError("a fault")

    with Net(3) as net:
        loop = net.groups[0].loop
        if when == "watched":
            fd = os.eventfd(1)
            loop.soon(lambda: loop.watch(fd, fault))
        else:
            getattr(loop, when)(*([0.01] if when == "at" else []), fault)
        until(lambda: "a fault" in caplog.text)
        connected(net, (0, 1), (0, 2))
        if when == "watched":
            os.close(fd)


@pytest.mark.parametrize("where", ["_closing", "group"])
def test_a_finalizer_under_a_lock(where):
    """Of the loop or of the group, on a thread of the connector's: it waits for neither."""
    closed = threading.Event()
    with Net(2) as net:
        connected(net, (0, 1))
        group = net.groups[0]

        def collect():
            with group.loop._closing if where == "_closing" else group.lock:
                group.drop(lambda: (group.close(0), closed.set()))

        collector = threading.Thread(target=collect, daemon=True)
        collector.start()
        collector.join(WAIT_S)
        assert not collector.is_alive()
        assert closed.wait(WAIT_S)
        assert net.boards[1].gone == {0: "left"}


@pytest.mark.parametrize("deed", ["connect", "drop"])
def test_too_many_threads_for_a_while(deed, monkeypatch):
    refused = []
    start = threading.Thread.start

    def sometimes(thread):
        if thread.name == "hetccl-handshake" and len(refused) < 3:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(connector, "LOOK_SECONDS", 0.05)
    with Net(2) as net:
        if deed == "drop":
            connected(net, (0, 1))
        monkeypatch.setattr(threading.Thread, "start", sometimes)
        if deed == "drop":
            closed = threading.Event()
            net.groups[0].drop(closed.set)
            assert closed.wait(WAIT_S)
        else:
            net.connect(0, 1)
        assert len(refused) == 3


def test_a_group_dropped_on_the_connectors_thread_is_closed_on_another():
    on, done = [], threading.Event()
    with Net(2) as net:
        connected(net, (0, 1))
        group = net.groups[0]
        group.loop.soon(lambda: group.drop(lambda: (on.append(threading.current_thread()), done.set())))
        assert done.wait(WAIT_S)
        assert on[0] is not group.loop.thread


def test_after_the_end_of_the_program_close_takes_no_lock():
    """A daemon thread that held it when the interpreter stopped it will never give it back."""
    held, let_go = threading.Event(), threading.Event()

    def hold():
        with net.groups[0].lock:
            held.set()
            let_go.wait(WAIT_S)

    with Net(2) as net:
        connected(net, (0, 1))
        connector._leave_all()
        holder = threading.Thread(target=hold)
        holder.start()
        assert held.wait(WAIT_S)
        closer = threading.Thread(target=lambda: [net.groups[rank].close(1) for rank in (0, 1)], daemon=True)
        closer.start()
        closer.join(WAIT_S / 2)
        stuck = closer.is_alive()
        let_go.set()
        holder.join()
        for rank in (0, 1):
            net.groups[rank].pairs[1 - rank].close()
        assert not stuck


def test_two_hundred_communicators_leave_nothing():
    before = len(descriptors())
    for _ in range(200):
        with Net(2) as net:
            connected(net, (0, 1))
    until(lambda: len(descriptors()) <= before)


def test_a_communicator_that_fails_before_its_group_leaves_no_listener():
    before = len(descriptors())
    connector.listen(("127.0.0.1",))
    connector.listen(("127.0.0.1",))
    connector.forgo()
    assert len(descriptors()) == before + 1
    connector.forgo()
    assert len(descriptors()) == before


def test_communicators_share_one_listener():
    with Net(2) as one, Net(2) as two:
        assert one.card == two.card
        connected(one, (0, 1))
        connected(two, (1, 0))
        one.groups[0].close(1)
        one.groups[1].close(1)
        assert two.groups[0].resources()["connected"] == [1]
        assert two.groups[1].entered([0], 10) == {0: (0, 0)}
