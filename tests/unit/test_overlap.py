"""Which buffers share memory: send and receive buffers with layouts, against sets of bytes."""

import random

import numpy as np
import pytest
import typemaps

from hetccl._buffer import check_overlap, describe
from hetccl._spec import check_parts

FLOAT = typemaps.named(4)


@pytest.fixture(autouse=True)
def made_datatypes():
    with typemaps.registered():
        yield


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


@pytest.mark.parametrize("seed", range(300))
def test_parts_of_two_sides_share_what_their_bytes_share(seed):
    """Parts of the sending side may lie over each other; those of the receiving side are apart already."""
    rng = random.Random(seed)
    array, nparts = np.zeros(1 << 10, "u1"), rng.randint(1, 5)
    column = typemaps.resized(typemaps.vector(typemaps.named(4), 4, 1, 8), 0, 4)  # of a 4 x 8 matrix
    datatypes = [[rng.choice([typemaps.named(4), column]) for _ in range(nparts)] for _ in range(2)]
    lines = list(range(8 * 4))
    rng.shuffle(lines)
    displs = [[4 * rng.choice(lines) for _ in range(nparts)], [4 * lines.pop() for _ in range(nparts)]]
    counts = [[rng.randint(0, 2) for _ in range(nparts)] for _ in range(2)]
    touched = [
        [{at + k for k in made.positions(n)} for made, n, at in zip(*side)] for side in zip(datatypes, counts, displs)
    ]
    send, recv = ([array, n, at, made] for n, at, made in zip(counts, displs, datatypes))
    if sum(map(len, touched[1])) > len(set().union(*touched[1])):
        with pytest.raises(ValueError, match="recvbuf: parts .* overlap"):
            check_parts(send, recv, nparts, w=True)
    elif set().union(*touched[0]) & set().union(*touched[1]):
        with pytest.raises(ValueError, match="of sendbuf and .* of recvbuf overlap") as raised:
            check_parts(send, recv, nparts, w=True)
        first, second = (int(word) for word in str(raised.value).split() if word.isdigit())
        assert touched[0][first] & touched[1][second]
    else:
        check_parts(send, recv, nparts, w=True)


def test_parts_of_interleaved_sides():
    """Even columns go out while odd ones come in."""
    matrix = np.zeros((50, 400), "f4")
    column = typemaps.resized(typemaps.vector(FLOAT, 50, 1, 400), 0, 4)
    even, odd = list(range(0, 400, 2)), list(range(1, 400, 2))
    check_parts([matrix, [1] * 200, even, column], [matrix, [1] * 200, odd, column], 200)
    odd[7] = 100
    with pytest.raises(ValueError, match="parts 50 of sendbuf and 7 of recvbuf overlap"):
        check_parts([matrix, [1] * 200, even, column], [matrix, [1] * 200, odd, column], 200)
