"""Host reductions against NumPy: every arithmetic op, dtype and compiled variant, bit for bit."""

import itertools

import numpy as np
import pytest
from kernel_cases import (
    BIT_OPS,
    COUNTS,
    DEFINED,
    DTYPES,
    FLOATS,
    HALVES,
    INTEGERS,
    LOC_OPS,
    NSOURCES,
    OPS,
    PAIRS,
    UNDEFINED,
    Guarded,
    bits,
    check,
    every_reduction,
    every_variant,
    expected,
    operands,
    reference,
    run,
    truncated_quotient,
)

from hetccl import _kernels


@every_variant
@every_reduction
@pytest.mark.parametrize("nsources", NSOURCES)
def test_equals_numpy(op, dtype, nsources, variant):
    scalar = DTYPES[dtype][1]
    for count in COUNTS:
        dst = Guarded(scalar, count)
        run(op, dtype, dst.raw, [s[:count] for s in operands(dtype)[:nsources]], variant)
        check(op, dtype, dst.values(), expected(op, dtype, nsources)[:count], f"count {count}")
        dst.assert_guards(f"count {count}")


@every_variant
@every_reduction
@pytest.mark.parametrize("nsources", NSOURCES)
def test_dst_may_be_any_source(op, dtype, nsources, variant):
    """More than one 4 KiB tile of every dtype, so that a value written too early would be read again."""
    count = 4500
    want = expected(op, dtype, nsources)[:count]
    for position in range(nsources) if nsources <= 6 else (0, 1, 15, 16, 31, 32):
        sources = [s[:count] for s in operands(dtype)[:nsources]]
        dst = Guarded(DTYPES[dtype][1], count, values=sources[position])
        sources[position] = dst.raw
        run(op, dtype, dst.raw, sources, variant)
        check(op, dtype, dst.values(), want, f"in place of source {position}")
        dst.assert_guards(f"in place of source {position}")


@every_variant
@every_reduction
@pytest.mark.parametrize("nsources", [2, 3, 4])
def test_any_address(op, dtype, nsources, variant):
    """dst and sources one element, and odd numbers of bytes, off a boundary; each source differently."""
    scalar = DTYPES[dtype][1]
    for offset, count in itertools.product((scalar.itemsize, 1, 17, 63), (7, 4500)):
        want = expected(op, dtype, nsources)[:count]
        sources = [
            Guarded(scalar, count, (offset + 5 * i) % 64, s[:count]).raw
            for i, s in enumerate(operands(dtype)[:nsources])
        ]
        dst = Guarded(scalar, count, offset)
        run(op, dtype, dst.raw, sources, variant)
        check(op, dtype, dst.values(), want, f"count {count}, dst at offset {offset}")
        dst.assert_guards(f"count {count}, dst at offset {offset}")


