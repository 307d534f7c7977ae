"""Layouts of datatypes: the bytes that they pack are those that MPI's definitions say (typemaps.py)."""

import ctypes
import random

import numpy as np
import pytest
import typemaps

from hetccl._buffer import describe
from hetccl._layout import forget
from hetccl._spec import move, pack, runs

SEEDS = range(500)


@pytest.fixture(autouse=True)
def made_datatypes():
    with typemaps.registered():
        yield


def values(nbytes, seed):
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype="u1")


def buffer_for(made, count, seed):
    """(array, spec arguments, where its element 0 lies), big enough for `count` elements; None where no spec can be."""
    positions = made.positions(count)
    low, high = min(positions, default=0), max(positions, default=-1) + 1
    if low >= 0:
        return values(high + 5, seed), (count,), 0
    if made.extent <= 0:
        return None
    displ = -(low // made.extent)
    return values(displ * made.extent + max(high, 0) + 5, seed), (count, displ), displ * made.extent


def wild(seed):
    rng = random.Random(seed)
    return typemaps.wild(rng, rng.randint(1, 4)), rng.randint(1, 3), rng


@pytest.mark.parametrize("seed", SEEDS)
def test_packs_what_the_typemap_says(seed):
    made, count, rng = wild(seed)
    found = buffer_for(made, count, seed)
    if found is None:
        with pytest.raises(ValueError, match="beyond the buffer, which has room for 0"):
            describe([values(1 << 12, seed), count, made])
        return
    array, extra, origin = found
    spec = [array, *extra, made] if len(extra) == 2 else [array, extra[0], made]
    expected = array[[origin + at for at in made.positions(count)]].tobytes()
    understood = describe(spec)
    assert understood["count"] * understood["itemsize"] == len(expected)
    out = bytearray(len(expected))
    pack(spec, out)
    assert out == expected
    for _ in range(3):
        begin = rng.randint(0, len(expected))
        end = rng.randint(begin, len(expected))
        out = bytearray(end - begin)
        pack(spec, out, begin)
        assert out == expected[begin:end]
        if understood["layout"]:
            assert read_runs(spec, begin, end - begin, rng.randint(1, 5)) == expected[begin:end]


def read_runs(spec, begin, nbytes, most):
    got = bytearray()
    while len(got) < nbytes:
        found = runs(spec, begin + len(got), nbytes - len(got), most)
        assert 1 <= len(found) <= most
        got += b"".join(ctypes.string_at(address, n) for address, n in found)
    return got


@pytest.mark.parametrize("past_cache", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_unpacks_to_there_and_nowhere_else(seed, past_cache):
    made, count, rng = wild(seed)
    found = buffer_for(made, count, seed)
    if found is None:
        return
    array, extra, origin = found
    spec = [array, *extra, made] if len(extra) == 2 else [array, extra[0], made]
    positions = [origin + at for at in made.positions(count)]
    if len(set(positions)) < len(positions):
        with pytest.raises(ValueError, match="lie over each other"):
            describe(spec, writable=True)
        return
    packed = values(len(positions), seed + 1)
    expected = array.copy()
    expected[positions] = packed
    cut = rng.randint(0, len(packed))
    move(packed, 0, spec, 0, cut, past_cache)
    move(packed, cut, spec, cut, len(packed) - cut, past_cache)
    assert array.tobytes() == expected.tobytes()


@pytest.mark.parametrize("past_cache", [False, True])
@pytest.mark.parametrize("seed", SEEDS[:200])
def test_copies_from_layout_to_layout(seed, past_cache):
    rng = random.Random(seed)
    source = typemaps.wild(rng, 3)
    target = typemaps.vector(typemaps.named(rng.choice([1, 4, 6])), 5, 2, 3)
    found = buffer_for(source, 4000 // max(source.size, 1) + 1, seed)
    if found is None or not source.size:
        return
    array, extra, origin = found
    positions = [origin + at for at in source.positions(extra[0])]
    count = len(positions) // target.size
    received = values(target.extent * count + 5, seed + 1)
    expected = received.copy()
    begin = rng.randint(0, len(positions) - count * target.size)
    expected[target.positions(count)] = array[positions][begin : begin + count * target.size]
    spec = [array, *extra, source] if len(extra) == 2 else [array, extra[0], source]
    move(spec, begin, [received, count, target], 0, count * target.size, past_cache)
    assert received.tobytes() == expected.tobytes()


@pytest.mark.parametrize("shift", [0, 1, 17, 63])
@pytest.mark.parametrize("run", [1, 63, 64, 127, 128, 129, 200, 512, 4099])
def test_runs_at_any_address_pass_the_cache(run, shift):
    """Whole lines are stored apart from what is left of them on both sides."""
    target = typemaps.vector(typemaps.named(1), 7, run, run + 5)
    memory = values(target.extent + 256, run)
    buffer = memory[-memory.ctypes.data % 64 + shift :][: target.extent + 64]
    packed = values(target.size, run + 1)
    expected = buffer.copy()
    expected[target.positions(1)] = packed
    move(packed, 0, [buffer, 1, target], 0, len(packed), True)
    assert buffer.tobytes() == expected.tobytes()
    contiguous = buffer[shift:]
    move([expected, 1, target], 3 % run, contiguous, 0, target.size - 3 % run, True)
    assert contiguous[: target.size - 3 % run].tobytes() == packed[3 % run :].tobytes()


def pieces(made, count=1):
    layout = describe([values(1 << 16, 0), count, made])["layout"]
    return None if layout is None else layout["pieces"]


FLOAT = typemaps.named(4)


@pytest.mark.parametrize(
    "made, expected",
    [
        (typemaps.contiguous(FLOAT, 100), None),
        (typemaps.vector(FLOAT, 100, 3, 3), None),
        (typemaps.struct([FLOAT, FLOAT], [2, 5], [0, 8]), None),
        (typemaps.subarray(FLOAT, [4, 6], [4, 6], [0, 0], "F"), None),
        (typemaps.indexed(FLOAT, [3, 2], [0, 3]), None),
        (typemaps.dup(typemaps.resized(FLOAT, 0, 4)), None),
        (typemaps.contiguous(FLOAT, 0), None),
        (typemaps.resized(FLOAT, 0, 12), 0),
        (typemaps.contiguous(typemaps.resized(FLOAT, 0, 12), 50), 0),
        (typemaps.resized(typemaps.vector(FLOAT, 100, 3, 7), 0, 2800), 0),
        (typemaps.vector(FLOAT, 100, 3, 7), 1),
        (typemaps.subarray(FLOAT, [9, 9], [9, 3], [0, 2], "C"), 0),
        (typemaps.subarray(FLOAT, [9, 9, 9], [4, 9, 3], [0, 0, 2], "C"), 1),
        (typemaps.subarray(FLOAT, [9, 9, 9], [4, 9, 9], [1, 0, 0], "C"), 0),
        (typemaps.subarray(FLOAT, [9, 9, 9], [4, 3, 3], [1, 0, 0], "C"), 2),
        (typemaps.indexed_block(FLOAT, 1, list(range(0, 1000, 5))), 1),
        (typemaps.indexed_block(FLOAT, 1, list(range(1000))), None),
    ],
)
def test_loops_are_few(made, expected):
    """pieces: of an element, apart from the loop over elements; None: contiguous."""
    assert pieces(made) == expected


def test_a_datatype_of_many_blocks_is_small():
    rows = typemaps.contiguous(typemaps.struct([FLOAT, FLOAT], [1, 1], [0, 8]), 1000)
    assert pieces(rows) <= 3


@pytest.mark.parametrize("order", ["C", "F"])
def test_positions_beyond_two_gibibytes(order):
    """One element 5 GiB into an array; its memory is never touched."""
    n = 70_000
    array = np.lib.stride_tricks.as_strided(np.zeros(1, "u1"), (n * n,), (1,), writeable=False)
    made = typemaps.Made([], 0, n * n, ("SUBARRAY", n * n, {
        "sizes": [n, n], "subsizes": [2, 3], "starts": [n - 2, n - 3], "order": order,
    }, [typemaps.named(1).description]), next(typemaps.HANDLES))  # fmt: skip
    spec = [array, 1, made]
    start = ((n - 2) * n + n - 3) if order == "C" else ((n - 3) * n + n - 2)
    found = runs(spec, 0, 6, 10)
    assert [address - array.ctypes.data for address, _ in found] == [start + n * i for i in range(len(found))]
    assert [length for _, length in found] == ([3, 3] if order == "C" else [2, 2, 2])
    with pytest.raises(ValueError, match="beyond the buffer, which has room for 1"):
        describe([array, 2, made])


def test_a_handle_that_comes_back_is_another_datatype():
    first = typemaps.vector(FLOAT, 2, 1, 2)
    second = typemaps.vector(FLOAT, 3, 1, 2)
    second.handle = first.handle
    assert describe([values(64, 0), 1, first])["itemsize"] == 8
    forget(first.handle)
    assert describe([values(64, 0), 1, second])["itemsize"] == 12


def test_what_cannot_be_carried():
    darray = typemaps.made("DARRAY", {}, [FLOAT], [])
    with pytest.raises(TypeError, match="obj: MPI datatype cannot be carried: it is made by darray"):
        describe([values(8, 0), 1, darray])
