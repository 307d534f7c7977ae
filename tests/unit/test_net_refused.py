"""Strangers and broken peers at the listening socket: each is refused and logged, and the job goes on."""

import base64
import logging
import os
import socket
import struct
import threading
import time

import pytest
from net_fakes import Net, nothing_left, until  # noqa: F401

from hetccl.net import control, handshake, process
from hetccl.net.handshake import Hello, Keys, Stream

pytestmark = pytest.mark.usefixtures("nothing_left")
HELLO_BYTES, ANSWER_BYTES = 96, 80


class Proxy:
    """Between a client and a server: remembers all that either says, per connection. A context manager."""

    def __init__(self, port):
        self.port = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.said = []  # [client's bytes, server's bytes]
        self.sockets = []
        self.threads = [threading.Thread(target=self._serve)]
        self.threads[0].start()

    def _serve(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.port))
            heard = [bytearray(), bytearray()]
            self.said.append(heard)
            self.sockets += [client, server]
            for source, sink, into in ((client, server, heard[0]), (server, client, heard[1])):
                thread = threading.Thread(target=self._pass, args=(source, sink, into))
                self.threads.append(thread)
                thread.start()

    def _pass(self, source, sink, into):
        try:
            while data := source.recv(65536):
                into += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for sock in self.sockets:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:  # its other end has gone
                continue
        for thread in self.threads:
            thread.join(20)
        for sock in self.sockets:
            sock.close()


class Stranger:
    """A connection to the listener of a Net, and what is needed to say something on it."""

    def __init__(self, net):
        self.net = net
        self.keys = Keys.of(net.secret)
        self.sock = socket.create_connection(("127.0.0.1", net.card["port"]))
        self.sock.settimeout(20)

    def hello(self, sender=1, receiver=0, ranks=2, kind=handshake.CONTROL, **fields):
        return Hello(kind, fields.pop("communicator", self.keys.communicator), sender, receiver, ranks, **fields)

    def shake(self, hello=None):
        """A good handshake. Returns the Talk after it."""
        stream = Stream(self.sock, time.monotonic() + 20)
        proof, session = handshake.connect(stream, hello or self.hello(), self.keys)
        stream.send(proof)
        return control.Talk(stream, session, True)

    def ended(self):
        """Whether the server has ended the connection; reads what it has said before."""
        try:
            while self.sock.recv(65536):
                pass
        except ConnectionResetError:
            pass
        return True


def wrong_secret(of):
    of.sock.sendall(of.hello().pack(os.urandom(32)))
    of.sock.recv(ANSWER_BYTES, socket.MSG_WAITALL)
    of.sock.sendall(bytes(32))


def no_hello(of):
    of.sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")


def truncated_hello(of):
    of.sock.sendall(of.hello().pack(os.urandom(32))[:-1])
    of.sock.shutdown(socket.SHUT_WR)


def nothing_at_all(of):
    of.sock.shutdown(socket.SHUT_WR)


def truncated_proof(of):
    of.sock.sendall(of.hello().pack(os.urandom(32)))
    of.sock.recv(ANSWER_BYTES, socket.MSG_WAITALL)
    of.sock.sendall(bytes(31))
    of.sock.shutdown(socket.SHUT_WR)


def too_much(of):
    try:
        of.sock.sendall(os.urandom(1 << 20))
    except OSError:  # it hangs up meanwhile
        return


def slow(of):
    for byte in of.hello().pack(os.urandom(32)):
        time.sleep(0.02)
        try:
            of.sock.sendall(bytes([byte]))
        except OSError:
            return


def unknown_communicator(of):
    of.sock.sendall(of.hello(communicator=bytes(16)).pack(os.urandom(32)))


def rank_out_of_range(of):
    of.sock.sendall(of.hello(sender=2).pack(os.urandom(32)))


def its_own_rank(of):
    of.sock.sendall(of.hello(sender=0).pack(os.urandom(32)))


def not_my_rank(of):
    of.sock.sendall(of.hello(receiver=7).pack(os.urandom(32)))


def other_size(of):
    of.sock.sendall(of.hello(ranks=3).pack(os.urandom(32)))


def another_version(of):
    of.sock.sendall(handshake.MAGIC + struct.pack("<H", 2) + bytes(90))


def data_of_no_session(of):
    of.sock.sendall(of.hello(kind=handshake.DATA, session=bytes(range(16))).pack(os.urandom(32)))


def long_record(of):
    talk = of.shake()
    talk.hear(control.RECORD)
    of.sock.sendall(control.HEAD.pack((64 << 10) + 1, control.RECORD, 0, 0))


def unsigned_record(of):
    of.shake().hear(control.RECORD)
    of.sock.sendall(control.HEAD.pack(2, control.RECORD, 0, 0) + b"{}" + bytes(32))


def another_message(of):
    talk = of.shake()
    talk.hear(control.RECORD)
    talk.say(control.BYE, {})


