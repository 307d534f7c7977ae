/* The shared-memory transport (layer L2): one ring of cells per ordered pair of ranks and class of traffic.
 *
 * The producer writes payload and header, then publishes the cell by storing its sequence number (release); the consumer
 * polls that number, so that a small message costs one cache line. The consumer gives cells back by storing its position
 * in `tail`. A message of more than `eager_max` bytes is one cell with the sender's address where the kernel lets the
 * receiver read it (process_vm_readv): a single copy; the cell's release tells the sender that its memory was read.
 * Otherwise it is streamed through the cells.
 *
 * Whoever waits sleeps on its own bell, a futex. Publishing and releasing ring it only if somebody sleeps there; the
 * full fences make "I published, do you sleep?" and "I sleep, did you publish?" see each other (Dekker). */
#ifndef HETCCL_SHM_H
#define HETCCL_SHM_H

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "hetccl/transport.h"

#define HETCCL_SHM_MAGIC 0x31306c6363746568ull /* "hetccl01" */
#define HETCCL_SHM_SECRET_BYTES 16
#define HETCCL_CACHE_LINE 64
#define HETCCL_SHM_PAGE 4096
/* recv() copies at most this much before the executor looks at signals and faults again: about 0.5 ms. */
#define HETCCL_SHM_PIECE_BYTES ((size_t)4 << 20)

enum hetccl_cell_kind { HETCCL_CELL_EAGER = 1, HETCCL_CELL_ADDRESS = 2 };
enum hetccl_rank_state { HETCCL_RANK_ALIVE = 1, HETCCL_RANK_FREED = 2 };

typedef struct hetccl_cell {
    uint64_t seq;      /* ring position + 1 once published */
    uint64_t nbytes;   /* length of the whole message */
    uint32_t kind;     /* enum hetccl_cell_kind */
    uint32_t tag;
    uint64_t address;  /* ADDRESS: of the message in the sender's memory */
    uint8_t payload[]; /* EAGER */
} hetccl_cell_t;

/* One rank's public state; the first line is written by its peers, the second by itself. */
typedef struct hetccl_rank_block {
    uint32_t bell;     /* futex word: counts rings */
    uint32_t sleepers; /* threads of the rank that sleep on the bell */
    uint8_t pad0[HETCCL_CACHE_LINE - 8];
    uint64_t entered;  /* collectives this rank has entered on this communicator */
    uint32_t call;     /* which one the last was */
    uint32_t state;    /* enum hetccl_rank_state */
    uint64_t pid;
    uint64_t start_ticks;   /* field 22 of /proc/<pid>/stat: tells a reused pid */
    uint64_t probe_address; /* of a word of this process that holds the job secret's first 8 bytes */
    uint8_t pad1[HETCCL_CACHE_LINE - 40];
} hetccl_rank_block_t;

typedef struct hetccl_shm_header {
    uint64_t magic;
    uint8_t secret[HETCCL_SHM_SECRET_BYTES];
    uint32_t nranks;
    uint32_t ncells;
    uint64_t cell_bytes;
    uint64_t total_bytes;
    uint8_t pad0[HETCCL_CACHE_LINE - 48];
    uint64_t fault; /* 0, or why the communicator is broken: see HETCCL_FAULT */
    uint8_t pad1[HETCCL_CACHE_LINE - 8];
} hetccl_shm_header_t;

/* The fault word: the first rank that gives up writes it, all others read it. */
enum hetccl_reason {
    HETCCL_REASON_DEAD = 1,
    HETCCL_REASON_LEFT = 2,
    HETCCL_REASON_TIMEOUT = 3,
    HETCCL_REASON_FREED = 4,
};
#define HETCCL_FAULT(reason, reporter, culprit) \
    ((uint64_t)(reason) << 56 | (uint64_t)(uint32_t)(reporter) << 28 | (uint64_t)(uint32_t)(culprit))
#define HETCCL_FAULT_REASON(fault) ((int)((fault) >> 56))
#define HETCCL_FAULT_REPORTER(fault) ((int)((fault) >> 28 & 0xfffffff))
#define HETCCL_FAULT_CULPRIT(fault) ((int)((fault) & 0xfffffff))

/* One end of one ring, in the memory of the process that uses it. */
typedef struct hetccl_shm_link {
    uint8_t *cells;
    size_t cell_bytes;
    uint64_t ncells;      /* a power of two */
    uint64_t *tail;       /* shared: cells given back by the consumer */
    uint64_t position;    /* next cell to publish (producer) or to read (consumer) */
    uint64_t tail_seen;   /* producer: the last value read of *tail */
    uint64_t tail_told;   /* consumer: the last value written to *tail */
    size_t eager_max;     /* bytes; larger messages go by address. SIZE_MAX where the kernel forbids it */
    hetccl_rank_block_t *peer_block;
    int32_t peer_pid;
    int32_t own_pid;
} hetccl_shm_link_t;

