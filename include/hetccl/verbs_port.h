/* What rails over verbs share (layer L2): the device of a process, and the port of a communicator on it, which has the
 * completion queues of the communicator's rails there. The rails themselves: rail_verbs.h.
 *
 * The communicator's mutex guards a port, its rails and their queue pairs. Two locks lie below it: `lock` of the port,
 * for those who add and remove rails without the mutex; `events_lock` of the device, for asynchronous events, which
 * come in one queue for all communicators of the process. */
#ifndef HETCCL_VERBS_PORT_H
#define HETCCL_VERBS_PORT_H

#include <arpa/inet.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "hetccl/rail.h"
#include "hetccl/verbs.h"

enum {
    HETCCL_VERBS_POLL_BATCH = 16,       /* completions taken at once */
    HETCCL_VERBS_RECV_BATCH = 32,       /* receives posted at once */
    HETCCL_VERBS_POLLS_PER_LOOK = 4096, /* a look for asynchronous events is a system call */
    HETCCL_VERBS_MAX_CQS = 256,
    HETCCL_VERBS_MAX_SLOTS = 1 << 16,
    HETCCL_VERBS_EVENT_OF_RAIL = -1,    /* a rail has an event of its own */
};

struct hetccl_verbs_port;

/* One opened device; shared by all ports of the process. */
typedef struct hetccl_verbs_device {
    const hetccl_verbs_t *verbs;
    hetccl_ibv_context_t *context;
    hetccl_ibv_pd_t *pd;
    struct hetccl_mr_cache *cache;   /* of its registrations */
    pthread_mutex_t events_lock;
    struct hetccl_verbs_port *ports; /* under events_lock */
    int gone;                        /* under events_lock: it has no more events */
} hetccl_verbs_device_t;

typedef struct hetccl_verbs_rail {
    hetccl_rail_t rail;
    struct hetccl_verbs_port *port;
    hetccl_ibv_qp_t *qp; /* NULL once closed */
    int cq;              /* of the port's */
    uint64_t id;         /* high half of its wr_ids: slot and generation */
    uint32_t send_depth;
    uint32_t recv_depth;
    uint32_t max_inline;
    uint32_t recv_due;        /* receives taken and not posted again */
    uint32_t recv_left;       /* receives posted and not taken */
    uint64_t sends_left;      /* sends whose completion has not come, flushed ones too */
    uint64_t flushed;         /* completions that only say that the queue pair has failed */
    int event;                /* 0, or 1 + enum hetccl_ibv_event_type; set by whichever thread reads it */
    hetccl_ibv_recv_wr_t recvs[HETCCL_VERBS_RECV_BATCH];
} hetccl_verbs_rail_t;

typedef struct hetccl_verbs_cq {
    hetccl_ibv_cq_t *cq;
    int used; /* entries that its rails may need at once */
} hetccl_verbs_cq_t;

typedef struct hetccl_verbs_port {
    hetccl_port_t port;
    hetccl_rail_ops_t ops; /* of its rails: max_write is the device's */
    hetccl_verbs_device_t *device;
    hetccl_ibv_comp_channel_t *channel;
    int news_fd; /* eventfd: another thread has read an event that is this port's */
    int event;   /* of all its rails, as that of one; or HETCCL_VERBS_EVENT_OF_RAIL */
    struct hetccl_verbs_port *next; /* of the device's */
    hetccl_verbs_rail_t *loop;      /* of rail.h; NULL: none. Set without the mutex: with a barrier */
    pthread_mutex_t lock;           /* guards what follows */
    hetccl_verbs_cq_t cqs[HETCCL_VERBS_MAX_CQS];
    int ncqs;
    hetccl_verbs_rail_t **slots; /* NULL: free */
    uint16_t *generations;
    int nslots;
    unsigned idle_polls;
} hetccl_verbs_port_t;

/* wr_id: slot 16 bits | generation 16 | receive 1 | number of the write 31. Completions of a rail that has been closed
 * meanwhile are known by their generation: some drivers keep them in the queue. */
