"""Vector specs: the parts that mpi4py picks, and an error where it would leave the buffer.

A process is its own neighbour NPARTS times, so that mpi4py's Neighbor_alltoallv has NPARTS parts on COMM_SELF.
"""

import array as arrays
import ctypes

import numpy as np
import pytest
import typemaps

from buffers import RECORD, Dlpack1
from hetccl._spec import describe_parts

MPI = pytest.importorskip("mpi4py.MPI", reason="mpi4py or the MPI library is not installed")
bootstrap = pytest.importorskip("hetccl.bootstrap")

NPARTS = 3
COLUMN = MPI.FLOAT.Create_vector(3, 1, 4)  # of a 3 x 4 matrix
COLUMN_NEXT = COLUMN.Create_resized(0, 4).Commit()  # whose next element is the next column
PAIR = MPI.FLOAT.Create_contiguous(2).Commit()
COLUMN.Commit()


@pytest.fixture(autouse=True)
def mpis_datatypes():
    typemaps.register_mpis_own(bootstrap)


@pytest.fixture(scope="module")
def neighbours():
    comm = MPI.COMM_SELF.Create_dist_graph_adjacent([0] * NPARTS, [0] * NPARTS)
    yield comm
    comm.Free()


@pytest.fixture
def a():
    return np.arange(12, dtype="f4")


def memory_of(parts):
    """The bytes of the parts that are contiguous, one after another, with each one's length."""
    return [ctypes.string_at(address, n) for address, n, layout in parts if not layout]


SPECS = {
    "array": lambda a: a,
    "array-rest": lambda a: a[:11],
    "array-few": lambda a: a[:2],
    "array-empty": lambda a: a[:0],
    "raw": lambda a: np.frombuffer(a.tobytes()[: 3 * RECORD.itemsize], RECORD)["b"].copy(),
    "datatype": lambda a: [a, MPI.DOUBLE],
    "string": lambda a: [a, "f"],
    "counts": lambda a: [a, [1, 0, 5]],
    "counts-zero": lambda a: [a, [0, 0, 0]],
    "counts-none": lambda a: [a, None],
    "one-count": lambda a: [a, 4],
    "one-count-numpy": lambda a: [a, np.int64(3)],
    "one-count-0d": lambda a: [a, np.array(3)],
    "counts-numpy": lambda a: [a, np.array([3, 1, 2], "u2")],
    "counts-array": lambda a: [a, arrays.array("i", [3, 1, 2])],
    "counts-range": lambda a: [a, range(1, 4)],
    "counts-bytes": lambda a: [a, b"\1\2\3"],
    "counts-dict": lambda a: [a, {0: 1, 1: 2, 2: 3}],
    "counts-bool": lambda a: [a, [True, False, 2]],
    "pair": lambda a: [a, ([1, 2, 3], [9, 5, 0])],
    "pair-tuple": lambda a: (a, ((1, 2, 3), (9, 5, 0))),
    "pair-none": lambda a: [a, ([1, 2, 3], None)],
    "none-pair": lambda a: [a, (None, [8, 4, 0])],
    "pair-step": lambda a: [a, ([1, 2, 3], 4)],
    "pair-ints": lambda a: [a, (1, 4)],
    "pair-of-two-ints-for-counts": lambda a: [a, (2, 3)],
    "pair-step-zero": lambda a: [a, ([1, 2, 3], 0)],
    "three": lambda a: [a, [1, 2, 3], MPI.FLOAT],
    "three-pair": lambda a: [a, ([1, 2, 1], [4, 0, 3]), MPI.DOUBLE],
    "three-count": lambda a: [a, 2, MPI.INT],
    "three-none": lambda a: [a, None, MPI.SHORT],
    "four": lambda a: [a, [1, 2, 3], [9, 5, 0], MPI.FLOAT],
    "four-tuples": lambda a: [a, (1, 2, 3), (9, 5, 0), MPI.FLOAT],
    "four-none": lambda a: [a, None, None, MPI.FLOAT],
    "four-counts-none": lambda a: [a, None, [8, 4, 0], MPI.FLOAT],
    "empty-anywhere": lambda a: [a, ([1, 0, 2], [0, 9999, 3])],
    "empty-before": lambda a: [a, ([1, 0, 2], [0, -5, 3])],
    "bytearray": lambda a: [bytearray(a.tobytes()), [1, 2, 3], MPI.FLOAT],
    "dlpack": lambda a: [Dlpack1(a), ([1, 2, 3], [9, 5, 0]), MPI.FLOAT],
    "nothing": lambda a: [None, [0, 0, 0], MPI.FLOAT],
    "nothing-int": lambda a: [None, 0, MPI.FLOAT],
    "contiguous": lambda a: [a, ([1, 2, 1], [0, 4, 2]), PAIR],
    "contiguous-none": lambda a: [a, PAIR],
    "column": lambda a: [a, ([1, 0, 1], [0, 0, 0]), COLUMN],
    "columns": lambda a: [a, ([1, 2, 1], [3, 1, 0]), COLUMN_NEXT],
    "columns-counts": lambda a: [a, [1, 1, 2], COLUMN_NEXT],
}


