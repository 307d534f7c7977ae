"""One rank of bench/gpu.py: times all contenders in turn, round after round; rank 0 writes the results as JSON.

usage: mpirun -n N python bench/gpu_job.py RESULTS.json [--quick]
"""

import argparse
import json
import os
import statistics
import sys
from pathlib import Path

import cupy
import numpy as np
from gpu_contenders import COLLECTIVES, CONTENDERS, CLoopNonblocking, CupyArrays, Hetccl, loaded
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
SIZES = (8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30)
ROUNDS = 11
# What one timing of one contender should take: long against the clock's and the events' grain.
TARGET_S = 4e-3
CALLS_MAX = 200
# Calls that are queued without waiting, for the host's time: fewer than the device's queue holds.
QUEUED = 200
HOST_ROUNDS = 11
HOST_SIZES = (8, 4 << 10, 32 << 10)
# Results are compared up to this size, in bytes.
COMPARED = 16 << 20


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    args = parser.parse_args()
    cupy.cuda.Device(RANK).use()
    stream = cupy.cuda.Stream(non_blocking=True)
    stream.use()
    # hetccl comes first: it must find the library without another's help; later ones use the copy that it loaded.
    contenders, absent = [], {}
    largest = SIZES[-4] if args.quick else SIZES[-1]
    send = cupy.arange(largest // 4, dtype=np.float32) % 8 + RANK
    recv = cupy.zeros(largest // 4, np.float32)
    for cls in CONTENDERS:
        start(cls, stream, send, contenders, absent)
    page = {"header": header(contenders, absent), "rows": [], "host": []}
    # How these two differ from the others is in the host's time alone.
    timed = [each for each in contenders if not isinstance(each, (CLoopNonblocking, CupyArrays))]
    for collective in COLLECTIVES:
        for nbytes in (size for size in SIZES if size <= largest and size // 4 % SIZE == 0):
            rounds = 5 if args.quick else ROUNDS
            page["rows"].append(row(collective, nbytes, timed, send, recv, stream, rounds))
        for nbytes in HOST_SIZES:
            page["host"].append(host_row(collective, nbytes, contenders, send, recv, stream))
        # A job that is stopped for its time leaves what it has.
        if RANK == 0:
            args.results.write_text(json.dumps(page))
            print(f"{collective} done", file=sys.stderr, flush=True)
    for contender in reversed(contenders):
        contender.close()


def start(cls, stream, send, contenders, absent):
    """Set up a contender on all ranks, or note why it cannot take part: what is not installed is no fault."""
    try:
        __import__({"nccl4py": "nccl.core", "torch": "torch.distributed"}.get(cls.name, "hetccl"))
        problem = None
    except ImportError as error:
        problem = str(error)
    problems = [text for text in WORLD.allgather(problem) if text]
    if problems:
        absent[cls.name] = problems[0]
        return
    contender = cls(WORLD, stream)
    if cls is Hetccl:
        # The library is loaded by the first device call.
        contender.comm.Allreduce(send[:4], cupy.zeros(4, np.float32))
    contenders.append(contender)
    libraries = loaded("libnccl.so")
    if len(libraries) != 1:
        raise RuntimeError(f"one NCCL must serve all, but after {cls.name} there are {libraries}")


def header(contenders, absent):
    (path,) = loaded("libnccl.so")
    number = next(contender.version for contender in contenders if contender.name == "C loop")
    properties = cupy.cuda.runtime.getDeviceProperties(RANK)
    return {
        "ranks": SIZE,
        "device": properties["name"].decode(),
        "nccl": f"{number // 10000}.{number // 100 % 100}.{number % 100}",
        "library": path,
        "cupy": cupy.__version__,
        "python": sys.version.split()[0],
        "absent": absent,
        "environment": {name: value for name, value in os.environ.items() if name.startswith("NCCL_")},
    }


def parts(collective, nbytes, send, recv):
    """(send, recv, count): nbytes is the larger of the two buffers, as nccl-tests count."""
    total, each = nbytes // 4, nbytes // 4 // SIZE
    if collective == "allreduce":
        return send[:total], recv[:total], total
    if collective == "allgather":
        return send[:each], recv[:total], each
    if collective == "reducescatter":
        return send[:total], recv[:each], each
    return send[:total], recv[:total], each


def measure(call, calls, stream):
    """Seconds per call on the device, of the slowest rank."""
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    WORLD.Barrier()
    begin.record(stream)
    call(calls)
    end.record(stream)
    end.synchronize()
    return WORLD.allreduce(cupy.cuda.get_elapsed_time(begin, end) * 1e-3 / calls, MPI.MAX)


def row(collective, nbytes, contenders, send, recv, stream, rounds):
    """Times of all contenders at one size: they take turns, and who begins changes from round to round."""
    source, target, count = parts(collective, nbytes, send, recv)
    calls = {each.name: each.call(collective, source, target, count) for each in contenders}
    warm_up(collective, nbytes, calls, target, stream)
    estimate = measure(calls["C loop"], 5, stream)
    number = max(3, min(CALLS_MAX, int(TARGET_S / estimate)))
    times = {name: [] for name in calls}
    names = list(calls)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            times[name].append(measure(calls[name], number, stream))
    return {"collective": collective, "nbytes": nbytes, "calls": number, "times": times}


def warm_up(collective, nbytes, calls, target, stream):
    """Run all once, so that NCCL has its connections; results must be those of the C loop."""
    want = None
    for name in sorted(calls, key=lambda name: name != "C loop"):
        target.fill(-1)
        calls[name](3)
        stream.synchronize()
        if nbytes > COMPARED or name == "torch" and collective == "allreduce":
            continue
        if want is None:
            want = target.copy()
        elif not bool((target == want).all()):
            raise RuntimeError(f"{name}: {collective} of {nbytes} bytes differs from the C loop's")


def host_row(collective, nbytes, contenders, send, recv, stream):
    """The host's seconds per call while nothing waits for the device."""
    source, target, count = parts(collective, nbytes, send, recv)
    times = {}
    calls = {each.name: each.call(collective, source, target, count) for each in contenders}
    for turn in range(HOST_ROUNDS):
        names = list(calls)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            WORLD.Barrier()
            seconds = calls[name](QUEUED) / QUEUED
            stream.synchronize()
            times.setdefault(name, []).append(seconds)
    medians = WORLD.allgather({name: statistics.median(found) for name, found in times.items()})
    quartiles = {name: statistics.quantiles(found, n=4) for name, found in times.items()}
    slowest = {name: max(each[name] for each in medians) for name in times}
    return {"collective": collective, "nbytes": nbytes, "seconds": slowest, "quartiles": quartiles}


if __name__ == "__main__":
    main()
