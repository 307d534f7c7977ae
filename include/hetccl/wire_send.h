/* The sending half of a wire peer (layer L2): cells, and the pieces of messages that the peer has asked for. */
#ifndef HETCCL_WIRE_SEND_H
#define HETCCL_WIRE_SEND_H

#include "hetccl/wire_device.h"

static inline hetccl_wire_sender_t *hetccl_wire_sender(hetccl_wire_peer_t *peer, int cls) {
    return &peer->tables->senders[cls];
}

/* Where in a cell the payload of so many bytes begins. */
static inline size_t hetccl_wire_payload_at(const hetccl_wire_shape_t *shape, size_t nbytes) {
    size_t rounded = (nbytes + HETCCL_WIRE_ALIGN - 1) / HETCCL_WIRE_ALIGN * HETCCL_WIRE_ALIGN;
    return hetccl_wire_payload_bytes(shape) - rounded;
}

/* Of the peer's inbox, and so of the mirror. */
static inline size_t hetccl_wire_cell_offset(const hetccl_wire_peer_t *peer, int cls, uint32_t position) {
    const hetccl_wire_shape_t *shape = &peer->remote_shape;
    return hetccl_wire_cells_at(shape, cls) + (position & (shape->ncells - 1)) * (size_t)shape->cell_bytes;
}

static inline hetccl_wire_mark_t *hetccl_wire_cell_mark(hetccl_wire_peer_t *peer, int cls, uint32_t position) {
    return &hetccl_wire_sender(peer, cls)->cell_marks[position & (peer->remote_shape.ncells - 1)];
}

/* The message whose payload the cell at this position brings from a GPU's memory, or NULL. */
static const hetccl_wire_out_t *hetccl_wire_gathered(const hetccl_wire_sender_t *sender, uint32_t position) {
    for (int i = 0; i < HETCCL_WIRE_OUT_MAX; i++) {
        const hetccl_wire_out_t *out = &sender->outs[i];
        if (out->busy && out->in_cell && out->cell == position) return out;
    }
    return NULL;
}

/* Writes a cell from the mirror, but its payload from a GPU's memory. */
static int hetccl_wire_post_gathered(hetccl_wire_peer_t *peer, size_t offset, size_t nbytes, uint32_t imm,
                                     const hetccl_wire_out_t *out, hetccl_wire_mark_t *mark_p) {
    int rail = peer->carrier;
    hetccl_write_t write = {
        .ptr = {out->direct, peer->mirror + offset + out->total},
        .nbytes = {out->total, nbytes - out->total},
        .lkey = {out->mem[rail].lkey, peer->mirror_mem[rail].lkey},
        .remote_addr = peer->remote_address + offset,
        .rkey = peer->remote_rkey[rail],
        .imm = imm,
        .flags = HETCCL_WRITE_IMM | HETCCL_WRITE_DEVICE,
    };
    peer->tables->counters.gathered_out += out->total;
    return hetccl_wire_post(peer, rail, &write, mark_p);
}

/* Posts what is filled, from the mirror: after a rail has failed, also what may have been lost. Whether any moved. */
static int hetccl_wire_post_cells(hetccl_wire_peer_t *peer, int cls) {
    hetccl_wire_sender_t *sender = hetccl_wire_sender(peer, cls);
    const hetccl_wire_shape_t *shape = &peer->remote_shape;
    uint32_t before = sender->cells_posted;
    while (sender->cells_posted != sender->cells_filled && hetccl_wire_has_room(peer)) {
        uint32_t position = sender->cells_posted;
        size_t offset = hetccl_wire_cell_offset(peer, cls, position);
        const hetccl_wire_cell_t *header =
            (const hetccl_wire_cell_t *)(peer->mirror + offset + hetccl_wire_payload_bytes(shape));
        int eager = header->kind == HETCCL_WIRE_EAGER;
        size_t begin = hetccl_wire_payload_at(shape, eager ? header->nbytes : 0);
        uint32_t imm = HETCCL_IMM(HETCCL_IMM_CELL, cls, 1, 0, position);
        uint32_t hint = hetccl_wire_hint(position, shape->ncells);
        size_t nbytes = shape->cell_bytes - begin;
        hetccl_wire_mark_t *mark = hetccl_wire_cell_mark(peer, cls, position);
        const hetccl_wire_out_t *out = sender->ngathered > 0 ? hetccl_wire_gathered(sender, position) : NULL;
        int posted = out ? hetccl_wire_post_gathered(peer, offset + begin, nbytes, imm, out, mark)
                         : hetccl_wire_post_mirror(peer, offset + begin, nbytes, imm, hint, mark);
        if (!posted) break;
        sender->cells_posted += 1;
        *(eager ? &peer->tables->counters.eager : &peer->tables->counters.rts) += 1;
    }
    return sender->cells_posted != before;
}

