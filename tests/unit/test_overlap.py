"""Which buffers share memory: send and receive buffers with layouts, against sets of bytes."""

import random

import numpy as np
import pytest
import typemaps

from hetccl._buffer import check_overlap, describe, register_mpi
from hetccl._layout import register_decoder

FLOAT = typemaps.named(4)


def handle_of(datatype):
    if not isinstance(datatype, typemaps.Made):
        raise TypeError("no datatype")
    return datatype.handle


@pytest.fixture(autouse=True)
def made_datatypes():
    register_mpi({}, handle_of, None, None)
    register_decoder(lambda datatype: datatype.description)


def block(shape, index, order="C"):
    """Subarray datatype of a slice of an array of floats."""
    starts = [s.start for s in index]
    subsizes = [s.stop - s.start for s in index]
    return typemaps.subarray(FLOAT, list(shape), subsizes, starts, order)


CUBE = (8, 9, 10)
ALL = [slice(0, n) for n in CUBE]
HALOS = {
    "planes": ([slice(0, 1), *ALL[1:]], [slice(1, 2), *ALL[1:]]),
    "rows": ([ALL[0], slice(0, 1), ALL[2]], [ALL[0], slice(1, 2), ALL[2]]),
    "columns": ([*ALL[:2], slice(0, 1)], [*ALL[:2], slice(1, 2)]),
    "far-columns": ([*ALL[:2], slice(0, 2)], [*ALL[:2], slice(8, 10)]),
    "edges": ([ALL[0], slice(0, 1), slice(0, 1)], [ALL[0], slice(8, 9), slice(9, 10)]),
    "row-and-column": ([ALL[0], slice(0, 1), ALL[2]], [ALL[0], slice(1, 9), slice(0, 1)]),
    "inner-faces": ([slice(1, 7), slice(1, 2), slice(1, 9)], [slice(1, 7), slice(2, 8), slice(1, 2)]),
    "checkers": ([slice(2, 5), slice(3, 6), slice(0, 5)], [slice(2, 5), slice(3, 6), slice(5, 10)]),
}


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", HALOS)
def test_halos_of_one_array_are_apart(name, order):
    array = np.zeros(CUBE, "f4")
    send, recv = (block(CUBE, index, order) for index in HALOS[name])
    check_overlap([array, 1, send], [array, 1, recv])
    check_overlap([array, 1, recv], [array, 1, send])


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", HALOS)
def test_halos_that_meet_are_refused(name, order):
    array = np.zeros(CUBE, "f4")
    send, recv = (block(CUBE, index, order) for index in HALOS[name])
    with pytest.raises(ValueError, match="sendbuf and recvbuf share"):
        check_overlap([array, 1, send], [array, 1, send])
    last = describe([array, 1, recv])["ptr"] - array.ctypes.data
    corner = max(at // 4 for at, _ in recv.typemap) + last // 4
    with pytest.raises(ValueError, match="sendbuf and recvbuf share"):
        check_overlap(array.reshape(-1)[corner : corner + 1], [array, 1, recv])


def random_block(rng, shape):
    index = []
    for n in shape:
        start = rng.randint(0, n - 1)
        index.append(slice(start, rng.randint(start + 1, n)))
    return index


@pytest.mark.parametrize("seed", range(300))
def test_blocks_of_one_array_share_what_their_indices_share(seed):
    rng = random.Random(seed)
    shape = tuple(rng.randint(1, 6) for _ in range(rng.randint(1, 4)))
    array = np.zeros(shape, "f4")
    one, two = random_block(rng, shape), random_block(rng, shape)
    share = all(a.start < b.stop and b.start < a.stop for a, b in zip(one, two))
    send, recv = [array, 1, block(shape, one)], [array, 1, block(shape, two)]
    if share:
        with pytest.raises(ValueError, match="share"):
            check_overlap(send, recv)
    else:
        check_overlap(send, recv)


@pytest.mark.parametrize("seed", range(300))
def test_any_two_datatypes_share_what_their_bytes_share(seed):
    rng = random.Random(seed)
    array = np.zeros(1 << 14, "u1")
    specs, touched = [], []
    while len(specs) < 2:
        made, count, at = typemaps.wild(rng, 3), rng.randint(1, 3), rng.randint(0, 300)
        positions = [at + k for k in made.positions(count)]
        writes_twice = len(set(positions)) < len(positions)
        if not positions or min(positions) < at or max(positions) >= array.size or (specs and writes_twice):
            continue
        specs.append([array[at:], count, made])
        touched.append(set(positions))
    if touched[0] & touched[1]:
        with pytest.raises(ValueError, match="share"):
            check_overlap(*specs)
    else:
        check_overlap(*specs)
