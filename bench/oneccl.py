"""All-reduce of host buffers, float32 sum: oneCCL through hetccl, hetccl's own plans and mpi4py, in one job.

    mpirun -n 2 python bench/oneccl.py
    mpirun -n 2 python bench/oneccl.py --sizes 8 1M --seconds 5

The three work on the same arrays and take turns, in changing order. The time of a call is between two MPI barriers, the
slowest rank's; the table, in Markdown, holds medians and, in brackets, the least. A ratio below 1: the first is faster.
Every result is checked. Ranks on more cores than the job has slow oneCCL down a thousandfold: its waits spin.
"""

import argparse
import os
import sys
import time

import numpy as np
from mpi4py import MPI

import hetccl
from hetccl import _oneccl, oneccl
from hetccl.config import UNITS, load

SIZES = ("8", "64", "1K", "8K", "64K", "256K", "1M", "4M", "16M", "64M")
NAMES = ("oneCCL", "hetccl", "mpi4py")
# As many rounds hold every order of the three; the clock is asked after them.
ROUNDS = 6
POISON = np.float32(-12345.0)
# For calls of a microsecond a barrier would be most of the time: several calls share one.
BATCHES = ((4096, 20), (1 << 17, 4))


def size_of(text):
    number, unit = (text[:-1], text[-1]) if text[-1] in UNITS else (text, "")
    nbytes = int(number) * UNITS[unit]
    if nbytes <= 0 or nbytes % 4:
        raise argparse.ArgumentTypeError("bytes, a multiple of 4; K, M, G allowed")
    return nbytes


def batch_of(nbytes):
    return next((calls for limit, calls in BATCHES if nbytes <= limit), 1)


def communicator(world, host_ccl):
    """A communicator whose host buffers are served by this one, whatever the environment says."""
    os.environ["HETCCL_HOST_CCL"] = host_ccl
    return hetccl.Comm(world)


def inputs(rank, count):
    """Whole numbers that differ by rank and place, and whose sums are exact in float32."""
    return ((np.arange(count, dtype=np.int64) * (2 * rank + 3) + rank) % 1021).astype(np.float32)


def wrong(world, calls, recv, expected):
    """Wrong elements on all ranks, over all calls."""
    found = 0
    for call in calls:
        recv.fill(POISON)
        call()
        found += int(np.count_nonzero(recv != expected))
    return world.allreduce(found)


def measure(world, calls, seconds, batch):
    """Seconds per call of the slowest rank: array (calls, rounds)."""
    rows, begin, more = [], time.perf_counter(), True
    while more:
        for turn in range(ROUNDS):
            order = np.roll(range(len(calls)), turn)[:: 1 if turn < ROUNDS // 2 else -1]
            row = np.zeros(len(calls))
            for which in order:
                world.Barrier()
                start = time.perf_counter()
                for _ in range(batch):
                    calls[which]()
                row[which] = (time.perf_counter() - start) / batch
            rows.append(row)
        more = world.bcast(time.perf_counter() - begin < seconds)
    return np.max(world.allgather(np.array(rows).T), axis=0)


def line_of(nbytes, times):
    middle, least = np.median(times, axis=1), np.min(times, axis=1)
    cells = [f"{m * 1e6:.1f} ({low * 1e6:.1f})" for m, low in zip(middle, least)]
    rates = [f"{nbytes / m / 1e9:.2f}" for m in middle]
    ratios = [f"{middle[0] / middle[1]:.2f}", f"{middle[0] / middle[2]:.2f}"]
    return "| " + " | ".join([str(nbytes), str(times.shape[1]), *cells, *rates, *ratios]) + " |"


def heading(world):
    found = oneccl.describe(load())
    cores = len(os.sched_getaffinity(0))
    mpi = MPI.Get_library_version().split(",")[0].strip()
    load_before = os.getloadavg()[0]
    columns = [*(f"{name} us" for name in NAMES), *(f"{name} GB/s" for name in NAMES)]
    names = ["bytes", "rounds", *columns, "oneCCL / hetccl", "oneCCL / mpi4py"]
    return "\n".join(
        [
            f"{world.size} ranks, {cores} cores, load {load_before:.2f} before; oneCCL {found.version}, "
            f"hetccl {hetccl.__version__}, {mpi}; {time.strftime('%F')}",
            "",
            "| " + " | ".join(names) + " |",
            "|" + "---:|" * len(names),
        ]
    )


def main():
    """Returns the exit status: 1 if a result was wrong, 2 if oneCCL cannot be had."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=size_of, nargs="+", default=[size_of(text) for text in SIZES], metavar="SIZE")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each size (3)")
    args = parser.parse_args()
    world = MPI.COMM_WORLD
    if world.size < 2:
        parser.error("start it with mpirun -n 2")
    own, theirs = communicator(world, "own"), communicator(world, "oneccl")
    if world.rank == 0:
        print(heading(world), flush=True)
    errors = 0
    for nbytes in args.sizes:
        send = inputs(world.rank, nbytes // 4)
        recv = np.empty_like(send)
        expected = sum(inputs(rank, send.size) for rank in range(world.size))
        calls = [lambda comm=comm, s=send, r=recv: comm.Allreduce(s, r) for comm in (theirs, own, world)]
        before = _oneccl.ndone()
        errors += wrong(world, calls, recv, expected)
        if _oneccl.ndone() != before + 1:
            sys.exit("bench: oneCCL has not served its communicator")
        times = measure(world, calls, args.seconds, batch_of(nbytes))
        errors += wrong(world, calls, recv, expected)
        if world.rank == 0:
            print(line_of(nbytes, times), flush=True)
    theirs.Free()
    own.Free()
    if errors and world.rank == 0:
        print(f"{errors} wrong elements", file=sys.stderr)
    return int(errors > 0)


if __name__ == "__main__":
    sys.exit(main())
