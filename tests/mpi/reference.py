"""What every collective must deliver, from NumPy alone: inputs are a formula of (rank, index), so that each rank
computes the expected result without communication."""

import functools

import numpy as np
from matrix import lengths

# Inputs repeat after a prime number of elements: no block boundary or chunk of a real algorithm is a multiple of it, so
# that data in a wrong place are still seen, while expected values for large counts are copies of one short table.
PERIOD = 32749


def dtype_of(name):
    """NumPy dtype for a name, with bfloat16 and float8 from ml_dtypes."""
    if name.startswith(("bfloat16", "float8")):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)


def kind_of(dtype):
    """Like dtype.kind, also right for the ml_dtypes' own dtypes."""
    return "f" if dtype.name.startswith(("bfloat16", "float8")) else dtype.kind


def _random_bits(rank, salt=0):
    bits = np.arange(1, PERIOD + 1, dtype=np.uint64) + np.uint64((rank + 1) * 1_000_003 + salt * 77_777_777)
    for shift, factor in ((33, 0xFF51AFD7ED558CCD), (29, 0xC4CEB9FE1A85EC53), (32, 0x9E3779B97F4A7C15)):
        bits ^= bits >> np.uint64(shift)
        bits *= np.uint64(factor)
    return bits ^ (bits >> np.uint64(31))


def _small_integers(dtype, op, bits):
    """Whole numbers for which a sum or product over six ranks is exact in `dtype`, whatever the order."""
    if op == "PROD":
        return np.array([-2, -1, 1, 2])[(bits % np.uint64(4)).astype(np.int64)]
    limit = {"float16": 300, "bfloat16": 40, "float32": 2**21, "complex64": 2**21}.get(dtype.name, 2**49)
    if dtype.itemsize == 1:
        limit = 1
    return (bits % np.uint64(2 * limit + 1)).astype(np.int64) - limit


@functools.lru_cache(maxsize=32)
def inputs(name, op, rank):
    """One period of what `rank` contributes; `op` may be "move" (any bit pattern)."""
    dtype, bits = dtype_of(name), _random_bits(rank)
    kind = kind_of(dtype)
    if kind == "b":
        often = op in ("PROD", "MIN", "LAND", "BAND")
        return (bits % np.uint64(8) != 0) if often else (bits % np.uint64(8) == 0)
    if kind in "iu":
        values = bits.astype(dtype)
        if op.startswith("L"):
            values *= (_random_bits(rank, salt=3) % np.uint64(4) != 0).astype(dtype)
        return values | dtype.type(1) if op == "PROD" else values
    if op == "move" and dtype.itemsize <= 8 and kind == "f":
        return bits.astype(f"u{dtype.itemsize}").view(dtype)
    if kind == "c":
        part = np.dtype(f"f{dtype.itemsize // 2}")
        pairs = [_small_integers(dtype, op, _random_bits(rank, salt)).astype(part) for salt in (1, 2)]
        return np.stack(pairs, axis=1).reshape(-1).view(dtype)
    return _small_integers(dtype, op, bits).astype(dtype)


def divide(total, ranks):
    """AVG's one division: floats in their accumulation precision, integers toward zero, of the wrapped sum."""
    kind = kind_of(total.dtype)
    if kind == "c":
        part = np.dtype(f"f{total.dtype.itemsize // 2}")
        return (total.view(part) / part.type(ranks)).view(total.dtype)
    if kind == "f":
        wide = np.float32 if total.dtype.itemsize <= 2 else total.dtype.type
        return (total.astype(wide) / wide(ranks)).astype(total.dtype)
    divisor = total.dtype.type(ranks)
    quotient = total // divisor
    return quotient + ((total % divisor != 0) & (total < 0)).astype(total.dtype)


_FOLD = {
    "SUM": np.add, "AVG": np.add, "PROD": np.multiply, "MIN": np.minimum, "MAX": np.maximum, "LAND": np.logical_and,
    "LOR": np.logical_or, "LXOR": np.logical_xor, "BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor,
}  # fmt: skip


