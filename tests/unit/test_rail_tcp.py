"""Rails over TCP: what is written arrives in its order and nowhere else, and what fails is said."""

import os
import select
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from rails import AGAIN, DEPTH, DONE, FAULT_SOCKET, LOST, PAIRS, End, connect, ends, settle, unix_pair

from hetccl._rail_trial import Trial
from hetccl._tcp import TcpPort

SIZES = [0, 1, 31, 4096, 100_001, 524_287, 524_288, (1 << 20) + 7, 4 << 20]
kinds = pytest.mark.parametrize("kind", PAIRS)


def body(seed, nbytes):
    """Bytes that differ by write and by index."""
    return np.random.default_rng(seed).bytes(nbytes)


@pytest.fixture
def pair():
    """Function: ends()'s arguments -> two ends, closed at the end."""
    made = []

    def make(kind="unix", nconnections=1):
        made.extend(ends(kind, nconnections))
        return made[-2:]

    yield make
    for end in made:
        end.close()


def write(end, data, target, *, skip=0, cut=0, **flags):
    """Write data, in pieces of `cut` and the other bytes, to a target's bytes from `skip` on."""
    view = memoryview(data)
    return end.trial.write([view[:cut], view[cut:]], target.address + skip, target.rkey, **flags)


@kinds
@pytest.mark.parametrize("nconnections", [1, 2, 4])
@pytest.mark.parametrize("nbytes", SIZES)
def test_a_write_arrives(pair, kind, nconnections, nbytes):
    a, b = pair(kind, nconnections)
    target, data = b.target(nbytes + 1), body(1, nbytes)
    assert write(a, data, target, cut=nbytes // 3, imm=0xFFFFFFFF) == DONE
    settle(a, b)
    assert target.got() == data + b"\x5a"
    assert b.trial.told() == [0xFFFFFFFF]
    assert a.trial.counts == (1, 1)
    assert (a.trial.state, b.trial.state) == ("up", "up")


@pytest.mark.parametrize("nconnections", [1, 2, 4, 16])
@pytest.mark.parametrize("lazy", [False, True])
def test_all_bytes_are_there_when_an_immediate_value_is_told(pair, nconnections, lazy):
    """Of the write that is told and of all before it, large and small, over all connections."""
    a, b = pair("IPv4", nconnections)
    random = np.random.default_rng(nconnections)
    sizes = [int(n) for n in random.choice([0, 1, 63, 5000, 131_072, 262_145, 600_001, 1_500_000], 60)]
    targets = [b.target(n + 1) for n in sizes]
    bodies = [body(k, n) for k, n in enumerate(sizes)]
    told = []

    def check():
        for k in b.trial.told()[len(told) :]:
            told.append(k)
            assert all(targets[i].got()[:-1] == bodies[i] for i in range(len(told)))

    for k, data in enumerate(bodies):
        while write(a, data, targets[k], imm=k, lazy=lazy) == AGAIN:
            a.poll(), b.poll()
            check()
        if k % 7 == 0:
            b.poll()
            check()
    for _ in range(100_000):
        a.poll(), b.poll()
        check()
        if len(told) == len(sizes):
            break
    assert told == list(range(len(sizes)))
    settle(a, b)
    assert a.trial.counts == (len(sizes), len(sizes))


def test_writes_without_an_immediate_value_are_told_by_the_next_one(pair):
    a, b = pair("IPv4", 3)
    target = b.target(900_000)
    data = body(1, 900_000)
    for begin in range(0, 900_000, 300_000):
        assert write(a, data[begin : begin + 300_000], target, skip=begin) == DONE
    assert a.trial.write([b"", b""], 0, 0, imm=5) == DONE
    settle(a, b)
    assert (b.trial.told(), target.got(), a.trial.counts) == ([5], data, (4, 4))


def test_both_directions_at_once(pair):
    """More in both sockets than they hold: neither side waits to send before it reads."""
    both = a, b = pair("IPv4", 2)
    nbytes, data = 4 << 20, [body(k, 4 << 20) for k in range(2)]
    targets = [end.target(nbytes) for end in both]
    for k in range(20):
        assert write(a, data[0], targets[1], imm=k) == write(b, data[1], targets[0], imm=k) == DONE
    settle(a, b)
    assert [target.got() for target in targets] == data[::-1]
    assert [end.trial.told() for end in both] == [list(range(20))] * 2
    assert [end.trial.counts for end in both] == [(20, 20)] * 2


@pytest.mark.parametrize("nbytes", [8, 100_000])
def test_ten_thousand_writes_to_a_receiver_that_stands_still(pair, nbytes):
    """The queue is bounded, and everything arrives once the receiver goes on."""
    a, b = pair("IPv4", 2)
    target, data = b.target(nbytes), body(1, nbytes)
    taken = refused = 0
    for _ in range(10_000):
        status = write(a, data, target, imm=taken)
        taken, refused = taken + (status == DONE), refused + (status == AGAIN)
        a.poll()
    assert (taken, refused, a.trial.room) == (DEPTH, 10_000 - DEPTH, 0)
    while taken < 10_000:
        if write(a, data, target, imm=taken) == DONE:
            taken += 1
        else:
            a.poll(), b.poll()
    settle(a, b)
    assert b.trial.told() == list(range(10_000))
    assert a.trial.counts == (10_000, 10_000)
    assert a.trial.room == DEPTH


def test_the_source_is_the_callers_again_once_a_write_is_completed(pair):
    """And not before: what does not go into the socket is sent from where it lies."""
    a, b = pair("IPv4")
    nbytes = 4 << 20
    targets, data = [b.target(nbytes) for _ in range(8)], bytearray(body(1, nbytes))
    for target in targets:
        write(a, data, target, imm=0)
    a.poll()
    assert a.trial.counts == (8, 0)
    data[-1] ^= 0xFF
    settle(a, b)
    assert targets[-1].got() == data
    assert a.trial.counts == (8, 8)


@pytest.mark.parametrize("lazy", [False, True])
def test_acknowledgements(pair, lazy):
    """Of a lazy write with the next frame that goes out anyway, of others at once."""
    a, b = pair("IPv4")
    target, back = b.target(8), a.target(8)
    write(a, b"12345678", target, imm=1, lazy=lazy)
    while not b.poll():
        pass
    assert b.trial.told() == [1]
    assert b.rail.counters()["sent"] == (0 if lazy else 32)
    write(b, b"12345678", back, imm=2)
    assert b.rail.counters()["sent"] == (40 if lazy else 72)
    settle(a, b)
    assert a.trial.counts == b.trial.counts == (1, 1)


def test_a_side_that_goes_to_sleep_acknowledges_first(pair):
    a, b = pair("IPv4")
    target = b.target(8)
    write(a, b"12345678", target, imm=1, lazy=True)
    while not b.poll():
        pass
    assert b.rail.counters()["sent"] == 0
    assert b.arm()
    assert b.rail.counters()["sent"] == 32


def test_a_sleeper_is_woken(pair):
    a, b = pair("IPv4", 2)
    target = b.target(2 << 20)
    settle(a, b)
    for k in range(200):
        assert a.arm()
        assert b.arm()
        b.poll()
        assert not b.trial.sleep(0)
        write(a, body(k, 1 + 5000 * k), target, imm=k)
        while len(b.trial.told()) == k:
            assert b.trial.sleep(60)
            while b.poll() or not b.arm():
                a.poll()
        settle(a, b)
    assert b.trial.told() == list(range(200))


def test_a_sleeper_with_bytes_to_send_is_woken_by_room(pair):
    """Nobody polls but who has been woken."""
    a, b = pair("IPv4", 2)
    nbytes = 4 << 20
    target, data = b.target(nbytes), body(1, nbytes)
    for k in range(10):
        write(a, data, target, imm=k)
    while True:
        for end in (a, b):
            while end.poll() or not end.arm():
                pass
        if a.trial.counts == (10, 10):
            break
        assert any(select.select([end.trial.fd for end in (a, b)], [], [], 10))
    assert target.got() == data


@pytest.mark.parametrize("nconnections", [1, 2, 4])
def test_what_was_sent_before_the_end_arrives(pair, nconnections):
    a, b = pair("IPv4", nconnections)
    target, data = b.target(5000), body(1, 5000)
    for k in range(5):
        write(a, data, target, imm=k)
    a.rail.close()
    settle(b)
    assert b.trial.told() == list(range(5))
    assert target.got() == data
    assert (b.trial.state, b.trial.fault) == ("failed", (FAULT_SOCKET, 0))
    assert b.rail.fault() == "the peer closed the connection"
    assert write(b, b"1", target) == LOST


def test_one_broken_connection_fails_the_rail_on_both_sides(pair):
    pairs = [unix_pair() for _ in range(3)]
    kept = os.dup(pairs[1][0].fileno())
    a, b = End([near for near, _ in pairs]), End([far for _, far in pairs])
    socket.socket(fileno=kept).shutdown(socket.SHUT_RDWR)
    settle(a, b)
    assert (a.trial.state, b.trial.state) == ("failed", "failed")
    for end in (a, b):
        end.close()


def test_a_reset_is_named(pair):
    near, far = PAIRS["IPv4"]()
    end = End([near])
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    far.close()
    settle(end)
    assert (end.trial.state, end.rail.fault()) == ("failed", "Connection reset by peer")
    end.close()


PEER = """
import sys, time
from rails import End, settle
import socket
made = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(2)]
end = End(made)
target = end.target(1 << 20)
sys.stdout.write(f"{target.address} {target.rkey}\\n")
sys.stdout.flush()
while sys.argv[2] == "poll":
    end.poll()
time.sleep(60)
"""


@pytest.mark.parametrize("state", ["poll", "still"])
def test_a_killed_peer_is_noticed(state):
    """In mid-transfer, whether it reads or has a full buffer."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    with socket.create_server(("127.0.0.1", 0), backlog=4) as listener:
        command = [sys.executable, "-c", PEER, str(listener.getsockname()[1]), state]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as peer:
            end = End([listener.accept()[0] for _ in range(2)])
            address, rkey = map(int, peer.stdout.readline().split())
            data = body(1, 1 << 20)
            for k in range(200):
                end.trial.write([data], address, rkey, imm=k)
                end.poll()
            peer.send_signal(signal.SIGKILL)
            deadline = time.monotonic() + 100
            while end.trial.state == "up":
                assert time.monotonic() < deadline
                end.poll()
            assert end.trial.fault[0] == FAULT_SOCKET
            # The kernel's words depend on whether this side was reading or writing, and on what the peer left unread.
            closed = ("the peer closed the connection", "Connection reset by peer", "Broken pipe")
            assert end.rail.fault() in closed
            end.close()


def test_closing_gives_everything_back():
    def opened():
        return len(os.listdir("/proc/self/fd"))

    before = opened()
    for _ in range(50):
        a, b = ends("unix", 4)
        target = b.target(1000)
        write(a, body(1, 1000), target, imm=1)
        settle(a, b)
        a.close(), b.close()
        a.rail.close(), b.port.close()
    assert opened() == before
    a, b = ends("unix", 2)
    del a, b
    assert opened() == before


def test_a_port_with_open_rails_cannot_be_closed():
    a, b = ends("unix", 1)
    with pytest.raises(ValueError, match="1 rails of this port are not closed"):
        a.port.close()
    a.close(), b.close()


@pytest.mark.parametrize(
    ("remote", "nsockets", "text"),
    [
        ({"transport": "tcp", "version": 2}, 1, "version 2"),
        ({"transport": "verbs", "version": 1}, 1, "has exactly"),
        ({"transport": "tcp"}, 1, "has exactly"),
        ({"transport": "tcp", "version": 1, "more": 0}, 1, "has exactly"),
        ([], 1, "has exactly"),
        ({"transport": "tcp", "version": 1}, 0, "1 to 16 connections, not 0"),
        ({"transport": "tcp", "version": 1}, 17, "1 to 16 connections, not 17"),
    ],
)
def test_a_peer_that_does_not_fit_is_refused(remote, nsockets, text):
    before = len(os.listdir("/proc/self/fd"))
    port = TcpPort()
    rail = port.rail(3, 0)
    pairs = [unix_pair() for _ in range(nsockets)]
    with pytest.raises(ValueError, match=text):
        rail.connect(remote, [near.detach() for near, _ in pairs])
    for _, far in pairs:
        assert far.recv(1) == b"", "the sockets are the rail's even if it refuses them"
        far.close()
    assert Trial(port, rail).state == "new"
    rail.close()
    port.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_rail_connects_once(pair):
    a, _ = pair()
    near, far = unix_pair()
    with pytest.raises(ValueError, match="already"):
        connect(a.rail, [near])
    far.close()


def test_the_options_of_a_connection():
    near, far = PAIRS["IPv6"]()
    kept = socket.socket(fileno=os.dup(near.fileno()))
    end = End([near], timeout_s=7.5)
    options = {
        "nodelay": kept.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY),
        "keepalive": kept.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        "user timeout": kept.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
    }
    assert options == {"nodelay": 1, "keepalive": 1, "user timeout": 7500}
    ports = kept.getsockname()[1], kept.getpeername()[1]
    assert end.rail.describe() == "tcp [::1]:{} -> [::1]:{}, 1 connection".format(*ports)
    kept.close(), far.close(), end.close()


def test_a_fork_leaves_the_parents_connections_alone(pair):
    a, b = pair("IPv4", 2)
    child = os.fork()
    if child == 0:
        a.close(), b.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    target = b.target(1000)
    write(a, body(1, 1000), target, imm=1)
    settle(a, b)
    assert (target.got(), a.trial.counts) == (body(1, 1000), (1, 1))
