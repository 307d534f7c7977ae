"""One point-to-point call: a send, a receive, or both at once."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t

from hetccl._program cimport Failure, Link
from hetccl._shm cimport hetccl_msg_t

cdef enum:
    ANY = -1                             # any source, any tag

cdef enum:
    REFUSED_TAG = 1
    REFUSED_LENGTH = 2


ctypedef struct Exchange:
    bint sending
    bint receiving
    bint matched                         # the message to receive has been chosen
    Link* send_links                     # per peer
    Link* recv_links                     # per peer
    int nranks
    int dest
    int source                           # or ANY; the sender's rank once matched
    int64_t tag                          # or ANY; the message's tag once matched
    size_t capacity                      # bytes of the receive buffer
    hetccl_msg_t outgoing
    hetccl_msg_t incoming
    int refusal                          # 0, or why the message at the head of the link was left there
    uint32_t refused_tag
    size_t refused_nbytes
    Failure failure                      # set when a poll answers a negative number


cdef int exchange_poll(void* exchange) noexcept nogil
cdef void exchange_blockers(void* exchange, uint8_t* mask) noexcept nogil
