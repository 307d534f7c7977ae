/* How the elements of an MPI datatype lie in memory, and loops that move them to and from contiguous bytes (layer L2,
 * used by _layout and by transports). Plain C without libc beyond memcpy: a GPU kernel can be built from the same tree.
 *
 * The packed stream of a buffer is element after element, each in typemap order, as MPI_Pack has it; element i lies at
 * base + i * extent. A layout is a tree of pieces, one loop per piece, which _layout builds with adjacent runs merged.
 */
#ifndef HETCCL_LAYOUT_H
#define HETCCL_LAYOUT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

#include "hetccl/copy.h"

typedef struct hetccl_piece {
    int64_t offset;          /* bytes from where its parent's iteration lies to its own first iteration */
    int64_t first;           /* packed position in its parent's iteration */
    int64_t run;             /* packed bytes of one iteration; in memory too if it has no parts */
    int64_t count, stride;   /* iterations, and bytes from one to the next */
    int64_t lowest, highest; /* bytes [lowest, highest) of an iteration are touched, counted from where it lies */
    int64_t nparts;          /* 0: an iteration is `run` contiguous bytes */
    const struct hetccl_piece *parts; /* in packed order */
} hetccl_piece_t;

typedef struct {
    int64_t size, extent; /* of one element: packed bytes; bytes from one to the next */
    hetccl_piece_t root;  /* all elements of a buffer. An iteration is an element, or less where its loop runs on into
                           * the next element; the count is the caller's: packed bytes / run */
} hetccl_layout_t;

/* The bytes [*low_p, *high_p) from base on that `count` iterations of a piece at base touch; count > 0. */
static inline void hetccl_piece_range(const hetccl_piece_t *piece, int64_t count, int64_t *low_p, int64_t *high_p)
{
    int64_t last = (count - 1) * piece->stride;
    *low_p = piece->offset + piece->lowest + (last < 0 ? last : 0);
    *high_p = piece->offset + piece->highest + (last > 0 ? last : 0);
}

/* `count` runs of memory, `stride` bytes apart, to or from contiguous bytes. */
static inline __attribute__((always_inline)) void hetccl_runs_move(
    uint8_t *memory, int64_t stride, int64_t run, int64_t count, uint8_t *packed, int pack)
{
/* n is a constant wherever a run is short: each memcpy is then one or two loads and stores */
#define HETCCL_RUNS(n)                                                                                               \
    for (int64_t i = 0; i < count; i++, memory += stride, packed += (n)) {                                           \
        if (pack)                                                                                                    \
            memcpy(packed, memory, (size_t)(n));                                                                     \
        else                                                                                                         \
            memcpy(memory, packed, (size_t)(n));                                                                     \
    }                                                                                                                \
    break
    if (stride == run)
        run *= count, count = 1;
    switch (run) {
    case 1: HETCCL_RUNS(1);
    case 2: HETCCL_RUNS(2);
    case 4: HETCCL_RUNS(4);
    case 8: HETCCL_RUNS(8);
    case 12: HETCCL_RUNS(12);
    case 16: HETCCL_RUNS(16);
    case 24: HETCCL_RUNS(24);
    case 32: HETCCL_RUNS(32);
    default: HETCCL_RUNS(run);
    }
#undef HETCCL_RUNS
}

static void hetccl_runs_pack(uint8_t *memory, int64_t stride, int64_t run, int64_t count, uint8_t *packed)
{
    hetccl_runs_move(memory, stride, run, count, packed, 1);
}

static void hetccl_runs_unpack(uint8_t *memory, int64_t stride, int64_t run, int64_t count, uint8_t *packed)
{
    hetccl_runs_move(memory, stride, run, count, packed, 0);
}

static void hetccl_runs_unpack_past(uint8_t *memory, int64_t stride, int64_t run, int64_t count, uint8_t *packed)
{
    if (run < HETCCL_COPY_LINE) {
        hetccl_runs_unpack(memory, stride, run, count, packed);
        return;
    }
    for (int64_t i = 0; i < count; i++, memory += stride, packed += run)
        hetccl_copy_past_cache(memory, packed, (size_t)run);
}

/* Which way the bytes go; PAST: stores pass the cache. */
enum hetccl_way { HETCCL_UNPACK, HETCCL_UNPACK_PAST, HETCCL_PACK };

static void hetccl_runs(uint8_t *memory, int64_t stride, int64_t run, int64_t count, uint8_t *packed,
                        enum hetccl_way way)
{
    switch (way) {
    case HETCCL_UNPACK: hetccl_runs_unpack(memory, stride, run, count, packed); break;
    case HETCCL_UNPACK_PAST: hetccl_runs_unpack_past(memory, stride, run, count, packed); break;
    case HETCCL_PACK: hetccl_runs_pack(memory, stride, run, count, packed); break;
    }
}

