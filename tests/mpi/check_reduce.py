"""What the reductions promise beyond exact sums: NaN, rounding, division, wrapping, the same bits everywhere."""

import hashlib

import numpy as np
from mpi4py import MPI
from reference import dtype_of
from support import equal, run_checks

import hetccl

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.Get_size(), WORLD.Get_rank()
FLOATS = ("float16", "bfloat16", "float32", "float64", "longdouble")


def noise(name, count, rank, scale=1.0):
    """Random values, the same for a rank in every run."""
    return (np.random.default_rng([rank, count]).standard_normal(count) * scale).astype(dtype_of(name))


def allreduce(comm, data, op):
    out = np.empty_like(data)
    comm.Allreduce(data, out, op=op)
    return out


def reduce_scattered(comm, data, op):
    """The same numbers by a reduce-scatter and an all-gather; data.size is a multiple of the number of ranks."""
    block, out = np.empty(data.size // SIZE, data.dtype), np.empty_like(data)
    comm.Reduce_scatter_block(data, block, op=op)
    comm.Allgather(block, out)
    return out


def check_nan_on_each_rank(comm):
    """MIN and MAX give NaN wherever any rank holds one, on all ranks, at small and large counts."""
    for name in FLOATS:
        for count in (SIZE + 3, 70001):
            for holder in range(SIZE):
                data = np.full(count, RANK - 1.5).astype(dtype_of(name))
                places = [0, count // 2, count - 1]
                if holder == RANK:
                    data[places] = np.nan
                for op, edge in ((hetccl.MIN, -1.5), (hetccl.MAX, SIZE - 2.5)):
                    out = allreduce(comm, data, op)
                    assert np.isnan(out[places].astype(np.float64)).all(), (name, holder, out[places])
                    others = np.delete(out, places)
                    equal(others, np.full(count - 3, edge).astype(dtype_of(name)))


def check_nan_and_infinity_in_sums(comm):
    data = np.zeros(4, np.float32)
    data[0] = np.nan if RANK == SIZE - 1 else 1
    data[1] = np.inf
    data[2] = (-np.inf if RANK == 0 else np.inf) if SIZE > 1 else np.nan
    data[3] = RANK
    out = allreduce(comm, data, hetccl.SUM)
    assert np.isnan(out[0]) and np.isposinf(out[1]) and np.isnan(out[2]) and out[3] == SIZE * (SIZE - 1) / 2


def check_integer_average_truncates(comm):
    """AVG of integers: C's division, toward zero, of the sum."""
    for name in ("int8", "int16", "int32", "int64"):
        data = np.array([-1, 1, -RANK, RANK, -7, 7, 0], name)
        ranks = SIZE * (SIZE - 1) // 2
        equal(allreduce(comm, data, hetccl.AVG), np.array([-1, 1, -(ranks // SIZE), ranks // SIZE, -7, 7, 0], name))
        data = np.full(3, -1 if RANK == 0 else 0, name)
        equal(allreduce(comm, data, hetccl.AVG), np.full(3, -1 if SIZE == 1 else 0, name))


def check_integers_wrap(comm):
    for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"):
        top = np.iinfo(name).max
        data = np.array([top, top - RANK, 1, RANK + 3], name)
        bits = np.iinfo(name).bits
        columns = [[top] * SIZE, [top - rank for rank in range(SIZE)], [1] * SIZE, [r + 3 for r in range(SIZE)]]

        def wrapped(value, bits=bits, name=name):
            value %= 2**bits
            return value - 2**bits if name[0] == "i" and value >= 2 ** (bits - 1) else value

        sums = [wrapped(sum(column)) for column in columns]
        equal(allreduce(comm, data, hetccl.SUM), np.array(sums, name))
        products = [1] * 4
        for place, column in enumerate(columns):
            for value in column:
                products[place] = wrapped(products[place] * value)
        equal(allreduce(comm, data, hetccl.PROD), np.array(products, name))
        averages = [abs(value) // SIZE * (1 if value >= 0 else -1) for value in sums]
        equal(allreduce(comm, data, hetccl.AVG), np.array(averages, name))


def check_average_divides_once(comm):
    """AVG is the SUM, divided by the number of ranks at the end: not per island, not before the sum."""
    for name in ("float32", "float64", "longdouble"):
        for count in (5 * SIZE, 1000 * SIZE, 30011 * SIZE):
            data = noise(name, count, RANK)
            for reduce in (allreduce, reduce_scattered):
                total = reduce(comm, data, hetccl.SUM)
                equal(reduce(comm, data, hetccl.AVG), total / total.dtype.type(SIZE))


def check_bool(comm):
    """bool is moved as it is; SUM and MAX are or, PROD and MIN are and."""
    mine = np.array([True, False, RANK == 0, RANK != 0, RANK == SIZE - 1])
    every = np.stack([[True, False, r == 0, r != 0, r == SIZE - 1] for r in range(SIZE)])
    for op in (hetccl.SUM, hetccl.MAX):
        equal(allreduce(comm, mine, op), every.any(axis=0))
    for op in (hetccl.PROD, hetccl.MIN):
        equal(allreduce(comm, mine, op), every.all(axis=0))
    data = every[RANK].copy()
    comm.Bcast(data, root=SIZE - 1)
    equal(data, every[SIZE - 1])
    gathered = np.zeros((SIZE, 5), bool)
    comm.Allgather(mine, gathered)
    equal(gathered, every)


def check_logical_ops_of_bool(comm):
    mine = np.array([True, False, RANK == 0])
    equal(allreduce(comm, mine, MPI.LOR), [True, False, True])
    equal(allreduce(comm, mine, MPI.LAND), [True, False, SIZE == 1])


def check_same_bits_on_all_ranks(comm):
    """The order of a sum does not depend on the rank that looks, nor on the time."""
    for name in ("float16", "bfloat16", "float32", "float64", "complex64"):
        for count in (1, 7, 1023, 65537, 300007):
            data = noise(name, count, RANK)
            for op in (hetccl.SUM, hetccl.AVG):
                digests = [hashlib.sha256(allreduce(comm, data, op).tobytes()).digest() for _ in range(3)]
                mine = np.frombuffer(b"".join(digests), np.uint8)
                everyone = np.zeros((SIZE, 3, 32), np.uint8)
                comm.Allgather(mine, everyone)
                assert (everyone == everyone[0, 0]).all(), (name, count)


def check_long_double_same_values(comm):
    """As above by value: the padding bytes of a long double mean nothing."""
    for count in (7, 65537):
        out = allreduce(comm, noise("longdouble", count, RANK), hetccl.SUM)
        everyone = np.zeros((SIZE, count), np.longdouble)
        comm.Allgather(out, everyone)
        for other in everyone:
            equal(other, out)


def check_close_to_the_true_sum(comm):
    """Error at most one rounding per addition of the running magnitude."""
    for name, epsilon in (("float32", 2.0**-24), ("float64", 2.0**-53), ("float16", 2.0**-11), ("bfloat16", 2.0**-8)):
        for count in (SIZE, 1023 * SIZE, 40009 * SIZE):
            parts = [noise(name, count, rank).astype(np.longdouble) for rank in range(SIZE)]
            bound = epsilon * SIZE * np.sum(np.abs(parts), axis=0) * 1.01 + np.finfo(np.float32).tiny
            for reduce in (allreduce, reduce_scattered):
                out = reduce(comm, noise(name, count, RANK), hetccl.SUM)
                worst = np.argmax(np.abs(out.astype(np.longdouble) - np.sum(parts, axis=0)) / bound)
                error = abs(np.longdouble(out[worst]) - np.sum(parts, axis=0)[worst])
                assert error <= bound[worst], (name, count, int(worst), error, bound[worst])


def check_halves_round_once_across_islands(comm):
    """Where each rank is its own island, float16 and bfloat16 are summed in float32 and rounded once at the end.

    Values are chosen so that the float32 sums are exact in any order: then one rounding has one right answer, and a sum
    that rounds on the way has another.
    """
    for name in ("float16", "bfloat16"):
        for count in (11 * SIZE, 20011 * SIZE):
            parts = [
                (np.random.default_rng([rank, 5]).integers(-1024, 1025, count) / 8).astype(dtype_of(name))
                for rank in range(SIZE)
            ]
            exact = np.sum([part.astype(np.float32) for part in parts], axis=0, dtype=np.float32)
            for reduce in (allreduce, reduce_scattered):
                equal(reduce(comm, parts[RANK], hetccl.SUM), exact.astype(dtype_of(name)))
                averages = (exact / np.float32(SIZE)).astype(dtype_of(name))
                equal(reduce(comm, parts[RANK], hetccl.AVG), averages)


def check_complex(comm):
    for name, part in (("complex64", np.float32), ("complex128", np.float64)):
        pairs = np.arange(20).reshape(10, 2)
        parts = [(pairs * (rank + 1) - 7).astype(part).reshape(-1).view(name) for rank in range(SIZE)]
        equal(allreduce(comm, parts[RANK], hetccl.SUM), np.sum(parts, axis=0))


if __name__ == "__main__":
    run_checks(globals())
