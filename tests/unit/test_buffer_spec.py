"""mpi4py's buffer specs: the same memory as mpi4py picks, and an error where mpi4py would run past the buffer."""

import ctypes

import numpy as np
import pytest

from buffers import Cai, Dlpack1, ml_dtypes
from hetccl._buffer import describe, register_mpi

MPI = pytest.importorskip("mpi4py.MPI", reason="mpi4py or the MPI library is not installed")

DATATYPES = {
    "INT8_T": "int8",
    "BYTE": "uint8",
    "SHORT": "int16",
    "INT": "int32",
    "UINT32_T": "uint32",
    "INT64_T": "int64",
    "FLOAT": "float32",
    "DOUBLE": "float64",
    "C_BOOL": "bool",
}


@pytest.fixture(autouse=True)
def registered():
    register_mpi(
        {MPI._handleof(getattr(MPI, k)): v for k, v in DATATYPES.items()}, MPI._handleof, MPI.IN_PLACE, MPI.BOTTOM
    )


@pytest.fixture
def a():
    return np.arange(12, dtype="f4")


def picked(spec, blocks=1):
    understood = describe(spec, False, blocks)
    return ctypes.string_at(understood["ptr"], understood["count"] * understood["itemsize"])


SPECS = {
    "count": lambda a: [a, 3],
    "tuple": lambda a: (a, 3),
    "none": lambda a: [a, None],
    "pair": lambda a: [a, (3, 2)],
    "pair-list": lambda a: [a, [3, 2]],
    "pair-none": lambda a: [a, (3, None)],
    "none-pair": lambda a: [a, (None, 5)],
    "datatype": lambda a: [a, MPI.FLOAT],
    "other-datatype": lambda a: [a, MPI.DOUBLE],
    "bytes": lambda a: [a, 7, MPI.BYTE],
    "letter": lambda a: [a, 3, "f"],
    "string": lambda a: [a, 3, "f4"],
    "three": lambda a: [a, 3, MPI.FLOAT],
    "three-pair": lambda a: [a, (3, 2), MPI.FLOAT],
    "three-none": lambda a: [a, None, MPI.INT],
    "four": lambda a: [a, 3, 2, MPI.FLOAT],
    "four-none": lambda a: [a, None, 2, MPI.DOUBLE],
    "zero": lambda a: [a, 0, MPI.FLOAT],
    "bool": lambda a: [a, True],
    "numpy-integer": lambda a: [a, np.int64(3)],
    "bytearray": lambda a: [bytearray(a.tobytes()), 2, 1, MPI.SHORT],
    "fortran": lambda a: [a.reshape(3, 4).T, 5, MPI.FLOAT],
    "dlpack": lambda a: [Dlpack1(a), 3, 2, MPI.FLOAT],
    "structured": lambda a: [a.view([("x", "f4"), ("y", "f4")]), MPI.BYTE],
    "swapped-bytes": lambda a: [a.astype(">f4"), MPI.BYTE],
    "datetime": lambda a: [a.view("M8[s]"), MPI.INT64_T],
    "nothing": lambda a: [None, 0, MPI.FLOAT],
}


@pytest.mark.parametrize("name", SPECS)
def test_same_memory_as_mpi4py(name, a):
    received, status = bytearray(64), MPI.Status()
    MPI.COMM_SELF.Sendrecv(SPECS[name](a), 0, recvbuf=[received, MPI.BYTE], status=status)
    spec = SPECS[name](a)
    assert picked(spec) == received[: status.Get_count(MPI.BYTE)]


@pytest.mark.parametrize(
    "code",
    [
        "b",
        "B",
        "h",
        "H",
        "i",
        "I",
        "l",
        "L",
        "q",
        "Q",
        "f",
        "d",
        "g",
        "?",
        "F",
        "D",
        "Zf",
        "Zd",
        "n",
        "i1",
        "i2",
        "i4",
        "i8",
        "u1",
        "u2",
        "u4",
        "u8",
        "f4",
        "f8",
        "c8",
        "c16",
        "b1",
    ],
)
def test_type_strings_have_mpi4pys_sizes(code):
    dtype = describe([bytearray(64), code])
    assert dtype["itemsize"] == MPI._typedict[code].Get_size()
    assert dtype["count"] == 64 // dtype["itemsize"]