/* `count` whole iterations of a piece, the first of them at memory. */
static void hetccl_piece_whole(const hetccl_piece_t *piece, uint8_t *memory, int64_t count, uint8_t *packed, enum hetccl_way way)
{
    if (!piece->nparts) {
        hetccl_runs(memory, piece->stride, piece->run, count, packed, way);
        return;
    }
    for (int64_t i = 0; i < count; i++, memory += piece->stride, packed += piece->run) {
        const hetccl_piece_t *part = piece->parts, *end = part + piece->nparts;
        for (; part < end; part++)
            hetccl_piece_whole(part, memory + part->offset, part->count, packed + part->first, way);
    }
}

/* The part that holds packed position `skip` of an iteration: the last that begins there or before. */
static inline const hetccl_piece_t *hetccl_part_at(const hetccl_piece_t *piece, int64_t skip)
{
    int64_t low = 0, high = piece->nparts;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (piece->parts[middle].first <= skip)
            low = middle;
        else
            high = middle;
    }
    return piece->parts + low;
}

static void hetccl_piece_move(const hetccl_piece_t *piece, uint8_t *memory, int64_t skip, int64_t nbytes,
                              uint8_t *packed, enum hetccl_way way);

/* Bytes [skip, skip + nbytes) of one iteration, which lies at memory; they do not leave it. */
static void hetccl_piece_inside(const hetccl_piece_t *piece, uint8_t *memory, int64_t skip, int64_t nbytes,
                                uint8_t *packed, enum hetccl_way way)
{
    if (!piece->nparts) {
        hetccl_runs(memory + skip, 0, nbytes, 1, packed, way);
        return;
    }
    for (const hetccl_piece_t *part = hetccl_part_at(piece, skip); nbytes; part++) {
        int64_t from = skip - part->first, n = part->run * part->count - from;
        n = n < nbytes ? n : nbytes;
        hetccl_piece_move(part, memory + part->offset, from, n, packed, way);
        packed += n, skip += n, nbytes -= n;
    }
}

/* Bytes [skip, skip + nbytes) of a piece whose first iteration lies at memory: a rest, whole iterations, a rest. */
static void hetccl_piece_move(const hetccl_piece_t *piece, uint8_t *memory, int64_t skip, int64_t nbytes,
                              uint8_t *packed, enum hetccl_way way)
{
    int64_t whole;
    if (skip) {
        memory += skip / piece->run * piece->stride;
        skip %= piece->run;
    }
    if (skip) {
        int64_t n = piece->run - skip < nbytes ? piece->run - skip : nbytes;
        hetccl_piece_inside(piece, memory, skip, n, packed, way);
        memory += piece->stride, packed += n, nbytes -= n;
    }
    whole = nbytes / piece->run;
    hetccl_piece_whole(piece, memory, whole, packed, way);
    memory += whole * piece->stride, packed += whole * piece->run, nbytes -= whole * piece->run;
    if (nbytes)
        hetccl_piece_inside(piece, memory, 0, nbytes, packed, way);
}

/* Copies the bytes [skip, skip + nbytes) of the packed stream of the elements at base to `packed`. */
static inline void hetccl_layout_pack(const hetccl_layout_t *layout, const uint8_t *base, size_t skip, size_t nbytes,
                                      uint8_t *packed)
{
    const hetccl_piece_t *root = &layout->root;
    if (nbytes)
        hetccl_piece_move(root, (uint8_t *)base + root->offset, (int64_t)skip, (int64_t)nbytes, packed, HETCCL_PACK);
}

/* Copies `packed` to the bytes [skip, skip + nbytes) of the packed stream of the elements at base. */
static inline void hetccl_layout_unpack(const hetccl_layout_t *layout, uint8_t *base, size_t skip, size_t nbytes,
                                        const uint8_t *packed)
{
    const hetccl_piece_t *root = &layout->root;
    if (nbytes)
        hetccl_piece_move(root, base + root->offset, (int64_t)skip, (int64_t)nbytes, (uint8_t *)packed, HETCCL_UNPACK);
}

/* The same, past the cache; hetccl_copy_fence() is the caller's. */
static inline void hetccl_layout_unpack_past(const hetccl_layout_t *layout, uint8_t *base, size_t skip, size_t nbytes,
                                             const uint8_t *packed)
{
    const hetccl_piece_t *root = &layout->root;
    if (nbytes)
        hetccl_piece_move(root, base + root->offset, (int64_t)skip, (int64_t)nbytes, (uint8_t *)packed,
                          HETCCL_UNPACK_PAST);
}

