"""A collective or message as calls of an island's vendor CCL."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint64_t

from hetccl._kernels cimport FACTOR_BYTES, hetccl_reduce_fn
from hetccl._layout cimport Part
from hetccl._vendor cimport VendorComm

cdef enum:
    NO_PEER = -1


ctypedef struct Launch:
    int call                             # index into CALLS
    int root
    uint8_t* source                      # units alike; of a message: what is sent
    uint8_t* target
    int64_t count                        # elements of a unit; moves count bytes. Of a message: bytes sent
    int64_t room                         # of a message: bytes received
    size_t itemsize                      # bytes per element
    int dtype                            # the library's number
    int lanes                            # numbers of that dtype per element: 2 for complex
    int op                               # the library's number
    bint scales                          # the operand is multiplied by `factor` first (premul_sum)
    uint8_t[FACTOR_BYTES] factor         # of the dtype
    hetccl_reduce_fn divide              # host buffers, of a library without AVG: divides the sum; else NULL
    int divisor
    uint64_t identity                    # bits of the op's neutral number, for scans
    const Part* in_parts                 # units with places and lengths of their own; else NULL, as out_parts
    const Part* out_parts
    bint in_place                        # what is sent lies where something else arrives
    int dest                             # of a message, or NO_PEER
    int source_rank                      # likewise
    void* stream
    void* comm                           # the library's communicator, while the call is being queued


# Queue the call. On error nothing of it is left in the air. Whatever it points to must live until the stream is there.
cdef int launch_run(VendorComm vendor, Launch* launch) except -1

# The same for a call between group_begin and group_finish.
cdef int launch_in_group(VendorComm vendor, Launch* launch) except -1
# Whether the call can be queued between group_begin and group_finish, with others: it has no step after the library's.
cdef bint launch_groups(const Launch* launch) noexcept nogil
# Several calls as one. All with the same vendor, on one thread. finish must follow begin, whatever happens between.
cdef int launch_group_begin(VendorComm vendor) except -1
cdef int launch_group_finish(VendorComm vendor, int call) except -1
