/* The fake libibverbs' work requests: posted, carried out, completed, polled.
 *
 * A write is carried out by the process that posts it, when it posts it: by memcpy, or process_vm_writev to another
 * process. What cannot be yet (nobody answers, or the peer has posted no receive) stays at the head of the queue and is
 * tried again at each poll, and by a thread that looks at all queue pairs now and then, until the time is over that the
 * queue pair's attributes give it. All under the arena's lock. */
#ifndef FAKEVERBS_WORK_H
#define FAKEVERBS_WORK_H

#include "fakeverbs_devices.h"

enum { DONE = 0, NO_ANSWER = -1, NOT_READY = -2 }; /* of execute(); above 0: enum hetccl_ibv_wc_status */
enum { VENDOR_ERROR = 0xfa };

typedef struct context {
    hetccl_ibv_context_t public;
    int event_fd; /* the other end of public.async_fd */
    int nlive;
    struct context *next;
} context_t;

typedef struct pd {
    hetccl_ibv_pd_t public;
    int nlive;
} pd_t;

typedef struct channel {
    hetccl_ibv_comp_channel_t public;
    int number, nlive;
} channel_t;

struct qp;

typedef struct done {
    struct done *next;
    struct qp *qp;
    uint32_t nsends; /* places in the send queue that are free once it is polled */
    hetccl_ibv_wc_t wc;
} done_t;

typedef struct cq {
    hetccl_ibv_cq_t public;
    shared_cq_t *shared;
    channel_t *channel;
    done_t *first, **last;
    int npending; /* sends that wait */
    int nlive;
    unsigned nevents; /* handed out and not acknowledged */
} cq_t;

typedef struct send {
    uint64_t wr_id, remote_addr;
    int opcode, flags, nsges;
    uint32_t imm, rkey;
    hetccl_ibv_sge_t sges[SGES_MAX];
    uint8_t copied[INLINE_MAX];
} send_t;

typedef struct qp {
    hetccl_ibv_qp_t public;
    shared_qp_t *shared;
    struct qp *next;
    hetccl_ibv_qp_attr_t attr;
    hetccl_ibv_qp_cap_t cap;
    int signals_all;
    send_t *sends; /* those that wait: [sends_head, sends_tail), modulo the depth */
    uint64_t *recvs;
    uint32_t sends_head, sends_tail, recvs_head, recvs_tail;
    uint32_t noccupied; /* places of the send queue that are taken */
    uint32_t nsilent;   /* of them, carried out without a completion since the last one with */
    int64_t deadline_ns;
} qp_t;

static qp_t *the_qps;
static context_t *the_contexts;

static void cq_push(cq_t *cq, qp_t *qp, const hetccl_ibv_wc_t *wc, uint32_t nsends) {
    done_t *done = malloc(sizeof *done);
    *done = (done_t){NULL, qp, nsends, *wc};
    *cq->last = done;
    cq->last = &done->next;
}

static void send_complete(qp_t *qp, int status) {
    send_t *send = &qp->sends[qp->sends_head++ % qp->cap.max_send_wr];
    cq_t *cq = (cq_t *)qp->public.send_cq;
    int is_read = send->opcode == HETCCL_IBV_WR_RDMA_READ;
    hetccl_ibv_wc_t wc = {.wr_id = send->wr_id, .status = status,
                          .opcode = is_read ? HETCCL_IBV_WC_RDMA_READ : HETCCL_IBV_WC_RDMA_WRITE,
                          .vendor_err = status ? VENDOR_ERROR : 0, .qp_num = qp->public.qp_num};
    cq->npending--;
    qp->nsilent++;
    if (status == HETCCL_IBV_WC_SUCCESS && !qp->signals_all && !(send->flags & HETCCL_IBV_SEND_SIGNALED)) return;
    cq_push(cq, qp, &wc, qp->nsilent);
    cq_came(cq->shared);
    qp->nsilent = 0;
}

static void recv_complete(qp_t *qp, int status, const arrived_t *arrived) {
    hetccl_ibv_wc_t wc = {.wr_id = qp->recvs[qp->recvs_head++ % qp->cap.max_recv_wr], .status = status,
                          .opcode = HETCCL_IBV_WC_RECV_RDMA_WITH_IMM, .qp_num = qp->public.qp_num,
                          .vendor_err = status ? VENDOR_ERROR : 0};
    if (arrived) {
        wc.imm_data = arrived->imm;
        wc.byte_len = arrived->nbytes;
        wc.wc_flags = HETCCL_IBV_WC_WITH_IMM;
    }
    cq_push((cq_t *)qp->public.recv_cq, qp, &wc, 0);
}

