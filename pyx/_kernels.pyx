# distutils: extra_compile_args = -ffp-contract=off
"""Host reductions (layer L2): chooses the compiled loops that this processor runs best.

The executor takes a function once per call by `reduce_for` and runs it without the GIL. The table is chosen at import,
under the GIL, and never changes. The Python functions here serve tests, the benchmark and `info`; they are not public.
The compiler must not fuse a product and a sum (-ffp-contract): results would depend on the processor.
"""

from hetccl._abi cimport HETCCL_NDTYPES, HETCCL_NOPS
from hetccl._dtype cimport dtype_itemsize


cdef extern from "hetccl/reduce.h" nogil:
    ctypedef hetccl_reduce_fn hetccl_reduce_row[HETCCL_NDTYPES]
    enum:
        HETCCL_NVARIANTS
    const char* hetccl_variant_name[HETCCL_NVARIANTS]
    const hetccl_reduce_row* hetccl_variant_table(int variant)

cdef enum:
    MAX_SOURCES = 1024  # of reduce() below; the C functions have no limit

# Tables by variant, NULL where this processor cannot run it, and the best of them. Asked once: cpuid is a trap of tens
# of microseconds in a virtual machine.
cdef const hetccl_reduce_row* tables[HETCCL_NVARIANTS]
cdef const hetccl_reduce_row* table = NULL


cdef dict choose():
    """Fill the tables; return {name: number} of the variants that this processor runs, each better than the last."""
    global table
    cdef int variant
    runnable = {}
    for variant in range(HETCCL_NVARIANTS):
        tables[variant] = hetccl_variant_table(variant)
        if tables[variant] != NULL:
            table = tables[variant]
            runnable[hetccl_variant_name[variant].decode()] = variant
    return runnable


VARIANTS = choose()


cdef hetccl_reduce_fn reduce_for(int dtype, int op) noexcept nogil:
    if dtype < 0 or dtype >= HETCCL_NDTYPES or op < 0 or op >= HETCCL_NOPS:
        return NULL
    return table[op][dtype]


def defined():
    """The (op, dtype) pairs, in the numbers of abi.h, that have a host reduction."""
    pairs = [(op, dtype) for op in range(HETCCL_NOPS) for dtype in range(HETCCL_NDTYPES)]
    return [(op, dtype) for op, dtype in pairs if reduce_for(dtype, op) != NULL]


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
    cdef hetccl_reduce_fn fn = reduce_for(dtype, op)
    cdef unsigned char[::1] out = dst
    cdef const unsigned char[::1] source
    cdef const void* pointers[MAX_SOURCES]
    cdef int i, nsources = len(sources)
    if fn == NULL:
        raise TypeError(f"op {op} is not defined for dtype {dtype} (numbers of abi.h); defined() lists those that are")
    if variant is not None:
        if variant not in VARIANTS:
            raise ValueError(f"variant: {variant!r} given, this processor runs {', '.join(VARIANTS)}")
        fn = tables[<int> VARIANTS[variant]][op][dtype]
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
