"""What is under way between this rank and each other one, of a communicator's messages; its sends, and its end."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from hetccl._letters cimport Held, HeldRow, Message, Row
from hetccl._program cimport Link
from hetccl._shm cimport hetccl_header_t


ctypedef struct Peer:
    Row sends                            # the first is the next to enter the link
    Row sent                             # in the link's hands, not acknowledged
    Row receives                         # posted for this source, unmatched
    Row landing                          # receives in the link's hands: the peer writes to their memory
    Row unloading                        # receives whose message was set aside
    Message* current                     # the receive that the head of the link goes to
    Held* filling                        # the message set aside that the head of the link goes to
    HeldRow held                         # messages set aside that no receive has asked for, in the order they came
    int status                           # 0, or the fault that ended the traffic with this peer
    int error                            # its errno
    int place                            # in Mailbox.busy, or NOT_BUSY
    # The ferry's:
    Row departing                        # sends that are cut, as many as are under way
    Row arriving                         # receives that have been matched with such
    uint32_t ndeparted                   # messages sent that were cut
    Message note                         # the one that comes now; its words
    uint64_t[2] words


cdef class Outbox:                       # all methods are called under the executor's mutex
    cdef int nranks
    cdef Link* send_links                # per peer; the executor's
    cdef Link* recv_links
    cdef Peer* peers
    cdef int* busy                       # peers that have something to do
    cdef int nbusy
    cdef Row anywhere                    # receives posted for ANY source, unmatched
    cdef HeldRow bound                   # messages set aside that a receive or take() has asked for
    cdef int status                      # 0, or with what all traffic ended
    cdef int turn                        # where the search for ANY source begins
    cdef uint64_t order
    cdef size_t limit_nbytes             # for held_nbytes
    cdef readonly size_t held_nbytes     # memory that messages set aside take
    cdef readonly int nlimited           # links that waited at the last poll because of the limit
    cdef readonly int npending           # messages under way
    cdef readonly int ntransits          # those of them in GPU memory
    cdef int misfit                      # who sent what does not have the length that a stream waits for, or NOBODY

    # Mark the peers that a message waits for: 1, or 2 where any one of those will do.
    cdef void blockers(self, Message* message, uint8_t* mask) noexcept nogil
    # End the traffic with one peer, or with ANY: messages under way become MESSAGE_FAILED with this status.
    cdef void end(self, int peer, int status) noexcept nogil

    cdef void post_send(self, Message* message) noexcept nogil
    cdef int enter(self, int rank, Message* message) noexcept nogil
    cdef bint poll_sends(self, int rank) noexcept nogil
    cdef bint poll_posted(self, int rank, Row* row, Link* link, bint sending) noexcept nogil
    cdef void drop(self, Held* held) noexcept nogil
    cdef void fail(self, int rank, int status, int error) noexcept nogil
    cdef void refuse(self, Message* message, int rank) noexcept nogil
    cdef void finish(self, Message* message, int state, int status) noexcept nogil
    cdef void work(self, int rank) noexcept nogil
    cdef void rest(self, int rank) noexcept nogil

    # Of messages that go in segments: the ferry does them.
    cdef void depart(self, Message* message) noexcept nogil
    cdef void take_in(self, Message* message, Held* held) noexcept nogil
    cdef bint begin_special(self, int rank, hetccl_header_t* header) noexcept nogil
    cdef bint move_cut(self, int rank) noexcept nogil
    cdef void read_note(self, int rank) noexcept nogil


cdef int outbox_open(Outbox outbox, int nranks, Link* send_links, Link* recv_links) except -1
