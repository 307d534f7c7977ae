"""Ranks of a fake vendor's island as plain processes of this host, without MPI: for tests of communicators.

A test gives the body of a program, which runs in each rank with `rank`, `size` and what is defined here; the ranks meet
through files. Nothing hangs: every wait has a time-out, and ranks that still run at the end of a test are killed.
"""

import ctypes
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np

from fakes.build import build

ROOT = Path(__file__).resolve().parents[2]
RUN_S = 180
MEET_S = 60
POLL_S = 0.005
# NCCL's numbers.
DTYPES = {
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
    "float8_e4m3fn": 10,
    "float8_e5m2": 11,
}
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
PRELUDE = """\
import os, signal, sys, threading, time
import numpy as np
from hetccl import _cuda, _nccl
from hetccl._vendor import VendorComm
from hetccl.errors import *
from vendor_ranks import *
rank, size = me()
"""


class Ranks:
    """Running ranks; a context manager that kills what still runs at its end."""

    def __init__(self, folder, processes):
        self.folder = folder
        self.processes = processes

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            # What a communicator that not all ranks have come to leaves behind.
            for path in Path("/dev/shm").glob(f"fakeccl-{process.pid}-*"):
                path.unlink(missing_ok=True)

    def wait(self, timeout_s=RUN_S):
        """Wait for the end of all ranks; answers their exit codes."""
        deadline = time.monotonic() + timeout_s
        return [process.wait(max(deadline - time.monotonic(), 0.1)) for process in self.processes]

    def texts(self, stream):
        """What each rank has printed to "out" or "err"."""
        return [(self.folder / f"{rank}.{stream}").read_text() for rank in range(len(self.processes))]

    def await_line(self, rank, line, timeout_s=MEET_S):
        """Wait until a rank has printed a line."""
        deadline = time.monotonic() + timeout_s
        while f"{line}\n" not in self.texts("out")[rank]:
            assert time.monotonic() < deadline, f"rank {rank} never printed {line!r}: {self.texts('err')}"
            time.sleep(POLL_S)


def start(folder, size, body, env=None, per_rank=None, options=(), without=()):
    """Start ranks.

    body     : str, a program, dedented
    env      : dict of str, for all ranks; per_rank: list of such dicts
    options, without : of build(), for the fake CCL
    """
    libraries = {"FAKE_CUDA": build("fakecuda"), "FAKE_CCL": build("fakeccl", *options, without=without)}
    path = os.pathsep.join(str(part) for part in (ROOT, ROOT / "tests", ROOT / "tests" / "unit"))
    program = PRELUDE + textwrap.dedent(body)
    processes = []
    for rank in range(size):
        own = {"RANKS_FOLDER": str(folder), "RANKS_RANK": str(rank), "RANKS_SIZE": str(size), "PYTHONPATH": path}
        environ = {**os.environ, **libraries, **own, **(env or {}), **(per_rank[rank] if per_rank else {})}
        with open(folder / f"{rank}.out", "wb") as out, open(folder / f"{rank}.err", "wb") as err:
            command = [sys.executable, "-u", "-c", program]
            processes.append(subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err))
    return Ranks(folder, processes)


def run(folder, size, body, **options):
    """Run ranks to their end, which must be a good one; answers what each has printed, split at spaces."""
    with start(folder, size, body, **options) as ranks:
        codes = ranks.wait()
        assert codes == [0] * size, ranks.texts("err")
        return [text.split() for text in ranks.texts("out")]


# What follows is for the ranks' programs.


def me():
    """(rank, size)"""
    return int(os.environ["RANKS_RANK"]), int(os.environ["RANKS_SIZE"])


def gather(value, timeout_s=MEET_S):
    """Every rank's value, by rank. Collective."""
    rank, size = me()
    folder = Path(os.environ["RANKS_FOLDER"])
    gather.rounds += 1
    partial = folder / f"partial-{rank}"
    partial.write_bytes(pickle.dumps(value))
    partial.rename(folder / f"round{gather.rounds}-{rank}")
    deadline = time.monotonic() + timeout_s
    values = []
    for other in range(size):
        path = folder / f"round{gather.rounds}-{other}"
        while not path.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"rank {other} has not come to meeting {gather.rounds}")
            time.sleep(POLL_S)
        values.append(pickle.loads(path.read_bytes()))
    return values


gather.rounds = 0


def open_runtime():
    """The fake driver's Runtime."""
    from hetccl import _cuda

    return _cuda.open(os.environ["FAKE_CUDA"])


def open_ccl(name="nccl"):
    """The fake CCL."""
    from hetccl import _nccl

    return getattr(_nccl, f"open_{name}")(os.environ["FAKE_CCL"])


def join(timeout_s=10.0, device=None, **options):
    """This rank's VendorComm of all ranks. Collective."""
    from hetccl._vendor import VendorComm

    rank, size = me()
    ccl = open_ccl()
    unique_id = gather(ccl.unique_id() if rank == 0 else None)[0]
    peers = [(other, pid) for other, pid in enumerate(gather(os.getpid())) if other != rank]
    device = rank if device is None else device
    return VendorComm(ccl, open_runtime(), device, size, rank, unique_id, timeout_s, peers, **options)


def library():
    """The fake CCL for ctypes, which releases the GIL."""
    return ctypes.CDLL(os.environ["FAKE_CCL"])


def native(value):
    """An argument of the fake's functions: arrays as pointers, whole numbers as they are wide enough for all."""
    return ctypes.c_void_p(value.ctypes.data if hasattr(value, "ctypes") else value)


def call(comm, function, slot, *arguments):
    """Call one of the library's collectives on the null stream, and conclude it."""
    code = getattr(library(), function)(*map(native, arguments), native(comm.address), None)
    comm.wait(code, function.removeprefix("nccl"), slot)


def all_reduce(comm, send, recv, dtype="float32", op="sum"):
    """Sum, or the like, of every rank's send in recv."""
    call(comm, "ncclAllReduce", "all_reduce", send, recv, len(send), DTYPES[dtype], OPS[op])


def while_waiting(comm, action):
    """Begin an all-reduce that stays in progress, and wait for it; the exception that the wait raises.

    action : run on a thread of its own once this thread waits: no sooner, since the wait is the first to let go of the
             GIL, which nobody may ask for
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    begin = threading.Event()

    def act():
        begin.wait()
        sys.setswitchinterval(interval)
        action()

    thread = threading.Thread(target=act)
    thread.start()
    x = np.ones(3, "f4")
    arguments = (x, x, len(x), DTYPES["float32"], OPS["sum"], comm.address)
    code = library().ncclAllReduce(*map(native, arguments), None)
    begin.set()
    error = caught(comm.wait, code, "AllReduce", "all_reduce")
    thread.join()
    return error


def live():
    """Communicators of this process that the library has."""
    return library().fakeLive()


def caught(function, *arguments):
    """The exception that a call raises."""
    try:
        function(*arguments)
    except BaseException as error:
        return error
    raise AssertionError(f"{function} raised nothing")
