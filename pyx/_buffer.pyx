"""What the user passed, as plain C: array or mpi4py buffer spec -> Span.

Layer L2, called by _comm with the GIL held; no locks. Each type of object is asked once which protocol it has and remembered
(Reader); no protocol is tried. A reader describes the memory (Layout); span_fill checks it and makes the Span. No byte is touched.
"""

import sys

from cpython.buffer cimport Py_buffer, PyBUF_RECORDS_RO, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.number cimport PyIndex_Check
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_SetName
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint8_t, uintptr_t

from hetccl._abi cimport (
    HETCCL_BFLOAT16, HETCCL_BOOL, HETCCL_COMPLEX64, HETCCL_COMPLEX128, HETCCL_FLOAT8_E4M3, HETCCL_FLOAT8_E5M2,
    HETCCL_FLOAT16, HETCCL_FLOAT32, HETCCL_FLOAT64, HETCCL_INT8, HETCCL_INT16, HETCCL_INT32, HETCCL_INT64,
    HETCCL_LONGDOUBLE, HETCCL_MEM_CUDA, HETCCL_MEM_HIP, HETCCL_MEM_HOST, HETCCL_MEM_ONEAPI, HETCCL_NDTYPES,
    HETCCL_UINT8, HETCCL_UINT16, HETCCL_UINT32, HETCCL_UINT64,
)

cdef extern from "hetccl/arrays.h" nogil:
    ctypedef struct hetccl_descr_t:
        char byteorder
        int type_num

    ctypedef struct hetccl_ndarray_t:
        char* data
        int ndim
        Py_ssize_t* shape
        Py_ssize_t* strides
        hetccl_descr_t* descr
        int flags

    enum:
        HETCCL_NPY_C
        HETCCL_NPY_F
        HETCCL_NPY_WRITEABLE

    int hetccl_layout_order(int ndim, const int64_t* shape, const int64_t* strides, int64_t unit)

cdef enum:
    HELD_NOTHING = 0
    HELD_VIEW

# Layout.code of elements that hetccl does not carry; a spec's datatype may still move them as raw memory (not objects).
cdef enum:
    CODE_UNSUPPORTED = -1
    CODE_SWAPPED = -2
    CODE_OBJECT = -3
    CODE_UNASKED = -4

cdef enum:
    NUMPY_NUMS = 512  # NumPy's own type numbers are below 24, registered ones (ml_dtypes) count up from 256

ctypedef struct Layout:
    void* ptr
    int64_t count            # elements
    int64_t itemsize         # bytes
    int code                 # HETCCL_<dtype> or CODE_*
    int order                # HETCCL_NPY_C | HETCCL_NPY_F bits; 0 is strided
    bint readonly
    int ndim
    const int64_t* shape     # owned by the object or its export
    const int64_t* strides   # bytes; NULL is C order

ctypedef int (*reader_t)(object obj, Span* span, object arg, Layout* layout) except -1

cdef size_t[HETCCL_NDTYPES] itemsizes
cdef size_t[HETCCL_NDTYPES] alignments
cdef int[NUMPY_NUMS] numpy_codes
cdef char BYTEORDER_SWAPPED = b">" if sys.byteorder == "little" else b"<"
cdef dict names = {}          # HETCCL_<dtype> -> name
cdef dict named = {}          # name -> HETCCL_<dtype>
cdef dict typecodes = {}      # type string of mpi4py -> HETCCL_<dtype>
cdef dict mpi_datatypes = {}  # MPI datatype handle -> HETCCL_<dtype>
cdef object mpi_handle_of = None
cdef object mpi_in_place = None
cdef object mpi_bottom = None
cdef object numpy_ndarray = None  # numpy.ndarray once an array was seen and its layout checked


# ---- dtypes

