/* How a native thread of ours is started (layer L0). */
#ifndef HETCCL_THREAD_H
#define HETCCL_THREAD_H

#include <pthread.h>
#include <signal.h>

/* Signals are for Python's threads: one taken here would not interrupt the sleep of the thread that waits. */
static inline int hetccl_thread_start(pthread_t *thread, void *(*main)(void *), void *argument) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, NULL, main, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

#endif
