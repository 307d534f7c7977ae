"""Plain Python in the place of the wire, its rails and the board, for tests of hetccl.net."""

import os
import socket
import threading
import time
from typing import NamedTuple

import pytest

from hetccl.net import connector

WAIT_S = 60  # far beyond what anything here takes


class Path(NamedTuple):
    """What connector.Group needs of net.paths.Path, with ports for rails."""

    kind: str
    rails: list
    addresses: list


class Rail:
    """Says who it is; with sockets, tells the other end through each which rail and socket it is."""

    def __init__(self, port, peer, index):
        self.port, self.peer, self.index = port, peer, index
        self.remote = None
        self.sockets = []
        self.closed = False

    def local(self):
        return {"qpn": 1000 * self.port.rank + 10 * self.peer + self.index, **self.port.says}

    def connect(self, remote, sockets=()):
        self.sockets = [socket.socket(fileno=fd) for fd in sockets]
        if self.port.fault:
            raise self.port.fault
        self.remote = remote
        for number, sock in enumerate(self.sockets):
            sock.sendall(bytes([self.index, number]))

    def ends(self):
        """[(rail, socket)] that the other end says it is, of each socket."""
        for sock in self.sockets:
            sock.settimeout(WAIT_S)
        return [tuple(sock.recv(2)) for sock in self.sockets]

    def close(self):
        for sock in self.sockets:
            sock.close()
        self.closed = True


class Port:
    """Makes rails; fault: raised when they connect; says: more of what they say of themselves."""

    def __init__(self, rank, fault=None, says=None):
        self.rank, self.fault, self.says = rank, fault, says or {}

    def rail(self, peer, index):
        return Rail(self, peer, index)


class Wire:
    """Writes down what is asked of it: `log` of (method, *arguments)."""

    def __init__(self, rank):
        self.rank = rank
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.log = []
        self.changed = threading.Condition()
        self.rails = {}
        self.arrived = True
        self._wanted, self._failures = [], []

    def note(self, *event):
        with self.changed:
            self.log.append(event)
            self.changed.notify_all()

    def until(self, *event, seconds=WAIT_S):
        """Wait for an event that begins so. Returns it."""

        def found():
            return next((e for e in self.log if e[: len(event)] == event), None)

        with self.changed:
            assert self.changed.wait_for(found, seconds), f"rank {self.rank}: no {event} in {self.log}"
            return found()

    def events(self, name):
        with self.changed:
            return [event[1:] for event in self.log if event[0] == name]

    # For the test.

    def want(self, *peers):
        self._wanted += peers
        os.eventfd_write(self.wake_fd, 1)

    def fail(self, peer, index, text):
        self._failures.append((peer, index, text))
        os.eventfd_write(self.wake_fd, 1)

    def wake(self):
        os.eventfd_write(self.wake_fd, 1)

    # For the connector.

    def wanted(self):
        wanted, self._wanted = self._wanted, []
        return wanted

    def failures(self):
        failures, self._failures = self._failures, []
        return failures

    def prepare(self, peer, rails):
        self.rails[peer] = rails
        self.note("prepare", peer)
        return {"address": 4096 * (1 + self.rank), "cells": 16, "cell_bytes": 8192, "rkeys": [self.rank] * len(rails)}

    def attach(self, peer, inbox):
        self.note("attach", peer, inbox)

    def go(self, peer):
        self.note("go", peer)

    def retry(self, peer):
        for rail in self.rails.pop(peer, ()):
            rail.close()
        self.note("retry", peer)

    def refuse(self, peer, text):
        self.note("refuse", peer, text)

    def lost(self, peer, text):
        self.note("lost", peer, text)

    def close_rail(self, peer, index):
        self.note("close_rail", peer, index)
        return {"cells": [index, self.rank], "of": peer}

    def resume(self, peer, index, state, text):
        if "bad" in state:
            raise ValueError("no such state")
        self.note("resume", peer, index, state, text)

    def flush(self, seconds):
        self.note("flush", seconds)
        return self.arrived

    def close(self):
        for rails in self.rails.values():
            for rail in rails:
                rail.close()
        os.close(self.wake_fd)


