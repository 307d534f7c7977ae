"""A communicator of a vendor's CCL: one rank's end of an island."""

from libc.stdint cimport int64_t

from hetccl._ccl cimport Ccl, hetccl_ccl_t
from hetccl._mutex cimport hetccl_mutex_t
from hetccl._runtime cimport Runtime, hetccl_runtime_t


cdef class VendorComm:
    cdef readonly Ccl ccl
    cdef readonly Runtime runtime
    cdef const hetccl_ccl_t* functions   # ccl.table
    cdef const hetccl_runtime_t* gpu     # runtime.table
    cdef void* handle                    # the library's communicator; NULL: freed or aborted
    cdef readonly int rank
    cdef readonly int nranks
    cdef readonly int device             # index of the runtime; 0 for the host's
    cdef hetccl_mutex_t mutex            # one call of the library at a time
    cdef int64_t timeout_ns
    cdef bint lost                       # set by the watch: a peer died, or the library reported an error

    # Raise unless the communicator can be used: CommClosed, PeerError (a peer is gone), the library's own error.
    cdef int usable(self, str call) except -1
    # The outcome of a library's function that did not answer 0: wait, with a time-out, for one that is in progress;
    # raise for any other. The GIL is held on entry, and released while waiting.
    cdef int conclude(self, int code, str call, str function) except -1
