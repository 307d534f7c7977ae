"""The buffer parser on CuPy's arrays, read from memory or by attributes; and how their layout is learnt.

The real CuPy's arrays lie at made-up addresses: none of it needs a GPU, and no byte is touched.
"""

import ctypes
import sys

import numpy as np
import pytest

from buffers import cupy, ml_dtypes, torch
from fakes.modules import Cupy
from hetccl import _foreign
from hetccl._buffer import describe

ADDRESS = 0x7A0000000

needs_cupy = pytest.mark.skipif(cupy is None, reason="cupy is not installed")
needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed")


@pytest.fixture
def fake(monkeypatch):
    def install(**options):
        fake = Cupy(**options)
        for name, module in fake.modules().items():
            monkeypatch.setitem(sys.modules, name, module)
        return fake

    return install


def array_real(shape, dtype, strides=None, order="C", device=5, cls=None):
    memory = cupy.cuda.UnownedMemory(ADDRESS, 1 << 20, None, device)
    return (cls or cupy.ndarray)(shape, np.dtype(dtype), cupy.cuda.MemoryPointer(memory, 512), strides, order)


DTYPES = ["int8", "uint16", "int64", "float16", "float64", "complex128", "bool"]
SHAPES = [(), (0,), (1,), (7,), (3, 5), (0, 4), (1, 1, 3), (2, 3, 4)]


@needs_cupy
def test_the_real_layout_is_learnt():
    assert _foreign.describe_cupy(cupy) is not None


@needs_cupy
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
def test_real_arrays(dtype, shape, order):
    reference = np.empty(shape, dtype, order)
    assert describe(array_real(shape, dtype, order=order), writable=True) == {
        "ptr": ADDRESS + 512,
        "count": reference.size,
        "dtype": dtype,
        "kind": "cuda",
        "device": 5,
        "itemsize": reference.itemsize,
        "readonly": False,
        "fortran": not reference.flags.c_contiguous,
        "layout": None,
    }


@needs_cupy
@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_real_arrays_of_ml_dtypes(name):
    array = array_real((6,), getattr(pytest.importorskip("ml_dtypes"), name))
    assert describe(array)["dtype"] == name


@needs_cupy
def test_real_subclasses():
    assert describe(array_real((3,), "f4", cls=type("Sub", (cupy.ndarray,), {})))["count"] == 3


@needs_cupy
def test_contiguous_real_arrays_are_read_without_their_attributes():
    asked = []
    cls = type("Sub", (cupy.ndarray,), {"shape": property(lambda self: asked.append("shape"))})
    array = array_real((3, 5), "f4", cls=cls)
    asked.clear()
    assert describe(array)["count"] == 15
    assert asked == []


@needs_cupy
@pytest.mark.parametrize(
    "shape, strides",
    [((4,), (8,)), ((4, 5), (40, 4)), ((3, 2), (4, 24)), ((4,), (-4,))],
    ids=["1d", "2d", "gaps", "back"],
)
def test_real_strided_arrays_are_refused_with_their_strides(shape, strides):
    with pytest.raises(BufferError, match=f"obj: .*shape .{', '.join(map(str, shape))}.*strides .{strides[0]}"):
        describe(array_real(shape, "f4", strides))


@needs_cupy
@pytest.mark.parametrize("shape, strides", [((1, 4), (400, 4)), ((4, 1), (4, 400)), ((0, 4), (400, 100))], ids=str)
def test_real_strides_that_take_no_step_do_not_matter(shape, strides):
    assert describe(array_real(shape, "f4", strides))["count"] == np.prod(shape)


@needs_cupy
@pytest.mark.parametrize("dtype", [">f4", object], ids=["swapped", "object"])
def test_real_arrays_of_dtypes_that_are_refused(dtype):
    with pytest.raises(TypeError, match="obj: "):
        describe(array_real((3,), dtype))


@pytest.mark.parametrize("is_hip, kind", [(False, "cuda"), (True, "hip")])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_cupy_of_unknown_layout_is_read_by_its_attributes(fake, shape, is_hip, kind):
    values = np.zeros(shape, "f8")
    array = fake(is_hip=is_hip).ndarray(values, device=3)
    understood = describe(array, writable=True)
    assert (understood["ptr"], understood["count"]) == (values.ctypes.data, values.size)
    assert (understood["kind"], understood["device"], understood["dtype"]) == (kind, 3, "float64")


