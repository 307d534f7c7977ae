"""Every kind of buffer that a user may pass, in one registry, so that one test body covers them all.

`SENDERS` and `RECEIVERS` are good host buffers, `RAW` ones that can only be moved, `REFUSED` must be refused, `DEVICES`
pretend to lie on a GPU. Use as
`@pytest.mark.parametrize("kind", params(RECEIVERS))`; a kind whose library is not installed is skipped and says so.
"""

import array
import ctypes
import importlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

REAL_DTYPES = [
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
]
TORCH_DTYPES = {*REAL_DTYPES, "bool", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128"}


def module(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


torch, jax, cupy, ml_dtypes = module("torch"), module("jax"), module("cupy"), module("ml_dtypes")


@dataclass(frozen=True)
class Kind:
    """One kind of buffer.

    make : ndarray -> new object with a copy of the values in it, none of the ndarray's memory
    read : object -> 1-d ndarray of its values in memory order (as bytes for those that know no dtype)
    dtypes : names it can carry, None for all of NumPy's
    error : exception that a send of it must raise, None if it is good
    missing : why it cannot be made here, "" if it can
    """

    id: str
    make: Callable
    read: Callable
    dtypes: frozenset = None
    error: type = None
    missing: str = ""
    receives: bool = True

    def carries(self, dtype):
        return self.dtypes is None or np.dtype(dtype).name in self.dtypes


def params(kinds):
    return [pytest.param(k, id=k.id, marks=pytest.mark.skipif(bool(k.missing), reason=k.missing)) for k in kinds]


# DLPack exporters made by hand, so that versions, flags and devices can be chosen and deleters counted

C = ctypes
PyCapsule_New = C.PYFUNCTYPE(C.py_object, C.c_void_p, C.c_char_p, C.c_void_p)(("PyCapsule_New", C.pythonapi))
# The capsule is dying when its destructor runs: it must not be touched as a Python object, so it travels as an address.
PyCapsule_IsValid = C.PYFUNCTYPE(C.c_int, C.c_void_p, C.c_char_p)(("PyCapsule_IsValid", C.pythonapi))
PyCapsule_GetPointer = C.PYFUNCTYPE(C.c_void_p, C.c_void_p, C.c_char_p)(("PyCapsule_GetPointer", C.pythonapi))

DL_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
DL_NAMED = {"bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12}
READ_ONLY, IS_COPIED = 1, 2


class Tensor(C.Structure):
    _fields_ = (
        ("data", C.c_void_p),
        ("device_type", C.c_int32),
        ("device_id", C.c_int32),
        ("ndim", C.c_int32),
        ("code", C.c_uint8),
        ("bits", C.c_uint8),
        ("lanes", C.c_uint16),
        ("shape", C.POINTER(C.c_int64)),
        ("strides", C.POINTER(C.c_int64)),
        ("byte_offset", C.c_uint64),
    )


class Managed(C.Structure):
    _fields_ = (("tensor", Tensor), ("context", C.c_void_p), ("deleter", C.c_void_p))


class Versioned(C.Structure):
    _fields_ = (
        ("major", C.c_uint32),
        ("minor", C.c_uint32),
        ("context", C.c_void_p),
        ("deleter", C.c_void_p),
        ("flags", C.c_uint64),
        ("tensor", Tensor),
    )


LIVE = {}  # address of a managed tensor -> what keeps it alive; a second deletion is a KeyError
DELETED = []  # addresses in order of deletion
NAMES = {Managed: b"dltensor", Versioned: b"dltensor_versioned"}


@C.CFUNCTYPE(None, C.c_void_p)
def deleter(address):
    del LIVE[address]
    DELETED.append(address)


@C.PYFUNCTYPE(None, C.c_void_p)
def capsule_destructor(capsule):
    for name in NAMES.values():
        if PyCapsule_IsValid(capsule, name):
            deleter(PyCapsule_GetPointer(capsule, name))


def tensor_fill(tensor, values, device, strides=True):
    """Point a DLPack tensor at an ndarray; returns what must live as long."""
    shape = (C.c_int64 * values.ndim)(*values.shape)
    steps = (C.c_int64 * values.ndim)(*[s // values.itemsize for s in values.strides])
    tensor.data, tensor.byte_offset = values.ctypes.data - 64, 64  # the offset must be honoured
    tensor.device_type, tensor.device_id = device
    tensor.ndim, tensor.lanes, tensor.bits = values.ndim, 1, 8 * values.itemsize
    tensor.code = DL_NAMED.get(values.dtype.name, DL_CODES.get(values.dtype.kind, 3))
    tensor.shape = C.cast(shape, C.POINTER(C.c_int64))
    tensor.strides = C.cast(steps, C.POINTER(C.c_int64)) if strides else None
    return shape, steps


def managed_new(cls, values, device=(1, 0), flags=0, major=1, strides=True, code=None):
    managed = cls()
    keep = tensor_fill(managed.tensor, values, device, strides)
    if code is not None:
        managed.tensor.code = code
    managed.deleter = C.cast(deleter, C.c_void_p).value
    if cls is Versioned:
        managed.major, managed.minor, managed.flags = major, 3, flags
    LIVE[C.addressof(managed)] = managed, keep, values
    return C.addressof(managed)


class Dlpack0:
    """Exports DLPack 0.x: its __dlpack__ knows no max_version. `calls` records the keywords it was given."""

    def __init__(self, values, device=(1, 0), **fields):
        self.values, self.device, self.fields, self.calls = values, device, fields, []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, stream=None):
        self.calls.append({"stream": stream})
        address = managed_new(Managed, self.values, self.device, **self.fields)
        return PyCapsule_New(address, NAMES[Managed], C.cast(capsule_destructor, C.c_void_p))


class Dlpack1(Dlpack0):
    """Exports DLPack 1.x."""

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        self.calls.append({"stream": stream, "max_version": max_version, "copy": copy})
        address = managed_new(Versioned, self.values, self.device, **self.fields)
        return PyCapsule_New(address, NAMES[Versioned], C.cast(capsule_destructor, C.c_void_p))


class Exchange(C.Structure):
    _fields_ = (
        ("major", C.c_uint32),
        ("minor", C.c_uint32),
        ("previous", C.c_void_p),
        ("allocate", C.c_void_p),
        ("managed_from_object", C.c_void_p),
        ("managed_to_object", C.c_void_p),
        ("tensor_from_object", C.c_void_p),
        ("current_stream", C.c_void_p),
    )


@C.PYFUNCTYPE(C.c_int, C.py_object, C.POINTER(C.c_void_p))
def exchange_managed(obj, out):
    obj.calls.append("managed")
    out[0] = managed_new(Versioned, obj.values, obj.device, **obj.fields)
    return 0


@C.PYFUNCTYPE(C.c_int, C.py_object, C.POINTER(Tensor))
def exchange_borrowed(obj, out):
    obj.calls.append("borrowed")
    obj.keep = tensor_fill(out[0], obj.values, obj.device)
    return 0


def exchange_table(major, previous=None, borrowed=True):
    table = Exchange(
        major=major, minor=3, previous=previous, managed_from_object=C.cast(exchange_managed, C.c_void_p).value
    )
    table.tensor_from_object = C.cast(exchange_borrowed, C.c_void_p).value if borrowed else None
    return table


def exchange_class(table):
    """A class with the exchange table on the type; its __dlpack__ must not be called any more."""
    capsule = PyCapsule_New(C.addressof(table), b"dlpack_exchange_api", None)
    return type("DlpackC", (Dlpack0,), {"__dlpack_c_exchange_api__": capsule, "__dlpack__": None, "table": table})


EXCHANGE = exchange_table(1)
DlpackC = exchange_class(EXCHANGE)


class Cai:
    """Has __cuda_array_interface__ alone, and says that host memory is device memory."""

    def __init__(self, values, readonly=False, **fields):
        self.values, self.readonly, self.fields = values, readonly, fields

    @property
    def __cuda_array_interface__(self):
        v = self.values
        strides = None if v.flags.c_contiguous else v.strides
        return {
            "shape": v.shape,
            "typestr": v.dtype.str,
            "data": (v.ctypes.data, self.readonly),
            "strides": strides,
            "version": 3,
            **self.fields,
        }


def flat(values):
    return np.asarray(values).reshape(-1, order="A")


def to_torch(values):
    """A tensor by way of bytes: torch.from_numpy knows no ml_dtypes."""
    name = values.dtype.name
    data = torch.from_numpy(values.reshape(-1).view(np.uint8).copy())
    return data.view(getattr(torch, name)).reshape(values.shape)


def from_torch(tensor):
    name = str(tensor.dtype).partition(".")[2]
    dtype = getattr(ml_dtypes, name) if name in DL_NAMED else np.dtype(name)
    return tensor.reshape(-1).view(torch.uint8).numpy().view(dtype)


def to_jax(values):
    return jax.numpy.array(values)


def to_cupy(values, device=1):
    """A CuPy array at the values' own address, which is said to be on a GPU: to be described, not computed with.

    Its class is a subclass, for the values that it carries along.
    """
    memory = cupy.cuda.UnownedMemory(values.ctypes.data, values.nbytes, values, device)
    pointer = cupy.cuda.MemoryPointer(memory, 0)
    array = type("OnHost", (cupy.ndarray,), {})(values.shape, values.dtype, pointer, values.strides)
    array.values = values
    return array


def fortran(values):
    """F- but not C-contiguous where the count allows it, with the values in memory in the order given."""
    return values.copy().reshape((2, -1) if values.size % 2 == 0 else (1, -1), order="F")


def strided(values):
    return np.repeat(values, 2)[::2]


def readonly(values):
    copy = values.copy()
    copy.flags.writeable = False
    return copy


def misaligned(values):
    raw = bytearray(values.nbytes + 16)
    start = 1 - np.frombuffer(raw, "u1").ctypes.data % 2  # an odd address
    return np.frombuffer(raw, values.dtype, values.size, start)


class Subclass(np.ndarray):
    pass


def without(*modules):
    return "; ".join(f"{name} is not installed" for name in modules if globals()[name] is None)


ARRAY_DTYPES = frozenset(
    {"int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64"}
)

KINDS = [
    Kind("numpy", lambda v: v.copy(), flat),
    Kind("numpy-fortran", fortran, flat),
    Kind("numpy-subclass", lambda v: v.copy().view(Subclass), flat),
    Kind("numpy-matrix", lambda v: v.copy().view(np.matrix), flat),
    Kind("numpy-readonly", readonly, flat, receives=False),
    Kind("spec", lambda v: [v.copy(), v.size, v.dtype.char], lambda s: flat(s[0]), frozenset({*REAL_DTYPES, "bool"})),
    Kind(
        "array", lambda v: array.array(v.dtype.char, v.tobytes()), lambda a: np.frombuffer(a, a.typecode), ARRAY_DTYPES
    ),
    Kind("bytearray", lambda v: bytearray(v.tobytes()), lambda b: np.frombuffer(b, "u1"), frozenset({"uint8"})),
    Kind("bytes", lambda v: v.tobytes(), lambda b: np.frombuffer(b, "u1"), frozenset({"uint8"}), receives=False),
    Kind("memoryview", lambda v: memoryview(v.copy()), flat, frozenset({*REAL_DTYPES, "bool"})),
    Kind("dlpack0", lambda v: Dlpack0(v.copy()), lambda d: flat(d.values)),
    Kind("dlpack1", lambda v: Dlpack1(v.copy()), lambda d: flat(d.values)),
    Kind("dlpack1-readonly", lambda v: Dlpack1(v.copy(), flags=READ_ONLY), lambda d: flat(d.values), receives=False),
    Kind("dlpack-exchange", lambda v: DlpackC(v.copy()), lambda d: flat(d.values)),
    Kind("dlpack-pinned", lambda v: Dlpack1(v.copy(), (3, 0)), lambda d: flat(d.values)),
    Kind("torch", to_torch, from_torch, frozenset(TORCH_DTYPES), missing=without("torch", "ml_dtypes")),
    Kind(
        "torch-parameter",
        lambda v: torch.nn.Parameter(to_torch(v), requires_grad=False),
        from_torch,
        frozenset({"float16", "float32", "float64"}),
        missing=without("torch", "ml_dtypes"),
    ),
    # JAX narrows 64-bit values unless told otherwise, and copies here: its arrays may share no memory with the input.
    Kind(
        "jax",
        to_jax,
        flat,
        frozenset(TORCH_DTYPES - {"int64", "uint64", "float64", "complex128"}),
        receives=False,
        missing=without("jax"),
    ),
]
SENDERS = KINDS
RECEIVERS = [k for k in SENDERS if k.receives]

REFUSED = [
    Kind("strided", strided, flat, error=BufferError),
    Kind("reversed", lambda v: v.copy()[::-1], flat, error=BufferError),
    Kind("column", lambda v: np.stack([v, v], axis=1)[:, 0], flat, error=BufferError),
    Kind("broadcast", lambda v: np.broadcast_to(v[:1], (5,)), flat, error=BufferError),
    Kind("permuted", lambda v: np.resize(v, (2, 3, 4)).transpose(1, 0, 2), flat, error=BufferError),
    Kind("memoryview-strided", lambda v: memoryview(v.copy())[::2], flat, error=BufferError),
    Kind("dlpack1-strided", lambda v: Dlpack1(strided(v)), flat, error=BufferError),
    Kind(
        "torch-strided",
        lambda v: to_torch(np.stack([v, v], axis=1))[:, 0],
        from_torch,
        error=BufferError,
        missing=without("torch", "ml_dtypes"),
    ),
    Kind("misaligned", misaligned, flat, error=BufferError),
    Kind("swapped", lambda v: v.astype(v.dtype.newbyteorder(">")), flat, error=TypeError),
    Kind("cai-swapped", lambda v: Cai(v.astype(">f4")), flat, error=TypeError),
    Kind("object", lambda v: v.astype(object), flat, error=TypeError),
    Kind("masked", np.ma.array, flat, error=TypeError),
    Kind("list", lambda v: [v.tolist()], flat, error=ValueError),
    Kind("number", lambda v: 3, flat, error=TypeError),
    Kind("str", lambda v: "text", flat, error=TypeError),
    Kind("none", lambda v: None, flat, error=TypeError),
]

RECORD = np.dtype([("a", "f4"), ("b", "i2"), ("c", "u1", 3)])

# Elements without a dtype of ours: they can be moved, not reduced.
RAW = [
    Kind("structured", lambda v: np.frombuffer(v.tobytes() * RECORD.itemsize, RECORD).copy(), flat),
    Kind("structured-memoryview", lambda v: memoryview(np.frombuffer(v.tobytes() * 9, RECORD).copy()), flat),
    Kind("void", lambda v: np.frombuffer(v.tobytes(), "V4").copy(), flat),
    Kind("datetime", lambda v: v.astype("M8[s]"), flat),
    Kind("text", lambda v: v.astype("U3"), flat),
    Kind("bytes-of-3", lambda v: v.astype("S3"), flat),
    Kind("dlpack-complex32", lambda v: Dlpack1(v.astype("f4"), code=5), lambda d: flat(d.values)),
    Kind("dlpack-float4-pairs", lambda v: Dlpack1(v.astype("u1"), code=17), lambda d: flat(d.values)),
    Kind("cai-void", lambda v: Cai(v.view("V4")), lambda d: flat(d.values)),
    Kind("ml_dtypes-float8", lambda v: v.astype(ml_dtypes.float8_e4m3b11fnuz), flat, missing=without("ml_dtypes")),
]

DEVICES = [
    Kind("cai", lambda v: Cai(v.copy()), lambda d: flat(d.values), frozenset(REAL_DTYPES)),
    Kind("dlpack0-cuda", lambda v: Dlpack0(v.copy(), (2, 1)), lambda d: flat(d.values)),
    Kind("dlpack1-cuda", lambda v: Dlpack1(v.copy(), (2, 1)), lambda d: flat(d.values)),
    Kind("dlpack1-rocm", lambda v: Dlpack1(v.copy(), (10, 1)), lambda d: flat(d.values)),
    Kind("cupy", lambda v: to_cupy(v.copy()), lambda d: flat(d.values), missing=without("cupy")),
]
