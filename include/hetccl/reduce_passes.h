/* The shapes of loops over the definitions of reduce_ops.h: macros that reduce.h expands once for each instruction set
 * (reduce_loops.h), or once (reduce_once.h), with HETCCL_VARIANT (a name) and HETCCL_TARGET (a function attribute)
 * defined. Plain loops, shaped for the compiler's vectoriser. */
#ifndef HETCCL_REDUCE_PASSES_H
#define HETCCL_REDUCE_PASSES_H

/* Passes over memory type M; OP(a, b) is evaluated in value type T. */
#define HETCCL_PASSES(NAME, M, T, OP, DIVIDE)                                                                         \
    HETCCL_TARGET static void HETCCL_V(NAME##_pass2)(void *dst, const void *a_, const void *b_, size_t count)         \
    {                                                                                                                 \
        M *d = dst;                                                                                                   \
        const M *a = a_, *b = b_;                                                                                     \
        HETCCL_INDEPENDENT                                                                                            \
        for (size_t i = 0; i < count; i++) {                                                                          \
            T x = a[i], y = b[i];                                                                                     \
            d[i] = OP(x, y);                                                                                          \
        }                                                                                                             \
    }                                                                                                                 \
    HETCCL_TARGET static void HETCCL_V(NAME##_pass3)(void *dst, const void *a_, const void *b_, const void *c_,       \
                                                     size_t count)                                                    \
    {                                                                                                                 \
        M *d = dst;                                                                                                   \
        const M *a = a_, *b = b_, *c = c_;                                                                            \
        HETCCL_INDEPENDENT                                                                                            \
        for (size_t i = 0; i < count; i++) {                                                                          \
            T x = a[i], y = b[i], z = c[i];                                                                           \
            T xy = OP(x, y);                                                                                          \
            d[i] = OP(xy, z);                                                                                         \
        }                                                                                                             \
    }                                                                                                                 \
    static const hetccl_passes_t HETCCL_V(NAME##_passes) = {sizeof(M), HETCCL_V(NAME##_pass2),                        \
                                                            HETCCL_V(NAME##_pass3), DIVIDE};

/* A reduction that walks `count * PER_ELEMENT` values (2 for the parts of a complex number). */
#define HETCCL_REDUCTION(NAME, PASSES, PER_ELEMENT)                                                                   \
    static void HETCCL_V(NAME)(void *dst, const void *const *sources, int nsources, size_t count, int divisor)        \
    {                                                                                                                 \
        hetccl_fold(&HETCCL_V(PASSES##_passes), dst, sources, nsources, count * PER_ELEMENT, divisor);                \
    }

#define HETCCL_KERNEL(NAME, M, T, OP, DIVIDE)                                                                         \
    HETCCL_PASSES(NAME, M, T, OP, DIVIDE)                                                                             \
    HETCCL_REDUCTION(NAME, NAME, 1)

/* W: the type of the quotient; int division truncates toward zero. */
#define HETCCL_DIVISION(NAME, M, W)                                                                                   \
    HETCCL_TARGET static void HETCCL_V(NAME##_divide)(void *dst, size_t count, int divisor)                           \
    {                                                                                                                 \
        M *d = dst;                                                                                                   \
        W by = (W)divisor;                                                                                            \
        for (size_t i = 0; i < count; i++)                                                                            \
            d[i] = (M)((W)d[i] / by);                                                                                 \
    }

/* W is 32 or 64: the width in which sums and products wrap. Q is the quotient's type. */
#define HETCCL_INTEGER(NAME, M, T, W, Q)                                                                              \
    HETCCL_DIVISION(NAME, M, Q)                                                                                       \
    HETCCL_KERNEL(NAME##_sum, M, T, HETCCL_ADD_##W, HETCCL_V(NAME##_divide))                                          \
    HETCCL_KERNEL(NAME##_prod, M, T, HETCCL_MUL_##W, NULL)                                                            \
    HETCCL_KERNEL(NAME##_max, M, T, HETCCL_MAX, NULL)                                                                 \
    HETCCL_KERNEL(NAME##_min, M, T, HETCCL_MIN, NULL)

#define HETCCL_FLOAT(NAME, M, T)                                                                                      \
    HETCCL_DIVISION(NAME, M, T)                                                                                       \
    HETCCL_KERNEL(NAME##_sum, M, T, HETCCL_ADD, HETCCL_V(NAME##_divide))                                              \
    HETCCL_KERNEL(NAME##_prod, M, T, HETCCL_MUL, NULL)                                                                \
    HETCCL_KERNEL(NAME##_max, M, T, hetccl_##NAME##_max, NULL)                                                        \
    HETCCL_KERNEL(NAME##_min, M, T, hetccl_##NAME##_min, NULL)

/* ---- floats of 8 and 16 bits, summed in float32 ---- */

/* LANES on `HETCCL_LANES` elements i.., ONE on element i. */
#define HETCCL_LANES_LOOP(LANES, ONE)                                                                                 \
    size_t i = 0;                                                                                                     \
    HETCCL_INDEPENDENT                                                                                                \
    for (; i + HETCCL_LANES <= count; i += HETCCL_LANES)                                                              \
        LANES;                                                                                                        \
    for (; i < count; i++)                                                                                            \
        ONE;

/* For types whose conversions the compiler vectorises itself. */
#define HETCCL_PLAIN_LOOP(LANES, ONE)                                                                                 \
    HETCCL_INDEPENDENT                                                                                                \
    for (size_t i = 0; i < count; i++)                                                                                \
        ONE;

/* Product with the factor as float32 in float32, rounded once. */
#define HETCCL_CONVERSIONS(NAME, M, LOOP)                                                                             \
    HETCCL_TARGET static void HETCCL_V(NAME##_widen)(float *running, const void *a_, size_t count)                    \
    {                                                                                                                 \
        const M *a = a_;                                                                                              \
        LOOP(HETCCL_SET_RUNNING(running + i, HETCCL_V(NAME##_load)(a + i)),                                           \
             running[i] = hetccl_##NAME##_to_f32(a[i]))                                                               \
    }                                                                                                                 \
    HETCCL_TARGET static void HETCCL_V(NAME##_narrow)(void *dst, const float *running, size_t count)                  \
    {                                                                                                                 \
        M *d = dst;                                                                                                   \
        LOOP(HETCCL_V(NAME##_store)(d + i, HETCCL_RUNNING(running + i)), d[i] = hetccl_f32_to_##NAME(running[i]))     \
    }                                                                                                                 \
    static void HETCCL_V(NAME##_scale)(void *dst, const void *src, size_t count, const void *factor)                  \
    {                                                                                                                 \
        float by = hetccl_##NAME##_to_f32(*(const M *)factor), running[HETCCL_TILE_FLOATS];                           \
        M *d = dst;                                                                                                   \
        const M *s = src;                                                                                             \
        for (size_t i = 0; i < count; i += HETCCL_TILE_FLOATS) {                                                      \
            size_t n = count - i < HETCCL_TILE_FLOATS ? count - i : HETCCL_TILE_FLOATS;                               \
            HETCCL_V(NAME##_widen)(running, s + i, n);                                                                \
            HETCCL_V(f32_scale)(running, running, n, &by);                                                            \
            HETCCL_V(NAME##_narrow)(d + i, running, n);                                                               \
        }                                                                                                             \
    }

/* OP is + or *, which the compilers define on vectors as well. */
#define HETCCL_NARROW(NAME, M, LOOP, OP_NAME, OP)                                                                     \
    HETCCL_TARGET static void HETCCL_V(NAME##_##OP_NAME##_add)(float *running, const void *a_, size_t count)          \
    {                                                                                                                 \
        const M *a = a_;                                                                                              \
        LOOP(HETCCL_SET_RUNNING(running + i, OP(HETCCL_RUNNING(running + i), HETCCL_V(NAME##_load)(a + i))),          \
             running[i] = OP(running[i], hetccl_##NAME##_to_f32(a[i])))                                               \
    }                                                                                                                 \
    HETCCL_TARGET static void HETCCL_V(NAME##_##OP_NAME##_pass2)(void *dst, const void *a_, const void *b_,           \
                                                                 size_t count)                                        \
    {                                                                                                                 \
        M *d = dst;                                                                                                   \
        const M *a = a_, *b = b_;                                                                                     \
        LOOP(HETCCL_V(NAME##_store)(d + i, OP(HETCCL_V(NAME##_load)(a + i), HETCCL_V(NAME##_load)(b + i))),           \
             d[i] = hetccl_f32_to_##NAME(OP(hetccl_##NAME##_to_f32(a[i]), hetccl_##NAME##_to_f32(b[i]))))             \
    }                                                                                                                 \
    static void HETCCL_V(NAME##_##OP_NAME)(void *dst, const void *const *sources, int nsources, size_t count,         \
                                           int divisor)                                                               \
    {                                                                                                                 \
        static const hetccl_narrow_passes_t k = {sizeof(M), HETCCL_V(NAME##_widen), HETCCL_V(NAME##_##OP_NAME##_add), \
                                                 HETCCL_V(NAME##_narrow), HETCCL_V(NAME##_##OP_NAME##_pass2),         \
                                                 HETCCL_V(f32_divide)};                                               \
        hetccl_fold_narrow(&k, dst, sources, nsources, count, divisor);                                               \
    }

/* Sums and products in float32; MAX and MIN choose one of the operands' bits. */
#define HETCCL_NARROW_FLOAT(NAME, M, T, LOOP)                                                                         \
    HETCCL_CONVERSIONS(NAME, M, LOOP)                                                                                 \
    HETCCL_NARROW(NAME, M, LOOP, sum, HETCCL_ADD)                                                                     \
    HETCCL_NARROW(NAME, M, LOOP, prod, HETCCL_MUL)                                                                    \
    HETCCL_KERNEL(NAME##_max, M, T, hetccl_##NAME##_max, NULL)                                                        \
    HETCCL_KERNEL(NAME##_min, M, T, hetccl_##NAME##_min, NULL)

/* ---- products with one factor, for premul_sum; OP(a, b) in value type T, as in HETCCL_PASSES ---- */

#define HETCCL_SCALE(NAME, M, T, OP)                                                                                  \
    HETCCL_TARGET static void HETCCL_V(NAME##_scale)(void *dst, const void *src, size_t count, const void *factor)    \
    {                                                                                                                 \
        M *d = dst;                                                                                                   \
        const M *s = src;                                                                                             \
        T by = *(const M *)factor;                                                                                    \
        HETCCL_INDEPENDENT                                                                                            \
        for (size_t i = 0; i < count; i++) {                                                                          \
            T x = s[i];                                                                                               \
            d[i] = OP(x, by);                                                                                         \
        }                                                                                                             \
    }

#endif
