/* The shared-memory transport (layer L2): one ring of cells per ordered pair of ranks and class of traffic.
 *
 * The producer writes payload and header, then publishes the cell by storing its sequence number (release); the
 * consumer polls that number, so that a small message costs one cache line. The consumer gives cells back by storing
 * its position in `tail`. A message of more than `eager_max` bytes is one cell with the sender's address where the
 * kernel lets the receiver read it (process_vm_readv): a single copy. Otherwise it is streamed through the cells.
 *
 * A sender that must know that its message was received (it keeps the bytes, or sends synchronously) takes a slot: one
 * bit of the ring's `acks`, which only the receiver writes. The cell carries the slot's number, and the receiver flips
 * the bit when it has the bytes, be it long after the cell was given back. */
#ifndef HETCCL_SHM_LINK_H
#define HETCCL_SHM_LINK_H

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#include "hetccl/layout.h"
#include "hetccl/mr_direct.h"
#include "hetccl/message.h"
#include "hetccl/shm.h"
#include "hetccl/transport.h"

/* Messages of one ring that may wait for an acknowledgement at once: the bits of one cache line. */
#define HETCCL_SHM_SLOT_WORDS 8
#define HETCCL_SHM_SLOTS (64 * HETCCL_SHM_SLOT_WORDS)
/* recv() copies at most this much before the executor looks at signals and faults again: about 0.5 ms. */
#define HETCCL_SHM_PIECE_BYTES ((size_t)4 << 20)
/* A peer's bytes that belong into scattered runs are read straight there if the runs are this long on average, else
 * into a buffer of the second size and unpacked from it. The two ways cost the same at 512 bytes; at 4 KiB the first
 * takes 0.8 of the second's time, at 64 bytes 2.5 times as much (4 MiB, Xeon, Linux 6.18). */
#define HETCCL_SHM_RUN_BYTES 1024
#define HETCCL_SHM_BOUNCE_BYTES ((size_t)64 << 10)
#define HETCCL_SHM_RUNS 256

enum hetccl_cell_kind { HETCCL_CELL_EAGER = 1, HETCCL_CELL_ADDRESS = 2 };

typedef struct hetccl_cell {
    uint64_t seq;      /* ring position + 1 once published */
    uint64_t nbytes;   /* length of the whole message */
    uint16_t kind;     /* enum hetccl_cell_kind */
    uint16_t slot;     /* to acknowledge, from 1; 0: none */
    uint32_t tag;
    uint64_t address;  /* ADDRESS: of the message in the sender's memory */
    uint8_t payload[]; /* EAGER */
} hetccl_cell_t;

/* One end of one ring, in the memory of the process that uses it. */
typedef struct hetccl_shm_link {
    uint8_t *cells;
    size_t cell_bytes;
    uint64_t ncells;      /* a power of two */
    uint64_t *tail;       /* shared: cells given back by the consumer */
    uint64_t *acks;       /* shared: a bit of each slot, flipped by the consumer */
    uint64_t position;    /* next cell to publish (producer) or to read (consumer) */
    uint64_t tail_seen;   /* producer: the last value read of *tail */
    uint64_t tail_told;   /* consumer: the last value written to *tail */
    size_t eager_max;     /* bytes; larger messages go by address. SIZE_MAX where the kernel forbids it */
    hetccl_rank_block_t *peer_block;
    int32_t peer_pid;
    int32_t own_pid;
    uint64_t slots_busy[HETCCL_SHM_SLOT_WORDS]; /* producer: bits of the slots in use */
    uint64_t slots_seen[HETCCL_SHM_SLOT_WORDS]; /* producer: acks before those messages were received */
} hetccl_shm_link_t;

static inline hetccl_cell_t *hetccl_shm_cell(hetccl_shm_link_t *link, uint64_t position) {
    return (hetccl_cell_t *)(link->cells + (position & (link->ncells - 1)) * link->cell_bytes);
}

static inline size_t hetccl_shm_payload_bytes(const hetccl_shm_link_t *link) {
    return link->cell_bytes - sizeof(hetccl_cell_t);
}

