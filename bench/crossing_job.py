"""One rank of bench/crossing.py: times all contenders in turn, round after round; rank 0 writes the results as JSON.

usage: mpirun -n 2 python bench/crossing_job.py RESULTS.json [--quick]
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import cupy
import cupyx
import numpy as np
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
os.environ["HETCCL_ISLAND"] = "ABCDEFGH"[RANK % 8]

import hetccl  # noqa: E402 - after the island's label

MIB = 1 << 20
SMALL = (8, 64, 512, 4 << 10, 16 << 10, 64 << 10)
LARGE = (MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB)
ROUNDS = 7
# What one timing should take, and the calls it may have.
TARGET_S = 0.05
CALLS_MAX = 200
# Pieces of the plain copies: as many bytes each way at once as a real exchange could have under way.
COPY_BYTES = 64 * MIB


class Hetccl:
    name = "hetccl"

    def __init__(self, stream):
        self.comm, self.stream = hetccl.Comm(WORLD), stream

    def run(self, send, recv, calls):
        for _ in range(calls):
            self.comm.Allreduce(send, recv)


class Copies:
    """What the hardware allows: as many bytes to the host, and as many back, at the same time."""

    name = "copies"

    def __init__(self, stream):
        self.stream = stream
        self.there, self.back = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
        self.pinned = [cupyx.empty_pinned(COPY_BYTES, np.uint8) for _ in range(2)]

    def run(self, send, recv, calls):
        out, into = self.pinned
        begun = self.stream.record()
        for side in (self.there, self.back):
            side.wait_event(begun)
        nbytes = send.nbytes
        for _ in range(calls):
            for start in range(0, nbytes, COPY_BYTES):
                part = min(COPY_BYTES, nbytes - start)
                cupy.cuda.runtime.memcpyAsync(out.ctypes.data, send.data.ptr + start, part, 2, self.there.ptr)
                cupy.cuda.runtime.memcpyAsync(recv.data.ptr + start, into.ctypes.data, part, 1, self.back.ptr)
        for side in (self.there, self.back):
            self.stream.wait_event(side.record())


class Staged:
    """mpi4py on pinned host copies, as programs do it by hand."""

    name = "mpi4py, staged"

    def __init__(self, stream):
        self.stream = stream
        self.pinned = [cupyx.empty_pinned(LARGE[-1] // 4, np.float32) for _ in range(2)]

    def run(self, send, recv, calls):
        mine, sums = (pinned[: send.size] for pinned in self.pinned)
        for _ in range(calls):
            send.get(out=mine, stream=self.stream)
            self.stream.synchronize()
            WORLD.Allreduce(mine, sums)
            recv.set(sums, stream=self.stream)


class Gloo:
    """torch.distributed's way for GPU tensors without NCCL."""

    name = "torch gloo"

    def __init__(self, stream):
        import torch

        self.torch, self.stream = torch, stream
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(WORLD.bcast(29500 + os.getpid() % 1000)))
        torch.cuda.set_device(RANK)
        torch.distributed.init_process_group("gloo", rank=RANK, world_size=SIZE)

    def run(self, send, recv, calls):
        with self.torch.cuda.stream(self.torch.cuda.ExternalStream(self.stream.ptr)):
            tensor = self.torch.as_tensor(recv, device=f"cuda:{RANK}")
            for _ in range(calls):
                self.torch.distributed.all_reduce(tensor)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    args = parser.parse_args()
    cupy.cuda.Device(RANK).use()
    stream = cupy.cuda.Stream(non_blocking=True)
    stream.use()
    contenders, absent = [Hetccl(stream), Copies(stream), Staged(stream)], {}
    start_gloo(stream, contenders, absent)
    largest = LARGE[-1]
    send = cupy.arange(largest // 4, dtype=np.float32) % 8 + RANK
    recv = cupy.zeros(largest // 4, np.float32)
    page = {"header": header(absent), "rows": []}
    for nbytes in SMALL[::2] + LARGE[2:] if args.quick else SMALL + LARGE:
        page["rows"].append(row(nbytes, contenders, send, recv, stream, 3 if args.quick else ROUNDS))
        if RANK == 0:
            # A job that is stopped for its time leaves what it has.
            args.results.write_text(json.dumps(page))
    contenders[0].comm.Free()


def start_gloo(stream, contenders, absent):
    try:
        import torch.distributed  # noqa: F401 - only whether it is there

        problem = None
    except ImportError as error:
        problem = str(error)
    problems = [text for text in WORLD.allgather(problem) if text]
    if problems:
        absent[Gloo.name] = problems[0]
    else:
        contenders.append(Gloo(stream))


def header(absent):
    properties = cupy.cuda.runtime.getDeviceProperties(RANK)
    return {
        "ranks": SIZE,
        "device": properties["name"].decode(),
        "cores": len(os.sched_getaffinity(0)),
        "cupy": cupy.__version__,
        "python": sys.version.split()[0],
        "mpi": MPI.Get_library_version().split(",")[0].strip(),
        "absent": absent,
    }


def measure(contender, send, recv, calls, stream):
    """(seconds per call on the device, the host's seconds per call), of the slowest rank."""
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    stream.synchronize()
    WORLD.Barrier()
    begin.record(stream)
    clock = time.perf_counter()
    contender.run(send, recv, calls)
    host = (time.perf_counter() - clock) / calls
    end.record(stream)
    end.synchronize()
    device = cupy.cuda.get_elapsed_time(begin, end) * 1e-3 / calls
    return WORLD.allreduce(device, MPI.MAX), WORLD.allreduce(host, MPI.MAX)


def row(nbytes, contenders, send, recv, stream, rounds):
    """Times of all contenders at one size, who take turns."""
    source, target = send[: nbytes // 4], recv[: nbytes // 4]
    numbers, times, hosts = {}, {}, {}
    # Plain copies of few bytes say nothing.
    taking = [each for each in contenders if nbytes >= MIB or not isinstance(each, Copies)]
    for each in taking:
        target.fill(0)
        seconds, _ = measure(each, source, target, 2, stream)
        if isinstance(each, Hetccl):
            check(source, target, nbytes)
        numbers[each.name] = max(2, min(CALLS_MAX, int(TARGET_S / seconds)))
    for turn in range(rounds):
        for each in taking[turn % len(taking) :] + taking[: turn % len(taking)]:
            device, host = measure(each, source, target, numbers[each.name], stream)
            times.setdefault(each.name, []).append(device)
            hosts.setdefault(each.name, []).append(host)
    if RANK == 0:
        print(nbytes, {name: min(found) for name, found in times.items()}, file=sys.stderr, flush=True)
    return {"nbytes": nbytes, "calls": numbers, "times": times, "hosts": hosts}


def check(source, target, nbytes):
    want = (source - RANK) * SIZE + sum(range(SIZE))
    if not bool((target == want).all()):
        raise RuntimeError(f"wrong sums of {nbytes} bytes")


if __name__ == "__main__":
    main()
