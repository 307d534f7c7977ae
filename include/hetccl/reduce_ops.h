/* What a reduction does to two elements: conversions, NaN rule, wrap rule, rounding. No loop and no memory layout
 * here, so that host loops (reduce_loops.h) and device kernels compile the same definitions. The rules are explained
 * in docs/reductions.md. Pure functions: no lock, no GIL. */
#ifndef HETCCL_REDUCE_OPS_H
#define HETCCL_REDUCE_OPS_H

#include <stdint.h>
#include <string.h>

#ifndef HETCCL_OP /* a device compiler defines it first, with its own qualifiers */
#define HETCCL_OP static inline __attribute__((always_inline))
#endif

/* ---- reinterpreting bits ---- */

HETCCL_OP uint32_t hetccl_f32_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

HETCCL_OP float hetccl_f32_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

HETCCL_OP int64_t hetccl_f64_bits(double x)
{
    int64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* ---- 16-bit floats, held as their bits ---- */

/* Exact. A subnormal is built as 2^-14 + m 2^-24, less 2^-14: no operand is a float32 subnormal, so that a process
 * that runs with denormals-are-zero gets the same value. A signalling NaN becomes quiet, as in F16C hardware. */
HETCCL_OP float hetccl_f16_to_f32(uint16_t h)
{
    int32_t sign = (int32_t)((uint32_t)(h & 0x8000) << 16);
    int32_t magnitude = h & 0x7fff;
    int32_t normal = (magnitude << 13) + (112 << 23);
    float tiny = hetccl_f32_from_bits((uint32_t)((magnitude << 13) + (113 << 23))) - 0x1p-14f;
    int32_t bits = magnitude < 0x0400 ? (int32_t)hetccl_f32_bits(tiny) : normal;
    bits = magnitude >= 0x7c00 ? normal + (112 << 23) : bits;
    bits = magnitude > 0x7c00 ? bits | 0x400000 : bits;
    return hetccl_f32_from_bits((uint32_t)(bits | sign));
}

/* Round to nearest even; 65520 and above become inf, NaN stays NaN. Adding 0.5 to a value below 2^-14 leaves it
 * rounded to a multiple of 2^-24, the float16 subnormal step, in the low bits of the sum. */
HETCCL_OP uint16_t hetccl_f32_to_f16(float x)
{
    int32_t bits = (int32_t)(hetccl_f32_bits(x) & 0x7fffffff);
    int32_t sign = (int32_t)((hetccl_f32_bits(x) >> 16) & 0x8000);
    int32_t tiny = (int32_t)hetccl_f32_bits(hetccl_f32_from_bits((uint32_t)bits) + 0.5f) - 0x3f000000;
    int32_t normal = (bits - (112 << 23) + 0x0fff + ((bits >> 13) & 1)) >> 13;
    int32_t half = bits < 0x38800000 ? tiny : normal;
    half = bits >= 0x477ff000 ? 0x7c00 : half;
    half = bits > 0x7f800000 ? 0x7e00 | ((bits >> 13) & 0x1ff) : half;
    return (uint16_t)(half | sign);
}

HETCCL_OP float hetccl_bf16_to_f32(uint16_t h) { return hetccl_f32_from_bits((uint32_t)h << 16); }

HETCCL_OP uint16_t hetccl_f32_to_bf16(float x)
{
    uint32_t bits = hetccl_f32_bits(x);
    uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
    uint32_t quiet = bits | 0x400000;
    return (uint16_t)(((int32_t)(bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded) >> 16);
}

/* ---- which of two floats MAX and MIN take: 1 for a, 0 for b ----
 * The first NaN wins, else the greater (less) value, with -0 below +0: the result does not depend on how ranks are
 * grouped. `|` and `&` instead of `||` and `&&`: a branch would keep the loop scalar. Equal floats have equal bits but
 * for the two zeros, of which the bits of -0, read as an integer, are the lesser. */
#define HETCCL_MAX_TAKES_A(a, b, bits) (((a) > (b)) | ((a) != (a)) | (((a) == (b)) & (bits(a) > bits(b))))
#define HETCCL_MIN_TAKES_A(a, b, bits) (((a) < (b)) | ((a) != (a)) | (((a) == (b)) & (bits(a) < bits(b))))

HETCCL_OP int32_t hetccl_f32_order(float x) { return (int32_t)hetccl_f32_bits(x); }
HETCCL_OP float hetccl_f32_max(float a, float b) { return HETCCL_MAX_TAKES_A(a, b, hetccl_f32_order) ? a : b; }
HETCCL_OP float hetccl_f32_min(float a, float b) { return HETCCL_MIN_TAKES_A(a, b, hetccl_f32_order) ? a : b; }
HETCCL_OP double hetccl_f64_max(double a, double b) { return HETCCL_MAX_TAKES_A(a, b, hetccl_f64_bits) ? a : b; }
HETCCL_OP double hetccl_f64_min(double a, double b) { return HETCCL_MIN_TAKES_A(a, b, hetccl_f64_bits) ? a : b; }

#ifndef HETCCL_DEVICE /* no GPU has an 80-bit or 128-bit float */
HETCCL_OP int hetccl_ld_order(long double x) { return __builtin_signbit(x) ? 0 : 1; }
HETCCL_OP long double hetccl_ld_max(long double a, long double b)
{
    return HETCCL_MAX_TAKES_A(a, b, hetccl_ld_order) ? a : b;
}
HETCCL_OP long double hetccl_ld_min(long double a, long double b)
{
    return HETCCL_MIN_TAKES_A(a, b, hetccl_ld_order) ? a : b;
}
#endif

/* The same choice on the bits of a 16-bit float whose infinity is `inf`; sign and magnitude become two's complement. */
HETCCL_OP int16_t hetccl_half_order(uint16_t h) { return (int16_t)(h ^ (((int16_t)h >> 15) & 0x7fff)); }
HETCCL_OP int hetccl_half_isnan(uint16_t h, uint16_t inf) { return (int16_t)(h & 0x7fff) > (int16_t)inf; }

HETCCL_OP uint16_t hetccl_half_max(uint16_t a, uint16_t b, uint16_t inf)
{
    int above = hetccl_half_order(a) > hetccl_half_order(b);
    return (hetccl_half_isnan(a, inf) | (above & !hetccl_half_isnan(b, inf))) ? a : b;
}

HETCCL_OP uint16_t hetccl_half_min(uint16_t a, uint16_t b, uint16_t inf)
{
    int below = hetccl_half_order(a) < hetccl_half_order(b);
    return (hetccl_half_isnan(a, inf) | (below & !hetccl_half_isnan(b, inf))) ? a : b;
}

HETCCL_OP uint16_t hetccl_f16_max(uint16_t a, uint16_t b) { return hetccl_half_max(a, b, 0x7c00); }
HETCCL_OP uint16_t hetccl_f16_min(uint16_t a, uint16_t b) { return hetccl_half_min(a, b, 0x7c00); }
HETCCL_OP uint16_t hetccl_bf16_max(uint16_t a, uint16_t b) { return hetccl_half_max(a, b, 0x7f80); }
HETCCL_OP uint16_t hetccl_bf16_min(uint16_t a, uint16_t b) { return hetccl_half_min(a, b, 0x7f80); }

/* ---- integers, bool, complex, and the ops that are one operator for every type ----
 * Integers are added and multiplied as unsigned numbers at least as wide as `unsigned`, so that they wrap: signed
 * overflow, and uint16_t promoted to int, would be undefined. */
#define HETCCL_ADD(a, b) ((a) + (b))
#define HETCCL_MUL(a, b) ((a) * (b))
#define HETCCL_MAX(a, b) ((a) > (b) ? (a) : (b))
#define HETCCL_MIN(a, b) ((a) < (b) ? (a) : (b))
#define HETCCL_ADD_32(a, b) ((uint32_t)(a) + (uint32_t)(b))
#define HETCCL_MUL_32(a, b) ((uint32_t)(a) * (uint32_t)(b))
#define HETCCL_ADD_64(a, b) ((uint64_t)(a) + (uint64_t)(b))
#define HETCCL_MUL_64(a, b) ((uint64_t)(a) * (uint64_t)(b))
#define HETCCL_OR(a, b) (((a) != 0) | ((b) != 0))
#define HETCCL_AND(a, b) (((a) != 0) & ((b) != 0))

typedef struct __attribute__((packed, may_alias)) { float re, im; } hetccl_c64_t;
typedef struct __attribute__((packed, may_alias)) { double re, im; } hetccl_c128_t;

/* The textbook product, each operation rounded: no recovery of infinities (C's Annex G), which would cost a call. */
HETCCL_OP hetccl_c64_t hetccl_c64_mul(hetccl_c64_t a, hetccl_c64_t b)
{
    hetccl_c64_t p = {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
    return p;
}

HETCCL_OP hetccl_c128_t hetccl_c128_mul(hetccl_c128_t a, hetccl_c128_t b)
{
    hetccl_c128_t p = {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
    return p;
}

#endif
