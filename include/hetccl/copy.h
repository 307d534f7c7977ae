/* A copy that passes the cache (layer L2). Stores that pass it need not read the line that they overwrite, and leave the
 * cache to others: half the traffic, where the bytes would leave the cache before anybody reads them. Where they would
 * not, it is slower, for whoever reads them next has to bring them back. */
#ifndef HETCCL_COPY_H
#define HETCCL_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __x86_64__
#include <emmintrin.h>
#endif

#define HETCCL_COPY_LINE 64 /* bytes */

#ifdef __x86_64__
/* A part of a line, at its beginning or its end. A line takes stores of one kind only: the two kinds, mixed, take turns in
 * fetching it. What ends at a multiple of 8 bytes meets another part there, which then passes the cache as well. */
static inline void hetccl_copy_part_past_cache(uint8_t *to, const uint8_t *from, size_t nbytes)
{
    if (((uintptr_t)to | nbytes) & 7) {
        memcpy(to, from, nbytes);
        return;
    }
    for (size_t i = 0; i < nbytes; i += 8) {
        long long word;
        memcpy(&word, from + i, 8);
        _mm_stream_si64((long long *)(to + i), word);
    }
}
#endif

/* Copies without order against later stores: hetccl_copy_fence() comes before others are told. */
static inline void hetccl_copy_past_cache(uint8_t *to, const uint8_t *from, size_t nbytes)
{
#ifdef __x86_64__
    size_t head = -(uintptr_t)to & (HETCCL_COPY_LINE - 1);
    head = head < nbytes ? head : nbytes;
    hetccl_copy_part_past_cache(to, from, head);
    to += head, from += head, nbytes -= head;
    for (; nbytes >= HETCCL_COPY_LINE; to += HETCCL_COPY_LINE, from += HETCCL_COPY_LINE, nbytes -= HETCCL_COPY_LINE) {
        const __m128i *in = (const __m128i *)from;
        __m128i *out = (__m128i *)to;
        __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1);
        __m128i c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
        _mm_stream_si128(out, a);
        _mm_stream_si128(out + 1, b);
        _mm_stream_si128(out + 2, c);
        _mm_stream_si128(out + 3, d);
    }
    hetccl_copy_part_past_cache(to, from, nbytes);
#else
    memcpy(to, from, nbytes);
#endif
}

static inline void hetccl_copy_fence(void)
{
#ifdef __x86_64__
    _mm_sfence();
#endif
}

#endif
