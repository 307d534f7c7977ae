"""The engine of one communicator: starts work, waits for it, explains what went wrong."""

from libc.stdint cimport int64_t, uint8_t

from hetccl._mailbox cimport Mailbox, Message, Probed
from hetccl._program cimport Link
from hetccl._progress cimport Progress
from hetccl._row cimport Collective, Row
from hetccl._shm cimport Segment


ctypedef struct Work:                    # what one call is about; lives inside a Request
    int call                             # index into CALLS
    Collective* collective               # NULL: messages
    Message* messages
    int nmessages
    bint started
    int64_t idle_ns                      # since when a wait for it has seen nothing move; 0 while something does
    int64_t looked_ns                    # when faults and signals were last looked at


ctypedef struct Visit:                   # a thread inside a call of the executor
    Visit* next
    unsigned long thread


cdef class Executor:
    cdef readonly Segment segment
    cdef readonly int rank
    cdef readonly int nranks
    cdef Link* links                     # [traffic][send 0 | receive 1][peer]
    cdef Row row
    cdef Mailbox mailbox
    cdef Progress progress               # its mutex guards row, mailbox, links and `broken`
    cdef bint broken                     # nothing is polled any more
    cdef Visit* visits
    cdef dict inflight                   # id -> nonblocking request that the engine still works on, or has just done
    cdef int nkept                       # requests in `inflight` after the last look at them
    cdef int owner_pid
    cdef int64_t timeout_ns
    cdef int64_t spin_ns                 # of a wait: with the core
    cdef int64_t awake_ns                # of a wait: before it sleeps

    # Hand work to the engine and poll once; True if it is complete already.
    cdef bint start(self, Work* work) except -1
    # Let the progress thread see to what start() left.
    cdef int detach(self) except -1
    cdef bint poll_once(self, Work* work) except -1
    cdef int wait(self, Work* work) except -1
    cdef bint probe(self, int source, int64_t tag, Probed* probed, Message* taken) except -1
    cdef int stop(self) except -1
    cdef void enter(self, Visit* visit) noexcept
    cdef void leave(self, Visit* visit) noexcept

    cdef int wait_nogil(self, Work* work) except -1 nogil
    cdef int poll_locked(self) noexcept nogil
    cdef int poll(self, Work* work, bint* done) noexcept nogil
    cdef void break_off(self, int reason, int culprit) noexcept nogil
    cdef int rest(self, Work* work, bint* done) except -100 nogil
    cdef int look_around(self, Work* work, int64_t now) except -1 nogil
    cdef int conclude(self, Work* work) except -1 nogil
    cdef void mark_blockers(self, Work* work, uint8_t* mask) noexcept nogil
    cdef int lost_peer(self, Work* work) noexcept nogil
    cdef int raise_lost(self, Work* work, int peer) except -1 with gil
    cdef int raise_late(self, Work* work) except -1 with gil
    cdef int raise_fault(self, int call, Work* work) except -1 with gil
    cdef int raise_failed(self, Work* work) except -1 with gil
    cdef tuple outstanding(self, Work* work)
    cdef tuple blockers(self, Work* work)
    cdef str describe(self, int peer, Work* work)
