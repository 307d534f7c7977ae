"""Calls on GPU buffers in a communicator of several islands: this rank's GPU, and its way to the engine."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t

from hetccl._engine cimport Work
from hetccl._executor cimport Executor
from hetccl._passage cimport hetccl_ring_piece_t, hetccl_ring_t
from hetccl._row cimport Collective
from hetccl._runtime cimport Runtime, hetccl_runtime_t
from hetccl._watched cimport WatchedComm

cdef extern from "hetccl/ring_memory.h" nogil:
    void* hetccl_pinned_alloc(const hetccl_runtime_t* gpu, size_t nbytes, int* code)
    void hetccl_pinned_free(const hetccl_runtime_t* gpu, void* memory, size_t nbytes)

cdef enum:
    WORDS_BYTES = 4096                   # pinned memory for the words of a ring
    SMALLEST_PIECE = 65536


ctypedef struct Lanes:                   # the streams of one call
    void* user                           # the caller's
    void* in_                            # copies the input
    void* bell                           # tells that it has arrived
    void* out                            # copies the result


ctypedef struct Outgrown:                # a piece's memory that a larger one has replaced: streams may still use it
    Outgrown* next
    void* memory
    size_t nbytes


cdef class Crossing(WatchedComm):        # what the requests of such calls have instead of a vendor's communicator
    cdef Executor executor
    cdef hetccl_ring_t* ring             # owned
    cdef Lanes own                       # streams of this communicator's
    cdef void* begun                     # event: the caller's stream, at the begin of a call
    cdef void* ended                     # event: this communicator's streams, at its end
    cdef void* words                     # pinned memory of the pieces' words
    cdef Outgrown* outgrown              # owned

    # Queue a call whose collective has a passage. Whatever it points to must live until the engine is done with it.
    cdef int begin(self, Work* work, void* stream) except -1

    cdef int open(self) except -1
    cdef int open_ring(self, hetccl_ring_t* ring, void* words) except -1
    cdef int refuse_capture(self, void* stream, str call) except -1
    cdef int make_room(self, Collective* collective) except -1
    cdef int enlarge(self, hetccl_ring_piece_t* piece, size_t nbytes) except -1
    cdef int submit(self, Work* work) except -1
    cdef int compare(self, Work* work) except -1
    cdef int queue(self, Collective* collective, void* stream, const char** step) noexcept nogil
    cdef int queue_in(self, Collective* collective, int64_t portion, const Lanes* lanes,
                      const char** step) noexcept nogil
    cdef int queue_out(self, Collective* collective, int64_t portion, const Lanes* lanes,
                       const char** step) noexcept nogil
    cdef int await_streams(self) except -1
    cdef bint is_idle(self) noexcept
    cdef void give_back(self) noexcept


cdef int crossing_open(Crossing crossing, Executor executor, Runtime runtime, int device) except -1
