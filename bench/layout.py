"""Packing and unpacking of derived datatypes, against NumPy's copy of the same slice and MPI's own Pack.

`python bench/layout.py` cuts a (64, 256, 256) complex64 array into 4 chunks along each axis, packs and unpacks the
second chunk, and does the same with columns. It prints GB/s of packed bytes per second of processor time, and ratios,
medians over rounds. Ratios carry over to other machines, GB/s do not. hetccl's figures have the parsing of both buffers
in them.
"""

import statistics
import sys
import time
import timeit
from pathlib import Path

import numpy as np
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).parent.parent))

import hetccl.bootstrap  # noqa: F401 (registers MPI's datatypes)
from hetccl._spec import move

ROUNDS, SECONDS = 15, 0.01
SHAPE, CHUNKS = (64, 256, 256), 4


def gigabytes_per_second(functions, nbytes):
    """Of each function, all rounds. A round times one after the other: what slows one side of a ratio slows both."""
    timers = [timeit.Timer(function, timer=time.process_time) for function in functions]
    calls = [max(1, int(SECONDS / (timer.timeit(1) + 1e-9))) for timer in timers]
    return [[nbytes * n / timer.timeit(n) / 1e9 for timer, n in zip(timers, calls)] for _ in range(ROUNDS)]


def cases():
    """name -> (array, index of the slice, datatype of it)."""
    cube = np.random.default_rng(1).random(2 * np.prod(SHAPE), dtype="f4").view("c8").reshape(SHAPE)
    made = {}
    for axis in range(3):
        subsizes = [n // CHUNKS if a == axis else n for a, n in enumerate(SHAPE)]
        starts = [n // CHUNKS if a == axis else 0 for a, n in enumerate(SHAPE)]
        index = tuple(slice(start, start + n) for start, n in zip(starts, subsizes))
        made[f"chunk of axis {axis}"] = cube, index, MPI.COMPLEX8.Create_subarray(SHAPE, subsizes, starts)
    for name, basic in {"f4": MPI.FLOAT, "f8": MPI.DOUBLE, "c16": MPI.COMPLEX16}.items():
        matrix = np.random.default_rng(2).random((1024, 256)).astype(name)
        made[f"column of {name}"] = matrix, np.s_[:, 3:4], basic.Create_subarray(matrix.shape, (1024, 1), (0, 3))
    matrix = np.random.default_rng(3).random((1024, 1024))
    made["3 columns of f8"] = matrix, np.s_[:, 5:8], MPI.DOUBLE.Create_subarray(matrix.shape, (1024, 3), (0, 5))
    made["20 columns of f8"] = matrix, np.s_[:, 5:25], MPI.DOUBLE.Create_subarray(matrix.shape, (1024, 20), (0, 5))
    return made


def ways(array, index, datatype):
    """way -> (hetccl's, NumPy's, MPI's function), each moving the slice to or from contiguous memory."""
    spec, chunk = [array, 1, datatype], array[index]
    packed = np.empty(chunk.shape, chunk.dtype)
    flat = packed.reshape(-1)
    return {
        "pack": (
            lambda: move(spec, 0, flat, 0, flat.nbytes),
            lambda: np.copyto(packed, chunk),
            lambda: datatype.Pack(array, flat, 0, MPI.COMM_SELF),
        ),
        "unpack": (
            lambda: move(flat, 0, spec, 0, flat.nbytes),
            lambda: np.copyto(chunk, packed),
            lambda: datatype.Unpack(flat, 0, array, MPI.COMM_SELF),
        ),
    }


def main():
    print(f"{'':18}{'packed':>10}{'hetccl':>8}{'numpy':>8}{'MPI':>8}{'/numpy':>8}{'/MPI':>8}   GB/s")
    for name, (array, index, datatype) in cases().items():
        datatype.Commit()
        nbytes = datatype.Get_size()
        for way, functions in ways(array, index, datatype).items():
            rounds = gigabytes_per_second(functions, nbytes)
            rates = "".join(f"{statistics.median(rates):8.1f}" for rates in zip(*rounds))
            ratios = "".join(f"{statistics.median(r[0] / r[k] for r in rounds):8.2f}" for k in (1, 2))
            print(f"{name:18}{nbytes:10}{rates}{ratios}   {way}")
        datatype.Free()


if __name__ == "__main__":
    main()
