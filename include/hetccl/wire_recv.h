/* The receiving half of a wire peer (layer L2): what lies in the inbox, and what is asked for piece by piece. */
#ifndef HETCCL_WIRE_RECV_H
#define HETCCL_WIRE_RECV_H

#include "hetccl/wire_send.h"

static inline hetccl_wire_receiver_t *hetccl_wire_receiver(hetccl_wire_peer_t *peer, int cls) {
    return &peer->tables->receivers[cls];
}

/* The first byte of this side's cell at a position. */
static inline uint8_t *hetccl_wire_own_cell(const hetccl_wire_peer_t *peer, int cls, uint32_t position) {
    const hetccl_wire_shape_t *shape = &peer->wire->shape;
    return peer->own + hetccl_wire_cells_at(shape, cls) + (position & (shape->ncells - 1)) * (size_t)shape->cell_bytes;
}

static inline const uint8_t *hetccl_wire_head_payload(const hetccl_wire_peer_t *peer, int cls,
                                                      const hetccl_wire_receiver_t *receiver) {
    return hetccl_wire_own_cell(peer, cls, receiver->cells_emptied) +
           hetccl_wire_payload_at(&peer->wire->shape, receiver->head.nbytes);
}

/* Tells the peer how many cells are empty, when it may soon wait for them: it waits only where the ring is full. */
static int hetccl_wire_post_credit(hetccl_wire_peer_t *peer, int cls) {
    hetccl_wire_receiver_t *receiver = hetccl_wire_receiver(peer, cls);
    uint32_t untold = receiver->cells_emptied - receiver->cells_told;
    if (untold < peer->wire->shape.ncells / 2 && !receiver->credit_again) return 0;
    hetccl_wire_mark_t mark;
    uint32_t imm = HETCCL_IMM(HETCCL_IMM_CREDIT, cls, 1, 0, receiver->cells_emptied);
    if (!hetccl_wire_may_send(peer) || !hetccl_wire_has_room(peer)) return 0;
    if (!hetccl_wire_post_mirror(peer, 0, 0, imm, HETCCL_WRITE_LAZY, &mark)) return 0;
    receiver->cells_told = receiver->cells_emptied;
    receiver->credit_again = 0;
    peer->tables->counters.credits += 1;
    return 1;
}

/* Gives the cell at the head back. */
static void hetccl_wire_release(hetccl_wire_peer_t *peer, int cls) {
    hetccl_wire_receiver_t *receiver = hetccl_wire_receiver(peer, cls);
    receiver->cells_emptied += 1;
    receiver->has_head = 0;
    hetccl_wire_post_credit(peer, cls);
}

/* Copies the header of the cell at the head, so that the peer cannot change it any more. 0: a breach. */
static int hetccl_wire_load_head(hetccl_wire_peer_t *peer, int cls) {
    hetccl_wire_receiver_t *receiver = hetccl_wire_receiver(peer, cls);
    size_t payload = hetccl_wire_payload_bytes(&peer->wire->shape);
    hetccl_wire_cell_t *head = &receiver->head;
    memcpy(head, hetccl_wire_own_cell(peer, cls, receiver->cells_emptied) + payload, sizeof(*head));
    if (head->position != receiver->cells_emptied || head->flags != 0 || head->reserved != 0) return 0;
    if (head->kind != HETCCL_WIRE_RTS && head->kind != HETCCL_WIRE_EAGER) return 0;
    if (head->kind == HETCCL_WIRE_EAGER && head->nbytes > payload) return 0;
    if (head->kind == HETCCL_WIRE_RTS && cls == 0 && head->nbytes <= payload) return 0;
    if (head->nbytes > INT64_MAX) return 0;
    /* Only a message that was asked for beforehand may do without a cell. */
    if (head->seq - receiver->cell_seq > receiver->seq - receiver->cell_seq) return 0;
    receiver->cell_seq = head->seq + 1;
    receiver->has_head = 1;
    return 1;
}

static hetccl_wire_in_t *hetccl_wire_find_in(hetccl_wire_receiver_t *receiver, uint32_t seq) {
    for (int i = 0; i < HETCCL_WIRE_IN_MAX; i++) {
        if (receiver->ins[i].busy && receiver->ins[i].seq == seq) return &receiver->ins[i];
    }
    return NULL;
}

