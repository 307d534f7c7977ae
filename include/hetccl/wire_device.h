/* Messages whose memory is a GPU's (layer L2): registered on all rails before the first byte moves, or refused; never
 * touched by the CPU.
 *
 * The peer cannot tell: the bytes on the wire are those of any message. A sender writes pieces straight from the GPU,
 * and the payload of an eager cell too, as the first of two pieces of the write that brings the cell. A receiver has
 * pieces written straight to the GPU; what has come eagerly, in host memory of its own, is carried over by the device:
 * written through its *loop*, a rail to itself. No stream, event or copy of the runtime's is involved, since a call of
 * the runtime's may wait, in the thread and under the mutex that everything else waits for.
 *
 * The one exception is the flush. What an RDMA device has written may not be seen by the GPU yet when its completion is
 * there; so before a receive is done: nothing, where the GPU orders such writes itself; else the runtime's flush, which
 * waits for writes on the bus alone; else each device that has written reads one byte back through its loop, which on
 * PCIe comes after what the same device wrote before. */
#ifndef HETCCL_WIRE_DEVICE_H
#define HETCCL_WIRE_DEVICE_H

#include "hetccl/mr_direct.h"
#include "hetccl/message.h"
#include "hetccl/wire_memory.h"

static inline int hetccl_wire_is_device(const hetccl_msg_t *msg) {
    return msg->device.runtime != NULL && msg->nbytes > 0;
}

static inline int hetccl_wire_not_direct(hetccl_msg_t *msg, int why) {
    msg->error = why;
    return HETCCL_EDIRECT;
}

/* Registers a message's memory on all rails. DONE; EDIRECT, *rail_p being the first rail that cannot, or NOWHERE; or
 * AGAIN: there is no rail any more. */
static int hetccl_wire_register_device(hetccl_wire_peer_t *peer, hetccl_msg_t *msg, hetccl_pointer_t *about,
                                       hetccl_mem_t *mem, uint32_t *rails_p, int *rail_p) {
    const hetccl_runtime_t *runtime = msg->device.runtime;
    int why = hetccl_direct_about(runtime, msg->device.address, msg->nbytes, about);
    *rails_p = 0;
    *rail_p = HETCCL_WIRE_NOWHERE;
    for (int i = 0; !why && i < peer->nrails; i++) {
        hetccl_rail_t *rail = peer->rails[i];
        if (!rail) continue;
        if (!rail->ops->reg_device) {
            why = HETCCL_DIRECT_TCP;
        } else if (rail->ops->reg_device(rail, runtime, about, &mem[i], &why) == HETCCL_DONE) {
            *rails_p |= UINT32_C(1) << i;
            peer->loops[i] = rail->ops->loop(rail);
            why = HETCCL_DIRECT;
        }
        if (why) *rail_p = i;
    }
    if (!why) return *rails_p ? HETCCL_DONE : HETCCL_AGAIN;
    hetccl_wire_deregister_user(peer, mem, rails_p, UINT32_MAX);
    return hetccl_wire_not_direct(msg, why);
}

/* How a receive into memory of this device must be flushed: enum hetccl_wire_flush. */
static int hetccl_wire_flush_of(const hetccl_msg_t *msg, int device) {
    const hetccl_runtime_t *runtime = msg->device.runtime;
    int wanted = msg->flags & HETCCL_MSG_ALL_DEVICES ? HETCCL_RDMA_ALL_DEVICES : HETCCL_RDMA_OWNER;
    int scope = HETCCL_RDMA_NOBODY, flushable = 0;
    if (runtime->rdma_ordering(device, &scope, &flushable) != 0) return HETCCL_WIRE_FLUSH_READ;
    if (scope >= wanted) return HETCCL_WIRE_FLUSH_NONE;
    return flushable ? HETCCL_WIRE_FLUSH_RUNTIME : HETCCL_WIRE_FLUSH_READ;
}

static inline int hetccl_wire_loop_is_up(const hetccl_rail_t *loop) {
    return loop != NULL && loop->state == HETCCL_RAIL_UP;
}

/* Whether all rails that know the memory have a loop to flush by. */
static int hetccl_wire_can_read_back(const hetccl_wire_peer_t *peer, uint32_t rails) {
    for (int i = 0; i < peer->nrails; i++) {
        if (rails >> i & 1 && !hetccl_wire_loop_is_up(peer->loops[i])) return 0;
    }
    return 1;
}

