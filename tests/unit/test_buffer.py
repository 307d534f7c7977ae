"""The buffer parser on host memory: what is understood, what is refused, and that nothing is kept."""

import ctypes
import gc
import mmap
import sys
import weakref

import numpy as np
import pytest

from buffers import RAW, REAL_DTYPES, RECEIVERS, REFUSED, SENDERS, flat, ml_dtypes, params
from hetccl._buffer import check_overlap, describe

DTYPES = [*REAL_DTYPES, "bool", "longdouble", "complex64", "complex128", "clongdouble"]
ML_DTYPES = ["bfloat16", "float8_e4m3fn", "float8_e5m2"] if ml_dtypes else []
# dtype.name of NumPy's long doubles tells their bits, which differ between machines
NAME = {np.dtype(name).name: name for name in ("longdouble", "clongdouble")}


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name) if name in ML_DTYPES else name)


def values_of(name, count=6):
    return (np.arange(count) % 2 if name == "bool" else np.arange(1, count + 1)).astype(dtype_of(name))


def memory(understood):
    """The bytes that a span covers, read through its address."""
    return ctypes.string_at(understood["ptr"], understood["count"] * understood["itemsize"])


def has_name_for(kind, name):
    """DLPack counts the bits of an element in a byte, which has no room for 256."""
    return kind.carries(dtype_of(name)) and not (kind.id.startswith("dlpack") and 8 * dtype_of(name).itemsize > 255)


CASES = [
    pytest.param(kind, name, id=f"{kind.id}-{name}", marks=pytest.mark.skipif(bool(kind.missing), reason=kind.missing))
    for kind in SENDERS
    for name in [*DTYPES, *ML_DTYPES]
    if has_name_for(kind, name)
]


@pytest.mark.parametrize("kind, name", CASES)
def test_every_kind_and_dtype(kind, name):
    values = values_of(name)
    obj = kind.make(values)
    understood = describe(obj)
    assert understood["count"] == values.size
    assert understood["dtype"] == NAME.get(values.dtype.name, values.dtype.name)
    assert understood["itemsize"] == values.itemsize
    assert (understood["kind"], understood["device"]) == ("host", 0)
    assert memory(understood) == flat(values).tobytes() == kind.read(obj).tobytes()


@pytest.mark.parametrize("kind", params(RECEIVERS))
def test_receivers_are_the_users_own_memory(kind):
    obj = kind.make(np.arange(6, dtype="uint8"))
    understood = describe(obj, writable=True)
    assert not understood["readonly"]
    ctypes.memset(understood["ptr"], 7, understood["count"])
    assert kind.read(obj).tobytes() == b"\7" * 6


@pytest.mark.parametrize("kind", params([k for k in SENDERS if not k.receives]))
def test_read_only_memory_cannot_receive(kind):
    obj = kind.make(np.arange(6, dtype="uint8"))
    assert describe(obj)["readonly"]
    with pytest.raises(BufferError, match=r"obj: .*read-only"):
        describe(obj, writable=True)


@pytest.mark.parametrize("writable", [False, True])
@pytest.mark.parametrize("kind", params(REFUSED))
def test_refused(kind, writable):
    obj = kind.make(np.arange(24, dtype="float32"))
    with pytest.raises(kind.error, match="obj: "):
        describe(obj, writable)


def test_messages_name_what_was_given_and_what_is_right():
    with pytest.raises(BufferError, match=r"numpy.ndarray of shape \(2, 2\) has strides \(16, 8\).*ascontiguousarray"):
        describe(np.zeros((2, 4), "f4")[:, ::2])
    with pytest.raises(TypeError, match="dtype object is not supported"):
        describe(np.zeros(2, "O"))
    with pytest.raises(TypeError, match="byte order of dtype >i2"):
        describe([np.zeros(2, ">i2"), "i2"])
    with pytest.raises(TypeError, match=r"int is no buffer.*__dlpack__.*buffer protocol.*__cuda_array_interface__"):
        describe(3)


@pytest.mark.parametrize(
    "shape, index",
    [
        ((0, 3), np.s_[:, ::2]),
        ((4, 3), np.s_[:0, ::2]),
        ((1, 6), np.s_[::-1]),
        ((5, 1), np.s_[2:3, ::-1]),
        ((3, 4), np.s_[1, 2]),
        ((3, 1, 4), np.s_[:, ::-1]),
        ((2, 2), np.s_[:]),
        ((), np.s_[...]),
    ],
)
def test_strides_that_are_never_stepped_do_not_matter(shape, index):
    array = np.arange(np.prod(shape, dtype=int), dtype="f4").reshape(shape)[index]
    understood = describe(array)
    assert understood["count"] == np.size(array)
    assert memory(understood) == np.asarray(array).tobytes()