@functools.lru_cache(maxsize=32)
def folded(name, op, size):
    """One period of the reduction over `size` ranks."""
    dtype = dtype_of(name)
    wide = np.dtype(np.float64) if kind_of(dtype) == "f" and dtype.itemsize < 8 else dtype
    total = inputs(name, op, 0).astype(wide)
    for rank in range(1, size):
        total = _FOLD[op](total, inputs(name, op, rank).astype(wide)).astype(wide)
    total = total.astype(dtype)
    return divide(total, size) if op == "AVG" else total


def stretch(period, start, count):
    """Elements start .. start + count of the endless repetition of `period`."""
    return np.resize(np.roll(period, -(start % PERIOD)), count) if count else period[:0].copy()


# Of the last two the program asks several times for each case; nobody writes to what they return.
@functools.lru_cache(maxsize=1)
def sent(case, size, rank):
    """What `rank` hands in: all its blocks; None when its send buffer does not take part."""
    period = inputs(case.dtype, case.op, rank)
    each = lengths(case.count, size)
    if case.collective in ("Scatter", "Scatterv") and rank != case.root:
        return None
    if case.collective in ("Scatterv", "Reduce_scatter", "Alltoallv"):
        return stretch(period, 0, sum(each))
    if case.collective in ("Gatherv", "Allgatherv"):
        return stretch(period, 0, each[rank])
    blocks = size if case.collective in ("Reduce_scatter_block", "Alltoall", "Scatter") else 1
    return stretch(period, 0, blocks * case.count)


@functools.lru_cache(maxsize=1)
def expected(case, size, rank):
    """What `rank` must receive, or None when its receive buffer does not take part."""
    name, op, count = case.dtype, case.op, case.count
    if op != "move":
        return _reduced(case, size, rank)
    if case.collective == "Bcast":
        return stretch(inputs(name, op, case.root), 0, count)
    if case.collective == "Sendrecv":
        return stretch(inputs(name, op, (rank - 1) % size), 0, count)
    if case.collective in ("Gather", "Gatherv") and rank != case.root:
        return None
    each = lengths(count, size)
    if case.collective == "Scatter":
        return stretch(inputs(name, op, case.root), rank * count, count)
    if case.collective == "Scatterv":
        return stretch(inputs(name, op, case.root), sum(each[:rank]), each[rank])
    if case.collective in ("Gatherv", "Allgatherv"):
        blocks = [(source, 0, each[source]) for source in range(size)]
    elif case.collective == "Alltoallv":
        rows = [part_lengths(case, size, source) for source in range(size)]
        blocks = [(source, sum(row[:rank]), row[rank]) for source, row in enumerate(rows)]
    else:
        start = rank * count if case.collective == "Alltoall" else 0
        blocks = [(source, start, count) for source in range(size)]
    return np.concatenate([stretch(inputs(name, op, source), start, length) for source, start, length in blocks])


def part_lengths(case, size, rank):
    """What an Alltoallv sends from `rank` to each rank; the same the other way round, as in place demands."""
    each = lengths(case.count, size)
    return [each[(rank + dest) % size] for dest in range(size)]


def _reduced(case, size, rank):
    name, op, count = case.dtype, case.op, case.count
    if case.collective == "Allreduce":
        return stretch(folded(name, op, size), 0, count)
    if case.collective == "Reduce":
        return stretch(folded(name, op, size), 0, count) if rank == case.root else None
    if case.collective == "Reduce_scatter_block":
        return stretch(folded(name, op, size), rank * count, count)
    if case.collective == "Reduce_scatter":
        each = lengths(count, size)
        return stretch(folded(name, op, size), sum(each[:rank]), each[rank])
    if case.collective == "Scan":
        return stretch(folded(name, op, rank + 1), 0, count)
    # Exscan: rank 0 receives nothing.
    return stretch(folded(name, op, rank), 0, count) if rank else None
