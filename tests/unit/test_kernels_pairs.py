"""MINLOC and MAXLOC on MPI's pairs of a value and an index, against a fold in plain Python."""

import math

import numpy as np
import pytest
from kernel_cases import LOC_OPS, PAIRS, Guarded, bits, every_variant

from hetccl import _kernels

VALUES = {
    "float_int": np.float32,
    "double_int": np.float64,
    "long_int": np.int_,
    "int_int": np.intc,
    "short_int": np.short,
    "longdouble_int": np.longdouble,
}
FLOATS = ["float_int", "double_int", "longdouble_int"]
COUNTS = [0, 1, 7, 1500]  # the last is longer than a tile of any pair

every_op = pytest.mark.parametrize("op", list(LOC_OPS))
every_pair = pytest.mark.parametrize("name", list(PAIRS))


def pair_of(name):
    """The pair as the C compiler lays it out."""
    return np.dtype([("value", VALUES[name]), ("index", np.intc)], align=True)


def sources_of(name, nsources):
    """Few values and indices, so that many elements tie in one or both; a tenth of the floats are special."""
    rng = np.random.default_rng(list(name.encode()))
    arrays = []
    for _ in range(nsources):
        # Padding differs too; NumPy's copies of structures leave it out.
        array = np.frombuffer(bytearray(rng.bytes(COUNTS[-1] * pair_of(name).itemsize)), pair_of(name))
        array["value"] = rng.integers(-3, 4, COUNTS[-1])
        array["index"] = rng.integers(-2, 3, COUNTS[-1])
        if name in FLOATS:
            where = rng.random(COUNTS[-1]) < 0.1
            array["value"][where] = rng.choice([np.nan, -np.nan, np.inf, -np.inf, -0.0], where.sum())
        arrays.append(array)
    return arrays


def better(op, a, b):
    """Whether pair a goes before b, which stands later in the order of the sources."""
    a_nan, b_nan = math.isnan(a["value"]), math.isnan(b["value"])
    if a_nan != b_nan:
        return a_nan
    if not a_nan and a["value"] != b["value"]:
        return a["value"] < b["value"] if op == "minloc" else a["value"] > b["value"]
    return a["index"] <= b["index"]


def reference(op, sources):
    """The bytes of the winner of each place."""
    rows = []
    for i in range(len(sources[0])):
        best = sources[0][i : i + 1]
        for source in sources[1:]:
            if not better(op, best[0], source[i]):
                best = source[i : i + 1]
        rows.append(best.tobytes())
    return np.frombuffer(b"".join(rows), np.uint8)


def run(op, name, dst, sources, variant=None):
    _kernels.reduce(LOC_OPS[op], PAIRS[name], dst, [bits(s) for s in sources], 0, variant)


@every_variant
@every_op
@every_pair
@pytest.mark.parametrize("nsources", [1, 2, 3, 4, 9])
def test_the_winner_is_taken_whole(op, name, nsources, variant):
    sources = sources_of(name, nsources)
    want = reference(op, sources)
    for count in COUNTS:
        dst = Guarded(pair_of(name), count, 1)
        run(op, name, dst.raw, [s[:count] for s in sources], variant)
        assert dst.raw.tobytes() == want[: len(dst.raw)].tobytes()
        dst.assert_guards(f"count {count}")


@every_op
@every_pair
@pytest.mark.parametrize("nsources", [1, 2, 3, 6])
def test_dst_may_be_any_source(op, name, nsources):
    want = reference(op, sources_of(name, nsources))
    for position in range(nsources):
        sources = sources_of(name, nsources)
        run(op, name, bits(sources[position]), sources)
        assert bits(sources[position]).tobytes() == want.tobytes()


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize(
    "pairs, minloc, maxloc",
    [
        ([(1, 5), (1, 3), (1, 4)], (1, 3), (1, 3)),
        ([(2, 0), (1, 1), (3, 2)], (1, 1), (3, 2)),
        ([(-1, 7), (math.nan, 9), (math.nan, 8)], (math.nan, 8), (math.nan, 8)),
        ([(0.0, 2), (-0.0, 1)], (-0.0, 1), (-0.0, 1)),
        ([(-0.0, 2), (0.0, 1)], (0.0, 1), (0.0, 1)),
        ([(math.inf, 1), (-math.inf, 2), (0.5, 3)], (-math.inf, 2), (math.inf, 1)),
        ([(1, -(2**31)), (1, 2**31 - 1)], (1, -(2**31)), (1, -(2**31))),
    ],
)
def test_ties_nan_and_zeros(name, pairs, minloc, maxloc):
    for op, (value, index) in {"minloc": minloc, "maxloc": maxloc}.items():
        dst = np.zeros(3, pair_of(name))
        run(op, name, bits(dst), [np.full(3, np.array(p, pair_of(name))) for p in pairs])
        np.testing.assert_array_equal(dst["value"], np.full(3, value))
        assert (np.signbit(dst["value"]) == (math.copysign(1, value) < 0)).all()
        assert (dst["index"] == index).all()


@every_op
@pytest.mark.parametrize("name", ["long_int", "int_int", "short_int"])
def test_extreme_integers(op, name):
    info = np.iinfo(VALUES[name])
    pairs = [(info.max, 1), (info.min, 2), (0, 3)]
    dst = np.zeros(1, pair_of(name))
    run(op, name, bits(dst), [np.array([p], pair_of(name)) for p in pairs])
    assert dst[0].item() == (pairs[1] if op == "minloc" else pairs[0])