/* The peer will not answer what it was asked for: its message is another one. */
static void hetccl_wire_void(hetccl_wire_peer_t *peer, hetccl_wire_receiver_t *receiver, hetccl_wire_in_t *in) {
    int index = (int)(in - receiver->ins);
    for (int i = 0; i < HETCCL_WIRE_CTS_MAX; i++) {
        if (receiver->slots[i].in == index) receiver->slots[i].busy = 0;
    }
    for (; in->nchunks > 0; in->nchunks--) {
        receiver->chunks_busy &= ~(UINT32_C(1) << in->chunks[in->first_chunk]);
        in->first_chunk = (uint8_t)((in->first_chunk + 1) % HETCCL_WIRE_CHUNKS_MAX);
    }
    hetccl_wire_deregister_user(peer, in->mem, &in->mem_rails, UINT32_MAX);
}

/* The checked header at the head, or NULL. An announcement of what was asked for before it came is dropped; another
 * message in its place stays at the head, for the receive to see. */
static const hetccl_wire_cell_t *hetccl_wire_head(hetccl_wire_peer_t *peer, int cls) {
    hetccl_wire_receiver_t *receiver = hetccl_wire_receiver(peer, cls);
    const hetccl_wire_cell_t *head = &receiver->head;
    while (receiver->has_head || receiver->cells_emptied != receiver->cells_arrived) {
        if (!receiver->has_head && !hetccl_wire_load_head(peer, cls)) {
            hetccl_wire_breach(peer, peer->carrier, HETCCL_BREACH_CELL);
            return NULL;
        }
        if (head->seq == receiver->seq) return head;
        hetccl_wire_in_t *in = hetccl_wire_find_in(receiver, head->seq);
        int rts = head->kind == HETCCL_WIRE_RTS;
        if (in && !(rts && in->unseen && head->tag == in->tag && head->nbytes == in->total)) {
            if (!in->fault) hetccl_wire_void(peer, receiver, in);
            in->fault = head->tag != in->tag ? HETCCL_ETAG : HETCCL_ELENGTH;
            return head;
        }
        if (!rts) {
            hetccl_wire_breach(peer, peer->carrier, HETCCL_BREACH_CELL);
            return NULL;
        }
        if (in) in->unseen = 0;
        hetccl_wire_release(peer, cls);
    }
    return NULL;
}

/* A part of a piece is in place, over this rail. 0: a breach. */
static int hetccl_wire_on_fin(hetccl_wire_peer_t *peer, int cls, int rail, uint32_t imm) {
    hetccl_wire_receiver_t *receiver = hetccl_wire_receiver(peer, cls);
    uint32_t value = HETCCL_IMM_VALUE(imm), parts = HETCCL_IMM_PARTS(imm), part = HETCCL_IMM_PART(imm);
    hetccl_wire_slot_t *slot = &receiver->slots[value % HETCCL_WIRE_CTS_MAX];
    if (!slot->busy || (slot->position & HETCCL_IMM_VALUE_MASK) != value) return 0;
    if (part >= parts || (slot->parts && slot->parts != (int)parts) || slot->mask >> part & 1) return 0;
    slot->parts = (int8_t)parts;
    slot->mask |= (uint8_t)(1 << part);
    hetccl_wire_in_t *in = &receiver->ins[slot->in];
    in->came |= (uint8_t)(1 << rail);
    if (slot->mask != (1 << parts) - 1) return 1;
    slot->busy = 0;
    in->finished += slot->nbytes;
    in->all = in->finished == in->total;
    if (slot->chunk != HETCCL_WIRE_NOWHERE) receiver->chunk_here[slot->chunk] = 1;
    return 1;
}

