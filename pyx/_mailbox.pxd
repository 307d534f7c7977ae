"""Point-to-point messages of one communicator, matched as MPI matches them."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from hetccl._letters cimport (
    ANY, MESSAGE_COMPLETE, MESSAGE_FAILED, MESSAGE_IDLE, MESSAGE_MOVING, MESSAGE_POSTED, MESSAGE_TOO_LONG,
    Held, HeldRow, Message, Row,
)
from hetccl._program cimport Link
from hetccl._shm cimport hetccl_header_t

ctypedef struct Probed:
    int source
    int64_t tag
    size_t nbytes


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


cdef class Mailbox:                      # all methods are called under the executor's mutex
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

    # Start a send or a receive. It may be final at once: its peer has failed, or the message set aside is too long.
    cdef void post(self, Message* message) noexcept nogil
    # Move all that can move: HETCCL_MOVED, or HETCCL_AGAIN.
    cdef int poll(self) noexcept nogil
    # Is there a message to receive? source and tag may be ANY.
    cdef bint probe(self, int source, int64_t tag, Probed* probed) noexcept nogil
    # The same, and bind it to `message`, which is zeroed. To receive it, fill in capacity and msg, and post it.
    cdef bint take(self, int source, int64_t tag, Message* message) noexcept nogil
    # Mark the peers that a message waits for: 1, or 2 where any one of those will do.
    cdef void blockers(self, Message* message, uint8_t* mask) noexcept nogil
    # End the traffic with one peer, or with ANY: messages under way become MESSAGE_FAILED with this status.
    cdef void end(self, int peer, int status) noexcept nogil

    cdef void post_send(self, Message* message) noexcept nogil
    cdef int enter(self, int rank, Message* message) noexcept nogil
    cdef void post_unmatched(self, Message* message) noexcept nogil
    cdef bint poll_peer(self, int rank) noexcept nogil
    cdef bint poll_sends(self, int rank) noexcept nogil
    cdef bint poll_posted(self, int rank, Row* row, Link* link, bint sending) noexcept nogil
    cdef bint poll_receives(self, int rank) noexcept nogil
    cdef bint unload(self, int rank) noexcept nogil
    cdef void finish_aside(self, int rank, Message* message, int status) noexcept nogil
    cdef bint begin_head(self, int rank) noexcept nogil
    cdef bint advance_head(self, int rank) noexcept nogil
    cdef Message* match_posted(self, int rank, hetccl_header_t* header) noexcept nogil
    cdef bint hold(self, int rank, hetccl_header_t* header, bint always) noexcept nogil
    cdef bint find(self, int source, int64_t tag, Probed* probed, Held** held_p) noexcept nogil
    cdef bint find_at(self, int rank, int64_t tag, Probed* probed, Held** held_p) noexcept nogil
    cdef Held* find_held(self, int source, int64_t tag, Probed* probed) noexcept nogil
    cdef void bind(self, Message* message, int rank, Held* held) noexcept nogil
    cdef void drop(self, Held* held) noexcept nogil
    cdef void fail(self, int rank, int status, int error) noexcept nogil
    cdef void refuse(self, Message* message, int rank) noexcept nogil
    cdef void finish(self, Message* message, int state, int status) noexcept nogil
    cdef bint fits(self, Message* message, size_t nbytes) noexcept nogil

    # Of messages that go in segments: the ferry does them.
    cdef void depart(self, Message* message) noexcept nogil
    cdef void take_in(self, Message* message, Held* held) noexcept nogil
    cdef bint begin_special(self, int rank, hetccl_header_t* header) noexcept nogil
    cdef bint move_cut(self, int rank) noexcept nogil
    cdef void read_note(self, int rank) noexcept nogil

    cdef void work(self, int rank) noexcept nogil
    cdef void rest(self, int rank) noexcept nogil


# The links stay the caller's, nranks of each direction, and live as long as the mailbox.
cdef Mailbox mailbox_new(int nranks, Link* send_links, Link* recv_links)
cdef int mailbox_open(Mailbox mailbox, int nranks, Link* send_links, Link* recv_links) except -1


# Tags from here on are those of the ferry's messages, and no user's.
cdef inline bint is_special(uint32_t tag) noexcept nogil:
    return tag >> 31
