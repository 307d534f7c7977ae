"""Ranks that connect over TCP: who begins, what they exchange, what they hear of each other, and how it ends."""

import random
import socket
import threading
import time

import pytest
from net_fakes import WAIT_S, Net, Wire, nothing_left, until  # noqa: F401

from hetccl.errors import LibraryError
from hetccl.net import connector, pair, process

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize("begins, other", [(0, 1), (1, 0)])
@pytest.mark.parametrize("rails, connections", [(1, 1), (1, 2), (3, 2)])
def test_two_ranks_connect(begins, other, rails, connections):
    with Net(2, rails=rails, connections=connections) as net:
        net.connect(begins, other)
        for rank in (0, 1):
            wire = net.wires[rank]
            assert [event[0] for event in wire.log] == ["prepare", "attach", "go"]
            inbox = {"address": 4096 * (2 - rank), "cells": 16, "cell_bytes": 8192, "rkeys": [1 - rank] * rails}
            assert wire.events("attach") == [(1 - rank, inbox)]
            for index, rail in enumerate(wire.rails[1 - rank]):
                assert rail.remote == {"qpn": 1000 * (1 - rank) + 10 * rank + index}
                assert rail.ends() == [(index, number) for number in range(connections)]


def test_verbs_needs_no_data_connection():
    with Net(2, kind="verbs", rails=2) as net:
        net.connect(0, 1)
        assert [rail.sockets for rail in net.wires[0].rails[1]] == [[], []]


def test_unlike_numbers_of_connections_take_the_least():
    with Net(2, here=[0], connections=5) as net:
        connector.listen(["127.0.0.1"])
        net.add(1, connections=3)
        net.connect(1, 0)
        assert len(net.wires[0].rails[1][0].ends()) == len(net.wires[1].rails[0][0].ends()) == 3


def test_what_is_not_used_is_not_connected():
    with Net(3) as net:
        net.connect(0, 2)
        assert [net.groups[rank].resources()["connected"] for rank in range(3)] == [[2], [], [0]]
        assert net.wires[1].log == []


class Gates:
    """Stops chosen threads before they agree on a connection: keys are (rank, whether it has begun it)."""

    def __init__(self, monkeypatch, *shut):
        self.gates = {key: threading.Event() for key in shut}
        self.waiting = set()
        meet = pair.meet

        def stopped(of, stream, session, address):
            key = (of.group.rank, address is not None)
            if key in self.gates:
                self.waiting.add(key)
                assert self.gates[key].wait(WAIT_S)
            return meet(of, stream, session, address)

        monkeypatch.setattr(pair, "meet", stopped)

    def open(self, key):
        """Let them pass, once one has come."""
        until(lambda: key in self.waiting)
        self.gates[key].set()


def test_lower_ranks_connection_stands(monkeypatch):
    """Both begin; the higher rank's connection comes to the lower rank after its own is up."""
    gates = Gates(monkeypatch, (0, False))
    with Net(2) as net:
        net.wires[1].want(0)
        until(lambda: gates.waiting)
        net.connect(0, 1)
        gates.open((0, False))
        time.sleep(0.2)
        assert [len(net.wires[rank].events("prepare")) for rank in (0, 1)] == [1, 1]
        assert net.groups[0].resources()["connected"] == [1]


def test_higher_ranks_connection_stands_if_it_is_first(monkeypatch):
    gates = Gates(monkeypatch, (0, True))
    with Net(2) as net:
        net.wires[0].want(1)
        until(lambda: gates.waiting)
        net.connect(1, 0)
        gates.open((0, True))
        time.sleep(0.2)
        assert [len(net.wires[rank].events("prepare")) for rank in (0, 1)] == [1, 1]
        assert net.groups[1].resources()["connected"] == [0]


def test_a_crossed_attempt_waits_for_the_other(monkeypatch):
    """The lower rank's connection stands and is slow; meanwhile the higher rank is turned away, more than once."""
    slow = threading.Event()
    prepare = Wire.prepare

    def late(wire, peer, rails):
        assert slow.wait(WAIT_S)
        return prepare(wire, peer, rails)

    monkeypatch.setattr(Wire, "prepare", late)
    refused = []
    claim = pair.Pair.claim

    def counted(of, begun, session):
        answer = claim(of, begun, session)
        refused.append((of.group.rank, begun, answer and answer[0]))
        return answer

    monkeypatch.setattr(pair.Pair, "claim", counted)
    with Net(2) as net:
        net.wires[0].want(1)
        until(lambda: (0, True, None) in refused)
        net.wires[1].want(0)
        until(lambda: refused.count((0, False, "crossed")) >= 2)
        slow.set()
        net.up(0, 1)


