"""One rank of bench/alltoallw.py: times transposes of a distributed array by Alltoallw, hetccl and mpi4py taking turns.

The array has three axes. Each rank holds all of one of them and a part of another; a transpose "01" turns an array that
is whole along axis 0 into one that is whole along axis 1. Every rank sends a subarray to every other, and the program
packs none of them: that is how distributed Fourier transforms are written.
"""

import argparse
import functools
import json
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

SIDES = ("hetccl", "mpi4py")
# Indices are checked modulo a prime: they fit float32 exactly, and no part of an array repeats another.
PERIOD = 65521


def main():
    args = parse_arguments()
    world = MPI.COMM_WORLD
    group = world.Split(world.rank // args.group, world.rank)
    comms = {"mpi4py": group, "hetccl": new_comm(group) if "hetccl" in args.sides else None}
    rows = [measure(world, Transpose(world, group, args.shape, pair), comms, args) for pair in args.pairs]
    if world.rank == 0:
        name, version = MPI.get_vendor()
        page = {"mpi": f"{name} {'.'.join(map(str, version))}", "ranks": world.size, "group": args.group, "rows": rows}
        args.json.write_text(json.dumps(page))
    if comms["hetccl"] is not None:
        comms["hetccl"].Free()
    group.Free()


def parse_arguments():
    """The options, as bench/alltoallw.py gives them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--shape", type=int, nargs=3, default=[256] * 3, help="of the whole array (256 256 256)")
    add("--group", type=int, default=2, help="ranks that transpose together; divides the number of ranks (2)")
    add("--pairs", nargs="+", default=["01"], help="axes that are whole before and after (01)")
    add("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    add("--iters", type=int, default=20)
    add("--warmup", type=int, default=2)
    add("--parts", action="store_true", help="also MPI's packing and unpacking alone, and a contiguous Alltoall")
    add("--json", type=Path, required=True)
    return parser.parse_args()


def new_comm(group):
    """hetccl's communicator. Imported here: without it the peer can be timed where hetccl is not built."""
    import hetccl

    return hetccl.Comm(group)


class Transpose:
    """Arrays and datatypes of one rank.

    world, group : MPI communicators; the groups cut the third axis among themselves, and each transposes its part
    shape        : of the whole array
    pair         : "ab", the axes that are whole before and after
    """

    def __init__(self, world, group, shape, pair):
        self.pair = pair
        before, after = map(int, pair)
        third = 3 - before - after
        box = [slice(0, n) for n in shape]
        box[third] = cuts(shape[third], world.size // group.size)[world.rank // group.size]
        old, new = list(box), list(box)
        old[after] = cuts(shape[after], group.size)[group.rank]
        new[before] = cuts(shape[before], group.size)[group.rank]
        self.sent, self.expected = indices(old, shape), indices(new, shape)
        self.received = np.empty_like(self.expected)
        self.scratch = np.empty(max(self.sent.size, self.received.size), np.complex64)
        self.send_types = subarrays(self.sent, before, group.size)
        self.receive_types = subarrays(self.received, after, group.size)

    def run(self, comm):
        """The transpose."""
        comm.Alltoallw([self.sent, self.send_types], [self.received, self.receive_types])

    def copy(self, comm):
        """The copies alone: all parts packed and unpacked by MPI, one after another."""
        position = 0
        for datatype in self.send_types:
            position = datatype.Pack(self.sent, self.scratch, position, comm)
        position = 0
        for datatype in self.receive_types:
            position = datatype.Unpack(self.scratch, position, self.received, comm)

    def move(self, comm):
        """The transport alone: as many bytes between contiguous buffers."""
        count = self.sent.size // comm.size * comm.size
        comm.Alltoall(self.sent.reshape(-1)[:count], self.scratch[:count])

    def wrong(self):
        """Elements of this rank that are not what they should be."""
        return int(np.count_nonzero(self.received != self.expected))


def cuts(length, parts):
    """Slices of range(length), as equal as can be."""
    starts = [length * part // parts for part in range(parts + 1)]
    return [slice(start, stop) for start, stop in zip(starts, starts[1:])]


def indices(box, shape):
    """The part of the array in which each element is its own index: complex64 of the box's shape."""
    i, j, k = np.ogrid[box[0], box[1], box[2]]
    index = (i * shape[1] + j) * shape[2] + k
    return (index % PERIOD + 1j * (index // PERIOD)).astype(np.complex64)


def subarrays(array, axis, parts):
    """One committed datatype for each part of `array` along `axis`."""
    types = []
    for part in cuts(array.shape[axis], parts):
        sizes, starts = list(array.shape), [0, 0, 0]
        sizes[axis], starts[axis] = part.stop - part.start, part.start
        types.append(MPI.C_FLOAT_COMPLEX.Create_subarray(array.shape, sizes, starts).Commit())
    return types


def measure(world, transpose, comms, args):
    """Time all calls by turns. Collective.

    Returns: {"pair", "nbytes" (sent by a rank), call: {"ms": median over iterations of the slowest rank's time,
             "p95_ms", "min_ms", "cpu_ms": median of the processor time of all ranks together, and of a library's call
             "wrong": elements in all}}
    """
    calls = {side: functools.partial(transpose.run, comms[side]) for side in args.sides}
    if args.parts:
        calls["copies"] = functools.partial(transpose.copy, comms["mpi4py"])
        calls["transport"] = functools.partial(transpose.move, comms["mpi4py"])
    seconds = {name: [] for name in calls}  # rows of elapsed and processor time
    turns = list(calls.items())
    for iteration in range(-args.warmup, args.iters):
        for name, call in turns if iteration % 2 == 0 else reversed(turns):
            world.Barrier()
            start = time.perf_counter(), time.process_time()
            call()
            elapsed = time.perf_counter() - start[0], time.process_time() - start[1]
            if iteration >= 0:
                seconds[name].append(elapsed)
    row = {"pair": transpose.pair, "nbytes": transpose.sent.nbytes}
    for name, call in turns:
        everywhere = 1e3 * np.array(world.allgather(seconds[name]))
        slowest, cpu = everywhere[:, :, 0].max(axis=0), everywhere[:, :, 1].sum(axis=0)
        row[name] = {"ms": np.median(slowest), "p95_ms": np.percentile(slowest, 95), "min_ms": np.min(slowest)}
        row[name]["cpu_ms"] = np.median(cpu)
        if name in SIDES:
            transpose.received.fill(np.nan)
            call()
            row[name]["wrong"] = sum(world.allgather(transpose.wrong()))
    return row


if __name__ == "__main__":
    main()