/* The next cell to fill, or NULL while the consumer holds them all. */
static inline hetccl_cell_t *hetccl_shm_free_cell(hetccl_shm_link_t *link) {
    if (link->position - link->tail_seen == link->ncells) {
        link->tail_seen = __atomic_load_n(link->tail, __ATOMIC_ACQUIRE);
        if (link->position - link->tail_seen == link->ncells) return NULL;
    }
    return hetccl_shm_cell(link, link->position);
}

/* A slot from 1, or 0 if all are in use. */
static inline int32_t hetccl_shm_take_slot(hetccl_shm_link_t *link) {
    for (int word = 0; word < HETCCL_SHM_SLOT_WORDS; word++) {
        if (~link->slots_busy[word]) {
            int bit = __builtin_ctzll(~link->slots_busy[word]);
            link->slots_busy[word] |= UINT64_C(1) << bit;
            return 64 * word + bit + 1;
        }
    }
    return 0;
}

static inline void hetccl_shm_free_slot(hetccl_shm_link_t *link, int32_t slot) {
    link->slots_busy[(slot - 1) / 64] &= ~(UINT64_C(1) << ((slot - 1) & 63));
}

/* Whether the message of a slot has been received; if so, the slot is free. */
static inline int hetccl_shm_is_acknowledged(hetccl_shm_link_t *link, int32_t slot) {
    int word = (slot - 1) / 64;
    uint64_t bit = UINT64_C(1) << ((slot - 1) & 63);
    if (!((__atomic_load_n(&link->acks[word], __ATOMIC_ACQUIRE) ^ link->slots_seen[word]) & bit)) return 0;
    link->slots_seen[word] ^= bit;
    link->slots_busy[word] &= ~bit;
    return 1;
}

static inline void hetccl_shm_acknowledge(hetccl_shm_link_t *link, int32_t slot) {
    uint64_t *word = &link->acks[(slot - 1) / 64];
    __atomic_store_n(word, *word ^ UINT64_C(1) << ((slot - 1) & 63), __ATOMIC_RELEASE);
    hetccl_bell_ring(link->peer_block);
}

static inline void hetccl_shm_publish(hetccl_shm_link_t *link, hetccl_cell_t *cell, const hetccl_msg_t *msg,
                                      uint16_t kind, const uint8_t *address) {
    cell->nbytes = msg->nbytes;
    cell->kind = kind;
    cell->slot = (uint16_t)msg->slot;
    cell->tag = msg->tag;
    cell->address = (uint64_t)(uintptr_t)address;
    link->position += 1;
    __atomic_store_n(&cell->seq, link->position, __ATOMIC_RELEASE);
    hetccl_bell_ring(link->peer_block);
}

static inline int hetccl_shm_stream(hetccl_shm_link_t *link, hetccl_msg_t *msg) {
    size_t room = hetccl_shm_payload_bytes(link);
    size_t before = msg->done;
    do {
        hetccl_cell_t *cell = hetccl_shm_free_cell(link);
        if (!cell) return msg->done > before ? HETCCL_MOVED : HETCCL_AGAIN;
        size_t left = msg->nbytes - msg->done;
        size_t piece = left < room ? left : room;
        hetccl_msg_get(msg, msg->done, piece, cell->payload);
        msg->done += piece;
        hetccl_shm_publish(link, cell, msg, HETCCL_CELL_EAGER, NULL);
    } while (msg->done < msg->nbytes);
    if (!msg->slot) return HETCCL_DONE;
    msg->state = HETCCL_MSG_POSTED;
    return HETCCL_MOVED;
}

/* Whether the kernel can read the memory for a peer: not what a driver has mapped, such as CUDA's pinned host memory.
 * Asked of this process itself, for one byte: 0.3 us against the 4 us of the smallest message that goes by address. */
static inline int hetccl_shm_is_readable(const hetccl_shm_link_t *link, void *address) {
    uint8_t byte;
    struct iovec local = {&byte, 1}, remote = {address, 1};
    return process_vm_readv(link->own_pid, &local, 1, &remote, 1, 0) == 1;
}

/* A new message leaves by address, or becomes a stream. AGAIN: it stays new until there is a cell, and a slot if it
 * must have one. Where no slot is free, a large message is streamed: it may be the one that the receiver waits for. */
