/* The fake libibverbs' queue pairs: made, led through their states with the attributes that each step needs, given
 * back. */
#ifndef FAKEVERBS_QP_H
#define FAKEVERBS_QP_H

#include "fakeverbs_work.h"

/* What a step must be given, for RC: InfiniBand specification 11.2.5.2. */
enum {
    INIT_NEEDS = HETCCL_IBV_QP_STATE | HETCCL_IBV_QP_PKEY_INDEX | HETCCL_IBV_QP_PORT | HETCCL_IBV_QP_ACCESS_FLAGS,
    RTR_NEEDS = HETCCL_IBV_QP_STATE | HETCCL_IBV_QP_AV | HETCCL_IBV_QP_PATH_MTU | HETCCL_IBV_QP_DEST_QPN |
                HETCCL_IBV_QP_RQ_PSN | HETCCL_IBV_QP_MAX_DEST_RD_ATOMIC | HETCCL_IBV_QP_MIN_RNR_TIMER,
    RTS_NEEDS = HETCCL_IBV_QP_STATE | HETCCL_IBV_QP_TIMEOUT | HETCCL_IBV_QP_RETRY_CNT | HETCCL_IBV_QP_RNR_RETRY |
                HETCCL_IBV_QP_SQ_PSN | HETCCL_IBV_QP_MAX_QP_RD_ATOMIC,
};

static void qp_counted(qp_t *qp, int more) {
    ((pd_t *)qp->public.pd)->nlive += more;
    ((cq_t *)qp->public.send_cq)->nlive += more;
    ((cq_t *)qp->public.recv_cq)->nlive += more;
}

static int cap_check(const hetccl_ibv_context_t *context, const hetccl_ibv_qp_init_attr_t *attr) {
    uint32_t most = (uint32_t)device_of(context)->max_qp_wr;
    if (attr->qp_type != HETCCL_IBV_QPT_RC || !attr->send_cq || !attr->recv_cq || attr->srq) return EINVAL;
    if (!attr->cap.max_send_wr || attr->cap.max_send_wr > most || attr->cap.max_recv_wr > most) return EINVAL;
    if (attr->cap.max_send_sge > SGES_MAX || attr->cap.max_recv_sge > SGES_MAX) return EINVAL;
    return attr->cap.max_inline_data > INLINE_MAX ? EINVAL : 0;
}

API hetccl_ibv_qp_t *ibv_create_qp(hetccl_ibv_pd_t *pd, hetccl_ibv_qp_init_attr_t *attr) {
    int slot = 0, mine = 0, error = called("create_qp");
    if (!error) error = cap_check(pd->context, attr);
    if (error) {
        errno = error;
        return NULL;
    }
    qp_t *qp = calloc(1, sizeof *qp);
    qp->sends = calloc(attr->cap.max_send_wr, sizeof *qp->sends);
    qp->recvs = calloc(attr->cap.max_recv_wr + 1, sizeof *qp->recvs);
    lock();
    for (qp_t *other = the_qps; other; other = other->next) mine++;
    while (slot < QPS_MAX && arena->qps[slot].pid && alive(arena->qps[slot].pid)) slot++;
    if (slot == QPS_MAX || mine >= device_of(pd->context)->max_qp) {
        unlock();
        free(qp->sends);
        free(qp->recvs);
        free(qp);
        errno = ENOMEM;
        return NULL;
    }
    shared_qp_t *shared = qp->shared = &arena->qps[slot];
    shared->generation = shared->generation % 0x7fff + 1;
    shared->number = (uint32_t)slot + shared->generation * QPS_MAX;
    shared->state = HETCCL_IBV_QPS_RESET;
    shared->nrecvs = shared->head = shared->tail = shared->peer = 0;
    shared->recv_cq = (int)attr->recv_cq->handle;
    snprintf(shared->device, NAME_CHARS, "%s", pd->context->device->name);
    shared->pid = getpid();
    qp->public = (hetccl_ibv_qp_t){pd->context, attr->qp_context, pd, attr->send_cq, attr->recv_cq, NULL,
                                   (uint32_t)slot, shared->number, HETCCL_IBV_QPS_RESET, attr->qp_type};
    qp->cap = attr->cap;
    qp->signals_all = attr->sq_sig_all;
    qp->next = the_qps;
    the_qps = qp;
    qp_counted(qp, 1);
    unlock();
    return &qp->public;
}

static void qp_to_init(qp_t *qp, const hetccl_ibv_qp_attr_t *attr) {
    qp->attr.port_num = attr->port_num;
    qp->attr.pkey_index = attr->pkey_index;
    qp->attr.qp_access_flags = attr->qp_access_flags;
    qp->shared->access = (int)attr->qp_access_flags;
    qp->shared->lid = port_of(qp->public.context, attr->port_num)->attr.lid;
}

