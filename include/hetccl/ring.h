/* The pinned memory through which calls on GPU buffers pass between islands (layer L3): a ring of pieces, which the
 * portions of the calls use one after another. A communicator has one for collectives, and one for each message under
 * way. A GPU's stream copies a portion's input into a piece and opens its gate;
 * the engine runs the portion there and sets its word, for which a stream waits that copies the result out.
 * Every use of a piece has a number, its serial, from 1. The structs are on the heap, and stay while a stream may still
 * call hetccl_piece_arrive, which the runtime does on a thread of its own. */
#ifndef HETCCL_RING_H
#define HETCCL_RING_H

#include <sched.h>
#include <stddef.h>
#include <stdint.h>

#include "hetccl/shm.h"

/* One portion is on its way in, one in the engine, one on its way out, and one between two of these. */
enum { HETCCL_RING_PIECES = 4 };

typedef struct hetccl_ring hetccl_ring_t;

typedef struct hetccl_ring_piece {
    hetccl_ring_t *ring;
    uint8_t *memory; /* IN's units, then OUT's */
    size_t nbytes;
    uint32_t *word;       /* pinned: serial of the last use that the engine has completed */
    void *word_on_device; /* the same as the GPU sees it */
    uint32_t gate;        /* serial of the last use whose input has arrived */
    void *arrived;        /* event: the input of the last use */
    void *gone;           /* event: the last use is over */
} hetccl_ring_piece_t;

struct hetccl_ring {
    hetccl_ring_t *next; /* of the communicator's; a message's ring is among them from the first use on */
    hetccl_ring_piece_t pieces[HETCCL_RING_PIECES];
    uint64_t ntaken;             /* uses of pieces, of all calls so far */
    hetccl_rank_block_t *bell;   /* this rank's; NULL: nobody is to be woken any more */
    int nringing;                /* threads that may be at the bell */
    int *lost;                   /* set when the communicator has broken */
    int taken;                   /* of a message's ring: the engine has a message with it */
};

static inline hetccl_ring_piece_t *hetccl_ring_piece(hetccl_ring_t *ring, uint64_t use) {
    return &ring->pieces[use % HETCCL_RING_PIECES];
}

static inline uint32_t hetccl_ring_serial(uint64_t use) { return (uint32_t)(use / HETCCL_RING_PIECES + 1); }

static inline int hetccl_ring_is_open(hetccl_ring_t *ring, uint64_t use) {
    uint32_t gate = __atomic_load_n(&hetccl_ring_piece(ring, use)->gate, __ATOMIC_ACQUIRE);
    return (int32_t)(gate - hetccl_ring_serial(use)) >= 0;
}

/* How often a piece's gate has been opened. */
static inline uint32_t hetccl_ring_gate(hetccl_ring_t *ring, int place) {
    return __atomic_load_n(&ring->pieces[place].gate, __ATOMIC_ACQUIRE);
}

static inline void hetccl_ring_complete(hetccl_ring_t *ring, uint64_t use) {
    __atomic_store_n(hetccl_ring_piece(ring, use)->word, hetccl_ring_serial(use), __ATOMIC_RELEASE);
}

/* A stream's host function: the memory of a piece is as its next use needs it. */
static void hetccl_piece_arrive(void *argument) {
    hetccl_ring_piece_t *piece = argument;
    hetccl_ring_t *ring = piece->ring;
    __atomic_fetch_add(&ring->nringing, 1, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&piece->gate, 1, __ATOMIC_RELEASE);
    hetccl_rank_block_t *bell = __atomic_load_n(&ring->bell, __ATOMIC_SEQ_CST);
    if (bell) hetccl_bell_ring(bell);
    __atomic_fetch_sub(&ring->nringing, 1, __ATOMIC_SEQ_CST);
}

/* No thread touches the bell of this ring and those behind it once this returns. */
static inline void hetccl_ring_mute(hetccl_ring_t *ring) {
    for (; ring; ring = ring->next) {
        __atomic_store_n(&ring->bell, NULL, __ATOMIC_SEQ_CST);
        while (__atomic_load_n(&ring->nringing, __ATOMIC_SEQ_CST)) sched_yield();
    }
}

/* The engine will complete nothing any more: let every stream go on that waits for this ring or one behind it, or
 * will. */
static inline void hetccl_ring_release(hetccl_ring_t *ring) {
    for (; ring; ring = ring->next) {
        const uint32_t beyond = hetccl_ring_serial(ring->ntaken) + (1u << 30);
        __atomic_store_n(ring->lost, 1, __ATOMIC_SEQ_CST);
        for (int i = 0; i < HETCCL_RING_PIECES; i++)
            if (ring->pieces[i].word) __atomic_store_n(ring->pieces[i].word, beyond, __ATOMIC_SEQ_CST);
    }
}

/* Portions grow with their number, so that a call has few of them however large it is: the GPU's driver holds a
 * bounded number of commands, and a call that has more waits on the host. They depend on their number alone, since not
 * every rank knows the length of the whole, and all must cut alike. In units of the first one's length: */
static inline int64_t hetccl_portion_length(int64_t number) { return number < 4 ? 1 : number < 8 ? 2 : 4; }

static inline int64_t hetccl_portion_begin(int64_t number) {
    return number < 4 ? number : number < 8 ? 2 * number - 4 : 4 * number - 20;
}

/* How many a call of `count` elements has, with `first` in the first portion. */
static inline int64_t hetccl_portions(int64_t count, int64_t first) {
    int64_t full = count > 0 ? (count - 1) / first + 1 : 0;
    return full <= 4 ? full : full <= 12 ? (full + 5) / 2 : (full + 23) / 4;
}

#endif
