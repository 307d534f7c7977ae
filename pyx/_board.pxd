"""What the ranks of a communicator know of each other."""

from libc.stdint cimport uint8_t, uint64_t

from hetccl._shm cimport Segment, hetccl_rank_block_t


cdef class Board:
    cdef object __weakref__
    cdef readonly Segment segment        # of the ranks of this host
    cdef readonly int rank
    cdef readonly int nranks
    cdef int* places                     # per rank: in the segment, or FAR
    cdef hetccl_rank_block_t* far_blocks  # nranks: what is known of ranks on other hosts
    cdef hetccl_rank_block_t* mine
    cdef uint64_t* fault_word            # HETCCL_FAULT; the segment's, or last_fault once that is closed
    cdef uint64_t last_fault
    cdef int wake_fd                     # eventfd of those who tell other hosts; -1 without
    cdef object ask                      # callable of note_far(), or None

    cdef hetccl_rank_block_t* block(self, int peer) noexcept nogil
    cdef bint is_far(self, int peer) noexcept nogil
    cdef bint is_closed(self) noexcept nogil
    # Tell all ranks why the communicator is broken; the first reason stands.
    cdef void raise_fault(self, int reason, int culprit) noexcept nogil
    # Whether the peer will do nothing more here: HETCCL_REASON_DEAD, HETCCL_REASON_FREED, or 0.
    cdef int gone(self, int peer) noexcept nogil


cdef enum:
    FAR = -1