/* Posts the CTS entries that are filled; see hetccl_wire_post_cells(). */
static int hetccl_wire_post_cts(hetccl_wire_peer_t *peer, int cls) {
    hetccl_wire_receiver_t *receiver = hetccl_wire_receiver(peer, cls);
    uint32_t before = receiver->cts_posted;
    while (receiver->cts_posted != receiver->cts_filled && hetccl_wire_has_room(peer)) {
        uint32_t position = receiver->cts_posted, index = position % HETCCL_WIRE_CTS_MAX;
        size_t offset = hetccl_wire_cts_at(cls) + index * sizeof(hetccl_wire_cts_t);
        uint32_t imm = HETCCL_IMM(HETCCL_IMM_CTS, cls, 1, 0, position);
        uint32_t hint = hetccl_wire_hint(position, HETCCL_WIRE_CTS_MAX);
        if (!hetccl_wire_post_mirror(peer, offset, sizeof(hetccl_wire_cts_t), imm, hint,
                                     &receiver->cts_marks[index])) {
            break;
        }
        receiver->cts_posted += 1;
        peer->tables->counters.cts += 1;
    }
    return receiver->cts_posted != before;
}

/* Whether a CTS entry can be filled and posted now. */
static int hetccl_wire_has_slot(hetccl_wire_peer_t *peer, hetccl_wire_receiver_t *receiver) {
    uint32_t index = receiver->cts_filled % HETCCL_WIRE_CTS_MAX;
    if (!hetccl_wire_may_send(peer) || receiver->cts_posted != receiver->cts_filled) return 0;
    if (receiver->slots[index].busy || !hetccl_wire_is_free(peer, &receiver->cts_marks[index])) return 0;
    return hetccl_wire_has_room(peer);
}

/* Asks for the message's next piece: into the user's memory, or into a chunk (else NOWHERE). */
static void hetccl_wire_ask(hetccl_wire_peer_t *peer, int cls, hetccl_wire_in_t *in, size_t nbytes, int chunk) {
    hetccl_wire_receiver_t *receiver = hetccl_wire_receiver(peer, cls);
    uint32_t position = receiver->cts_filled, index = position % HETCCL_WIRE_CTS_MAX;
    uint8_t *place = in->direct ? in->direct + in->asked : peer->own;
    if (chunk != HETCCL_WIRE_NOWHERE) place = receiver->landing + (size_t)chunk * peer->wire->chunk_bytes;
    hetccl_wire_cts_t *entry =
        (hetccl_wire_cts_t *)(peer->mirror + hetccl_wire_cts_at(cls) + index * sizeof(hetccl_wire_cts_t));
    memset(entry, 0, sizeof(*entry));
    entry->address = (uint64_t)(uintptr_t)place;
    entry->offset = in->asked;
    entry->nbytes = nbytes;
    entry->total = in->total;
    entry->seq = in->seq;
    entry->tag = in->tag;
    entry->position = position;
    for (int i = 0; i < peer->nrails; i++) entry->rkey[i] = in->direct ? in->mem[i].rkey : peer->own_mem[i].rkey;
    receiver->slots[index] = (hetccl_wire_slot_t){.nbytes = nbytes, .position = position, .busy = 1,
                                                  .in = (int8_t)(in - receiver->ins), .chunk = (int8_t)chunk};
    in->asked += nbytes;
    in->any = 1;
    *(in->direct ? &peer->tables->counters.direct_in : &peer->tables->counters.landed_in) += nbytes;
    receiver->cts_filled += 1;
    hetccl_wire_post_cts(peer, cls);
}

/* Asks for all that there is room for. Whether anything was. */
static int hetccl_wire_ask_more(hetccl_wire_peer_t *peer, int cls, hetccl_wire_in_t *in) {
    hetccl_wire_receiver_t *receiver = hetccl_wire_receiver(peer, cls);
    int moved = 0;
    while ((in->asked < in->total || !in->any) && hetccl_wire_has_slot(peer, receiver)) {
        size_t left = in->total - in->asked;
        int chunk = HETCCL_WIRE_NOWHERE;
        if (!in->direct && left > 0) {
            uint32_t all = (uint32_t)((UINT64_C(1) << peer->wire->nchunks) - 1);
            if ((receiver->chunks_busy & all) == all) break;
            chunk = __builtin_ctz(~receiver->chunks_busy);
            if (left > peer->wire->chunk_bytes) left = peer->wire->chunk_bytes;
            receiver->chunks_busy |= UINT32_C(1) << chunk;
            receiver->chunk_here[chunk] = 0;
            receiver->chunk_nbytes[chunk] = left;
            in->chunks[(in->first_chunk + in->nchunks) % HETCCL_WIRE_CHUNKS_MAX] = (int8_t)chunk;
            in->nchunks += 1;
        }
        hetccl_wire_ask(peer, cls, in, left, chunk);
        moved = 1;
    }
    return moved;
}

