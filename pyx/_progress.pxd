"""The thread that moves a communicator's data while no call of the user's does."""

from libc.stdint cimport uint64_t

from hetccl._mutex cimport hetccl_mutex_t
from hetccl._shm cimport hetccl_rank_block_t


cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_t:
        pass


# Lets the bell ring for what comes over the network from now on: HETCCL_DONE, or HETCCL_MOVED: poll first. Under the
# mutex.
ctypedef int (*progress_listen_fn)(void* network) noexcept nogil
# Moves what can be moved, under the mutex: HETCCL_MOVED, HETCCL_AGAIN, or HETCCL_DONE when there is nothing to move.
ctypedef int (*progress_poll_fn)(void* context) noexcept nogil


ctypedef struct Progress:
    hetccl_mutex_t mutex                 # of all that poll() touches
    pthread_t thread
    bint running
    int armed                            # the thread is among the bell's sleepers: it wants to hear of the peers' news
    bint stopping
    # With a network:
    bint dozing                          # the thread looks after the work without being woken
    uint64_t visits, seen                # how often work has been left to it, and when it last looked
    int drivers                          # calls of the user's that poll themselves; the thread leaves it to them
    hetccl_rank_block_t* bell            # this rank's; the peers ring it
    progress_poll_fn poll
    void* context                        # of poll
    progress_listen_fn listen
    void* network                        # of listen; NULL: the peers ring the bell themselves


cdef int progress_open(Progress* progress, progress_poll_fn poll, void* context, hetccl_rank_block_t* bell) except -1
# There is work that the caller will not wait for: start the thread, or let the peers wake it. With the GIL, without the
# mutex.
cdef int progress_needed(Progress* progress) except -1
# Between the two, the caller polls.
cdef void progress_enter(Progress* progress) noexcept nogil
cdef void progress_leave(Progress* progress, bint more) noexcept nogil
# Before a sleep on the bell that is armed, and before the last poll: whether the bell rings for the network too. False:
# poll on. Without the mutex.
cdef bint progress_listen(Progress* progress) noexcept nogil
# End the thread; idempotent. It takes a poll's time at most, and never waits for Python.
cdef void progress_stop(Progress* progress) noexcept nogil
cdef void progress_close(Progress* progress) noexcept nogil
