/* oneCCL's calls on host buffers, behind the table of ccl.h (layer L1). Included by _oneccl.pyx alone: it holds what is
 * there once per process.
 *
 * They return only when all ranks have come, nothing ends one that waits, and two threads inside the library crash it
 * (seen with 2022.2). So one thread per process, started by the first call, makes them all: the table's functions post
 * a job to it and answer in_progress, and async_error waits for its end, a little at a time. A caller that gives up
 * leaves the job to the thread, with its buffers: they must outlive it. Jobs of all communicators run in the order of
 * posting.
 *
 * No function here needs or takes the GIL. The mutex is held for a few instructions, never while the library runs. */
#ifndef HETCCL_ONECCL_THREAD_H
#define HETCCL_ONECCL_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "hetccl/oneccl.h"

/* Codes of ours, beside the library's. */
enum { HETCCL_ONECCL_STUCK = 1000, HETCCL_ONECCL_FORKED = 1001, HETCCL_ONECCL_TERMINATED = 1002 };

enum { HETCCL_ONECCL_MESSAGE_CHARS = 512 };

enum { HETCCL_ONECCL_UNIQUE_ID, HETCCL_ONECCL_INIT }; /* of hetccl_ccl_t's raw */

/* How long one question for the outcome waits, and how long a new id, which needs no other rank. */
#define HETCCL_ONECCL_POLL_NS (10 * INT64_C(1000000))
#define HETCCL_ONECCL_ID_NS (5 * INT64_C(1000000000))

typedef enum hetccl_oneccl_job {
    HETCCL_ONECCL_JOB_UNIQUE_ID,
    HETCCL_ONECCL_JOB_INIT,
    HETCCL_ONECCL_JOB_FINALIZE,
    HETCCL_ONECCL_JOB_DESTROY,
    HETCCL_ONECCL_JOB_ALL_REDUCE,
    HETCCL_ONECCL_JOB_REDUCE,
    HETCCL_ONECCL_JOB_REDUCE_SCATTER,
    HETCCL_ONECCL_JOB_BROADCAST,
    HETCCL_ONECCL_JOB_ALL_GATHER,
    HETCCL_ONECCL_JOB_ALL_TO_ALL,
    HETCCL_ONECCL_JOB_SCATTER
} hetccl_oneccl_job_t;

typedef struct hetccl_oneccl_comm hetccl_oneccl_comm_t;

/* What the table calls a communicator. Owned by whoever called init until destroy or abort; then, if a job of it still
 * runs, by the thread, which frees it. */
struct hetccl_oneccl_comm {
    hetccl_oneccl_comm_t *next; /* in the queue */
    void *handle;               /* the library's communicator; NULL before init is done */
    hetccl_oneccl_job_t job;
    const void *send;
    void *recv;
    size_t count;
    int dtype, op, root;
    int nranks, rank;
    int code;    /* of the last job; in progress while it is queued or runs */
    int ownerless;
    hetccl_oneccl_id_t id;
    char message[HETCCL_ONECCL_MESSAGE_CHARS]; /* of the last job that failed */
};

static hetccl_ccl_t hetccl_oneccl_library; /* its slots: the library's own functions, as they are */

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t posted, done;
    pid_t pid;                           /* the process that has the thread; 0: none yet */
    pthread_t thread;
    hetccl_oneccl_comm_t *first, **last; /* queue */
    hetccl_oneccl_comm_t *running;
    int stuck;       /* the job that runs was given up, or will never end */
    uint64_t ndone; /* jobs */
} hetccl_oneccl = {.mutex = PTHREAD_MUTEX_INITIALIZER, .posted = PTHREAD_COND_INITIALIZER};

