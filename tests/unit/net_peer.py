"""Rank 1 of a communicator of two, in a process of its own: connects to rank 0, says "up", waits for a
line, then does what it is told.

Usage: net_peer.py SECRET PORT DEED; with a DEED of DEEDS.
"""

import atexit
import os
import subprocess
import sys
import time

from net_fakes import Net, until

from hetccl.net import connector


def sleep(net):
    time.sleep(100)


def end(net):
    return


def end_in_a_handshake(net):
    """The rank it connects to does not exist."""
    net.wires[1].want(2)
    time.sleep(0.2)


def close_late(net):
    """After hetccl has said good-bye at the program's end."""
    atexit.unregister(connector._leave_all)
    atexit.register(lambda: print(net.groups[1].close(5), flush=True))
    atexit.register(connector._leave_all)


def raise_error(net):
    raise SystemExit("an error of the user's")


def close(net):
    net.groups[1].close(5)


def fork_and_die(net):
    """The child lives on; what it has inherited must not hide the parent's death."""
    if os.fork() == 0:
        print("child", os.getpid(), flush=True)
        time.sleep(100)
    time.sleep(0.5)
    os.kill(os.getpid(), 9)


def fork_and_use(net):
    """The child can do nothing to the parent's connections, closes them, and can have its own."""
    if os.fork() == 0:
        group = net.groups[1]
        of_rails = {_link(sock.fileno()) for sock in net.wires[1].rails[0][0].sockets}
        open_here = {_link(descriptor) for descriptor in os.listdir("/proc/self/fd")} - of_rails
        kept = [link for link in open_here if "socket" in link or "event" in link]
        group.leave()
        group.close(1)
        works = group.entered([0], 1) == {} and connects_alone()
        print("child", kept or "closed", works, flush=True)
        os._exit(0)
    os.wait()
    print("answers", net.groups[1].entered([0], 10), flush=True)
    time.sleep(100)


def connects_alone():
    with Net(2) as own:
        own.connect(0, 1)
        return own.groups[0].entered([1], 10) == {1: (0, 0)}


def start_and_die(net):
    """The same with a program that it has started."""
    child = subprocess.Popen(["sleep", "100"], close_fds=False)
    print("child", child.pid, flush=True)
    os.kill(os.getpid(), 9)


def compute(net):
    """The main thread never waits for anything."""
    end = time.monotonic() + 100
    while time.monotonic() < end:
        sum(range(1000))


DEEDS = {
    deed.__name__: deed
    for deed in (
        sleep,
        end,
        end_in_a_handshake,
        close_late,
        raise_error,
        close,
        fork_and_die,
        fork_and_use,
        start_and_die,
        compute,
    )
}


def _link(descriptor):
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


def main(secret, port, deed):
    net = Net(3, here=[])
    net.secret = bytes.fromhex(secret)
    net.add(1, addresses=[(None, "127.0.0.1", int(port))])
    net.wires[1].want(0)
    net.wires[1].until("go", 0)
    until(lambda: net.groups[1].resources()["connected"] == [0])
    net.boards[1].position = (5, 6)
    print("up", flush=True)
    sys.stdin.readline()
    DEEDS[deed](net)


if __name__ == "__main__":
    main(*sys.argv[1:])
