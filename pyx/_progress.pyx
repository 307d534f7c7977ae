"""Layer L3: the thread that moves a communicator's data while no call of the user's does.

It exists from the first nonblocking call that was not complete at once. It touches no Python object and never takes
the GIL. It does not spin: the user's computation has the core. It sleeps on this rank's bell, which peers ring only
for those who are armed; whoever leaves work behind arms it, so that handing work over wakes nobody. A call that
waits polls for itself, faster than a second thread could tell it, and disarms the thread meanwhile.

To be woken by the network costs several system calls and two switches of threads for each time. So where there is one
the thread dozes, unarmed, while calls come one after the other, which poll themselves; it takes over from them after
the first doze in which none came.
"""

from libc.stdint cimport int64_t, uint32_t

from hetccl._mutex cimport hetccl_mutex_close, hetccl_mutex_lock, hetccl_mutex_open, hetccl_mutex_unlock
from hetccl._shm cimport (
    HETCCL_AGAIN, HETCCL_DONE, HETCCL_MOVED, hetccl_bell_arm, hetccl_bell_disarm, hetccl_bell_now, hetccl_bell_ring,
    hetccl_bell_sleep,
)

cdef extern from "pthread.h" nogil:
    int pthread_join(pthread_t thread, void** result)

cdef extern from "hetccl/thread.h" nogil:
    int hetccl_thread_start(pthread_t* thread, void* (*main)(void*) noexcept nogil, void* argument)

cdef extern from *:
    """
    #define hetccl_add(word, n) __atomic_add_fetch(word, n, __ATOMIC_SEQ_CST)
    #define hetccl_read(word) __atomic_load_n(word, __ATOMIC_SEQ_CST)
    #define hetccl_exchange(word, n) __atomic_exchange_n(word, n, __ATOMIC_SEQ_CST)
    """
    int hetccl_add(int* word, int n) noexcept nogil
    int hetccl_read(int* word) noexcept nogil
    int hetccl_exchange(int* word, int n) noexcept nogil

cdef enum:
    # The longest sleep with work, and without: how late the thread notices what rings no bell.
    SLEEP_NS = 50000000
    IDLE_NS = 1000000000
    # Fruitless polls before it sleeps: a few microseconds, in which a stream's next piece comes.
    POLLS_BEFORE_SLEEP = 100
    # A doze: at first, and after calls have long come one after the other. How late it takes over.
    FIRST_DOZE_NS = 100000
    LONGEST_DOZE_NS = 1000000


cdef int progress_open(Progress* progress, progress_poll_fn poll, void* context, hetccl_rank_block_t* bell) except -1:
    progress.poll, progress.context, progress.bell = poll, context, bell
    if hetccl_mutex_open(&progress.mutex) != 0:
        raise MemoryError("a mutex for the communicator")
    return 0


cdef int progress_needed(Progress* progress) except -1:
    cdef int error = 0
    hetccl_mutex_lock(&progress.mutex)
    if progress.stopping:
        pass
    elif not progress.running:
        error = hetccl_thread_start(&progress.thread, progress_main, progress)
        progress.running = error == 0
    elif hetccl_read(&progress.drivers) == 0:
        stand_by(progress)
    hetccl_mutex_unlock(&progress.mutex)
    if error != 0:
        raise OSError(error, "the communicator's progress thread cannot be started (limit of threads?)")
    return 0


cdef void progress_enter(Progress* progress) noexcept nogil:
    hetccl_add(&progress.drivers, 1)
    disarm(progress)


cdef void progress_leave(Progress* progress, bint more) noexcept nogil:
    """more: the caller leaves work behind that is not complete."""
    if hetccl_add(&progress.drivers, -1) == 0 and more:
        hetccl_mutex_lock(&progress.mutex)
        if progress.running:
            stand_by(progress)
        hetccl_mutex_unlock(&progress.mutex)


