"""What the user passed, as plain C: array or mpi4py buffer spec -> Span. Layer L2; the GIL is held."""

from libc.stdint cimport int64_t

from hetccl._array cimport Export
from hetccl._dtype cimport dtype_code, dtype_itemsize, dtype_name  # part of this module's interface
from hetccl._layout cimport Part, hetccl_layout_t

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

# IN_PLACE, MPI.IN_PLACE and, as in mpi4py, None.
cdef bint is_in_place(object obj) noexcept
