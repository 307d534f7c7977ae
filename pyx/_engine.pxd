"""What moves a communicator's data."""

from libc.stdint cimport int64_t, uint8_t, uint64_t

from hetccl._board cimport Board
from hetccl._ferry cimport Ferry
from hetccl._mailbox cimport Message, Probed
from hetccl._passage cimport hetccl_ring_t
from hetccl._program cimport Link
from hetccl._progress cimport Progress
from hetccl._row cimport Collective, Row
from hetccl._shm cimport hetccl_rank_block_t
from hetccl._wire cimport Wire


ctypedef struct Work:                    # what one call is about; lives inside a Request
    int call                             # index into CALLS
    Collective* collective               # NULL: messages
    Message* messages
    int nmessages
    bint compared_only                   # a wait for it ends when the ranks' calls have been compared
    bint matched_only                    # or when the message that is `awaited` has been matched
    Message* awaited                     # the one of the messages that a wait is for; NULL: all
    Probed* probed                       # not NULL: the work is to find a message like messages[0], which is not posted
    int64_t idle_ns                      # since when a wait for it has seen nothing move; 0 while something does
    uint64_t moves                       # the engine's, at idle_ns
    int64_t tried_ns                     # the last Test
    int64_t looked_ns                    # when faults and signals were last looked at


cdef class Engine:
    cdef readonly Board board
    cdef hetccl_rank_block_t* mine       # this rank's on the board
    cdef Wire wire                       # to the ranks of other hosts, or None
    cdef object network                  # hetccl.net's owner of the wire's connections, or None
    cdef readonly int rank
    cdef readonly int nranks
    cdef Link* links                     # [traffic][send 0 | receive 1][peer]
    cdef Row row
    cdef Ferry mailbox
    cdef Progress progress               # its mutex guards row, mailbox, links and `broken`
    cdef bint broken                     # nothing is polled any more
    # Of collectives on GPU buffers, whose streams wait for the engine, and behind it those of messages; or NULL.
    cdef hetccl_ring_t* ring
    cdef uint8_t* mask                   # nranks, of watch_over()
    cdef int64_t patience_ns             # how long nothing may move while a stream waits
    cdef int64_t watched_ns              # when the thread last looked at the ranks
    cdef int64_t stuck_ns                # since when nothing has moved, and what `moves` was
    cdef uint64_t stuck_moves
    cdef uint64_t moves                  # polls that moved something, whoever polled
    cdef int owner_pid

    cdef void open_link(self, int traffic, bint receive, int peer) noexcept
    cdef Link* link(self, int traffic, bint receive) noexcept nogil
    cdef void submit(self, Work* work) noexcept nogil
    # Poll once, and say whether the work is final.
    cdef int poll(self, Work* work, bint* done) noexcept nogil
    # The same, by a call that will not wait.
    cdef int poll_in_passing(self, Work* work, bint* done) noexcept nogil
    cdef bint has_let_go(self, Work* work) noexcept nogil
    cdef int poll_locked(self) noexcept nogil
    cdef int poll_parts(self) noexcept nogil
    cdef bint has_ended(self, Work* work) noexcept nogil
    cdef int poll_in_thread(self) noexcept nogil
    cdef bint has_work(self) noexcept nogil
    # For streams that wait: let them go when the communicator breaks, and break it when a rank is gone. With the mutex
    # and without the GIL, as the thread has it.
    cdef void watch_over(self) noexcept nogil
    cdef int hopeless(self, int64_t now, int* culprit) noexcept nogil
    cdef void serve_message(self, hetccl_ring_t* ring) noexcept nogil
    cdef void serve(self, hetccl_ring_t* ring, int64_t patience_ns) noexcept nogil
    # Why the traffic with a peer ended, for the fault word; status: a transport's.
    cdef int reason_of(self, int status, int peer) noexcept nogil
    # Break the communicator for all ranks; break_off() under the mutex.
    cdef void give_up(self, int reason, int culprit) noexcept nogil
    cdef void break_off(self, int reason, int culprit) noexcept nogil
    # Mark the peers that the work waits for: 1, or 2 where any one of those will do.
    cdef void mark_blockers(self, Work* work, uint8_t* mask) noexcept nogil


cdef bint is_final(Work* work) noexcept nogil
# Whether a part of it has failed, and which message.
cdef bint has_failed(Work* work) noexcept nogil
cdef Message* failed_message(Work* work) noexcept nogil