/* Whether a new cell can be filled and posted now. */
static int hetccl_wire_has_cell(hetccl_wire_peer_t *peer, int cls) {
    hetccl_wire_sender_t *sender = hetccl_wire_sender(peer, cls);
    if (sender->cells_posted != sender->cells_filled) return 0;
    if (sender->cells_filled - sender->cells_freed == peer->remote_shape.ncells) return 0;
    if (!hetccl_wire_is_free(peer, hetccl_wire_cell_mark(peer, cls, sender->cells_filled))) return 0;
    return hetccl_wire_has_room(peer);
}

/* From here on the message is under way: a cell that is filled is posted, now or when a rail has taken over. */
static void hetccl_wire_put_cell(hetccl_wire_peer_t *peer, int cls, hetccl_msg_t *msg, int kind) {
    hetccl_wire_sender_t *sender = hetccl_wire_sender(peer, cls);
    const hetccl_wire_shape_t *shape = &peer->remote_shape;
    uint8_t *cell = peer->mirror + hetccl_wire_cell_offset(peer, cls, sender->cells_filled);
    hetccl_wire_cell_t *header = (hetccl_wire_cell_t *)(cell + hetccl_wire_payload_bytes(shape));
    if (kind == HETCCL_WIRE_EAGER && !hetccl_wire_is_device(msg)) {
        hetccl_msg_get(msg, 0, msg->nbytes, cell + hetccl_wire_payload_at(shape, msg->nbytes));
    }
    memset(header, 0, sizeof(*header));
    header->nbytes = msg->nbytes;
    header->seq = msg->seq = sender->seq;
    header->tag = msg->tag;
    header->position = sender->cells_filled;
    header->kind = (uint16_t)kind;
    sender->seq += 1;
    sender->cells_filled += 1;
    hetccl_wire_post_cells(peer, cls);
}

/* The message of this number that has met its first ask: whether asks fit one that has not is for meet() to say. */
static hetccl_wire_out_t *hetccl_wire_find_out(hetccl_wire_sender_t *sender, uint32_t seq) {
    for (int i = 0; i < HETCCL_WIRE_OUT_MAX; i++) {
        hetccl_wire_out_t *out = &sender->outs[i];
        if (out->busy && out->seq == seq && !(out->device && out->asked == 0)) return out;
    }
    return NULL;
}

/* Gives the ask at this index to the message; 0: it does not continue what the message was asked for before. */
static int hetccl_wire_claim_ask(hetccl_wire_sender_t *sender, hetccl_wire_out_t *out, int index) {
    hetccl_wire_ask_t *ask = &sender->asks[index];
    const hetccl_wire_cts_t *entry = &ask->entry;
    if (entry->total != out->total || entry->tag != out->tag || entry->offset != out->asked) return 0;
    ask->claimed = 1;
    out->asked += entry->nbytes;
    if (out->last == HETCCL_WIRE_NOWHERE) {
        out->first = (int8_t)index;
    } else {
        sender->asks[out->last].next = (int8_t)index;
    }
    out->last = (int8_t)index;
    return 1;
}

/* An ask that is done: its entry may be used again. */
static void hetccl_wire_retire_ask(hetccl_wire_sender_t *sender, hetccl_wire_out_t *out, int index) {
    hetccl_wire_ask_t *ask = &sender->asks[index];
    int before = HETCCL_WIRE_NOWHERE;
    for (int i = out->first; i != index; i = sender->asks[i].next) before = i;
    if (before == HETCCL_WIRE_NOWHERE) {
        out->first = ask->next;
    } else {
        sender->asks[before].next = ask->next;
    }
    if (out->last == index) out->last = (int8_t)before;
    out->finished += ask->entry.nbytes;
    out->any = 1;
    ask->busy = 0;
}

/* An entry may come into a place whose last piece was sent and not yet told to be complete: that it comes says so. */
static int hetccl_wire_make_way(hetccl_wire_sender_t *sender, int index) {
    hetccl_wire_ask_t *ask = &sender->asks[index];
    if (!ask->busy) return 1;
    hetccl_wire_out_t *out = ask->claimed ? hetccl_wire_find_out(sender, ask->entry.seq) : NULL;
    if (!out || ask->nparts == 0) return 0;
    for (int i = 0; i < ask->nparts; i++) {
        if (ask->parts[i].state == HETCCL_WIRE_PART_OPEN) return 0;
    }
    hetccl_wire_retire_ask(sender, out, index);
    return 1;
}

