"""mpi4py's vector specs -> the part of a buffer that each rank has.

Layer L2, called by _comm with the GIL held; no locks. The forms, and what a missing count or displacement means, are
mpi4py's. Unlike mpi4py, parts that leave the buffer, and parts that are to receive and share a byte, are refused.
"""

from cpython.number cimport PyIndex_Check, PyNumber_Index
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uintptr_t
from libc.stdlib cimport free, malloc

from hetccl._abi cimport HETCCL_RAW
from hetccl._buffer cimport (
    Element, Part, Span, element_count, element_of, element_room, span_check_overlap, span_clear, span_describe,
    span_of, span_read, span_release,
)
from hetccl._dtype cimport type_name
from hetccl._layout cimport Layout, hetccl_layout_copy, hetccl_layout_copy_past, hetccl_layout_runs, iovec
from hetccl._overlap cimport part_check_writes, parts_shared, parts_shared_across


cdef int parts_of(object obj, Span* span, object arg, bint writable, int nparts, Part* parts) except -1:
    cdef Element element
    span_clear(span)
    try:
        data, counts, displs, datatype = vector_items(obj, arg)
        span_read(data, datatype, span, &element, arg, writable)
        vector_fill(span, &element, counts, displs, arg, nparts, parts)
        if writable:
            parts_check_writes(<Layout> span.layout_owner if span.layout != NULL else None, arg, nparts, parts)
    except BaseException:
        span_release(span)
        raise
    return 0


cdef tuple vector_items(object obj, object arg):
    """(data, counts, displacements, datatype), None for what is not given."""
    if not isinstance(obj, (list, tuple)):
        return obj, None, None, None
    counts = displs = datatype = None
    if len(obj) == 2:
        data, counts = obj
        if isinstance(counts, str) or not (counts is None or PyIndex_Check(counts) or hasattr(counts, "__len__")):
            counts, datatype = None, counts
    elif len(obj) == 3:
        data, counts, datatype = obj
    elif len(obj) == 4:
        data, counts, displs, datatype = obj
    else:
        raise ValueError(f"{arg}: a spec has 2 to 4 items, [data, counts, displacements, datatype], got {len(obj)}")
    if len(obj) < 4 and isinstance(counts, tuple):  # a list would be the counts
        if len(counts) != 2:
            raise ValueError(f"{arg}: expected (counts, displacements), got {counts!r}; counts alone go in a list")
        counts, displs = counts
    return data, counts, displs, datatype


cdef int vector_fill(
    Span* span, const Element* element, object counts, object displs, object arg, int nparts, Part* parts,
) except -1:
    """Cut the span. Counts and displacements are of elements of the spec's datatype."""
    cdef int i
    cdef int64_t count, displ, packed = 0, share = 0, rest = 0, step = 0
    cdef bint all_counts = not (counts is None or is_integer(counts))
    cdef bint all_displs = not (displs is None or is_integer(displs))
    if counts is None:
        share = element_count(element, span.nbytes, arg)
        rest = share % nparts  # mpi4py's rule: the first ones get one more
        share //= nparts
    elif all_counts:
        check_length(counts, arg, "counts", nparts)
    else:
        share = integer_of(counts, arg, "count", -1)
    if all_displs:
        check_length(displs, arg, "displacements", nparts)
    elif displs is not None:
        step = integer_of(displs, arg, "displacement", -1)
    cdef int64_t following = 0
    for i in range(nparts):
        count = integer_of(counts[i], arg, "counts", i) if all_counts else share + (i < rest)
        if all_displs:
            displ = integer_of(displs[i], arg, "displacements", i)
        else:
            displ = following if displs is None else times(step, i, arg)
        following += count if displs is None and 0 < count <= INT64_MAX - following else 0
        part_fill(&parts[i], <uint8_t*> span.ptr, span.nbytes, element, count, displ, element.extent, i, arg)
        packed += parts[i].nbytes
    span.count = packed // <int64_t> span.itemsize
    return 0