cdef int code_of(char kind, size_t itemsize) noexcept nogil:
    """HETCCL_<dtype> of NumPy's kind letter (b i u f c) and size in bytes, or CODE_UNSUPPORTED."""
    if kind == b"f":
        if itemsize == 4: return HETCCL_FLOAT32
        if itemsize == 8: return HETCCL_FLOAT64
        if itemsize == 2: return HETCCL_FLOAT16
        if itemsize == sizeof(long double): return HETCCL_LONGDOUBLE
    elif kind == b"i":
        if itemsize == 8: return HETCCL_INT64
        if itemsize == 4: return HETCCL_INT32
        if itemsize == 2: return HETCCL_INT16
        if itemsize == 1: return HETCCL_INT8
    elif kind == b"u":
        if itemsize == 1: return HETCCL_UINT8
        if itemsize == 8: return HETCCL_UINT64
        if itemsize == 4: return HETCCL_UINT32
        if itemsize == 2: return HETCCL_UINT16
    elif kind == b"c":
        if itemsize == 8: return HETCCL_COMPLEX64
        if itemsize == 16: return HETCCL_COMPLEX128
    elif kind == b"b" and itemsize == 1:
        return HETCCL_BOOL
    return CODE_UNSUPPORTED


cdef char kind_of_letter(char letter) noexcept nogil:
    """NumPy's kind letter of a struct module (PEP 3118) letter, or 0."""
    if letter in b"fdeg": return b"f"
    if letter in b"bhilqn": return b"i"
    if letter in b"BHILQNPc": return b"u"
    if letter == b"?": return b"b"
    if letter in b"FD": return b"c"
    return 0


cdef int code_of_format(const char* text, size_t itemsize) noexcept nogil:
    """HETCCL_<dtype> or CODE_* of a buffer protocol format; its sizes are not trusted (ctypes' are wrong), itemsize is."""
    cdef char order = b"@"
    if text == NULL:
        return HETCCL_UINT8
    if text[0] in b"@=<>!":
        order = b">" if text[0] == b"!" else text[0]
        text += 1
    if text[0] == b"O" and text[1] == 0:
        return CODE_OBJECT
    cdef char kind = 0
    if text[0] == b"Z" and text[1] in b"fd" and text[2] == 0:
        kind = b"c"
    elif text[0] and text[1] == 0:
        kind = kind_of_letter(text[0])
    cdef int code = code_of(kind, itemsize)
    if code >= 0 and order == BYTEORDER_SWAPPED and itemsize > 1:
        return CODE_SWAPPED
    return code


cdef int dtype_code(object datatype, object arg) except -1:
    if isinstance(datatype, str):
        code = typecodes.get(datatype)
        if code is None:
            raise TypeError(f"{arg}: no dtype has the type string {datatype!r}; known are {', '.join(typecodes)}")
        return code
    if mpi_handle_of is None:
        raise TypeError(f"{arg}: a datatype is a type string or an MPI.Datatype, got {type_name(datatype)}")
    try:
        handle = mpi_handle_of(datatype)
    except TypeError as error:
        raise TypeError(f"{arg}: a datatype is a type string or an MPI.Datatype, got {type_name(datatype)}") from error
    code = mpi_datatypes.get(handle)
    if code is None:
        label = getattr(datatype, "name", "") or "derived"
        raise TypeError(f"{arg}: MPI datatype {label} has no equal here; use a predefined one of {', '.join(named)}")
    return code


cdef size_t dtype_itemsize(int dtype) noexcept nogil:
    return itemsizes[dtype]


cdef object dtype_name(int dtype):
    return names[dtype]


cdef int dtype_add(str name, int code, size_t itemsize, size_t alignment) except -1:
    names[code] = name
    named[name] = code
    itemsizes[code] = itemsize
    alignments[code] = alignment
    typecodes[name] = code
    return 0


cdef int typecodes_fill() except -1:
    """The strings that mpi4py maps to MPI datatypes: struct and NumPy letters with C's sizes, NumPy's type strings."""
    for letters, size in (("bBc", sizeof(char)), ("hH", sizeof(short)), ("iI", sizeof(int)), ("lL", sizeof(long)),
                          ("qQ", sizeof(long long)), ("nN", sizeof(size_t)), ("pP", sizeof(void*)), ("?", 1), ("e", 2),
                          ("f", sizeof(float)), ("d", sizeof(double)), ("g", sizeof(long double)),
                          ("F", 2 * sizeof(float)), ("D", 2 * sizeof(double))):
        for letter in letters:
            kind = b"i" if letter == "p" else chr(kind_of_letter(ord(letter))).encode()
            typecodes[letter] = code_of(ord(kind), size)
    typecodes["Zf"] = HETCCL_COMPLEX64
    typecodes["Zd"] = HETCCL_COMPLEX128
    for kind in "biufc":
        for size in (1, 2, 4, 8, 16):
            code = code_of(ord(kind), size)
            if code >= 0:
                typecodes[f"{kind}{size}"] = code
    return 0


