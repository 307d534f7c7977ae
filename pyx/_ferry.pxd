"""Messages that go in segments: those of GPU memory between islands, and large ones from host memory to there."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from hetccl._layout cimport hetccl_layout_t
from hetccl._letters cimport Held, Message, Row
from hetccl._mailbox cimport Mailbox
from hetccl._program cimport Link
from hetccl._shm cimport hetccl_header_t

cdef enum:
    # In a communicator of several islands longer messages are cut, whatever memory they are in: their receiver may have
    # room for a portion only. Of GPU memory all are.
    LONGEST_WHOLE = 1048576


ctypedef struct Cargo:                   # of a message under way that is cut, at one of its ends
    Cargo* next                          # of the ferry's
    Cargo* previous
    Message part                         # its head, or a segment
    bint moving                          # part is under way
    bint heading                         # part is the head
    Message ask                          # at the receiver
    bint asking
    uint64_t[2] words                    # of the head, or of ask
    size_t across                        # bytes that have arrived, as far as this end knows
    bint wanted                          # the receiver has asked for some
    size_t asked                         # the end of what it has asked for
    size_t step                          # no segment reaches beyond a multiple of it


cdef class Ferry(Mailbox):
    cdef Cargo* cargos                   # owned

    # Mark the ranks that messages in GPU memory wait for: 1, or 2 where any one of those will do. True: a stream waits
    # for one of them.
    cdef bint mark_transits(self, uint8_t* mask) noexcept nogil

    cdef Cargo* load(self, Message* message) noexcept nogil
    cdef void unload_cargo(self, Message* message) noexcept nogil
    cdef bint move_row(self, int rank, Row* row) noexcept nogil
    cdef int advance_departure(self, int rank, Message* message) noexcept nogil
    cdef int advance_arrival(self, int rank, Message* message) noexcept nogil
    cdef bint begin_segment(self, int rank, hetccl_header_t* header) noexcept nogil
    cdef void announce(self, int rank, uint32_t number) noexcept nogil
    cdef void send(self, int rank, Message* part, uint32_t tag, uint8_t* ptr, const hetccl_layout_t* layout,
                   size_t skip, size_t nbytes) noexcept nogil


cdef Ferry ferry_new(int nranks, Link* send_links, Link* recv_links)
