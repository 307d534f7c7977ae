/* What happens to a wire peer when a rail fails, and how its traffic ends (layer L2).
 *
 * Nothing is sent from the moment a failed rail is noticed until both sides have closed it and told each other what has
 * arrived. What went over it is then repeated over the others: cells and CTS entries from the mirror, in their order;
 * parts of pieces from the source, under the same number. So nothing comes twice, and nothing is written to memory
 * whose piece is complete. */
#ifndef HETCCL_WIRE_FAIL_H
#define HETCCL_WIRE_FAIL_H

#include "hetccl/wire_recv.h"

static void hetccl_wire_arrived(hetccl_wire_peer_t *peer, hetccl_wire_arrived_t *arrived_p) {
    memset(arrived_p, 0, sizeof(*arrived_p));
    for (int cls = 0; cls < HETCCL_WIRE_CLASSES; cls++) {
        hetccl_wire_receiver_t *receiver = hetccl_wire_receiver(peer, cls);
        arrived_p->cells[cls] = receiver->cells_arrived;
        arrived_p->cts[cls] = hetccl_wire_sender(peer, cls)->asks_arrived;
        for (int i = 0; i < HETCCL_WIRE_CTS_MAX; i++) {
            const hetccl_wire_slot_t *slot = &receiver->slots[i];
            if (!slot->busy) continue;
            hetccl_wire_open_t *open = &arrived_p->open[cls][arrived_p->nopen[cls]++];
            open->position = slot->position;
            open->parts = (uint32_t)slot->parts;
            open->mask = slot->mask;
        }
    }
}

/* Ends a rail: stops it, lets its registrations go, and says what has arrived. Its owner closes it afterwards. */
static void hetccl_wire_peer_close_rail(hetccl_wire_peer_t *peer, int index, hetccl_wire_arrived_t *arrived_p) {
    hetccl_rail_t *rail = peer->rails[index];
    if (rail) {
        rail->ops->stop(rail);
        hetccl_wire_let_go(peer, UINT32_C(1) << index);
        hetccl_wire_drop_rail(peer, index);
        peer->failed |= UINT32_C(1) << index;
        peer->untold &= ~(UINT32_C(1) << index);
    }
    hetccl_wire_arrived(peer, arrived_p);
}

/* The first rail that is not known to have failed; if none, the first that is not closed; or NOWHERE. */
static int hetccl_wire_first_rail(const hetccl_wire_peer_t *peer) {
    int first = HETCCL_WIRE_NOWHERE;
    for (int i = peer->nrails - 1; i >= 0; i--) {
        if (!peer->rails[i]) continue;
        if (first == HETCCL_WIRE_NOWHERE || peer->rails[i]->state == HETCCL_RAIL_UP ||
            peer->rails[first]->state != HETCCL_RAIL_UP) {
            first = i;
        }
    }
    return first;
}

/* The later of a position known before and one told: what was told of an earlier rail may be old. */
static inline uint32_t hetccl_wire_later(uint32_t known, uint32_t told) {
    return (int32_t)(told - known) > 0 ? told : known;
}

/* Whether what the peer says it has got can be true. */
static int hetccl_wire_is_possible(hetccl_wire_peer_t *peer, const hetccl_wire_arrived_t *got) {
    for (int cls = 0; cls < HETCCL_WIRE_CLASSES; cls++) {
        const hetccl_wire_sender_t *sender = hetccl_wire_sender(peer, cls);
        const hetccl_wire_receiver_t *receiver = hetccl_wire_receiver(peer, cls);
        if (sender->cells_posted - got->cells[cls] > peer->remote_shape.ncells) return 0;
        if (receiver->cts_posted - got->cts[cls] > HETCCL_WIRE_CTS_MAX) return 0;
        if (got->nopen[cls] > HETCCL_WIRE_CTS_MAX) return 0;
        /* It was complete once: the GPU's memory that it came from may have changed. */
        if ((int32_t)(sender->gathered_until - hetccl_wire_later(sender->cells_known, got->cells[cls])) > 0) return 0;
    }
    return 1;
}

