/* A wire peer's memory and its rails (layer L2): taken and given back, and how a write is posted. */
#ifndef HETCCL_WIRE_MEMORY_H
#define HETCCL_WIRE_MEMORY_H

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "hetccl/wire_peer.h"

static void hetccl_wire_on_imm(void *peer, int rail, uint32_t imm);

/* Once for each peer, when the communicator is made: no memory beyond the struct. */
static void hetccl_wire_peer_init(hetccl_wire_peer_t *peer, hetccl_wire_t *wire, int rank) {
    memset(peer, 0, sizeof(*peer));
    peer->wire = wire;
    peer->rank = rank;
    for (int cls = 0; cls < HETCCL_WIRE_CLASSES; cls++) {
        for (int receive = 0; receive < 2; receive++) {
            peer->links[cls][receive].peer = peer;
            peer->links[cls][receive].cls = cls;
        }
    }
}

/* A process that forks keeps the memory to itself: the child may not share what a device writes to. */
static inline uint8_t *hetccl_wire_map(size_t nbytes) {
    void *memory = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return NULL;
    madvise(memory, nbytes, MADV_DONTFORK);
    return memory;
}

/* Keys of all rails for the same memory; 0, or 1 + the first rail that cannot register it, and then there are none. */
static int hetccl_wire_register(hetccl_wire_peer_t *peer, uint8_t *memory, size_t nbytes, hetccl_mem_t *mem) {
    for (int i = 0; i < peer->nrails; i++) {
        hetccl_rail_t *rail = peer->rails[i];
        if (rail->ops->reg(rail, memory, nbytes, HETCCL_MEM_OF_ENGINE, &mem[i]) == HETCCL_DONE) continue;
        for (int done = 0; done < i; done++) peer->rails[done]->ops->dereg(peer->rails[done], &mem[done]);
        return i + 1;
    }
    return 0;
}

static void hetccl_wire_begin_numbers(hetccl_wire_peer_t *peer) {
    uint32_t first = peer->wire->first;
    for (int cls = 0; cls < HETCCL_WIRE_CLASSES; cls++) {
        hetccl_wire_sender_t *sender = &peer->tables->senders[cls];
        hetccl_wire_receiver_t *receiver = &peer->tables->receivers[cls];
        sender->seq = sender->cells_filled = sender->cells_posted = sender->cells_known = sender->cells_freed = first;
        sender->asks_arrived = sender->gathered_until = first;
        receiver->seq = receiver->cell_seq = receiver->cells_arrived = receiver->cells_emptied = first;
        receiver->cells_told = receiver->cts_filled = receiver->cts_posted = receiver->cts_known = first;
        for (int i = 0; i < HETCCL_WIRE_CTS_MAX; i++) receiver->cts_marks[i].rail = HETCCL_WIRE_NOWHERE;
    }
    for (int i = 0; i < HETCCL_WIRE_CHUNKS_MAX; i++) peer->tables->staging_marks[i].rail = HETCCL_WIRE_NOWHERE;
}

static inline uint32_t hetccl_wire_staging_chunks(const hetccl_wire_t *wire) {
    return 2 * wire->nchunks < HETCCL_WIRE_CHUNKS_MAX ? 2 * wire->nchunks : HETCCL_WIRE_CHUNKS_MAX;
}

static void hetccl_wire_peer_close(hetccl_wire_peer_t *peer);

/* Takes and registers the memory of a peer that is to be connected over these rails, which are NEW, and sets their
 * on_imm. DONE; or HETCCL_ENOMEM: *rail_p is the rail that cannot register it, or HETCCL_WIRE_NOWHERE where there is no
 * memory; nothing has changed then. */
static int hetccl_wire_peer_open(hetccl_wire_peer_t *peer, hetccl_rail_t **rails, int nrails, int *rail_p) {
    const hetccl_wire_t *wire = peer->wire;
    size_t inbox = hetccl_wire_inbox_bytes(&wire->shape), chunks = (size_t)wire->chunk_bytes * wire->nchunks;
    size_t staging = (size_t)wire->chunk_bytes * hetccl_wire_staging_chunks(wire);
    *rail_p = HETCCL_WIRE_NOWHERE;
    hetccl_wire_tables_t *tables = calloc(1, sizeof(*tables));
    size_t own_nbytes = inbox + HETCCL_WIRE_CLASSES * chunks + staging + HETCCL_WIRE_SINK_BYTES;
    uint8_t *own = tables ? hetccl_wire_map(own_nbytes) : NULL;
    if (!own) {
        free(tables);
        return HETCCL_ENOMEM;
    }
    peer->tables = tables;
    peer->own = own;
    peer->own_nbytes = own_nbytes;
    for (int cls = 0; cls < HETCCL_WIRE_CLASSES; cls++) tables->receivers[cls].landing = own + inbox + cls * chunks;
    peer->staging = own + inbox + HETCCL_WIRE_CLASSES * chunks;
    hetccl_wire_begin_numbers(peer);
    for (int i = 0; i < nrails; i++) peer->rails[i] = rails[i];
    peer->nrails = nrails;
    int refused = hetccl_wire_register(peer, own, peer->own_nbytes, peer->own_mem);
    if (refused) {
        peer->nrails = 0;
        hetccl_wire_peer_close(peer);
        *rail_p = refused - 1;
        return HETCCL_ENOMEM;
    }
    for (int i = 0; i < nrails; i++) {
        rails[i]->on_imm = hetccl_wire_on_imm;
        rails[i]->peer = peer;
        rails[i]->index = i;
    }
    peer->state = HETCCL_WIRE_CONNECTING;
    return HETCCL_DONE;
}