static int hetccl_wire_cts_is_good(const hetccl_wire_peer_t *peer, int cls, const hetccl_wire_cts_t *entry,
                                   uint32_t position, uint32_t next_seq) {
    if (entry->position != position || entry->reserved != 0) return 0;
    if (entry->offset > entry->total || entry->nbytes > entry->total - entry->offset) return 0;
    if (entry->nbytes == 0 && entry->total > 0) return 0;
    if ((int32_t)(entry->seq - next_seq) < 0) return 1;
    return cls == 0 && entry->total > hetccl_wire_payload_bytes(&peer->remote_shape);
}

/* The peer's next CTS entry is in place. 0: a breach. */
static int hetccl_wire_on_cts(hetccl_wire_peer_t *peer, int cls, uint32_t value) {
    hetccl_wire_sender_t *sender = hetccl_wire_sender(peer, cls);
    uint32_t position = sender->asks_arrived;
    int index = (int)(position % HETCCL_WIRE_CTS_MAX);
    hetccl_wire_ask_t *ask = &sender->asks[index];
    if (value != (position & HETCCL_IMM_VALUE_MASK) || !hetccl_wire_make_way(sender, index)) return 0;
    memset(ask, 0, sizeof(*ask));
    memcpy(&ask->entry, peer->own + hetccl_wire_cts_at(cls) + index * sizeof(ask->entry), sizeof(ask->entry));
    if (!hetccl_wire_cts_is_good(peer, cls, &ask->entry, position, sender->seq)) return 0;
    ask->busy = 1;
    ask->next = HETCCL_WIRE_NOWHERE;
    sender->asks_arrived += 1;
    hetccl_wire_out_t *out = hetccl_wire_find_out(sender, ask->entry.seq);
    if (out) return hetccl_wire_claim_ask(sender, out, index);
    sender->nwaiting += 1;
    return 1;
}

/* How a message was met by the asks that came before it looked. */
enum hetccl_wire_met { HETCCL_WIRE_UNASKED, HETCCL_WIRE_ASKED, HETCCL_WIRE_BUSY, HETCCL_WIRE_WRONG };

static void hetccl_wire_init_out(hetccl_wire_out_t *out, const hetccl_msg_t *msg) {
    memset(out, 0, sizeof(*out));
    out->seq = msg->seq, out->tag = msg->tag, out->total = msg->nbytes;
    out->first = out->last = HETCCL_WIRE_NOWHERE;
}

/* Looks for asks for a message, in the order in which they came. Those that do not fit it are void where the peer asks
 * beforehand (class 0). `fits`: 0 where none can, as the message goes eagerly. out: of a GPU's memory; else NULL. */
static int hetccl_wire_meet(hetccl_wire_peer_t *peer, int cls, hetccl_msg_t *msg, int fits, hetccl_wire_out_t *out) {
    hetccl_wire_sender_t *sender = hetccl_wire_sender(peer, cls);
    for (int i = 0; sender->nwaiting > 0 && i < HETCCL_WIRE_CTS_MAX; i++) {
        int index = (int)((sender->asks_arrived + i) % HETCCL_WIRE_CTS_MAX);
        hetccl_wire_ask_t *ask = &sender->asks[index];
        if (!ask->busy || ask->claimed || ask->entry.seq != msg->seq) continue;
        if (fits && !out) {
            for (out = sender->outs; out->busy; out++) {
                if (out == &sender->outs[HETCCL_WIRE_OUT_MAX - 1]) return HETCCL_WIRE_BUSY;
            }
            hetccl_wire_init_out(out, msg);
        }
        if (fits && hetccl_wire_claim_ask(sender, out, index)) {
            out->busy = 1;
        } else if (cls == 0) {
            ask->busy = 0;
        } else {
            return HETCCL_WIRE_WRONG;
        }
        sender->nwaiting -= 1;
    }
    if (!out || out->first == HETCCL_WIRE_NOWHERE) return HETCCL_WIRE_UNASKED;
    uint8_t *run = msg->nbytes > 0 ? hetccl_msg_only_run(msg) : NULL;
    if (run && !out->device && hetccl_wire_register_user(peer, run, msg->nbytes, out->mem, &out->mem_rails))
        out->direct = run;
    msg->slot = (int32_t)(out - sender->outs) + 1;
    return HETCCL_WIRE_ASKED;
}

