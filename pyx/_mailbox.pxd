"""Point-to-point messages of one communicator, matched as MPI matches them."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from hetccl._letters cimport (
    ANY, MESSAGE_COMPLETE, MESSAGE_FAILED, MESSAGE_IDLE, MESSAGE_MOVING, MESSAGE_POSTED, MESSAGE_TOO_LONG,
    Held, Message, Row,
)
from hetccl._outbox cimport Outbox, Peer
from hetccl._program cimport Link
from hetccl._shm cimport hetccl_header_t

ctypedef struct Probed:
    int source
    int64_t tag
    size_t nbytes


cdef class Mailbox(Outbox):
    # Start a send or a receive. It may be final at once: its peer has failed, or the message set aside is too long.
    cdef void post(self, Message* message) noexcept nogil
    # Move all that can move: HETCCL_MOVED, or HETCCL_AGAIN.
    cdef int poll(self) noexcept nogil
    # Is there a message to receive? source and tag may be ANY.
    cdef bint probe(self, int source, int64_t tag, Probed* probed) noexcept nogil
    # The same, and bind it to `message`, which is zeroed. To receive it, fill in capacity and msg, and post it.
    cdef bint take(self, int source, int64_t tag, Message* message) noexcept nogil

    cdef void post_unmatched(self, Message* message) noexcept nogil
    cdef bint poll_peer(self, int rank) noexcept nogil
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
    cdef bint fits(self, Message* message, size_t nbytes) noexcept nogil


# The links stay the caller's, nranks of each direction, and live as long as the mailbox.
cdef Mailbox mailbox_new(int nranks, Link* send_links, Link* recv_links)


# Tags from here on are those of the ferry's messages, and no user's.
cdef inline bint is_special(uint32_t tag) noexcept nogil:
    return tag >> 31
