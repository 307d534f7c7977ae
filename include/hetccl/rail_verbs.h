/* A rail over an RC queue pair (layer L2). Made and connected by _rdma.QueuePair; used by wire_link.h through the table
 * of rail.h. All under the communicator's mutex, without the GIL.
 *
 * Every write asks for its completion: `completed` then advances without further writes, a full send queue always
 * empties, and the number of a completion is the number of the write. Immediate values take receives, which carry no
 * memory; the wire protocol bounds how many can be on their way, and so many are posted. */
#ifndef HETCCL_RAIL_VERBS_H
#define HETCCL_RAIL_VERBS_H

#include "hetccl/mr_device.h"
#include "hetccl/process.h"
#include "hetccl/verbs_port.h"

static inline int hetccl_verbs_rail_room(hetccl_rail_t *rail) {
    hetccl_verbs_rail_t *vr = (hetccl_verbs_rail_t *)rail;
    if (rail->state != HETCCL_RAIL_UP) return 0;
    return (int)(vr->send_depth - (uint32_t)(rail->posted - rail->completed));
}

static inline int hetccl_verbs_rail_post(hetccl_rail_t *rail, const hetccl_write_t *write, int opcode) {
    hetccl_verbs_rail_t *vr = (hetccl_verbs_rail_t *)rail;
    hetccl_ibv_sge_t pieces[2];
    hetccl_ibv_send_wr_t wr, *bad = NULL;
    size_t nbytes = 0;
    int npieces = 0;
    if (rail->state != HETCCL_RAIL_UP) return HETCCL_ENETWORK;
    if (rail->posted - rail->completed >= vr->send_depth) return HETCCL_AGAIN;
    for (int i = 0; i < 2; i++) {
        if (write->nbytes[i] == 0) continue;
        pieces[npieces++] = (hetccl_ibv_sge_t){(uintptr_t)write->ptr[i], (uint32_t)write->nbytes[i], write->lkey[i]};
        nbytes += write->nbytes[i];
    }
    wr.wr_id = vr->id | ((rail->posted + 1) & (HETCCL_VERBS_RECV_BIT - 1));
    wr.next = NULL;
    wr.sg_list = pieces;
    wr.num_sge = npieces;
    /* What goes inline is read by the CPU. */
    int is_inline = opcode != HETCCL_IBV_WR_RDMA_READ && nbytes <= vr->max_inline &&
                    !(write->flags & HETCCL_WRITE_DEVICE);
    wr.opcode = opcode;
    wr.send_flags = HETCCL_IBV_SEND_SIGNALED | (is_inline ? HETCCL_IBV_SEND_INLINE : 0);
    wr.imm_data = htonl(write->imm);
    wr.remote_addr = write->remote_addr;
    wr.rkey = write->rkey;
    int rc = hetccl_verbs_post_send(vr->qp, &wr, &bad);
    if (rc == 0) {
        rail->posted++;
        vr->sends_left++;
        return HETCCL_DONE;
    }
    int error = hetccl_verbs_errno(rc);
    /* The driver frees places later than it reports them; with nothing under way, waiting would not help. */
    if (error == ENOMEM && rail->posted > rail->completed) return HETCCL_AGAIN;
    hetccl_verbs_rail_fail(vr, HETCCL_FAULT_POST, error, 0);
    return HETCCL_ENETWORK;
}

static inline int hetccl_verbs_rail_write(hetccl_rail_t *rail, const hetccl_write_t *write) {
    int has_imm = write->flags & HETCCL_WRITE_IMM;
    return hetccl_verbs_rail_post(rail, write, has_imm ? HETCCL_IBV_WR_RDMA_WRITE_WITH_IMM : HETCCL_IBV_WR_RDMA_WRITE);
}

static inline int hetccl_verbs_rail_read(hetccl_rail_t *rail, const hetccl_write_t *write) {
    return hetccl_verbs_rail_post(rail, write, HETCCL_IBV_WR_RDMA_READ);
}

static inline int hetccl_verbs_rail_reg(hetccl_rail_t *rail, void *ptr, size_t nbytes, int whose, hetccl_mem_t *mem) {
    return hetccl_mr_cache_get(((hetccl_verbs_rail_t *)rail)->port->device->cache, ptr, nbytes, whose, mem);
}

