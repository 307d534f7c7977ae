"""Host reductions of 8-bit floats against ml_dtypes' casts: every pair of values, and rounding once."""

import numpy as np
import pytest
from kernel_cases import DTYPES, FLOAT8, check, every_variant, reference, run

every_float8 = pytest.mark.parametrize("dtype", FLOAT8)


def grid(dtype, nsources):
    """All 65536 pairs of values, and further sources that differ from them."""
    pairs = [v.reshape(-1).astype(np.uint8) for v in np.meshgrid(np.arange(256), np.arange(256))]
    rng = np.random.default_rng(nsources)
    more = [rng.integers(0, 256, 1 << 16).astype(np.uint8) for _ in range(nsources - 2)]
    return [v.view(DTYPES[dtype][1]) for v in [*pairs, *more]]


@every_variant
@every_float8
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "avg"])
@pytest.mark.parametrize("nsources", [2, 3, 5])
def test_every_pair_of_values(op, dtype, nsources, variant):
    sources = grid(dtype, nsources)
    dst = np.empty_like(sources[0])
    run(op, dtype, dst, sources, variant)
    check(op, dtype, dst, reference(op, dtype, sources, 7 if op == "avg" else 0), f"{nsources} sources")


@every_variant
@every_float8
@pytest.mark.parametrize("op", ["sum", "max", "min"])
def test_every_value_survives_the_neutral_element(op, dtype, variant):
    """-0 for a sum, an operand itself for a choice: the conversions lose nothing, and a NaN chosen keeps its bits."""
    values = np.arange(256).astype(np.uint8).view(DTYPES[dtype][1])
    other = np.full_like(values, -0.0) if op == "sum" else values
    dst = np.empty_like(values)
    run(op, dtype, dst, [values, other], variant)
    check(op, dtype, dst, values, "neutral element")


@every_variant
@pytest.mark.parametrize(
    "dtype, values, want",
    [
        ("float8_e4m3fn", [448, 16], 448),  # 464 is a tie, and 448 is even
        ("float8_e4m3fn", [448, 18], np.nan),  # no infinity
        ("float8_e4m3fn", [-448, -32], np.nan),
        ("float8_e4m3fn", [448, 448, -448], 448),
        ("float8_e4m3fn", [1, 0.0625], 1),  # a tie goes to the even neighbour, below
        ("float8_e4m3fn", [1.125, 0.0625], 1.25),  # and above
        ("float8_e4m3fn", [1, 0.03125, 0.03125, 0.03125], 1.125),  # rounding at each step would stay at 1
        ("float8_e5m2", [57344, 4096], np.inf),  # 61440 is a tie, and 57344 is odd
        ("float8_e5m2", [57344, 3584], 57344),
        ("float8_e5m2", [57344, 57344, -57344], 57344),
        ("float8_e5m2", [-np.inf, 57344], -np.inf),
        ("float8_e5m2", [np.inf, -np.inf], np.nan),
        ("float8_e5m2", [1, 0.125], 1),
        ("float8_e5m2", [1.25, 0.125], 1.5),
        ("float8_e5m2", [1, 0.0625, 0.0625, 0.0625], 1.25),
    ],
)
def test_sums_round_once_and_to_even(dtype, values, want, variant):
    for count in (1, 70):
        dst = np.empty(count, DTYPES[dtype][1])
        run("sum", dtype, dst, [np.full(count, v, dst.dtype) for v in values], variant)
        np.testing.assert_array_equal(dst.astype(np.float32), np.full(count, want, np.float32))