@pytest.mark.parametrize("name", SPECS)
def test_same_parts_as_mpi4py(name, a, neighbours):
    whole, parts = describe_parts(SPECS[name](a), NPARTS)
    lengths = [n for _, n, _ in parts]
    received = bytearray(64)
    neighbours.Neighbor_alltoallv(SPECS[name](a), [received, lengths, MPI.BYTE])
    assert whole["count"] * whole["itemsize"] == sum(lengths)
    if whole["layout"] is None:
        spec_memory = SPECS[name](a)  # the same memory for all but copies, whose bytes are equal
        assert b"".join(memory_of(describe_parts(spec_memory, NPARTS)[1])) == received[: sum(lengths)]
    else:
        columns = {"column": [0, 0], "columns": [3, 1, 2, 0], "columns-counts": [0, 1, 2, 3]}[name]
        assert a.reshape(3, 4)[:, columns].T.tobytes() == received[: sum(lengths)]


REFUSED_BY_BOTH = {
    "one-item": (lambda a: [a], ValueError),
    "five-items": (lambda a: [a, 1, 2, "f", 5], ValueError),
    "too-few": (lambda a: [a, [1, 2]], ValueError),
    "too-many": (lambda a: [a, [1, 2, 3, 0]], ValueError),
    "tuple-of-counts": (lambda a: [a, (1, 2, 3)], ValueError),
    "displs-too-few": (lambda a: [a, ([1, 2, 3], [0, 1])], ValueError),
    "float": (lambda a: [a, 2.0], TypeError),
    "floats": (lambda a: [a, [1.0, 2.0, 3.0]], TypeError),
    "float-array": (lambda a: [a, np.ones(3)], TypeError),
    "float-displs": (lambda a: [a, ([1, 2, 3], [0.0, 1.0, 2.0])], TypeError),
    "float-step": (lambda a: [a, ([1, 2, 3], 2.5)], TypeError),
    "none-inside": (lambda a: [a, [1, None, 2]], TypeError),
    "list-of-lists": (lambda a: [a, [[1], [2], [3]]], TypeError),
    "no-whole-number": (lambda a: [a[:7], MPI.DOUBLE], ValueError),
    "negative-count": (lambda a: [a, [1, -1, 2]], ValueError),
    "none-without-datatype": (lambda a: [None, [0, 0, 0]], TypeError),
    "number": (lambda a: 3, TypeError),
    "strided": (lambda a: a[::2], BufferError),
}


@pytest.mark.parametrize("name", REFUSED_BY_BOTH)
def test_refused_as_by_mpi4py(name, a, neighbours):
    make, error = REFUSED_BY_BOTH[name]
    with pytest.raises((ValueError, TypeError, KeyError, BufferError, OverflowError, MPI.Exception)):
        neighbours.Neighbor_alltoallv(make(a), [bytearray(64), 4, MPI.BYTE])
    with pytest.raises(error, match="obj: "):
        describe_parts(make(a), NPARTS)


@pytest.mark.parametrize(
    "make, error, match",
    [
        (lambda a: [a, [5, 5, 5]], ValueError, r"part 2, 5 elements at displacement 10, .*48 bytes.*room for 2"),
        (lambda a: [a, 5], ValueError, "part 2"),
        (lambda a: [a, ([1, 1, 1], [0, 12, 1])], ValueError, "part 1, 1 elements at displacement 12"),
        (lambda a: [a, ([1, 1, 1], [0, 1, 2**62])], ValueError, "part 2"),
        (lambda a: [a, [0, 2**62, 2**62]], ValueError, "part 1"),
        (lambda a: [a, [0, 2**70, 0]], ValueError, r"counts\[1\] is beyond any buffer"),
        (lambda a: [a, ([0, 0, 1], 2**62)], ValueError, r"displacements\[2\] is beyond any buffer"),
        (lambda a: [a, ([1, 1, 1], [0, -1, 2])], ValueError, r"displacements\[1\] is negative: -1"),
        (lambda a: [a, ([1, 1, 1], -1)], ValueError, r"displacements\[1\] is negative: -1"),
        (lambda a: [a, [1, 2, -3]], ValueError, r"counts\[2\] is negative: -3"),
        (lambda a: [a, -1], ValueError, r"counts\[0\] is negative"),
        (lambda a: [None, [0, 1, 0], MPI.FLOAT], ValueError, "part 1.* of 0 bytes"),
        (lambda a: [a, ([1, 1, 1], [0, 1, 4]), COLUMN_NEXT], ValueError, "part 2, 1 elements at displacement 4"),
        (lambda a: [a, [2, 0, 0], COLUMN], ValueError, "part 0, 2 elements"),
        (lambda a: [a, ([1, 1], [0, 1])], ValueError, "expected 3 counts, one for each rank, got 2"),
        (lambda a: [a.astype(object), [1, 1, 1]], TypeError, "object"),
        (lambda a: MPI.IN_PLACE, TypeError, "IN_PLACE"),
    ],
)
@pytest.mark.parametrize("writable", [False, True])
def test_parts_beyond_the_buffer_are_refused(make, error, match, writable, a):
    with pytest.raises(error, match=f"obj: .*{match}"):
        describe_parts(make(a), NPARTS, writable)


