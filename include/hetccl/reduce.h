/* Host reductions: one function per (dtype, op), compiled for each instruction set and chosen when the program runs.
 * Included by pyx/_kernels.pyx alone (all is static); other modules take function pointers from _kernels.pxd.
 * Thread-safe, no lock, no allocation, no Python: call without the GIL. Rules: docs/reductions.md. */
#ifndef HETCCL_REDUCE_H
#define HETCCL_REDUCE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "hetccl/abi.h"
#include "hetccl/reduce_ops.h"

/* dst[i] = sources[0][i] op sources[1][i] op ..., in that order, i < count (elements).
 * nsources >= 1. dst may be exactly one of the sources; any other overlap is the caller's fault. Pointers need no
 * alignment. divisor > 0 (AVG's last step; the number of ranks) divides the result once; 0 does not. */
typedef void (*hetccl_reduce_fn)(void *dst, const void *const *sources, int nsources, size_t count, int divisor);

/* dst[i] = src[i] * factor, i < count, where factor is one element. dst may be src; pointers need no alignment. */
typedef void (*hetccl_scale_fn)(void *dst, const void *src, size_t count, const void *factor);

/* The rows of a table have no gap where the numbers of ops have one. */
#define HETCCL_ROW_OF(op) ((op) < HETCCL_NVENDOR_OPS ? (op) : (op) - HETCCL_LAND + HETCCL_NVENDOR_OPS)
enum { HETCCL_NROWS = HETCCL_ROW_OF(HETCCL_MAXLOC) + 1 };
typedef struct {
    hetccl_reduce_fn reduce[HETCCL_NROWS][HETCCL_NDTYPES];
    hetccl_scale_fn scale[HETCCL_NDTYPES];
} hetccl_kernels_t;

/* One op on one dtype. A pass reads element i of every operand before it writes element i of dst, so dst may be an
 * operand. pass2: dst = a op b. pass3: dst = a op b op c, one load and store of the running value less per source. */
typedef struct {
    size_t itemsize; /* bytes */
    void (*pass2)(void *dst, const void *a, const void *b, size_t count);
    void (*pass3)(void *dst, const void *a, const void *b, const void *c, size_t count);
    void (*divide)(void *dst, size_t count, int divisor); /* NULL where AVG is not defined */
} hetccl_passes_t;

/* Floats of 8 and 16 bits are summed in float32. widen: running = a. add: running = running op a. narrow: dst =
 * running. pass2: dst = a op b, for the commonest case. */
typedef struct {
    size_t itemsize; /* bytes */
    void (*widen)(float *running, const void *a, size_t count);
    void (*add)(float *running, const void *a, size_t count);
    void (*narrow)(void *dst, const float *running, size_t count);
    void (*pass2)(void *dst, const void *a, const void *b, size_t count);
    void (*divide)(void *running, size_t count, int divisor);
} hetccl_narrow_passes_t;

/* The running value of one tile stays in the L1 cache (32 KiB or more) beside the sources' lines. */
enum { HETCCL_TILE_BYTES = 4096, HETCCL_TILE_FLOATS = HETCCL_TILE_BYTES / sizeof(float) };

/* Bytes that bring dst to a cache line, if a whole number of elements can and there is enough work to pay for it:
 * buffers are seldom aligned (NumPy's begin 16 bytes into a line), and a 32- or 64-byte store across two lines costs
 * two. Measured for float32 sums of 256 KiB: a quarter faster with AVX-512. */
static size_t hetccl_head_count(const void *dst, size_t itemsize, size_t count)
{
    size_t nbytes = -(uintptr_t)dst % 64;
    return nbytes % itemsize == 0 && count * itemsize >= HETCCL_TILE_BYTES ? nbytes / itemsize : 0;
}

/* The running value lives outside dst until the last source is read, because dst may be any of the sources. */
static void hetccl_fold(const hetccl_passes_t *k, void *dst, const void *const *sources, int nsources, size_t count,
                        int divisor)
{
    _Alignas(64) unsigned char running[HETCCL_TILE_BYTES];
    size_t tile = nsources <= 3 && divisor <= 0 ? count : HETCCL_TILE_BYTES / k->itemsize;
    size_t head = hetccl_head_count(dst, k->itemsize, count);

    for (size_t begin = 0, n = head ? head : tile; begin < count; begin += n, n = tile) {
        n = n < count - begin ? n : count - begin;
        size_t at = begin * k->itemsize;
        unsigned char *out = (unsigned char *)dst + at;
        const unsigned char *left = (const unsigned char *)sources[0] + at;
        int s = 1;

        if (nsources == 1 && out != left)
            memcpy(out, left, n * k->itemsize);
        if (nsources % 2 == 0) {
            void *to = nsources == 2 ? out : running;
            k->pass2(to, left, (const unsigned char *)sources[1] + at, n);
            left = to;
            s = 2;
        }
        for (; s < nsources; s += 2) {
            void *to = s + 2 == nsources ? out : running;
            k->pass3(to, left, (const unsigned char *)sources[s] + at, (const unsigned char *)sources[s + 1] + at, n);
            left = to;
        }
        if (divisor > 0)
            k->divide(out, n, divisor);
    }
}