static inline int hetccl_oneccl_run(hetccl_oneccl_comm_t *c) {
    const hetccl_ccl_t *library = &hetccl_oneccl_library;
    switch (c->job) {
        case HETCCL_ONECCL_JOB_UNIQUE_ID:
            return ((hetccl_oneccl_unique_id_fn *)library->raw[HETCCL_ONECCL_UNIQUE_ID])(&c->id);
        case HETCCL_ONECCL_JOB_INIT:
            return ((hetccl_oneccl_init_fn *)library->raw[HETCCL_ONECCL_INIT])(&c->handle, (size_t)c->nranks, c->id,
                                                                              c->rank);
        case HETCCL_ONECCL_JOB_FINALIZE: return library->finalize(c->handle);
        case HETCCL_ONECCL_JOB_DESTROY: return library->destroy(c->handle);
        case HETCCL_ONECCL_JOB_ALL_REDUCE:
            return library->all_reduce(c->send, c->recv, c->count, c->dtype, c->op, c->handle, NULL);
        case HETCCL_ONECCL_JOB_REDUCE:
            return library->reduce(c->send, c->recv, c->count, c->dtype, c->op, c->root, c->handle, NULL);
        case HETCCL_ONECCL_JOB_REDUCE_SCATTER:
            return library->reduce_scatter(c->send, c->recv, c->count, c->dtype, c->op, c->handle, NULL);
        case HETCCL_ONECCL_JOB_BROADCAST:
            return library->broadcast(c->send, c->recv, c->count, c->dtype, c->root, c->handle, NULL);
        case HETCCL_ONECCL_JOB_ALL_GATHER:
            return library->all_gather(c->send, c->recv, c->count, c->dtype, c->handle, NULL);
        case HETCCL_ONECCL_JOB_ALL_TO_ALL:
            return library->all_to_all(c->send, c->recv, c->count, c->dtype, c->handle, NULL);
        case HETCCL_ONECCL_JOB_SCATTER:
            return library->scatter(c->send, c->recv, c->count, c->dtype, c->root, c->handle, NULL);
    }
    return HETCCL_ONECCL_INVALID_USAGE;
}

static inline void *hetccl_oneccl_main(void *unused) {
    (void)unused;
    pthread_mutex_lock(&hetccl_oneccl.mutex);
    for (;;) {
        while (hetccl_oneccl.first == NULL) pthread_cond_wait(&hetccl_oneccl.posted, &hetccl_oneccl.mutex);
        hetccl_oneccl_comm_t *comm = hetccl_oneccl.running = hetccl_oneccl.first;
        hetccl_oneccl.first = comm->next;
        if (hetccl_oneccl.first == NULL) hetccl_oneccl.last = &hetccl_oneccl.first;
        pthread_mutex_unlock(&hetccl_oneccl.mutex);
        int code = hetccl_oneccl_run(comm);
        const char *text = code == 0 ? NULL : hetccl_oneccl_library.last_error(comm->handle);
        strncpy(comm->message, text ? text : "", sizeof comm->message - 1);
        pthread_mutex_lock(&hetccl_oneccl.mutex);
        hetccl_oneccl.running = NULL;
        hetccl_oneccl.ndone++;
        comm->code = code;
        if (comm->ownerless) {
            hetccl_oneccl.stuck = 0;
            free(comm);
        }
        pthread_cond_broadcast(&hetccl_oneccl.done);
    }
    return NULL;
}

typedef void hetccl_oneccl_end_fn(void);
/* std::set_terminate, and what it answered; NULL: not found. */
static hetccl_oneccl_end_fn *(*hetccl_oneccl_set_terminate)(hetccl_oneccl_end_fn *);
static hetccl_oneccl_end_fn *hetccl_oneccl_terminate_before;

/* oneCCL throws out of destructors when a peer has died, which C++ ends with the process. On our thread it ends the job
 * instead: the thread stays here for good, with whatever the library has locked. */
static inline void hetccl_oneccl_terminate(void) {
    if (hetccl_oneccl.pid == getpid() && pthread_equal(pthread_self(), hetccl_oneccl.thread)) {
        pthread_mutex_lock(&hetccl_oneccl.mutex);
        hetccl_oneccl.running->code = HETCCL_ONECCL_TERMINATED;
        hetccl_oneccl.running = NULL;
        hetccl_oneccl.stuck = 1;
        pthread_cond_broadcast(&hetccl_oneccl.done);
        pthread_mutex_unlock(&hetccl_oneccl.mutex);
        for (;;) pause();
    }
    if (hetccl_oneccl_terminate_before) hetccl_oneccl_terminate_before();
    abort();
}