def test_attributes_tell_order_and_strides(fake):
    library = fake()
    assert describe(library.ndarray(np.zeros((3, 4)).T))["fortran"]
    with pytest.raises(BufferError, match=r"strides \(16,\)"):
        describe(library.ndarray(np.zeros(6)[::2]))


@pytest.mark.skipif(ml_dtypes is None, reason="ml_dtypes is not installed")
def test_attributes_tell_bfloat16(fake):
    assert describe(fake().ndarray(np.zeros(3, ml_dtypes.bfloat16)))["dtype"] == "bfloat16"


@needs_cupy
def test_a_layout_is_not_applied_to_another_cupy(fake):
    assert describe(array_real((3,), "f4"))["ptr"] == ADDRESS + 512
    values = np.zeros(4)
    assert describe(fake().ndarray(values))["ptr"] == values.ctypes.data
    assert describe(array_real((3,), "f4"))["ptr"] == ADDRESS + 512


class Two(ctypes.Structure):
    """Two numbers inside the Python object itself: ctypes keeps what is this small there."""

    _fields_ = (("a", ctypes.c_int64), ("b", ctypes.c_int64))


def offset_in_object(obj, field):
    return ctypes.addressof(obj) + getattr(type(obj), field).offset - id(obj)


NUMBERS = [0x1122334455667788, -3, 0x0102030405060708]


def test_a_field_is_found_where_it_is():
    objects = [Two(number, 77) for number in NUMBERS]
    place = offset_in_object(objects[0], "a")
    if not 0 < place < Two.__basicsize__:
        pytest.skip("this Python's ctypes keeps small structures outside of their objects")
    assert _foreign.find(objects, NUMBERS, 8) == place


def test_a_field_of_half_a_word_is_found():
    objects = [Two(7, (number & 0x7FFFFFFF) << 32) for number in NUMBERS]
    place = offset_in_object(objects[0], "b") + 4
    if not 0 < place < Two.__basicsize__:
        pytest.skip("this Python's ctypes keeps small structures outside of their objects")
    assert _foreign.find(objects, [number & 0x7FFFFFFF for number in NUMBERS], 4) == place


def test_a_field_in_two_places_is_not_found():
    assert _foreign.find([Two(number, number) for number in NUMBERS], NUMBERS, 8) is None


def test_a_field_that_only_some_objects_have_is_not_found():
    objects = [*[Two(number, 77) for number in NUMBERS], Two(5, 77)]
    assert _foreign.find(objects, [*NUMBERS, 6], 8) is None


@needs_torch
def test_torch_layout_is_learnt():
    assert _foreign.describe_torch(torch) is not None


@needs_torch
@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(
    "make, plain",
    [
        (lambda: torch.ones(3), True),
        (lambda: torch.ones(3, dtype=torch.complex64), True),
        (lambda: torch.ones(4, 4)[1:], True),
        (lambda: torch.nn.Parameter(torch.ones(3), requires_grad=False), True),
        (lambda: torch.ones(3, dtype=torch.complex64).conj().resolve_conj(), True),
        (lambda: torch.ones(3, dtype=torch.complex64).conj(), False),
        (lambda: torch.ones(3, dtype=torch.complex64).conj().clone(), True),
        (lambda: torch._neg_view(torch.ones(3)), False),
        (lambda: torch._neg_view(torch.ones(3)).detach(), False),
    ],
    ids=["real", "complex", "view", "parameter", "resolved", "conj", "clone", "neg", "neg-detached"],
)
def test_torch_tensors_on_paper_are_refused_in_every_mode(make, plain, inference):
    with torch.inference_mode(inference):
        tensor = make()
        if plain:
            assert describe(tensor)["ptr"] == tensor.data_ptr()
        else:
            with pytest.raises(BufferError, match="obj: .*resolve"):
                describe(tensor)


@needs_torch
def test_torch_tensors_with_a_history_are_refused():
    leaf = torch.ones(3, requires_grad=True)
    for tensor in (leaf, leaf * 2, (leaf * 2)[1:]):
        with pytest.raises(BufferError, match="detach"):
            describe(tensor)
    assert describe((leaf * 2).detach())["count"] == 3
    assert describe((leaf * 2).detach()[1:])["count"] == 2
    leaf.requires_grad_(False)
    assert describe(leaf)["count"] == 3