@pytest.mark.parametrize(
    "make, first, second",
    [
        (lambda a: [a, ([4, 4, 4], [0, 3, 8])], 0, 1),
        (lambda a: [a, ([4, 4, 4], [8, 0, 8])], 0, 2),
        (lambda a: [a, ([1, 12, 0], [5, 0, 0])], 0, 1),
        (lambda a: [a, ([1, 2, 3], 0)], 0, 1),
        (lambda a: [a, ([1, 1, 1], [3, 1, 3]), COLUMN_NEXT], 0, 2),
        (lambda a: [a, ([2, 1, 1], [0, 1, 3]), COLUMN_NEXT], 0, 1),
        (lambda a: [a, ([1, 1, 0], [0, 0, 0]), COLUMN], 0, 1),
    ],
)
def test_parts_that_receive_are_apart(make, first, second, a):
    describe_parts(make(a), NPARTS)
    with pytest.raises(ValueError, match=f"obj: parts {first} and {second} overlap"):
        describe_parts(make(a), NPARTS, writable=True)


@pytest.mark.parametrize(
    "make",
    [
        lambda a: [a, ([4, 4, 4], [8, 0, 4])],
        lambda a: [a, ([2, 0, 2], [0, 1, 2])],
        lambda a: [a, ([1, 2, 1], [3, 1, 0]), COLUMN_NEXT],
        lambda a: [a, [1, 1, 2], COLUMN_NEXT],
    ],
)
def test_parts_beside_each_other_may_receive(make, a):
    assert describe_parts(make(a), NPARTS, writable=True)[0]["count"]


def test_read_only_memory_cannot_receive(a):
    with pytest.raises(BufferError, match="obj: .*read-only"):
        describe_parts([a.tobytes(), [1, 2, 3], MPI.FLOAT], NPARTS, writable=True)


def test_parts_beyond_two_gibibytes():
    view = np.lib.stride_tricks.as_strided(np.zeros(1, "u1"), (3 * 2**32,), (1,), writeable=False)
    whole, parts = describe_parts([view, ([2**32, 2**31 + 1, 5], [2**32, 0, 3 * 2**32 - 5])], NPARTS)
    start = view.ctypes.data
    assert parts == [(start + 2**32, 2**32, False), (start, 2**31 + 1, False), (start + 3 * 2**32 - 5, 5, False)]
    assert whole["count"] == 2**32 + 2**31 + 6


