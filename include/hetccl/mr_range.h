/* Stretches of host memory whose life is known (layer L2): where a user's array lies, from when it was first passed to
 * a call until its owner dies. They may be registered with RDMA devices (mr_cache.h); other memory may not, for it can
 * be unmapped, and its addresses used again, without our hearing of it. Under the lock of hetccl_mr_notes_t. */
#ifndef HETCCL_MR_RANGE_H
#define HETCCL_MR_RANGE_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct hetccl_mr;

typedef struct hetccl_mr_range {
    uintptr_t base;
    size_t nbytes;
    int promised; /* its life is what a user promised (Comm.register), not what an owner's type guarantees */
    int kept;     /* so many registrations by users (Comm.register) are open: it is not to be evicted */
    int gone;     /* out of the ranges; here for those registrations alone */
    struct hetccl_mr *mrs; /* one for each device that has been asked; owned */
} hetccl_mr_range_t;

typedef struct hetccl_mr_ranges {
    hetccl_mr_range_t **at; /* by ascending base; owned */
    uintptr_t *reach;       /* reach[i]: the farthest end of at[0] to at[i] */
    size_t count;
    size_t room;
} hetccl_mr_ranges_t;

/* A program that passes more arrays than that and keeps them all has the later ones staged: each new one moves the
 * entries behind it. */
#define HETCCL_MR_RANGES_MAX 65536

static inline uintptr_t hetccl_mr_range_end(const hetccl_mr_range_t *range) { return range->base + range->nbytes; }

/* Index of the first range that begins after ptr. */
static inline size_t hetccl_mr_ranges_after(const hetccl_mr_ranges_t *ranges, uintptr_t ptr) {
    size_t low = 0, high = ranges->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (ranges->at[middle]->base <= ptr)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The range in which [ptr, ptr + nbytes) lies whole, or NULL; one that an owner guarantees rather than a promise. */
static inline hetccl_mr_range_t *hetccl_mr_ranges_find(const hetccl_mr_ranges_t *ranges, uintptr_t ptr,
                                                       size_t nbytes) {
    uintptr_t end = ptr + nbytes;
    hetccl_mr_range_t *promised = NULL;
    for (size_t i = hetccl_mr_ranges_after(ranges, ptr); i > 0 && ranges->reach[i - 1] >= end; i--) {
        hetccl_mr_range_t *range = ranges->at[i - 1];
        if (hetccl_mr_range_end(range) < end) continue;
        if (!range->promised) return range;
        if (promised == NULL) promised = range;
    }
    return promised;
}

/* Of the ranges that an owner guarantees and that share a byte with [ptr, ptr + nbytes), the one that begins last; or
 * NULL. */
static inline hetccl_mr_range_t *hetccl_mr_ranges_touching(const hetccl_mr_ranges_t *ranges, uintptr_t ptr,
                                                           size_t nbytes) {
    for (size_t i = nbytes ? hetccl_mr_ranges_after(ranges, ptr + nbytes - 1) : 0;
         i > 0 && ranges->reach[i - 1] > ptr; i--) {
        hetccl_mr_range_t *range = ranges->at[i - 1];
        if (hetccl_mr_range_end(range) > ptr && !range->promised) return range;
    }
    return NULL;
}

static inline void hetccl_mr_ranges_measure(hetccl_mr_ranges_t *ranges, size_t from) {
    uintptr_t far = from ? ranges->reach[from - 1] : 0;
    for (size_t i = from; i < ranges->count; i++) {
        uintptr_t end = hetccl_mr_range_end(ranges->at[i]);
        far = end > far ? end : far;
        ranges->reach[i] = far;
    }
}

static inline int hetccl_mr_ranges_grow(hetccl_mr_ranges_t *ranges) {
    size_t room = ranges->room ? 2 * ranges->room : 64;
    hetccl_mr_range_t **at = realloc(ranges->at, room * sizeof *at);
    if (at == NULL) return 0;
    ranges->at = at;
    uintptr_t *reach = realloc(ranges->reach, room * sizeof *reach);
    if (reach == NULL) return 0;
    ranges->reach = reach;
    ranges->room = room;
    return 1;
}

/* A new range, or NULL: there is no memory for it, or there are too many. */
static inline hetccl_mr_range_t *hetccl_mr_ranges_add(hetccl_mr_ranges_t *ranges, uintptr_t base, size_t nbytes,
                                                      int promised) {
    if (nbytes == 0 || base + nbytes < base || ranges->count == HETCCL_MR_RANGES_MAX) return NULL;
    if (ranges->count == ranges->room && !hetccl_mr_ranges_grow(ranges)) return NULL;
    hetccl_mr_range_t *range = calloc(1, sizeof *range);
    if (range == NULL) return NULL;
    range->base = base;
    range->nbytes = nbytes;
    range->promised = promised;
    size_t index = hetccl_mr_ranges_after(ranges, base);
    memmove(ranges->at + index + 1, ranges->at + index, (ranges->count - index) * sizeof *ranges->at);
    ranges->at[index] = range;
    ranges->count++;
    hetccl_mr_ranges_measure(ranges, index);
    return range;
}

/* Takes a range out. */
static inline void hetccl_mr_ranges_remove(hetccl_mr_ranges_t *ranges, hetccl_mr_range_t *range) {
    size_t index = hetccl_mr_ranges_after(ranges, range->base);
    while (ranges->at[--index] != range) { /* others may begin at the same address */
    }
    ranges->count--;
    memmove(ranges->at + index, ranges->at + index + 1, (ranges->count - index) * sizeof *ranges->at);
    hetccl_mr_ranges_measure(ranges, index);
}

#endif