/* Begins to receive a message piece by piece, or to carry over one that has come eagerly; msg->slot says where it is
 * kept. DONE; AGAIN: too many are under way; EDIRECT. */
static int hetccl_wire_begin_in(hetccl_wire_peer_t *peer, int cls, hetccl_msg_t *msg, uint32_t seq, int carried) {
    hetccl_wire_receiver_t *receiver = hetccl_wire_receiver(peer, cls);
    for (int i = 0; i < HETCCL_WIRE_IN_MAX; i++) {
        hetccl_wire_in_t *in = &receiver->ins[i];
        if (in->busy) continue;
        memset(in, 0, sizeof(*in));
        in->busy = 1;
        in->seq = msg->seq = seq;
        in->tag = msg->tag;
        in->total = msg->nbytes;
        in->carried = (int8_t)carried;
        int status = hetccl_wire_is_device(msg) ? hetccl_wire_device_in(peer, in, msg, carried) : HETCCL_DONE;
        if (status != HETCCL_DONE) in->busy = 0;
        if (status != HETCCL_DONE) return status;
        uint8_t *run = msg->ptr && msg->nbytes > 0 ? hetccl_msg_only_run(msg) : NULL;
        if (run && hetccl_wire_register_user(peer, run, msg->nbytes, in->mem, &in->mem_rails)) in->direct = run;
        msg->slot = i + 1;
        return HETCCL_DONE;
    }
    return HETCCL_AGAIN;
}

static void hetccl_wire_end_in(hetccl_wire_peer_t *peer, hetccl_wire_in_t *in, hetccl_msg_t *msg) {
    hetccl_wire_deregister_user(peer, in->mem, &in->mem_rails, UINT32_MAX);
    in->busy = 0;
    msg->slot = 0;
    msg->cell_done = 0;
}

/* All bytes are in place: DONE, once a GPU whose memory it is sees them. */
static int hetccl_wire_finish_in(hetccl_wire_peer_t *peer, hetccl_wire_in_t *in, hetccl_msg_t *msg) {
    int status = in->runtime ? hetccl_wire_flush(peer, in, msg) : HETCCL_DONE;
    if (status == HETCCL_AGAIN) return status;
    if (status == HETCCL_DONE) msg->done = msg->nbytes;
    hetccl_wire_end_in(peer, in, msg);
    return status;
}

/* The message's next chunk, or NOWHERE if its bytes are not here. */
static inline int hetccl_wire_chunk_here(const hetccl_wire_receiver_t *receiver, const hetccl_wire_in_t *in) {
    int chunk = in->chunks[in->first_chunk];
    return in->nchunks > 0 && receiver->chunk_here[chunk] ? chunk : HETCCL_WIRE_NOWHERE;
}

/* That chunk has been read; the next piece may be asked for. */
static void hetccl_wire_end_chunk(hetccl_wire_peer_t *peer, int cls, hetccl_wire_in_t *in, int chunk) {
    hetccl_wire_receiver_t *receiver = hetccl_wire_receiver(peer, cls);
    receiver->chunks_busy &= ~(UINT32_C(1) << chunk);
    in->first_chunk = (uint8_t)((in->first_chunk + 1) % HETCCL_WIRE_CHUNKS_MAX);
    in->nchunks -= 1;
    hetccl_wire_ask_more(peer, cls, in);
}

