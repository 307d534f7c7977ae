"""Point-to-point messages of one communicator, matched as MPI matches them."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint64_t

from hetccl._program cimport Link
from hetccl._shm cimport hetccl_aside_t, hetccl_header_t, hetccl_msg_t

cdef enum:
    ANY = -1                             # any source, any tag

cdef enum MessageState:
    MESSAGE_IDLE = 0                     # not under way: never posted, or bound by Mailbox.take()
    MESSAGE_POSTED = 1                   # waits for its turn, or for a match
    MESSAGE_MOVING = 2
    MESSAGE_COMPLETE = 3                 # from here on the mailbox does not know it any more
    MESSAGE_TOO_LONG = 4                 # receive: the message has refused_nbytes, and stays for the next receive
    MESSAGE_FAILED = 5                   # status and msg.error say why


ctypedef struct Held:                    # a message that was set aside; the mailbox's
    Held* next
    Held* previous
    hetccl_aside_t aside
    size_t cost_nbytes                   # of memory
    bint whole                           # all of it is out of the link
    int status                           # 0, or the fault that kept it from becoming whole


ctypedef struct HeldRow:
    Held* first
    Held* last


ctypedef struct Message:                 # one send or receive; the caller's, who keeps it until its state is final
    Message* next                        # the mailbox's
    bint sending
    int peer                             # destination; source or ANY; once matched: the sender
    int64_t tag                          # or ANY; once matched: the message's
    size_t capacity                      # receive: bytes of room
    hetccl_msg_t msg                     # the caller fills ptr, layout, skip and flags, for a send also nbytes
    int state                            # enum MessageState
    size_t refused_nbytes
    int status                           # of the transport, negative
    uint64_t order                       # the mailbox's: receives match in the order they were posted
    Held* held                           # the mailbox's, once matched with a message that was set aside; else NULL


ctypedef struct Probed:
    int source
    int64_t tag
    size_t nbytes


ctypedef struct Row:                     # messages in order
    Message* first
    Message* last


ctypedef struct Peer:
    Row sends                            # the first is the next to enter the link
    Row sent                             # in the link's hands, not acknowledged
    Row receives                         # posted for this source, unmatched
    Row unloading                        # receives whose message was set aside
    Message* current                     # the receive that the head of the link goes to
    Held* filling                        # the message set aside that the head of the link goes to
    HeldRow held                         # messages set aside that no receive has asked for, in the order they came
    int status                           # 0, or the fault that ended the traffic with this peer
    int error                            # its errno
    int place                            # in Mailbox.busy, or NOT_BUSY


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

    cdef void post_unmatched(self, Message* message) noexcept nogil
    cdef bint poll_peer(self, int rank) noexcept nogil
    cdef bint poll_sends(self, int rank) noexcept nogil
    cdef bint poll_receives(self, int rank) noexcept nogil
    cdef bint unload(self, int rank) noexcept nogil
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
    cdef void work(self, int rank) noexcept nogil
    cdef void rest(self, int rank) noexcept nogil


# The links stay the caller's, nranks of each direction, and live as long as the mailbox.
cdef Mailbox mailbox_new(int nranks, Link* send_links, Link* recv_links)