static inline int hetccl_verbs_rail_reg_device(hetccl_rail_t *rail, const hetccl_runtime_t *runtime,
                                               const hetccl_pointer_t *about, hetccl_mem_t *mem, int *why_p) {
    hetccl_mr_cache_t *cache = ((hetccl_verbs_rail_t *)rail)->port->device->cache;
    return hetccl_mr_cache_get_device(cache, runtime, about, mem, why_p);
}

static inline void hetccl_verbs_rail_dereg(hetccl_rail_t *rail, hetccl_mem_t *mem) {
    hetccl_mr_cache_put(((hetccl_verbs_rail_t *)rail)->port->device->cache, mem);
}

/* How long a device may take to give back the requests of a queue pair in ERR: some no longer complete anything. */
#define HETCCL_VERBS_DRAIN_NS INT64_C(1000000000)

/* Stop the queue pair, so that nothing more goes or comes; take in what has arrived before. 0, or errno of what failed;
 * the caller goes on all the same. */
static inline int hetccl_verbs_rail_drain(hetccl_verbs_rail_t *vr) {
    hetccl_ibv_qp_attr_t attr = {.qp_state = HETCCL_IBV_QPS_ERR};
    int64_t deadline = hetccl_now_ns() + HETCCL_VERBS_DRAIN_NS;
    int rc = vr->port->device->verbs->modify_qp(vr->qp, &attr, HETCCL_IBV_QP_STATE);
    if (rc) return hetccl_verbs_errno(rc);
    while (vr->recv_left || vr->sends_left) {
        if (hetccl_verbs_port_poll(&vr->port->port) == HETCCL_MOVED) continue;
        if (hetccl_now_ns() > deadline) return ETIMEDOUT;
        sched_yield();
    }
    return 0;
}

/* A queue pair that is drained because it is stopped has no fault by that. */
static inline void hetccl_verbs_rail_stop(hetccl_rail_t *rail) {
    hetccl_rail_fault_t fault = rail->fault;
    if (rail->state == HETCCL_RAIL_CLOSED) return;
    rail->state = HETCCL_RAIL_FAILED; /* receives that are taken now are not posted again */
    hetccl_verbs_rail_drain((hetccl_verbs_rail_t *)rail);
    rail->fault = fault;
    rail->state = HETCCL_RAIL_CLOSED;
}

static inline hetccl_rail_t *hetccl_verbs_rail_loop(hetccl_rail_t *rail) {
    return (hetccl_rail_t *)__atomic_load_n(&((hetccl_verbs_rail_t *)rail)->port->loop, __ATOMIC_ACQUIRE);
}

static inline void hetccl_verbs_port_set_loop(hetccl_verbs_port_t *vp, hetccl_verbs_rail_t *loop) {
    __atomic_store_n(&vp->loop, loop, __ATOMIC_RELEASE);
}

static inline void hetccl_verbs_rail_settle(hetccl_rail_t *rail) {
    hetccl_verbs_rail_t *vr = (hetccl_verbs_rail_t *)rail;
    int64_t deadline = hetccl_now_ns() + HETCCL_VERBS_DRAIN_NS;
    while (rail->state == HETCCL_RAIL_UP && rail->completed != rail->posted && hetccl_now_ns() < deadline) {
        if (hetccl_verbs_port_poll(&vr->port->port) != HETCCL_MOVED) sched_yield();
    }
    if (rail->completed != rail->posted) hetccl_verbs_rail_stop(rail);
}

/* Give the queue pair and its slot back. */
static inline void hetccl_verbs_rail_close(hetccl_verbs_rail_t *vr) {
    if (vr->qp == NULL) return;
    if (vr->port->loop == vr) hetccl_verbs_port_set_loop(vr->port, NULL);
    /* Before the slot is free: the rail is where its events are left. */
    vr->port->device->verbs->destroy_qp(vr->qp);
    vr->qp = NULL;
    vr->rail.state = HETCCL_RAIL_CLOSED;
    hetccl_verbs_port_remove(vr->port, vr);
}

#endif
