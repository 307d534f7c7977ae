"""Logical and bitwise host reductions against NumPy."""

import numpy as np
import pytest
from kernel_cases import BIT_OPS, DTYPES, INTEGERS, Guarded, bits, every_variant

from hetccl import _kernels

LOGICAL = {"land": np.logical_and, "lor": np.logical_or, "lxor": np.logical_xor}
BITWISE = {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}
COUNTS = [0, 1, 7, 4500]  # the last is longer than a tile of any dtype

every_op = pytest.mark.parametrize("op", list(BIT_OPS))
every_dtype = pytest.mark.parametrize("dtype", [*INTEGERS, "bool"])


def sources_of(dtype, nsources):
    """Different by source and index; half of the elements are zero, the others have any bits, in a bool too."""
    scalar = DTYPES[dtype][1]
    rng = np.random.default_rng(list(dtype.encode()))
    arrays = []
    for _ in range(nsources):
        array = np.frombuffer(rng.bytes(COUNTS[-1] * scalar.itemsize), np.uint8 if dtype == "bool" else scalar).copy()
        array[rng.random(COUNTS[-1]) < 0.5] = 0
        arrays.append(array)
    return arrays


def reference(op, dtype, sources):
    """The fold by NumPy; a bool of any nonzero byte is true, and bitwise ops are logical ones on it."""
    if dtype == "bool":
        sources = [s != 0 for s in sources]
    if op in BITWISE:
        return BITWISE[op].reduce(sources, axis=0)
    return LOGICAL[op].reduce([s != 0 for s in sources], axis=0).astype(DTYPES[dtype][1])


def run(op, dtype, dst, sources, variant):
    _kernels.reduce(BIT_OPS[op], DTYPES[dtype][0], dst, [bits(s) for s in sources], 0, variant)


@every_variant
@every_op
@every_dtype
@pytest.mark.parametrize("nsources", [1, 2, 3, 4, 33])
def test_equals_numpy(op, dtype, nsources, variant):
    sources = sources_of(dtype, nsources)
    want = reference(op, dtype, sources)
    for count in COUNTS:
        dst = Guarded(DTYPES[dtype][1], count, 8)
        run(op, dtype, dst.raw, [s[:count] for s in sources], variant)
        np.testing.assert_array_equal(dst.values(), want[:count])
        dst.assert_guards(f"count {count}")


@every_op
@every_dtype
@pytest.mark.parametrize("nsources", [1, 2, 3, 6])
def test_dst_may_be_any_source(op, dtype, nsources):
    want = reference(op, dtype, sources_of(dtype, nsources))
    for position in range(nsources):
        sources = sources_of(dtype, nsources)
        run(op, dtype, bits(sources[position]), sources, None)
        np.testing.assert_array_equal(sources[position].view(DTYPES[dtype][1]), want)


@every_op
@every_dtype
@pytest.mark.parametrize("offset", [1, 3, 17])
def test_any_address(op, dtype, offset):
    """dst and each source at another odd distance from a boundary."""
    sources = [Guarded(DTYPES[dtype][1], len(s), offset + 2 * i, s).raw for i, s in enumerate(sources_of(dtype, 3))]
    dst = Guarded(DTYPES[dtype][1], COUNTS[-1], offset)
    run(op, dtype, dst.raw, sources, None)
    np.testing.assert_array_equal(dst.values(), reference(op, dtype, sources_of(dtype, 3)))
    dst.assert_guards("any address")


@every_op
@pytest.mark.parametrize("dtype", ["int8", "uint8", "bool"])
def test_every_pair_of_bytes(op, dtype):
    a, b = (v.reshape(-1).astype(np.uint8) for v in np.meshgrid(np.arange(256), np.arange(256)))
    scalar = np.uint8 if dtype == "bool" else DTYPES[dtype][1]
    dst = np.empty(1 << 16, np.uint8)
    run(op, dtype, dst, [a, b], None)
    np.testing.assert_array_equal(dst, reference(op, dtype, [a.view(scalar), b.view(scalar)]).view(np.uint8))