class Board:
    """Who is there, and the fault."""

    def __init__(self, rank, nranks):
        self.rank, self.nranks = rank, nranks
        self.gone = {}
        self.word = None
        self.position = (0, 0)
        self.wire = None

    def left(self, peer):
        self.gone[peer] = "left"

    def died(self, peer):
        self.gone[peer] = "died"

    def fault(self):
        return self.word

    def break_off(self, reason, reporter, culprit):
        self.word = (reason, reporter, culprit)
        self.wire.note("break_off", reason, reporter, culprit)

    def entered(self):
        return self.position


class Net:
    """Ranks of one communicator in this process, each with a fake wire and board: a context manager.

    nranks  : how many ranks the communicator has
    here    : those that are made at once
    listens : addresses     dials : address at which the ranks find each other
    options : of every rank, see add()
    """

    def __init__(self, nranks, here=None, listens=("127.0.0.1",), dials="127.0.0.1", **options):
        self.nranks = nranks
        self.dials = dials
        self.secret = os.urandom(16)
        self.wires, self.boards, self.groups = {}, {}, {}
        self.card = connector.listen(listens)
        for rank in range(nranks) if here is None else here:
            self.add(rank, **options)

    def add(self, rank, secret=None, kind="tcp", rails=1, addresses=None, timeout=WAIT_S, nranks=None, **more):
        """Make the Group of one rank. addresses : of all its peers; more : for Port and Group."""
        nranks = nranks or self.nranks
        said = {name: more.pop(name) for name in ("fault", "says") if name in more}
        port = Port(rank, **said)
        where = [(None, self.dials, self.card["port"])] if addresses is None else addresses
        paths = {peer: Path(kind, [port] * rails, where) for peer in range(nranks) if peer != rank}
        wire, board = Wire(rank), Board(rank, nranks)
        board.wire = wire
        hosts = [f"host{peer}" for peer in range(nranks)]
        self.wires[rank], self.boards[rank] = wire, board
        group = connector.Group(secret or self.secret, rank, hosts, wire, board, paths, timeout, **more)
        self.groups[rank] = group
        return group

    def connect(self, begins, other):
        """Have one rank connect another."""
        self.wires[begins].want(other)
        self.up(begins, other)

    def up(self, one, other):
        """Wait until both know that they are connected."""
        for rank, peer in ((one, other), (other, one)):
            self.wires[rank].until("go", peer)
            until(lambda rank=rank, peer=peer: peer in self.groups[rank].resources()["connected"])

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        for group in self.groups.values():
            group.leave()
        for group in self.groups.values():
            group.close(1)
        for wire in self.wires.values():
            wire.close()


def until(holds, seconds=WAIT_S):
    """Wait until it holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came to hold"
        time.sleep(0.002)


def descriptors():
    """What this process has open: {descriptor: what it is}."""
    found = {}
    for entry in os.listdir("/proc/self/fd"):
        try:
            found[entry] = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:  # of the listing itself
            continue
    return found


def mutated(rng, data):
    """The data with a few bits, bytes or stretches changed, lost or added; never the data itself."""
    while True:
        result = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 5))):
            at = rng.randrange(len(result)) if result else 0
            change = rng.randrange(5)
            if change == 0 and result:
                result[at] ^= 1 << rng.randrange(8)
            elif change == 1 and result:
                result[at] = rng.randrange(256)
            elif change == 2:
                del result[at : at + rng.choice((1, 4, 1000))]
            elif change == 3:
                result[at:at] = rng.randbytes(rng.choice((1, 4, 64)))
            else:
                result[at : at + 8] = rng.choice((bytes(8), b"\xff" * 8))
        if not result.startswith(data):
            return bytes(result)


@pytest.fixture
def nothing_left():
    """The test gives all descriptors and threads back."""
    connector._process = None  # what it remembers of communicators and warnings is of another test
    before = descriptors(), threading.active_count()
    yield
    until(lambda: len(descriptors()) <= len(before[0]) and threading.active_count() <= before[1])
    assert connector._process is None or connector._process.sockets == set()
