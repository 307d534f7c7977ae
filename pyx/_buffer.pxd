"""What the user passed, as plain C: array or mpi4py buffer spec -> Span. Layer L2; the GIL is held."""

from libc.stdint cimport int64_t, uintptr_t

from hetccl._array cimport Export
from hetccl._dtype cimport dtype_code, dtype_itemsize, dtype_name  # part of this module's interface
from hetccl._layout cimport Layout, Part, hetccl_layout_t

ctypedef struct Span:
    void* ptr        # first element that takes part; host or device address; owned by `owner`
    int64_t count    # elements, all blocks together; with a layout: of the derived datatype
    int64_t nbytes   # of the whole buffer from its beginning: what a spec was cut from
    int dtype        # HETCCL_<dtype>; HETCCL_RAW: bytes that can be moved, not reduced
    int kind         # HETCCL_MEM_*
    int device       # index among devices of its kind; DEVICE_UNKNOWN (_array.pxd) where only the runtime can tell
    size_t itemsize  # packed bytes per element; two HETCCL_RAW spans match if these are equal
    bint readonly
    bint fortran     # F- but not C-contiguous. Elements travel in memory order, so both sides must agree on it
    const hetccl_layout_t* layout  # how the elements lie; NULL is one after another. Owned by `layout_owner`
    void* layout_owner             # strong reference, or NULL
    void* owner      # strong reference to the object that was read
    Export export    # what the object's library must be given back

# obj: an array, or a spec [data, ...] as mpi4py takes it. arg: its name, for errors. writable: it will receive.
# blocks: how many equal blocks the collective sees in this buffer (the communicator's size for Allgather's recvbuf, for
# both of Alltoall's, for Reduce_scatter_block's sendbuf; else 1). As in mpi4py, an explicit count in a spec is that of
# ONE block, and a missing one is (elements in the buffer) / blocks, which must divide. span.count is always the total,
# a multiple of blocks. On error nothing is held. None is a TypeError, and so is IN_PLACE: ask is_in_place first.
cdef int span_of(object obj, Span* span, object arg, bint writable, int64_t blocks) except -1

# Give back what the span holds. Safe on a zeroed span, on one whose span_of failed, and twice.
cdef void span_release(Span* span) noexcept

# ValueError if the two share a byte, exactly or partly, as MPI forbids. arg_a, arg_b: the arguments' names.
cdef int span_check_overlap(const Span* a, const Span* b, object arg_a, object arg_b) except -1

# Whether both are contiguous, and a lies below b.
cdef inline bint span_ends_before(const Span* a, const Span* b) noexcept nogil:
    return a.layout == NULL and b.layout == NULL and \
        <uintptr_t> a.ptr + a.count * <int64_t> a.itemsize <= <uintptr_t> b.ptr

# IN_PLACE, MPI.IN_PLACE and, as in mpi4py, None.
cdef bint is_in_place(object obj) noexcept

# What a spec's datatype says. A datatype whose elements are adjacent numbers of one dtype is `unit` of those.
ctypedef struct Element:
    int dtype        # HETCCL_<dtype> or HETCCL_RAW
    int64_t itemsize  # packed bytes of what a span counts
    int64_t unit     # how many of those an element is; 0 for a datatype without a byte
    int64_t extent   # bytes from one element to the next
    const hetccl_layout_t* layout  # NULL: contiguous

# Fill element; returns the owner of its layout, None if it has none.
cdef Layout element_of(object datatype, Element* element, object arg)

# Span of all of data, read as elements of a datatype, or of its own if that is None; fills element too. data may be
# None with a datatype. The layout's owner is held by the span. After an error the span must be released.
cdef int span_read(object data, object datatype, Span* span, Element* element, object arg, bint writable) except -1

# How many elements fit from `offset` on into nbytes of memory, all that they touch.
cdef int64_t element_room(const Element* element, int64_t offset, int64_t nbytes) noexcept nogil
# How many elements the last nbytes of a buffer are, as mpi4py has it. ValueError if that is no whole number.
cdef int64_t element_count(const Element* element, int64_t nbytes, object arg) except -1

cdef int64_t index_of(object value, object arg, object what, int64_t limit) except -1
cdef void span_clear(Span* span) noexcept  # before anything that may fail
cdef dict span_describe(const Span* span)