cdef int part_fill(
    Part* part, uint8_t* base, int64_t nbytes, const Element* element, int64_t count, int64_t displ, int64_t step,
    int index, object arg,
) except -1:
    """count elements at displ steps of `step` bytes from base on, in memory that ends nbytes after it."""
    part.ptr = base
    part.nbytes = 0
    part.layout = element.layout
    if count < 0:
        raise ValueError(f"{arg}: counts[{index}] is negative: {count}")
    if count == 0 or element.unit == 0:  # MPI reads no displacement of a part without elements
        return 0
    if displ < 0:
        raise ValueError(f"{arg}: displacements[{index}] is negative: {displ}")
    if step < 0 and displ > 0:
        raise ValueError(f"{arg}: displacements[{index}] is {displ}, of elements of negative extent, {step} bytes")
    cdef int64_t room = 0
    if displ == 0 or displ <= nbytes // max(step, 1):
        room = element_room(element, displ * step, nbytes)
    if count > room:
        raise ValueError(
            f"{arg}: part {index}, {count} elements at displacement {displ}, is beyond the buffer of {nbytes} bytes, "
            f"which has room for {room} there"
        )
    part.ptr = base + displ * step
    part.nbytes = count * element.unit * element.itemsize
    return 0


cdef int parts_check_writes(Layout layout, object arg, int nparts, const Part* parts) except -1:
    cdef int i, first, second
    if layout is not None:
        for i in range(nparts):
            part_check_writes(layout, parts[i].ptr, parts[i].nbytes // layout.tree.size, arg)
    if parts_shared(parts, nparts, &first, &second):
        raise ValueError(f"{arg}: parts {first} and {second} overlap, and both are to receive")
    return 0


cdef int parts_of_w(object obj, Span* span, object arg, bint writable, int nparts, Part* parts, list owners) except -1:
    span_clear(span)
    try:
        fill_w(obj, span, arg, writable, nparts, parts, owners)
    except BaseException:
        span_release(span)
        raise
    return 0


cdef int fill_w(object obj, Span* span, object arg, bint writable, int nparts, Part* parts, list owners) except -1:
    cdef Element element
    cdef Layout layout
    cdef int i, first, second
    cdef int64_t count = 1, displ = 0
    if not isinstance(obj, (list, tuple)):
        raise TypeError(f"{arg}: expected [data, counts, displacements, datatypes], got {type_name(obj)}")
    counts = displs = None
    if len(obj) == 2:
        data, datatypes = obj
    elif len(obj) == 3:
        data, (counts, displs), datatypes = obj
    elif len(obj) == 4:
        data, counts, displs, datatypes = obj
    else:
        raise ValueError(f"{arg}: a spec has 2 to 4 items, [data, counts, displacements, datatypes], got {len(obj)}")
    if (counts is None) != (displs is None):
        raise TypeError(f"{arg}: counts and displacements go together; both or neither may be None")
    check_length(datatypes, arg, "datatypes", nparts)
    if counts is not None:
        check_length(counts, arg, "counts", nparts)
        check_length(displs, arg, "displacements", nparts)
    span_read(data, "uint8", span, &element, arg, writable)
    span.dtype = HETCCL_RAW
    span.count = 0
    for i in range(nparts):
        layout = element_of(datatypes[i], &element, arg)
        if counts is not None:
            count, displ = integer_of(counts[i], arg, "counts", i), integer_of(displs[i], arg, "displacements", i)
        part_fill(&parts[i], <uint8_t*> span.ptr, span.nbytes, &element, count, displ, 1, i, arg)
        if parts[i].layout != NULL:
            owners.append(layout)
            if writable:
                part_check_writes(layout, parts[i].ptr, count, arg)
        span.count += parts[i].nbytes
    if writable and parts_shared(parts, nparts, &first, &second):
        raise ValueError(f"{arg}: parts {first} and {second} overlap, and both are to receive")
    return 0


cdef bint is_integer(object value) noexcept:
    """Whether a count is one integer: NumPy's arrays have __index__ too, and so have those of 0 dimensions."""
    if not PyIndex_Check(value):
        return False
    try:
        len(value)
    except TypeError:
        return True
    return False


cdef int check_length(object values, object arg, object what, int nparts) except -1:
    if not hasattr(values, "__len__") or not hasattr(values, "__getitem__"):
        raise TypeError(f"{arg}: {what} must be a sequence, one for each of {nparts} ranks, got {type_name(values)}")
    if len(values) != nparts:
        raise ValueError(f"{arg}: expected {nparts} {what}, one for each rank, got {len(values)}")
    return 0


cdef int64_t integer_of(object value, object arg, object what, int index) except? -1:
    """value as a C integer. index: its place in the list of `what`, or -1 for one alone; for errors."""
    if not PyIndex_Check(value):
        raise TypeError(f"{arg}: {label_of(what, index)} must be an integer, got {type_name(value)}")
    try:
        return PyNumber_Index(value)
    except OverflowError as error:
        raise ValueError(f"{arg}: {label_of(what, index)} is beyond any buffer: {value}") from error


cdef object label_of(object what, int index):
    return what if index < 0 else f"{what}[{index}]"


cdef int64_t times(int64_t step, int index, object arg) except? -1:
    return integer_of(<object> step * index, arg, "displacements", index)


def describe_parts(obj, nparts, writable=False, w=False):
    """Parse a vector spec as a collective would, and say what was understood.

    obj      : array or mpi4py vector spec; of Alltoallw if w is true
    nparts   : ranks of the communicator, > 0
    writable : it is to receive
    Returns  : (describe() of the whole, [(address, packed bytes, whether it has a layout), one per rank])
    Raises   : as describe
    """
    cdef Span span
    cdef list owners = []
    cdef int n = nparts, i
    cdef Part* parts = <Part*> malloc(n * sizeof(Part))
    if parts == NULL:
        raise MemoryError()
    try:
        (parts_of_w(obj, &span, "obj", writable, n, parts, owners) if w
         else parts_of(obj, &span, "obj", writable, n, parts))
        try:
            found = [(<uintptr_t> parts[i].ptr, parts[i].nbytes, parts[i].layout != NULL) for i in range(n)]
            return span_describe(&span), found
        finally:
            span_release(&span)
    finally:
        free(parts)


def check_parts(sendbuf, recvbuf, nparts, w=False):
    """Raise ValueError if a part of one vector spec shares memory with one of the other. For tests.

    nparts : ranks of the communicator, > 0        w : the specs are of Alltoallw
    """
    cdef Span send, recv
    cdef list owners = []
    cdef int n = nparts, first = 0, second = 0
    cdef Part* parts = <Part*> malloc(2 * n * sizeof(Part))
    if parts == NULL:
        raise MemoryError()
    span_clear(&send)
    span_clear(&recv)
    try:
        if w:
            parts_of_w(sendbuf, &send, "sendbuf", False, n, parts, owners)
            parts_of_w(recvbuf, &recv, "recvbuf", True, n, parts + n, owners)
        else:
            parts_of(sendbuf, &send, "sendbuf", False, n, parts)
            parts_of(recvbuf, &recv, "recvbuf", True, n, parts + n)
        if parts_shared_across(parts, n, parts + n, n, &first, &second):
            raise ValueError(f"parts {first} of sendbuf and {second} of recvbuf overlap")
    finally:
        span_release(&send)
        span_release(&recv)
        free(parts)


def pack(obj, out, skip=0):
    """Copy len(out) bytes of the packed stream of a spec, `skip` bytes after its beginning. For tests and benches."""
    move(obj, skip, out, 0, len(out))


def move(source, from_byte, target, to_byte, nbytes, past_cache=False):
    """Copy bytes of one spec's packed stream to another's. For tests and benches.

    source, target     : array or mpi4py buffer spec
    from_byte, to_byte : where in the packed streams
    past_cache         : whether the target is stored past the cache
    Raises             : ValueError (beyond the end), and as describe
    """
    cdef Span a, b
    cdef size_t skip_a = from_byte, skip_b = to_byte, n = nbytes
    cdef bint past = past_cache
    span_clear(&a)
    span_clear(&b)
    try:
        span_of(source, &a, "source", False, 1)
        span_of(target, &b, "target", True, 1)
        span_check_overlap(&a, &b, "source", "target")
        if skip_a + n > a.count * a.itemsize or skip_b + n > b.count * b.itemsize:
            raise ValueError(f"{nbytes} bytes are beyond the end of a packed stream")
        with nogil:
            (hetccl_layout_copy_past if past else hetccl_layout_copy)(
                b.layout, <uint8_t*> b.ptr, skip_b, a.layout, <const uint8_t*> a.ptr, skip_a, n)
    finally:
        span_release(&a)
        span_release(&b)


def runs(obj, skip, nbytes, most):
    """The bytes [skip, skip + nbytes) of a spec's packed stream as runs of memory: [(address, bytes)], at most `most`.

    obj    : mpi4py buffer spec with a derived datatype
    Raises : as describe. For tests
    """
    cdef Span span
    cdef int i, got
    cdef iovec* found = <iovec*> malloc(most * sizeof(iovec))
    if found == NULL:
        raise MemoryError()
    span_clear(&span)
    try:
        span_of(obj, &span, "obj", False, 1)
        if span.layout == NULL:
            raise TypeError("obj: is contiguous")
        got = hetccl_layout_runs(span.layout, <uint8_t*> span.ptr, skip, nbytes, found, most)
        return [(<uintptr_t> found[i].iov_base, found[i].iov_len) for i in range(got)]
    finally:
        span_release(&span)
        free(found)
