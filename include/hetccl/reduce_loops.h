/* The loops of reduce.h and their table, for one instruction set. reduce.h includes this file once for each, with
 * HETCCL_VARIANT (a name) and HETCCL_TARGET (a function attribute) defined: hence no include guard. Plain loops over
 * the definitions of reduce_ops.h, shaped for the compiler's vectoriser. */

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

HETCCL_INTEGER(i8, hetccl_i8_m, int8_t, 32, int32_t)
HETCCL_INTEGER(u8, hetccl_u8_m, uint8_t, 32, uint32_t)
HETCCL_INTEGER(i16, hetccl_i16_m, int16_t, 32, int32_t)
HETCCL_INTEGER(u16, hetccl_u16_m, uint16_t, 32, uint32_t)
HETCCL_INTEGER(i32, hetccl_i32_m, int32_t, 32, int32_t)
HETCCL_INTEGER(u32, hetccl_u32_m, uint32_t, 32, uint32_t)
HETCCL_INTEGER(i64, hetccl_i64_m, int64_t, 64, int64_t)
HETCCL_INTEGER(u64, hetccl_u64_m, uint64_t, 64, uint64_t)
HETCCL_FLOAT(f32, hetccl_f32_m, float)
HETCCL_FLOAT(f64, hetccl_f64_m, double)
HETCCL_FLOAT(ld, hetccl_ld_m, long double)

HETCCL_REDUCTION(c64_sum, f32_sum, 2)
HETCCL_REDUCTION(c128_sum, f64_sum, 2)
HETCCL_KERNEL(c64_prod, hetccl_c64_t, hetccl_c64_t, hetccl_c64_mul, NULL)
HETCCL_KERNEL(c128_prod, hetccl_c128_t, hetccl_c128_t, hetccl_c128_mul, NULL)

HETCCL_PASSES(bool_or, hetccl_u8_m, uint8_t, HETCCL_OR, NULL)
HETCCL_PASSES(bool_and, hetccl_u8_m, uint8_t, HETCCL_AND, NULL)

