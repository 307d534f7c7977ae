"""What the user passed, as plain C: array or mpi4py buffer spec -> Span.

Layer L2, called by _comm with the GIL held; no locks. _array says where the memory is; here it is checked against what
a collective needs, and cut to what a spec asks for. No byte of it is touched.
"""

from cpython.number cimport PyIndex_Check
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uintptr_t

from hetccl._abi cimport HETCCL_MEM_CUDA, HETCCL_MEM_HIP, HETCCL_MEM_HOST, HETCCL_MEM_ONEAPI
from hetccl._array cimport HELD_NOTHING, HELD_VIEW, Layout, array_read, export_release
from hetccl._dtype cimport (
    CODE_SWAPPED, CODE_UNASKED, CODE_UNSUPPORTED, datatypes_add, dtype_alignment, dtype_code, dtype_itemsize,
    dtype_name, dtype_names, type_name,
)

cdef extern from "hetccl/arrays.h" nogil:
    enum:
        HETCCL_NPY_C

cdef object mpi_in_place = object()  # equal to nothing until register_mpi
cdef object mpi_bottom = object()


cdef int span_of(object obj, Span* span, object arg, bint writable, int64_t blocks) except -1:
    span.owner = NULL
    span.export.held = HELD_NOTHING
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
    """Span of all of obj. given: the dtype that a spec demands, or CODE_UNASKED for the object's own."""
    cdef Layout layout
    cdef int i, code
    cdef int64_t count = 1, itemsize
    if obj is mpi_in_place or obj is IN_PLACE:  # mpi4py's constants are empty buffers to the buffer protocol
        raise TypeError(f"{arg}: IN_PLACE stands for no buffer here")
    if obj is mpi_bottom:
        raise TypeError(f"{arg}: BOTTOM (absolute addresses) is not supported; pass the array")
    array_read(obj, &span.export, &layout, arg, writable)
    Py_INCREF(obj)
    span.owner = <void*> obj
    for i in range(layout.ndim):
        count *= layout.shape[i]
    if layout.order == 0:
        raise_strided(obj, arg, &layout)
    if writable and layout.readonly:
        raise BufferError(f"{arg}: {type_name(obj)} is read-only, but it is to receive")
    code = layout.code
    if given >= 0 and (code >= CODE_UNSUPPORTED or (code == CODE_SWAPPED and dtype_itemsize(given) == 1)):
        code = given
    if code < 0:
        raise_dtype(obj, span, arg, code)
    itemsize = dtype_itemsize(code)
    span.ptr = layout.ptr
    span.nbytes = count * layout.itemsize
    span.count = count if given < 0 else span.nbytes // itemsize
    span.dtype = code
    span.kind = layout.kind
    span.device = layout.device
    span.itemsize = itemsize
    span.readonly = layout.readonly
    span.fortran = not layout.order & HETCCL_NPY_C
    if count:
        if layout.ptr == NULL:
            raise BufferError(f"{arg}: {type_name(obj)} of {count} elements has no memory (a meta or lazy tensor, say)")
        if <uintptr_t> layout.ptr % dtype_alignment(code):
            raise_misaligned(obj, arg, code)
    return 0


cdef int raise_strided(object obj, object arg, Layout* layout) except -1:
    shape = tuple([layout.shape[i] for i in range(layout.ndim)])
    strides = tuple([layout.strides[i] * layout.stride_unit for i in range(layout.ndim)])
    raise BufferError(
        f"{arg}: {type_name(obj)} of shape {shape} has strides {strides} bytes; C- or F-contiguous memory is required: "
        "use numpy.ascontiguousarray or the like"
    )


cdef int raise_misaligned(object obj, object arg, int code) except -1:
    raise BufferError(
        f"{arg}: {dtype_name(code)} elements of {type_name(obj)} do not begin at a multiple of "
        f"{dtype_alignment(code)} bytes; copy it first"
    )


cdef int raise_dtype(object obj, Span* span, object arg, int code) except -1:
    dtype = getattr(obj, "dtype", None)
    if dtype is None:
        dtype = f"format {span.export.view.format.decode()!r}" if span.export.held == HELD_VIEW else "unknown"
    if code == CODE_SWAPPED:
        raise TypeError(
            f"{arg}: byte order of dtype {dtype} is not this machine's; convert with .astype(dtype.newbyteorder('='))"
        )
    raise TypeError(f"{arg}: dtype {dtype} is not supported; known are {dtype_names()}")