/* With the mutex held. The thread takes no signals: Python's handlers belong to the main one. */
static inline int hetccl_oneccl_start(void) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&hetccl_oneccl.done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    hetccl_oneccl.last = &hetccl_oneccl.first;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&hetccl_oneccl.thread, NULL, hetccl_oneccl_main, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) return HETCCL_ONECCL_NO_MEMORY;
    pthread_detach(hetccl_oneccl.thread);
    hetccl_oneccl.pid = getpid();
    if (hetccl_oneccl_set_terminate)
        hetccl_oneccl_terminate_before = hetccl_oneccl_set_terminate(hetccl_oneccl_terminate);
    return 0;
}

static inline int hetccl_oneccl_post(hetccl_oneccl_comm_t *comm, hetccl_oneccl_job_t job) {
    int code = 0;
    pthread_mutex_lock(&hetccl_oneccl.mutex);
    if (hetccl_oneccl.pid == 0) code = hetccl_oneccl_start();
    if (code == 0 && hetccl_oneccl.pid != getpid()) code = HETCCL_ONECCL_FORKED;
    if (code == 0 && hetccl_oneccl.stuck) code = HETCCL_ONECCL_STUCK;
    if (code == 0 && comm->code == HETCCL_ONECCL_IN_PROGRESS) code = HETCCL_ONECCL_INVALID_USAGE;
    if (code == 0) {
        code = comm->code = HETCCL_ONECCL_IN_PROGRESS;
        comm->job = job;
        comm->next = NULL;
        *hetccl_oneccl.last = comm;
        hetccl_oneccl.last = &comm->next;
        pthread_cond_signal(&hetccl_oneccl.posted);
    }
    pthread_mutex_unlock(&hetccl_oneccl.mutex);
    return code;
}

/* With the mutex held: wait for the end of comm's job, at most so long. Its code, or in progress. */
static inline int hetccl_oneccl_wait(hetccl_oneccl_comm_t *comm, int64_t limit_ns) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += limit_ns % 1000000000;
    until.tv_sec += limit_ns / 1000000000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (comm->code == HETCCL_ONECCL_IN_PROGRESS)
        if (pthread_cond_timedwait(&hetccl_oneccl.done, &hetccl_oneccl.mutex, &until) != 0) break;
    return comm->code;
}

/* With the mutex held: comm's owner leaves it. What waits in the queue does not run any more. */
static inline void hetccl_oneccl_leave(hetccl_oneccl_comm_t *comm) {
    if (hetccl_oneccl.running == comm) {
        comm->ownerless = hetccl_oneccl.stuck = 1;
        return;
    }
    hetccl_oneccl_comm_t **place = &hetccl_oneccl.first;
    while (*place != NULL && *place != comm) place = &(*place)->next;
    if (*place == comm) {
        *place = comm->next;
        if (comm->next == NULL) hetccl_oneccl.last = place;
    }
    free(comm);
}

static inline int hetccl_oneccl_async_error(void *comm_, int *code) {
    pthread_mutex_lock(&hetccl_oneccl.mutex);
    *code = hetccl_oneccl_wait(comm_, HETCCL_ONECCL_POLL_NS);
    pthread_mutex_unlock(&hetccl_oneccl.mutex);
    return 0;
}

/* Give it up. The library's communicator stays until the process ends: destroying it needs the other ranks. */
static inline int hetccl_oneccl_abort(void *comm_) {
    pthread_mutex_lock(&hetccl_oneccl.mutex);
    hetccl_oneccl_leave(comm_);
    pthread_mutex_unlock(&hetccl_oneccl.mutex);
    return 0;
}