@pytest.mark.parametrize("nparts", [1, 2, 5, 13])
def test_an_array_is_shared_out_with_the_rest_in_front(nparts, a):
    parts = describe_parts(a, nparts)[1]
    assert [n // 4 for _, n, _ in parts] == [12 // nparts + (i < 12 % nparts) for i in range(nparts)]
    assert b"".join(memory_of(parts)) == a.tobytes()


W_SPECS = {
    "all": lambda a: [a, [1, 2, 1], [0, 8, 4], [MPI.FLOAT, MPI.DOUBLE, MPI.INT]],
    "pair": lambda a: [a, ([3, 1, 0], [1, 20, 0]), [MPI.BYTE, MPI.FLOAT, MPI.DOUBLE]],
    "datatypes": lambda a: [a, [MPI.FLOAT, COLUMN, MPI.DOUBLE]],
    "datatypes-tuple": lambda a: (a, (MPI.FLOAT, MPI.BYTE, MPI.DOUBLE)),
    "columns": lambda a: [a, [1, 1, 2], [4, 0, 8], [COLUMN, COLUMN_NEXT, COLUMN_NEXT]],
    "arrays": lambda a: [a, np.array([1, 2, 3]), arrays.array("l", [0, 4, 8]), [MPI.FLOAT] * 3],
    "empty-anywhere": lambda a: [a, [1, 0, 0], [44, 9999, -3], [MPI.FLOAT] * 3],
    "structured": lambda a: [a.view([("x", "f4"), ("y", "f4")]), [1, 2, 3], [0, 4, 8], [MPI.FLOAT] * 3],
}


@pytest.mark.parametrize("name", W_SPECS)
def test_same_parts_as_mpi4pys_alltoallw(name, a, neighbours):
    spec = W_SPECS[name](a)
    whole, parts = describe_parts(spec, NPARTS, w=True)
    lengths = [n for _, n, _ in parts]
    starts = [sum(lengths[:i]) for i in range(NPARTS)]
    received = bytearray(64)
    neighbours.Neighbor_alltoallw(spec, [received, lengths, starts, [MPI.BYTE] * NPARTS])
    assert (whole["dtype"], whole["count"], whole["itemsize"]) == ("raw", sum(lengths), 1)
    for (address, n, layout), start in zip(parts, starts):
        got = bytes(received[start : start + n])
        if layout:
            column = (address - a.ctypes.data) // 4
            columns = range(column, column + n // 12)
            assert got == a.reshape(3, 4)[:, columns].T.tobytes()
        else:
            assert got == ctypes.string_at(address, n)


@pytest.mark.parametrize(
    "make, error",
    [
        (lambda a: a, TypeError),
        (lambda a: [a], ValueError),
        (lambda a: [a, [MPI.FLOAT] * 2], ValueError),
        (lambda a: [a, MPI.FLOAT], TypeError),
        (lambda a: [a, [1, 1, 1], None, [MPI.FLOAT] * 3], TypeError),
        (lambda a: [a, 1, 0, [MPI.FLOAT] * 3], TypeError),
        (lambda a: [a, [1, 1], [0, 0], [MPI.FLOAT] * 3], ValueError),
        (lambda a: [a, [1, 1, 1.0], [0, 0, 0], [MPI.FLOAT] * 3], TypeError),
        (lambda a: [a, [1, 1, 1], [0, 0, 0], [MPI.FLOAT, None, MPI.FLOAT]], TypeError),
        (lambda a: [a, [1, 1, -1], [0, 0, 0], [MPI.FLOAT] * 3], ValueError),
        (lambda a: [None, [MPI.FLOAT] * 3], ValueError),
    ],
)
def test_w_refused_as_by_mpi4py(make, error, a, neighbours):
    with pytest.raises((ValueError, TypeError, BufferError, MPI.Exception)):
        neighbours.Neighbor_alltoallw(make(a), [bytearray(64), [0] * 3, [0] * 3, [MPI.BYTE] * 3])
    with pytest.raises(error, match="obj: "):
        describe_parts(make(a), NPARTS, w=True)


@pytest.mark.parametrize(
    "make, match",
    [
        (lambda a: [a, [1, 1, 1], [0, 45, 8], [MPI.FLOAT] * 3], "part 1, 1 elements at displacement 45"),
        (lambda a: [a, [1, 1, 1], [0, -1, 8], [MPI.FLOAT] * 3], r"displacements\[1\] is negative"),
        (lambda a: [a, [1, 1, 1], [0, 0, 16], [MPI.FLOAT, COLUMN, COLUMN]], "part 2"),
    ],
)
def test_w_parts_beyond_the_buffer_are_refused(make, match, a):
    with pytest.raises(ValueError, match=f"obj: .*{match}"):
        describe_parts(make(a), NPARTS, w=True)


def test_w_parts_that_receive_are_apart(a):
    columns = [a, [1, 1, 1], [0, 4, 8], [COLUMN] * 3]
    describe_parts(columns, NPARTS, writable=True, w=True)
    with pytest.raises(ValueError, match="obj: parts 1 and 2 overlap"):
        describe_parts([a, [1, 1, 1], [0, 4, 20], [COLUMN, COLUMN, MPI.FLOAT]], NPARTS, writable=True, w=True)


@pytest.mark.parametrize("side", [2, 8, 30])
def test_w_of_a_matrix_cut_into_blocks(side):
    """Every block's range meets others', and there are too many runs to compare them all: only loops tell."""
    edge = 40
    matrix = np.zeros((side * edge, side * edge), "f4")
    datatypes = [
        MPI.FLOAT.Create_subarray(matrix.shape, (edge, edge), (edge * i, edge * j))
        for i in range(side)
        for j in range(side)
    ]
    nparts = side * side
    assert describe_parts([matrix, datatypes], nparts, writable=True, w=True)[0]["count"] == matrix.nbytes
    displs = [4 if i == nparts - side else 0 for i in range(nparts)]  # one block moves one column to the right
    with pytest.raises(ValueError, match=f"obj: parts {nparts - side} and {nparts - side + 1} overlap"):
        describe_parts([matrix, [1] * nparts, displs, datatypes], nparts, writable=True, w=True)
    for datatype in datatypes:
        datatype.Free()