/* A part that was on the closed rail is in place, or goes over the new carrier from its beginning. */
static void hetccl_wire_move_parts(hetccl_wire_peer_t *peer, int cls, int index, const hetccl_wire_arrived_t *got) {
    for (int i = 0; i < HETCCL_WIRE_CTS_MAX; i++) {
        hetccl_wire_ask_t *ask = &hetccl_wire_sender(peer, cls)->asks[i];
        if (!ask->busy) continue;
        uint32_t mask = UINT32_MAX; /* a piece that is not open is complete */
        for (uint32_t j = 0; j < got->nopen[cls]; j++) {
            if (got->open[cls][j].position == ask->entry.position) mask = got->open[cls][j].mask;
        }
        for (int j = 0; j < ask->nparts; j++) {
            hetccl_wire_part_t *part = &ask->parts[j];
            if (part->rail != index || part->state == HETCCL_WIRE_PART_DONE) continue;
            if (mask >> j & 1) {
                part->state = HETCCL_WIRE_PART_DONE;
            } else {
                part->state = HETCCL_WIRE_PART_OPEN;
                part->sent = 0;
                part->rail = peer->carrier;
            }
        }
    }
}

/* Both sides have closed the rail: what the peer has not got is repeated over the others. DONE; or ENETWORK: none is
 * left, or what the peer says is impossible, and the traffic ends. */
static int hetccl_wire_peer_resume(hetccl_wire_peer_t *peer, int index, const hetccl_wire_arrived_t *got) {
    uint32_t bit = UINT32_C(1) << index;
    if (peer->state == HETCCL_WIRE_FAILED) return HETCCL_ENETWORK;
    if (peer->state != HETCCL_WIRE_UP || peer->rails[index] || !(peer->failed & bit)) return HETCCL_DONE;
    int was_carrier = peer->carrier == index;
    int first = hetccl_wire_first_rail(peer);
    if (first == HETCCL_WIRE_NOWHERE || !hetccl_wire_is_possible(peer, got)) {
        peer->state = HETCCL_WIRE_FAILED;
        return HETCCL_ENETWORK;
    }
    if (was_carrier) peer->carrier = first;
    for (int cls = 0; cls < HETCCL_WIRE_CLASSES; cls++) {
        hetccl_wire_sender_t *sender = hetccl_wire_sender(peer, cls);
        hetccl_wire_receiver_t *receiver = hetccl_wire_receiver(peer, cls);
        sender->cells_known = hetccl_wire_later(sender->cells_known, got->cells[cls]);
        receiver->cts_known = hetccl_wire_later(receiver->cts_known, got->cts[cls]);
        if (was_carrier) {
            sender->cells_posted = sender->cells_known;
            receiver->cts_posted = receiver->cts_known;
            receiver->credit_again = 1;
        }
        hetccl_wire_move_parts(peer, cls, index, got);
    }
    peer->failed &= ~bit;
    return HETCCL_DONE;
}

/* The traffic ends, after what has arrived: `state` is HETCCL_WIRE_LOST or HETCCL_WIRE_FAILED, and the first one
 * stands. The ports have been polled. */
static void hetccl_wire_peer_end(hetccl_wire_peer_t *peer, int state) {
    if (peer->state < HETCCL_WIRE_LOST) peer->state = state;
}

/* Sends what has had to wait, and notes rails that have failed: MOVED or AGAIN. */
static int hetccl_wire_peer_poll(hetccl_wire_peer_t *peer) {
    int moved = 0;
    if (!hetccl_wire_may_send(peer)) return HETCCL_AGAIN;
    for (int cls = 0; cls < HETCCL_WIRE_CLASSES; cls++) {
        moved |= hetccl_wire_post_cells(peer, cls);
        moved |= hetccl_wire_post_cts(peer, cls);
        moved |= hetccl_wire_post_credit(peer, cls);
    }
    return moved ? HETCCL_MOVED : HETCCL_AGAIN;
}

/* Whether all that send() has answered DONE for is in the peer's memory, or never will be. */
static int hetccl_wire_peer_is_idle(hetccl_wire_peer_t *peer) {
    if (peer->state != HETCCL_WIRE_UP) return 1;
    for (int cls = 0; cls < HETCCL_WIRE_CLASSES; cls++) {
        const hetccl_wire_sender_t *sender = hetccl_wire_sender(peer, cls);
        const hetccl_wire_receiver_t *receiver = hetccl_wire_receiver(peer, cls);
        if (sender->cells_posted != sender->cells_filled || receiver->cts_posted != receiver->cts_filled) return 0;
    }
    for (int i = 0; i < peer->nrails; i++) {
        if (peer->rails[i] && peer->rails[i]->completed != peer->rails[i]->posted) return 0;
    }
    return hetccl_wire_may_send(peer);
}

#endif