/* Moves what has come of a message that is received piece by piece. */
static int hetccl_wire_advance_in(hetccl_wire_peer_t *peer, int cls, hetccl_msg_t *msg) {
    hetccl_wire_receiver_t *receiver = hetccl_wire_receiver(peer, cls);
    hetccl_wire_in_t *in = &receiver->ins[msg->slot - 1];
    if (in->unseen) hetccl_wire_head(peer, cls);
    if (in->fault) return in->fault;
    int moved = hetccl_wire_ask_more(peer, cls, in);
    int chunk = in->direct ? HETCCL_WIRE_NOWHERE : hetccl_wire_chunk_here(receiver, in);
    if (chunk != HETCCL_WIRE_NOWHERE) {
        size_t nbytes = receiver->chunk_nbytes[chunk];
        hetccl_msg_put(msg, msg->done, nbytes, receiver->landing + (size_t)chunk * peer->wire->chunk_bytes);
        msg->done += nbytes;
        hetccl_wire_end_chunk(peer, cls, in, chunk);
        moved = 1;
    }
    if (!in->all || !(in->direct || msg->done == msg->nbytes)) return moved ? HETCCL_MOVED : HETCCL_AGAIN;
    return hetccl_wire_finish_in(peer, in, msg);
}

/* Carries over what has come eagerly, from `source`. */
static int hetccl_wire_advance_carried(hetccl_wire_peer_t *peer, int cls, hetccl_msg_t *msg, const uint8_t *source) {
    hetccl_wire_in_t *in = &hetccl_wire_receiver(peer, cls)->ins[msg->slot - 1];
    int status = in->all ? HETCCL_AGAIN : hetccl_wire_carry(peer, in, source, msg);
    if (status == HETCCL_EDIRECT) hetccl_wire_end_in(peer, in, msg);
    return status == HETCCL_EDIRECT || !in->all ? status : hetccl_wire_finish_in(peer, in, msg);
}

/* The receive that takes the next message. DONE: it lies in the cell at the head; or, with a slot, it is received piece
 * by piece, perhaps before its cell has come. AGAIN, or a fault. */
static int hetccl_wire_next(hetccl_wire_peer_t *peer, int cls, hetccl_msg_t *msg) {
    hetccl_wire_receiver_t *receiver = hetccl_wire_receiver(peer, cls);
    const hetccl_wire_cell_t *head = hetccl_wire_head(peer, cls);
    if (head && head->seq != receiver->seq) return HETCCL_AGAIN;
    if (head && head->tag != msg->tag) return HETCCL_ETAG;
    if (head && head->nbytes != msg->nbytes) return HETCCL_ELENGTH;
    if (head && head->kind == HETCCL_WIRE_EAGER) return HETCCL_DONE;
    int asks = cls == 0 && msg->nbytes > hetccl_wire_payload_bytes(&peer->wire->shape) && hetccl_wire_may_send(peer);
    if (!head && !asks) return HETCCL_AGAIN;
    int status = hetccl_wire_begin_in(peer, cls, msg, receiver->seq, 0);
    if (status != HETCCL_DONE) return status;
    receiver->ins[msg->slot - 1].unseen = !head;
    receiver->seq += 1;
    if (head) hetccl_wire_release(peer, cls);
    return HETCCL_DONE;
}

/* The eager message at the head has been read. */
static void hetccl_wire_end_eager(hetccl_wire_peer_t *peer, int cls) {
    hetccl_wire_receiver(peer, cls)->seq += 1;
    hetccl_wire_release(peer, cls);
}

/* The eager message at the head, into a GPU's memory. The cell is given back once all of it has been read; until then
 * the message holds up the next. */
static int hetccl_wire_recv_carried(hetccl_wire_peer_t *peer, int cls, hetccl_msg_t *msg) {
    hetccl_wire_receiver_t *receiver = hetccl_wire_receiver(peer, cls);
    int status = msg->slot ? HETCCL_DONE : hetccl_wire_begin_in(peer, cls, msg, receiver->seq, 1);
    if (status != HETCCL_DONE) return status;
    hetccl_wire_in_t *in = &receiver->ins[msg->slot - 1];
    const uint8_t *payload = msg->state == HETCCL_MSG_NEW ? hetccl_wire_head_payload(peer, cls, receiver) : NULL;
    status = hetccl_wire_advance_carried(peer, cls, msg, payload);
    if (msg->state == HETCCL_MSG_NEW && in->asked == in->total) {
        msg->state = HETCCL_MSG_POSTED;
        hetccl_wire_end_eager(peer, cls);
    }
    return status;
}