/* The attributes of RTR, of which the device refuses those that its port has not. */
static int qp_to_rtr(qp_t *qp, const hetccl_ibv_qp_attr_t *attr) {
    const port_t *port = port_of(qp->public.context, qp->attr.port_num);
    const hetccl_ibv_ah_attr_t *to = &attr->ah_attr;
    const hetccl_ibv_gid_t *gid = &port->gids[to->grh.sgid_index].gid;
    int ethernet = port->attr.link_layer == HETCCL_IBV_LINK_LAYER_ETHERNET;
    int has_gid = to->grh.sgid_index < port->attr.gid_tbl_len && (gid->half[0] || gid->half[1]);
    if (to->port_num != qp->attr.port_num) return EINVAL;
    if (attr->path_mtu < 1 || attr->path_mtu > port->attr.active_mtu) return EINVAL;
    if (to->is_global ? !has_gid : ethernet) return EINVAL;
    qp->attr.ah_attr = *to;
    qp->attr.path_mtu = attr->path_mtu;
    qp->attr.dest_qp_num = attr->dest_qp_num;
    qp->attr.rq_psn = attr->rq_psn;
    qp->attr.max_dest_rd_atomic = attr->max_dest_rd_atomic;
    qp->attr.min_rnr_timer = attr->min_rnr_timer;
    qp->shared->gid = *gid;
    qp->shared->peer = attr->dest_qp_num;
    qp->shared->rq_psn = attr->rq_psn;
    qp->shared->rnr_timer = attr->min_rnr_timer;
    return 0;
}

static void qp_to_rts(qp_t *qp, const hetccl_ibv_qp_attr_t *attr) {
    qp->attr.timeout = attr->timeout;
    qp->attr.retry_cnt = attr->retry_cnt;
    qp->attr.rnr_retry = attr->rnr_retry;
    qp->attr.sq_psn = attr->sq_psn;
    qp->attr.max_rd_atomic = attr->max_rd_atomic;
}

static int qp_step(qp_t *qp, const hetccl_ibv_qp_attr_t *attr, int mask) {
    int from = qp->shared->state, to = attr->qp_state, error = 0;
    if (!(mask & HETCCL_IBV_QP_STATE)) return EINVAL;
    if (to == HETCCL_IBV_QPS_ERR) return 0;
    if (to == HETCCL_IBV_QPS_INIT && from == HETCCL_IBV_QPS_RESET && mask == INIT_NEEDS) {
        const port_t *port = port_of(qp->public.context, attr->port_num);
        if (!port || attr->pkey_index >= port->attr.pkey_tbl_len) return EINVAL;
        qp_to_init(qp, attr);
    } else if (to == HETCCL_IBV_QPS_RTR && from == HETCCL_IBV_QPS_INIT && mask == RTR_NEEDS)
        error = qp_to_rtr(qp, attr);
    else if (to == HETCCL_IBV_QPS_RTS && from == HETCCL_IBV_QPS_RTR && mask == RTS_NEEDS)
        qp_to_rts(qp, attr);
    else
        error = EINVAL;
    return error;
}

API int ibv_modify_qp(hetccl_ibv_qp_t *public, hetccl_ibv_qp_attr_t *attr, int mask) {
    qp_t *qp = (qp_t *)public;
    int error = called("modify_qp");
    if (error) return error;
    lock();
    error = qp_step(qp, attr, mask);
    if (!error) {
        qp->shared->state = attr->qp_state;
        settle(qp);
    }
    unlock();
    return error;
}

API int ibv_query_qp(hetccl_ibv_qp_t *public, hetccl_ibv_qp_attr_t *attr, int mask, hetccl_ibv_qp_init_attr_t *init) {
    qp_t *qp = (qp_t *)public;
    int error = called("query_qp");
    (void)mask;
    if (error) return error;
    lock();
    *attr = qp->attr;
    attr->qp_state = attr->cur_qp_state = public->state = qp->shared->state;
    attr->cap = qp->cap;
    *init = (hetccl_ibv_qp_init_attr_t){public->qp_context, public->send_cq, public->recv_cq, NULL, qp->cap,
                                        public->qp_type, qp->signals_all};
    unlock();
    return 0;
}

/* Its completions that nobody has polled go with it. */
static void cq_forget(cq_t *cq, const qp_t *qp) {
    for (done_t **link = &cq->first; *link;) {
        done_t *done = *link;
        if (done->qp != qp) {
            link = &done->next;
            continue;
        }
        *link = done->next;
        if (!*link) cq->last = link;
        cq->shared->count--;
        free(done);
    }
}

API int ibv_destroy_qp(hetccl_ibv_qp_t *public) {
    qp_t *qp = (qp_t *)public, **link = &the_qps;
    int error = called("destroy_qp");
    if (error) return error;
    lock();
    ((cq_t *)public->send_cq)->npending -= (int)(qp->sends_tail - qp->sends_head);
    ((cq_t *)public->recv_cq)->shared->count -= qp->shared->tail - qp->shared->head;
    cq_forget((cq_t *)public->send_cq, qp);
    cq_forget((cq_t *)public->recv_cq, qp);
    while (*link != qp) link = &(*link)->next;
    *link = qp->next;
    qp->shared->pid = 0;
    qp_counted(qp, -1);
    unlock();
    free(qp->sends);
    free(qp->recvs);
    free(qp);
    return 0;
}

#endif
