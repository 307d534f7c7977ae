"""For programs inside a guest that need no MPI: rails between two devices, a report that pytest reads.

A program is a file of functions `check_<what>()`. Each runs under a time of its own; one line per check is written:
{"rank": 0, "name", "problem"}. A line that is missing counts as a failure.
"""

import contextlib
import json
import mmap
import re
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

from hetccl import _verbs
from hetccl._rail_trial import Trial
from hetccl._rdma import RdmaPort

LIMIT_S = 300
# For what takes far less on an idle machine; nothing here is about how long.
WAIT_S = 100
GID_INDEX = 1
# A retry_cnt: rxe repeats without end. With any other, chance has it that now and then all attempts are lost.
ENDLESS = 7
# A timeout (17 s): far beyond what a large write takes where the guest has little of its host's time. Sent again before
# it is through, it would never be.
PATIENT = 22
FAST_FAILURE = {"timeout": 14, "retry_cnt": 1, "rnr_retry": 1}


def run_checks(functions):
    """Run the checks that the command line names (<report folder> <layout> <names>), of the module's functions."""
    folder, _, *names = sys.argv[1:]
    with open(Path(folder, "0.jsonl"), "a", buffering=1) as report:
        for name in names:
            problem = _problem(functions[name], LIMIT_S)
            print(f"{name}: {problem or 'ok'}", flush=True)
            report.write(json.dumps({"rank": 0, "name": name, "problem": problem}) + "\n")


def _problem(check, limit_s):
    def expire(signum, frame):
        raise TimeoutError(f"still running after {limit_s} s")

    signal.signal(signal.SIGALRM, expire)
    signal.alarm(getattr(check, "limit_s", limit_s))
    try:
        check()
    except Exception:
        return traceback.format_exc()
    finally:
        signal.alarm(0)
    return None


def limit(seconds):
    """Another time for a check."""

    def mark(check):
        check.limit_s = seconds
        return check

    return mark


def card(device, gid_index=GID_INDEX):
    """The rail card of a device's first port, as hetccl.net.nics makes it."""
    port = next(port for port in _verbs.devices() if port["device"] == device)
    gid = next(gid for gid in port["gids"] if gid["index"] == gid_index)
    return {"device": device, "port": 1, "gid": gid["gid"], "gid_index": gid_index}


class End:
    """One end of a rail: its port, the rail, the trial, and registered memory.

    nbytes : of the memory `memory` (mmap), which `mr` is the registration of
    """

    def __init__(self, device, nbytes=1 << 20, receives=512, port=None, **settings):
        self.own_port = port is None
        self.port = port or RdmaPort(card(device), receives=receives, settings={"timeout": PATIENT, **settings})
        self.rail = self.port.rail(1, 0)
        self.trial = Trial(self.port, self.rail)
        self.memory = mmap.mmap(-1, nbytes)
        self.mr = self.trial.reg(self.memory)

    def write(self, to, nbytes=0, source=0, target=0, imm=None, rkey=None):
        """Post a write from `source` in this memory to `target` in the other end's."""
        pieces = [(self.mr.address + source, nbytes, self.mr.lkey)] if nbytes else []
        return self.trial.write(pieces, to.mr.address + target, to.mr.rkey if rkey is None else rkey, imm)

    def about(self):
        """For messages."""
        return self.trial.state, self.trial.counts, self.trial.came, self.rail.fault()

    def close(self):
        if self.mr is not None:
            self.mr.dereg()
            self.mr = None
        self.rail.close()
        if self.own_port:
            self.port.close()


@contextlib.contextmanager
def pair(devices=("rxe0", "rxe1"), ends=None, **options):
    """Two connected ends; afterwards the kernel must have as many objects as before."""
    before = resources()
    a, b = ends or [End(device, **options) for device in devices]
    try:
        a.rail.connect(b.rail.local())
        b.rail.connect(a.rail.local())
        yield a, b
    finally:
        a.close()
        b.close()
    del a, b, ends
    assert resources() == before, f"left behind: {resources()}, before: {before}"


def drive(*ends, until, seconds=WAIT_S):
    """Poll the ends until a condition holds; AssertionError after the time."""
    deadline = time.monotonic() + seconds
    while not until():
        for end in ends:
            end.trial.poll()
        assert time.monotonic() < deadline, [end.about() for end in ends]


def post(sender, receiver, *arguments, **options):
    """Write; while the send queue is full poll both."""
    while (answer := sender.write(receiver, *arguments, **options)) == "again":
        sender.trial.poll()
        receiver.trial.poll()
    assert answer == "done", (answer, sender.rail.fault())


def resources():
    """{"rxe0": {"qp": 1, ...}} of the kernel; objects of its own included."""
    text = subprocess.run(["rdma", "resource", "show"], capture_output=True, text=True, check=True).stdout
    found = {}
    for line in text.splitlines():
        name, counts = re.fullmatch(r"\d+: (\S+?): (.*?)\s*", line).groups()
        words = counts.split()
        found[name] = {words[i]: int(words[i + 1]) for i in range(0, len(words), 2)}
    return found


def shell(command):
    subprocess.run(command, shell=True, check=True)


@contextlib.contextmanager
def loss(percent, *nics):
    """Packets of these interfaces are lost at random."""
    for nic in nics:
        shell(f"tc qdisc add dev {nic} root netem loss {percent}%")
    try:
        yield
    finally:
        for nic in nics:
            shell(f"tc qdisc del dev {nic} root")
