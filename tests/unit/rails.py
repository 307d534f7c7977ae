"""What the tests of rails share: two ends of a tcp rail in this process, and guarded memory."""

import socket

from hetccl._rail_trial import Trial
from hetccl._tcp import TcpPort

GUARD = b"\xa5" * 64
DONE, AGAIN, LOST = "done", "again", -7
FAULT_SOCKET, FAULT_WIRE, BREACH_FRAME = 4, 5, 5
DEPTH = 256


def unix_pair():
    return socket.socketpair()


def loopback_pair(family, host):
    with socket.socket(family) as listener:
        listener.bind((host, 0))
        listener.listen(1)
        near = socket.create_connection(listener.getsockname()[:2])
        far, _ = listener.accept()
    return near, far


PAIRS = {
    "unix": unix_pair,
    "IPv4": lambda: loopback_pair(socket.AF_INET, "127.0.0.1"),
    "IPv6": lambda: loopback_pair(socket.AF_INET6, "::1"),
}


def connect(rail, sockets):
    """Connect a rail whose peer is of the same version."""
    rail.connect(rail.local(), [sock.detach() for sock in sockets])


class Target:
    """Registered memory between guard bytes."""

    def __init__(self, trial, nbytes):
        self.memory = bytearray(GUARD + b"\x5a" * nbytes + GUARD)
        self.view = memoryview(self.memory)[len(GUARD) : len(GUARD) + nbytes]
        self.mem = trial.reg(self.view)
        self.address, self.rkey, self.nbytes = self.mem.address, self.mem.rkey, nbytes

    def got(self):
        assert self.memory.startswith(GUARD) and self.memory.endswith(GUARD)
        return bytes(self.view)

    def assert_untouched(self):
        assert self.got() == b"\x5a" * self.nbytes


class End:
    """One end: a port with one rail, which keeps what it is told."""

    def __init__(self, sockets, timeout_s=300):
        self.port = TcpPort(timeout_s)
        self.rail = self.port.rail(1, 0)
        self.trial = Trial(self.port, self.rail)
        connect(self.rail, sockets)

    def poll(self):
        return self.trial.poll()

    def arm(self):
        return self.trial.arm()

    def target(self, nbytes):
        return Target(self.trial, nbytes)

    def close(self):
        self.rail.close()
        self.port.close()


def ends(kind, nconnections):
    """Two connected ends. The second has its connections in another order."""
    pairs = [PAIRS[kind]() for _ in range(nconnections)]
    return End([near for near, _ in pairs]), End([far for _, far in reversed(pairs)])


def settle(*some, limit=200000):
    """Poll all ends until nothing has moved for a while (acknowledgements of lazy writes included)."""
    quiet = 0
    for _ in range(limit):
        quiet = 0 if sum(end.poll() for end in some) else quiet + 1
        if quiet > 100:
            return
    raise AssertionError("the ends move for ever")
