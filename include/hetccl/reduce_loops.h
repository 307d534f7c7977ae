/* The loops whose speed depends on the instruction set, and the tables of all. reduce.h includes this file once for
 * each set, with HETCCL_VARIANT (a name), HETCCL_TARGET (a function attribute) and HETCCL_LANES defined: hence no
 * include guard. */

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
HETCCL_REDUCTION(cld_sum, ld_sum, 2)
HETCCL_KERNEL(c64_prod, hetccl_c64_t, hetccl_c64_t, hetccl_c64_mul, NULL)
HETCCL_KERNEL(c128_prod, hetccl_c128_t, hetccl_c128_t, hetccl_c128_mul, NULL)
HETCCL_KERNEL(cld_prod, hetccl_cld_t, hetccl_cld_t, hetccl_cld_mul, NULL)

/* A product that wraps has the same bits with and without sign. */
HETCCL_SCALE(u8, hetccl_u8_m, uint8_t, HETCCL_MUL_32)
HETCCL_SCALE(u16, hetccl_u16_m, uint16_t, HETCCL_MUL_32)
HETCCL_SCALE(u32, hetccl_u32_m, uint32_t, HETCCL_MUL_32)
HETCCL_SCALE(u64, hetccl_u64_m, uint64_t, HETCCL_MUL_64)
HETCCL_SCALE(f32, hetccl_f32_m, float, HETCCL_MUL)
HETCCL_SCALE(f64, hetccl_f64_m, double, HETCCL_MUL)
HETCCL_SCALE(ld, hetccl_ld_m, long double, HETCCL_MUL)
HETCCL_SCALE(c64, hetccl_c64_t, hetccl_c64_t, hetccl_c64_mul)
HETCCL_SCALE(c128, hetccl_c128_t, hetccl_c128_t, hetccl_c128_mul)
HETCCL_SCALE(cld, hetccl_cld_t, hetccl_cld_t, hetccl_cld_mul)

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

HETCCL_NARROW_FLOAT(f16, hetccl_u16_m, uint16_t, HETCCL_LANES_LOOP)
HETCCL_NARROW_FLOAT(bf16, hetccl_u16_m, uint16_t, HETCCL_LANES_LOOP)
HETCCL_NARROW_FLOAT(e4m3, hetccl_u8_m, uint8_t, HETCCL_PLAIN_LOOP)
HETCCL_NARROW_FLOAT(e5m2, hetccl_u8_m, uint8_t, HETCCL_PLAIN_LOOP)

/* ---- the tables: NULL where the op is not defined ---- */

