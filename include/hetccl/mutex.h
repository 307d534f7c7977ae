/* The executor's mutex and its progress thread's bed (layer L0). Whoever polls in a loop takes and gives the mutex many
 * times a microsecond; `waiting` makes it let others in, which pthread does not promise. */
#ifndef HETCCL_MUTEX_H
#define HETCCL_MUTEX_H

#include <pthread.h>
#include <sched.h>
#include <time.h>

typedef struct hetccl_mutex {
    pthread_mutex_t mutex;
    int waiting; /* threads that found it taken */
} hetccl_mutex_t;

static inline int hetccl_mutex_open(hetccl_mutex_t *m) {
    m->waiting = 0;
    return pthread_mutex_init(&m->mutex, NULL);
}

static inline void hetccl_mutex_close(hetccl_mutex_t *m) { pthread_mutex_destroy(&m->mutex); }

static inline void hetccl_mutex_lock(hetccl_mutex_t *m) {
    if (pthread_mutex_trylock(&m->mutex) == 0) return;
    __atomic_fetch_add(&m->waiting, 1, __ATOMIC_RELAXED);
    pthread_mutex_lock(&m->mutex);
    __atomic_fetch_sub(&m->waiting, 1, __ATOMIC_RELAXED);
}

/* 0: taken within the time. In real time, which may jump: for short waits, in a loop. */
static inline int hetccl_mutex_lock_within(hetccl_mutex_t *m, long ns) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += ns % 1000000000;
    until.tv_sec += ns / 1000000000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    __atomic_fetch_add(&m->waiting, 1, __ATOMIC_RELAXED);
    int error = pthread_mutex_timedlock(&m->mutex, &until);
    __atomic_fetch_sub(&m->waiting, 1, __ATOMIC_RELAXED);
    return error;
}

/* 0: taken. */
static inline int hetccl_mutex_try(hetccl_mutex_t *m) { return pthread_mutex_trylock(&m->mutex); }

static inline void hetccl_mutex_unlock(hetccl_mutex_t *m) {
    pthread_mutex_unlock(&m->mutex);
    if (__atomic_load_n(&m->waiting, __ATOMIC_RELAXED)) sched_yield();
}

/* For a holder that polls on: let in whoever waits. */
static inline void hetccl_mutex_give_way(hetccl_mutex_t *m) {
    if (__atomic_load_n(&m->waiting, __ATOMIC_RELAXED) == 0) return;
    hetccl_mutex_unlock(m);
    hetccl_mutex_lock(m);
}

#endif
