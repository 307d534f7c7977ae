"""Count wrong elements of each collective, without and with an error planted on the last rank; rank 0 writes JSON.

usage: mpirun -n N python prog_bench_planted.py RESULTS.json
"""

import json
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

import hetccl
from hetccl.cli.collectives import Side
from hetccl.cli.measure import Bench
from hetccl.cli.report import BENCHMARKS

WORLD = MPI.COMM_WORLD
COUNT, SPOILED = 37, 12
# Where the receive buffer is among the arguments.
PLACES = {"Bcast": 0, "Recv": 0, "Irecv": 0, "Sendrecv": "recvbuf"}


def spoil(buffer):
    """Change one element of a receive buffer, or of the array in a spec: in the first block, which all results fill."""
    array = buffer[0] if isinstance(buffer, list) else buffer
    array[SPOILED] += 1


class Late:
    """A request whose message is spoiled when it has come."""

    def __init__(self, request, buffer):
        self.request, self.buffer = request, buffer

    def Wait(self):
        self.request.Wait()
        spoil(self.buffer)


class Spoiling:
    """A communicator that spoils one element of what each call receives, on the last rank."""

    def __init__(self, comm):
        self.comm = comm

    def __getattr__(self, name):
        method = getattr(self.comm, name)
        if not callable(method) or WORLD.rank != WORLD.size - 1 or name in ("Send", "Isend", "Barrier"):
            return method

        def call(*args, **kwargs):
            done = method(*args, **kwargs)
            place = PLACES.get(name, 1)
            buffer = kwargs[place] if isinstance(place, str) else args[place]
            if name == "Irecv":
                return Late(done, buffer)
            if buffer is not None:
                spoil(buffer)
            return done

        return call


def main():
    found = {}
    with hetccl.Comm(WORLD) as comm:
        for name, benchmark in BENCHMARKS.items():
            op = "sum" if benchmark.reduces else None
            for kind, mine in (("sound", comm), ("spoiled", Spoiling(comm))):
                side = Side(mine, hetccl.SUM, hetccl.IN_PLACE, byte=MPI.BYTE)
                bench = Bench(benchmark, WORLD, [side], np.dtype("int32"), op, WORLD.size - 1, [COUNT])
                row = bench.row(COUNT, warmup=0, iters=1, check=True)
                for mode in benchmark.modes:
                    timings = row.out_place if mode == "out" else row.in_place
                    found.setdefault(f"{name}-{mode}", {})[kind] = timings["hetccl"].wrong
    if WORLD.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
