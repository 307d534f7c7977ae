"""A tcp rail against plain sockets, over loopback: a Markdown table on stdout.

    python bench/tcp.py [--connections 1 2] [--sizes 256K 1M] [--rounds N]

Two processes. Throughput: one sends messages of a size into the same memory of the other, until some 64 MiB have gone
and the other has answered; plain: sendall() and recv_into() of blocking sockets; rail: writes with an immediate value
each. Round trip: both sides answer in turn, asleep or not as the kernel has it (plain), polling (rail). The two take
turns in one run; medians over the rounds, and the median of the rounds' ratios: read these, not the GB/s.
"""

import argparse
import os
import platform
import select
import socket
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from hetccl._rail_trial import Trial
from hetccl._tcp import TcpPort
from hetccl.config import SIZE

TOTAL_BYTES = 64 << 20
FEWEST_MESSAGES = 8
ROUND_TRIPS = 2000
ROUND_TRIP_BYTES = 8
# Fruitless polls before a side sleeps: a spinning side would take the core that the other needs.
POLLS = 200
LAST = 1 << 31


class Rail:
    """One end of a rail, with memory that the peer writes to."""

    def __init__(self, sockets, nbytes):
        self.port = TcpPort()
        self.rail = self.port.rail(1, 0)
        self.trial = Trial(self.port, self.rail)
        self.memory = memoryview(bytearray(os.urandom(1 << 10) * (nbytes >> 10)))
        self.mem = self.trial.reg(self.memory)
        sockets[0].sendall(self.mem.address.to_bytes(8, "little") + self.mem.rkey.to_bytes(4, "little"))
        there = sockets[0].recv(12, socket.MSG_WAITALL)
        self.address, self.rkey = int.from_bytes(there[:8], "little"), int.from_bytes(there[8:], "little")
        self.told = 0
        self.rail.connect(self.rail.local(), [sock.detach() for sock in sockets])

    def turn(self):
        """Poll; sleep if nothing comes for long."""
        for _ in range(POLLS):
            if self.trial.poll():
                return
            os.sched_yield()  # as the engine's waits do: the peer may need this core
        if self.trial.arm() and not self.trial.poll():
            select.select([self.trial.fd], [], [], 60)

    def write(self, nbytes, imm):
        """Post a write in as many as it takes."""
        for begin in range(0, nbytes, self.trial.max_write):
            end = min(nbytes, begin + self.trial.max_write)
            pieces = [self.memory[begin:end]]
            tag = imm if end == nbytes else None
            while self.trial.write(pieces, self.address + begin, self.rkey, imm=tag) == "again":
                self.turn()

    def wait(self, count):
        """Until count more immediate values have been told."""
        self.told += count
        while self.trial.came < self.told:
            self.turn()

    def send(self, nbytes, count):
        for k in range(count):
            self.write(nbytes, k)
        self.wait(1)
        while self.trial.counts[0] != self.trial.counts[1]:
            self.turn()
        self.trial.forget_sources()

    def receive(self, nbytes, count):
        self.wait(count)
        self.write(1, LAST)

    def ping(self, count):
        for k in range(count):
            self.write(ROUND_TRIP_BYTES, k)
            self.wait(1)

    def pong(self, count):
        for k in range(count):
            self.wait(1)
            self.write(ROUND_TRIP_BYTES, k)


class Plain:
    """One end of a socket, and memory for a message."""

    def __init__(self, sock, nbytes):
        self.sock = sock
        self.memory = memoryview(bytearray(os.urandom(1 << 10) * (nbytes >> 10)))

    def take(self, nbytes):
        done = 0
        while done < nbytes:
            done += self.sock.recv_into(self.memory[done:nbytes])

    def send(self, nbytes, count):
        for _ in range(count):
            self.sock.sendall(self.memory[:nbytes])
        self.take(1)

    def receive(self, nbytes, count):
        for _ in range(count):
            self.take(nbytes)
        self.sock.sendall(b"x")

    def ping(self, count):
        for _ in range(count):
            self.sock.sendall(self.memory[:ROUND_TRIP_BYTES])
            self.take(ROUND_TRIP_BYTES)

    def pong(self, count):
        for _ in range(count):
            self.take(ROUND_TRIP_BYTES)
            self.sock.sendall(self.memory[:ROUND_TRIP_BYTES])


