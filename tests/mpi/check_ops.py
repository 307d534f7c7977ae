"""Ops beyond arithmetic, against MPI's own results: logical and bitwise ones, pairs; and 8-bit floats against NumPy."""

import numpy as np
from mpi4py import MPI
from reference import dtype_of
from support import equal, run_checks

import hetccl

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.Get_size(), WORLD.Get_rank()
COUNTS = (0, 1, 7, 1001, 70001)
PAIRS = {
    "float_int": (np.float32, MPI.FLOAT_INT),
    "double_int": (np.float64, MPI.DOUBLE_INT),
    "long_int": (np.int_, MPI.LONG_INT),
    "int_int": (np.intc, MPI.INT_INT),
    "short_int": (np.short, MPI.SHORT_INT),
    "longdouble_int": (np.longdouble, MPI.LONG_DOUBLE_INT),
}


def digits(count, rank, low, high):
    """Few different values, so that ranks often have the same, the same for a rank in every run."""
    return np.random.default_rng([rank, count, high]).integers(low, high, count)


def pairs(name, count, rank):
    array = np.zeros(count, np.dtype([("value", PAIRS[name][0]), ("index", np.intc)], align=True))
    array["value"], array["index"] = digits(count, rank, -3, 4), digits(count, rank, 0, 9)
    return array


def check_bits_equal_mpi(comm):
    names = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
    for count in COUNTS:
        for name in names:
            mine = digits(count, RANK, 0, 5).astype(name)
            for op in (MPI.LAND, MPI.LOR, MPI.LXOR, MPI.BAND, MPI.BOR, MPI.BXOR):
                out, want = np.full_like(mine, 77), np.full_like(mine, 78)
                WORLD.Allreduce(mine, want, op=op)
                comm.Allreduce(mine, out, op=op)
                equal(out, want)


def check_bool_equals_mpi(comm):
    for count in COUNTS:
        mine = digits(count, RANK, 0, 2).astype(bool)
        for op, ours in ((MPI.LAND, hetccl.BAND), (MPI.LOR, hetccl.BOR), (MPI.LXOR, hetccl.BXOR)):
            out, want = np.ones_like(mine), np.zeros_like(mine)
            WORLD.Allreduce(mine, want, op=op)
            for argument in (op, ours):
                comm.Allreduce(mine, out, op=argument)
                equal(out, want)


def check_pairs_equal_mpi(comm):
    for count in COUNTS:
        for name, (_, datatype) in PAIRS.items():
            mine = pairs(name, count, RANK)
            for op, ours in ((MPI.MINLOC, hetccl.MINLOC), (MPI.MAXLOC, hetccl.MAXLOC)):
                out, want = np.zeros_like(mine), np.zeros_like(mine)
                WORLD.Allreduce([mine, count, datatype], [want, count, datatype], op=op)
                for argument, kind in ((op, datatype), (ours, name)):
                    comm.Allreduce([mine, count, kind], [out, count, kind], op=argument)
                    equal(out["value"], want["value"])
                    equal(out["index"], want["index"])


def check_pairs_move(comm):
    """As bytes: the padding travels too."""
    for name, (_, datatype) in PAIRS.items():
        mine = pairs(name, 5, RANK)
        out = np.zeros((SIZE, 5), mine.dtype)
        comm.Allgather([mine, 5, datatype], [out, 5, datatype])
        equal(out["index"], [pairs(name, 5, rank)["index"] for rank in range(SIZE)])
        equal(out["value"], [pairs(name, 5, rank)["value"] for rank in range(SIZE)])


def check_float8(comm):
    """Few bits: whole numbers up to 8 are exact in both, whatever the order; a NaN of any rank goes through."""
    for name in ("float8_e4m3fn", "float8_e5m2"):
        for count in COUNTS:
            everyone = np.array([digits(count, rank, -1, 2) for rank in range(SIZE)], np.float64)
            mine, out = everyone[RANK].astype(dtype_of(name)), np.empty(count, dtype_of(name))
            for op, want in ((hetccl.SUM, np.sum), (hetccl.MAX, np.max), (hetccl.MIN, np.min), (hetccl.PROD, np.prod)):
                comm.Allreduce(mine, out, op=op)
                equal(out.astype(np.float64), want(everyone, axis=0))
            comm.Allreduce(mine, out, op=hetccl.AVG)
            equal(out, (everyone.sum(axis=0).astype(np.float32) / np.float32(SIZE)).astype(out.dtype))
        mine = np.full(3, np.nan if RANK == SIZE - 1 else 1.0).astype(dtype_of(name))
        comm.Allreduce(mine, out[:3], op=hetccl.MAX)
        assert np.isnan(out[:3].astype(np.float64)).all()


if __name__ == "__main__":
    run_checks(globals())