cdef object type_name(object obj):
    cls = type(obj)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


# ---- readers: memory of one kind of object -> Layout

cdef int read_numpy(object obj, Span* span, object arg, Layout* layout) except -1:
    cdef hetccl_ndarray_t* array = <hetccl_ndarray_t*> <void*> obj
    cdef int i, num = array.descr.type_num
    cdef int code = numpy_codes[num] if 0 <= num < NUMPY_NUMS else CODE_UNASKED
    if code == CODE_UNASKED:
        code = numpy_code_ask(obj.dtype)
    layout.itemsize = itemsizes[code] if code >= 0 else obj.dtype.itemsize
    if array.descr.byteorder == BYTEORDER_SWAPPED and code >= 0:
        code = CODE_SWAPPED
    elif code == CODE_UNSUPPORTED and obj.dtype.hasobject:
        code = CODE_OBJECT
    layout.code = code
    layout.ptr = array.data
    layout.order = array.flags & (HETCCL_NPY_C | HETCCL_NPY_F)
    layout.readonly = not array.flags & HETCCL_NPY_WRITEABLE
    layout.ndim = array.ndim
    layout.shape = <const int64_t*> array.shape
    layout.strides = <const int64_t*> array.strides
    span.kind = HETCCL_MEM_HOST
    span.device = 0
    return 0


cdef int numpy_code_ask(object dtype) except? -1:
    """HETCCL_<dtype> of a NumPy dtype whose number was not met before. ml_dtypes' are known by name: kind and size do not tell."""
    cdef int num = dtype.num, code
    if num < 256:
        code = code_of(ord(dtype.kind), dtype.itemsize)
    else:
        code = named.get(dtype.name, CODE_UNSUPPORTED)
    if 0 <= num < NUMPY_NUMS:
        numpy_codes[num] = code
    return code


cdef int read_buffer(object obj, Span* span, object arg, Layout* layout) except -1:
    cdef Py_buffer* view = &span.view
    try:
        PyObject_GetBuffer(obj, view, PyBUF_RECORDS_RO)
    except (BufferError, TypeError, ValueError) as error:
        raise BufferError(f"{arg}: {type_name(obj)} does not give out its memory: {error}") from error
    span.held = HELD_VIEW
    layout.itemsize = view.itemsize
    layout.code = code_of_format(view.format, view.itemsize)
    layout.ptr = view.buf
    layout.readonly = view.readonly
    layout.ndim = view.ndim
    layout.shape = <const int64_t*> view.shape
    layout.strides = <const int64_t*> view.strides
    layout.order = hetccl_layout_order(layout.ndim, layout.shape, layout.strides, layout.itemsize)
    span.kind = HETCCL_MEM_HOST
    span.device = 0
    return 0


# ---- which reader: asked once per type

cdef class Reader:
    """How objects of one type are read."""

    cdef reader_t read


cdef dict readers = {}  # type -> Reader


cdef Reader reader_of(object obj, object arg):
    cls = type(obj)
    cdef Reader reader = Reader.__new__(Reader)
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(cls, numpy.ndarray) and numpy_layout_holds(numpy):
        if hasattr(cls, "mask"):
            raise TypeError(f"{arg}: {type_name(obj)} has a mask that no collective honours; fill it, or pass its .data")
        reader.read = read_numpy
    elif PyObject_CheckBuffer(obj):
        reader.read = read_buffer
    else:
        raise TypeError(
            f"{arg}: {type_name(obj)} is no buffer: neither numpy.ndarray, nor the buffer protocol, nor a [data, count, datatype] spec"
        )
    readers[cls] = reader
    return reader


