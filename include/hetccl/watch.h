/* The watch over one communicator of a vendor's CCL (layer L2): a native thread that waits for the ends of the peers
 * on this host, and now and then asks the library for an error. Kernels that wait for a rank that died wait for ever,
 * so the watch aborts the communicator; streams then complete, and the next call says why.
 *
 * Whoever ends a communicator takes its handle away first, under the mutex: abort, close and the watch never end the
 * same one. The thread touches no Python object and never takes the GIL. */
#ifndef HETCCL_WATCH_H
#define HETCCL_WATCH_H

#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hetccl/ccl_job.h"

enum {
    HETCCL_WATCH_NOBODY = -1,
    HETCCL_WATCH_PERIOD_MS = 1000,      /* between two questions for an error */
    HETCCL_WATCH_PEER_GRACE_MS = 2000,  /* what a peer did last may still be finishing on this rank's streams */
    HETCCL_WATCH_ERROR_GRACE_MS = 500,  /* an error may be a peer's end, of which the kernel tells a little later */
    HETCCL_WATCH_SETTLE_MS = 100,       /* calls that are inside the library leave at once, unless they hang */
    HETCCL_WATCH_ABORT_MS = 4500,       /* abort is waited for so long */
    HETCCL_WATCH_TEXT_BYTES = 512
};

#define HETCCL_WATCH_CALL ((uint64_t)1 << 32)

typedef struct hetccl_peer {
    int rank;
    int pid;
    int fd;         /* the kernel's handle of the process; -1: it gives none */
    uint64_t ticks; /* start time of the process, by which it is known without a handle */
} hetccl_peer_t;

typedef struct hetccl_watch {
    const hetccl_ccl_t *ccl;
    const hetccl_runtime_t *gpu;
    int device;
    void **handle;         /* the owner's; NULL there: taken away */
    int *lost;             /* the owner's: the watch has ended the communicator, for the reason below */
    int lost_rank;         /* the peer that ended, or HETCCL_WATCH_NOBODY */
    int error;             /* the library's code; 0 if a peer is the reason */
    char text[HETCCL_WATCH_TEXT_BYTES]; /* the library's words for the error */
    uint64_t inside;       /* calls of the library: under way (low half), ever begun (high half) */
    int64_t timeout_ns;    /* a call may stay inside the library so long, connecting the ranks */
    int timed_out;         /* the reason: a call stayed longer */
    pthread_mutex_t mutex; /* of the handle's end, the peers, and async_error, which may finish the library's work */
    pthread_t thread;
    int running;
    int wake_fd;
    hetccl_peer_t *peers;
    int npeers;
    int first_ended; /* as lost_rank, from when it is noticed */
    struct hetccl_watch *next; /* in a list of the owners' */
} hetccl_watch_t;

/* The handle, or NULL; until the release nobody frees it, unless the call hangs. */
static inline void *hetccl_watch_hold(hetccl_watch_t *watch) {
    __atomic_fetch_add(&watch->inside, HETCCL_WATCH_CALL | 1, __ATOMIC_SEQ_CST);
    return __atomic_load_n(watch->handle, __ATOMIC_SEQ_CST);
}

static inline void hetccl_watch_release(hetccl_watch_t *watch) {
    __atomic_fetch_sub(&watch->inside, 1, __ATOMIC_RELEASE);
}

/* Take the handle away for good; NULL if somebody has. */
static inline void *hetccl_watch_take(hetccl_watch_t *watch) {
    pthread_mutex_lock(&watch->mutex);
    void *comm = __atomic_exchange_n(watch->handle, NULL, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&watch->mutex);
    return comm;
}

/* Wait for the calls that still have the handle. One that stays is what an abort is for. */
static inline void hetccl_watch_settle(hetccl_watch_t *watch) {
    int64_t until_ns = hetccl_now_ns() + HETCCL_WATCH_SETTLE_MS * 1000000LL;
    while ((uint32_t)__atomic_load_n(&watch->inside, __ATOMIC_ACQUIRE) && hetccl_now_ns() < until_ns) sched_yield();
}

/* End a communicator that was taken away. 0, the library's code, or HETCCL_MISSING if it could not be ended in time. */
static inline int hetccl_watch_abort(hetccl_watch_t *watch, void *comm) {
    int code = HETCCL_MISSING;
    hetccl_watch_settle(watch);
    hetccl_job_t *job = hetccl_job_start(watch->gpu, watch->device, watch->ccl->abort, comm);
    if (!job) return code;
    if (!hetccl_job_wait(job, HETCCL_WATCH_ABORT_MS * 1000000LL, &code)) code = HETCCL_MISSING;
    hetccl_job_drop(job);
    return code;
}