/* What the peer must be told: where this side's inbox is, and its key on a rail. */
static inline uint64_t hetccl_wire_peer_address(const hetccl_wire_peer_t *peer) {
    return (uint64_t)(uintptr_t)peer->own;
}

static inline uint32_t hetccl_wire_peer_rkey(const hetccl_wire_peer_t *peer, int rail) {
    return peer->own_mem[rail].rkey;
}

/* The rails are connected: what comes is taken in from now on. DONE, HETCCL_ENOMEM as open(), or HETCCL_ELENGTH: no
 * inbox has that shape. After those the peer is still to be closed. */
static int hetccl_wire_peer_attach(hetccl_wire_peer_t *peer, uint64_t address, const hetccl_wire_shape_t *shape,
                                   const uint32_t *rkeys, int *rail_p) {
    *rail_p = HETCCL_WIRE_NOWHERE;
    if (!hetccl_wire_shape_is_good(shape)) return HETCCL_ELENGTH;
    /* The marks lie behind the mirror, in memory that no device knows. */
    size_t marks = HETCCL_WIRE_CLASSES * shape->ncells * sizeof(hetccl_wire_mark_t);
    size_t nbytes = hetccl_wire_inbox_bytes(shape);
    uint8_t *mirror = hetccl_wire_map(nbytes + marks);
    if (!mirror) return HETCCL_ENOMEM;
    int refused = hetccl_wire_register(peer, mirror, nbytes, peer->mirror_mem);
    if (refused) {
        munmap(mirror, nbytes + marks);
        *rail_p = refused - 1;
        return HETCCL_ENOMEM;
    }
    peer->mirror = mirror;
    peer->mirror_nbytes = nbytes + marks;
    for (int cls = 0; cls < HETCCL_WIRE_CLASSES; cls++) {
        hetccl_wire_mark_t *cells = (hetccl_wire_mark_t *)(mirror + nbytes) + cls * shape->ncells;
        for (uint32_t i = 0; i < shape->ncells; i++) cells[i].rail = HETCCL_WIRE_NOWHERE;
        peer->tables->senders[cls].cell_marks = cells;
    }
    peer->remote_address = address;
    peer->remote_shape = *shape;
    for (int i = 0; i < peer->nrails; i++) peer->remote_rkey[i] = rkeys[i];
    peer->state = HETCCL_WIRE_READY;
    return HETCCL_DONE;
}

/* The peer takes in what comes: send. */
static void hetccl_wire_peer_go(hetccl_wire_peer_t *peer) {
    if (peer->state == HETCCL_WIRE_READY) peer->state = HETCCL_WIRE_UP;
}

/* Wakes the connector. A full eventfd has woken it already. */
static inline void hetccl_wire_wake(const hetccl_wire_t *wire) {
    uint64_t one = 1;
    if (wire->wake_fd >= 0 && write(wire->wake_fd, &one, sizeof(one)) < 0) return;
}

/* Asks the connector to connect, if nobody has. */
static void hetccl_wire_want(hetccl_wire_peer_t *peer) {
    if (peer->state != HETCCL_WIRE_UNCONNECTED) return;
    peer->state = HETCCL_WIRE_WANTED;
    hetccl_wire_wake(peer->wire);
}

/* A rail that cannot send any more stops all sending, until both sides know what has arrived. */
static inline void hetccl_wire_note_failed(hetccl_wire_peer_t *peer) {
    for (int i = 0; i < peer->nrails; i++) {
        hetccl_rail_t *rail = peer->rails[i];
        if (!rail || rail->state == HETCCL_RAIL_UP || peer->failed >> i & 1) continue;
        peer->failed |= UINT32_C(1) << i;
        peer->untold |= UINT32_C(1) << i;
        hetccl_wire_wake(peer->wire);
    }
}

