"""Ranks that connect over TCP: who begins, what they exchange, what they hear of each other, and how it ends."""

import time

import pytest

from hetccl.net import connector, pair
from net_fakes import Net, descriptors, until


@pytest.fixture(autouse=True)
def nothing_left():
    """Every test gives all descriptors and threads back."""
    before = descriptors()
    yield
    until(lambda: len(descriptors()) <= len(before))
    assert connector._process.sockets == set()


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
