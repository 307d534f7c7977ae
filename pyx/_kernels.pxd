"""Host reductions: function pointers for the executor (include/hetccl/reduce.h, docs/reductions.md)."""

# dst[i] = sources[0][i] op sources[1][i] op ...; count in elements; divisor > 0 only on AVG's last step (ranks).
ctypedef void (*hetccl_reduce_fn)(
    void* dst, const void* const* sources, int nsources, size_t count, int divisor
) noexcept nogil

cdef hetccl_reduce_fn reduce_for(int dtype, int op) noexcept nogil  # NULL where the op is not defined for the dtype
