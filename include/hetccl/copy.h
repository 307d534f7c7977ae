/* A copy that passes the cache (layer L2). Stores that pass it need not read the line that they overwrite, and leave the
 * cache to others: half the traffic, where the bytes would leave the cache before anybody reads them. Where they would
 * not, it is slower, for whoever reads them next has to bring them back. */
#ifndef HETCCL_COPY_H
#define HETCCL_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define HETCCL_COPY_LINE 64 /* bytes: only whole lines pass the cache */

/* Copies without order against later stores: hetccl_copy_fence() comes before others are told. */
static inline void hetccl_copy_past_cache(uint8_t *to, const uint8_t *from, size_t nbytes)
{
#ifdef __SSE2__
    size_t head = -(uintptr_t)to & (HETCCL_COPY_LINE - 1);
    head = head < nbytes ? head : nbytes;
    memcpy(to, from, head);
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
#endif
    memcpy(to, from, nbytes);
}

static inline void hetccl_copy_fence(void)
{
#ifdef __SSE2__
    _mm_sfence();
#endif
}

#endif