static inline int hetccl_wire_is_eager_device(hetccl_wire_peer_t *peer, int cls, const hetccl_msg_t *msg) {
    return msg->slot ? hetccl_wire_receiver(peer, cls)->ins[msg->slot - 1].carried : hetccl_wire_is_device(msg);
}

static int hetccl_wire_recv(void *state, hetccl_msg_t *msg) {
    hetccl_wire_link_t *link = state;
    hetccl_wire_peer_t *peer = link->peer;
    int status = HETCCL_DONE;
    hetccl_wire_want(peer);
    if (!peer->tables) return hetccl_wire_waiting(peer);
    if (!msg->slot) status = hetccl_wire_next(peer, link->cls, msg);
    if (status == HETCCL_DONE && hetccl_wire_is_eager_device(peer, link->cls, msg)) {
        status = hetccl_wire_recv_carried(peer, link->cls, msg);
        return status == HETCCL_AGAIN ? hetccl_wire_waiting(peer) : status;
    }
    if (status == HETCCL_DONE && !msg->slot) {
        const uint8_t *payload = hetccl_wire_head_payload(peer, link->cls, hetccl_wire_receiver(peer, link->cls));
        hetccl_msg_put(msg, 0, msg->nbytes, payload);
        msg->done = msg->nbytes;
        hetccl_wire_end_eager(peer, link->cls);
        return HETCCL_DONE;
    }
    if (status == HETCCL_DONE) {
        msg->state = HETCCL_MSG_POSTED;
        status = hetccl_wire_advance_in(peer, link->cls, msg);
    }
    return status == HETCCL_AGAIN ? hetccl_wire_waiting(peer) : status;
}

static int64_t hetccl_wire_available(void *state, hetccl_msg_t *msg) {
    hetccl_wire_link_t *link = state;
    hetccl_wire_peer_t *peer = link->peer;
    int status = HETCCL_DONE;
    hetccl_wire_want(peer);
    if (hetccl_wire_is_device(msg)) return hetccl_wire_not_direct(msg, HETCCL_DIRECT_FETCH);
    if (!peer->tables) return hetccl_wire_waiting(peer);
    hetccl_wire_receiver_t *receiver = hetccl_wire_receiver(peer, link->cls);
    if (!msg->slot) status = hetccl_wire_next(peer, link->cls, msg);
    if (status == HETCCL_DONE && !msg->slot) return (int64_t)(msg->nbytes - msg->done);
    if (status == HETCCL_DONE) {
        hetccl_wire_in_t *in = &receiver->ins[msg->slot - 1];
        if (in->unseen) hetccl_wire_head(peer, link->cls);
        if (in->fault) return in->fault;
        hetccl_wire_ask_more(peer, link->cls, in);
        int chunk = hetccl_wire_chunk_here(receiver, in);
        if (chunk != HETCCL_WIRE_NOWHERE) return (int64_t)(receiver->chunk_nbytes[chunk] - msg->cell_done);
        status = HETCCL_AGAIN;
    }
    return status == HETCCL_AGAIN ? hetccl_wire_waiting(peer) : status;
}

static const void *hetccl_wire_fetch(void *state, hetccl_msg_t *msg, size_t nbytes, void *scratch) {
    hetccl_wire_link_t *link = state;
    hetccl_wire_receiver_t *receiver = hetccl_wire_receiver(link->peer, link->cls);
    (void)nbytes, (void)scratch;
    if (!msg->slot) return hetccl_wire_head_payload(link->peer, link->cls, receiver) + msg->done;
    int chunk = hetccl_wire_chunk_here(receiver, &receiver->ins[msg->slot - 1]);
    return receiver->landing + (size_t)chunk * link->peer->wire->chunk_bytes + msg->cell_done;
}