static int reachable(const qp_t *qp, const shared_qp_t *peer) {
    const hetccl_ibv_ah_attr_t *to = &qp->attr.ah_attr;
    if (!peer || !alive(peer->pid)) return 0;
    if (peer->state != HETCCL_IBV_QPS_RTR && peer->state != HETCCL_IBV_QPS_RTS) return 0;
    if (peer->peer != qp->public.qp_num || peer->rq_psn != qp->attr.sq_psn) return 0;
    if (to->is_global ? memcmp(&to->grh.dgid, &peer->gid, 16) != 0 : to->dlid != peer->lid) return 0;
    return !is_cut(qp->shared->device) && !is_cut(peer->device);
}

/* Bytes to a process's memory; DONE, or NO_ANSWER. */
static int put(int pid, uint64_t to, const void *from, uint64_t nbytes) {
    if (pid == getpid()) {
        memmove((void *)(uintptr_t)to, from, nbytes);
        return DONE;
    }
    for (uint64_t at = 0; at < nbytes;) {
        struct iovec local = {(char *)from + at, nbytes - at}, remote = {(void *)(uintptr_t)(to + at), nbytes - at};
        ssize_t n = process_vm_writev(pid, &local, 1, &remote, 1, 0);
        if (n <= 0) return NO_ANSWER;
        at += (uint64_t)n;
    }
    return DONE;
}

/* With FAKEVERBS_UNSEEN what comes to a GPU's memory of this process is on its way still when it is complete: it is
 * seen after the device that has written it has read from a GPU, or fakeverbs_show(). */
typedef struct unseen {
    struct unseen *next;
    char device[NAME_CHARS];
    uint64_t to, nbytes;
    uint8_t bytes[];
} unseen_t;

static unseen_t *the_unseen, **last_unseen = &the_unseen;

static void keep_unseen(const char *device, uint64_t to, const void *from, uint64_t nbytes) {
    unseen_t *kept = malloc(sizeof *kept + nbytes);
    *kept = (unseen_t){.to = to, .nbytes = nbytes};
    snprintf(kept->device, sizeof kept->device, "%s", device);
    memcpy(kept->bytes, from, nbytes);
    *last_unseen = kept;
    last_unseen = &kept->next;
}

/* device: NULL: of all. */
static void show_unseen(const char *device) {
    last_unseen = &the_unseen;
    for (unseen_t *kept = the_unseen, *next; kept; kept = next) {
        next = kept->next;
        if (device && strcmp(kept->device, device)) {
            *last_unseen = kept;
            last_unseen = &kept->next;
            continue;
        }
        memcpy((void *)(uintptr_t)kept->to, kept->bytes, kept->nbytes);
        free(kept);
    }
    *last_unseen = NULL;
}

/* Of one's own memory alone: what a loop reads. */
static int execute_read(qp_t *qp, const send_t *send) {
    const hetccl_ibv_sge_t *sge = send->sges;
    shared_mr_t *mr = mr_of(sge->lkey, getpid(), sge->addr, sge->length);
    if (!mr || !(mr->access & HETCCL_IBV_ACCESS_LOCAL_WRITE)) return HETCCL_IBV_WC_LOC_PROT_ERR;
    shared_qp_t *peer = qp_numbered(qp->attr.dest_qp_num);
    if (!reachable(qp, peer)) return NO_ANSWER;
    shared_mr_t *from = mr_of(send->rkey, peer->pid, send->remote_addr, sge->length);
    int allowed = from && from->access & peer->access & HETCCL_IBV_ACCESS_REMOTE_READ && peer->pid == getpid();
    if (!allowed) {
        peer->state = HETCCL_IBV_QPS_ERR;
        return HETCCL_IBV_WC_REM_ACCESS_ERR;
    }
    if (from->is_gpu) show_unseen(peer->device);
    memmove((void *)(uintptr_t)(mr->memory + (sge->addr - mr->address)),
            (void *)(uintptr_t)(from->memory + (send->remote_addr - from->address)), sge->length);
    return DONE;
}

