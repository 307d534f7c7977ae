"""Numbers shared by every layer, from include/hetccl/abi.h."""

cdef extern from "hetccl/abi.h" nogil:
    enum:
        HETCCL_INT8
        HETCCL_UINT8
        HETCCL_INT32
        HETCCL_UINT32
        HETCCL_INT64
        HETCCL_UINT64
        HETCCL_FLOAT16
        HETCCL_FLOAT32
        HETCCL_FLOAT64
        HETCCL_BFLOAT16
        HETCCL_FLOAT8_E4M3
        HETCCL_FLOAT8_E5M2
        HETCCL_INT16
        HETCCL_UINT16
        HETCCL_BOOL
        HETCCL_LONGDOUBLE
        HETCCL_COMPLEX64
        HETCCL_COMPLEX128
        HETCCL_NDTYPES
        HETCCL_RAW

        HETCCL_SUM
        HETCCL_PROD
        HETCCL_MAX
        HETCCL_MIN
        HETCCL_AVG
        HETCCL_NOPS

        HETCCL_MEM_HOST
        HETCCL_MEM_CUDA
        HETCCL_MEM_HIP
        HETCCL_MEM_ONEAPI
