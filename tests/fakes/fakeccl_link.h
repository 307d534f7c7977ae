/* The fake's wires: one shared-memory file per communicator, with a channel for each ordered pair of ranks that holds
 * one piece of a message. Whoever waits here looks at the communicator's `aborted` and at the clock. */
#ifndef FAKECCL_LINK_H
#define FAKECCL_LINK_H

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PIECE_BYTES = 1 << 16, RANKS_MAX = 64, NAME_BYTES = 256 };
enum { MOVED, STUCK, ABORTED, LATE, MISMATCH };

typedef struct channel {
    atomic_uint full;
    uint32_t call; /* of the message that the piece is of */
    uint64_t total, nbytes;
    char piece[PIECE_BYTES];
} channel_t;

typedef struct wires {
    atomic_int attached;
    atomic_int present[RANKS_MAX];
    channel_t channels[];
} wires_t;

typedef struct link {
    char name[NAME_BYTES];
    wires_t *wires;
    size_t nbytes;
    int rank, nranks;
    atomic_int aborted;
} wire_t;

typedef struct transfer {
    int is_send, peer;
    uint32_t call;
    char *ptr;
    size_t nbytes, done;
} transfer_t;

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

/* How long a call waits for its peers: the real library would for ever. */
static double patience_s(void) {
    const char *text = getenv("FAKE_CCL_TIMEOUT_S");
    return text ? atof(text) : 30;
}

/* 0, or an errno; EEXIST: there is such a rank already. */
static int link_open(wire_t *link, const char *name, int rank, int nranks) {
    snprintf(link->name, sizeof link->name, "%s", name);
    link->rank = rank;
    link->nranks = nranks;
    link->nbytes = sizeof(wires_t) + (size_t)nranks * nranks * sizeof(channel_t);
    int fd = open(link->name, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0) return errno;
    int error = ftruncate(fd, (off_t)link->nbytes) ? errno : 0;
    void *map = error ? MAP_FAILED : mmap(NULL, link->nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (!error && map == MAP_FAILED) error = errno;
    close(fd);
    if (error) return error;
    link->wires = map;
    if (atomic_exchange(&link->wires->present[rank], 1)) {
        munmap(link->wires, link->nbytes);
        link->wires = NULL;
        return EEXIST;
    }
    if (atomic_fetch_add(&link->wires->attached, 1) + 1 == nranks) unlink(link->name);
    return 0;
}

static void link_close(wire_t *link) {
    if (!link->wires) return;
    if (atomic_load(&link->wires->attached) < link->nranks) unlink(link->name);
    munmap(link->wires, link->nbytes);
    link->wires = NULL;
}

static int link_is_complete(wire_t *link) { return atomic_load(&link->wires->attached) == link->nranks; }

static channel_t *channel_of(wire_t *link, int from, int to) {
    return &link->wires->channels[from * link->nranks + to];
}

/* Move a piece of a transfer. */
static int transfer_step(wire_t *link, transfer_t *t) {
    channel_t *channel = t->is_send ? channel_of(link, link->rank, t->peer) : channel_of(link, t->peer, link->rank);
    if (atomic_load_explicit(&channel->full, memory_order_acquire) == (unsigned)t->is_send) return STUCK;
    if (t->is_send) {
        size_t left = t->nbytes - t->done;
        channel->nbytes = left < PIECE_BYTES ? left : PIECE_BYTES;
        channel->total = t->nbytes;
        channel->call = t->call;
        memcpy(channel->piece, t->ptr + t->done, channel->nbytes);
    } else {
        if (channel->total != t->nbytes || channel->call != t->call) return MISMATCH;
        memcpy(t->ptr + t->done, channel->piece, channel->nbytes);
    }
    t->done += channel->nbytes;
    atomic_store_explicit(&channel->full, t->is_send, memory_order_release);
    return MOVED;
}

/* One look at all transfers; those of one direction and peer go one after another. */
static int transfers_step(wire_t *link, transfer_t *transfers, size_t n, size_t *left) {
    char busy[2][RANKS_MAX] = {{0}};
    int moved = STUCK;
    *left = 0;
    for (size_t i = 0; i < n; i++) {
        transfer_t *t = &transfers[i];
        if (t->done == t->nbytes) continue;
        *left += 1;
        if (busy[t->is_send][t->peer]) continue;
        busy[t->is_send][t->peer] = 1;
        int status = transfer_step(link, t);
        if (status == MISMATCH) return MISMATCH;
        if (status == MOVED) moved = MOVED;
    }
    return moved;
}

/* Run transfers to their end: MOVED, or why not. */
static int transfers_run(wire_t *link, transfer_t *transfers, size_t n) {
    double until_s = now_s() + patience_s();
    size_t left = 1;
    for (int idle = 0; left; idle++) {
        int status = transfers_step(link, transfers, n, &left);
        if (status == MISMATCH) return MISMATCH;
        if (status == MOVED) idle = 0;
        if (atomic_load(&link->aborted)) return ABORTED;
        if (idle < 100) continue;
        if (now_s() > until_s) return LATE;
        if (idle < 1000) sched_yield();
        else nanosleep(&(struct timespec){0, 100000}, NULL);
    }
    return MOVED;
}

#endif