@every_variant
@pytest.mark.parametrize("op", ["max", "min", "sum", "prod"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_of_any_source_propagates(op, dtype, variant):
    """One NaN, in each source and at each place of a vector, makes that element NaN and no other."""
    scalar = DTYPES[dtype][1]
    count = 67
    for position in range(5):
        for index in range(count):
            sources = [np.full(count, i + 1, dtype=scalar) for i in range(5)]
            sources[position][index] = np.nan
            dst = np.empty(count, scalar)
            run(op, dtype, dst, sources, variant)
            assert np.flatnonzero(np.isnan(dst)).tolist() == [index], f"source {position}, index {index}"


@every_variant
@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize(
    "dtype, unsigned, nans",
    [
        ("float16", np.uint16, [0x7E01, 0xFE02, 0x7C03]),
        ("bfloat16", np.uint16, [0x7FC1, 0xFFC2, 0x7F83]),
        ("float32", np.uint32, [0x7FC00001, 0xFFC00002, 0x7F800003]),
        ("float64", np.uint64, [0x7FF8000000000001, 0xFFF8000000000002, 0x7FF0000000000003]),
    ],
)
def test_first_nan_is_kept_bit_for_bit(op, dtype, unsigned, nans, variant):
    """Quiet or signalling, of either sign: the first NaN in source order comes out unchanged."""
    scalar = DTYPES[dtype][1]
    one = np.ones(1, scalar).view(unsigned)[0]
    rows = [[one, nans[0], nans[1]], [nans[1], one, nans[2]], [nans[2], nans[0], one], [one, one, nans[1]]]
    columns = np.tile(np.array(rows, dtype=unsigned).T, (1, 20))
    dst = np.empty(columns.shape[1], unsigned)
    run(op, dtype, bits(dst), [np.ascontiguousarray(c) for c in columns], variant)
    assert dst.tolist() == [nans[0], nans[1], nans[2], nans[1]] * 20


@every_variant
@pytest.mark.parametrize("dtype", FLOATS)
def test_signed_zeros(dtype, variant):
    """-0 counts as less than +0, whichever comes first; a sum is -0 only if all are."""
    scalar = DTYPES[dtype][1]
    a, b = (np.tile(np.array(v, dtype=scalar), 20) for v in ([0.0, -0.0, 0.0, -0.0], [0.0, 0.0, -0.0, -0.0]))
    for op, negative in {"max": [0, 0, 0, 1], "min": [0, 1, 1, 1], "sum": [0, 0, 0, 1], "prod": [0, 1, 1, 0]}.items():
        dst = np.ones(len(a), scalar)
        run(op, dtype, dst, [a, b], variant)
        assert (dst == 0).all() and np.signbit(dst).astype(int).tolist() == negative * 20, op


@every_variant
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", HALVES)
def test_every_16_bit_pattern(op, dtype, variant):
    """All 65536 values against 20 shuffles of them: subnormals, ties, overflow, NaN, infinities."""
    scalar = DTYPES[dtype][1]
    patterns = np.arange(1 << 16).astype(np.uint16)
    rng = np.random.default_rng(3)
    for _ in range(20):
        pair = [patterns.view(scalar), rng.permutation(patterns).view(scalar)]
        dst = np.empty(1 << 16, scalar)
        run(op, dtype, dst, pair, variant)
        check(op, dtype, dst, reference(op, dtype, pair), "all patterns")


@every_variant
@pytest.mark.parametrize("dtype", HALVES)
def test_every_16_bit_pattern_survives_the_conversions(dtype, variant):
    """x + -0 is x: each value is widened and rounded back unchanged, on the vector path and on the last elements."""
    scalar = DTYPES[dtype][1]
    patterns = np.arange(1 << 16).astype(np.uint16).view(scalar)
    for count in (1 << 16, 5):
        for begin in range(0, 1 << 16, count if count > 5 else 997):
            part = patterns[begin : begin + count].copy()
            for nsources in (2, 3):
                dst = np.empty_like(part)
                run("sum", dtype, dst, [part] + [np.full_like(part, -0.0)] * (nsources - 1), variant)
                check("sum", dtype, dst, part, f"{nsources} sources from {begin}")


@every_variant
@pytest.mark.parametrize("dtype, ulp_at_one", [("float16", 2.0**-10), ("bfloat16", 2.0**-7)])
def test_halves_round_once_and_to_even(dtype, ulp_at_one, variant):
    scalar = DTYPES[dtype][1]
    half, quarter = ulp_at_one / 2, ulp_at_one / 4
    cases = [  # sources, result
        ([1.0, half], 1.0),  # a tie goes to the even neighbour, below
        ([1.0 + ulp_at_one, half], 1.0 + 2 * ulp_at_one),  # and above
        ([1.0, quarter, half], 1.0 + ulp_at_one),
        ([1.0, quarter, quarter, quarter], 1.0 + ulp_at_one),  # rounding at each step would stay at 1
        ([-1.0, -quarter, -quarter, -quarter], -1.0 - ulp_at_one),
    ]
    for values, want in cases:
        for count in (1, 40):
            dst = np.empty(count, scalar)
            run("sum", dtype, dst, [np.full(count, v, scalar) for v in values], variant)
            assert dst.astype(float).tolist() == [want] * count, values


@every_variant
def test_float16_overflow(variant):
    """65519.99 is the last to round to the greatest float16; a float32 sum may pass it and come back."""
    f16 = np.float16
    cases = {
        (65504, 15): 65504,
        (65504, 16): np.inf,
        (-65504, -16): -np.inf,
        (60000, 60000, -60000): 60000,
        (60000, 60000): np.inf,
        (np.inf, -np.inf): np.nan,
    }
    for values, want in cases.items():
        dst = np.empty(40, f16)
        run("sum", "float16", dst, [np.full(40, v, f16) for v in values], variant)
        np.testing.assert_array_equal(dst, np.full(40, want, f16), err_msg=str(values))
    dst = np.empty(40, f16)
    run("avg", "float16", dst, [np.full(40, 60000, f16)] * 4, variant, divisor=4)
    assert (dst == f16(60000)).all()


@every_variant
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap_and_divide_toward_zero(dtype, variant):
    scalar = DTYPES[dtype][1]
    info = np.iinfo(scalar)
    dst = np.empty(70, scalar)
    run("sum", dtype, dst, [np.full(70, info.max, scalar), np.ones(70, scalar)], variant)
    assert (dst == info.min).all()
    run("prod", dtype, dst, [np.full(70, info.max, scalar), np.full(70, info.max, scalar)], variant)
    assert (dst == 1).all()
    dividend = -7 if info.min < 0 else 7
    run("avg", dtype, dst, [np.full(70, dividend, scalar)], variant, divisor=2)
    assert (dst == (-3 if info.min < 0 else 3)).all()
    for divisor in (1, 300, 2**31 - 1):
        values = np.resize(np.array([info.min, info.max, 0, 1], dtype=scalar), 70)
        run("avg", dtype, dst, [values], variant, divisor=divisor)
        assert (dst == truncated_quotient(values, divisor)).all(), divisor


@every_variant
@pytest.mark.parametrize("op", ["sum", "max", "prod", "min"])
@pytest.mark.parametrize("nsources", [1, 2, 3, 5])
def test_any_nonzero_byte_is_true(op, nsources, variant):
    rng = np.random.default_rng(nsources)
    sources = [rng.choice(np.array([0, 0, 1, 2, 0x80, 0xFF], np.uint8), 5000) for _ in range(nsources)]
    dst = np.full(5000, 9, np.uint8)
    run(op, "bool", dst, sources, variant)
    truth = np.array(sources) != 0
    assert (dst == (truth.any(axis=0) if op in ("sum", "max") else truth.all(axis=0))).all()


@every_variant
@pytest.mark.parametrize("op, dtype", [(o, d) for o, d in DEFINED if o == "avg"])
def test_avg_divides_only_when_told(op, dtype, variant):
    """A divisor of 0, an inner step of AVG, is SUM."""
    sources = [s[:4500] for s in operands(dtype)[:3]]
    dst = np.empty_like(sources[0])
    run("avg", dtype, dst, sources, variant, divisor=0)
    check("avg", dtype, dst, reference("sum", dtype, sources), "without divisor")
    run("avg", dtype, dst, sources[:1], variant, divisor=3)
    check("avg", dtype, dst, reference("sum", dtype, sources[:1], 3), "one source")


@every_variant
@pytest.mark.parametrize("dtype", ["float16", "float32", "int64"])
def test_1024_sources(dtype, variant):
    scalar = DTYPES[dtype][1]
    sources = [np.full(1500, i % 5, scalar) for i in range(1024)]
    dst = np.empty(1500, scalar)
    run("sum", dtype, dst, sources, variant)
    assert (dst == sum(i % 5 for i in range(1024))).all()


def test_table_holds_what_is_documented():
    arithmetic = {(OPS[op], DTYPES[dtype][0]) for op, dtype in DEFINED}
    logical = {(number, DTYPES[dtype][0]) for number in BIT_OPS.values() for dtype in [*INTEGERS, "bool"]}
    located = set(itertools.product(LOC_OPS.values(), PAIRS.values()))
    assert set(_kernels.defined()) == arithmetic | logical | located


# Gaps between the numbers, numbers out of range, ops of one kind of dtype on another, and the ops without a loop.
UNKNOWN = [(0, 12), (0, 31), (0, 99), (0, -1), (5, 7), (31, 7), (-1, 7), (42, 7), (32, 7), (37, 9), (34, 10), (32, 36)]
UNKNOWN += [(0, 38), (2, 41), (32, 41), (38, 7), (39, 2), (38, 34), (40, 7), (41, 7)]


@pytest.mark.parametrize("op, dtype", [(OPS[o], DTYPES[d][0]) for o, d in sorted(UNDEFINED)] + UNKNOWN)
def test_undefined_reductions_are_refused(op, dtype):
    a = np.zeros(16, np.uint8)
    with pytest.raises(TypeError):
        _kernels.reduce(op, dtype, a, [a])


def test_wrong_arguments_are_refused():
    a, short, read_only = np.zeros(16, np.uint8), np.zeros(12, np.uint8), np.zeros(16, np.uint8)
    read_only.flags.writeable = False
    for dst, sources, variant in [
        (a, [], None),
        (a, [a] * 1025, None),
        (a, [a, short], None),
        (np.zeros(15, np.uint8), [np.zeros(15, np.uint8)], None),
        (a, [a], "avx1024"),
        (read_only, [a], None),
    ]:
        with pytest.raises(ValueError):
            _kernels.reduce(0, 7, dst, sources, 0, variant)
