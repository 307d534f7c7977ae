# distutils: extra_compile_args = -ffp-contract=off
"""Host reductions (layer L2): chooses the compiled loops that this processor runs best.

The executor takes a function once per call by `reduce_for` and runs it without the GIL. The table is chosen at import,
under the GIL, and never changes. The Python functions here serve tests, the benchmark and `info`; they are not public.
The compiler must not fuse a product and a sum (-ffp-contract): results would depend on the processor.
"""

from hetccl._abi cimport HETCCL_LAND, HETCCL_MAXLOC, HETCCL_NDTYPES, HETCCL_NVENDOR_OPS
from hetccl._dtype cimport dtype_itemsize


cdef extern from "hetccl/reduce.h" nogil:
    enum:
        HETCCL_NVARIANTS
        HETCCL_NROWS
    ctypedef struct hetccl_kernels_t:
        hetccl_reduce_fn[HETCCL_NROWS][HETCCL_NDTYPES] reduce
        hetccl_scale_fn[HETCCL_NDTYPES] scale
    int HETCCL_ROW_OF(int op)
    const char* hetccl_variant_name[HETCCL_NVARIANTS]
    const hetccl_kernels_t* hetccl_variant_kernels(int variant)

cdef enum:
    MAX_SOURCES = 1024  # of reduce() below; the C functions have no limit

# Kernels by variant, NULL where this processor cannot run it, and the best of them. Asked once: cpuid is a trap of tens
# of microseconds in a virtual machine.
cdef const hetccl_kernels_t* variants[HETCCL_NVARIANTS]
cdef const hetccl_kernels_t* best = NULL


cdef dict choose():
    """Fill the table; return {name: number} of the variants that this processor runs, each better than the last."""
    global best
    cdef int variant
    runnable = {}
    for variant in range(HETCCL_NVARIANTS):
        variants[variant] = hetccl_variant_kernels(variant)
        if variants[variant] != NULL:
            best = variants[variant]
            runnable[hetccl_variant_name[variant].decode()] = variant
    return runnable


VARIANTS = choose()


cdef hetccl_reduce_fn reduce_of(const hetccl_kernels_t* kernels, int dtype, int op) noexcept nogil:
    if dtype < 0 or dtype >= HETCCL_NDTYPES:
        return NULL
    if 0 <= op < HETCCL_NVENDOR_OPS or HETCCL_LAND <= op <= HETCCL_MAXLOC:
        return kernels.reduce[HETCCL_ROW_OF(op)][dtype]
    return NULL


cdef hetccl_scale_fn scale_of(const hetccl_kernels_t* kernels, int dtype) noexcept nogil:
    return kernels.scale[dtype] if 0 <= dtype < HETCCL_NDTYPES else NULL


cdef hetccl_reduce_fn reduce_for(int dtype, int op) noexcept nogil:
    return reduce_of(best, dtype, op)


cdef hetccl_scale_fn scale_for(int dtype) noexcept nogil:
    return scale_of(best, dtype)


def defined():
    """The (op, dtype) pairs, in the numbers of abi.h, that have a host reduction."""
    pairs = [(op, dtype) for op in range(HETCCL_MAXLOC + 1) for dtype in range(HETCCL_NDTYPES)]
    return [(op, dtype) for op, dtype in pairs if reduce_for(dtype, op) != NULL]


def scalable():
    """The dtypes, in the numbers of abi.h, that premul_sum can scale."""
    return [dtype for dtype in range(HETCCL_NDTYPES) if scale_for(dtype) != NULL]


cdef const hetccl_kernels_t* kernels_of(object variant) except NULL:
    if variant is None:
        return best
    if variant not in VARIANTS:
        raise ValueError(f"variant: {variant!r} given, this processor runs {', '.join(VARIANTS)}")
    return variants[<int> VARIANTS[variant]]


def reduce(int op, int dtype, dst, list sources, int divisor=0, variant=None):
    """Run one host reduction, dst = sources[0] op sources[1] op ...: an entry for tests and the benchmark.

    op, dtype : numbers of abi.h
    dst       : writable contiguous buffer of bytes (uint8), at any address; may be the memory of one source
    sources   : 1 to 1024 contiguous buffers of bytes, of dst's length
    divisor   : number of ranks on the last step of AVG, else 0
    variant   : a name in VARIANTS; None takes the one in use
    Blocks    : yes, without the GIL
    Raises    : TypeError (op not defined for dtype), ValueError (number of sources, lengths, variant, not bytes)
    """
    cdef hetccl_reduce_fn fn = reduce_of(kernels_of(variant), dtype, op)
    cdef unsigned char[::1] out = dst
    cdef const unsigned char[::1] source
    cdef const void* pointers[MAX_SOURCES]
    cdef int i, nsources = len(sources)
    if fn == NULL:
        raise TypeError(f"op {op} is not defined for dtype {dtype} (numbers of abi.h); defined() lists those that are")
    if not 1 <= nsources <= MAX_SOURCES:
        raise ValueError(f"sources: {nsources} given, 1 to {MAX_SOURCES} wanted")
    cdef size_t nbytes = out.shape[0]
    cdef size_t itemsize = dtype_itemsize(dtype)
    if nbytes % itemsize:
        raise ValueError(f"dst: {nbytes} bytes given, a multiple of {itemsize} wanted")
    for i in range(nsources):
        source = sources[i]
        if <size_t> source.shape[0] != nbytes:
            raise ValueError(f"sources[{i}]: {source.shape[0]} bytes given, dst has {nbytes}")
        pointers[i] = <const void*> &source[0]
    with nogil:
        fn(<void*> &out[0], pointers, nsources, nbytes // itemsize, divisor)


def scale(int dtype, dst, src, factor, variant=None):
    """Run one scaling, dst = src * factor: an entry for tests.

    dtype    : number of abi.h
    dst, src : writable and readable contiguous buffers of bytes, of one length; may be the same memory
    factor   : buffer of the bytes of one element
    variant  : as reduce()'s
    Blocks   : yes, without the GIL
    Raises   : TypeError (the dtype has no product), ValueError (lengths, variant, not bytes)
    """
    cdef hetccl_scale_fn fn = scale_of(kernels_of(variant), dtype)
    cdef unsigned char[::1] out = dst
    cdef const unsigned char[::1] source = src
    cdef const unsigned char[::1] by = factor
    if fn == NULL:
        raise TypeError(f"dtype {dtype} has no product with a factor; scalable() lists those that have")
    cdef size_t nbytes = out.shape[0]
    cdef size_t itemsize = dtype_itemsize(dtype)
    if nbytes % itemsize or <size_t> source.shape[0] != nbytes:
        raise ValueError(f"dst and src: {nbytes} and {source.shape[0]} bytes given, one multiple of {itemsize} wanted")
    if <size_t> by.shape[0] != itemsize:
        raise ValueError(f"factor: {by.shape[0]} bytes given, {itemsize} wanted")
    with nogil:
        fn(<void*> &out[0], <const void*> &source[0], nbytes // itemsize, <const void*> &by[0])