static inline size_t hetccl_round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

/* Layout: header | rank blocks | tails | readable matrix | cells. Two classes (0 collectives, 1 point to point). */
static inline size_t hetccl_shm_blocks_at(void) {
    return hetccl_round_up(sizeof(hetccl_shm_header_t), HETCCL_CACHE_LINE);
}

static inline size_t hetccl_shm_tails_at(size_t nranks) {
    return hetccl_shm_blocks_at() + nranks * sizeof(hetccl_rank_block_t);
}

static inline size_t hetccl_shm_readable_at(size_t nranks) {
    return hetccl_shm_tails_at(nranks) + 2 * nranks * nranks * HETCCL_CACHE_LINE;
}
static inline size_t hetccl_shm_cells_at(size_t nranks) {
    return hetccl_round_up(hetccl_shm_readable_at(nranks) + nranks * nranks, HETCCL_SHM_PAGE);
}
static inline size_t hetccl_shm_total(size_t nranks, size_t ncells, size_t cell_bytes) {
    return hetccl_shm_cells_at(nranks) + 2 * nranks * nranks * ncells * cell_bytes;
}

static inline void hetccl_bell_ring(hetccl_rank_block_t *block) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(&block->sleepers, __ATOMIC_RELAXED)) {
        __atomic_fetch_add(&block->bell, 1, __ATOMIC_RELEASE);
        syscall(SYS_futex, &block->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
}

/* Between arm and disarm the caller polls once more, then sleeps if nothing has come. */
static inline uint32_t hetccl_bell_arm(hetccl_rank_block_t *block) {
    uint32_t bell = __atomic_load_n(&block->bell, __ATOMIC_ACQUIRE);
    __atomic_fetch_add(&block->sleepers, 1, __ATOMIC_SEQ_CST);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return bell;
}

static inline void hetccl_bell_sleep(hetccl_rank_block_t *block, uint32_t bell, int64_t timeout_ns) {
    struct timespec timeout = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    syscall(SYS_futex, &block->bell, FUTEX_WAIT, bell, &timeout, NULL, 0);
}

static inline void hetccl_bell_disarm(hetccl_rank_block_t *block) {
    __atomic_fetch_sub(&block->sleepers, 1, __ATOMIC_SEQ_CST);
}

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

static inline void hetccl_shm_publish(hetccl_shm_link_t *link, hetccl_cell_t *cell, const hetccl_msg_t *msg,
                                      uint32_t kind) {
    cell->nbytes = msg->nbytes;
    cell->kind = kind;
    cell->tag = msg->tag;
    cell->address = (uint64_t)(uintptr_t)msg->ptr;
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
        memcpy(cell->payload, msg->ptr + msg->done, piece);
        msg->done += piece;
        hetccl_shm_publish(link, cell, msg, HETCCL_CELL_EAGER);
    } while (msg->done < msg->nbytes);
    return HETCCL_DONE;
}

/* Whether the kernel can read the memory for a peer: not what a driver has mapped, such as CUDA's pinned host memory. Asked of
 * this process itself, for one byte: 0.3 us against the 4 us of the smallest message that goes by address. */
static inline int hetccl_shm_is_readable(const hetccl_shm_link_t *link, void *address) {
    uint8_t byte;
    struct iovec local = {&byte, 1}, remote = {address, 1};
    return process_vm_readv(link->own_pid, &local, 1, &remote, 1, 0) == 1;
}

static int hetccl_shm_send(void *state, hetccl_msg_t *msg) {
    hetccl_shm_link_t *link = state;
    if (msg->state == HETCCL_MSG_NEW) {
        /* Either way a cell is needed: without one this is polled again, and the kernel need not be asked each time. */
        hetccl_cell_t *cell = hetccl_shm_free_cell(link);
        if (!cell) return HETCCL_AGAIN;
        if (msg->nbytes <= link->eager_max || !hetccl_shm_is_readable(link, msg->ptr)) {
            msg->state = HETCCL_MSG_STREAM;
        } else {
            msg->cell = link->position;
            msg->state = HETCCL_MSG_POSTED;
            hetccl_shm_publish(link, cell, msg, HETCCL_CELL_ADDRESS);
            return HETCCL_AGAIN;
        }
    }
    if (msg->state == HETCCL_MSG_STREAM) return hetccl_shm_stream(link, msg);
    link->tail_seen = __atomic_load_n(link->tail, __ATOMIC_ACQUIRE);
    if (link->tail_seen <= msg->cell) return HETCCL_AGAIN;
    msg->done = msg->nbytes;
    return HETCCL_DONE;
}