/* Cuts a piece over the rails that are up. Short ones go whole, over the rail that small messages take. */
static void hetccl_wire_cut(hetccl_wire_peer_t *peer, hetccl_wire_ask_t *ask) {
    int up[HETCCL_RAILS], nup = 0;
    size_t nbytes = ask->entry.nbytes, most = nbytes / peer->wire->cut_bytes;
    for (int i = 0; i < peer->nrails; i++) {
        if (peer->rails[i]) up[nup++] = i;
    }
    int n = most < (size_t)nup ? (int)most : nup;
    int first = n > 0 ? (int)(ask->entry.position % (uint32_t)nup) : 0;
    n = n > 1 ? n : 1;
    /* Whole cache lines, so that the last part may be shorter. */
    size_t lines = (size_t)n * 64, step = n == 1 ? nbytes : (nbytes / lines + (nbytes % lines != 0)) * 64;
    for (int i = 0; i < n; i++) {
        hetccl_wire_part_t *part = &ask->parts[i];
        part->begin = i * step < nbytes ? i * step : nbytes;
        part->nbytes = step < nbytes - part->begin ? step : nbytes - part->begin;
        part->rail = most > 0 ? up[(first + i) % nup] : peer->carrier;
    }
    ask->nparts = (int8_t)n;
}

/* Posts one write of a part, if that goes now. */
static int hetccl_wire_push(hetccl_wire_peer_t *peer, int cls, const hetccl_msg_t *msg, hetccl_wire_out_t *out,
                            hetccl_wire_ask_t *ask, int which) {
    hetccl_wire_part_t *part = &ask->parts[which];
    hetccl_rail_t *rail = peer->rails[part->rail];
    if (part->state != HETCCL_WIRE_PART_OPEN || !rail || rail->ops->room(rail) < 1) return 0;
    size_t at = part->begin + part->sent, left = part->nbytes - part->sent;
    size_t most = rail->ops->max_write < HETCCL_WIRE_MOST_WRITE ? rail->ops->max_write : HETCCL_WIRE_MOST_WRITE;
    if (!out->direct && most > peer->wire->chunk_bytes) most = peer->wire->chunk_bytes;
    size_t nbytes = left < most ? left : most;
    int chunk = HETCCL_WIRE_NOWHERE;
    hetccl_write_t write = {
        .nbytes = {nbytes}, .remote_addr = ask->entry.address + at, .rkey = ask->entry.rkey[part->rail]};
    if (out->direct) {
        write.ptr[0] = out->direct + ask->entry.offset + at;
        write.lkey[0] = out->mem[part->rail].lkey;
    } else if (nbytes > 0) {
        chunk = hetccl_wire_free_chunk(peer);
        if (chunk == HETCCL_WIRE_NOWHERE) return 0;
        uint8_t *staging = peer->staging + (size_t)chunk * peer->wire->chunk_bytes;
        hetccl_msg_get(msg, ask->entry.offset + at, nbytes, staging);
        write.ptr[0] = staging;
        write.lkey[0] = peer->own_mem[part->rail].lkey;
    }
    if (out->device) write.flags = HETCCL_WRITE_DEVICE;
    if (nbytes == left) {
        write.flags |= HETCCL_WRITE_IMM;
        write.imm = HETCCL_IMM(HETCCL_IMM_FIN, cls, ask->nparts, which, ask->entry.position);
    }
    if (!hetccl_wire_post(peer, part->rail, &write, &part->mark)) return 0;
    if (chunk != HETCCL_WIRE_NOWHERE) peer->tables->staging_marks[chunk] = part->mark;
    *(out->direct ? &peer->tables->counters.direct_out : &peer->tables->counters.staged_out) += nbytes;
    out->last_write[part->rail] = part->mark.number;
    part->sent += nbytes;
    if (nbytes == left) part->state = HETCCL_WIRE_PART_FINISHED;
    return 1;
}

/* Whether all parts of an ask are in the peer's memory. */
static int hetccl_wire_ask_is_done(const hetccl_wire_peer_t *peer, hetccl_wire_ask_t *ask) {
    int done = ask->nparts > 0;
    for (int i = 0; i < ask->nparts; i++) {
        hetccl_wire_part_t *part = &ask->parts[i];
        const hetccl_rail_t *rail = peer->rails[part->rail];
        if (part->state == HETCCL_WIRE_PART_FINISHED && rail && rail->completed >= part->mark.number) {
            part->state = HETCCL_WIRE_PART_DONE;
        }
        done &= part->state == HETCCL_WIRE_PART_DONE;
    }
    return done;
}