/* A rail whose loop can carry the message over, or NOWHERE. */
static int hetccl_wire_loop_for(const hetccl_wire_peer_t *peer, uint32_t rails) {
    for (int i = 0; i < peer->nrails; i++) {
        if (rails >> i & 1 && hetccl_wire_loop_is_up(peer->loops[i])) return i;
    }
    return HETCCL_WIRE_NOWHERE;
}

/* Prepares to receive into a GPU's memory; `carried`: what came eagerly. As hetccl_wire_register_device(). */
static int hetccl_wire_device_in(hetccl_wire_peer_t *peer, hetccl_wire_in_t *in, hetccl_msg_t *msg, int carried) {
    hetccl_pointer_t about;
    int rail;
    int status = hetccl_wire_register_device(peer, msg, &about, in->mem, &in->mem_rails, &rail);
    if (status != HETCCL_DONE) return status;
    in->runtime = msg->device.runtime;
    in->device = about.device;
    in->scope = msg->flags & HETCCL_MSG_ALL_DEVICES ? HETCCL_RDMA_ALL_DEVICES : HETCCL_RDMA_OWNER;
    in->flush = (int8_t)hetccl_wire_flush_of(msg, about.device);
    in->direct = (uint8_t *)msg->device.address;
    in->carrier = (int8_t)(carried ? hetccl_wire_loop_for(peer, in->mem_rails) : HETCCL_WIRE_NOWHERE);
    int lacks = in->flush == HETCCL_WIRE_FLUSH_READ && !hetccl_wire_can_read_back(peer, in->mem_rails);
    if (!lacks && !(carried && in->carrier == HETCCL_WIRE_NOWHERE)) return HETCCL_DONE;
    hetccl_wire_deregister_user(peer, in->mem, &in->mem_rails, UINT32_MAX);
    return hetccl_wire_not_direct(msg, HETCCL_DIRECT_LOOP);
}

/* Notes what was posted on a loop. A peer that is lost may be the last one that is polled: nobody else would see it
 * completed. */
static void hetccl_wire_looped(hetccl_wire_peer_t *peer, int index) {
    hetccl_rail_t *loop = peer->loops[index];
    peer->tables->looped[index] = loop->posted;
    if (peer->state >= HETCCL_WIRE_LOST) loop->ops->settle(loop);
}

/* Posts one read of the first byte; the byte itself is of no use. */
static int hetccl_wire_read_back(hetccl_wire_peer_t *peer, const hetccl_wire_in_t *in, int index) {
    hetccl_rail_t *loop = peer->loops[index];
    hetccl_write_t read = {
        .ptr = {peer->own + peer->own_nbytes - HETCCL_WIRE_SINK_BYTES},
        .nbytes = {1},
        .lkey = {peer->own_mem[index].lkey},
        .remote_addr = (uint64_t)(uintptr_t)in->direct,
        .rkey = in->mem[index].rkey,
        .flags = HETCCL_WRITE_DEVICE,
    };
    int status = loop->ops->read(loop, &read);
    if (status != HETCCL_DONE) return status;
    peer->tables->counters.read_backs += 1;
    hetccl_wire_looped(peer, index);
    return HETCCL_DONE;
}

/* By reading back from each device that has written: DONE, AGAIN, or EDIRECT. */
static int hetccl_wire_flush_by_reading(hetccl_wire_peer_t *peer, hetccl_wire_in_t *in, hetccl_msg_t *msg) {
    int done = 1;
    if (peer->state >= HETCCL_WIRE_LOST) hetccl_wire_settle_loops(peer);
    for (int i = 0; i < peer->nrails; i++) {
        hetccl_rail_t *loop = peer->loops[i];
        if (!(in->came >> i & 1)) continue;
        if (!(in->reading >> i & 1) && hetccl_wire_loop_is_up(loop) && in->mem_rails >> i & 1) {
            if (hetccl_wire_read_back(peer, in, i) == HETCCL_DONE) {
                in->reading |= (uint8_t)(1 << i);
                in->read_number[i] = peer->tables->looped[i];
            }
        }
        if (in->reading >> i & 1 && loop->completed >= in->read_number[i]) continue;
        if (!hetccl_wire_loop_is_up(loop)) return hetccl_wire_not_direct(msg, HETCCL_DIRECT_FLUSH);
        done = 0;
    }
    return done ? HETCCL_DONE : HETCCL_AGAIN;
}