static inline hetccl_cell_t *hetccl_shm_head(hetccl_shm_link_t *link) {
    hetccl_cell_t *cell = hetccl_shm_cell(link, link->position);
    return __atomic_load_n(&cell->seq, __ATOMIC_ACQUIRE) == link->position + 1 ? cell : NULL;
}

static int hetccl_shm_peek(void *state, size_t *nbytes_p, uint32_t *tag_p) {
    hetccl_cell_t *cell = hetccl_shm_head(state);
    if (!cell) return HETCCL_AGAIN;
    *nbytes_p = cell->nbytes;
    *tag_p = cell->tag;
    return HETCCL_DONE;
}

static int64_t hetccl_shm_available(void *state, hetccl_msg_t *msg) {
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

static int hetccl_shm_read_peer(hetccl_shm_link_t *link, hetccl_msg_t *msg, void *dst, uint64_t address,
                                size_t nbytes) {
    size_t done = 0;
    while (done < nbytes) {
        struct iovec local = {(uint8_t *)dst + done, nbytes - done};
        struct iovec remote = {(void *)(uintptr_t)(address + done), nbytes - done};
        ssize_t got = process_vm_readv(link->peer_pid, &local, 1, &remote, 1, 0);
        if (got > 0) {
            done += (size_t)got;
        } else if (got < 0 && errno != EINTR) {
            msg->error = errno;
            return errno == ESRCH ? HETCCL_EPEER : HETCCL_ESYSTEM;
        }
    }
    return HETCCL_DONE;
}

static const void *hetccl_shm_fetch(void *state, hetccl_msg_t *msg, size_t nbytes, void *scratch) {
    hetccl_shm_link_t *link = state;
    hetccl_cell_t *cell = hetccl_shm_cell(link, link->position);
    if (cell->kind == HETCCL_CELL_EAGER) return cell->payload + msg->cell_done;
    return hetccl_shm_read_peer(link, msg, scratch, cell->address + msg->done, nbytes) == HETCCL_DONE ? scratch : NULL;
}

static void hetccl_shm_consume(void *state, hetccl_msg_t *msg, size_t nbytes) {
    hetccl_shm_link_t *link = state;
    hetccl_cell_t *cell = hetccl_shm_cell(link, link->position);
    msg->done += nbytes;
    msg->cell_done += nbytes;
    int by_address = cell->kind == HETCCL_CELL_ADDRESS;
    if (msg->done < msg->nbytes && (by_address || msg->cell_done < hetccl_shm_payload_bytes(link))) return;
    msg->cell_done = 0;
    link->position += 1;
    /* A producer of eager cells waits only for a full ring, so half a ring is soon enough to tell it. */
    if (by_address || link->position - link->tail_told >= link->ncells / 2) {
        link->tail_told = link->position;
        __atomic_store_n(link->tail, link->position, __ATOMIC_RELEASE);
        hetccl_bell_ring(link->peer_block);
    }
}

static int hetccl_shm_recv(void *state, hetccl_msg_t *msg) {
    hetccl_shm_link_t *link = state;
    size_t moved = 0;
    do {
        hetccl_cell_t *cell = hetccl_shm_head(link);
        if (!cell) return moved ? HETCCL_MOVED : HETCCL_AGAIN;
        int64_t available = hetccl_shm_available(link, msg);
        if (available < 0) return (int)available;
        size_t piece = (size_t)available < HETCCL_SHM_PIECE_BYTES ? (size_t)available : HETCCL_SHM_PIECE_BYTES;
        if (cell->kind == HETCCL_CELL_EAGER) {
            memcpy(msg->ptr + msg->done, cell->payload + msg->cell_done, piece);
        } else {
            int status = hetccl_shm_read_peer(link, msg, msg->ptr + msg->done, cell->address + msg->done, piece);
            if (status != HETCCL_DONE) return status;
        }
        hetccl_shm_consume(link, msg, piece);
        moved += piece;
    } while (msg->done < msg->nbytes && moved < HETCCL_SHM_PIECE_BYTES);
    return msg->done < msg->nbytes ? HETCCL_MOVED : HETCCL_DONE;
}

static const hetccl_transport_t hetccl_shm_transport = {
    .name = "shm",
    .send = hetccl_shm_send,
    .recv = hetccl_shm_recv,
    .available = hetccl_shm_available,
    .fetch = hetccl_shm_fetch,
    .consume = hetccl_shm_consume,
    .peek = hetccl_shm_peek,
};

#endif
