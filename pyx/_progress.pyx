"""Layer L3: the thread that moves a communicator's data while no call of the user's does.

It exists from the first nonblocking call that was not complete at once. It touches no Python object and never takes the
GIL. It does not spin: the user's computation has the core; the peers ring this rank's bell when there is something to do.
A call that waits polls for itself, faster than a second thread could tell it, and the thread sleeps meanwhile.
"""

from libc.stdint cimport uint32_t

from hetccl._shm cimport (
    HETCCL_AGAIN, HETCCL_DONE, hetccl_bell_arm, hetccl_bell_disarm, hetccl_bell_ring, hetccl_bell_sleep,
)

cdef extern from "pthread.h" nogil:
    int pthread_create(pthread_t* thread, const void* attributes, void* (*main)(void*) noexcept nogil, void* context)
    int pthread_join(pthread_t thread, void** result)
    int pthread_cond_init(pthread_cond_t* condition, const void* attributes)
    int pthread_cond_destroy(pthread_cond_t* condition)
    int pthread_cond_signal(pthread_cond_t* condition)

cdef extern from *:
    """
    #include <signal.h>
    /* Sleeps on the condition; the mutex's count of waiters is not concerned. */
    static inline void progress_sleep(pthread_cond_t *condition, hetccl_mutex_t *m) {
        pthread_cond_wait(condition, &m->mutex);
    }
    /* Signals are for Python's threads: one taken here would not interrupt the sleep of the thread that waits. */
    static inline int progress_create(pthread_t *thread, void *(*main)(void *), void *context) {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        int error = pthread_create(thread, NULL, main, context);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        return error;
    }
    #define hetccl_add(word, n) __atomic_add_fetch(word, n, __ATOMIC_SEQ_CST)
    #define hetccl_read(word) __atomic_load_n(word, __ATOMIC_SEQ_CST)
    """
    void progress_sleep(pthread_cond_t* condition, hetccl_mutex_t* m) nogil
    int progress_create(pthread_t* thread, void* (*main)(void*) noexcept nogil, void* context) nogil
    int hetccl_add(int* word, int n) noexcept nogil
    int hetccl_read(int* word) noexcept nogil

cdef enum:
    # The longest sleep on the bell: how late the thread notices what rings no bell, such as a peer's end.
    SLEEP_NS = 50000000
    # Fruitless polls before it sleeps: a few microseconds, in which a stream's next piece comes.
    POLLS_BEFORE_SLEEP = 100


cdef int progress_open(Progress* progress, progress_poll_fn poll, void* context, hetccl_rank_block_t* bell) except -1:
    progress.poll, progress.context, progress.bell = poll, context, bell
    if hetccl_mutex_open(&progress.mutex) != 0 or pthread_cond_init(&progress.wake, NULL) != 0:
        raise MemoryError("a mutex and a condition for the communicator")
    return 0


cdef int progress_needed(Progress* progress) except -1:
    cdef int error = 0
    hetccl_mutex_lock(&progress.mutex)
    if progress.stopping:
        pass
    elif not progress.running:
        error = progress_create(&progress.thread, progress_main, progress)
        progress.running = error == 0
    elif progress.asleep:
        pthread_cond_signal(&progress.wake)
    hetccl_mutex_unlock(&progress.mutex)
    if error != 0:
        raise OSError(error, "the communicator's progress thread cannot be started (limit of threads?)")
    return 0


cdef void progress_enter(Progress* progress) noexcept nogil:
    hetccl_add(&progress.drivers, 1)


cdef void progress_leave(Progress* progress, bint more) noexcept nogil:
    """more: the caller leaves work behind that is not complete."""
    if hetccl_add(&progress.drivers, -1) == 0 and more:
        hetccl_mutex_lock(&progress.mutex)
        if progress.asleep:
            pthread_cond_signal(&progress.wake)
        hetccl_mutex_unlock(&progress.mutex)


cdef void progress_stop(Progress* progress) noexcept nogil:
    cdef bint running
    hetccl_mutex_lock(&progress.mutex)
    progress.stopping = True
    running = progress.running
    progress.running = False
    pthread_cond_signal(&progress.wake)
    hetccl_mutex_unlock(&progress.mutex)
    if running:
        hetccl_bell_ring(progress.bell)
        pthread_join(progress.thread, NULL)


cdef void progress_close(Progress* progress) noexcept nogil:
    pthread_cond_destroy(&progress.wake)
    hetccl_mutex_close(&progress.mutex)


cdef void* progress_main(void* argument) noexcept nogil:
    cdef Progress* progress = <Progress*>argument
    cdef int status, polls = 0
    hetccl_mutex_lock(&progress.mutex)
    while not progress.stopping:
        status = HETCCL_DONE if hetccl_read(&progress.drivers) > 0 else progress.poll(progress.context)
        if status == HETCCL_DONE:
            progress.asleep = True
            progress_sleep(&progress.wake, &progress.mutex)
            progress.asleep = False
            polls = 0
            continue
        polls = polls + 1 if status == HETCCL_AGAIN else 0
        hetccl_mutex_unlock(&progress.mutex)
        if polls > POLLS_BEFORE_SLEEP:
            nap(progress)
        hetccl_mutex_lock(&progress.mutex)
    hetccl_mutex_unlock(&progress.mutex)
    return NULL


cdef void nap(Progress* progress) noexcept nogil:
    """Sleep until a peer rings, unless something has come since the last poll."""
    cdef uint32_t bell = hetccl_bell_arm(progress.bell)
    cdef int status
    hetccl_mutex_lock(&progress.mutex)
    status = HETCCL_DONE if progress.stopping else progress.poll(progress.context)
    hetccl_mutex_unlock(&progress.mutex)
    if status == HETCCL_AGAIN:
        hetccl_bell_sleep(progress.bell, bell, SLEEP_NS)
    hetccl_bell_disarm(progress.bell)