cdef int span_of_spec(object spec, Span* span, object arg, bint writable, int64_t blocks) except -1:
    """Span of [data, count or datatype], [data, count, datatype] or [data, count, displacement, datatype].

    Instead of a count, the first two may have (count, displacement).
    """
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
        raise ValueError(f"{arg}: a spec has 2 to 4 items, [data, count, displacement, datatype], got {len(spec)}")
    if len(spec) < 4 and isinstance(count, (tuple, list)):
        if len(count) != 2:
            raise ValueError(f"{arg}: expected (count, displacement), got {count!r}")
        count, displ = count
    if datatype is not None:
        given = dtype_code(datatype, arg)
    if data is None and given >= 0:
        span_empty(span, given)
    else:
        span_of_data(data, span, arg, writable, given)
    capacity = span.count
    offset = index_of(displ, arg, "displacement", capacity) if displ is not None else 0
    capacity -= offset
    if count is None:
        if span.nbytes % <int64_t> span.itemsize:
            name = dtype_name(span.dtype)
            raise ValueError(f"{arg}: {span.nbytes} bytes are no multiple of {name}'s {span.itemsize}")
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
    span.nbytes = 0
    span.dtype = code
    span.itemsize = dtype_itemsize(code)
    span.kind = HETCCL_MEM_HOST
    span.device = 0
    span.readonly = span.fortran = False
    return 0


cdef void span_release(Span* span) noexcept:
    cdef void* owner = span.owner
    span.owner = NULL
    export_release(&span.export)
    if owner != NULL:
        Py_DECREF(<object> owner)


cdef int span_check_overlap(const Span* a, const Span* b, object arg_a, object arg_b) except -1:
    cdef uintptr_t a_lo = <uintptr_t> a.ptr, b_lo = <uintptr_t> b.ptr
    cdef uintptr_t a_hi = a_lo + <size_t> a.count * a.itemsize, b_hi = b_lo + <size_t> b.count * b.itemsize
    if a_lo == a_hi or b_lo == b_hi or a_hi <= b_lo or b_hi <= a_lo:
        return 0
    shared = min(a_hi, b_hi) - max(a_lo, b_lo)
    raise ValueError(
        f"{arg_a} and {arg_b} share {shared} bytes; they must be apart (pass IN_PLACE as {arg_a} to work in place)"
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


KINDS = {HETCCL_MEM_HOST: "host", HETCCL_MEM_CUDA: "cuda", HETCCL_MEM_HIP: "hip", HETCCL_MEM_ONEAPI: "oneapi"}


def register_mpi(datatypes, handle_of, in_place, bottom):
    """Tell the parser what the bootstrap learnt from mpi4py; this module imports neither.

    datatypes : dict, MPI datatype handle (int) -> NumPy's name of it ("float32")
    handle_of : callable, MPI.Datatype -> handle; TypeError for anything without a handle
    in_place, bottom : MPI.IN_PLACE, MPI.BOTTOM
    """
    global mpi_in_place, mpi_bottom
    datatypes_add(datatypes, handle_of)
    mpi_in_place = in_place
    mpi_bottom = bottom


def describe(obj, writable=False, blocks=1):
    """Parse a buffer as a collective would, and say what was understood.

    obj      : array or mpi4py buffer spec
    writable : it is to receive
    blocks   : blocks that the collective sees in it
    Returns  : dict: ptr, count (elements), dtype (name), kind ("host", "cuda", ...), device, itemsize (bytes),
               readonly, fortran (F- but not C-contiguous)
    Raises   : BufferError (layout, read-only), TypeError (object, dtype), ValueError (counts)
    """
    cdef Span span
    span_of(obj, &span, "obj", writable, blocks)
    try:
        return {
            "ptr": <uintptr_t> span.ptr,
            "count": span.count,
            "dtype": dtype_name(span.dtype),
            "kind": KINDS[span.kind],
            "device": span.device,
            "itemsize": span.itemsize,
            "readonly": bool(span.readonly),
            "fortran": bool(span.fortran),
        }
    finally:
        span_release(&span)


def check_overlap(sendbuf, recvbuf):
    """Raise ValueError if the two buffers share memory, as every collective does."""
    cdef Span send, recv
    send.export.held = recv.export.held = HELD_NOTHING
    send.owner = recv.owner = NULL
    try:
        span_of(sendbuf, &send, "sendbuf", False, 1)
        span_of(recvbuf, &recv, "recvbuf", True, 1)
        span_check_overlap(&send, &recv, "sendbuf", "recvbuf")
    finally:
        span_release(&send)
        span_release(&recv)