/* One source counts twice, so that a true of any nonzero byte comes out as 1. */
#define HETCCL_BOOL_REDUCTION(NAME)                                                                                   \
    static void HETCCL_V(NAME)(void *dst, const void *const *sources, int nsources, size_t count, int divisor)        \
    {                                                                                                                 \
        const void *twice[2] = {sources[0], sources[0]};                                                              \
        hetccl_fold(&HETCCL_V(NAME##_passes), dst, nsources == 1 ? twice : sources, nsources == 1 ? 2 : nsources,     \
                    count, divisor);                                                                                  \
    }
HETCCL_BOOL_REDUCTION(bool_or)
HETCCL_BOOL_REDUCTION(bool_and)

/* ---- float16 and bfloat16: HETCCL_LANES values at a time, then the rest one by one ---- */

#if HETCCL_LANES == 8
HETCCL_TARGET static inline __m256 HETCCL_V(f16_load)(const hetccl_u16_m *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

HETCCL_TARGET static inline void HETCCL_V(f16_store)(hetccl_u16_m *p, __m256 x)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

HETCCL_TARGET static inline __m256 HETCCL_V(bf16_load)(const hetccl_u16_m *p)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

/* hetccl_f32_to_bf16 on 8 values; the high halves are then packed, 4 to each 128-bit lane. */
HETCCL_TARGET static inline void HETCCL_V(bf16_store)(hetccl_u16_m *p, __m256 x)
{
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
    __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
    _mm_storeu_si128((__m128i *)p, packed);
}

#define HETCCL_RUNNING(p) _mm256_loadu_ps(p)
#define HETCCL_SET_RUNNING(p, x) _mm256_storeu_ps(p, x)
#else
HETCCL_OP float HETCCL_V(f16_load)(const hetccl_u16_m *p) { return hetccl_f16_to_f32(*p); }
HETCCL_OP void HETCCL_V(f16_store)(hetccl_u16_m *p, float x) { *p = hetccl_f32_to_f16(x); }
HETCCL_OP float HETCCL_V(bf16_load)(const hetccl_u16_m *p) { return hetccl_bf16_to_f32(*p); }
HETCCL_OP void HETCCL_V(bf16_store)(hetccl_u16_m *p, float x) { *p = hetccl_f32_to_bf16(x); }
#define HETCCL_RUNNING(p) *(p)
#define HETCCL_SET_RUNNING(p, x) *(p) = x
#endif

/* LANES on `HETCCL_LANES` elements i.., ONE on element i. */
#define HETCCL_HALF_LOOP(LANES, ONE)                                                                                  \
    size_t i = 0;                                                                                                     \
    HETCCL_INDEPENDENT                                                                                                \
    for (; i + HETCCL_LANES <= count; i += HETCCL_LANES)                                                              \
        LANES;                                                                                                        \
    for (; i < count; i++)                                                                                            \
        ONE;

#define HETCCL_CONVERSIONS(NAME)                                                                                      \
    HETCCL_TARGET static void HETCCL_V(NAME##_widen)(float *running, const void *a_, size_t count)                    \
    {                                                                                                                 \
        const hetccl_u16_m *a = a_;                                                                                   \
        HETCCL_HALF_LOOP(HETCCL_SET_RUNNING(running + i, HETCCL_V(NAME##_load)(a + i)),                               \
                         running[i] = hetccl_##NAME##_to_f32(a[i]))                                                   \
    }                                                                                                                 \
    HETCCL_TARGET static void HETCCL_V(NAME##_narrow)(void *dst, const float *running, size_t count)                  \
    {                                                                                                                 \
        hetccl_u16_m *d = dst;                                                                                        \
        HETCCL_HALF_LOOP(HETCCL_V(NAME##_store)(d + i, HETCCL_RUNNING(running + i)),                                  \
                         d[i] = hetccl_f32_to_##NAME(running[i]))                                                     \
    }

/* OP is + or *, which the compilers define on vectors as well. */
#define HETCCL_HALF(NAME, OP_NAME, OP)                                                                                \
    HETCCL_TARGET static void HETCCL_V(NAME##_##OP_NAME##_add)(float *running, const void *a_, size_t count)          \
    {                                                                                                                 \
        const hetccl_u16_m *a = a_;                                                                                   \
        HETCCL_HALF_LOOP(                                                                                             \
            HETCCL_SET_RUNNING(running + i, OP(HETCCL_RUNNING(running + i), HETCCL_V(NAME##_load)(a + i))),           \
            running[i] = OP(running[i], hetccl_##NAME##_to_f32(a[i])))                                                \
    }                                                                                                                 \
    HETCCL_TARGET static void HETCCL_V(NAME##_##OP_NAME##_pass2)(void *dst, const void *a_, const void *b_,           \
                                                                 size_t count)                                        \
    {                                                                                                                 \
        hetccl_u16_m *d = dst;                                                                                        \
        const hetccl_u16_m *a = a_, *b = b_;                                                                          \
        HETCCL_HALF_LOOP(                                                                                             \
            HETCCL_V(NAME##_store)(d + i, OP(HETCCL_V(NAME##_load)(a + i), HETCCL_V(NAME##_load)(b + i))),            \
            d[i] = hetccl_f32_to_##NAME(OP(hetccl_##NAME##_to_f32(a[i]), hetccl_##NAME##_to_f32(b[i]))))              \
    }                                                                                                                 \
    static void HETCCL_V(NAME##_##OP_NAME)(void *dst, const void *const *sources, int nsources, size_t count,         \
                                           int divisor)                                                               \
    {                                                                                                                 \
        static const hetccl_half_passes_t k = {HETCCL_V(NAME##_widen), HETCCL_V(NAME##_##OP_NAME##_add),              \
                                               HETCCL_V(NAME##_narrow), HETCCL_V(NAME##_##OP_NAME##_pass2),           \
                                               HETCCL_V(f32_divide)};                                                 \
        hetccl_fold_half(&k, dst, sources, nsources, count, divisor);                                                 \
    }

HETCCL_CONVERSIONS(f16)
HETCCL_CONVERSIONS(bf16)
HETCCL_HALF(f16, sum, HETCCL_ADD)
HETCCL_HALF(f16, prod, HETCCL_MUL)
HETCCL_HALF(bf16, sum, HETCCL_ADD)
HETCCL_HALF(bf16, prod, HETCCL_MUL)
HETCCL_KERNEL(f16_max, hetccl_u16_m, uint16_t, hetccl_f16_max, NULL)
HETCCL_KERNEL(f16_min, hetccl_u16_m, uint16_t, hetccl_f16_min, NULL)
HETCCL_KERNEL(bf16_max, hetccl_u16_m, uint16_t, hetccl_bf16_max, NULL)
HETCCL_KERNEL(bf16_min, hetccl_u16_m, uint16_t, hetccl_bf16_min, NULL)

/* ---- the table: NULL where the op is not defined ---- */

#define HETCCL_ROW(OP, REST)                                                                                          \
    {                                                                                                                 \
        [HETCCL_INT8] = HETCCL_V(i8_##OP), [HETCCL_UINT8] = HETCCL_V(u8_##OP), [HETCCL_INT16] = HETCCL_V(i16_##OP),   \
        [HETCCL_UINT16] = HETCCL_V(u16_##OP), [HETCCL_INT32] = HETCCL_V(i32_##OP),                                    \
        [HETCCL_UINT32] = HETCCL_V(u32_##OP), [HETCCL_INT64] = HETCCL_V(i64_##OP),                                    \
        [HETCCL_UINT64] = HETCCL_V(u64_##OP), [HETCCL_FLOAT16] = HETCCL_V(f16_##OP),                                  \
        [HETCCL_BFLOAT16] = HETCCL_V(bf16_##OP), [HETCCL_FLOAT32] = HETCCL_V(f32_##OP),                               \
        [HETCCL_FLOAT64] = HETCCL_V(f64_##OP), [HETCCL_LONGDOUBLE] = HETCCL_V(ld_##OP), REST                          \
    }
#define HETCCL_AND_COMPLEX(OP) [HETCCL_COMPLEX64] = HETCCL_V(c64_##OP), [HETCCL_COMPLEX128] = HETCCL_V(c128_##OP)
#define HETCCL_AND_BOOL(OP) [HETCCL_BOOL] = HETCCL_V(bool_##OP)
#define HETCCL_AND_BOTH(OP, BOOL_OP) HETCCL_AND_COMPLEX(OP), HETCCL_AND_BOOL(BOOL_OP)

/* AVG is SUM with a divisor on its last step. */
static const hetccl_reduce_row HETCCL_V(table)[HETCCL_NOPS] = {
    [HETCCL_SUM] = HETCCL_ROW(sum, HETCCL_AND_BOTH(sum, or)),
    [HETCCL_PROD] = HETCCL_ROW(prod, HETCCL_AND_BOTH(prod, and)),
    [HETCCL_MAX] = HETCCL_ROW(max, HETCCL_AND_BOOL(or)),
    [HETCCL_MIN] = HETCCL_ROW(min, HETCCL_AND_BOOL(and)),
    [HETCCL_AVG] = HETCCL_ROW(sum, HETCCL_AND_COMPLEX(sum)),
};

#undef HETCCL_PASSES
#undef HETCCL_REDUCTION
#undef HETCCL_KERNEL
#undef HETCCL_DIVISION
#undef HETCCL_INTEGER
#undef HETCCL_FLOAT
#undef HETCCL_BOOL_REDUCTION
#undef HETCCL_RUNNING
#undef HETCCL_SET_RUNNING
#undef HETCCL_HALF_LOOP
#undef HETCCL_CONVERSIONS
#undef HETCCL_HALF
#undef HETCCL_ROW
#undef HETCCL_AND_COMPLEX
#undef HETCCL_AND_BOOL
#undef HETCCL_AND_BOTH