def test_a_connection_that_breaks_while_it_is_made_is_made_again(monkeypatch):
    attach = Wire.attach
    broken = []

    def breaks(wire, peer, inbox):
        attach(wire, peer, inbox)
        if not broken:
            broken.append(net.groups[wire.rank].pairs[peer].cancel())

    monkeypatch.setattr(Wire, "attach", breaks)
    with Net(2) as net:
        net.connect(0, 1)
        assert net.wires[0].events("retry") == [(1,)]
        assert net.wires[1].events("retry") == [(0,)]
        assert net.wires[0].events("refuse") == net.wires[1].events("refuse") == []


@pytest.mark.parametrize("seed", range(8))
def test_all_begin_at_once(seed):
    """Every pair has one connection in the end, however the attempts cross."""
    order = [(rank, peer) for rank in range(5) for peer in range(5) if peer != rank]
    random.Random(seed).shuffle(order)
    with Net(5) as net:
        for rank, peer in order:
            net.wires[rank].want(peer)
        for rank, peer in order:
            net.up(rank, peer)
            assert len(net.wires[rank].events("go")) == len(set(net.wires[rank].events("go")))


def test_threads_for_data_connections_are_never_all_taken(monkeypatch):
    """More peers than threads: those that are turned away come again."""
    monkeypatch.setattr(process, "MEETING", 2)
    monkeypatch.setattr(process, "ANSWERING", 3)
    with Net(13) as net:
        for rank in range(1, 13):
            net.wires[rank].want(0)
        for rank in range(1, 13):
            net.up(rank, 0)


def test_a_peer_that_is_late_is_waited_for():
    with Net(2, here=[0]) as net:
        connector.listen(["127.0.0.1"])
        net.wires[0].want(1)
        time.sleep(0.1)
        net.add(1)
        net.up(0, 1)


def test_a_peer_that_is_very_late_is_asked_again(monkeypatch):
    monkeypatch.setattr(process, "AHEAD_SECONDS", 0.05)
    with Net(2, here=[0]) as net:
        connector.listen(["127.0.0.1"])
        net.wires[0].want(1)
        time.sleep(0.5)
        net.add(1)
        net.up(0, 1)


def test_no_address_leads_there():
    """Tried until the time is over; the text has each address and its error."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
        addresses = [(None, "127.0.0.1", port), ("192.0.2.1", "127.0.0.1", port), (None, "::1", 1)]
        with Net(2, here=[0], addresses=addresses, timeout=0.5) as net:
            net.wires[0].want(1)
            _, peer, text = net.wires[0].until("refuse")
    assert peer == 1
    assert f"127.0.0.1 port {port}: Cannot assign requested address" in text
    assert "::1 port 1: Connection refused" in text
    assert "rank 1 on host host1" in text


def test_refused_connections_end_early(monkeypatch):
    monkeypatch.setattr(pair, "REFUSED_SECONDS", 0.2)
    with Net(2, here=[0], addresses=[(None, "127.0.0.1", 1)], timeout=1000) as net:
        net.wires[0].want(1)
        assert "127.0.0.1 port 1: Connection refused" in net.wires[0].until("refuse")[2]


def test_the_right_address_is_found():
    """An address of another listener, and one that refuses, come first."""
    with Net(2) as net:
        with socket.create_server(("127.0.0.1", 0)) as deaf:
            wrong = [(None, "127.0.0.1", 1), ("127.0.0.1", "127.0.0.1", net.card["port"])]
            for group in net.groups.values():
                for of in group.pairs.values():
                    of.path = of.path._replace(addresses=wrong)
            net.connect(1, 0)
            assert deaf.fileno() > 0


@pytest.mark.parametrize("begins", [0, 1])
@pytest.mark.parametrize("breaks", [0, 1])
@pytest.mark.parametrize(
    "fault",
    [
        OSError(12, "no memory"),
        MemoryError("memory for a rail"),
        ValueError("not a rail"),
        LibraryError("ibv_modify_qp failed"),
    ],
)
def test_a_rail_that_cannot_be_connected_ends_it_on_both_sides(begins, breaks, fault):
    with Net(2, here=[]) as net:
        connector.listen(["127.0.0.1"])
        for rank in (0, 1):
            net.add(rank, fault=fault if rank == breaks else None)
        net.wires[begins].want(1 - begins)
        for rank in (0, 1):
            text = net.wires[rank].until("refuse", 1 - rank)[2]
            assert (getattr(fault, "strerror", None) or str(fault)) in text
        assert net.wires[0].events("go") == net.wires[1].events("go") == []


def test_ranks_that_choose_differently_are_refused():
    with Net(2, here=[0], kind="verbs") as net:
        connector.listen(["127.0.0.1"])
        net.add(1, kind="tcp")
        net.wires[1].want(0)
        assert "chose differently" in net.wires[1].until("refuse", 0)[2]
        assert "chose differently" in net.wires[0].until("refuse", 1)[2]
