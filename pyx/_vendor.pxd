"""A communicator of a vendor's CCL: one rank's end of an island."""

from libc.stdint cimport int64_t

from hetccl._ccl cimport Ccl, hetccl_ccl_t
from hetccl._runtime cimport Runtime, hetccl_runtime_t
from hetccl._watched cimport hetccl_watch_hold, hetccl_watch_release, WatchedComm

cdef extern from "hetccl/ccl_birth.h" nogil:
    ctypedef struct hetccl_birth_t:
        pass


cdef class VendorComm(WatchedComm):
    cdef readonly int nranks
    cdef readonly str float8             # what float8's bits mean on the ranks' devices: "ocp", "fnuz" or "mixed"
    cdef hetccl_birth_t* birth           # the library is still making the communicator; else NULL
    cdef set registered                  # the library's handles of registered buffers, as int

    cdef int meet(self, object peers) except -1
    cdef int await_library(self, int64_t until) except -1
    cdef int be_born(self, int code, str call, str function) except -1
    cdef int finalize(self) except -1
    cdef int destroy(self) except -1


# Between the two, neither abort nor the watch frees the communicator, unless the call hangs. hold answers the handle,
# or NULL: it has been taken away since usable().
cdef inline void* vendor_hold(VendorComm comm) noexcept nogil:
    return hetccl_watch_hold(&comm.watch)

cdef inline void vendor_release(VendorComm comm) noexcept nogil:
    hetccl_watch_release(&comm.watch)