static void hetccl_wire_consume(void *state, hetccl_msg_t *msg, size_t nbytes) {
    hetccl_wire_link_t *link = state;
    hetccl_wire_peer_t *peer = link->peer;
    hetccl_wire_receiver_t *receiver = hetccl_wire_receiver(peer, link->cls);
    msg->done += nbytes;
    if (!msg->slot) {
        if (msg->done == msg->nbytes) hetccl_wire_end_eager(peer, link->cls);
        return;
    }
    hetccl_wire_in_t *in = &receiver->ins[msg->slot - 1];
    int chunk = hetccl_wire_chunk_here(receiver, in);
    msg->cell_done += nbytes;
    if (msg->cell_done < receiver->chunk_nbytes[chunk]) return;
    msg->cell_done = 0;
    hetccl_wire_end_chunk(peer, link->cls, in, chunk);
    if (msg->done == msg->nbytes) hetccl_wire_end_in(peer, in, msg);
}

static int hetccl_wire_peek(void *state, hetccl_header_t *header_p) {
    hetccl_wire_link_t *link = state;
    hetccl_wire_peer_t *peer = link->peer;
    const hetccl_wire_cell_t *head = peer->tables ? hetccl_wire_head(peer, link->cls) : NULL;
    if (!head) return hetccl_wire_waiting(peer);
    header_p->nbytes = head->nbytes;
    header_p->hold_nbytes = head->kind == HETCCL_WIRE_RTS ? 0 : head->nbytes;
    header_p->tag = head->tag;
    return HETCCL_DONE;
}

/* An announced message costs no memory: its number is all that is needed to ask for it later. */
static int hetccl_wire_set_aside(void *state, hetccl_aside_t *aside) {
    hetccl_wire_link_t *link = state;
    hetccl_wire_peer_t *peer = link->peer;
    const hetccl_wire_cell_t *head = peer->tables ? hetccl_wire_head(peer, link->cls) : NULL;
    if (!head) return hetccl_wire_waiting(peer);
    hetccl_wire_receiver_t *receiver = hetccl_wire_receiver(peer, link->cls);
    aside->nbytes = head->nbytes;
    aside->tag = head->tag;
    if (head->kind == HETCCL_WIRE_RTS) {
        aside->address = head->seq;
        aside->slot = 1;
    } else if (head->nbytes > 0) {
        memcpy(aside->buffer, hetccl_wire_head_payload(peer, link->cls, receiver), head->nbytes);
        aside->done = head->nbytes;
    }
    hetccl_wire_end_eager(peer, link->cls);
    return HETCCL_DONE;
}

/* An eager message that was set aside, into a GPU's memory. Its number has passed, and no cell can bear it again. */
static int hetccl_wire_carry_aside(hetccl_wire_peer_t *peer, int cls, const hetccl_aside_t *aside, hetccl_msg_t *msg) {
    if (!peer->tables) return hetccl_wire_waiting(peer);
    uint32_t passed = hetccl_wire_receiver(peer, cls)->seq - 1;
    int status = msg->slot ? HETCCL_DONE : hetccl_wire_begin_in(peer, cls, msg, passed, 1);
    if (status != HETCCL_DONE) return status;
    msg->state = HETCCL_MSG_POSTED;
    status = hetccl_wire_advance_carried(peer, cls, msg, aside->buffer);
    return status == HETCCL_AGAIN ? hetccl_wire_waiting(peer) : status;
}

static int hetccl_wire_recv_aside(void *state, hetccl_aside_t *aside, hetccl_msg_t *msg) {
    hetccl_wire_link_t *link = state;
    hetccl_wire_peer_t *peer = link->peer;
    if (msg->nbytes != aside->nbytes) return HETCCL_ELENGTH;
    if (!aside->slot && hetccl_wire_is_device(msg)) return hetccl_wire_carry_aside(peer, link->cls, aside, msg);
    if (!aside->slot) {
        hetccl_msg_put(msg, 0, msg->nbytes, aside->buffer);
        msg->done = msg->nbytes;
        return HETCCL_DONE;
    }
    if (!peer->tables || (!msg->slot && peer->state >= HETCCL_WIRE_LOST)) return hetccl_wire_waiting(peer);
    int status = msg->slot ? HETCCL_DONE : hetccl_wire_begin_in(peer, link->cls, msg, (uint32_t)aside->address, 0);
    if (status != HETCCL_DONE) return status;
    msg->state = HETCCL_MSG_POSTED;
    status = hetccl_wire_advance_in(peer, link->cls, msg);
    return status == HETCCL_AGAIN ? hetccl_wire_waiting(peer) : status;
}

#endif
