"""MPI datatypes as trees of loops: what is compiled from a description, and what it says. Layer L2."""

from libc.stdint cimport int64_t, uint8_t

cdef extern from "<sys/uio.h>" nogil:
    cdef struct iovec:
        void* iov_base
        size_t iov_len

cdef extern from "hetccl/layout.h" nogil:
    ctypedef struct hetccl_piece_t:
        int64_t offset
        int64_t first
        int64_t run
        int64_t count
        int64_t stride
        int64_t lowest
        int64_t highest
        int64_t nparts
        const hetccl_piece_t* parts

    ctypedef struct hetccl_layout_t:
        int64_t size      # packed bytes of one element
        int64_t extent    # bytes from one element to the next
        hetccl_piece_t root

    # The bytes [*low_p, *high_p) from base on that count (> 0) iterations of a piece at base touch.
    void hetccl_piece_range(const hetccl_piece_t* piece, int64_t count, int64_t* low_p, int64_t* high_p)
    # The bytes [skip, skip + nbytes) of the packed stream of the elements at base. A layout may not be NULL here ...
    void hetccl_layout_pack(const hetccl_layout_t* layout, const uint8_t* base, size_t skip, size_t nbytes,
                            uint8_t* out)
    void hetccl_layout_unpack(const hetccl_layout_t* layout, uint8_t* base, size_t skip, size_t nbytes,
                              const uint8_t* packed)
    # ... but here: contiguous.
    void hetccl_layout_copy(const hetccl_layout_t* to, uint8_t* to_base, size_t to_skip, const hetccl_layout_t* source,
                            const uint8_t* source_base, size_t source_skip, size_t nbytes)
    # The same past the cache.
    void hetccl_layout_copy_past(const hetccl_layout_t* to, uint8_t* to_base, size_t to_skip,
                                 const hetccl_layout_t* source, const uint8_t* source_base, size_t source_skip,
                                 size_t nbytes)
    # The same bytes as runs of memory, at most max; returns how many. If they end before nbytes do, ask again there.
    int hetccl_layout_runs(const hetccl_layout_t* layout, uint8_t* base, size_t skip, size_t nbytes, iovec* out,
                           int max)


# A part of a buffer, which a collective gives to one rank, say. Its packed stream has nbytes.
ctypedef struct Part:
    uint8_t* ptr
    int64_t nbytes                 # packed
    const hetccl_layout_t* layout  # how its elements lie; NULL is contiguous


cdef class Layout:
    """An MPI datatype, compiled. Owns its pieces; all but `apart` is constant."""

    cdef hetccl_layout_t tree
    cdef hetccl_piece_t* pieces  # all but the root
    cdef int64_t npieces
    cdef int code                # HETCCL_<dtype> that all of its elements have, or HETCCL_RAW
    cdef bint contiguous         # one run of size == extent bytes at 0, so that no layout is needed
    # What layout_apart knows: the loops inside the root's, (count, bytes), how many bytes their body reaches over,
    # whether the body surely touches none of them twice, and how many elements have been found to be apart.
    cdef list loops
    cdef object reach
    cdef bint body_apart
    cdef int64_t apart

    cdef dict describe(self)


# Of an mpi4py datatype; compiled once per datatype. TypeError naming arg for what cannot be carried.
cdef Layout layout_of(object datatype, object arg)

# Whether `count` elements surely touch no byte twice, told from their loops. A caller that knows better sets `apart`.
cdef bint layout_apart(Layout self, int64_t count) except -1
