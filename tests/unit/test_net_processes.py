"""Two processes: one that is killed, forks, or ends without a word, and what the other hears of it."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from net_fakes import Net, descriptors, nothing_left, until  # noqa: F401

from hetccl.net import connector, listener
from hetccl.net.listener import Listener

pytestmark = pytest.mark.usefixtures("nothing_left")
PEER = Path(__file__).with_name("net_peer.py")


class Peer:
    """Rank 1 in a process of its own, connected; a context manager. `up` is rank 0's Net."""

    def __init__(self, deed):
        self.net = Net(3, here=[0])
        command = [sys.executable, PEER, self.net.secret.hex(), str(self.net.card["port"]), deed]
        path = os.pathsep.join(filter(None, (str(PEER.parents[2]), str(PEER.parent))))
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        self.children = []
        assert self.process.stdout.readline() == "up\n", self.process.stderr.read()
        self.net.wires[0].until("go", 1)
        until(lambda: self.net.groups[0].resources()["connected"] == [1])
        print("go", file=self.process.stdin, flush=True)

    def child(self):
        """What the peer says of its child."""
        word, *what = self.process.stdout.readline().split()
        assert word == "child"
        if what[0].isdecimal():
            self.children.append(int(what[0]))
        return what

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        for child in self.children:
            os.kill(child, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.stderr.close()
        self.net.__exit__()


def test_a_killed_peer_is_noticed():
    with Peer("sleep") as peer:
        peer.process.kill()
        assert "has ended" in peer.net.wires[0].until("lost", 1)[2]
        assert peer.net.boards[0].gone == {1: "died"}


@pytest.mark.parametrize("deed", ["fork_and_die", "start_and_die"])
def test_a_killed_peer_is_noticed_though_its_child_lives(deed):
    with Peer(deed) as peer:
        peer.child()
        peer.net.wires[0].until("lost", 1)
        assert peer.net.boards[0].gone == {1: "died"}
        os.kill(peer.children[0], 0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_has_nothing_of_its_parent():
    with Peer("fork_and_use") as peer:
        assert peer.child() == ["closed", "True"]
        assert peer.process.stdout.readline() == "answers {0: (0, 0)}\n"
        assert peer.net.wires[0].events("lost") == []


@pytest.mark.parametrize(
    "deed, code", [("end", 0), ("end_in_a_handshake", 0), ("raise_error", 1), ("close", 0), ("close_late", 0)]
)
def test_a_program_that_ends_says_good_bye(deed, code):
    """Without a message of the interpreter's, whatever is under way."""
    with Peer(deed) as peer:
        assert peer.process.wait(60) == code
        peer.net.wires[0].until("lost", 1)
        assert peer.net.boards[0].gone == {1: "left"}
        assert peer.process.stderr.read() == ("an error of the user's\n" if code else "")


def test_a_peer_that_computes_answers():
    with Peer("compute") as peer:
        until(lambda: peer.net.groups[0].entered([1], 10) == {1: (5, 6)})


def test_a_stopped_peer_is_not_dead():
    with Peer("sleep") as peer:
        peer.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, peer.process.pid, os.WSTOPPED | os.WNOWAIT)
        assert peer.net.groups[0].entered([1], 0.5) == {}
        peer.process.send_signal(signal.SIGCONT)
        assert peer.net.groups[0].entered([1], 10) == {1: (5, 6)}
        assert peer.net.wires[0].events("lost") == []


@pytest.mark.parametrize(
    "listens, dials",
    [
        (["127.0.0.1"], "127.0.0.1"),
        (["::1"], "::1"),
        (["127.0.0.1", "::1"], "::1"),
        (["127.0.0.1", "::1", "127.0.0.2"], "127.0.0.2"),
        ([], "127.0.0.3"),
        ([], "::1"),
    ],
)
def test_where_it_listens(listens, dials):
    """One port for all of them; none: every address of this host."""
    with Net(2, listens=listens, dials=dials) as net:
        assert net.card == {"port": net.card["port"], "addresses": listens}
        net.connect(1, 0)


def test_it_listens_nowhere_else():
    with Net(2, here=[0]) as net:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", net.card["port"]))


def test_this_ranks_address_is_the_one_it_was_told():
    with Net(2) as net:
        net.groups[1].pairs[0].path.addresses[0] = ("127.0.0.3", "127.0.0.1", net.card["port"])
        net.connect(1, 0)
        assert net.groups[1].pairs[0].connection.sock.getsockname()[0] == "127.0.0.3"


def test_an_address_of_another_host():
    with pytest.raises(OSError, match="192.0.2.1"):
        connector.listen(["192.0.2.1"])


def test_a_port_that_is_taken_at_the_second_address(monkeypatch):
    """The kernel's choice for the first address may be taken at the second: another one is tried."""
    taken = Listener(["127.0.0.2"])
    listen = listener._listen
    ports = [taken.card["port"]]

    def first_taken(address, port):
        return listen(address, port or (ports.pop() if ports else 0))

    monkeypatch.setattr(listener, "_listen", first_taken)
    before = descriptors()
    found = Listener(["127.0.0.1", "127.0.0.2"])
    assert found.card["port"] != taken.card["port"]
    assert [sock.getsockname() for sock in found.sockets] == [(f"127.0.0.{n}", found.card["port"]) for n in (1, 2)]
    found.close()
    assert descriptors() == before
    taken.close()