#define HETCCL_ROW(OP, REST)                                                                                          \
    {                                                                                                                 \
        [HETCCL_INT8] = HETCCL_V(i8_##OP), [HETCCL_UINT8] = HETCCL_V(u8_##OP), [HETCCL_INT16] = HETCCL_V(i16_##OP),   \
        [HETCCL_UINT16] = HETCCL_V(u16_##OP), [HETCCL_INT32] = HETCCL_V(i32_##OP),                                    \
        [HETCCL_UINT32] = HETCCL_V(u32_##OP), [HETCCL_INT64] = HETCCL_V(i64_##OP),                                    \
        [HETCCL_UINT64] = HETCCL_V(u64_##OP), [HETCCL_FLOAT16] = HETCCL_V(f16_##OP),                                  \
        [HETCCL_BFLOAT16] = HETCCL_V(bf16_##OP), [HETCCL_FLOAT8_E4M3] = HETCCL_V(e4m3_##OP),                          \
        [HETCCL_FLOAT8_E5M2] = HETCCL_V(e5m2_##OP), [HETCCL_FLOAT32] = HETCCL_V(f32_##OP),                            \
        [HETCCL_FLOAT64] = HETCCL_V(f64_##OP), [HETCCL_LONGDOUBLE] = HETCCL_V(ld_##OP), REST                          \
    }
#define HETCCL_AND_COMPLEX(OP)                                                                                        \
    [HETCCL_COMPLEX64] = HETCCL_V(c64_##OP), [HETCCL_COMPLEX128] = HETCCL_V(c128_##OP),                               \
    [HETCCL_CLONGDOUBLE] = HETCCL_V(cld_##OP)
#define HETCCL_AND_BOOL(OP) [HETCCL_BOOL] = hetccl_b8_##OP##_once
#define HETCCL_AND_BOTH(OP, BOOL_OP) HETCCL_AND_COMPLEX(OP), HETCCL_AND_BOOL(BOOL_OP)

/* AVG is SUM with a divisor on its last step. */
static const hetccl_kernels_t HETCCL_V(kernels) = {
    .reduce =
        {
            [HETCCL_ROW_OF(HETCCL_SUM)] = HETCCL_ROW(sum, HETCCL_AND_BOTH(sum, lor)),
            [HETCCL_ROW_OF(HETCCL_PROD)] = HETCCL_ROW(prod, HETCCL_AND_BOTH(prod, land)),
            [HETCCL_ROW_OF(HETCCL_MAX)] = HETCCL_ROW(max, HETCCL_AND_BOOL(lor)),
            [HETCCL_ROW_OF(HETCCL_MIN)] = HETCCL_ROW(min, HETCCL_AND_BOOL(land)),
            [HETCCL_ROW_OF(HETCCL_AVG)] = HETCCL_ROW(sum, HETCCL_AND_COMPLEX(sum)),
            [HETCCL_ROW_OF(HETCCL_LAND)] = HETCCL_ROW_OF_BITS(land, land),
            [HETCCL_ROW_OF(HETCCL_LOR)] = HETCCL_ROW_OF_BITS(lor, lor),
            [HETCCL_ROW_OF(HETCCL_LXOR)] = HETCCL_ROW_OF_BITS(lxor, lxor),
            [HETCCL_ROW_OF(HETCCL_BAND)] = HETCCL_ROW_OF_BITS(band, land),
            [HETCCL_ROW_OF(HETCCL_BOR)] = HETCCL_ROW_OF_BITS(bor, lor),
            [HETCCL_ROW_OF(HETCCL_BXOR)] = HETCCL_ROW_OF_BITS(bxor, lxor),
            [HETCCL_ROW_OF(HETCCL_MINLOC)] = HETCCL_ROW_OF_PAIRS(minloc),
            [HETCCL_ROW_OF(HETCCL_MAXLOC)] = HETCCL_ROW_OF_PAIRS(maxloc),
        },
    .scale =
        {
            [HETCCL_INT8] = HETCCL_V(u8_scale),          [HETCCL_UINT8] = HETCCL_V(u8_scale),
            [HETCCL_INT16] = HETCCL_V(u16_scale),        [HETCCL_UINT16] = HETCCL_V(u16_scale),
            [HETCCL_INT32] = HETCCL_V(u32_scale),        [HETCCL_UINT32] = HETCCL_V(u32_scale),
            [HETCCL_INT64] = HETCCL_V(u64_scale),        [HETCCL_UINT64] = HETCCL_V(u64_scale),
            [HETCCL_FLOAT16] = HETCCL_V(f16_scale),      [HETCCL_BFLOAT16] = HETCCL_V(bf16_scale),
            [HETCCL_FLOAT8_E4M3] = HETCCL_V(e4m3_scale), [HETCCL_FLOAT8_E5M2] = HETCCL_V(e5m2_scale),
            [HETCCL_FLOAT32] = HETCCL_V(f32_scale),      [HETCCL_FLOAT64] = HETCCL_V(f64_scale),
            [HETCCL_LONGDOUBLE] = HETCCL_V(ld_scale),    [HETCCL_COMPLEX64] = HETCCL_V(c64_scale),
            [HETCCL_COMPLEX128] = HETCCL_V(c128_scale),  [HETCCL_CLONGDOUBLE] = HETCCL_V(cld_scale),
        },
};

#undef HETCCL_RUNNING
#undef HETCCL_SET_RUNNING
#undef HETCCL_ROW
#undef HETCCL_AND_COMPLEX
#undef HETCCL_AND_BOOL
#undef HETCCL_AND_BOTH
