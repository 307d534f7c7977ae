"""Which memory of users may be registered: the process's notes of arrays whose life is known."""

from libc.stddef cimport size_t
from libc.stdint cimport uintptr_t

from hetccl._mr_cache cimport hetccl_mr_range_t


cdef class Note:                         # one stretch of memory, until its owner dies
    cdef hetccl_mr_range_t* range        # NULL: forgotten
    cdef object reference                # to its owner, weakly; None: of a promised range
    cdef size_t owner_id

    cdef int forget(self) except -1


# A call is about to use this memory, nbytes from ptr on, of an object that the call holds: note it if its life is
# known. Cheap for what was noted lately.
cdef int buffer_note(object obj, void* ptr, size_t nbytes) except -1

# Register the memory, whoever owns it, until register_end(); the caller keeps obj, and its export open, till then.
# ndevices: how many RDMA devices took it; one that is opened later takes it on first use.
cdef hetccl_mr_range_t* register_begin(object obj, void* ptr, size_t nbytes, int* ndevices) except NULL
cdef void register_end(hetccl_mr_range_t* range) noexcept