static inline int hetccl_shm_begin(hetccl_shm_link_t *link, hetccl_msg_t *msg) {
    hetccl_cell_t *cell = hetccl_shm_free_cell(link);
    if (!cell) return HETCCL_AGAIN;
    int sync = msg->flags & HETCCL_MSG_SYNC;
    uint8_t *run = msg->nbytes > link->eager_max ? hetccl_msg_only_run(msg) : NULL;
    if (run || sync) {
        msg->slot = hetccl_shm_take_slot(link);
        if (sync && !msg->slot) return HETCCL_AGAIN;
    }
    if (run && msg->slot && hetccl_shm_is_readable(link, run)) {
        msg->state = HETCCL_MSG_POSTED;
        hetccl_shm_publish(link, cell, msg, HETCCL_CELL_ADDRESS, run);
        return HETCCL_AGAIN;
    }
    if (msg->slot && !sync) {
        hetccl_shm_free_slot(link, msg->slot);
        msg->slot = 0;
    }
    msg->state = HETCCL_MSG_STREAM;
    return HETCCL_DONE;
}

/* The peer reads what a process maps, which a GPU's memory is not. */
static inline int hetccl_shm_not_direct(hetccl_msg_t *msg) {
    msg->error = HETCCL_DIRECT_SHM;
    return HETCCL_EDIRECT;
}

static int hetccl_shm_send(void *state, hetccl_msg_t *msg) {
    if (msg->device.runtime) return hetccl_shm_not_direct(msg);
    hetccl_shm_link_t *link = state;
    if (msg->state == HETCCL_MSG_NEW && hetccl_shm_begin(link, msg) == HETCCL_AGAIN) return HETCCL_AGAIN;
    if (msg->state == HETCCL_MSG_STREAM) return hetccl_shm_stream(link, msg);
    if (!hetccl_shm_is_acknowledged(link, msg->slot)) return HETCCL_AGAIN;
    msg->done = msg->nbytes;
    return HETCCL_DONE;
}

static inline hetccl_cell_t *hetccl_shm_head(hetccl_shm_link_t *link) {
    hetccl_cell_t *cell = hetccl_shm_cell(link, link->position);
    return __atomic_load_n(&cell->seq, __ATOMIC_ACQUIRE) == link->position + 1 ? cell : NULL;
}

static int hetccl_shm_peek(void *state, hetccl_header_t *header_p) {
    hetccl_cell_t *cell = hetccl_shm_head(state);
    if (!cell) return HETCCL_AGAIN;
    header_p->nbytes = cell->nbytes;
    header_p->hold_nbytes = cell->kind == HETCCL_CELL_ADDRESS ? 0 : cell->nbytes;
    header_p->tag = cell->tag;
    return HETCCL_DONE;
}

static int64_t hetccl_shm_available(void *state, hetccl_msg_t *msg) {
    if (msg->device.runtime) return hetccl_shm_not_direct(msg);
    hetccl_shm_link_t *link = state;
    hetccl_cell_t *cell = hetccl_shm_head(link);
    if (!cell) return HETCCL_AGAIN;
    if (cell->tag != msg->tag) return HETCCL_ETAG;
    if (cell->nbytes != msg->nbytes) return HETCCL_ELENGTH;
    size_t left = msg->nbytes - msg->done;
    if (cell->kind == HETCCL_CELL_ADDRESS) return (int64_t)left;
    size_t in_cell = hetccl_shm_payload_bytes(link) - msg->cell_done;
    return (int64_t)(left < in_cell ? left : in_cell);
}

/* A peer that has freed the communicator may have given back what it offered: what was read there means nothing. */
static inline int hetccl_shm_peer_left(const hetccl_shm_link_t *link) {
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return __atomic_load_n(&link->peer_block->state, __ATOMIC_RELAXED) == HETCCL_RANK_FREED;
}