cdef bint numpy_layout_holds(object numpy) except -1:
    """Compare the array layout of hetccl/arrays.h with NumPy's own answers; a NumPy that differs is read by the buffer protocol."""
    global numpy_ndarray
    if numpy_ndarray is not None:
        return True
    probe = numpy.arange(30, dtype=numpy.int16).reshape(5, 6)[1::2, ::3]
    cdef hetccl_ndarray_t* array = <hetccl_ndarray_t*> <void*> probe
    if array.ndim != 2 or <uintptr_t> array.data != probe.ctypes.data or array.descr.type_num != probe.dtype.num:
        return False
    if (array.shape[0], array.shape[1]) != probe.shape or (array.strides[0], array.strides[1]) != probe.strides:
        return False
    if array.flags != probe.flags.num or array.descr.byteorder != ord(probe.dtype.byteorder):
        return False
    numpy_ndarray = numpy.ndarray
    return True


# ---- spans

cdef int span_of(object obj, Span* span, object arg, bint writable, int64_t blocks) except -1:
    span.owner = NULL
    span.held = HELD_NOTHING
    try:
        if isinstance(obj, (list, tuple)):
            span_of_spec(obj, span, arg, writable, blocks)
        else:
            span_of_data(obj, span, arg, writable, CODE_UNASKED)
            if blocks != 1 and span.count % blocks:
                raise ValueError(f"{arg}: {span.count} elements do not divide into {blocks} blocks")
    except BaseException:
        span_release(span)
        raise
    return 0


cdef int span_of_data(object obj, Span* span, object arg, bint writable, int given) except -1:
    """Read obj itself. given: the dtype that a spec demands, or CODE_UNASKED for the object's own."""
    cdef Layout layout
    if type(obj) is numpy_ndarray:
        read_numpy(obj, span, arg, &layout)
    else:
        reader = readers.get(type(obj))
        if reader is None:
            reader = reader_of(obj, arg)
        (<Reader> reader).read(obj, span, arg, &layout)
    span_fill(obj, span, arg, writable, given, &layout)
    Py_INCREF(obj)
    span.owner = <void*> obj
    return 0


cdef int span_fill(object obj, Span* span, object arg, bint writable, int given, Layout* layout) except -1:
    cdef int i, code = layout.code
    layout.count = 1
    for i in range(layout.ndim):
        layout.count *= layout.shape[i]
    if layout.order == 0:
        raise_strided(obj, arg, layout)
    if writable and layout.readonly:
        raise BufferError(f"{arg}: {type_name(obj)} is read-only, but it is to receive")
    if given >= 0 and (code >= CODE_UNSUPPORTED or (code == CODE_SWAPPED and itemsizes[given] == 1)):
        code = given
    if code < 0:
        raise_dtype(obj, span, arg, code)
    span.ptr = layout.ptr
    span.dtype = code
    span.itemsize = itemsizes[code]
    span.count = layout.count if given < 0 else layout.count * layout.itemsize // <int64_t> itemsizes[code]
    span.readonly = layout.readonly
    span.fortran = not layout.order & HETCCL_NPY_C
    if span.count and <uintptr_t> span.ptr % alignments[code]:
        raise BufferError(f"{arg}: {names[code]} at an address that is no multiple of {alignments[code]} bytes; copy it first")
    return 0


cdef int raise_strided(object obj, object arg, Layout* layout) except -1:
    shape = tuple([layout.shape[i] for i in range(layout.ndim)])
    strides = tuple([layout.strides[i] for i in range(layout.ndim)])
    raise BufferError(
        f"{arg}: {type_name(obj)} of shape {shape} has strides {strides} bytes; C- or F-contiguous memory is required: "
        f"use numpy.ascontiguousarray or the like"
    )


cdef int raise_dtype(object obj, Span* span, object arg, int code) except -1:
    dtype = getattr(obj, "dtype", None)
    if dtype is None:
        dtype = f"format {span.view.format.decode()!r}" if span.held == HELD_VIEW else "unknown"
    if code == CODE_SWAPPED:
        raise TypeError(f"{arg}: byte order of dtype {dtype} is not this machine's; convert with .astype(dtype.newbyteorder('='))")
    raise TypeError(f"{arg}: dtype {dtype} is not supported; known are {', '.join(named)}")