static int execute(qp_t *qp, const send_t *send) {
    if (send->opcode == HETCCL_IBV_WR_RDMA_READ) return execute_read(qp, send);
    uint64_t nbytes = 0;
    int is_inline = send->flags & HETCCL_IBV_SEND_INLINE, has_imm = send->opcode == HETCCL_IBV_WR_RDMA_WRITE_WITH_IMM;
    for (int i = 0; i < send->nsges; i++) {
        const hetccl_ibv_sge_t *sge = &send->sges[i];
        nbytes += sge->length;
        if (is_inline || !sge->length) continue;
        if (!mr_of(sge->lkey, getpid(), sge->addr, sge->length)) return HETCCL_IBV_WC_LOC_PROT_ERR;
    }
    shared_qp_t *peer = qp_numbered(qp->attr.dest_qp_num);
    if (!reachable(qp, peer)) return NO_ANSWER;
    shared_mr_t *to = nbytes ? mr_of(send->rkey, peer->pid, send->remote_addr, nbytes) : NULL;
    if (nbytes && (!to || !(to->access & peer->access & HETCCL_IBV_ACCESS_REMOTE_WRITE))) {
        peer->state = HETCCL_IBV_QPS_ERR;
        return HETCCL_IBV_WC_REM_ACCESS_ERR;
    }
    if (has_imm && !peer->nrecvs) return NOT_READY;
    uint64_t at = to ? to->memory + (send->remote_addr - to->address) : 0;
    int unseen = to && to->is_gpu && peer->pid == getpid() && getenv("FAKEVERBS_UNSEEN") != NULL;
    const uint8_t *copied = send->copied;
    for (int i = 0; i < send->nsges; i++) {
        const hetccl_ibv_sge_t *sge = &send->sges[i];
        shared_mr_t *mr = is_inline || !sge->length ? NULL : mr_of(sge->lkey, getpid(), sge->addr, sge->length);
        const void *from = mr ? (void *)(uintptr_t)(mr->memory + (sge->addr - mr->address)) : copied;
        if (unseen)
            keep_unseen(peer->device, at, from, sge->length);
        else if (put(peer->pid, at, from, sge->length) != DONE)
            return NO_ANSWER;
        at += sge->length;
        copied += is_inline ? sge->length : 0;
    }
    if (has_imm) {
        peer->arrived[peer->tail++ % ARRIVED_MAX] = (arrived_t){send->imm, (uint32_t)nbytes};
        peer->nrecvs--;
        cq_came(&arena->cqs[peer->recv_cq]);
    }
    return DONE;
}

/* How long a request is tried again; 0: for ever. */
static int64_t patience_ns(const qp_t *qp, int reason) {
    if (reason == NO_ANSWER)
        return qp->attr.timeout ? (qp->attr.retry_cnt + INT64_C(1)) * (INT64_C(4096) << qp->attr.timeout) : 0;
    if (qp->attr.rnr_retry == 7) return 0;
    const shared_qp_t *peer = qp_numbered(qp->attr.dest_qp_num);
    int code = peer ? peer->rnr_timer : 0;
    /* InfiniBand's codes, in units of 10 us. */
    int64_t wait = code == 0 ? 65536 : code < 4 ? code : (int64_t)(4 + 2 * (code % 2)) << (code - 4) / 2;
    return (qp->attr.rnr_retry + INT64_C(1)) * wait * 10000;
}

/* Complete all that is posted to a queue pair in state ERR. */
static void flush(qp_t *qp) {
    while (qp->sends_head != qp->sends_tail) send_complete(qp, HETCCL_IBV_WC_WR_FLUSH_ERR);
    for (; qp->recvs_head != qp->recvs_tail; cq_came(((cq_t *)qp->public.recv_cq)->shared))
        recv_complete(qp, HETCCL_IBV_WC_WR_FLUSH_ERR, NULL);
    qp->shared->nrecvs = 0;
}

static void fail(qp_t *qp, int status) {
    qp->shared->state = HETCCL_IBV_QPS_ERR;
    send_complete(qp, status);
}

/* Take in what has come, and carry out what waits. */
static void settle(qp_t *qp) {
    shared_qp_t *shared = qp->shared;
    for (; shared->head != shared->tail; shared->head++)
        recv_complete(qp, HETCCL_IBV_WC_SUCCESS, &shared->arrived[shared->head % ARRIVED_MAX]);
    while (shared->state == HETCCL_IBV_QPS_RTS && qp->sends_head != qp->sends_tail) {
        int answer = execute(qp, &qp->sends[qp->sends_head % qp->cap.max_send_wr]);
        if (answer >= 0) {
            qp->deadline_ns = 0;
            if (answer)
                fail(qp, answer);
            else
                send_complete(qp, HETCCL_IBV_WC_SUCCESS);
            continue;
        }
        int64_t patience = patience_ns(qp, answer);
        if (patience && !qp->deadline_ns) qp->deadline_ns = now_ns() + patience;
        if (!patience || now_ns() < qp->deadline_ns) break;
        fail(qp, answer == NO_ANSWER ? HETCCL_IBV_WC_RETRY_EXC_ERR : HETCCL_IBV_WC_RNR_RETRY_EXC_ERR);
    }
    qp->public.state = shared->state;
    if (shared->state == HETCCL_IBV_QPS_ERR) flush(qp);
}

