"""For the programs that mpirun starts: the communicator, guarded buffers, and the report that pytest reads.

A program is a file of functions `check_<what>(comm)`. `run_checks` calls the chosen ones in order, each with a new
communicator, and writes one line per check: {"name", "problem"}; a line that is missing counts as a failure.
"""

import contextlib
import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path

import numpy as np
from mpi4py import MPI

import hetccl

GUARD_BYTES = 256
GUARD_VALUE = 0xA5


def make_comm(mpi_comm=MPI.COMM_WORLD):
    """The communicator under test."""
    return hetccl.Comm(mpi_comm)


class Guarded:
    """An array with guard bytes on both sides.

    values : ndarray, copied in; or None to leave `count` elements of `dtype` filled with the guard byte
    shift  : elements by which the array is moved from its 64-byte aligned place
    """

    def __init__(self, values=None, *, dtype=None, count=None, shift=0):
        dtype = values.dtype if values is not None else np.dtype(dtype)
        count = values.size if values is not None else count
        self.start = GUARD_BYTES + shift * dtype.itemsize
        self.stop = self.start + count * dtype.itemsize
        self.raw = np.full(self.stop + GUARD_BYTES, GUARD_VALUE, np.uint8)
        self.array = self.raw[self.start : self.stop].view(dtype)
        if values is not None:
            self.array[:] = values

    def overwritten(self):
        """Offset in bytes from the array's nearest end of the first guard byte that changed, or None."""
        for guard, origin in ((self.raw[: self.start], -self.start), (self.raw[self.stop :], 0)):
            changed = np.flatnonzero(guard != GUARD_VALUE)
            if changed.size:
                return int(changed[0]) + origin
        return None


def as_bytes(array):
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def first_difference(got, want):
    """None, or {"index", "got", "expected"} of the first element whose bits differ (long double: whose value differs,
    because its padding bytes mean nothing)."""
    if got.size != want.size or got.dtype != want.dtype:
        return {"index": None, "got": f"{got.size} x {got.dtype}", "expected": f"{want.size} x {want.dtype}"}
    if got.dtype == np.longdouble:
        wrong = np.flatnonzero(~((got == want) | (np.isnan(got) & np.isnan(want))))
    elif np.array_equal(as_bytes(got), as_bytes(want)):
        return None
    else:
        rows = (as_bytes(got) != as_bytes(want)).reshape(got.size, -1)
        wrong = np.flatnonzero(rows.any(axis=1))
    if not wrong.size:
        return None
    index = int(wrong[0])
    return {"index": index, "got": repr(got[index]), "expected": repr(want[index]), "wrong": int(wrong.size)}


def equal(got, want):
    """Raise AssertionError unless two arrays are equal bit by bit."""
    got, want = np.asarray(got).reshape(-1), np.asarray(want).reshape(-1)
    difference = first_difference(got, want.astype(got.dtype))
    assert difference is None, f"rank {MPI.COMM_WORLD.rank}: {difference}"


@contextlib.contextmanager
def raises(*classes, names=()):
    """The block must raise one of `classes`, with each of `names` in the message; yields a list that gets the error."""
    caught = []
    try:
        yield caught
    except classes as error:
        caught.append(error)
        for name in [names] if isinstance(names, str) else names:
            assert name in str(error), f"{name!r} is not named in: {type(error).__name__}: {error}"
        return
    raise AssertionError(f"none of {[c.__name__ for c in classes]} was raised")


def still_works(comm):
    """A collective on `comm` gives the right answer: nothing is left over from a call that was refused."""
    size, rank = comm.Get_size(), comm.Get_rank()
    out = np.zeros(33, np.int64)
    comm.Allreduce(np.arange(33, dtype=np.int64) * (rank + 1), out, op=MPI.SUM)
    equal(out, np.arange(33, dtype=np.int64) * (size * (size + 1) // 2))


class Report:
    """One JSON line per event in <folder>/<rank>.jsonl, written through at once: a killed process loses nothing."""

    def __init__(self, folder, rank=None):
        self.rank = MPI.COMM_WORLD.Get_rank() if rank is None else rank
        self.file = open(Path(folder, f"{self.rank}.jsonl"), "a", buffering=1)

    def write(self, **fields):
        self.file.write(json.dumps({"rank": self.rank, **fields}) + "\n")


def say_error(error):
    """An exception as fields of a report line."""
    peer = getattr(error, "peer", None)
    peers = [] if peer is None else [int(p) for p in (peer if isinstance(peer, (tuple, list)) else (peer,))]
    classes = [cls.__name__ for cls in type(error).__mro__]
    return {"error": type(error).__name__, "classes": classes, "peers": peers, "text": str(error)}


def wait_for_reports(folder, ranks, field, limit_s=120.0):
    """Wait until every rank of `ranks` has written a line that has `field`: nobody leaves while others still wait."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        paths = [Path(folder, f"{rank}.jsonl") for rank in ranks]
        if all(path.exists() and f'"{field}"' in path.read_text() for path in paths):
            return
        time.sleep(0.05)


def signal_later(pid, *steps):
    """Start a process that sends signals to `pid`: steps are (seconds to wait, signal name), in order."""
    import subprocess

    script = "; ".join(f"sleep {seconds}; kill -{name} {pid}" for seconds, name in steps)
    return subprocess.Popen(["/bin/sh", "-c", script])


def signal_in_wait(*numbers, before=None):
    """Have this process get signals, a few tenths of a second after its main thread has begun to wait: until it lets go
    of the GIL for the first time, as waits do, no other thread runs. before: called with each signal, before it."""

    def send():
        begin.wait()
        sys.setswitchinterval(interval)
        for number in numbers:
            time.sleep(0.3)
            if before:
                before()
            os.kill(os.getpid(), number)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    begin = threading.Event()
    threading.Thread(target=send, daemon=True).start()
    begin.set()


def start_to_wait(thread):
    """Start a thread; returns when it waits, or ends: until it lets go of the GIL no other thread runs."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    thread.start()
    sys.setswitchinterval(interval)


def rank_labels():
    """The islands' letters by rank, as given to the program (its second argument)."""
    return sys.argv[2]


def run_checks(checks, build=make_comm):
    """Run the checks named on the command line: <report folder> <labels> <name>...

    build : makes what a check is called with; None for checks that make their communicators themselves
    """
    report, names = Report(sys.argv[1]), sys.argv[3:]
    for name in names:
        MPI.COMM_WORLD.Barrier()
        comm, problem = None, None
        try:
            comm = build() if build else None
            checks[name](comm)
        except BaseException:  # noqa: BLE001 - whatever ended the check belongs in the report
            problem = traceback.format_exc()
        try:
            if comm is not None:
                comm.Free()
        except BaseException:  # noqa: BLE001
            problem = problem or traceback.format_exc()
        report.write(name=name, problem=problem)


def resident_bytes():
    """Memory of this process that is in RAM."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def settled_counts():
    """process_counts() when files and threads have not changed for half a second: threads that end have ended."""
    end, counts, same = time.monotonic() + 60, process_counts(), 0
    while same < 5 and time.monotonic() < end:
        time.sleep(0.1)
        before, counts = counts, process_counts()
        same = same + 1 if counts[:2] == before[:2] else 0
    return counts


def process_counts():
    """What must not grow: (open files, threads, mappings)."""
    return (
        len(os.listdir("/proc/self/fd")),
        len(os.listdir("/proc/self/task")),
        len(Path("/proc/self/maps").read_text().splitlines()),
    )
