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
        HETCCL_FLOAT_INT
        HETCCL_DOUBLE_INT
        HETCCL_LONG_INT
        HETCCL_INT_INT
        HETCCL_SHORT_INT
        HETCCL_LONGDOUBLE_INT
        HETCCL_CLONGDOUBLE
        HETCCL_NDTYPES
        HETCCL_RAW

        HETCCL_SUM
        HETCCL_PROD
        HETCCL_MAX
        HETCCL_MIN
        HETCCL_AVG
        HETCCL_NVENDOR_OPS
        HETCCL_LAND
        HETCCL_LOR
        HETCCL_LXOR
        HETCCL_BAND
        HETCCL_BOR
        HETCCL_BXOR
        HETCCL_MINLOC
        HETCCL_MAXLOC
        HETCCL_PREMUL_SUM
        HETCCL_USER

        HETCCL_MEM_HOST
        HETCCL_MEM_CUDA
        HETCCL_MEM_HIP
        HETCCL_MEM_ONEAPI

    ctypedef struct hetccl_float_int_t:
        float value
    ctypedef struct hetccl_double_int_t:
        double value
    ctypedef struct hetccl_long_int_t:
        long value
    ctypedef struct hetccl_int_int_t:
        int value
    ctypedef struct hetccl_short_int_t:
        short value
    ctypedef struct hetccl_longdouble_int_t:
        long double value