/* Put a call's arguments in its communicator and post it. */
static inline int hetccl_oneccl_call(void *comm_, hetccl_oneccl_job_t job, const void *send, void *recv,
                                     size_t count, int dtype, int op, int root) {
    hetccl_oneccl_comm_t *comm = comm_;
    if (comm->code == HETCCL_ONECCL_IN_PROGRESS) return HETCCL_ONECCL_INVALID_USAGE;
    comm->send = send;
    comm->recv = recv;
    comm->count = count;
    comm->dtype = dtype;
    comm->op = op;
    comm->root = root;
    return hetccl_oneccl_post(comm, job);
}

static inline int hetccl_oneccl_all_reduce(const void *send, void *recv, size_t count, int dtype, int op, void *comm,
                                           void *stream) {
    (void)stream;
    return hetccl_oneccl_call(comm, HETCCL_ONECCL_JOB_ALL_REDUCE, send, recv, count, dtype, op, 0);
}

static inline int hetccl_oneccl_reduce(const void *send, void *recv, size_t count, int dtype, int op, int root,
                                       void *comm, void *stream) {
    (void)stream;
    return hetccl_oneccl_call(comm, HETCCL_ONECCL_JOB_REDUCE, send, recv, count, dtype, op, root);
}

static inline int hetccl_oneccl_reduce_scatter(const void *send, void *recv, size_t count, int dtype, int op,
                                               void *comm, void *stream) {
    (void)stream;
    return hetccl_oneccl_call(comm, HETCCL_ONECCL_JOB_REDUCE_SCATTER, send, recv, count, dtype, op, 0);
}

static inline int hetccl_oneccl_broadcast(const void *send, void *recv, size_t count, int dtype, int root, void *comm,
                                          void *stream) {
    (void)stream;
    return hetccl_oneccl_call(comm, HETCCL_ONECCL_JOB_BROADCAST, send, recv, count, dtype, 0, root);
}

static inline int hetccl_oneccl_all_gather(const void *send, void *recv, size_t count, int dtype, void *comm,
                                           void *stream) {
    (void)stream;
    return hetccl_oneccl_call(comm, HETCCL_ONECCL_JOB_ALL_GATHER, send, recv, count, dtype, 0, 0);
}

static inline int hetccl_oneccl_all_to_all(const void *send, void *recv, size_t count, int dtype, void *comm,
                                           void *stream) {
    (void)stream;
    return hetccl_oneccl_call(comm, HETCCL_ONECCL_JOB_ALL_TO_ALL, send, recv, count, dtype, 0, 0);
}

static inline int hetccl_oneccl_scatter(const void *send, void *recv, size_t count, int dtype, int root, void *comm,
                                        void *stream) {
    (void)stream;
    return hetccl_oneccl_call(comm, HETCCL_ONECCL_JOB_SCATTER, send, recv, count, dtype, 0, root);
}

static inline int hetccl_oneccl_unique_id(const hetccl_ccl_t *ccl, void *id) {
    (void)ccl;
    hetccl_oneccl_comm_t *asker = calloc(1, sizeof *asker);
    if (asker == NULL) return HETCCL_ONECCL_NO_MEMORY;
    int code = hetccl_oneccl_post(asker, HETCCL_ONECCL_JOB_UNIQUE_ID);
    pthread_mutex_lock(&hetccl_oneccl.mutex);
    if (code == HETCCL_ONECCL_IN_PROGRESS) code = hetccl_oneccl_wait(asker, HETCCL_ONECCL_ID_NS);
    if (code == 0) memcpy(id, &asker->id, sizeof asker->id);
    hetccl_oneccl_leave(asker);
    pthread_mutex_unlock(&hetccl_oneccl.mutex);
    return code;
}

static inline int hetccl_oneccl_init(const hetccl_ccl_t *ccl, void **comm_p, int nranks, const void *id, int rank) {
    (void)ccl;
    *comm_p = NULL;
    hetccl_oneccl_comm_t *comm = calloc(1, sizeof *comm);
    if (comm == NULL) return HETCCL_ONECCL_NO_MEMORY;
    memcpy(&comm->id, id, sizeof comm->id);
    comm->nranks = nranks;
    comm->rank = rank;
    int code = hetccl_oneccl_post(comm, HETCCL_ONECCL_JOB_INIT);
    if (code == HETCCL_ONECCL_IN_PROGRESS)
        *comm_p = comm;
    else
        free(comm);
    return code;
}

