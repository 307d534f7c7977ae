"""Compare a rail over verbs with perftest: ib_write_bw and ib_write_lat, in turn, on the same two devices.

    python tests/softroce/vm.py -- python bench/rails_verbs.py

usage: rails_verbs.py [DEVICE PEER_DEVICE [GID_INDEX]]          default: rxe0 rxe1 1

Each figure is the median of the rounds, the last one that of their ratios; both sides of a pair are processes of their
own. Over Soft-RoCE only the ratios mean anything. Needs perftest's programs.
"""

import json
import mmap
import statistics
import subprocess
import sys
import time

import numpy as np

from hetccl import _verbs
from hetccl._rail_trial import Trial
from hetccl._rdma import RdmaPort

SIZES = (65536, 1 << 20, 4 << 20)
ROUNDS = 5
LIMIT_S = 60
PING_PONGS = 2000
PING_NBYTES = 8
# Columns of what perftest prints.
BW_AVERAGE, LAT_MEDIAN = 3, 4
# What Trial.ping_pong() times together.
ROUNDS_TIMED = 4


class End:
    """One process's end of the rail, with memory for the largest write."""

    def __init__(self, device, gid_index):
        port = next(port for port in _verbs.devices() if port["device"] == device)
        gid = next(gid["gid"] for gid in port["gids"] if gid["index"] == gid_index)
        card = {"device": device, "port": port["port"], "gid": gid, "gid_index": gid_index}
        self.port = RdmaPort(card, receives=512)
        self.rail = self.port.rail(0, 0)
        self.trial = Trial(self.port, self.rail)
        self.memory = mmap.mmap(-1, max(SIZES))
        self.mr = self.trial.reg(self.memory)

    def record(self):
        return json.dumps({"local": self.rail.local(), "address": self.mr.address, "rkey": self.mr.rkey})

    def connect(self, record):
        self.peer = json.loads(record)
        self.rail.connect(self.peer["local"])

    def ping_pong(self, first):
        times = np.zeros(PING_PONGS // ROUNDS_TIMED, np.int64)
        place = self.peer["address"], self.peer["rkey"]
        self.trial.ping_pong(self.mr, PING_NBYTES, PING_PONGS, *place, first, times, LIMIT_S)
        return times


def answer(device, gid_index):
    """The other process: it connects, then answers each line of its input: "ping" takes part, others are echoed."""
    end = End(device, gid_index)
    print(end.record(), flush=True)
    end.connect(sys.stdin.readline())
    print("connected", flush=True)
    for line in sys.stdin:
        print(line.strip(), flush=True)
        if line == "ping\n":
            end.ping_pong(False)


class Peer:
    """The process of answer()."""

    def __init__(self, end, device, gid_index):
        command = [sys.executable, __file__, "--answer", device, str(gid_index)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        end.connect(self.process.stdout.readline())
        self.ask(end.record(), "connected")

    def ask(self, line, expected):
        print(line, file=self.process.stdin, flush=True)
        answered = self.process.stdout.readline().strip()
        if answered != expected:
            raise RuntimeError(f"the other process said {answered!r}, not {expected!r}")


def perftest(program, devices, gid_index, column, *options):
    """A figure, by its column, of the last line that a perftest program prints."""
    for _ in range(5):
        figure = perftest_once(program, devices, gid_index, *options)[column]
        # Seen in the emulated machine: a run that prints 0. Why is not known; such a run is left out.
        if figure > 0:
            return figure
    raise RuntimeError(f"{program} measures nothing here")


def perftest_once(program, devices, gid_index, *options):
    common = [program, "-x", str(gid_index), "-F", *options]
    server = subprocess.Popen([*common, "-d", devices[1]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(20):
            time.sleep(0.3)
            command = [*common, "-d", devices[0], "127.0.0.1"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
            if done.returncode == 0:
                rows = [line.split() for line in done.stdout.splitlines() if line.strip()[:1].isdigit()]
                return [float(column) for column in rows[-1]]
        raise RuntimeError(f"{program}: {done.stdout}{done.stderr}")
    finally:
        server.kill()
        server.wait()


def count_of(nbytes):
    return max(20, min(1000, (64 << 20) // nbytes))


def say(what, program, ours, theirs):
    ratios = [mine / other for mine, other in zip(ours, theirs)]
    ratio, mine, other = (statistics.median(values) for values in (ratios, ours, theirs))
    print(f"{what}: {mine:7.1f}, {program} {other:7.1f}: {ratio:.2f} ({min(ratios):.2f}-{max(ratios):.2f})", flush=True)


def main():
    devices = tuple(sys.argv[1:3]) or ("rxe0", "rxe1")
    gid_index = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    end = End(devices[0], gid_index)
    peer = Peer(end, devices[1], gid_index)
    place = end.peer["address"], end.peer["rkey"]
    print(f"{end.rail.describe()}; medians of {ROUNDS} rounds")
    for nbytes in SIZES:
        ours, theirs = [], []
        for _ in range(ROUNDS):
            ns = end.trial.stream(end.mr, nbytes, count_of(nbytes), *place, LIMIT_S)
            ours.append(nbytes * count_of(nbytes) / (1 << 20) / (ns / 1e9))
            size = "-s", str(nbytes), "-n", str(count_of(nbytes))
            theirs.append(perftest("ib_write_bw", devices, gid_index, BW_AVERAGE, *size))
        say(f"{nbytes:9} bytes, MiB/s", "ib_write_bw", ours, theirs)
    ours, theirs = [], []
    for _ in range(ROUNDS):
        peer.ask("ping", "ping")
        ours.append(float(np.median(end.ping_pong(True))) / ROUNDS_TIMED / 2000)
        size = "-s", str(PING_NBYTES), "-n", str(PING_PONGS)
        theirs.append(perftest("ib_write_lat", devices, gid_index, LAT_MEDIAN, *size))
    say(f"{PING_NBYTES:9} bytes, us   ", "ib_write_lat", ours, theirs)
    peer.process.stdin.close()
    peer.process.wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--answer"]:
        answer(sys.argv[2], int(sys.argv[3]))
    else:
        main()
