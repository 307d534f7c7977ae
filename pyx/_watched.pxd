"""A communicator of a vendor's CCL as its calls see it: whether it is usable, waits for it, what ended it."""

from libc.stdint cimport int64_t

from hetccl._ccl cimport Ccl, hetccl_ccl_t
from hetccl._mutex cimport hetccl_mutex_t
from hetccl._runtime cimport Runtime, hetccl_runtime_t

cdef enum:
    # Between two looks at signals and the clock. Bounds the reaction to Ctrl-C.
    LOOK_NS = 50000000
    # The kernel tells of a peer's end a little after the library has noticed that its connection broke.
    PEER_NEWS_NS = 300000000


cdef extern from "hetccl/watch.h" nogil:
    enum:
        HETCCL_WATCH_NOBODY
    ctypedef struct hetccl_peer_t:
        int rank
        int pid
    ctypedef struct hetccl_job_t:
        pass
    int hetccl_device_enter(const hetccl_runtime_t* gpu, int device, void** saved)
    hetccl_job_t* hetccl_job_start(const hetccl_runtime_t* gpu, int device, int (*function)(void*) noexcept nogil,
                                   void* comm)
    int hetccl_job_wait(hetccl_job_t* job, int64_t timeout_ns, int* code)
    void hetccl_job_drop(hetccl_job_t* job)
    ctypedef struct hetccl_watch_t:
        int lost_rank
        int error
        int timed_out
        int64_t timeout_ns
        int npeers
        char* text
        hetccl_watch_t* next
    void hetccl_watch_init(hetccl_watch_t* watch, const hetccl_ccl_t* ccl, const hetccl_runtime_t* gpu, int device,
                           void** handle, int* lost)
    void hetccl_watch_meet(hetccl_watch_t* watch, hetccl_peer_t* peers, int npeers)
    int hetccl_watch_open(hetccl_watch_t* watch)
    void hetccl_watch_close(hetccl_watch_t* watch)
    void hetccl_watch_unlink(hetccl_watch_t** list, hetccl_watch_t* watch)
    void* hetccl_watch_take(hetccl_watch_t* watch)
    void hetccl_watch_settle(hetccl_watch_t* watch)
    int hetccl_watch_abort(hetccl_watch_t* watch, void* comm)
    int hetccl_watch_ask(hetccl_watch_t* watch, int* has_gone)
    int hetccl_watch_ended(hetccl_watch_t* watch)
    int64_t hetccl_now_ns()
    void hetccl_pause(int64_t ns)
    void* hetccl_watch_hold(hetccl_watch_t* watch)
    void hetccl_watch_release(hetccl_watch_t* watch)


cdef class WatchedComm:
    cdef readonly Ccl ccl
    cdef readonly Runtime runtime
    cdef const hetccl_ccl_t* functions   # ccl.table
    cdef const hetccl_runtime_t* gpu     # runtime.table
    cdef void* handle                    # the library's communicator; NULL: freed or aborted
    cdef readonly int device             # index of the runtime; 0 for the host's
    cdef readonly int rank               # of the communicator's ranks
    cdef hetccl_mutex_t mutex            # one call of the library at a time
    cdef unsigned long owner             # the thread that has it; 0: none
    cdef int64_t timeout_ns
    cdef int lost                        # set by the watch: a peer died, or the library reported an error
    cdef hetccl_watch_t watch
    cdef void** place                    # where the library puts what it makes
    cdef bint closed
    cdef bint aborted
    cdef int waits                       # threads that wait in conclude()
    cdef unsigned long waiter            # the thread that came last
    cdef int generation                  # of the process that made it

    # Whether usable() would say yes at once.
    cdef bint is_usable(self) noexcept
    # Raise unless the communicator can be used: CommClosed, PeerError (a peer is gone), the library's own error.
    cdef int usable(self, str call) except -1
    # The outcome of a library's function that did not answer 0: wait, with a time-out, for one that is in progress;
    # raise for any other. The GIL is held on entry, and released while waiting.
    cdef int conclude(self, int code, str call, str function) except -1

    # The library's functions are called by one thread at a time; the others wait. The GIL is held, and released by the
    # wait, which ends by the time-out, and is refused to a thread that has the communicator already.
    cdef int lock(self, str call) except -1
    cdef void unlock(self) noexcept

    # Whether it belongs to the parent of this forked process.
    cdef bint is_inherited(self) noexcept
    cdef int prepare(self, Ccl ccl, Runtime runtime, int device) except -1
    cdef void settle_on(self, Runtime runtime, int device) noexcept
    cdef int watch_over(self) except -1
    cdef void unwatch(self) noexcept
    cdef void* enter(self, str call, void** saved) except? NULL
    cdef int leave(self, void* saved) except -1
    cdef int await_others(self, str call) except -1
    cdef int await_owner(self, str call) except -1
    cdef int await_end(self, str call, str function) except -1
    cdef int poll_on(self, int* has_gone, int64_t limit_ns) except? -1 nogil
    cdef int refuse(self, str call) except -1
    cdef int raise_late(self, str call, str function) except -1
    cdef int raise_ended(self, str call) except -1
    cdef int raise_code(self, int code, str call, str function) except -1


# Longer waits than 9e9 seconds (285 years) do not fit into nanoseconds.
cdef inline int64_t time_ns(double seconds) noexcept nogil:
    return <int64_t>(min(seconds, 9e9) * 1e9)
