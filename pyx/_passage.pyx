"""Layer L3: a call on GPU buffers as the engine sees it. The row runs such a collective portion by portion in pieces of
pinned memory (include/hetccl/ring.h): it begins a portion when its gate is open, and sets its word when it is complete.

No GIL; the caller holds the engine's mutex. How the GPU's side of it is queued is in _crossing.
"""


cdef bint passage_is_open(const Passage* passage, int64_t portion) noexcept nogil:
    return hetccl_ring_is_open(passage.ring, passage.first + portion)


cdef void passage_complete(const Passage* passage, int64_t portion) noexcept nogil:
    hetccl_ring_complete(passage.ring, passage.first + portion)


cdef void passage_enter(Passage* passage, Run* run, int64_t portion, int64_t length) noexcept nogil:
    cdef int64_t unit_nbytes = length * <int64_t>run.itemsize
    # Units of a piece begin with this portion; the run counts from the beginning of the whole.
    cdef int64_t before = run.skip[0] * <int64_t>run.itemsize
    cdef int nin = 0 if passage.alias else passage.nin
    cdef Part* staged = passage.staged
    cdef int i
    run.base[0] = hetccl_ring_piece(passage.ring, passage.first + portion).memory - before
    run.base[1] = run.base[0] + nin * unit_nbytes
    run.unit_stride[0] = run.unit_stride[1] = length
    if staged != NULL:
        for i in range(passage.nin):
            staged[i].ptr = run.base[0] + i * unit_nbytes
        for i in range(passage.nout):
            staged[passage.nin + i].ptr = run.base[1] + i * unit_nbytes
        run.parts[0] = staged if passage.nin else NULL
        run.parts[1] = staged + passage.nin if passage.nout else NULL
    if passage.scale != NULL:
        scale(passage, run, unit_nbytes)


cdef void scale(Passage* passage, Run* run, int64_t unit_nbytes) noexcept nogil:
    cdef uint8_t* unit = run.base[0] + run.skip[0] * <int64_t>run.itemsize
    cdef int64_t count
    cdef int i
    for i in range(passage.nin):
        count = run.count
        if passage.staged != NULL:
            count = max(<int64_t>0, min(count, passage.staged[i].nbytes // <int64_t>run.itemsize - run.skip[0]))
        passage.scale(unit + i * unit_nbytes, unit + i * unit_nbytes, count, &passage.factor[0])