static int send_check(const qp_t *qp, const hetccl_ibv_send_wr_t *wr, uint64_t *nbytes) {
    *nbytes = 0;
    if (qp->shared->state != HETCCL_IBV_QPS_RTS && qp->shared->state != HETCCL_IBV_QPS_ERR) return EINVAL;
    int reads = wr->opcode == HETCCL_IBV_WR_RDMA_READ;
    int writes = wr->opcode == HETCCL_IBV_WR_RDMA_WRITE || wr->opcode == HETCCL_IBV_WR_RDMA_WRITE_WITH_IMM;
    if (!reads && !writes) return EINVAL;
    if (reads && (wr->num_sge != 1 || wr->send_flags & HETCCL_IBV_SEND_INLINE)) return EINVAL;
    if (reads && !qp->attr.max_rd_atomic) return EINVAL;
    if (wr->num_sge < 0 || wr->num_sge > (int)qp->cap.max_send_sge) return EINVAL;
    for (int i = 0; i < wr->num_sge; i++) *nbytes += wr->sg_list[i].length;
    if (wr->send_flags & HETCCL_IBV_SEND_INLINE && *nbytes > qp->cap.max_inline_data) return EINVAL;
    return qp->noccupied == qp->cap.max_send_wr ? ENOMEM : 0;
}

static int post_send(hetccl_ibv_qp_t *public, hetccl_ibv_send_wr_t *wr, hetccl_ibv_send_wr_t **bad_wr) {
    qp_t *qp = (qp_t *)public;
    int error = 0;
    lock();
    for (; wr; wr = wr->next) {
        uint64_t nbytes;
        error = called("post_send");
        if (!error) error = send_check(qp, wr, &nbytes);
        if (error) break;
        send_t *send = &qp->sends[qp->sends_tail++ % qp->cap.max_send_wr];
        send->wr_id = wr->wr_id;
        send->remote_addr = wr->remote_addr;
        send->opcode = wr->opcode;
        send->flags = (int)wr->send_flags;
        send->nsges = wr->num_sge;
        send->imm = wr->imm_data;
        send->rkey = wr->rkey;
        uint8_t *copied = send->copied;
        for (int i = 0; i < wr->num_sge; i++) {
            send->sges[i] = wr->sg_list[i];
            if (!(wr->send_flags & HETCCL_IBV_SEND_INLINE)) continue;
            memcpy(copied, (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
            copied += wr->sg_list[i].length;
        }
        qp->noccupied++;
        ((cq_t *)public->send_cq)->npending++;
    }
    settle(qp);
    unlock();
    if (error) *bad_wr = wr;
    errno = error;
    return error && getenv("FAKEVERBS_MINUS_ONE") ? -1 : error;
}

static int post_recv(hetccl_ibv_qp_t *public, hetccl_ibv_recv_wr_t *wr, hetccl_ibv_recv_wr_t **bad_wr) {
    qp_t *qp = (qp_t *)public;
    int error = 0;
    lock();
    for (; wr; wr = wr->next) {
        error = called("post_recv");
        if (!error && qp->shared->state == HETCCL_IBV_QPS_RESET) error = EINVAL;
        if (!error && qp->recvs_tail - qp->recvs_head == qp->cap.max_recv_wr) error = ENOMEM;
        if (error) break;
        qp->recvs[qp->recvs_tail++ % qp->cap.max_recv_wr] = wr->wr_id;
        qp->shared->nrecvs++;
    }
    settle(qp);
    unlock();
    if (error) *bad_wr = wr;
    errno = error;
    return error && getenv("FAKEVERBS_MINUS_ONE") ? -1 : error;
}

static int poll_cq(hetccl_ibv_cq_t *public, int nentries, hetccl_ibv_wc_t *wc) {
    cq_t *cq = (cq_t *)public;
    int count = 0;
    /* Pollers that have nothing to do keep out of the way of those that do. */
    if (!*(volatile uint32_t *)&cq->shared->count && !*(volatile int *)&cq->npending) return 0;
    lock();
    for (qp_t *qp = the_qps; qp; qp = qp->next) settle(qp);
    while (count < nentries && cq->first) {
        done_t *done = cq->first;
        cq->first = done->next;
        if (!cq->first) cq->last = &cq->first;
        done->qp->noccupied -= done->nsends;
        wc[count++] = done->wc;
        free(done);
    }
    cq->shared->count -= (uint32_t)count;
    if (cq->shared->overrun) count = -1;
    unlock();
    return count;
}

static int req_notify_cq(hetccl_ibv_cq_t *public, int solicited_only) {
    lock();
    ((cq_t *)public)->shared->armed = !solicited_only;
    unlock();
    return 0;
}

#endif