/* Reads from the peer's memory into runs of this process's, all of them. The runs are used up. */
static int hetccl_shm_read_runs(hetccl_shm_link_t *link, hetccl_msg_t *msg, struct iovec *runs, int nruns,
                                uint64_t address, size_t nbytes) {
    while (nbytes > 0) {
        struct iovec remote = {(void *)(uintptr_t)address, nbytes};
        ssize_t got = process_vm_readv(link->peer_pid, runs, (unsigned long)nruns, &remote, 1, 0);
        if (got < 0 && errno != EINTR) {
            msg->error = errno;
            return errno == ESRCH || hetccl_shm_peer_left(link) ? HETCCL_EPEER : HETCCL_ESYSTEM;
        }
        size_t left = got > 0 ? (size_t)got : 0;
        address += left;
        nbytes -= left;
        while (nbytes > 0 && left >= runs->iov_len) {
            left -= runs->iov_len;
            runs++;
            nruns--;
        }
        if (nbytes > 0) {
            runs->iov_base = (uint8_t *)runs->iov_base + left;
            runs->iov_len -= left;
        }
    }
    return hetccl_shm_peer_left(link) ? HETCCL_EPEER : HETCCL_DONE;
}

static int hetccl_shm_read_peer(hetccl_shm_link_t *link, hetccl_msg_t *msg, void *dst, uint64_t address,
                                size_t nbytes) {
    struct iovec run = {dst, nbytes};
    return hetccl_shm_read_runs(link, msg, &run, 1, address, nbytes);
}

/* Reads the message's next nbytes from the peer's memory to where its layout wants them. */
static int hetccl_shm_read_scattered(hetccl_shm_link_t *link, hetccl_msg_t *msg, uint64_t address, size_t nbytes) {
    struct iovec runs[HETCCL_SHM_RUNS];
    uint8_t bounce[HETCCL_SHM_BOUNCE_BYTES];
    size_t piece;
    for (size_t done = 0; done < nbytes; done += piece) {
        size_t at = msg->done + done;
        int status, nruns = hetccl_layout_runs(msg->layout, msg->ptr, msg->skip + at, nbytes - done, runs,
                                               HETCCL_SHM_RUNS);
        piece = 0;
        for (int i = 0; i < nruns; i++) piece += runs[i].iov_len;
        if (piece >= (size_t)nruns * HETCCL_SHM_RUN_BYTES) {
            status = hetccl_shm_read_runs(link, msg, runs, nruns, address + done, piece);
        } else {
            piece = nbytes - done < sizeof(bounce) ? nbytes - done : sizeof(bounce);
            status = hetccl_shm_read_peer(link, msg, bounce, address + done, piece);
            if (status == HETCCL_DONE) hetccl_msg_put(msg, at, piece, bounce);
        }
        if (status != HETCCL_DONE) return status;
    }
    return HETCCL_DONE;
}

/* Moves the message's next nbytes to their place: from `bytes`, or if that is NULL from the peer's memory. */
static inline int hetccl_shm_deliver(hetccl_shm_link_t *link, hetccl_msg_t *msg, const uint8_t *bytes, uint64_t address,
                                     size_t nbytes) {
    if (bytes) {
        hetccl_msg_put(msg, msg->done, nbytes, bytes);
    } else if (msg->layout) {
        return hetccl_shm_read_scattered(link, msg, address, nbytes);
    } else {
        return hetccl_shm_read_peer(link, msg, msg->ptr + msg->done, address, nbytes);
    }
    return HETCCL_DONE;
}

static const void *hetccl_shm_fetch(void *state, hetccl_msg_t *msg, size_t nbytes, void *scratch) {
    hetccl_shm_link_t *link = state;
    hetccl_cell_t *cell = hetccl_shm_cell(link, link->position);
    if (cell->kind == HETCCL_CELL_EAGER) return cell->payload + msg->cell_done;
    int status = hetccl_shm_read_peer(link, msg, scratch, cell->address + msg->done, nbytes);
    /* A peer that left while it was read has caused no errno. */
    if (status == HETCCL_EPEER) msg->error = ESRCH;
    return status == HETCCL_DONE ? scratch : NULL;
}

/* Gives the cell at the head back. A producer waits only for a full ring, so half a ring is soon enough to tell it. */
static inline void hetccl_shm_release(hetccl_shm_link_t *link) {
    link->position += 1;
    if (link->position - link->tail_told >= link->ncells / 2) {
        link->tail_told = link->position;
        __atomic_store_n(link->tail, link->position, __ATOMIC_RELEASE);
        hetccl_bell_ring(link->peer_block);
    }
}