#define HETCCL_VERBS_RECV_BIT (UINT64_C(1) << 31)

static inline uint64_t hetccl_verbs_rail_id(int slot, uint16_t generation) {
    return (uint64_t)slot << 48 | (uint64_t)generation << 32;
}

/* The first fault stands, but one that only follows from another gives way to it. */
static inline void hetccl_verbs_rail_fail(hetccl_verbs_rail_t *vr, int kind, int code, uint32_t vendor_err) {
    hetccl_rail_fault_t *fault = &vr->rail.fault;
    int vague = fault->kind == HETCCL_FAULT_NONE ||
                (fault->kind == HETCCL_FAULT_WC && fault->code == HETCCL_IBV_WC_WR_FLUSH_ERR);
    if (vague) {
        fault->kind = kind;
        fault->code = code;
        fault->vendor_err = vendor_err;
    }
    if (vr->rail.state == HETCCL_RAIL_UP) vr->rail.state = HETCCL_RAIL_FAILED;
}

/* Post the receives that are due, in whole batches; `all`: to the last one. 0 or errno. */
static inline int hetccl_verbs_rail_post_recvs(hetccl_verbs_rail_t *vr, int all) {
    while (vr->recv_due >= HETCCL_VERBS_RECV_BATCH || (all && vr->recv_due)) {
        uint32_t count = vr->recv_due < HETCCL_VERBS_RECV_BATCH ? vr->recv_due : HETCCL_VERBS_RECV_BATCH;
        hetccl_ibv_recv_wr_t *first = &vr->recvs[HETCCL_VERBS_RECV_BATCH - count], *bad = NULL;
        int rc = hetccl_verbs_post_recv(vr->qp, first, &bad);
        if (rc) count = bad ? (uint32_t)(bad - first) : 0;
        vr->recv_due -= count;
        vr->recv_left += count;
        if (rc) return hetccl_verbs_errno(rc);
    }
    return 0;
}

static inline void hetccl_verbs_rail_received(hetccl_verbs_rail_t *vr, const hetccl_ibv_wc_t *wc) {
    vr->recv_left--;
    vr->recv_due++;
    if (vr->rail.on_imm && vr->rail.state != HETCCL_RAIL_CLOSED)
        vr->rail.on_imm(vr->rail.peer, vr->rail.index, ntohl(wc->imm_data));
    if (vr->rail.state != HETCCL_RAIL_UP) return;
    int error = hetccl_verbs_rail_post_recvs(vr, 0);
    /* ENOMEM: the driver has not freed their places yet; the next completion tries again. */
    if (error && error != ENOMEM) hetccl_verbs_rail_fail(vr, HETCCL_FAULT_POST, error, 0);
}

static inline void hetccl_verbs_port_complete(hetccl_verbs_port_t *vp, const hetccl_ibv_wc_t *wc) {
    int slot = (int)(wc->wr_id >> 48);
    hetccl_verbs_rail_t *vr = slot < vp->nslots ? vp->slots[slot] : NULL;
    if (vr == NULL || wc->wr_id >> 32 != vr->id >> 32) return;
    if (wc->status != HETCCL_IBV_WC_SUCCESS) {
        if (wc->wr_id & HETCCL_VERBS_RECV_BIT)
            vr->recv_left--;
        else
            vr->sends_left--;
        vr->flushed += wc->status == HETCCL_IBV_WC_WR_FLUSH_ERR;
        hetccl_verbs_rail_fail(vr, HETCCL_FAULT_WC, wc->status, wc->vendor_err);
    } else if (wc->wr_id & HETCCL_VERBS_RECV_BIT) {
        hetccl_verbs_rail_received(vr, wc);
    } else {
        vr->sends_left--;
        vr->rail.completed += (wc->wr_id - vr->rail.completed) & (HETCCL_VERBS_RECV_BIT - 1);
    }
}