REFUSALS = {
    wrong_secret: "does not know the secret",
    no_hello: "does not speak the protocol",
    truncated_hello: "ended after 85 of 86 bytes",
    nothing_at_all: "ended after 0 of 10 bytes",
    truncated_proof: "ended after 31 of 32 bytes",
    too_much: "does not speak the protocol",
    slow: "timed out",
    unknown_communicator: "no such communicator",
    rank_out_of_range: "says it is rank 2 of 2",
    its_own_rank: "says it is rank 0 of 2 and asks for rank 0",
    not_my_rank: "asks for rank 7",
    other_size: "says it is rank 1 of 3",
    another_version: "speaks version 2 of the protocol, this rank version 1",
    data_of_no_session: "no control connection expects data connection 0 of rank 1",
    long_record: "announces a control message of 65537 bytes",
    unsigned_record: "has been changed",
    another_message: "type 4 where type 2 or 1 belongs",
}


@pytest.mark.parametrize("stranger", REFUSALS, ids=lambda stranger: stranger.__name__)
def test_strangers_are_refused(stranger, monkeypatch, caplog):
    """Whoever it is, the log names its address and says why, and the ranks connect nevertheless."""
    monkeypatch.setattr(process, "PROOF_SECONDS", 0.5)
    monkeypatch.setattr(process, "AHEAD_SECONDS", 0.1)
    with Net(2, here=[0]) as net:
        of = Stranger(net)
        with of.sock:
            stranger(of)
            assert of.ended()
            port = of.sock.getsockname()[1]
        until(lambda: REFUSALS[stranger] in caplog.text)
        assert f"127.0.0.1 port {port}: its connection was refused" in caplog.text
        assert all(record.levelno == logging.WARNING for record in caplog.records)
        net.add(1)
        net.connect(1, 0)
        assert net.wires[0].events("go") == [(1,)]


def test_a_second_connection_does_not_disturb_the_first(caplog):
    """Of one who knows the secret."""
    with Net(2) as net:
        net.connect(0, 1)
        of = Stranger(net)
        with of.sock, caplog.at_level(logging.INFO, "hetccl"):
            talk = of.shake()
            assert talk.hear(control.REFUSED)[1] == {"reason": "crossed", "text": "the pair has another connection"}
            assert of.ended()
        assert "second connection" in caplog.text
        assert net.groups[1].entered([0], 10) == {0: (0, 0)}
        assert net.wires[0].events("lost") == []


def test_replayed_handshakes_are_refused(caplog):
    """All that a rank has said, said again: to the rank it was said to, and in a communicator that has ended."""
    with Net(2, here=[1]) as net:
        with Proxy(net.card["port"]) as proxy:
            net.add(0, addresses=[(None, "127.0.0.1", proxy.listener.getsockname()[1])])
            net.connect(0, 1)
            net.groups[0].entered([1], 10)
            recorded = [bytes(client) for client, _ in proxy.said]
        assert len(recorded) == 3
        net.wires[1].until("lost", 0)
        for said in recorded:
            of = Stranger(net)
            with of.sock:
                of.sock.sendall(said)
                assert of.ended()
        until(lambda: caplog.text.count("does not know the secret") + caplog.text.count("no control connection") == 3)
        assert len(net.wires[1].events("prepare")) == 1


def test_no_secret_is_said():
    """Neither the secret nor a key of it is on the wire, in whatever form."""
    with Net(2, here=[1]) as net:
        with Proxy(net.card["port"]) as proxy:
            net.add(0, addresses=[(None, "127.0.0.1", proxy.listener.getsockname()[1])])
            net.connect(0, 1)
            net.groups[0].entered([1], 10)
            keys = Keys.of(net.secret)
            said = b"".join(bytes(heard) for both in proxy.said for heard in both)
            talked = net.groups[0].pairs[1].connection
            secrets = [net.secret, keys.key, talked._sealer.key, talked.opener.key]
    assert keys.communicator in said
    for secret in secrets:
        for form in (secret, secret.hex().encode(), base64.b64encode(secret)[:16], secret[::-1], secret[:8]):
            assert form not in said


def test_many_idle_strangers_do_not_keep_peers_out(monkeypatch):
    """More than there are threads: each is given so much time, and the peers wait in the backlog."""
    monkeypatch.setattr(process, "PROOF_SECONDS", 0.5)
    monkeypatch.setattr(process, "ANSWERING", 8)
    with Net(2) as net:
        idle = [socket.create_connection(("127.0.0.1", net.card["port"])) for _ in range(20)]
        net.connect(1, 0)
        for sock in idle:
            sock.close()


def test_the_log_is_not_flooded(caplog):
    with Net(2) as net:
        for _ in range(200):
            with socket.create_connection(("127.0.0.1", net.card["port"])) as sock:
                sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
                assert Stranger.ended(type("", (), {"sock": sock}))
        until(lambda: net.groups[0].process._unsaid == 180)
        assert len(caplog.records) == 20


@pytest.mark.parametrize("end", [0, 1])
def test_a_control_message_changed_on_its_way(end, caplog):
    """Someone on the way changes a byte: the connection is given up, nothing of the message is believed."""
    with Net(2) as net:
        net.connect(0, 1)
        sender = net.groups[end].pairs[1 - end]
        frame = bytearray(sender.connection._sealer.seal(control.FAULT, {"reason": 1, "reporter": 0, "culprit": 0}))
        frame[20] ^= 1
        sender.connection.sock.sendall(frame)
        assert "has been changed on its way" in net.wires[1 - end].until("lost", end)[2]
        assert net.boards[1 - end].word is None
        assert "given up" in caplog.text