def contenders(make_sockets, connections, nbytes):
    """name -> one end, in the same order on both sides."""
    made = {"plain": Plain(make_sockets(1)[0], nbytes)}
    for n in connections:
        made[f"rail, {n} connection{'s' if n > 1 else ''}"] = Rail(make_sockets(n), nbytes)
    return made


def messages(nbytes):
    return max(FEWEST_MESSAGES, min(TOTAL_BYTES // nbytes, 20000))


def far_end(port, args):
    """What the second process does."""

    def dial(n):
        made = []
        for _ in range(n):
            made.append(socket.create_connection(("127.0.0.1", port)))
            made[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    ends = contenders(dial, args.connections, max(args.sizes))
    for nbytes in args.sizes:
        for _ in range(args.rounds + 1):
            for end in ends.values():
                end.receive(nbytes, messages(nbytes))
    for _ in range(args.rounds + 1):
        for end in ends.values():
            end.pong(ROUND_TRIPS)


def near_end(listener, args):
    """Yield (what was done, name -> one number for each round): GB/s, then microseconds."""

    def answer(n):
        made = []
        for _ in range(n):
            made.append(listener.accept()[0])
            made[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    ends = contenders(answer, args.connections, max(args.sizes))
    for nbytes in args.sizes:
        rates = {name: [] for name in ends}
        for lap in range(args.rounds + 1):
            for name, end in ends.items():
                begin = time.perf_counter()
                end.send(nbytes, messages(nbytes))
                rate = nbytes * messages(nbytes) / (time.perf_counter() - begin) / 1e9
                if lap:
                    rates[name].append(rate)
        yield nbytes, rates
    times = {name: [] for name in ends}
    for lap in range(args.rounds + 1):
        for name, end in ends.items():
            begin = time.perf_counter()
            end.ping(ROUND_TRIPS)
            if lap:
                times[name].append((time.perf_counter() - begin) / ROUND_TRIPS * 1e6)
    yield 0, times


def text_of(nbytes):
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


def table(rows, args):
    """The Markdown lines."""
    system = f"{len(os.sched_getaffinity(0))} cores, {platform.system()} {platform.release()}"
    yield f"Loopback, {system}: medians over {args.rounds} rounds; ratio = rail / plain in one round."
    yield f"Made by `python bench/tcp.py {' '.join(sys.argv[1:])}`.".replace(" `.", "`.")
    yield ""
    header = None
    for nbytes, numbers in rows:
        if header is None:
            header = ["size", *numbers, *(f"ratio ({name.split(', ')[1]})" for name in numbers if name != "plain")]
            yield f"| {' | '.join(header)} |"
            yield f"|---|{'---:|' * (len(header) - 1)}"
        cells = [text_of(nbytes) if nbytes else f"round trip of {ROUND_TRIP_BYTES} B"]
        unit = "GB/s" if nbytes else "us"
        cells += [f"{statistics.median(values):.2f} {unit}" for values in numbers.values()]
        for name, values in numbers.items():
            if name != "plain":
                cells.append(f"{statistics.median(a / b for a, b in zip(values, numbers['plain'])):.2f}")
        yield f"| {' | '.join(cells)} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--connections", type=int, nargs="+", default=[1, 2], metavar="N", help="of a rail (1 2)")
    add("--sizes", type=SIZE.parse, nargs="+", default=[4096 << (2 * k) for k in range(7)], metavar="SIZE")
    add("--rounds", type=int, default=9, metavar="N", help="timed rounds, after one that is not (9)")
    args = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                far_end(listener.getsockname()[1], args)
                status = 0
            finally:
                os._exit(status)
        for line in table(near_end(listener, args), args):
            print(line, flush=True)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
