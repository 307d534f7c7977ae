"""What the user passed, as plain C: array or mpi4py buffer spec -> Span.

Layer L2, called by _comm with the GIL held; no locks. _array says where the memory is; here it is checked against what
a collective needs, and cut to what a spec asks for. No byte of it is touched.
"""

from cpython.number cimport PyIndex_Check
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uintptr_t

from hetccl._abi cimport HETCCL_MEM_CUDA, HETCCL_MEM_HIP, HETCCL_MEM_HOST, HETCCL_MEM_ONEAPI, HETCCL_RAW
from hetccl._array cimport HELD_NOTHING, HELD_VIEW, Memory, array_read, export_release
from hetccl._dtype cimport (
    CODE_OPAQUE, CODE_SWAPPED, CODE_UNSUPPORTED, datatypes_add, dtype_alignment, dtype_code, dtype_itemsize,
    dtype_name, dtype_names, type_name,
)
from hetccl._layout cimport Layout, hetccl_piece_range, layout_of
from hetccl._overlap cimport part_check_writes, parts_shared

cdef extern from "hetccl/arrays.h" nogil:
    enum:
        HETCCL_NPY_C

cdef object mpi_in_place = object()  # equal to nothing until register_mpi
cdef object mpi_bottom = object()


cdef int span_of(object obj, Span* span, object arg, bint writable, int64_t blocks) except -1:
    span_clear(span)
    try:
        if isinstance(obj, (list, tuple)):
            span_of_spec(obj, span, arg, writable, blocks)
        else:
            span_of_data(obj, span, arg, writable, NULL)
            if blocks != 1 and span.count % blocks:
                raise ValueError(f"{arg}: {span.count} elements do not divide into {blocks} blocks")
    except BaseException:
        span_release(span)
        raise
    return 0


cdef void span_clear(Span* span) noexcept:
    span.owner = span.layout_owner = NULL
    span.layout = NULL
    span.export.held = HELD_NOTHING


cdef int span_of_data(object obj, Span* span, object arg, bint writable, const Element* given) except -1:
    """Span of all of obj. given: what a spec demands it to be read as, or NULL."""
    cdef Memory memory
    cdef int code
    cdef int64_t count, itemsize
    if obj is mpi_in_place or obj is IN_PLACE:  # mpi4py's constants are empty buffers to the buffer protocol
        raise TypeError(f"{arg}: IN_PLACE stands for no buffer here")
    if obj is mpi_bottom:
        raise TypeError(f"{arg}: BOTTOM (absolute addresses) is not supported; pass the array")
    array_read(obj, &span.export, &memory, arg, writable)
    Py_INCREF(obj)
    span.owner = <void*> obj
    count = elements_of(obj, &memory, arg)
    if memory.order == 0:
        raise_strided(obj, arg, &memory)
    if writable and memory.readonly:
        raise BufferError(f"{arg}: {type_name(obj)} is read-only, but it is to receive")
    code = memory.code
    if code == CODE_OPAQUE or (code == CODE_SWAPPED and (given == NULL or dtype_itemsize(given.dtype) != 1)):
        raise_dtype(obj, span, arg, code)
    if given != NULL:
        code = given.dtype
        itemsize = given.itemsize
    elif code < 0:
        code = HETCCL_RAW
        itemsize = memory.itemsize
        if itemsize <= 0:
            raise_dtype(obj, span, arg, code)
    else:
        itemsize = dtype_itemsize(code)
    span.ptr = memory.ptr
    span.nbytes = count * memory.itemsize
    span.count = count if given == NULL else span.nbytes // itemsize
    span.dtype = code
    span.kind = memory.kind
    span.device = memory.device
    span.itemsize = itemsize
    span.readonly = memory.readonly
    span.fortran = not memory.order & HETCCL_NPY_C
    if count:
        if memory.ptr == NULL:
            raise BufferError(f"{arg}: {type_name(obj)} of {count} elements has no memory (a meta or lazy tensor, say)")
        if <uintptr_t> memory.ptr % dtype_alignment(code) and (given == NULL or given.layout == NULL):
            raise_misaligned(obj, arg, code)
    return 0


