"""Layer L3: which reductions a vendor's library has, and how they are told to it: dtypes and ops by its numbers."""

from libc.stdint cimport uint64_t
from libc.string cimport memcpy

from hetccl._abi cimport (
    HETCCL_AVG, HETCCL_BAND, HETCCL_BFLOAT16, HETCCL_BOOL, HETCCL_BOR, HETCCL_COMPLEX64, HETCCL_COMPLEX128,
    HETCCL_FLOAT8_E4M3, HETCCL_FLOAT8_E5M2, HETCCL_FLOAT16, HETCCL_FLOAT32, HETCCL_FLOAT64, HETCCL_INT8, HETCCL_INT32,
    HETCCL_INT64, HETCCL_LAND, HETCCL_LOR, HETCCL_MAX, HETCCL_MIN, HETCCL_NVENDOR_OPS, HETCCL_PROD,
    HETCCL_SUM, HETCCL_UINT8, HETCCL_UINT32, HETCCL_UINT64,
)
from hetccl._kernels cimport FACTOR_BYTES
from hetccl._op cimport KIND_BUILTIN, KIND_PREMUL


cdef bint launch_reduces(Launch* launch, int dtype, const OpChoice* choice, int nranks) noexcept nogil:
    cdef int op = choice.code
    launch.dtype, launch.lanes, launch.op = dtype, 1, op
    if dtype == HETCCL_BOOL:
        # One byte of 0 or 1.
        launch.dtype = HETCCL_UINT8
        if op == HETCCL_SUM or op == HETCCL_MAX or op == HETCCL_LOR or op == HETCCL_BOR:
            launch.op = HETCCL_MAX
        elif op == HETCCL_PROD or op == HETCCL_MIN or op == HETCCL_LAND or op == HETCCL_BAND:
            launch.op = HETCCL_MIN
        else:
            return False
    elif dtype == HETCCL_COMPLEX64 or dtype == HETCCL_COMPLEX128:
        # A sum of complex numbers is that of their parts; a product is not.
        launch.dtype, launch.lanes = HETCCL_FLOAT32 if dtype == HETCCL_COMPLEX64 else HETCCL_FLOAT64, 2
        if op != HETCCL_SUM and op != HETCCL_AVG:
            return False
    elif dtype > HETCCL_FLOAT8_E5M2:
        return False
    elif (dtype == HETCCL_FLOAT8_E4M3 or dtype == HETCCL_FLOAT8_E5M2) and op == HETCCL_AVG:
        return False  # NCCL 2.28 answers that the argument is invalid
    if choice.kind == KIND_PREMUL:
        launch.op, launch.scales = HETCCL_SUM, True
        memcpy(&launch.factor[0], &choice.factor[0], FACTOR_BYTES)
    elif choice.kind != KIND_BUILTIN or launch.op >= HETCCL_NVENDOR_OPS:
        return False
    if launch.op == HETCCL_AVG and nranks == 1:
        launch.op = HETCCL_SUM  # NCCL 2.28 leaves out the last of an odd number of elements of 8 bytes, on one rank
    launch.identity = identity_of(launch.dtype, launch.op)
    return True


cdef uint64_t identity_of(int dtype, int op) noexcept nogil:
    """Bits of the number that leaves every other as it is. A sum's is -0 for floats: +0 would change -0."""
    cdef int width = 8 if dtype in (HETCCL_INT64, HETCCL_UINT64, HETCCL_FLOAT64) else (
        4 if dtype in (HETCCL_INT32, HETCCL_UINT32, HETCCL_FLOAT32) else
        2 if dtype in (HETCCL_FLOAT16, HETCCL_BFLOAT16) else 1)
    cdef uint64_t top = <uint64_t>1 << (8 * width - 1), all_ones = top | (top - 1), infinity, one = 1
    if dtype == HETCCL_UINT8 or dtype == HETCCL_UINT32 or dtype == HETCCL_UINT64:
        return 1 if op == HETCCL_PROD else all_ones if op == HETCCL_MIN else 0
    if dtype == HETCCL_INT8 or dtype == HETCCL_INT32 or dtype == HETCCL_INT64:
        return 1 if op == HETCCL_PROD else top if op == HETCCL_MAX else top - 1 if op == HETCCL_MIN else 0
    # Exponents of all ones; float8_e4m3fn has no infinity, and its largest number is just below that.
    if dtype == HETCCL_FLOAT64:
        infinity, one = 0x7FF0000000000000ULL, 0x3FF0000000000000ULL
    elif dtype == HETCCL_FLOAT32:
        infinity, one = 0x7F800000ULL, 0x3F800000ULL
    elif dtype == HETCCL_FLOAT16:
        infinity, one = 0x7C00, 0x3C00
    elif dtype == HETCCL_BFLOAT16:
        infinity, one = 0x7F80, 0x3F80
    elif dtype == HETCCL_FLOAT8_E4M3:
        infinity, one = 0x7E, 0x38
    else:
        infinity, one = 0x7C, 0x3C
    return one if op == HETCCL_PROD else top | infinity if op == HETCCL_MAX else infinity if op == HETCCL_MIN else top