/* All bytes are written: DONE once they are seen, too. */
static int hetccl_wire_flush(hetccl_wire_peer_t *peer, hetccl_wire_in_t *in, hetccl_msg_t *msg) {
    void *saved;
    if (in->flush == HETCCL_WIRE_FLUSH_READ) return hetccl_wire_flush_by_reading(peer, in, msg);
    if (in->flush == HETCCL_WIRE_FLUSH_NONE) return HETCCL_DONE;
    int code = in->runtime->enter(in->device, &saved);
    if (code) return hetccl_wire_not_direct(msg, HETCCL_DIRECT_FLUSH);
    code = in->runtime->rdma_flush(in->scope);
    in->runtime->leave(saved);
    if (code) return hetccl_wire_not_direct(msg, HETCCL_DIRECT_FLUSH);
    peer->tables->counters.flushes += 1;
    return HETCCL_DONE;
}

/* Carries a message over that has come eagerly: from `source`, which may go once in->asked is all, through staging
 * memory. MOVED, AGAIN, or EDIRECT; in->all: it is over. */
static int hetccl_wire_carry(hetccl_wire_peer_t *peer, hetccl_wire_in_t *in, const uint8_t *source,
                             hetccl_msg_t *msg) {
    hetccl_rail_t *loop = peer->loops[in->carrier];
    int moved = 0;
    while (in->asked < in->total && hetccl_wire_loop_is_up(loop) && loop->ops->room(loop) > 0) {
        int chunk = hetccl_wire_free_chunk(peer);
        if (chunk == HETCCL_WIRE_NOWHERE) break;
        size_t left = in->total - in->asked, nbytes = left < peer->wire->chunk_bytes ? left : peer->wire->chunk_bytes;
        uint8_t *place = peer->staging + (size_t)chunk * peer->wire->chunk_bytes;
        memcpy(place, source + in->asked, nbytes);
        hetccl_write_t write = {
            .ptr = {place},
            .nbytes = {nbytes},
            .lkey = {peer->own_mem[in->carrier].lkey},
            .remote_addr = (uint64_t)(uintptr_t)in->direct + in->asked,
            .rkey = in->mem[in->carrier].rkey,
        };
        if (loop->ops->write(loop, &write) != HETCCL_DONE) break;
        hetccl_wire_looped(peer, in->carrier);
        in->carry_number = peer->tables->looped[in->carrier];
        peer->tables->staging_marks[chunk] =
            (hetccl_wire_mark_t){.number = in->carry_number, .rail = HETCCL_RAILS + in->carrier};
        in->asked += nbytes;
        in->came = (uint8_t)(1 << in->carrier);
        peer->tables->counters.carried_in += nbytes;
        moved = 1;
    }
    if (peer->state >= HETCCL_WIRE_LOST) hetccl_wire_settle_loops(peer);
    in->all = in->asked == in->total && loop->completed >= in->carry_number;
    if (!in->all && !hetccl_wire_loop_is_up(loop)) return hetccl_wire_not_direct(msg, HETCCL_DIRECT_FLUSH);
    return moved || in->all ? HETCCL_MOVED : HETCCL_AGAIN;
}

/* Whether memory of a GPU can go to the peer, and come from it, without a copy: 0, or enum hetccl_direct, *rail_p being
 * the rail that cannot, or NOWHERE. What is found out stays known: the allocation is registered from now on. */
static int hetccl_wire_direct(hetccl_wire_peer_t *peer, const hetccl_runtime_t *runtime, uintptr_t address,
                              size_t nbytes, uint32_t flags, int *rail_p) {
    hetccl_msg_t msg = {.nbytes = nbytes, .flags = flags, .device = {.runtime = runtime, .address = address}};
    hetccl_mem_t mem[HETCCL_RAILS] = {{0}};
    hetccl_pointer_t about;
    uint32_t rails;
    int why = HETCCL_DIRECT;
    *rail_p = HETCCL_WIRE_NOWHERE;
    if (peer->state != HETCCL_WIRE_READY && peer->state != HETCCL_WIRE_UP) return HETCCL_DIRECT_UNCONNECTED;
    if (nbytes == 0) return HETCCL_DIRECT;
    int status = hetccl_wire_register_device(peer, &msg, &about, mem, &rails, rail_p);
    if (status != HETCCL_DONE) return status == HETCCL_AGAIN ? HETCCL_DIRECT_UNCONNECTED : msg.error;
    if (hetccl_wire_loop_for(peer, rails) == HETCCL_WIRE_NOWHERE) why = HETCCL_DIRECT_LOOP;
    int reads = hetccl_wire_flush_of(&msg, about.device) == HETCCL_WIRE_FLUSH_READ;
    if (reads && !hetccl_wire_can_read_back(peer, rails)) why = HETCCL_DIRECT_LOOP;
    hetccl_wire_deregister_user(peer, mem, &rails, UINT32_MAX);
    return why;
}

#endif
