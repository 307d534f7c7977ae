/* A vendor CCL's function that makes or ends a communicator, run on a thread of its own (layer L2): it may hang, as
 * ncclCommAbort has done, and nothing can interrupt it. Whoever waits for it can stop waiting; the job is freed by who
 * leaves last. */
#ifndef HETCCL_CCL_JOB_H
#define HETCCL_CCL_JOB_H

#include <pthread.h>
#include <stdlib.h>

#include "hetccl/ccl.h"
#include "hetccl/process.h"
#include "hetccl/thread.h"

typedef struct hetccl_job {
    const hetccl_runtime_t *gpu;
    int device;
    int (*function)(void *comm);
    void *comm;
    pthread_mutex_t mutex;
    pthread_cond_t ended;
    int has_ended, code;
    int holders; /* the thread, and who waits */
} hetccl_job_t;

static inline void hetccl_pause(int64_t ns) { nanosleep(&(struct timespec){0, ns}, NULL); }

/* As the table's own, for callers without the GIL. */
static inline int hetccl_device_enter(const hetccl_runtime_t *gpu, int device, void **saved) {
    return gpu->enter(device, saved);
}

static inline void hetccl_job_drop(hetccl_job_t *job) {
    pthread_mutex_lock(&job->mutex);
    int holders = --job->holders;
    pthread_mutex_unlock(&job->mutex);
    if (holders) return;
    pthread_cond_destroy(&job->ended);
    pthread_mutex_destroy(&job->mutex);
    free(job);
}

static void *hetccl_job_main(void *argument) {
    hetccl_job_t *job = argument;
    void *saved = NULL;
    int entered = job->gpu->enter(job->device, &saved);
    int code = job->function(job->comm);
    if (entered == 0) job->gpu->leave(saved);
    pthread_mutex_lock(&job->mutex);
    job->has_ended = 1;
    job->code = code;
    pthread_cond_broadcast(&job->ended);
    pthread_mutex_unlock(&job->mutex);
    hetccl_job_drop(job);
    return NULL;
}

/* NULL: no memory, or no thread. */
static inline hetccl_job_t *hetccl_job_start(const hetccl_runtime_t *gpu, int device, int (*function)(void *),
                                             void *comm) {
    hetccl_job_t *job = calloc(1, sizeof *job);
    pthread_t thread;
    if (!job) return NULL;
    *job = (hetccl_job_t){.gpu = gpu, .device = device, .function = function, .comm = comm, .holders = 2};
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&job->ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&job->mutex, NULL);
    if (hetccl_thread_start(&thread, hetccl_job_main, job) != 0) {
        job->holders = 1;
        hetccl_job_drop(job);
        return NULL;
    }
    pthread_detach(thread);
    return job;
}

/* 1 if it has ended within the time; code: what the function answered. */
static inline int hetccl_job_wait(hetccl_job_t *job, int64_t timeout_ns, int *code) {
    int64_t until_ns = hetccl_now_ns() + timeout_ns;
    struct timespec until = {until_ns / 1000000000, until_ns % 1000000000};
    pthread_mutex_lock(&job->mutex);
    while (!job->has_ended && pthread_cond_timedwait(&job->ended, &job->mutex, &until) == 0);
    int has_ended = job->has_ended;
    *code = job->code;
    pthread_mutex_unlock(&job->mutex);
    return has_ended;
}

#endif
