"""Ops beyond arithmetic, against MPI's own results: logical and bitwise ones, pairs, functions of the user; and 8-bit
floats and premul_sum against NumPy.
"""

import numpy as np
from mpi4py import MPI
from reference import dtype_of
from support import equal, raises, run_checks

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


def check_premul_sum(comm):
    """Factors differ by rank; all products and sums are exact in every dtype."""
    for name in ("int8", "uint32", "int64", "float8_e5m2", "bfloat16", "float16", "float32", "float64", "complex64"):
        for count in COUNTS:
            everyone = np.array([digits(count, rank, 0, 2) for rank in range(SIZE)], np.float64)
            factors = [1 + rank % 2 for rank in range(SIZE)]
            want = sum(factor * row for factor, row in zip(factors, everyone)).astype(dtype_of(name))
            mine, op = everyone[RANK].astype(dtype_of(name)), hetccl.premul_sum(factors[RANK])
            out = np.empty_like(mine)
            comm.Allreduce(mine, out, op=op)
            equal(out, want)
            equal(mine, everyone[RANK].astype(dtype_of(name)))
            comm.Allreduce(hetccl.IN_PLACE, mine, op=op)
            equal(mine, want)
    complex_out = np.empty(3, np.complex128)
    comm.Allreduce(np.full(3, 1 + 1j), complex_out, op=hetccl.premul_sum(1j * (RANK + 1)))
    equal(complex_out, np.full(3, (-1 + 1j) * SIZE * (SIZE + 1) / 2))


def affine(inbuf, inoutbuf, datatype):
    """The composition of x -> a x + b, which is associative and does not commute."""
    first, second = (np.frombuffer(buffer, np.int64).reshape(-1, 2) for buffer in (inbuf, inoutbuf))
    second[:, 1] += second[:, 0] * first[:, 1]
    second[:, 0] *= first[:, 0]


def check_functions_equal_mpi(comm):
    pair = MPI.INT64_T.Create_contiguous(2).Commit()
    theirs, ours = MPI.Op.Create(affine), hetccl.Op.Create(affine)
    for count in (0, 1, 7, 1001):
        mine = np.stack([digits(count, RANK, 1, 3), digits(count, RANK, -4, 5)], axis=1)
        out, want = np.empty_like(mine), np.zeros_like(mine)
        WORLD.Allreduce([mine, count, pair], [want, count, pair], op=theirs)
        for op in (theirs, ours):
            comm.Allreduce([mine, count, pair], [out, count, pair], op=op)
            equal(out, want)
        for root in range(SIZE):
            WORLD.Reduce([mine, count, pair], [want, count, pair], op=theirs, root=root)
            comm.Reduce([mine, count, pair], [out, count, pair], op=ours, root=root)
            if root == RANK:
                equal(out, want)
        WORLD.Scan([mine, count, pair], [want, count, pair], op=theirs)
        comm.Scan([mine, count, pair], [out, count, pair], op=ours)
        equal(out, want)
    theirs.Free()
    ours.Free()
    pair.Free()


def check_function_that_raises(comm):
    """Where the function runs, its exception comes out; then the communicator still works."""
    if SIZE == 1:
        return

    def refuse(inbuf, inoutbuf, datatype):
        raise KeyError("refused")

    with raises(KeyError, names="refused"):
        comm.Allreduce(np.ones(3), np.empty(3), op=hetccl.Op.Create(refuse))
    out = np.empty(1)
    comm.Allreduce(np.ones(1), out)
    equal(out, [SIZE])


def check_function_of_a_structure(comm):
    """Elements that have no number here may yet be reduced by the user; the function is given no MPI datatype."""
    kind = np.dtype([("name", "S3"), ("rank", np.int16)])
    seen = []

    def later_name(inbuf, inoutbuf, datatype):
        seen.append(datatype)
        a, b = (np.frombuffer(buffer, kind) for buffer in (inbuf, inoutbuf))
        b[:] = np.where(a["name"] > b["name"], a, b)

    mine = np.array([(f"{RANK * 7 % 5}ab", RANK), ("zzz", RANK)], kind)
    out = np.zeros(2, kind)
    comm.Allreduce(mine, out, op=hetccl.Op.Create(later_name))
    assert out["name"][0] == max(f"{rank * 7 % 5}ab".encode() for rank in range(SIZE))
    assert out["name"][1] == b"zzz" and out["rank"][1] == SIZE - 1
    assert set(seen) <= {None}


if __name__ == "__main__":
    run_checks(globals())
