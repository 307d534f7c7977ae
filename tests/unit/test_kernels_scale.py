"""Products with one factor, the first half of premul_sum, against NumPy."""

import numpy as np
import pytest
from kernel_cases import DTYPES, FLOAT8, NARROW, Guarded, assert_same, bits, complex_product, every_variant, operands

from hetccl import _kernels

SCALABLE = [dtype for dtype in DTYPES if dtype != "bool"]
COUNTS = [0, 1, 7, 4500]
FACTORS = {"i": [-3, 2], "u": [3, 255], "c": [0.5 - 2j, -1 + 0.25j]}

every_dtype = pytest.mark.parametrize("dtype", SCALABLE)


def factors_of(scalar):
    return np.array(FACTORS.get(scalar.kind, [-0.75, 1.875])).astype(scalar)


def reference(values, factor):
    """The product in the dtype, or in float32 and rounded once."""
    with np.errstate(all="ignore"):
        if values.dtype.kind == "c":
            return complex_product(values, np.full_like(values, factor))
        if values.dtype in [DTYPES[dtype][1] for dtype in NARROW]:
            return (values.astype(np.float32) * np.float32(factor)).astype(values.dtype)
        return values * factor


def scale(dtype, dst, src, factor, variant=None):
    _kernels.scale(DTYPES[dtype][0], dst, bits(src), bits(np.array([factor], DTYPES[dtype][1])), variant)


def test_scalable_dtypes():
    assert set(_kernels.scalable()) == {DTYPES[dtype][0] for dtype in SCALABLE}


@every_variant
@every_dtype
def test_equals_numpy(dtype, variant):
    scalar = DTYPES[dtype][1]
    for factor in factors_of(scalar):
        for offset, count in zip((0, 1, 13, 8), COUNTS):
            values = operands(dtype)[0][:count]
            dst = Guarded(scalar, count, offset)
            scale(dtype, dst.raw, values, factor, variant)
            assert_same(dst.values(), reference(values, factor), False, f"{dtype} * {factor}, count {count}")
            dst.assert_guards(f"count {count}")


@every_variant
@every_dtype
def test_in_place(dtype, variant):
    factor = factors_of(DTYPES[dtype][1])[0]
    values = operands(dtype)[1][:4500].copy()
    want = reference(values, factor)
    scale(dtype, bits(values), values, factor, variant)
    assert_same(values, want, False, f"{dtype} in place")


@every_variant
@pytest.mark.parametrize("dtype", FLOAT8)
def test_every_product_of_two_float8(dtype, variant):
    values = np.arange(256).astype(np.uint8).view(DTYPES[dtype][1])
    for factor in values:
        dst = np.empty_like(values)
        scale(dtype, bits(dst), values, factor, variant)
        assert_same(dst, reference(values, factor), False, f"{dtype} * {factor}")


@pytest.mark.parametrize("dtype", [34, 38, 43, 12, -1, 99])
def test_undefined_products_are_refused(dtype):
    with pytest.raises(TypeError):
        _kernels.scale(dtype, bytearray(16), bytes(16), bytes(16))


@pytest.mark.parametrize("dst, src, factor", [(15, 15, 8), (16, 8, 8), (16, 16, 4)])
def test_wrong_lengths_are_refused(dst, src, factor):
    with pytest.raises(ValueError):
        _kernels.scale(8, bytearray(dst), bytes(src), bytes(factor))
