/* Reductions that are compiled once, for the plainest instruction set: logical and bitwise ones, which wait for memory
 * in any, and MINLOC and MAXLOC, which no set helps. Included by reduce.h with HETCCL_VARIANT `once`. */
#ifndef HETCCL_REDUCE_ONCE_H
#define HETCCL_REDUCE_ONCE_H

/* A bitwise op does not see the elements' bounds, so that bytes serve every width. */
HETCCL_PASSES(band, hetccl_u8_m, uint8_t, HETCCL_BITS_AND, NULL)
HETCCL_PASSES(bor, hetccl_u8_m, uint8_t, HETCCL_BITS_OR, NULL)
HETCCL_PASSES(bxor, hetccl_u8_m, uint8_t, HETCCL_BITS_XOR, NULL)

/* One source is ORed with itself, so that a true of any nonzero value comes out as 1. */
#define HETCCL_LOGICAL(NAME, OP)                                                                                      \
    static void HETCCL_V(NAME##_##OP)(void *dst, const void *const *sources, int nsources, size_t count, int divisor) \
    {                                                                                                                 \
        const void *twice[2] = {sources[0], sources[0]};                                                              \
        if (nsources == 1)                                                                                            \
            hetccl_fold(&HETCCL_V(NAME##_lor_passes), dst, twice, 2, count, divisor);                                 \
        else                                                                                                          \
            hetccl_fold(&HETCCL_V(NAME##_##OP##_passes), dst, sources, nsources, count, divisor);                     \
    }

#define HETCCL_BITS(NAME, M, T)                                                                                       \
    HETCCL_REDUCTION(NAME##_band, band, sizeof(T))                                                                    \
    HETCCL_REDUCTION(NAME##_bor, bor, sizeof(T))                                                                      \
    HETCCL_REDUCTION(NAME##_bxor, bxor, sizeof(T))                                                                    \
    HETCCL_PASSES(NAME##_land, M, T, HETCCL_AND, NULL)                                                                \
    HETCCL_PASSES(NAME##_lor, M, T, HETCCL_OR, NULL)                                                                  \
    HETCCL_PASSES(NAME##_lxor, M, T, HETCCL_XOR, NULL)                                                                \
    HETCCL_LOGICAL(NAME, land)                                                                                        \
    HETCCL_LOGICAL(NAME, lor)                                                                                         \
    HETCCL_LOGICAL(NAME, lxor)

HETCCL_BITS(b8, hetccl_u8_m, uint8_t)
HETCCL_BITS(b16, hetccl_u16_m, uint16_t)
HETCCL_BITS(b32, hetccl_u32_m, uint32_t)
HETCCL_BITS(b64, hetccl_u64_m, uint64_t)

#define HETCCL_LOC(NAME)                                                                                              \
    HETCCL_KERNEL(NAME##_minloc, hetccl_##NAME##_m, hetccl_##NAME##_m, hetccl_##NAME##_minloc, NULL)                  \
    HETCCL_KERNEL(NAME##_maxloc, hetccl_##NAME##_m, hetccl_##NAME##_m, hetccl_##NAME##_maxloc, NULL)

HETCCL_LOC(float_int)
HETCCL_LOC(double_int)
HETCCL_LOC(long_int)
HETCCL_LOC(int_int)
HETCCL_LOC(short_int)
HETCCL_LOC(longdouble_int)

#define HETCCL_ROW_OF_BITS(OP, BOOL_OP)                                                                               \
    {                                                                                                                 \
        [HETCCL_INT8] = hetccl_b8_##OP##_once, [HETCCL_UINT8] = hetccl_b8_##OP##_once,                                \
        [HETCCL_INT16] = hetccl_b16_##OP##_once, [HETCCL_UINT16] = hetccl_b16_##OP##_once,                            \
        [HETCCL_INT32] = hetccl_b32_##OP##_once, [HETCCL_UINT32] = hetccl_b32_##OP##_once,                            \
        [HETCCL_INT64] = hetccl_b64_##OP##_once, [HETCCL_UINT64] = hetccl_b64_##OP##_once,                            \
        [HETCCL_BOOL] = hetccl_b8_##BOOL_OP##_once                                                                    \
    }
#define HETCCL_ROW_OF_PAIRS(OP)                                                                                       \
    {                                                                                                                 \
        [HETCCL_FLOAT_INT] = hetccl_float_int_##OP##_once, [HETCCL_DOUBLE_INT] = hetccl_double_int_##OP##_once,       \
        [HETCCL_LONG_INT] = hetccl_long_int_##OP##_once, [HETCCL_INT_INT] = hetccl_int_int_##OP##_once,               \
        [HETCCL_SHORT_INT] = hetccl_short_int_##OP##_once,                                                            \
        [HETCCL_LONGDOUBLE_INT] = hetccl_longdouble_int_##OP##_once                                                   \
    }

#endif