@pytest.mark.parametrize("name", DATATYPES)
def test_datatypes(name):
    datatype = getattr(MPI, name)
    understood = describe([bytearray(64), datatype])
    assert understood["dtype"] == DATATYPES[name]
    assert (understood["count"], understood["itemsize"]) == (64 // datatype.size, datatype.size)


def test_names_reach_where_mpi_has_no_datatype(a):
    assert describe([a, 3, "bfloat16"])["dtype"] == "bfloat16"
    if ml_dtypes:
        assert describe([np.zeros(3, ml_dtypes.bfloat16), 2])["dtype"] == "bfloat16"


def test_counts_are_per_block(a):
    """As mpi4py's Allgather and Alltoall have it: a count given is of one block, one inferred is all / blocks."""
    assert describe(a, False, 4)["count"] == 12
    assert describe([a, 2], False, 4)["count"] == 8
    assert describe([a, (2, 4)], False, 4)["count"] == 8
    assert describe([a, None, 4, MPI.FLOAT], False, 4)["count"] == 8
    assert describe([a, 0], False, 4)["count"] == 0
    for spec, error in [
        ([a, 4], "count per block 4 is beyond .* room for 3"),
        ([a, (2, 5)], "room for 1"),
        (a, "into 5 blocks"),
        ([a, None], "into 5 blocks"),
    ]:
        with pytest.raises(ValueError, match=error):
            describe(spec, False, 5 if "into" in error else 4)


@pytest.mark.parametrize(
    "spec, error, match",
    [
        (lambda a: [a], ValueError, "2 to 4 items.* got 1"),
        (lambda a: [a, 1, 2, "f", 5], ValueError, "got 5"),
        (lambda a: [a, -1], ValueError, "negative count -1"),
        (lambda a: [a, (3, -1)], ValueError, "negative displacement -1"),
        (lambda a: [a, 13], ValueError, "count 13 is beyond"),
        (lambda a: [a, 2**70], ValueError, "beyond"),
        (lambda a: [a, (0, 13)], ValueError, "displacement 13 is beyond"),
        (lambda a: [a, (3, 10)], ValueError, "count 3 .* room for 2"),
        (lambda a: [a, 7, MPI.DOUBLE], ValueError, "room for 6"),
        (lambda a: [a, (1, 2, 3)], ValueError, "displacement"),
        (lambda a: [a, 3.0], TypeError, "float"),
        (lambda a: [a, "3", "f"], TypeError, "count must be an integer, got str"),
        (lambda a: [a, 3, 4], TypeError, "datatype"),
        (lambda a: [a, "zz"], TypeError, "'zz'"),
        (lambda a: [a, MPI.COMM_SELF], TypeError, "MPI datatype"),
        (lambda a: [a, MPI.DATATYPE_NULL], TypeError, "MPI datatype"),
        (lambda a: [a[:3], MPI.DOUBLE], ValueError, "12 bytes are no multiple"),
        (lambda a: [MPI.BOTTOM, 3, MPI.FLOAT], TypeError, "BOTTOM"),
        (lambda a: [None, 3, MPI.FLOAT], ValueError, "room for 0"),
        (lambda a: [None, 0], TypeError, "NoneType"),
        (lambda a: [[a, 3], 3], TypeError, "list"),
        (lambda a: [a[::2], 3], BufferError, "strides"),
        (lambda a: [a[::2], MPI.BYTE], BufferError, "strides"),
        (lambda a: [a.astype(object), MPI.BYTE], TypeError, "object"),
        (lambda a: [a.astype(">f4"), MPI.FLOAT], TypeError, "byte order"),
        (lambda a: [bytearray(a.tobytes())[1:], MPI.FLOAT], ValueError, "no multiple"),
        (lambda a: [memoryview(bytearray(9))[1:], MPI.FLOAT], BufferError, "multiple of 4 bytes"),
        (lambda a: MPI.IN_PLACE, TypeError, "IN_PLACE"),
    ],
)
def test_refused(spec, error, match, a):
    with pytest.raises(error, match=f"obj: .*{match}"):
        describe(spec(a))


def test_a_spec_of_read_only_memory_cannot_receive(a):
    with pytest.raises(BufferError, match="read-only"):
        describe([a.tobytes(), 3, MPI.FLOAT], writable=True)
    with pytest.raises(BufferError, match="read-only"):
        describe([Cai(a, readonly=True), 3], writable=True)


def test_sizes_above_two_gibibytes_are_64_bit():
    view = np.lib.stride_tricks.as_strided(np.zeros(1, "u1"), (2**32 + 7,), (1,), writeable=False)
    assert describe(view)["count"] == 2**32 + 7
    understood = describe([view, 2**31 + 3, 2**31 + 1, "B"])
    assert (understood["ptr"], understood["count"]) == (view.ctypes.data + 2**31 + 1, 2**31 + 3)
    assert describe([view, 2**30], False, 4)["count"] == 2**32
    with pytest.raises(ValueError, match="beyond"):
        describe([view, 2**62], False, 4)
