/* The watch of a wire (layer L2): a native thread that sleeps on the descriptors of the wire's ports and rings this
 * rank's bell when one has something to poll, for those who sleep on the bell. It polls nothing itself, takes no lock,
 * and touches no Python object.
 *
 * No news is lost between "nothing has come" and the sleep. A sleeper adds itself to the bell's sleepers, arms the
 * ports (hetccl_wire_watch_arm), polls once more, and sleeps unless the bell has rung since the first step. What comes
 * before the port's arm() is found by that last poll, what comes later makes the descriptor readable. Then the thread
 * is told, since arm() has left the descriptor in the epoll set: either it has just put it there (an EPOLL_CTL_MOD of a
 * readable descriptor reports at once), or it has read `listening` as 1. The latter means that the thread has not yet
 * cleared it: it has not had the report, or it has, and will clear `listening` and then look for sleepers. Both sides'
 * accesses are sequentially consistent: who read 1 had counted itself among the sleepers before, so that the thread
 * sees it there and rings. */
#ifndef HETCCL_WIRE_WATCH_H
#define HETCCL_WIRE_WATCH_H

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "hetccl/rail.h"
#include "hetccl/shm.h"
#include "hetccl/thread.h"

/* Ports of one communicator: a server has up to 16 RDMA devices, and one port serves all TCP connections. */
#define HETCCL_WIRE_PORTS 32

typedef struct hetccl_wire_watch {
    hetccl_port_t *ports[HETCCL_WIRE_PORTS];
    int listening[HETCCL_WIRE_PORTS]; /* the port's descriptor is in the epoll set, or its report is not rung yet */
    int nports;
    int epoll_fd;
    int stop_fd;  /* ends the thread */
    int running;
    pthread_t thread;
    hetccl_rank_block_t *bell; /* this rank's */
} hetccl_wire_watch_t;

/* 0 or an errno; nothing is held after an error. */
static inline int hetccl_wire_watch_open(hetccl_wire_watch_t *watch) {
    watch->nports = watch->running = 0;
    watch->bell = NULL;
    watch->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (watch->epoll_fd < 0) return errno;
    watch->stop_fd = eventfd(0, EFD_CLOEXEC);
    struct epoll_event stop = {.events = EPOLLIN, .data.u32 = HETCCL_WIRE_PORTS};
    int error = watch->stop_fd < 0 ? errno : 0;
    if (!error && epoll_ctl(watch->epoll_fd, EPOLL_CTL_ADD, watch->stop_fd, &stop) != 0) error = errno;
    if (!error) return 0;
    if (watch->stop_fd >= 0) close(watch->stop_fd);
    close(watch->epoll_fd);
    watch->stop_fd = watch->epoll_fd = -1;
    return error;
}

/* Watch one more port, which stays until the watch is closed. 0, or an errno. There must be room. */
static inline int hetccl_wire_watch_add(hetccl_wire_watch_t *watch, hetccl_port_t *port) {
    struct epoll_event silent = {.events = EPOLLONESHOT, .data.u32 = (uint32_t)watch->nports};
    if (epoll_ctl(watch->epoll_fd, EPOLL_CTL_ADD, port->fd, &silent) != 0) return errno;
    watch->listening[watch->nports] = 0;
    watch->ports[watch->nports++] = port;
    return 0;
}

static void *hetccl_wire_watch_main(void *argument) {
    hetccl_wire_watch_t *watch = argument;
    struct epoll_event events[HETCCL_WIRE_PORTS + 1];
    for (;;) {
        int n = epoll_wait(watch->epoll_fd, events, HETCCL_WIRE_PORTS + 1, -1);
        for (int i = 0; i < n; i++) {
            if (events[i].data.u32 == HETCCL_WIRE_PORTS) return NULL;
            __atomic_store_n(&watch->listening[events[i].data.u32], 0, __ATOMIC_SEQ_CST);
        }
        if (n < 0 && errno != EINTR) return NULL;
        if (n > 0) hetccl_bell_ring(watch->bell);
    }
}

/* Let the bell ring for what comes from now on. MOVED: poll first; DONE: armed. Under the communicator's mutex.
 * Where no thread can be started (a limit of the user's threads), sleeps end by their time-outs alone. */
static inline int hetccl_wire_watch_arm(hetccl_wire_watch_t *watch) {
    if (!watch->running && hetccl_thread_start(&watch->thread, hetccl_wire_watch_main, watch) != 0) return HETCCL_DONE;
    watch->running = 1;
    for (int i = 0; i < watch->nports; i++) {
        struct epoll_event listen = {.events = EPOLLIN | EPOLLONESHOT, .data.u32 = (uint32_t)i};
        if (watch->ports[i]->arm(watch->ports[i]) == HETCCL_MOVED) return HETCCL_MOVED;
        if (__atomic_exchange_n(&watch->listening[i], 1, __ATOMIC_SEQ_CST) == 0) {
            epoll_ctl(watch->epoll_fd, EPOLL_CTL_MOD, watch->ports[i]->fd, &listen);
        }
    }
    return HETCCL_DONE;
}

/* End the thread; arm() starts another one. */
static inline void hetccl_wire_watch_stop(hetccl_wire_watch_t *watch) {
    uint64_t one = 1;
    if (!watch->running || write(watch->stop_fd, &one, sizeof one) != sizeof one) return;
    pthread_join(watch->thread, NULL);
    if (read(watch->stop_fd, &one, sizeof one) != sizeof one) return;
    watch->running = 0;
    for (int i = 0; i < watch->nports; i++) watch->listening[i] = 0;
}

/* End the thread and forget the ports, whose descriptors are still open. Idempotent. */
static inline void hetccl_wire_watch_close(hetccl_wire_watch_t *watch) {
    if (watch->epoll_fd < 0) return;
    hetccl_wire_watch_stop(watch);
    close(watch->stop_fd);
    close(watch->epoll_fd);
    watch->stop_fd = watch->epoll_fd = -1;
    watch->nports = 0;
}

/* In the child of a fork, which has no thread. */
static inline void hetccl_wire_watch_forget(hetccl_wire_watch_t *watch) {
    watch->running = 0;
    hetccl_wire_watch_close(watch);
}

#endif