/* The state of the communicator: 0, in_progress, or an error. has_gone: it was taken away. */
static inline int hetccl_watch_ask(hetccl_watch_t *watch, int *has_gone) {
    int state = 0;
    pthread_mutex_lock(&watch->mutex);
    void *comm = __atomic_load_n(watch->handle, __ATOMIC_SEQ_CST);
    *has_gone = comm == NULL;
    int code = comm ? watch->ccl->async_error(comm, &state) : 0;
    pthread_mutex_unlock(&watch->mutex);
    return code == HETCCL_MISSING ? 0 : code ? code : state;
}

static inline int hetccl_peer_has_ended(const hetccl_peer_t *peer) {
    struct pollfd end = {.fd = peer->fd, .events = POLLIN};
    if (peer->fd >= 0) return poll(&end, 1, 0) == 1;
    uint64_t ticks = hetccl_process_start_ticks(peer->pid);
    return peer->ticks != HETCCL_TICKS_UNKNOWN && ticks != HETCCL_TICKS_UNKNOWN && ticks != peer->ticks;
}

/* The rank of the peer on this host that has ended, or HETCCL_WATCH_NOBODY; the first one found, for others end because
 * of it. */
static inline int hetccl_watch_ended(hetccl_watch_t *watch) {
    pthread_mutex_lock(&watch->mutex);
    for (int i = 0; i < watch->npeers && watch->first_ended == HETCCL_WATCH_NOBODY; i++)
        if (hetccl_peer_has_ended(&watch->peers[i])) watch->first_ended = watch->peers[i].rank;
    int rank = watch->first_ended;
    pthread_mutex_unlock(&watch->mutex);
    return rank;
}

/* End the communicator because of a peer, an error or, with neither, a call that hangs, unless its owner has. */
static inline void hetccl_watch_condemn(hetccl_watch_t *watch, int peer, int error) {
    pthread_mutex_lock(&watch->mutex);
    void *comm = __atomic_load_n(watch->handle, __ATOMIC_SEQ_CST);
    if (comm) {
        watch->lost_rank = peer;
        watch->error = peer == HETCCL_WATCH_NOBODY ? error : 0;
        watch->timed_out = peer == HETCCL_WATCH_NOBODY && !error;
        if (watch->error) strncpy(watch->text, watch->ccl->last_error(comm), sizeof watch->text - 1);
        __atomic_store_n(watch->lost, 1, __ATOMIC_SEQ_CST);
        __atomic_store_n(watch->handle, NULL, __ATOMIC_SEQ_CST);
    }
    pthread_mutex_unlock(&watch->mutex);
    if (comm) hetccl_watch_abort(watch, comm);
}

/* Sleep until a peer ends, the owner wakes the thread (1), or the time is over. */
static inline int hetccl_watch_sleep(hetccl_watch_t *watch, struct pollfd *ends, int timeout_ms) {
    int n = 0;
    ends[n++] = (struct pollfd){.fd = watch->wake_fd, .events = POLLIN};
    for (int i = 0; i < watch->npeers && timeout_ms >= HETCCL_WATCH_PERIOD_MS; i++)
        ends[n++] = (struct pollfd){.fd = watch->peers[i].fd, .events = POLLIN};
    poll(ends, n, timeout_ms);
    return ends[0].revents != 0;
}

/* Whether one call has been inside the library for longer than the time-out. begun, since_ns: of the last look. */
static inline int hetccl_watch_hangs(hetccl_watch_t *watch, uint64_t *begun, int64_t *since_ns) {
    uint64_t inside = __atomic_load_n(&watch->inside, __ATOMIC_ACQUIRE);
    int64_t now_ns = hetccl_now_ns();
    if (inside != *begun || (uint32_t)inside == 0) {
        *begun = inside;
        *since_ns = now_ns;
    }
    return now_ns - *since_ns > watch->timeout_ns;
}

