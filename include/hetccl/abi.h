/* The numbers and structs that every layer shares (layer L0). Dtype and op codes 0..11 and 0..4 are NCCL's own
 * (nccl.h, ncclDataType_t and ncclRedOp_t), so that they go to a vendor CCL unchanged; ours start at 32. */
#ifndef HETCCL_ABI_H
#define HETCCL_ABI_H

#include <stddef.h>
#include <stdint.h>

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
    HETCCL_NDTYPES = 38,
    HETCCL_RAW = 63 /* elements that can be moved, not computed with: no row of any table */
};

enum hetccl_op { HETCCL_SUM = 0, HETCCL_PROD = 1, HETCCL_MAX = 2, HETCCL_MIN = 3, HETCCL_AVG = 4, HETCCL_NOPS = 5 };

enum hetccl_memory { HETCCL_MEM_HOST = 0, HETCCL_MEM_CUDA = 1, HETCCL_MEM_HIP = 2, HETCCL_MEM_ONEAPI = 3 };

#endif
