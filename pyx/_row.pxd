"""The row of a communicator's collectives."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from hetccl._agree cimport Check
from hetccl._buffer cimport Part
from hetccl._kernels cimport hetccl_reduce_fn
from hetccl._passage cimport Passage
from hetccl._program cimport Failure, Link, Run

# States of a Collective. Those from COLLECTIVE_DONE on are final: the row has let go of it.
cdef enum:
    COLLECTIVE_IDLE = 0
    COLLECTIVE_QUEUED
    COLLECTIVE_CHECKING                  # its calls are being compared (HETCCL_CHECK)
    COLLECTIVE_RUNNING
    COLLECTIVE_GATED                     # the input of its next portion has not come from the GPU yet
    COLLECTIVE_DONE
    COLLECTIVE_REFUSED                   # the ranks' calls differ; nothing has moved
    COLLECTIVE_FAILED                    # status and failure say why


ctypedef struct Collective:              # one call. Its owner keeps it, and all it points to, until its state is final
    Collective* next
    int state
    int call                             # index into CALLS
    uint64_t number                      # of the communicator's collectives, from 1
    uint32_t tag                         # of its messages: number and call
    void* program                        # Program
    Check* check                         # NULL: calls are not compared
    uint8_t* source                      # IN
    uint8_t* target                      # OUT
    const Part* in_parts                 # units with places and lengths of their own; else NULL, as out_parts
    const Part* out_parts
    int64_t count                        # elements of a unit, of the longest where there are parts
    int64_t portion                      # elements of a unit that run at once, in the first portion
    bint grows                           # portions grow with their number (include/hetccl/ring.h)
    size_t itemsize
    hetccl_reduce_fn reduce              # NULL: data are only moved
    int divisor                          # AVG: by what the last step divides
    Passage* passage                     # NULL: the buffers are host memory; else source, target and parts are not
    bint past_cache                      # OUT is so large that it is stored past the cache
    int status
    Failure failure


ctypedef struct Row:
    Collective* head                     # the one at work
    Collective* tail
    Collective* failed                   # what ended the row, or NULL
    uint64_t number                      # collectives entered
    int64_t nth                          # the head's portion at work, from 0
    int nranks
    Link* send_links                     # per peer, as recv_links; the executor's
    Link* recv_links
    int* turns                           # Run.sent and Run.received
    uint8_t* scratch                     # plans' SCRATCH; grows
    size_t scratch_nbytes
    uint8_t* fetch_scratch               # grows with the widest Reduce
    const void** operands
    int nfetch
    Run run                              # of the head


cdef int row_open(Row* row, int nranks, Link* send_links, Link* recv_links) except -1
cdef void row_close(Row* row) noexcept nogil
cdef void row_push(Row* row, Collective* collective) noexcept nogil
cdef int row_poll(Row* row) noexcept nogil
cdef void row_blockers(Row* row, uint8_t* mask) noexcept nogil
