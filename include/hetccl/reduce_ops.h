/* What a reduction does to two elements: conversions, NaN rule, wrap rule, rounding. No loop and no memory layout
 * here, so that host loops (reduce_loops.h) and device kernels compile the same definitions. The rules are explained
 * in docs/reductions.md. Pure functions: no lock, no GIL. */
#ifndef HETCCL_REDUCE_OPS_H
#define HETCCL_REDUCE_OPS_H

#ifndef HETCCL_DEVICE
#include <stdint.h>
#include <string.h>
#endif

#include "hetccl/abi.h"

#ifndef HETCCL_OP /* device.h defines it first, with a device compiler's qualifiers */
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

HETCCL_OP uint64_t hetccl_f64_bits(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

HETCCL_OP double hetccl_f64_from_bits(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* cond ? a : b in the unsigned type U, by a mask. Compilers make branches of `?:` and `&&` when several stand in a row
 * or one side may trap, and a loop with a branch stays scalar. cond is 0 or 1. */
#define HETCCL_PICK(U, cond, a, b) ((U)(((U)(a) & (U)(-(U)(cond))) | ((U)(b) & (U)(~(-(U)(cond))))))

/* ---- 16-bit floats, held as their bits ---- */

/* Exact. A subnormal is built as 2^-14 + m 2^-24, less 2^-14: no operand is a float32 subnormal, so that a process
 * that runs with denormals-are-zero gets the same value. A signalling NaN becomes quiet, as in F16C hardware. */
HETCCL_OP float hetccl_f16_to_f32(uint16_t h)
{
    int32_t magnitude = h & 0x7fff; /* signed: SSE2 and AVX2 compare signed numbers only */
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t normal = ((uint32_t)magnitude << 13) + (112u << 23);
    float tiny = hetccl_f32_from_bits(((uint32_t)magnitude << 13) + (113u << 23)) - 0x1p-14f;
    uint32_t bits = HETCCL_PICK(uint32_t, magnitude < 0x0400, hetccl_f32_bits(tiny), normal);
    bits += HETCCL_PICK(uint32_t, magnitude >= 0x7c00, 112u << 23, 0);
    bits |= HETCCL_PICK(uint32_t, magnitude > 0x7c00, 0x400000, 0);
    return hetccl_f32_from_bits(bits | sign);
}

/* Round to nearest even; 65520 and above become inf, NaN stays NaN. Adding 0.5 to a value below 2^-14 leaves it
 * rounded to a multiple of 2^-24, the float16 subnormal step, in the low bits of the sum. */
HETCCL_OP uint16_t hetccl_f32_to_f16(float x)
{
    int32_t magnitude = (int32_t)(hetccl_f32_bits(x) & 0x7fffffff);
    uint32_t sign = (hetccl_f32_bits(x) >> 16) & 0x8000;
    uint32_t tiny = hetccl_f32_bits(hetccl_f32_from_bits((uint32_t)magnitude) + 0.5f) - 0x3f000000;
    uint32_t normal = ((uint32_t)magnitude - (112u << 23) + 0x0fff + (((uint32_t)magnitude >> 13) & 1)) >> 13;
    uint32_t nan = 0x7e00 | (((uint32_t)magnitude >> 13) & 0x1ff);
    uint32_t half = HETCCL_PICK(uint32_t, magnitude < 0x38800000, tiny, normal);
    half = HETCCL_PICK(uint32_t, magnitude >= 0x477ff000, 0x7c00, half);
    half = HETCCL_PICK(uint32_t, magnitude > 0x7f800000, nan, half);
    return (uint16_t)(half | sign);
}

HETCCL_OP float hetccl_bf16_to_f32(uint16_t h) { return hetccl_f32_from_bits((uint32_t)h << 16); }

HETCCL_OP uint16_t hetccl_f32_to_bf16(float x)
{
    uint32_t bits = hetccl_f32_bits(x);
    uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
    int is_nan = (int32_t)(bits & 0x7fffffff) > 0x7f800000;
    return (uint16_t)(HETCCL_PICK(uint32_t, is_nan, bits | 0x400000, rounded) >> 16);
}

/* ---- 8-bit floats, held as their bits: e4m3fn has no infinity and one NaN, e5m2 is a float16 cut short ----
 * Built and rounded as float16 is above; values and the overflow rules are those of ml_dtypes' casts. */

HETCCL_OP float hetccl_e4m3_to_f32(uint8_t h)
{
    int32_t magnitude = h & 0x7f;
    uint32_t normal = ((uint32_t)magnitude << 20) + (120u << 23);
    float tiny = hetccl_f32_from_bits(((uint32_t)magnitude << 20) + (121u << 23)) - 0x1p-6f;
    uint32_t bits = HETCCL_PICK(uint32_t, magnitude < 0x08, hetccl_f32_bits(tiny), normal);
    bits = HETCCL_PICK(uint32_t, magnitude == 0x7f, 0x7fc00000, bits);
    return hetccl_f32_from_bits(bits | (uint32_t)(h & 0x80) << 24);
}

/* Above 464, the middle of the greatest value and the next that would be, everything becomes NaN: infinity too. */
HETCCL_OP uint8_t hetccl_f32_to_e4m3(float x)
{
    int32_t magnitude = (int32_t)(hetccl_f32_bits(x) & 0x7fffffff);
    uint32_t sign = (hetccl_f32_bits(x) >> 24) & 0x80;
    uint32_t tiny = hetccl_f32_bits(hetccl_f32_from_bits((uint32_t)magnitude) + 0x1p14f) - 0x46800000;
    uint32_t normal = ((uint32_t)magnitude - (120u << 23) + 0x7ffff + (((uint32_t)magnitude >> 20) & 1)) >> 20;
    uint32_t small = HETCCL_PICK(uint32_t, magnitude < 0x3c800000, tiny, normal);
    return (uint8_t)(HETCCL_PICK(uint32_t, magnitude > 0x43e80000, 0x7f, small) | sign);
}

HETCCL_OP float hetccl_e5m2_to_f32(uint8_t h) { return hetccl_f16_to_f32((uint16_t)(h << 8)); }

/* Not by way of float16, which would round twice. */
HETCCL_OP uint8_t hetccl_f32_to_e5m2(float x)
{
    int32_t magnitude = (int32_t)(hetccl_f32_bits(x) & 0x7fffffff);
    uint32_t sign = (hetccl_f32_bits(x) >> 24) & 0x80;
    uint32_t tiny = hetccl_f32_bits(hetccl_f32_from_bits((uint32_t)magnitude) + 0x1p7f) - 0x43000000;
    uint32_t normal = ((uint32_t)magnitude - (112u << 23) + 0xfffff + (((uint32_t)magnitude >> 21) & 1)) >> 21;
    uint32_t small = HETCCL_PICK(uint32_t, magnitude < 0x38800000, tiny, normal);
    small = HETCCL_PICK(uint32_t, magnitude >= 0x47700000, 0x7c, small);
    return (uint8_t)(HETCCL_PICK(uint32_t, magnitude > 0x7f800000, 0x7e, small) | sign);
}

/* Rounded to the neighbour whose last bit is 1, unless exact: a float of 22 bits or fewer can then be rounded from it
 * as from x itself. */
HETCCL_OP float hetccl_f64_to_f32_odd(double x)
{
    float nearest = (float)x;
    uint32_t bits = hetccl_f32_bits(nearest);
    double back = nearest;
    if (back == x)
        return nearest;
    if (x > 0 ? back > x : back < x)
        bits -= 1;
    return hetccl_f32_from_bits(bits | 1);
}

/* ---- MAX and MIN of floats ----
 * The first NaN wins, else the greater (less) value, with -0 below +0: the result does not depend on how ranks are
 * grouped. Equal floats have equal bits but for the two zeros, of which AND gives +0 and OR gives -0. */
#define HETCCL_FLOAT_CHOICE(NAME, T, U)                                                                               \
    HETCCL_OP T hetccl_##NAME##_max(T a, T b)                                                                         \
    {                                                                                                                 \
        U a_bits = hetccl_##NAME##_bits(a);                                                                           \
        U chosen = HETCCL_PICK(U, (a > b) | (a != a), a_bits, hetccl_##NAME##_bits(b));                               \
        return hetccl_##NAME##_from_bits(chosen & HETCCL_PICK(U, a == b, a_bits, ~(U)0));                             \
    }                                                                                                                 \
    HETCCL_OP T hetccl_##NAME##_min(T a, T b)                                                                         \
    {                                                                                                                 \
        U a_bits = hetccl_##NAME##_bits(a);                                                                           \
        U chosen = HETCCL_PICK(U, (a < b) | (a != a), a_bits, hetccl_##NAME##_bits(b));                               \
        return hetccl_##NAME##_from_bits(chosen | HETCCL_PICK(U, a == b, a_bits, 0));                                 \
    }
HETCCL_FLOAT_CHOICE(f32, float, uint32_t)
HETCCL_FLOAT_CHOICE(f64, double, uint64_t)

#ifndef HETCCL_DEVICE /* no GPU has an 80-bit or 128-bit float */
HETCCL_OP long double hetccl_ld_max(long double a, long double b)
{
    return (a > b) | (a != a) | ((a == b) & !__builtin_signbit(a)) ? a : b;
}

HETCCL_OP long double hetccl_ld_min(long double a, long double b)
{
    return (a < b) | (a != a) | ((a == b) & !!__builtin_signbit(a)) ? a : b;
}
#endif

/* The same choice on the bits of a 16-bit float whose infinity is `inf`; sign and magnitude become two's complement. */
HETCCL_OP int16_t hetccl_half_order(uint16_t h) { return (int16_t)(h ^ (((int16_t)h >> 15) & 0x7fff)); }
HETCCL_OP int hetccl_half_isnan(uint16_t h, uint16_t inf) { return (int16_t)(h & 0x7fff) > (int16_t)inf; }

HETCCL_OP uint16_t hetccl_half_pick(int better, uint16_t a, uint16_t b, uint16_t inf)
{
    uint16_t chosen = HETCCL_PICK(uint16_t, better, a, b);
    chosen = HETCCL_PICK(uint16_t, hetccl_half_isnan(b, inf), b, chosen);
    return HETCCL_PICK(uint16_t, hetccl_half_isnan(a, inf), a, chosen);
}

HETCCL_OP uint16_t hetccl_half_max(uint16_t a, uint16_t b, uint16_t inf)
{
    return hetccl_half_pick(hetccl_half_order(a) > hetccl_half_order(b), a, b, inf);
}

HETCCL_OP uint16_t hetccl_half_min(uint16_t a, uint16_t b, uint16_t inf)
{
    return hetccl_half_pick(hetccl_half_order(a) < hetccl_half_order(b), a, b, inf);
}

HETCCL_OP uint16_t hetccl_f16_max(uint16_t a, uint16_t b) { return hetccl_half_max(a, b, 0x7c00); }
HETCCL_OP uint16_t hetccl_f16_min(uint16_t a, uint16_t b) { return hetccl_half_min(a, b, 0x7c00); }
HETCCL_OP uint16_t hetccl_bf16_max(uint16_t a, uint16_t b) { return hetccl_half_max(a, b, 0x7f80); }
HETCCL_OP uint16_t hetccl_bf16_min(uint16_t a, uint16_t b) { return hetccl_half_min(a, b, 0x7f80); }
/* The first byte of a float16 is an e5m2, and orders as one; e4m3fn differs in where its NaN begins. */
HETCCL_OP uint8_t hetccl_e5m2_max(uint8_t a, uint8_t b)
{
    return (uint8_t)(hetccl_half_max((uint16_t)(a << 8), (uint16_t)(b << 8), 0x7c00) >> 8);
}
HETCCL_OP uint8_t hetccl_e5m2_min(uint8_t a, uint8_t b)
{
    return (uint8_t)(hetccl_half_min((uint16_t)(a << 8), (uint16_t)(b << 8), 0x7c00) >> 8);
}
HETCCL_OP uint8_t hetccl_e4m3_max(uint8_t a, uint8_t b)
{
    return (uint8_t)(hetccl_half_max((uint16_t)(a << 8), (uint16_t)(b << 8), 0x7e00) >> 8);
}
HETCCL_OP uint8_t hetccl_e4m3_min(uint8_t a, uint8_t b)
{
    return (uint8_t)(hetccl_half_min((uint16_t)(a << 8), (uint16_t)(b << 8), 0x7e00) >> 8);
}

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
#define HETCCL_XOR(a, b) (((a) != 0) ^ ((b) != 0))
#define HETCCL_BITS_OR(a, b) ((a) | (b))
#define HETCCL_BITS_AND(a, b) ((a) & (b))
#define HETCCL_BITS_XOR(a, b) ((a) ^ (b))

typedef struct __attribute__((packed, may_alias)) { float re, im; } hetccl_c64_t;
typedef struct __attribute__((packed, may_alias)) { double re, im; } hetccl_c128_t;

/* The textbook product, each operation rounded: no recovery of infinities (C's Annex G), which would cost a call.
 * Two sums, not a difference and a sum: GCC 12 makes a fused fmaddsub of the latter even under -ffp-contract=off. */
HETCCL_OP hetccl_c64_t hetccl_c64_mul(hetccl_c64_t a, hetccl_c64_t b)
{
    hetccl_c64_t p = {a.re * b.re + a.im * -b.im, a.re * b.im + a.im * b.re};
    return p;
}

HETCCL_OP hetccl_c128_t hetccl_c128_mul(hetccl_c128_t a, hetccl_c128_t b)
{
    hetccl_c128_t p = {a.re * b.re + a.im * -b.im, a.re * b.im + a.im * b.re};
    return p;
}

#ifndef HETCCL_DEVICE
typedef struct __attribute__((packed, may_alias)) { long double re, im; } hetccl_cld_t;

HETCCL_OP hetccl_cld_t hetccl_cld_mul(hetccl_cld_t a, hetccl_cld_t b)
{
    hetccl_cld_t p = {a.re * b.re + a.im * -b.im, a.re * b.im + a.im * b.re};
    return p;
}
#endif

/* ---- MINLOC and MAXLOC ----
 * Whether pair a is the result: NaN first, then the lesser (greater) value, then the lesser index, then a itself. -0
 * and +0 are equal here, as they are to MPI. The winner is taken whole, with the bytes that pad it, by masks: no
 * processor can predict which one wins. */
#define HETCCL_LOC_FIRST(a, b, a_less, b_less)                                                                        \
    ((((a).value != (a).value) > ((b).value != (b).value)) |                                                          \
     ((((a).value != (a).value) == ((b).value != (b).value)) & ((a_less) | (!(b_less) & ((a).index <= (b).index)))))

#define HETCCL_LOC_CHOICE(NAME, OP, LESS)                                                                             \
    HETCCL_OP hetccl_##NAME##_m hetccl_##NAME##_##OP(hetccl_##NAME##_m left, hetccl_##NAME##_m right)                 \
    {                                                                                                                 \
        hetccl_##NAME##_t a, b;                                                                                       \
        memcpy(&a, &left, sizeof a);                                                                                  \
        memcpy(&b, &right, sizeof b);                                                                                 \
        int first = HETCCL_LOC_FIRST(a, b, a.value LESS b.value, b.value LESS a.value);                               \
        for (unsigned w = 0; w < sizeof left / sizeof left.words[0]; w++)                                             \
            left.words[w] = HETCCL_PICK(uint32_t, first, left.words[w], right.words[w]);                              \
        return left;                                                                                                  \
    }
#define HETCCL_PAIR(NAME)                                                                                             \
    typedef struct __attribute__((packed, may_alias)) {                                                               \
        uint32_t words[sizeof(hetccl_##NAME##_t) / sizeof(uint32_t)];                                                 \
    } hetccl_##NAME##_m;                                                                                              \
    HETCCL_LOC_CHOICE(NAME, minloc, <)                                                                                \
    HETCCL_LOC_CHOICE(NAME, maxloc, >)
HETCCL_PAIR(float_int)
HETCCL_PAIR(double_int)
HETCCL_PAIR(long_int)
HETCCL_PAIR(int_int)
HETCCL_PAIR(short_int)
#ifndef HETCCL_DEVICE
HETCCL_PAIR(longdouble_int)
#endif

#endif
