"""Chapter 2 of docs/wire-protocol.md as a client: written from the document, without a line of hetccl's."""

import hashlib
import hmac
import json
import os
import socket
import struct

REFUSED, RECORD, READY, BYE, FAULT, ASK_ENTERED, ENTERED, RAIL_DOWN = range(1, 9)
SECONDS = 30


def h(key, label, text):
    return hmac.new(key, label.encode() + b"\0" + text, hashlib.sha256).digest()


class Refusal(Exception):
    """The server's status is not 0."""


class Control:
    """A connection whose handshake is done.

    secret : bytes     address : (host, port)     sender, receiver, ranks : int
    forged : bytes, the secret that this side proves in the place of the one by which it names the communicator
    data   : (index, session) of a data connection; None: a control connection
    """

    def __init__(self, secret, address, sender, receiver, ranks, version=1, forged=None, data=None):
        self.sock = socket.create_connection(address, SECONDS)
        key = h(forged or secret, "handshake", b"")
        kind, (index, session) = 2 if data else 1, data or (0, bytes(16))
        hello = b"hetccl\r\n" + struct.pack("<HBBIIIII", version, kind, 0, sender, receiver, ranks, index, 0)
        hello += h(secret, "communicator", b"")[:16] + session + os.urandom(32)
        self.sock.sendall(hello)
        answer = self.read(80)
        if answer[10]:
            raise Refusal(answer[10], struct.unpack_from("<H", answer, 8)[0])
        proven = answer[48:] == h(key, "server", hello + answer[:48])
        assert proven != bool(forged), "the server's proof is wrong"
        self.handshake = hello, h(key, "client", hello + answer)
        self.sock.sendall(self.handshake[1])
        self.session = h(key, "session", hello + answer)[:16]
        self.mine = h(key, "client frames", hello + answer)
        self.theirs = h(key, "server frames", hello + answer)
        self.said = self.heard = 0

    @classmethod
    def repeat(cls, address, handshake):
        """A connection on which a recorded handshake is said again."""
        self = cls.__new__(cls)
        self.sock = socket.create_connection(address, SECONDS)
        self.sock.sendall(handshake[0])
        assert self.read(80)[10] == 0
        self.sock.sendall(handshake[1])
        return self

    def read(self, nbytes):
        data = b""
        while len(data) < nbytes:
            more = self.sock.recv(nbytes - len(data))
            if not more:
                raise ConnectionError(f"the rank closed the control connection after {len(data)} of {nbytes} bytes")
            data += more
        return data

    def say(self, kind, /, **members):
        body = json.dumps(members).encode()
        frame = struct.pack("<IHHQ", len(body), kind, 0, self.said) + body
        self.said += 1
        self.sock.sendall(frame + h(self.mine, "frame", frame))

    def hear(self, *kinds):
        """The next frame, which must be one of the types: (type, body)."""
        head = self.read(16)
        nbytes, kind, zero, number = struct.unpack("<IHHQ", head)
        body = self.read(nbytes)
        assert (zero, number) == (0, self.heard)
        assert self.read(32) == h(self.theirs, "frame", head + body)
        self.heard += 1
        assert kind in kinds, f"frame of type {kind} instead of {kinds}: {body}"
        return kind, json.loads(body)