/* Sends what the message was asked for, the rails in turn. Whether any moved. */
static int hetccl_wire_push_all(hetccl_wire_peer_t *peer, int cls, const hetccl_msg_t *msg, hetccl_wire_out_t *out) {
    hetccl_wire_sender_t *sender = hetccl_wire_sender(peer, cls);
    int moved = 0;
    for (int index = out->first; index != HETCCL_WIRE_NOWHERE; index = sender->asks[index].next) {
        hetccl_wire_ask_t *ask = &sender->asks[index];
        int pushed;
        do {
            pushed = 0;
            for (int i = 0; hetccl_wire_may_send(peer) && i < (ask->nparts ? ask->nparts : 1); i++) {
                if (ask->nparts == 0) hetccl_wire_cut(peer, ask);
                pushed |= hetccl_wire_push(peer, cls, msg, out, ask, i);
            }
            moved |= pushed;
        } while (pushed);
    }
    return moved;
}

static void hetccl_wire_end_out(hetccl_wire_peer_t *peer, hetccl_wire_sender_t *sender, hetccl_wire_out_t *out) {
    hetccl_wire_deregister_user(peer, out->mem, &out->mem_rails, UINT32_MAX);
    sender->ngathered -= out->in_cell;
    out->busy = 0;
}

/* DONE once the cell with the payload is in the peer's memory: no write reads it from the GPU any more. */
static int hetccl_wire_advance_gathered(hetccl_wire_peer_t *peer, int cls, hetccl_msg_t *msg) {
    hetccl_wire_sender_t *sender = hetccl_wire_sender(peer, cls);
    hetccl_wire_out_t *out = &sender->outs[msg->slot - 1];
    const hetccl_wire_mark_t *mark = hetccl_wire_cell_mark(peer, cls, out->cell);
    int is_posted = (int32_t)(sender->cells_posted - out->cell) > 0;
    int is_told = (int32_t)(sender->cells_known - out->cell) > 0 || (int32_t)(sender->cells_freed - out->cell) > 0;
    const hetccl_rail_t *rail = is_posted && mark->rail != HETCCL_WIRE_NOWHERE ? peer->rails[mark->rail] : NULL;
    if (!is_told && !(rail && rail->completed >= mark->number)) return HETCCL_AGAIN;
    if ((int32_t)(out->cell + 1 - sender->gathered_until) > 0) sender->gathered_until = out->cell + 1;
    hetccl_wire_end_out(peer, sender, out);
    msg->done = msg->nbytes;
    return HETCCL_DONE;
}

/* DONE once every byte is in the peer's memory and no write reads the source any more. */
static int hetccl_wire_advance_out(hetccl_wire_peer_t *peer, int cls, hetccl_msg_t *msg) {
    hetccl_wire_sender_t *sender = hetccl_wire_sender(peer, cls);
    hetccl_wire_out_t *out = &sender->outs[msg->slot - 1];
    if (out->in_cell) return hetccl_wire_advance_gathered(peer, cls, msg);
    int moved = hetccl_wire_push_all(peer, cls, msg, out);
    for (int index = out->first, next; index != HETCCL_WIRE_NOWHERE; index = next) {
        next = sender->asks[index].next;
        if (hetccl_wire_ask_is_done(peer, &sender->asks[index])) hetccl_wire_retire_ask(sender, out, index);
    }
    if (!out->any || out->finished < out->total) return moved ? HETCCL_MOVED : HETCCL_AGAIN;
    for (int i = 0; i < peer->nrails; i++) {
        hetccl_wire_mark_t last = {.number = out->last_write[i], .rail = i};
        if (!hetccl_wire_is_free(peer, &last)) return moved ? HETCCL_MOVED : HETCCL_AGAIN;
    }
    hetccl_wire_end_out(peer, sender, out);
    msg->done = msg->nbytes;
    return HETCCL_DONE;
}

/* Why nothing moves: the traffic has ended, or AGAIN. */
static int hetccl_wire_waiting(hetccl_wire_peer_t *peer) {
    if (peer->state < HETCCL_WIRE_LOST) return HETCCL_AGAIN;
    hetccl_wire_peer_quiet(peer);
    return peer->state == HETCCL_WIRE_LOST ? HETCCL_EPEER : HETCCL_ENETWORK;
}

