"""Host reductions: function pointers for the executor (include/hetccl/reduce.h, docs/reductions.md)."""

# dst[i] = sources[0][i] op sources[1][i] op ...; count in elements; divisor > 0 only on AVG's last step (ranks).
ctypedef void (*hetccl_reduce_fn)(
    void* dst, const void* const* sources, int nsources, size_t count, int divisor
) noexcept nogil

# dst[i] = src[i] * factor, of the dtype; dst may be src; count in elements; no alignment is needed.
ctypedef void (*hetccl_scale_fn)(void* dst, const void* src, size_t count, const void* factor) noexcept nogil

cdef enum:
    FACTOR_BYTES = 32  # of the longest dtype that has a product: clongdouble

cdef hetccl_reduce_fn reduce_for(int dtype, int op) noexcept nogil  # NULL where the op is not defined for the dtype
cdef hetccl_scale_fn scale_for(int dtype) noexcept nogil            # NULL where the dtype has no product with a factor