static inline int hetccl_wire_may_send(hetccl_wire_peer_t *peer) {
    if (peer->state != HETCCL_WIRE_UP) return 0;
    hetccl_wire_note_failed(peer);
    return peer->failed == 0;
}

/* The peer has broken the protocol: nothing that it says counts any more, whatever rails are left. */
static void hetccl_wire_breach(hetccl_wire_peer_t *peer, int index, int breach) {
    hetccl_rail_t *rail = peer->rails[index];
    if (rail && rail->state == HETCCL_RAIL_UP) {
        rail->state = HETCCL_RAIL_FAILED;
        rail->fault.kind = HETCCL_FAULT_WIRE;
        rail->fault.code = breach;
    }
    hetccl_wire_note_failed(peer);
    peer->state = HETCCL_WIRE_FAILED;
}

/* Posts one write on a rail that has room. 1: taken; 0: the rail has failed. */
static int hetccl_wire_post(hetccl_wire_peer_t *peer, int index, const hetccl_write_t *write,
                            hetccl_wire_mark_t *mark_p) {
    hetccl_rail_t *rail = peer->rails[index];
    if (rail->ops->write(rail, write) != HETCCL_DONE) {
        hetccl_wire_note_failed(peer);
        return 0;
    }
    mark_p->rail = index;
    mark_p->number = rail->posted;
    peer->tables->counters.writes[index] += 1;
    peer->tables->counters.bytes[index] += write->nbytes[0] + write->nbytes[1];
    return 1;
}

/* Of the entry at a position of a ring of the mirror: a sender waits for room there, which takes completions; two of
 * them in a round are soon enough. */
static inline uint32_t hetccl_wire_hint(uint32_t position, uint32_t nentries) {
    return position % (nentries / 2) == 0 ? 0 : HETCCL_WRITE_LAZY;
}

/* Whether the carrier would take a write now. */
static inline int hetccl_wire_has_room(hetccl_wire_peer_t *peer) {
    hetccl_rail_t *rail = peer->rails[peer->carrier];
    return rail && rail->ops->room(rail) > 0;
}

/* Writes what the mirror has at `offset` to the same place of the peer's inbox; of 0 bytes, only tells imm. flags:
 * HETCCL_WRITE_LAZY or 0. */
static int hetccl_wire_post_mirror(hetccl_wire_peer_t *peer, size_t offset, size_t nbytes, uint32_t imm,
                                   uint32_t flags, hetccl_wire_mark_t *mark_p) {
    hetccl_write_t write = {
        .ptr = {peer->mirror + offset},
        .nbytes = {nbytes},
        .lkey = {peer->mirror_mem[peer->carrier].lkey},
        .remote_addr = peer->remote_address + offset,
        .rkey = peer->remote_rkey[peer->carrier],
        .imm = imm,
        .flags = HETCCL_WRITE_IMM | flags,
    };
    return hetccl_wire_post(peer, peer->carrier, &write, mark_p);
}

/* Whether the source of a write is free again. */
static inline int hetccl_wire_is_free(const hetccl_wire_peer_t *peer, const hetccl_wire_mark_t *mark) {
    if (mark->rail == HETCCL_WIRE_NOWHERE) return 1;
    if (mark->rail >= HETCCL_RAILS) {
        const hetccl_rail_t *loop = peer->loops[mark->rail - HETCCL_RAILS];
        return !loop || loop->state != HETCCL_RAIL_UP || loop->completed >= mark->number;
    }
    const hetccl_rail_t *rail = peer->rails[mark->rail];
    return !rail || rail->state == HETCCL_RAIL_CLOSED || rail->completed >= mark->number;
}

/* A staging chunk that no write reads any more, or NOWHERE. */
static int hetccl_wire_free_chunk(hetccl_wire_peer_t *peer) {
    uint32_t nchunks = hetccl_wire_staging_chunks(peer->wire);
    for (uint32_t i = 0; i < nchunks; i++) {
        if (hetccl_wire_is_free(peer, &peer->tables->staging_marks[i])) return (int)i;
    }
    return HETCCL_WIRE_NOWHERE;
}

/* Registers the user's memory on all rails; 0: it must be copied. */
static int hetccl_wire_register_user(hetccl_wire_peer_t *peer, uint8_t *ptr, size_t nbytes, hetccl_mem_t *mem,
                                     uint32_t *rails_p) {
    *rails_p = 0;
    for (int i = 0; i < peer->nrails; i++) {
        hetccl_rail_t *rail = peer->rails[i];
        if (!rail || rail->state != HETCCL_RAIL_UP) continue;
        if (rail->ops->reg(rail, ptr, nbytes, HETCCL_MEM_OF_USER, &mem[i]) == HETCCL_DONE) {
            *rails_p |= UINT32_C(1) << i;
            continue;
        }
        for (int done = 0; done < i; done++) {
            if (*rails_p >> done & 1) peer->rails[done]->ops->dereg(peer->rails[done], &mem[done]);
        }
        *rails_p = 0;
        return 0;
    }
    return *rails_p != 0;
}