/* For a message from a GPU's memory: a place, where it is registered. DONE, AGAIN, or EDIRECT. */
static int hetccl_wire_device_out(hetccl_wire_peer_t *peer, int cls, hetccl_msg_t *msg, hetccl_wire_out_t **out_p) {
    hetccl_wire_sender_t *sender = hetccl_wire_sender(peer, cls);
    hetccl_wire_out_t *out = sender->outs;
    hetccl_pointer_t about;
    int rail;
    if (sender->nwaiting == 0 && !hetccl_wire_has_cell(peer, cls)) return HETCCL_AGAIN;
    while (out->busy) {
        if (++out == sender->outs + HETCCL_WIRE_OUT_MAX) return HETCCL_AGAIN;
    }
    hetccl_wire_init_out(out, msg);
    int status = hetccl_wire_register_device(peer, msg, &about, out->mem, &out->mem_rails, &rail);
    if (status != HETCCL_DONE) return status;
    out->direct = (const uint8_t *)msg->device.address;
    out->device = out->busy = 1;
    *out_p = out;
    return HETCCL_DONE;
}

/* A new message: eagerly, or announced, or at once where the peer has asked for it already. */
static int hetccl_wire_begin_out(hetccl_wire_peer_t *peer, int cls, hetccl_msg_t *msg) {
    hetccl_wire_sender_t *sender = hetccl_wire_sender(peer, cls);
    int eager = msg->nbytes <= hetccl_wire_payload_bytes(&peer->remote_shape) && !(msg->flags & HETCCL_MSG_SYNC);
    hetccl_wire_out_t *out = NULL;
    msg->seq = sender->seq;
    if (hetccl_wire_is_device(msg)) {
        int status = hetccl_wire_device_out(peer, cls, msg, &out);
        if (status != HETCCL_DONE) return status;
    }
    int met = hetccl_wire_meet(peer, cls, msg, !eager, out);
    if (met == HETCCL_WIRE_ASKED) {
        sender->seq += 1;
        msg->state = HETCCL_MSG_POSTED;
        return hetccl_wire_advance_out(peer, cls, msg);
    }
    if (met == HETCCL_WIRE_BUSY || !hetccl_wire_has_cell(peer, cls)) {
        if (out) hetccl_wire_end_out(peer, sender, out);
        return HETCCL_AGAIN;
    }
    if (out) {
        msg->slot = (int32_t)(out - sender->outs) + 1;
        out->cell = sender->cells_filled;
        out->in_cell = (int8_t)eager;
        sender->ngathered += eager;
    }
    hetccl_wire_put_cell(peer, cls, msg, eager ? HETCCL_WIRE_EAGER : HETCCL_WIRE_RTS);
    if (!eager || out) {
        msg->state = HETCCL_MSG_POSTED;
        return HETCCL_AGAIN;
    }
    msg->done = msg->nbytes;
    return HETCCL_DONE;
}

/* Whether there is something to send: a GPU's memory has a place before it is asked for. */
static inline int hetccl_wire_has_met(const hetccl_wire_out_t *out) {
    return !out->device || out->in_cell || out->asked > 0;
}

static int hetccl_wire_send(void *state, hetccl_msg_t *msg) {
    hetccl_wire_link_t *link = state;
    hetccl_wire_peer_t *peer = link->peer;
    int status = HETCCL_AGAIN;
    hetccl_wire_want(peer);
    if (!peer->tables) return hetccl_wire_waiting(peer);
    hetccl_wire_sender_t *sender = hetccl_wire_sender(peer, link->cls);
    if (msg->state == HETCCL_MSG_NEW) {
        if (hetccl_wire_may_send(peer)) status = hetccl_wire_begin_out(peer, link->cls, msg);
    } else if (msg->slot && hetccl_wire_has_met(&sender->outs[msg->slot - 1])) {
        status = hetccl_wire_advance_out(peer, link->cls, msg);
    } else if (sender->nwaiting > 0) {
        int met = hetccl_wire_meet(peer, link->cls, msg, 1, msg->slot ? &sender->outs[msg->slot - 1] : NULL);
        if (met == HETCCL_WIRE_WRONG) hetccl_wire_breach(peer, peer->carrier, HETCCL_BREACH_CTS);
        if (met == HETCCL_WIRE_ASKED) status = hetccl_wire_advance_out(peer, link->cls, msg);
    }
    return status == HETCCL_AGAIN ? hetccl_wire_waiting(peer) : status;
}

#endif