def test_fortran_order_is_told_apart():
    array = np.zeros((3, 4), "f4")
    assert not describe(array)["fortran"]
    assert describe(array.T)["fortran"]
    assert not describe(array[:1].T)["fortran"]


def test_other_exporters():
    assert describe(mmap.mmap(-1, 100))["count"] == 100
    assert describe((ctypes.c_long * 3)())["dtype"] == f"int{8 * ctypes.sizeof(ctypes.c_long)}"
    assert describe((ctypes.c_float * 4 * 2)())["count"] == 8
    assert describe(np.float32(3))["readonly"]
    assert describe(memoryview(b"abcd").cast("i"))["dtype"] == "int32"
    with pytest.raises(BufferError, match="obj: memoryview does not give out"):
        view = memoryview(b"abcd")
        view.release()
        describe(view)


def test_a_numpy_dtype_is_judged_by_its_byte_order_each_time():
    assert describe(np.zeros(2, "f4"))["dtype"] == "float32"
    with pytest.raises(TypeError, match="byte order"):
        describe(np.zeros(2, ">f4"))
    assert describe(np.zeros(2, "f4"))["dtype"] == "float32"


@pytest.mark.parametrize("writable", [False, True])
@pytest.mark.parametrize("kind", params(RAW))
def test_raw_elements_can_be_moved(kind, writable):
    obj = kind.make(np.arange(1, 7, dtype="float32"))
    understood = describe(obj, writable)
    values = kind.read(obj)
    assert (understood["dtype"], understood["itemsize"]) == ("raw", values.dtype.itemsize)
    assert (understood["count"], understood["layout"]) == (values.size, None)
    assert memory(understood) == values.tobytes()


class Pointers(ctypes.Structure):
    _fields_ = (("n", ctypes.c_int), ("to", ctypes.POINTER(ctypes.c_int)))


class Objects(ctypes.Structure):
    _fields_ = (("n", ctypes.c_int), ("object", ctypes.py_object))


class Numbers(ctypes.Structure):
    _fields_ = (("O", ctypes.c_int), ("double", ctypes.c_double))


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.zeros(3, [("a", "i4"), ("b", "O")]),
        lambda: memoryview(np.zeros(3, [("a", "i4"), ("b", "O")])),
        lambda: np.zeros(3, [("a", "i4"), ("b", [("c", "f8"), ("d", "O", 2)])]),
        lambda: (Objects * 2)(),
        lambda: (Pointers * 2)(),
        lambda: np.zeros(3, "V0"),
        lambda: np.zeros(3, []),
    ],
    ids=["object", "object-memoryview", "nested-object", "py_object", "pointer", "no-bytes", "no-fields"],
)
def test_elements_that_mean_nothing_elsewhere_are_refused(make):
    with pytest.raises(TypeError, match="obj: dtype .* is not supported"):
        describe(make())


def test_a_field_may_be_called_like_a_pointer():
    understood = describe((Numbers * 3)())
    assert (understood["dtype"], understood["count"], understood["itemsize"]) == ("raw", 3, ctypes.sizeof(Numbers))


def test_overlap():
    array = np.zeros(10, "f4")
    for send, recv in [(array, array), (array[:6], array[5:]), (array[2:4], array), (array, array[3:4])]:
        with pytest.raises(ValueError, match=r"sendbuf and recvbuf share .*IN_PLACE"):
            check_overlap(send, recv)
    check_overlap(array[:5], array[5:])
    check_overlap(array[5:], array[:5])
    check_overlap(array[:0], array)
    check_overlap(array, array[4:4])
    check_overlap([array, 4], [array, (6, 4)])


@pytest.mark.parametrize("kind", params(SENDERS))
def test_nothing_is_kept(kind):
    obj = kind.make(np.arange(24, dtype="uint8"))
    spec = [obj, 2]
    describe(obj)
    gc.collect()
    before = sys.getrefcount(obj)
    for _ in range(50):
        describe(obj)
        if not isinstance(obj, list):
            describe(spec)
        with pytest.raises(ValueError):
            describe(obj, False, 7)
        if not kind.receives:
            with pytest.raises(BufferError):
                describe(obj, True)
    gc.collect()
    assert sys.getrefcount(obj) == before


def test_exports_end():
    data = bytearray(6)
    describe(data)
    with pytest.raises(ValueError):
        describe([data, "i"])
    with pytest.raises(ValueError):
        describe(data, False, 5)
    data.append(0)  # BufferError while an export lasts


def test_classes_made_at_run_time_do_not_pile_up():
    refs = []
    for _ in range(3000):
        cls = type("Made", (np.ndarray,), {})
        describe(np.zeros(2, "f4").view(cls))
        refs.append(weakref.ref(cls))
    del cls
    gc.collect()
    assert sum(ref() is not None for ref in refs) <= 1024
