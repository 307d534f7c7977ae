"""What the tests of wires share: wires of one process, joined by TCP rails over socket pairs, and their mailboxes."""

import contextlib
import os
import socket
import threading

from hetccl import _tcp, _wire
from hetccl._mailbox_trial import WireTrial

CELLS, CELL_BYTES = 4, 256
EAGER = CELL_BYTES - _wire.HEADER_BYTES
CHUNK = 1024


class Net:
    """Wires of so many ranks; connect() is what the connector does."""

    def __init__(self, nranks=2, cells=CELLS, cell_bytes=CELL_BYTES, **settings):
        settings = {"chunk_bytes": CHUNK, "chunks": 2, "cut_bytes": 64, **settings}
        hosts = [f"host{rank}" for rank in range(nranks)]
        self.wires = [_wire.Wire(rank, nranks, cells, cell_bytes, hosts, **settings) for rank in range(nranks)]
        self.ports = [_tcp.TcpPort() for _ in self.wires]
        for wire, port in zip(self.wires, self.ports):
            wire.add_port(port)
        self.trials = [WireTrial(wire) for wire in self.wires]
        self.plugs = []

    def rails(self, one, other, nrails=1):
        """New rails of both ends, not connected."""
        return [[self.ports[a].rail(b, i) for i in range(nrails)] for a, b in ((one, other), (other, one))]

    def join(self, rails, connections=1):
        """Connect rails of both ends. Also leave a socket of each in `plugs`, to pull."""
        for mine, theirs in zip(*rails):
            pairs = [socket.socketpair() for _ in range(connections)]
            self.plugs.append(pairs[0][0].dup())
            mine.connect(theirs.local(), [pair[0].detach() for pair in pairs])
            theirs.connect(mine.local(), [pair[1].detach() for pair in pairs])

    def connect(self, one=0, other=1, nrails=1, connections=1):
        rails = self.rails(one, other, nrails)
        inboxes = [self.wires[a].prepare(b, rails[i]) for i, (a, b) in enumerate(((one, other), (other, one)))]
        self.join(rails, connections)
        self.wires[one].attach(other, inboxes[1])
        self.wires[other].attach(one, inboxes[0])
        self.wires[one].go(other)
        self.wires[other].go(one)
        return rails

    def settle(self):
        """Poll until nothing moves any more; TCP moves a little later than it is asked to."""
        quiet = 0
        for _ in range(100000):
            moved = [trial.poll() for trial in self.trials]
            quiet = 0 if any(moved) else quiet + 1
            if quiet == 200:
                return
        raise AssertionError("the wires move for ever")

    def pull(self, index):
        """Break the rail that was connected as number `index`."""
        self.plugs[index].shutdown(socket.SHUT_RDWR)

    def repair(self, index, one=0, other=1):
        """Both sides close a rail and go on over the others."""
        told = [self.wires[a].close_rail(b, index) for a, b in ((one, other), (other, one))]
        self.wires[one].resume(other, index, told[1])
        self.wires[other].resume(one, index, told[0])

    def close(self):
        for plug in self.plugs:
            plug.close()
        for wire in self.wires:
            wire.close()


@contextlib.contextmanager
def nets():
    """Function: Net's arguments -> Net, closed at the end."""
    made = []

    def make(*args, **settings):
        made.append(Net(*args, **settings))
        return made[-1]

    try:
        yield make
    finally:
        for net in made:
            net.close()


def resources():
    """(file descriptors, threads of the system, mappings) of this process."""
    with open("/proc/self/maps") as maps:
        mappings = len(maps.readlines())
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), mappings


def together(*functions):
    """Run each on a thread of its own. Returns what they return; raises what one raises."""
    results = [None] * len(functions)
    faults = []

    def run(i, function):
        try:
            results[i] = function()
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a thread hangs"
    if faults:
        raise faults[0]
    return results
