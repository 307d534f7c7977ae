"""What the tests of the host reductions share: numbers, operands and the reference.

The reference folds in rank order with NumPy's own operators: floats of 8 and 16 bits are widened to float32, folded,
and rounded once; MIN and MAX are spelled out with np.where, since np.maximum has no rule for signed zeros or NaN
payloads.
"""

from functools import cache

import ml_dtypes
import numpy as np
import pytest

from hetccl import _kernels

bfloat16 = np.dtype(ml_dtypes.bfloat16)
e4m3 = np.dtype(ml_dtypes.float8_e4m3fn)
e5m2 = np.dtype(ml_dtypes.float8_e5m2)

# Numbers of include/hetccl/abi.h.
DTYPES = {
    "int8": (0, np.dtype(np.int8)),
    "uint8": (1, np.dtype(np.uint8)),
    "int32": (2, np.dtype(np.int32)),
    "uint32": (3, np.dtype(np.uint32)),
    "int64": (4, np.dtype(np.int64)),
    "uint64": (5, np.dtype(np.uint64)),
    "float16": (6, np.dtype(np.float16)),
    "float32": (7, np.dtype(np.float32)),
    "float64": (8, np.dtype(np.float64)),
    "bfloat16": (9, bfloat16),
    "float8_e4m3fn": (10, e4m3),
    "float8_e5m2": (11, e5m2),
    "int16": (32, np.dtype(np.int16)),
    "uint16": (33, np.dtype(np.uint16)),
    "bool": (34, np.dtype(np.bool_)),
    "longdouble": (35, np.dtype(np.longdouble)),
    "complex64": (36, np.dtype(np.complex64)),
    "complex128": (37, np.dtype(np.complex128)),
    "clongdouble": (44, np.dtype(np.clongdouble)),
}
PAIRS = {"float_int": 38, "double_int": 39, "long_int": 40, "int_int": 41, "short_int": 42, "longdouble_int": 43}
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
BIT_OPS = {"land": 32, "lor": 33, "lxor": 34, "band": 35, "bor": 36, "bxor": 37}
LOC_OPS = {"minloc": 38, "maxloc": 39}
HALVES = ["float16", "bfloat16"]
FLOAT8 = ["float8_e4m3fn", "float8_e5m2"]
NARROW = [*HALVES, *FLOAT8]  # summed in float32
FLOATS = [*NARROW, "float32", "float64", "longdouble"]
INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
COMPLEX = ["complex64", "complex128", "clongdouble"]
UNDEFINED = {("avg", "bool")} | {(op, dtype) for op in ("max", "min") for dtype in COMPLEX}
DEFINED = [(op, dtype) for dtype in DTYPES for op in OPS if (op, dtype) not in UNDEFINED]

COUNTS = [0, 1, 7, 1023, 65537]
NSOURCES = [1, 2, 3, 4, 5, 6, 33]
RANKS = 7  # AVG's divisor: not a power of two, so that the division rounds
GUARD = 96  # bytes on each side: more than the widest vector, not a multiple of it
GUARD_BYTE = 0xA5

every_variant = pytest.mark.parametrize("variant", list(_kernels.VARIANTS))
every_reduction = pytest.mark.parametrize("op, dtype", DEFINED, ids=[f"{d}-{o}" for o, d in DEFINED])


def bits(array):
    """The bytes of a contiguous array, as a view."""
    return array.reshape(-1).view(np.uint8)


def run(op, dtype, dst, sources, variant, divisor=None):
    """Call the kernel; AVG divides by RANKS unless told otherwise."""
    if divisor is None:
        divisor = RANKS if op == "avg" else 0
    raw = [s if s.dtype == np.uint8 else bits(s) for s in sources]
    _kernels.reduce(OPS[op], DTYPES[dtype][0], dst if dst.dtype == np.uint8 else bits(dst), raw, divisor, variant)


def special_floats(scalar):
    """NaN, infinities, both zeros, the least subnormals, the extremes and 1 of a floating type."""
    info = ml_dtypes.finfo(scalar) if scalar in (bfloat16, e4m3, e5m2) else np.finfo(scalar)
    tiny = float(info.smallest_subnormal) if scalar != np.longdouble else info.smallest_subnormal
    finite = [0.0, -0.0, 1.0, tiny, -tiny, info.tiny, info.max, info.min]
    return np.array([np.nan, np.inf, -np.inf, *finite]).astype(scalar)


@cache
def operands(dtype):
    """33 read-only arrays of the longest count, different by source and index; a tenth of the floats are special."""
    scalar = DTYPES[dtype][1]
    rng = np.random.default_rng(list(dtype.encode()))
    arrays = []
    for _ in range(max(NSOURCES)):
        if scalar.kind in "iu":
            array = np.frombuffer(rng.bytes(COUNTS[-1] * scalar.itemsize), scalar).copy()
        elif scalar.kind == "b":
            array = rng.integers(0, 2, COUNTS[-1]).astype(np.bool_)
        elif scalar.kind == "c":
            parts = rng.standard_normal((2, COUNTS[-1]))
            array = (parts[0] + 1j * parts[1]).astype(scalar)
        else:
            array = (rng.standard_normal(COUNTS[-1]) * 2.0 ** rng.integers(-4, 4, COUNTS[-1])).astype(scalar)
            where = rng.random(COUNTS[-1]) < 0.1
            array[where] = rng.choice(special_floats(scalar).astype(np.longdouble), where.sum()).astype(scalar)
        array.flags.writeable = False
        arrays.append(array)
    return arrays


