/* The numbers and structs that every layer shares (layer L0). Dtype and op codes 0..11 and 0..4 are NCCL's own
 * (nccl.h, ncclDataType_t and ncclRedOp_t), so that they go to a vendor CCL unchanged; ours start at 32. */
#ifndef HETCCL_ABI_H
#define HETCCL_ABI_H

#ifndef HETCCL_DEVICE /* compilers for GPUs may have no headers: device.h has what is needed of these */
#include <stddef.h>
#include <stdint.h>
#endif

enum hetccl_dtype {
    HETCCL_INT8 = 0,
    HETCCL_UINT8 = 1,
    HETCCL_INT32 = 2,
    HETCCL_UINT32 = 3,
    HETCCL_INT64 = 4,
    HETCCL_UINT64 = 5,
    HETCCL_FLOAT16 = 6,
    HETCCL_FLOAT32 = 7,
    HETCCL_FLOAT64 = 8,
    HETCCL_BFLOAT16 = 9,
    HETCCL_FLOAT8_E4M3 = 10,
    HETCCL_FLOAT8_E5M2 = 11,
    HETCCL_INT16 = 32,
    HETCCL_UINT16 = 33,
    HETCCL_BOOL = 34,
    HETCCL_LONGDOUBLE = 35,
    HETCCL_COMPLEX64 = 36,
    HETCCL_COMPLEX128 = 37,
    HETCCL_FLOAT_INT = 38,
    HETCCL_DOUBLE_INT = 39,
    HETCCL_LONG_INT = 40,
    HETCCL_INT_INT = 41,
    HETCCL_SHORT_INT = 42,
    HETCCL_LONGDOUBLE_INT = 43,
    HETCCL_CLONGDOUBLE = 44,
    HETCCL_NDTYPES = 45,
    HETCCL_RAW = 63 /* elements that can be moved, not computed with: no row of any table */
};

/* MINLOC and MAXLOC work on pairs of a value and an index, which lie in memory as the C compiler lays these out: so
 * MPI defines MPI_FLOAT_INT and its like (MPI 4.1, section 6.9.4). */
typedef struct { float value; int index; } hetccl_float_int_t;
typedef struct { double value; int index; } hetccl_double_int_t;
typedef struct { long value; int index; } hetccl_long_int_t;
typedef struct { int value; int index; } hetccl_int_int_t;
typedef struct { short value; int index; } hetccl_short_int_t;
#ifndef HETCCL_DEVICE
typedef struct { long double value; int index; } hetccl_longdouble_int_t;
#endif

/* From 5 on, NCCL numbers the ops that a program creates: ours leave that range alone. The last two have no loop. */
enum hetccl_op {
    HETCCL_SUM = 0,
    HETCCL_PROD = 1,
    HETCCL_MAX = 2,
    HETCCL_MIN = 3,
    HETCCL_AVG = 4,
    HETCCL_NVENDOR_OPS = 5,
    HETCCL_LAND = 32,
    HETCCL_LOR = 33,
    HETCCL_LXOR = 34,
    HETCCL_BAND = 35,
    HETCCL_BOR = 36,
    HETCCL_BXOR = 37,
    HETCCL_MINLOC = 38,
    HETCCL_MAXLOC = 39,
    HETCCL_PREMUL_SUM = 40,
    HETCCL_USER = 41
};

enum hetccl_memory { HETCCL_MEM_HOST = 0, HETCCL_MEM_CUDA = 1, HETCCL_MEM_HIP = 2, HETCCL_MEM_ONEAPI = 3 };

#endif