#define HETCCL_LAYOUT_BOUNCE 8192 /* bytes: both halves of a copy stay in the first-level cache */

/* Copies nbytes from one packed stream to another; either layout may be NULL: contiguous. The two share no byte. */
static inline void hetccl_layout_copy(const hetccl_layout_t *to, uint8_t *to_base, size_t to_skip,
                                      const hetccl_layout_t *from, const uint8_t *from_base, size_t from_skip,
                                      size_t nbytes)
{
    uint8_t bounce[HETCCL_LAYOUT_BOUNCE];
    if (!nbytes)
        return;
    if (!to && !from) {
        memcpy(to_base + to_skip, from_base + from_skip, nbytes);
    } else if (!to) {
        hetccl_layout_pack(from, from_base, from_skip, nbytes, to_base + to_skip);
    } else if (!from) {
        hetccl_layout_unpack(to, to_base, to_skip, nbytes, from_base + from_skip);
    } else {
        while (nbytes) {
            size_t n = nbytes < sizeof bounce ? nbytes : sizeof bounce;
            hetccl_layout_pack(from, from_base, from_skip, n, bounce);
            hetccl_layout_unpack(to, to_base, to_skip, n, bounce);
            from_skip += n, to_skip += n, nbytes -= n;
        }
    }
}

/* The same, past the cache. */
static inline void hetccl_layout_copy_past(const hetccl_layout_t *to, uint8_t *to_base, size_t to_skip,
                                           const hetccl_layout_t *from, const uint8_t *from_base, size_t from_skip,
                                           size_t nbytes)
{
    uint8_t bounce[HETCCL_LAYOUT_BOUNCE];
    size_t n;
    for (; nbytes; from_skip += n, to_skip += n, nbytes -= n) {
        const uint8_t *packed = from_base + from_skip;
        n = from && nbytes > sizeof bounce ? sizeof bounce : nbytes;
        if (from) {
            hetccl_layout_pack(from, from_base, from_skip, n, bounce);
            packed = bounce;
        }
        if (to)
            hetccl_layout_unpack_past(to, to_base, to_skip, n, packed);
        else
            hetccl_copy_past_cache(to_base + to_skip, packed, n);
    }
    hetccl_copy_fence();
}

typedef struct {
    struct iovec *out;
    int n, max;
} hetccl_runs_t;

/* Adds a run, or lengthens the last; false if there is no room. */
static inline int hetccl_runs_add(hetccl_runs_t *runs, uint8_t *memory, int64_t nbytes)
{
    struct iovec *last = runs->out + runs->n - 1;
    if (runs->n && (uint8_t *)last->iov_base + last->iov_len == memory) {
        last->iov_len += (size_t)nbytes;
        return 1;
    }
    if (runs->n == runs->max)
        return 0;
    runs->out[runs->n++] = (struct iovec){memory, (size_t)nbytes};
    return 1;
}

static int hetccl_piece_runs(const hetccl_piece_t *piece, uint8_t *memory, int64_t skip, int64_t nbytes,
                             hetccl_runs_t *runs)
{
    memory += skip / piece->run * piece->stride;
    skip %= piece->run;
    for (; nbytes; memory += piece->stride, skip = 0) {
        int64_t left = piece->run - skip < nbytes ? piece->run - skip : nbytes;
        nbytes -= left;
        if (!piece->nparts) {
            if (!hetccl_runs_add(runs, memory + skip, left))
                return 0;
            continue;
        }
        for (const hetccl_piece_t *part = hetccl_part_at(piece, skip); left; part++) {
            int64_t from = skip - part->first, n = part->run * part->count - from;
            n = n < left ? n : left;
            if (!hetccl_piece_runs(part, memory + part->offset, from, n, runs))
                return 0;
            skip += n, left -= n;
        }
    }
    return 1;
}

/* The bytes [skip, skip + nbytes) of the packed stream as runs of memory, for scatter/gather I/O. Returns how many
 * there are, at most max: if they end before nbytes do, ask again from there. */
static inline int hetccl_layout_runs(const hetccl_layout_t *layout, uint8_t *base, size_t skip, size_t nbytes,
                                     struct iovec *out, int max)
{
    const hetccl_piece_t *root = &layout->root;
    hetccl_runs_t runs = {out, 0, max};
    if (nbytes)
        hetccl_piece_runs(root, base + root->offset, (int64_t)skip, (int64_t)nbytes, &runs);
    return runs.n;
}

#endif