cdef int span_of_spec(object spec, Span* span, object arg, bint writable, int64_t blocks) except -1:
    """[data, count], [data, datatype], [data, count, datatype], [data, count, displ, datatype]; count may be (count, displ)."""
    cdef int given = CODE_UNASKED
    cdef int64_t capacity, wanted, offset
    count = displ = datatype = None
    if len(spec) == 2:
        data, count = spec
        if not (count is None or isinstance(count, (tuple, list)) or PyIndex_Check(count)):
            count, datatype = None, count
    elif len(spec) == 3:
        data, count, datatype = spec
    elif len(spec) == 4:
        data, count, displ, datatype = spec
    else:
        raise ValueError(f"{arg}: a buffer spec has 2 to 4 items, [data, count, displacement, datatype], got {len(spec)}")
    if len(spec) < 4 and isinstance(count, (tuple, list)):
        if len(count) != 2:
            raise ValueError(f"{arg}: expected (count, displacement), got {count!r}")
        count, displ = count
    if datatype is not None:
        given = dtype_code(datatype, arg)
    if data is None and given >= 0:
        span_empty(span, given)
    elif data is mpi_bottom and data is not None:
        raise ValueError(f"{arg}: BOTTOM (absolute addresses) is not supported; pass the array")
    else:
        span_of_data(data, span, arg, writable, given)
    capacity = span.count
    offset = index_of(displ, arg, "displacement", capacity) if displ is not None else 0
    capacity -= offset
    if count is None:
        if blocks != 1 and capacity % blocks:
            raise ValueError(f"{arg}: {capacity} elements do not divide into {blocks} blocks")
        wanted = capacity
    else:
        wanted = index_of(count, arg, "count" if blocks == 1 else "count per block", capacity // blocks) * blocks
    span.ptr = <char*> span.ptr + offset * <int64_t> span.itemsize
    span.count = wanted
    return 0


cdef int64_t index_of(object value, object arg, object what, int64_t limit) except -1:
    if not PyIndex_Check(value):
        raise TypeError(f"{arg}: {what} must be an integer, got {type_name(value)}")
    number = value.__index__()
    if number < 0:
        raise ValueError(f"{arg}: negative {what} {number}")
    if number > limit:
        raise ValueError(f"{arg}: {what} {number} is beyond the buffer, which has room for {limit}")
    return number


cdef int span_empty(Span* span, int code) except -1:
    span.ptr = NULL
    span.count = 0
    span.dtype = code
    span.itemsize = itemsizes[code]
    span.kind = HETCCL_MEM_HOST
    span.device = 0
    span.readonly = span.fortran = False
    return 0


cdef void span_release(Span* span) noexcept:
    cdef int held = span.held
    cdef void* owner = span.owner
    span.held = HELD_NOTHING
    span.owner = NULL
    if held == HELD_VIEW:
        PyBuffer_Release(&span.view)
    if owner != NULL:
        Py_DECREF(<object> owner)


cdef int span_check_overlap(const Span* a, const Span* b, object arg_a, object arg_b) except -1:
    cdef uintptr_t a_lo = <uintptr_t> a.ptr, b_lo = <uintptr_t> b.ptr
    cdef uintptr_t a_hi = a_lo + <size_t> a.count * a.itemsize, b_hi = b_lo + <size_t> b.count * b.itemsize
    if a_lo == a_hi or b_lo == b_hi or a_hi <= b_lo or b_hi <= a_lo:
        return 0
    shared = min(a_hi, b_hi) - max(a_lo, b_lo)
    raise ValueError(
        f"{arg_a} and {arg_b} share {shared} bytes; they must be apart (pass IN_PLACE as {arg_a} to reduce or gather in place)"
    )


class InPlace:
    """Type of IN_PLACE: the operand lies where the result goes. MPI.IN_PLACE is accepted in its place."""

    def __repr__(self):
        return "hetccl.IN_PLACE"

    def __reduce__(self):
        return "IN_PLACE"


IN_PLACE = InPlace()


cdef bint is_in_place(object obj) noexcept:
    return obj is None or obj is IN_PLACE or obj is mpi_in_place


# ---- Python level

KINDS = {HETCCL_MEM_HOST: "host", HETCCL_MEM_CUDA: "cuda", HETCCL_MEM_HIP: "hip", HETCCL_MEM_ONEAPI: "oneapi"}


def register_mpi(datatypes, handle_of, in_place, bottom):
    """Tell the parser what the bootstrap learnt from mpi4py; this module imports neither.

    datatypes : dict, MPI datatype handle (int) -> NumPy's name of it ("float32")
    handle_of : callable, MPI.Datatype -> handle; TypeError for anything without a handle
    in_place, bottom : MPI.IN_PLACE, MPI.BOTTOM
    """
    global mpi_datatypes, mpi_handle_of, mpi_in_place, mpi_bottom
    mpi_datatypes = {handle: named[name] for handle, name in datatypes.items()}
    mpi_handle_of = handle_of
    mpi_in_place = in_place
    mpi_bottom = bottom


def describe(obj, writable=False, blocks=1):
    """Parse a buffer as a collective would, and say what was understood.

    obj      : array or mpi4py buffer spec
    writable : it is to receive
    blocks   : blocks that the collective sees in it
    Returns  : dict: ptr, count (elements), dtype (name), kind ("host", "cuda", ...), device, itemsize (bytes), readonly, fortran
    Raises   : BufferError (layout, read-only), TypeError (object, dtype), ValueError (counts)
    """
    cdef Span span
    span_of(obj, &span, "obj", writable, blocks)
    try:
        return {
            "ptr": <uintptr_t> span.ptr, "count": span.count, "dtype": names[span.dtype], "kind": KINDS[span.kind],
            "device": span.device, "itemsize": span.itemsize, "readonly": bool(span.readonly), "fortran": bool(span.fortran),
        }
    finally:
        span_release(&span)


def check_overlap(sendbuf, recvbuf):
    """Raise ValueError if the two buffers share memory, as every collective does."""
    cdef Span send, recv
    send.held = recv.held = HELD_NOTHING
    send.owner = recv.owner = NULL
    try:
        span_of(sendbuf, &send, "sendbuf", False, 1)
        span_of(recvbuf, &recv, "recvbuf", True, 1)
        span_check_overlap(&send, &recv, "sendbuf", "recvbuf")
    finally:
        span_release(&send)
        span_release(&recv)


for _num in range(NUMPY_NUMS):
    numpy_codes[_num] = CODE_UNASKED
dtype_add("int8", HETCCL_INT8, 1, 1)
dtype_add("uint8", HETCCL_UINT8, 1, 1)
dtype_add("int16", HETCCL_INT16, 2, 2)
dtype_add("uint16", HETCCL_UINT16, 2, 2)
dtype_add("int32", HETCCL_INT32, 4, 4)
dtype_add("uint32", HETCCL_UINT32, 4, 4)
dtype_add("int64", HETCCL_INT64, 8, 8)
dtype_add("uint64", HETCCL_UINT64, 8, 8)
dtype_add("bool", HETCCL_BOOL, 1, 1)
dtype_add("float16", HETCCL_FLOAT16, 2, 2)
dtype_add("float32", HETCCL_FLOAT32, 4, 4)
dtype_add("float64", HETCCL_FLOAT64, 8, 8)
dtype_add("longdouble", HETCCL_LONGDOUBLE, sizeof(long double), sizeof(long double))
dtype_add("complex64", HETCCL_COMPLEX64, 8, 4)
dtype_add("complex128", HETCCL_COMPLEX128, 16, 8)
dtype_add("bfloat16", HETCCL_BFLOAT16, 2, 2)
dtype_add("float8_e4m3fn", HETCCL_FLOAT8_E4M3, 1, 1)
dtype_add("float8_e5m2", HETCCL_FLOAT8_E5M2, 1, 1)
typecodes_fill()