/* Under events_lock: leave the event to the port that it concerns, or to all; each one's own thread takes it. */
static inline void hetccl_verbs_device_tell(hetccl_verbs_device_t *device, const hetccl_ibv_async_event_t *event) {
    int mark = 1 + event->event_type;
    hetccl_verbs_port_t *only = NULL;
    switch (event->event_type) {
    case HETCCL_IBV_EVENT_QP_FATAL:
    case HETCCL_IBV_EVENT_QP_REQ_ERR:
    case HETCCL_IBV_EVENT_QP_ACCESS_ERR: {
        /* The queue pair, and so its rail, cannot go before the event is acknowledged. */
        hetccl_verbs_rail_t *vr = event->element.qp->qp_context;
        __atomic_store_n(&vr->event, mark, __ATOMIC_RELEASE);
        only = vr->port;
        mark = HETCCL_VERBS_EVENT_OF_RAIL;
        break;
    }
    case HETCCL_IBV_EVENT_CQ_ERR:
        only = event->element.cq->cq_context;
        break;
    case HETCCL_IBV_EVENT_DEVICE_FATAL:
        break;
    default:
        return; /* a port that goes down may come back before the queue pairs give up */
    }
    for (hetccl_verbs_port_t *vp = device->ports; vp; vp = vp->next) {
        int none = 0;
        if (only && vp != only) continue;
        if (mark == HETCCL_VERBS_EVENT_OF_RAIL)
            __atomic_compare_exchange_n(&vp->event, &none, mark, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
        else
            __atomic_store_n(&vp->event, mark, __ATOMIC_RELEASE);
        eventfd_write(vp->news_fd, 1);
    }
}

/* Read the device's asynchronous events, whichever communicator's they are. The context is hetccl's own, and its
 * descriptor does not block. */
static inline void hetccl_verbs_device_look(hetccl_verbs_device_t *device) {
    pthread_mutex_lock(&device->events_lock);
    while (!device->gone) {
        hetccl_ibv_async_event_t event;
        errno = 0;
        if (device->verbs->get_async_event(device->context, &event) == 0) {
            hetccl_verbs_device_tell(device, &event);
            device->verbs->ack_async_event(&event);
            continue;
        }
        if (errno == EAGAIN || errno == EINTR) break;
        device->gone = 1;
        event.event_type = HETCCL_IBV_EVENT_DEVICE_FATAL;
        hetccl_verbs_device_tell(device, &event);
    }
    pthread_mutex_unlock(&device->events_lock);
}

/* Under the port's lock: MOVED if an event that was left for it has ended a rail. */
static inline int hetccl_verbs_port_take_events(hetccl_verbs_port_t *vp) {
    int moved = HETCCL_AGAIN, mark = __atomic_exchange_n(&vp->event, 0, __ATOMIC_ACQUIRE);
    for (int slot = 0; mark && slot < vp->nslots; slot++) {
        hetccl_verbs_rail_t *vr = vp->slots[slot];
        if (vr == NULL) continue;
        int own = __atomic_exchange_n(&vr->event, 0, __ATOMIC_ACQUIRE);
        if (own == 0 && mark == HETCCL_VERBS_EVENT_OF_RAIL) continue;
        if (vr->rail.state == HETCCL_RAIL_UP) moved = HETCCL_MOVED;
        hetccl_verbs_rail_fail(vr, HETCCL_FAULT_DEVICE, (own ? own : mark) - 1, 0);
    }
    return moved;
}

static inline int hetccl_verbs_port_poll(hetccl_port_t *port) {
    hetccl_verbs_port_t *vp = (hetccl_verbs_port_t *)port;
    /* Taken: a rail is being added; it will not be for long. */
    if (pthread_mutex_trylock(&vp->lock) != 0) return HETCCL_AGAIN;
    int moved = HETCCL_AGAIN;
    for (int i = 0; i < vp->ncqs; i++) {
        hetccl_ibv_wc_t wcs[HETCCL_VERBS_POLL_BATCH];
        int count = hetccl_verbs_poll_cq(vp->cqs[i].cq, HETCCL_VERBS_POLL_BATCH, wcs);
        for (int n = 0; n < count; n++) hetccl_verbs_port_complete(vp, &wcs[n]);
        if (count > 0) moved = HETCCL_MOVED;
        if (count < 0) __atomic_store_n(&vp->event, 1 + HETCCL_IBV_EVENT_CQ_ERR, __ATOMIC_RELAXED);
    }
    if (moved != HETCCL_MOVED && ++vp->idle_polls % HETCCL_VERBS_POLLS_PER_LOOK == 0)
        hetccl_verbs_device_look(vp->device);
    if (__atomic_load_n(&vp->event, __ATOMIC_RELAXED) && hetccl_verbs_port_take_events(vp) == HETCCL_MOVED)
        moved = HETCCL_MOVED;
    pthread_mutex_unlock(&vp->lock);
    return moved;
}

static inline int hetccl_verbs_port_arm(hetccl_port_t *port) {
    hetccl_verbs_port_t *vp = (hetccl_verbs_port_t *)port;
    const hetccl_verbs_t *verbs = vp->device->verbs;
    hetccl_ibv_cq_t *cq;
    void *context;
    eventfd_t news;
    if (pthread_mutex_trylock(&vp->lock) != 0) return HETCCL_MOVED;
    eventfd_read(vp->news_fd, &news);
    hetccl_verbs_device_look(vp->device);
    /* What is always readable would let nobody sleep. */
    if (vp->device->gone) epoll_ctl(vp->port.fd, EPOLL_CTL_DEL, vp->device->context->async_fd, NULL);
    while (verbs->get_cq_event(vp->channel, &cq, &context) == 0) verbs->ack_cq_events(cq, 1);
    int failed = 0;
    for (int i = 0; i < vp->ncqs; i++) failed |= hetccl_verbs_req_notify_cq(vp->cqs[i].cq, 0);
    if (failed) __atomic_store_n(&vp->event, 1 + HETCCL_IBV_EVENT_CQ_ERR, __ATOMIC_RELAXED);
    int news_came = __atomic_load_n(&vp->event, __ATOMIC_ACQUIRE) != 0;
    pthread_mutex_unlock(&vp->lock);
    return news_came ? HETCCL_MOVED : HETCCL_DONE;
}

/* Under the lock: the place of a completion queue with room for so many more entries, grown if need be; or -errno. */
static inline int hetccl_verbs_port_queue(hetccl_verbs_port_t *vp, int nentries, int most) {
    const hetccl_verbs_t *verbs = vp->device->verbs;
    for (int i = 0; i < vp->ncqs; i++) {
        hetccl_ibv_cq_t *cq = vp->cqs[i].cq;
        int wanted = vp->cqs[i].used + nentries, twice = 2 * wanted < most ? 2 * wanted : most;
        if (wanted <= cq->cqe) return i;
        /* Twice as long, so that a hundred rails do not make it grow a hundred times. */
        if (wanted <= most && (verbs->resize_cq(cq, twice) == 0 || verbs->resize_cq(cq, wanted) == 0)) return i;
    }
    if (vp->ncqs == HETCCL_VERBS_MAX_CQS) return -ENOSPC;
    /* Different interrupts, hence cores, for the queues of different processes. */
    int vector = (getpid() + vp->ncqs) % vp->device->context->num_comp_vectors;
    errno = 0;
    hetccl_ibv_cq_t *cq = verbs->create_cq(vp->device->context, nentries, vp, vp->channel, vector);
    if (cq == NULL) return errno ? -errno : -EIO;
    vp->cqs[vp->ncqs] = (hetccl_verbs_cq_t){cq, 0};
    return vp->ncqs++;
}

/* Under the lock: a free slot, or -ENOMEM. */
static inline int hetccl_verbs_port_slot(hetccl_verbs_port_t *vp) {
    int slot = 0;
    while (slot < vp->nslots && vp->slots[slot]) slot++;
    if (slot < vp->nslots) return slot;
    int nslots = vp->nslots ? 2 * vp->nslots : 16;
    if (nslots > HETCCL_VERBS_MAX_SLOTS) return -ENOMEM;
    hetccl_verbs_rail_t **slots = realloc(vp->slots, (size_t)nslots * sizeof *slots);
    if (slots) vp->slots = slots;
    uint16_t *generations = slots ? realloc(vp->generations, (size_t)nslots * sizeof *generations) : NULL;
    if (generations == NULL) return -ENOMEM;
    vp->generations = generations;
    memset(slots + vp->nslots, 0, (size_t)(nslots - vp->nslots) * sizeof *slots);
    memset(generations + vp->nslots, 0, (size_t)(nslots - vp->nslots) * sizeof *generations);
    vp->nslots = nslots;
    return slot;
}

/* Give a rail, whose depths are set, its slot and its completion queue. 0, or errno. Takes the lock, not the mutex. */
static inline int hetccl_verbs_port_add(hetccl_verbs_port_t *vp, hetccl_verbs_rail_t *vr, int most) {
    int nentries = (int)(vr->send_depth + vr->recv_depth);
    pthread_mutex_lock(&vp->lock);
    int slot = hetccl_verbs_port_slot(vp);
    int cq = slot < 0 ? slot : hetccl_verbs_port_queue(vp, nentries, most);
    if (cq >= 0) {
        vr->port = vp;
        vr->cq = cq;
        vr->id = hetccl_verbs_rail_id(slot, ++vp->generations[slot]);
        for (int i = 0; i < HETCCL_VERBS_RECV_BATCH; i++) {
            vr->recvs[i].wr_id = vr->id | HETCCL_VERBS_RECV_BIT;
            vr->recvs[i].next = i + 1 < HETCCL_VERBS_RECV_BATCH ? &vr->recvs[i + 1] : NULL;
        }
        vp->slots[slot] = vr;
        vp->cqs[cq].used += nentries;
    }
    pthread_mutex_unlock(&vp->lock);
    return cq < 0 ? -cq : 0;
}

/* The queue pair is gone; what may still be in the completion queue is nobody's. */
static inline void hetccl_verbs_port_remove(hetccl_verbs_port_t *vp, hetccl_verbs_rail_t *vr) {
    pthread_mutex_lock(&vp->lock);
    vp->slots[vr->id >> 48] = NULL;
    vp->cqs[vr->cq].used -= (int)(vr->send_depth + vr->recv_depth);
    pthread_mutex_unlock(&vp->lock);
}

/* Put the port, whose device, channel and descriptors are there, among the device's. errno, or 0. */
static inline int hetccl_verbs_port_open(hetccl_verbs_port_t *vp) {
    hetccl_verbs_device_t *device = vp->device;
    int fds[] = {vp->channel->fd, device->context->async_fd, vp->news_fd};
    for (int i = 0; i < 3; i++) {
        struct epoll_event event = {.events = EPOLLIN};
        if (epoll_ctl(vp->port.fd, EPOLL_CTL_ADD, fds[i], &event) != 0) return errno;
    }
    pthread_mutex_init(&vp->lock, NULL);
    pthread_mutex_lock(&device->events_lock);
    vp->next = device->ports;
    device->ports = vp;
    pthread_mutex_unlock(&device->events_lock);
    return 0;
}

/* The reverse: no thread leaves an event here any more. */
static inline void hetccl_verbs_port_close(hetccl_verbs_port_t *vp) {
    hetccl_verbs_device_t *device = vp->device;
    pthread_mutex_lock(&device->events_lock);
    hetccl_verbs_port_t **list = &device->ports;
    while (*list != vp) list = &(*list)->next;
    *list = vp->next;
    pthread_mutex_unlock(&device->events_lock);
    pthread_mutex_destroy(&vp->lock);
}

#endif