/* Lets it go on the rails whose bits are in `which`. Of a rail that is closed the loop knows it still. */
static void hetccl_wire_deregister_user(hetccl_wire_peer_t *peer, hetccl_mem_t *mem, uint32_t *rails_p,
                                        uint32_t which) {
    for (int i = 0; i < peer->nrails; i++) {
        hetccl_rail_t *rail = peer->rails[i] ? peer->rails[i] : peer->loops[i];
        if (*rails_p & which & UINT32_C(1) << i) rail->ops->dereg(rail, &mem[i]);
    }
    *rails_p &= ~which;
}

/* The same for all messages under way. Receives into GPUs' memory keep it where there is a loop: what has come is
 * flushed through it. */
static void hetccl_wire_let_go(hetccl_wire_peer_t *peer, uint32_t which) {
    uint32_t loops = 0;
    for (int i = 0; i < peer->nrails; i++) loops |= (uint32_t)(peer->loops[i] != NULL) << i;
    for (int cls = 0; cls < HETCCL_WIRE_CLASSES; cls++) {
        hetccl_wire_out_t *outs = peer->tables->senders[cls].outs;
        hetccl_wire_in_t *ins = peer->tables->receivers[cls].ins;
        for (int i = 0; i < HETCCL_WIRE_OUT_MAX; i++) {
            hetccl_wire_deregister_user(peer, outs[i].mem, &outs[i].mem_rails, which);
        }
        for (int i = 0; i < HETCCL_WIRE_IN_MAX; i++) {
            uint32_t kept = ins[i].runtime ? loops : 0;
            hetccl_wire_deregister_user(peer, ins[i].mem, &ins[i].mem_rails, which & ~kept);
        }
    }
}

/* Afterwards nothing of this peer's is under way on any loop. */
static void hetccl_wire_settle_loops(hetccl_wire_peer_t *peer) {
    for (int i = 0; i < peer->nrails; i++) {
        hetccl_rail_t *loop = peer->loops[i];
        if (loop && loop->completed < peer->tables->looped[i]) loop->ops->settle(loop);
    }
}

/* Afterwards no byte of the user's memory is read or written any more: all rails are stopped. */
static void hetccl_wire_peer_quiet(hetccl_wire_peer_t *peer) {
    if (peer->quiet || !peer->tables) return;
    peer->quiet = 1;
    for (int i = 0; i < peer->nrails; i++) {
        if (peer->rails[i]) peer->rails[i]->ops->stop(peer->rails[i]);
    }
    hetccl_wire_settle_loops(peer);
    hetccl_wire_let_go(peer, UINT32_MAX);
}

/* Lets hetccl's own memory go on a rail that is stopped; a loop goes on with what it reads and writes. */
static void hetccl_wire_drop_rail(hetccl_wire_peer_t *peer, int index) {
    hetccl_rail_t *rail = peer->rails[index];
    if (!rail) return;
    if (!peer->loops[index]) rail->ops->dereg(rail, &peer->own_mem[index]);
    if (peer->mirror) rail->ops->dereg(rail, &peer->mirror_mem[index]);
    peer->rails[index] = NULL;
}

/* Lets go what the loops were left with. */
static void hetccl_wire_drop_loops(hetccl_wire_peer_t *peer) {
    hetccl_wire_settle_loops(peer);
    for (int cls = 0; cls < HETCCL_WIRE_CLASSES; cls++) {
        for (int i = 0; i < HETCCL_WIRE_IN_MAX; i++) {
            hetccl_wire_in_t *in = &peer->tables->receivers[cls].ins[i];
            hetccl_wire_deregister_user(peer, in->mem, &in->mem_rails, UINT32_MAX);
        }
    }
    for (int i = 0; i < peer->nrails; i++) {
        if (peer->loops[i]) peer->loops[i]->ops->dereg(peer->loops[i], &peer->own_mem[i]);
    }
}

/* Gives everything back; the peer is unconnected afterwards. The rails' owner closes them then. */
static void hetccl_wire_peer_close(hetccl_wire_peer_t *peer) {
    hetccl_wire_peer_quiet(peer);
    for (int i = 0; i < peer->nrails; i++) hetccl_wire_drop_rail(peer, i);
    if (peer->tables) hetccl_wire_drop_loops(peer);
    if (peer->own) munmap(peer->own, peer->own_nbytes);
    if (peer->mirror) munmap(peer->mirror, peer->mirror_nbytes);
    free(peer->tables);
    hetccl_wire_peer_init(peer, peer->wire, peer->rank);
}

#endif