cdef int64_t elements_of(object obj, const Memory* memory, object arg) except -1:
    """How many elements the shape has. An exporter may have written anything there."""
    cdef int64_t count = 1, n
    cdef int i
    cdef bint fits = True
    for i in range(memory.ndim):
        n = memory.shape[i]
        # Two numbers below 2^31 need no division.
        fits = fits and n >= 0 and ((count | n) >> 31 == 0 or n == 0 or count <= INT64_MAX // n)
        count = count * n if fits else 0
    if fits and (count >> 31 == 0 or memory.itemsize <= 0 or count <= INT64_MAX // memory.itemsize):
        return count
    shape = tuple([memory.shape[i] for i in range(memory.ndim)])
    raise BufferError(f"{arg}: {type_name(obj)} says that its shape is {shape}, which is in no memory")


cdef int raise_strided(object obj, object arg, Memory* memory) except -1:
    shape = tuple([memory.shape[i] for i in range(memory.ndim)])
    strides = tuple([memory.strides[i] * memory.stride_unit for i in range(memory.ndim)])
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
    raise TypeError(f"{arg}: dtype {dtype} is not supported; known are {dtype_names()}, and raw ones of fixed size")


cdef Layout element_of(object datatype, Element* element, object arg):
    cdef Layout layout = None
    cdef int code = dtype_code(datatype, arg)
    element.layout = NULL
    element.unit = 1
    if code != CODE_UNSUPPORTED:
        element.dtype = code
        element.itemsize = element.extent = dtype_itemsize(code)
        return None
    layout = layout_of(datatype, arg)
    element.dtype = layout.code
    element.itemsize = layout.tree.size
    element.extent = layout.tree.extent
    if layout.tree.size == 0:
        element.itemsize = 1
        element.unit = 0
    elif not layout.contiguous:
        element.layout = &layout.tree
    elif layout.code != HETCCL_RAW:
        element.itemsize = dtype_itemsize(layout.code)
        element.unit = layout.tree.size // element.itemsize
    return layout


cdef int span_read(object data, object datatype, Span* span, Element* element, object arg, bint writable) except -1:
    cdef Layout layout = None
    if datatype is None:
        span_of_data(data, span, arg, writable, NULL)
        element.dtype = span.dtype
        element.itemsize = element.extent = span.itemsize
        element.unit = 1
        element.layout = NULL
        return 0
    layout = element_of(datatype, element, arg)
    if data is None:
        span_empty(span, element)
    else:
        span_of_data(data, span, arg, writable, element)
    if element.layout != NULL:
        Py_INCREF(layout)
        span.layout_owner = <void*> layout
        span.layout = element.layout
        span.fortran = False  # the datatype says in which order the elements travel
    return 0


cdef int64_t element_room(const Element* element, int64_t offset, int64_t nbytes) noexcept nogil:
    cdef int64_t low, high, extent = element.extent
    if element.unit == 0:
        return INT64_MAX
    if element.layout == NULL:
        return (nbytes - offset) // extent if nbytes > offset else 0
    hetccl_piece_range(&element.layout.root, element.layout.size // element.layout.root.run, &low, &high)
    low += offset
    high += offset
    if low < 0 or high > nbytes:
        return 0
    if extent == 0:
        return INT64_MAX // element.itemsize
    return 1 + ((nbytes - high) // extent if extent > 0 else low // -extent)


cdef int64_t element_count(const Element* element, int64_t nbytes, object arg) except -1:
    if nbytes == 0:
        return 0
    if element.extent <= 0:
        raise ValueError(f"{arg}: no count is given, and the datatype's extent of {element.extent} bytes tells none")
    if nbytes % element.extent:
        raise ValueError(
            f"{arg}: {nbytes} bytes are no multiple of {element_name(element)}'s {element.extent}, give a count"
        )
    return nbytes // element.extent


cdef object element_name(const Element* element):
    plain = element.layout == NULL and element.unit == 1 and element.dtype != HETCCL_RAW
    return dtype_name(element.dtype) if plain else "the datatype"


cdef int span_of_spec(object spec, Span* span, object arg, bint writable, int64_t blocks) except -1:
    """Span of [data, count or datatype], [data, count, datatype] or [data, count, displacement, datatype].

    Instead of a count, the first two may have (count, displacement).
    """
    cdef Element element
    cdef int64_t room, wanted, offset = 0
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
    span_read(data, datatype, span, &element, arg, writable)
    if displ is not None:
        offset = displacement_of(displ, &element, span.nbytes, arg)
    room = element_room(&element, offset, span.nbytes)
    if count is None:
        wanted = element_count(&element, span.nbytes - offset, arg)
        if wanted > room:
            raise ValueError(f"{arg}: {wanted} elements of the datatype reach beyond the buffer; give a count")
        if blocks != 1 and wanted % blocks:
            raise ValueError(f"{arg}: {wanted} elements do not divide into {blocks} blocks")
    else:
        wanted = index_of(count, arg, "count" if blocks == 1 else "count per block", room // blocks) * blocks
    span.ptr = <char*> span.ptr + offset
    span.count = wanted * element.unit
    if writable and element.layout != NULL:
        part_check_writes(<Layout> span.layout_owner, span.ptr, wanted, arg)
    return 0


cdef int64_t displacement_of(object displ, const Element* element, int64_t nbytes, object arg) except -1:
    """Bytes of a displacement in elements."""
    cdef int64_t limit = nbytes // element.extent if element.extent > 0 else 0
    return index_of(displ, arg, "displacement", limit) * element.extent


cdef int64_t index_of(object value, object arg, object what, int64_t limit) except -1:
    if not PyIndex_Check(value):
        raise TypeError(f"{arg}: {what} must be an integer, got {type_name(value)}")
    number = value.__index__()
    if number < 0:
        raise ValueError(f"{arg}: negative {what} {number}")
    if number > limit:
        raise ValueError(f"{arg}: {what} {number} is beyond the buffer, which has room for {limit}")
    return number


cdef int span_empty(Span* span, const Element* element) except -1:
    span.ptr = NULL
    span.count = 0
    span.nbytes = 0
    span.dtype = element.dtype
    span.itemsize = element.itemsize
    span.kind = HETCCL_MEM_HOST
    span.device = 0
    span.readonly = span.fortran = False
    return 0


cdef void span_release(Span* span) noexcept:
    cdef void* owner = span.owner
    cdef void* layout_owner = span.layout_owner
    span.owner = span.layout_owner = NULL
    span.layout = NULL
    export_release(&span.export)
    if owner != NULL:
        Py_DECREF(<object> owner)
    if layout_owner != NULL:
        Py_DECREF(<object> layout_owner)


cdef int span_check_overlap(const Span* a, const Span* b, object arg_a, object arg_b) except -1:
    cdef Part[2] parts
    cdef int first, second
    if span_ends_before(a, b) or span_ends_before(b, a):
        return 0
    parts[0] = Part(<uint8_t*> a.ptr, a.count * <int64_t> a.itemsize, a.layout)
    parts[1] = Part(<uint8_t*> b.ptr, b.count * <int64_t> b.itemsize, b.layout)
    cdef int64_t shared = parts_shared(parts, 2, &first, &second)
    if shared:
        raise ValueError(
            f"{arg_a} and {arg_b} share {shared} bytes; they must be apart (pass IN_PLACE as {arg_a} to work in place)"
        )
    return 0


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
    Returns  : dict: ptr, count (elements), dtype (name), kind ("host", "cuda", ...), device, itemsize (packed bytes),
               readonly, fortran (F- but not C-contiguous), layout (None: contiguous; or extent and pieces, how many)
    Raises   : BufferError (layout, read-only), TypeError (object, dtype), ValueError (counts)
    """
    cdef Span span
    span_of(obj, &span, "obj", writable, blocks)
    try:
        return span_describe(&span)
    finally:
        span_release(&span)


cdef dict span_describe(const Span* span):
    layout = None if span.layout == NULL else (<Layout> span.layout_owner).describe()
    return {
        "ptr": <uintptr_t> span.ptr,
        "count": span.count,
        "dtype": dtype_name(span.dtype),
        "kind": KINDS[span.kind],
        "device": span.device,
        "itemsize": span.itemsize,
        "readonly": bool(span.readonly),
        "fortran": bool(span.fortran),
        "layout": layout,
    }


def check_overlap(sendbuf, recvbuf):
    """Raise ValueError if the two buffers share memory, as every collective does."""
    cdef Span send, recv
    span_clear(&send)
    span_clear(&recv)
    try:
        span_of(sendbuf, &send, "sendbuf", False, 1)
        span_of(recvbuf, &recv, "recvbuf", True, 1)
        span_check_overlap(&send, &recv, "sendbuf", "recvbuf")
    finally:
        span_release(&send)
        span_release(&recv)
