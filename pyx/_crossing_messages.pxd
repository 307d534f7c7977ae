"""Messages in GPU memory in a communicator of several islands: their pinned memory, and what is queued on the GPU."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t

from hetccl._crossing cimport Crossing
from hetccl._executor cimport Executor
from hetccl._passage cimport Transit, hetccl_ring_t
from hetccl._runtime cimport Runtime


ctypedef struct Berth:                   # pinned memory for one message at a time
    hetccl_ring_t ring                   # first, so that the ring's address is the berth's
    Berth* next
    void* words                          # pinned memory
    void* stream                         # for messages of several portions; or NULL, not made yet
    void* event                          # the streams are past the last message
    bint pending                         # there is a message whose copies are not queued yet


ctypedef struct Haul:                    # a message whose copies are to be queued
    Transit* transit
    uint8_t* ptr                         # on the GPU
    void* user                           # the caller's stream
    void* stream                         # where the copies go
    int64_t nth                          # the next portion
    bint follows                         # it comes where the message before it is sent from: on the same stream


cdef class MessageCrossing(Crossing):
    cdef Berth* berths                   # owned
    cdef int nberths
    cdef size_t pinned_nbytes            # of all berths' pieces

    # Take pinned memory for a message of nbytes (to receive: of at most so many) that will be queued on a stream.
    # nsharing: messages that are under way together; waits: wait for earlier ones rather than take ever more
    cdef int berth(self, Transit* transit, size_t nbytes, void* stream, int nsharing, bint waits, str call) except -1
    # Give a message up whose copies are not queued.
    cdef void let_go(self, Transit* transit) noexcept
    # Queue the copies of messages that have been given to the engine, so that no order of them deadlocks.
    cdef int queue_hauls(self, Haul* hauls, int nhauls, str call) except -1

    cdef int await_berth(self, str call) except -1
    cdef bint is_free(self, Berth* berth) noexcept
    cdef Berth* find(self, size_t nbytes) except? NULL
    cdef Berth* build(self) except NULL
    cdef int make_berth_room(self, Berth* berth, int npieces, size_t nbytes) except -1
    cdef void empty(self, Berth* berth) noexcept
    cdef int queue_all(self, Haul* hauls, int nhauls, const char** step) noexcept nogil
    cdef int fork(self, Haul* haul, void* stream, const char** step) noexcept nogil
    cdef int queue_next(self, Haul* haul, const char** step) noexcept nogil
    cdef int join(self, Haul* haul, const char** step) noexcept nogil


cdef MessageCrossing crossing_new(Executor executor, Runtime runtime, int device)
