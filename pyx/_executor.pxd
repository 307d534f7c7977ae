"""The engine's calls: start work, wait for it, say what went wrong."""

from libc.stdint cimport int64_t, uint8_t

from hetccl._engine cimport Work
from hetccl._mailbox cimport Message, Probed
from hetccl._reporter cimport Reporter


ctypedef struct Visit:                   # a thread inside a call of the executor
    Visit* next
    unsigned long thread


cdef class Executor(Reporter):
    cdef Visit* visits
    cdef bint closed                     # nobody may come in; the segment is gone, or goes when all have left
    cdef int generation                  # of the process: forks before the communicator was built
    cdef dict inflight                   # id -> nonblocking request that the engine still works on, or has just done
    cdef int nkept                       # requests in `inflight` after the last look at them
    cdef int64_t spin_ns                 # of a wait: with the core
    cdef int64_t awake_ns                # of a wait: before it sleeps

    # Raise CommClosed unless the engine may be used: it is open, and this process built it.
    cdef int usable(self, int call) except -1
    cdef bint is_own_process(self) noexcept
    cdef bint start(self, Work* work, bint waits) except -1
    cdef int detach(self) except -1
    cdef int await_flow(self) except -1
    cdef bint poll_once(self, Work* work) except -1
    cdef int wait(self, Work* work) except -1
    cdef bint probe(self, int source, int64_t tag, Probed* probed, Message* taken) except -1
    cdef int await_message(self, int source, int64_t tag, Probed* probed, Message* taken) except -1
    cdef int stop(self) except -1
    cdef void enter(self, Visit* visit) noexcept
    cdef void leave(self, Visit* visit) noexcept

    cdef int poll_once_nogil(self, Work* work, bint* done) except -1 nogil
    cdef int wait_nogil(self, Work* work) except -1 nogil
    cdef int rest(self, Work* work, bint* done) except -100 nogil
    cdef void note_idle(self, Work* work, int64_t now) noexcept nogil
    cdef int look_around(self, Work* work, int64_t now, bint waits) except -1 nogil
    cdef int poll_on(self, Work* work, bint* done, int* polls, int* moves) noexcept nogil
    cdef int conclude(self, Work* work) except -1 nogil
    cdef int lost_peer(self, Work* work) noexcept nogil
    cdef void reach(self, uint8_t* mask) noexcept nogil