/* With a library that is stuck there is nothing to finish: what it holds stays until the process ends, as after
 * abort. */
static inline int hetccl_oneccl_finalize(void *comm) {
    int code = hetccl_oneccl_post(comm, HETCCL_ONECCL_JOB_FINALIZE);
    return code == HETCCL_ONECCL_STUCK ? 0 : code;
}

/* It ends when the other ranks have come to it too; whoever calls it can leave the thread that waits here. */
static inline int hetccl_oneccl_destroy(void *comm_) {
    hetccl_oneccl_comm_t *comm = comm_;
    int code = hetccl_oneccl_post(comm, HETCCL_ONECCL_JOB_DESTROY);
    pthread_mutex_lock(&hetccl_oneccl.mutex);
    while (code == HETCCL_ONECCL_IN_PROGRESS) code = hetccl_oneccl_wait(comm, HETCCL_ONECCL_ID_NS);
    hetccl_oneccl_leave(comm);
    pthread_mutex_unlock(&hetccl_oneccl.mutex);
    return code == HETCCL_ONECCL_STUCK ? 0 : code;
}

static inline const char *hetccl_oneccl_error_text(int code) {
    if (code == HETCCL_ONECCL_STUCK) return "an earlier call that was given up still keeps oneCCL busy in this process";
    if (code == HETCCL_ONECCL_FORKED) return "oneCCL was started before this process was forked";
    if (code == HETCCL_ONECCL_TERMINATED) return "oneCCL has broken off by an exception of its own (std::terminate)";
    const char *name = hetccl_oneccl_result_name(code);
    return name ? name : "a code that oneCCL 2022.2 does not have";
}

static inline const char *hetccl_oneccl_last_error(void *comm) {
    return comm ? ((hetccl_oneccl_comm_t *)comm)->message : "";
}

/* Calls of the library that have ended in this process. */
static inline uint64_t hetccl_oneccl_ndone(void) {
    pthread_mutex_lock(&hetccl_oneccl.mutex);
    uint64_t ndone = hetccl_oneccl.ndone;
    pthread_mutex_unlock(&hetccl_oneccl.mutex);
    return ndone;
}

/* Take the library's own functions, which fill the table, and put those of this file in their places. */
static inline void hetccl_oneccl_adapt(hetccl_ccl_t *table, void *set_terminate) {
    hetccl_oneccl_set_terminate = set_terminate;
    table->in_progress = HETCCL_ONECCL_IN_PROGRESS;
    table->id_nbytes = HETCCL_ONECCL_ID_BYTES;
    hetccl_oneccl_library = *table;
    hetccl_oneccl_library.raw[HETCCL_ONECCL_UNIQUE_ID] = (void *)table->unique_id;
    hetccl_oneccl_library.raw[HETCCL_ONECCL_INIT] = (void *)table->init;
    table->all_reduce = hetccl_oneccl_all_reduce;
    table->reduce = hetccl_oneccl_reduce;
    table->reduce_scatter = hetccl_oneccl_reduce_scatter;
    table->broadcast = hetccl_oneccl_broadcast;
    table->all_gather = hetccl_oneccl_all_gather;
    table->all_to_all = hetccl_oneccl_all_to_all;
    table->scatter = hetccl_oneccl_scatter;
    table->unique_id = hetccl_oneccl_unique_id;
    table->init = hetccl_oneccl_init;
    table->async_error = hetccl_oneccl_async_error;
    table->finalize = hetccl_oneccl_finalize;
    table->destroy = hetccl_oneccl_destroy;
    table->abort = hetccl_oneccl_abort;
    table->error_text = hetccl_oneccl_error_text;
    table->last_error = hetccl_oneccl_last_error;
}

#endif
