"""The loop that runs a communicator's work to its end."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from hetccl._exchange cimport Exchange
from hetccl._kernels cimport hetccl_reduce_fn
from hetccl._program cimport Failure, Link, Program
from hetccl._shm cimport Segment, hetccl_msg_t

ctypedef int (*poll_fn)(void* work) noexcept nogil
ctypedef void (*blockers_fn)(void* work, uint8_t* mask) noexcept nogil


ctypedef struct Wait:                    # one blocking call: what it polls, and how it explains itself
    poll_fn poll
    blockers_fn blockers                 # marks the peers that hold the work up
    void* work
    Failure* failure                     # of the work
    int call                             # index into CALLS
    bint collective
    int64_t idle_ns                      # since when nothing has moved; 0 while something does
    int64_t looked_ns                    # when faults and signals were last looked at


cdef class Executor:
    cdef readonly Segment segment
    cdef readonly int rank
    cdef readonly int nranks
    cdef Link* links                     # [traffic][send 0 | receive 1][peer]
    cdef int* turns                      # Run.sent and Run.received
    cdef uint8_t* scratch                # plans' SCRATCH; grows
    cdef size_t scratch_nbytes
    cdef uint8_t* fetch_scratch          # grows with the widest Reduce
    cdef const void** operands
    cdef int nfetch
    cdef int64_t timeout_ns
    cdef int64_t spin_ns                 # of a wait: with the core
    cdef int64_t awake_ns                # of a wait: before it sleeps
    cdef uint64_t sequence               # collectives entered
    cdef uint32_t tag                    # of the collective's messages: its number and its call

    cdef int enter(self, int call) except -1
    cdef void label(self, int call) noexcept
    cdef int run(self, Program program, int call, void* source, void* target, int64_t count, size_t itemsize,
                 hetccl_reduce_fn reduce, int divisor) except -1
    cdef int exchange(self, Exchange* exchange, int call) except -1
    cdef int reserve(self, Program program, size_t unit_nbytes) except -1
    cdef int wait(self, Wait* wait) except -1 nogil
    cdef int rest(self, Wait* wait) except -100 nogil
    cdef int look_around(self, Wait* wait, int64_t now) except -1 nogil
    cdef int lost_peer(self, Wait* wait) except -100 nogil
    cdef int raise_lost(self, Wait* wait, int peer) except -1 with gil
    cdef int raise_late(self, Wait* wait) except -1 with gil
    cdef int raise_fault(self, int call, Wait* wait) except -1 with gil
    cdef int raise_transport(self, Wait* wait, int status) except -1 with gil
    cdef tuple outstanding(self, Wait* wait)
    cdef tuple blockers(self, Wait* wait)
    cdef tuple absent(self)
    cdef str describe(self, int peer)