static void *hetccl_watch_main(void *argument) {
    hetccl_watch_t *watch = argument;
    uint64_t begun = 0;
    int64_t since_ns = hetccl_now_ns();
    struct pollfd *ends = calloc(watch->npeers + 1, sizeof *ends);
    struct pollfd alone;
    int timeout_ms = HETCCL_WATCH_PERIOD_MS, grace_ms = 0, waited_ms = 0, has_gone = 0;
    /* Without memory for the peers' handles they are looked at once a period. */
    while (!hetccl_watch_sleep(watch, ends ? ends : &alone, ends ? timeout_ms : HETCCL_WATCH_PERIOD_MS - 1)) {
        int peer = hetccl_watch_ended(watch);
        int state = hetccl_watch_ask(watch, &has_gone);
        int error = state == watch->ccl->in_progress ? 0 : state;
        if (has_gone) break;
        if (hetccl_watch_hangs(watch, &begun, &since_ns)) {
            hetccl_watch_condemn(watch, HETCCL_WATCH_NOBODY, 0);
            break;
        }
        if (peer == HETCCL_WATCH_NOBODY && !error) {
            timeout_ms = HETCCL_WATCH_PERIOD_MS;
            waited_ms = 0;
            continue;
        }
        grace_ms = peer == HETCCL_WATCH_NOBODY ? HETCCL_WATCH_ERROR_GRACE_MS : HETCCL_WATCH_PEER_GRACE_MS;
        if (waited_ms >= grace_ms) {
            hetccl_watch_condemn(watch, peer, error);
            break;
        }
        /* Short of a period, so that the sleep does not listen to the peer that has ended. */
        timeout_ms = HETCCL_WATCH_ERROR_GRACE_MS;
        waited_ms += timeout_ms;
    }
    free(ends);
    return NULL;
}

static inline void hetccl_peer_open(hetccl_peer_t *peer) {
    peer->fd = (int)syscall(SYS_pidfd_open, peer->pid, 0);
    peer->ticks = hetccl_process_start_ticks(peer->pid);
    /* One that has ended already: no process has these ticks. */
    if (peer->ticks == 0) peer->ticks = HETCCL_TICKS_UNKNOWN - 1;
}

static inline void hetccl_watch_init(hetccl_watch_t *watch, const hetccl_ccl_t *ccl, const hetccl_runtime_t *gpu,
                                     int device, void **handle, int *lost) {
    *watch = (hetccl_watch_t){.ccl = ccl, .gpu = gpu, .device = device, .handle = handle, .lost = lost};
    watch->lost_rank = watch->first_ended = HETCCL_WATCH_NOBODY;
    watch->wake_fd = -1;
    pthread_mutex_init(&watch->mutex, NULL);
}

/* End the thread and give back what it used; idempotent. It takes an abort's time at most. */
static inline void hetccl_watch_close(hetccl_watch_t *watch) {
    uint64_t one = 1;
    int awake = watch->running && write(watch->wake_fd, &one, sizeof one) == sizeof one;
    if (awake) pthread_join(watch->thread, NULL);
    if (watch->running && !awake) return;
    watch->running = 0;
    pthread_mutex_lock(&watch->mutex);
    for (int i = 0; i < watch->npeers; i++)
        if (watch->peers[i].fd >= 0) close(watch->peers[i].fd);
    if (watch->wake_fd >= 0) close(watch->wake_fd);
    watch->wake_fd = -1;
    free(watch->peers);
    watch->peers = NULL;
    watch->npeers = 0;
    pthread_mutex_unlock(&watch->mutex);
}

static inline void hetccl_watch_unlink(hetccl_watch_t **list, hetccl_watch_t *watch) {
    while (*list && *list != watch) list = &(*list)->next;
    if (*list) *list = watch->next;
}

/* Know the peers from now on: npeers ranks and pids, taken over. */
static inline void hetccl_watch_meet(hetccl_watch_t *watch, hetccl_peer_t *peers, int npeers) {
    for (int i = 0; i < npeers; i++) hetccl_peer_open(&peers[i]);
    watch->peers = peers;
    watch->npeers = npeers;
}

/* Start watching. 0 or an errno; after an error nothing is held. */
static inline int hetccl_watch_open(hetccl_watch_t *watch) {
    watch->wake_fd = eventfd(0, EFD_CLOEXEC);
    int error = watch->wake_fd < 0 ? errno : hetccl_thread_start(&watch->thread, hetccl_watch_main, watch);
    watch->running = error == 0;
    if (error) hetccl_watch_close(watch);
    return error;
}

#endif
