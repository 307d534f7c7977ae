"""Run bench on buffers of a GPU, in one job: arguments are <report folder> <layout> <place> <kinds of memory>.

A kind of memory is one letter per rank: G a GPU's, N the host's. On the fakes the arrays are the tests' own.
"""

import contextlib
import io
import json
import sys
from pathlib import Path

import device_arrays
import numpy as np

from hetccl.__main__ import main
from hetccl.cli import memory

COLLECTIVES = ("allreduce", "reduce", "broadcast", "allgather", "allgatherv", "gather", "reduce_scatter", "alltoall")
OPTIONS = ["-b", "64", "-e", "16K", "-f", "256", "-n", "2", "-w", "1", "-r", "1", "--compare", "all"]


class Fake:
    """Memory of the fake CUDA driver, as bench uses memories."""

    module, kind, text, lacks, stream_pointer = "fake", "cuda", "memory of a fake driver", (), 0

    def __init__(self, index):
        self.library = device_arrays.Fake(index)

    def array(self, values):
        return device_arrays.from_numpy(self.library, values)

    def put(self, array, values):
        self.move(array.values, values.copy())

    def get(self, array):
        found = np.empty(array.values.shape, array.values.dtype)
        self.move(found, array.values)
        return found

    def fetch(self, array, into):
        self.move(into, array.values)

    def fill(self, array, byte):
        self.move(array.values, np.full(array.values.nbytes, byte, np.uint8))

    def copy(self, target, source):
        self.move(target.values, source.values)

    exchange = copy

    def pinned(self, values):
        return values.copy()

    def wait(self):
        self.library.memory.within(self.library.device, "cuCtxSynchronize")

    def move(self, target, source):
        # Host and device addresses alike: the driver tells them apart.
        self.library.memory.copy(target.ctypes.data, source.ctypes.data, target.nbytes, self.library.device)


def run(name, kind):
    """(exit status, what was printed)"""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        status = main(["bench", name, "--memory", kind, *OPTIONS])
    return status, text.getvalue()


if __name__ == "__main__":
    folder, layout, place, kinds = sys.argv[1:]
    if place == "fake":
        memory.LIBRARIES[:] = [Fake]
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.rank
    with Path(folder, f"{rank}.jsonl").open("w") as report:
        for name in COLLECTIVES:
            status, text = run(name, {"G": "cuda", "N": "host"}[kinds[rank]])
            report.write(json.dumps({"rank": rank, "name": name, "status": status, "text": text}) + "\n")
