/* The wire transport (layer L2): hetccl_transport_t to one peer over its rails, by docs/wire-protocol.md. Each of these
 * headers includes the one before it:
 *
 *     wire.h         what lies in the memory that the peers write to: cells, CTS entries; immediate values
 *     wire_peer.h    the state of a peer: structs alone
 *     wire_memory.h  its memory and rails, taken and given back; how a write is posted
 *     wire_device.h  messages whose memory is a GPU's
 *     wire_send.h    the sending half
 *     wire_recv.h    the receiving half
 *     wire_fail.h    a rail that fails; the end of the traffic
 *     wire_link.h    what immediate values do; the table
 *
 * wire_watch.h is beside them: it wakes those who sleep until a rail has something to poll. */
#ifndef HETCCL_WIRE_LINK_H
#define HETCCL_WIRE_LINK_H

#include "hetccl/wire_fail.h"

/* 0: a breach. */
static int hetccl_wire_on_cell(hetccl_wire_peer_t *peer, int cls, uint32_t value) {
    hetccl_wire_receiver_t *receiver = hetccl_wire_receiver(peer, cls);
    if (value != (receiver->cells_arrived & HETCCL_IMM_VALUE_MASK)) return 0;
    if (receiver->cells_arrived - receiver->cells_emptied == peer->wire->shape.ncells) return 0;
    receiver->cells_arrived += 1;
    return 1;
}

static int hetccl_wire_on_credit(hetccl_wire_peer_t *peer, int cls, uint32_t value) {
    hetccl_wire_sender_t *sender = hetccl_wire_sender(peer, cls);
    uint32_t more = (value - sender->cells_freed) & HETCCL_IMM_VALUE_MASK;
    if (more > sender->cells_posted - sender->cells_freed) return 0;
    sender->cells_freed += more;
    return 1;
}

/* A rail tells what has come. */
static void hetccl_wire_on_imm(void *state, int rail, uint32_t imm) {
    hetccl_wire_peer_t *peer = state;
    int cls = (int)HETCCL_IMM_CLASS(imm), good = 1, breach = 0;
    uint32_t value = HETCCL_IMM_VALUE(imm);
    if (peer->state < HETCCL_WIRE_READY || peer->state == HETCCL_WIRE_FAILED || peer->quiet) return;
    if (HETCCL_IMM_KIND(imm) == HETCCL_IMM_FIN) {
        good = hetccl_wire_on_fin(peer, cls, rail, imm), breach = HETCCL_BREACH_FIN;
    } else if (HETCCL_IMM_KIND(imm) == HETCCL_IMM_CELL) {
        good = hetccl_wire_on_cell(peer, cls, value), breach = HETCCL_BREACH_CELL;
    } else if (HETCCL_IMM_KIND(imm) == HETCCL_IMM_CTS) {
        good = hetccl_wire_on_cts(peer, cls, value), breach = HETCCL_BREACH_CTS;
    } else {
        good = hetccl_wire_on_credit(peer, cls, value), breach = HETCCL_BREACH_CREDIT;
    }
    if (!good) hetccl_wire_breach(peer, rail, breach);
}

static const hetccl_transport_t hetccl_wire_transport = {
    .name = "wire",
    .send = hetccl_wire_send,
    .recv = hetccl_wire_recv,
    .available = hetccl_wire_available,
    .fetch = hetccl_wire_fetch,
    .consume = hetccl_wire_consume,
    .peek = hetccl_wire_peek,
    .set_aside = hetccl_wire_set_aside,
    .recv_aside = hetccl_wire_recv_aside,
};

#endif