static void hetccl_fold_narrow(const hetccl_narrow_passes_t *k, void *dst, const void *const *sources, int nsources,
                               size_t count, int divisor)
{
    _Alignas(64) float running[HETCCL_TILE_FLOATS];

    if (nsources == 1 && divisor <= 0) {
        if (dst != sources[0])
            memcpy(dst, sources[0], count * k->itemsize);
        return;
    }
    if (nsources == 2 && divisor <= 0) {
        k->pass2(dst, sources[0], sources[1], count);
        return;
    }
    for (size_t begin = 0; begin < count; begin += HETCCL_TILE_FLOATS) {
        size_t n = count - begin < HETCCL_TILE_FLOATS ? count - begin : HETCCL_TILE_FLOATS;
        size_t at = begin * k->itemsize;

        k->widen(running, (const unsigned char *)sources[0] + at, n);
        for (int s = 1; s < nsources; s++)
            k->add(running, (const unsigned char *)sources[s] + at, n);
        if (divisor > 0)
            k->divide(running, n, divisor);
        k->narrow((unsigned char *)dst + at, running, n);
    }
}

/* Operands in memory: no alignment is promised, and they may alias any other type. */
#define HETCCL_MEMORY __attribute__((aligned(1), may_alias))
typedef int8_t HETCCL_MEMORY hetccl_i8_m;
typedef uint8_t HETCCL_MEMORY hetccl_u8_m;
typedef int16_t HETCCL_MEMORY hetccl_i16_m;
typedef uint16_t HETCCL_MEMORY hetccl_u16_m;
typedef int32_t HETCCL_MEMORY hetccl_i32_m;
typedef uint32_t HETCCL_MEMORY hetccl_u32_m;
typedef int64_t HETCCL_MEMORY hetccl_i64_m;
typedef uint64_t HETCCL_MEMORY hetccl_u64_m;
typedef float HETCCL_MEMORY hetccl_f32_m;
typedef double HETCCL_MEMORY hetccl_f64_m;
typedef long double HETCCL_MEMORY hetccl_ld_m;

/* Tells the vectoriser what a pass promises: element i depends on no other, even when dst is an operand. Without it
 * an in-place call would take the scalar side of a run-time overlap check. */
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed" /* it warns of long double, which no processor vectorises */
#define HETCCL_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define HETCCL_INDEPENDENT _Pragma("GCC ivdep")
#endif

/* The loops, once per instruction set. The attribute is on each function, not on the file, so that a wheel built for
 * plain x86-64 holds all of them and no ifunc is needed (musl has none). */
#define HETCCL_JOIN_(a, b) a##_##b
#define HETCCL_JOIN(a, b) HETCCL_JOIN_(a, b)
#define HETCCL_V(name) HETCCL_JOIN(hetccl_##name, HETCCL_VARIANT)
#include "hetccl/reduce_passes.h"

#define HETCCL_VARIANT once
#define HETCCL_TARGET
#include "hetccl/reduce_once.h"
#undef HETCCL_VARIANT
#undef HETCCL_TARGET

#define HETCCL_VARIANT generic
#define HETCCL_TARGET
#define HETCCL_LANES 1
#include "hetccl/reduce_loops.h"
#undef HETCCL_VARIANT
#undef HETCCL_TARGET
#undef HETCCL_LANES

#if defined(__x86_64__) && defined(__GNUC__) /* clang defines it too */
#define HETCCL_X86 1
#include <cpuid.h>
#include <immintrin.h>

#define HETCCL_LANES 8
#define HETCCL_VARIANT avx2
#define HETCCL_TARGET __attribute__((target("avx2,f16c")))
#include "hetccl/reduce_loops.h"
#undef HETCCL_VARIANT
#undef HETCCL_TARGET

#define HETCCL_VARIANT avx512
#define HETCCL_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c")))
#include "hetccl/reduce_loops.h"
#undef HETCCL_VARIANT
#undef HETCCL_TARGET
#undef HETCCL_LANES
#endif

enum { HETCCL_GENERIC, HETCCL_AVX2, HETCCL_AVX512, HETCCL_NVARIANTS };

static const char *const hetccl_variant_name[HETCCL_NVARIANTS] = {"generic", "avx2", "avx512"};

#ifdef HETCCL_X86
/* Asked of the processor itself: clang's __builtin_cpu_supports does not know the name. */
static int hetccl_cpu_has_f16c(void)
{
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}
#endif

/* The kernels of a variant, or NULL where this processor cannot run it. */
static const hetccl_kernels_t *hetccl_variant_kernels(int variant)
{
    if (variant == HETCCL_GENERIC)
        return &hetccl_kernels_generic;
#ifdef HETCCL_X86
    __builtin_cpu_init();
    if (variant == HETCCL_AVX2 && __builtin_cpu_supports("avx2") && hetccl_cpu_has_f16c())
        return &hetccl_kernels_avx2;
    if (variant == HETCCL_AVX512 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && hetccl_cpu_has_f16c())
        return &hetccl_kernels_avx512;
#endif
    return NULL;
}

#endif