static void hetccl_shm_consume(void *state, hetccl_msg_t *msg, size_t nbytes) {
    hetccl_shm_link_t *link = state;
    hetccl_cell_t *cell = hetccl_shm_cell(link, link->position);
    msg->done += nbytes;
    msg->cell_done += nbytes;
    int last = msg->done == msg->nbytes;
    if (!last && (cell->kind == HETCCL_CELL_ADDRESS || msg->cell_done < hetccl_shm_payload_bytes(link))) return;
    int32_t slot = last ? cell->slot : 0;
    msg->cell_done = 0;
    hetccl_shm_release(link);
    if (slot) hetccl_shm_acknowledge(link, slot);
}

static inline size_t hetccl_shm_piece(size_t nbytes) {
    return nbytes < HETCCL_SHM_PIECE_BYTES ? nbytes : HETCCL_SHM_PIECE_BYTES;
}

static int hetccl_shm_recv(void *state, hetccl_msg_t *msg) {
    if (msg->device.runtime) return hetccl_shm_not_direct(msg);
    hetccl_shm_link_t *link = state;
    size_t moved = 0;
    do {
        hetccl_cell_t *cell = hetccl_shm_head(link);
        if (!cell) return moved ? HETCCL_MOVED : HETCCL_AGAIN;
        int64_t available = hetccl_shm_available(link, msg);
        if (available < 0) return (int)available;
        size_t piece = hetccl_shm_piece((size_t)available);
        const uint8_t *bytes = cell->kind == HETCCL_CELL_EAGER ? cell->payload + msg->cell_done : NULL;
        int status = hetccl_shm_deliver(link, msg, bytes, cell->address + msg->done, piece);
        if (status != HETCCL_DONE) return status;
        hetccl_shm_consume(link, msg, piece);
        moved += piece;
    } while (msg->done < msg->nbytes && moved < HETCCL_SHM_PIECE_BYTES);
    return msg->done < msg->nbytes ? HETCCL_MOVED : HETCCL_DONE;
}

static int hetccl_shm_set_aside(void *state, hetccl_aside_t *aside) {
    hetccl_shm_link_t *link = state;
    size_t room = hetccl_shm_payload_bytes(link), moved = 0;
    do {
        hetccl_cell_t *cell = hetccl_shm_head(link);
        if (!cell) return moved ? HETCCL_MOVED : HETCCL_AGAIN;
        aside->nbytes = cell->nbytes;
        aside->tag = cell->tag;
        aside->slot = cell->slot;
        if (cell->kind == HETCCL_CELL_ADDRESS) {
            aside->address = cell->address;
            hetccl_shm_release(link);
            return HETCCL_DONE;
        }
        size_t left = aside->nbytes - aside->done;
        size_t piece = left < room ? left : room;
        if (piece > 0) memcpy(aside->buffer + aside->done, cell->payload, piece);
        aside->done += piece;
        moved += piece;
        hetccl_shm_release(link);
    } while (aside->done < aside->nbytes && moved < HETCCL_SHM_PIECE_BYTES);
    return aside->done < aside->nbytes ? HETCCL_MOVED : HETCCL_DONE;
}

static int hetccl_shm_recv_aside(void *state, hetccl_aside_t *aside, hetccl_msg_t *msg) {
    if (msg->device.runtime) return hetccl_shm_not_direct(msg);
    hetccl_shm_link_t *link = state;
    if (msg->nbytes != aside->nbytes) return HETCCL_ELENGTH;
    size_t piece = hetccl_shm_piece(msg->nbytes - msg->done);
    const uint8_t *bytes = aside->buffer ? aside->buffer + msg->done : NULL;
    int status = hetccl_shm_deliver(link, msg, bytes, aside->address + msg->done, piece);
    if (status != HETCCL_DONE) return status;
    msg->done += piece;
    if (msg->done < msg->nbytes) return HETCCL_MOVED;
    if (aside->slot) hetccl_shm_acknowledge(link, aside->slot);
    return HETCCL_DONE;
}

static const hetccl_transport_t hetccl_shm_transport = {
    .name = "shm",
    .send = hetccl_shm_send,
    .recv = hetccl_shm_recv,
    .available = hetccl_shm_available,
    .fetch = hetccl_shm_fetch,
    .consume = hetccl_shm_consume,
    .peek = hetccl_shm_peek,
    .set_aside = hetccl_shm_set_aside,
    .recv_aside = hetccl_shm_recv_aside,
};

#endif