def choose(op, a, b):
    """MAX or MIN: the first NaN, else by value with -0 below +0; one operand's bits, never a computed value."""
    x, y = (v.astype(np.float32) if v.dtype.itemsize <= 2 else v for v in (a, b))
    if op == "max":
        better = (x > y) | ((x == y) & ~np.signbit(x))
    else:
        better = (x < y) | ((x == y) & np.signbit(x))
    return np.where(np.isnan(x) | (better & ~np.isnan(y)), a, b)


def complex_product(a, b):
    """The textbook product in a's precision: NumPy's own may use fused multiply-add."""
    out = np.empty_like(a)
    out.real = a.real * b.real - a.imag * b.imag
    out.imag = a.real * b.imag + a.imag * b.real
    return out


def combine(op, a, b):
    kind = a.dtype.kind
    if kind == "b":
        return a | b if op in ("sum", "max") else a & b
    if op in ("max", "min"):
        if kind in "iu":
            return np.maximum(a, b) if op == "max" else np.minimum(a, b)
        return choose(op, a, b)
    if op == "prod":
        return complex_product(a, b) if kind == "c" else a * b
    return a + b


def truncated_quotient(array, divisor):
    """C's integer division, in Python's integers."""
    quotients = [abs(x) // divisor * (1 if x >= 0 else -1) for x in array.tolist()]
    return np.array(quotients, dtype=array.dtype)


def reference(op, dtype, sources, divisor=0):
    """The fold in source order by NumPy alone."""
    scalar = DTYPES[dtype][1]
    wide = np.float32 if dtype in NARROW and op not in ("max", "min") else scalar
    with np.errstate(all="ignore"):
        result = sources[0].astype(wide)
        for source in sources[1:]:
            result = combine(op, result, source.astype(wide)).astype(wide, copy=False)
        if divisor and scalar.kind in "iu":
            result = truncated_quotient(result, divisor)
        elif divisor and scalar.kind == "c":
            result = (result.view(result.real.dtype) / result.real.dtype.type(divisor)).view(scalar)
        elif divisor:
            result = result / wide.type(divisor) if isinstance(wide, np.dtype) else result / wide(divisor)
        return result.astype(scalar)


@cache
def expected(op, dtype, nsources):
    """The reference over the first nsources operands, all counts being its prefixes."""
    return reference(op, dtype, operands(dtype)[:nsources], RANKS if op == "avg" else 0)


def assert_same(got, want, exact_nan, context):
    """Equal bit for bit; where a NaN was computed (not chosen), any NaN will do."""
    assert got.dtype == want.dtype and got.shape == want.shape, context
    if want.dtype.kind == "c":
        got, want = got.view(got.real.dtype), want.view(want.real.dtype)
    if want.dtype == np.longdouble:  # has padding bytes, which no arithmetic defines
        same = (got == want) & (np.signbit(got) == np.signbit(want))
    else:
        size = want.dtype.itemsize
        same = (bits(got).reshape(-1, size) == bits(want).reshape(-1, size)).all(axis=1)
    if want.dtype.kind in "fV" and (not exact_nan or want.dtype == np.longdouble):
        with np.errstate(invalid="ignore"):  # ml_dtypes signals on signalling NaNs
            same |= np.isnan(got) & np.isnan(want)
    wrong = np.flatnonzero(~same)
    assert not len(wrong), f"{context}: {len(wrong)} wrong, first at {wrong[0]}: {got[wrong[0]]!r}, {want[wrong[0]]!r}"


def check(op, dtype, got, want, context):
    assert_same(got, want, op in ("max", "min"), f"{op} {dtype} {context}")


class Guarded:
    """Room for count elements at a byte offset from a 64-byte boundary, with guard bytes on both sides."""

    def __init__(self, scalar, count, offset=0, values=None):
        nbytes = count * scalar.itemsize
        self.whole = np.full(GUARD + 64 + offset + nbytes + GUARD, GUARD_BYTE, np.uint8)
        self.begin = GUARD + -(self.whole.ctypes.data + GUARD) % 64 + offset
        self.raw = self.whole[self.begin : self.begin + nbytes]
        self.scalar = scalar
        if values is not None:
            self.raw[:] = bits(values)

    def values(self):
        """The contents, copied to aligned memory."""
        return self.raw.copy().view(self.scalar)

    def assert_guards(self, context):
        end = self.begin + len(self.raw)
        assert (self.whole[: self.begin] == GUARD_BYTE).all(), f"{context}: bytes before dst were written"
        assert (self.whole[end:] == GUARD_BYTE).all(), f"{context}: bytes after dst were written"