cdef void stand_by(Progress* progress) noexcept nogil:
    """Let the peers' next news wake the thread. Under the mutex."""
    progress.visits += 1
    if progress.dozing:
        return
    arm(progress)
    # What came before has rung nobody. Where there was something to move, there may be more.
    if progress.network != NULL or progress.poll(progress.context) == HETCCL_MOVED:
        hetccl_bell_ring(progress.bell)


cdef bint progress_listen(Progress* progress) noexcept nogil:
    cdef bint armed
    if progress.network == NULL:
        return True
    hetccl_mutex_lock(&progress.mutex)
    armed = listen(progress)
    hetccl_mutex_unlock(&progress.mutex)
    return armed


cdef inline bint listen(Progress* progress) noexcept nogil:
    return progress.network == NULL or progress.listen(progress.network) == HETCCL_DONE


cdef inline void arm(Progress* progress) noexcept nogil:
    if hetccl_exchange(&progress.armed, 1) == 0:
        hetccl_bell_arm(progress.bell)


cdef inline void disarm(Progress* progress) noexcept nogil:
    if hetccl_read(&progress.armed) and hetccl_exchange(&progress.armed, 0):
        hetccl_bell_disarm(progress.bell)


cdef void progress_stop(Progress* progress) noexcept nogil:
    cdef bint running
    hetccl_mutex_lock(&progress.mutex)
    progress.stopping = True
    running = progress.running
    progress.running = False
    hetccl_mutex_unlock(&progress.mutex)
    if running:
        hetccl_bell_arm(progress.bell)
        hetccl_bell_ring(progress.bell)
        hetccl_bell_disarm(progress.bell)
        pthread_join(progress.thread, NULL)


cdef void progress_close(Progress* progress) noexcept nogil:
    hetccl_mutex_close(&progress.mutex)


cdef void* progress_main(void* argument) noexcept nogil:
    cdef Progress* progress = <Progress*>argument
    cdef int status, polls = 0
    cdef uint32_t bell
    # The network is armed, if there is one: each sleep needs that anew.
    cdef bint listening = progress.network == NULL
    hetccl_mutex_lock(&progress.mutex)
    while not progress.stopping:
        doze(progress)
        # Read before the poll: who rings after it ends the sleep.
        bell = hetccl_bell_now(progress.bell)
        status = HETCCL_DONE if hetccl_read(&progress.drivers) > 0 else progress.poll(progress.context)
        polls = polls + 1 if status == HETCCL_AGAIN else 0
        if status == HETCCL_DONE:
            disarm(progress)
        elif polls > POLLS_BEFORE_SLEEP and not (listening and hetccl_read(&progress.armed)):
            arm(progress)  # and poll once more
            listening = listen(progress)
            status = HETCCL_MOVED
        hetccl_mutex_unlock(&progress.mutex)
        if status == HETCCL_DONE or polls > POLLS_BEFORE_SLEEP and status == HETCCL_AGAIN:
            hetccl_bell_sleep(progress.bell, bell, SLEEP_NS if status == HETCCL_AGAIN else IDLE_NS)
            polls = 0
        listening = progress.network == NULL or listening and polls > POLLS_BEFORE_SLEEP
        hetccl_mutex_lock(&progress.mutex)
    disarm(progress)
    hetccl_mutex_unlock(&progress.mutex)
    return NULL


cdef void doze(Progress* progress) noexcept nogil:
    """Sleep on while calls come. Under the mutex, which is given up meanwhile."""
    cdef int64_t nap_ns = FIRST_DOZE_NS
    while progress.network != NULL and progress.visits != progress.seen and not progress.stopping:
        progress.seen = progress.visits
        progress.dozing = True
        disarm(progress)
        hetccl_mutex_unlock(&progress.mutex)
        hetccl_bell_sleep(progress.bell, hetccl_bell_now(progress.bell), nap_ns)
        nap_ns = min(2 * nap_ns, <int64_t>LONGEST_DOZE_NS)
        hetccl_mutex_lock(&progress.mutex)
    progress.dozing = False
