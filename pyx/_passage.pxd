"""A call on GPU buffers as the engine sees it: portions in pinned memory, each with a gate and a word."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from hetccl._kernels cimport FACTOR_BYTES, hetccl_scale_fn
from hetccl._layout cimport Part
from hetccl._program cimport Run
from hetccl._shm cimport hetccl_rank_block_t


cdef extern from "hetccl/ring.h" nogil:
    enum:
        HETCCL_RING_PIECES

    ctypedef struct hetccl_ring_piece_t:
        hetccl_ring_t* ring
        uint8_t* memory
        size_t nbytes
        uint32_t* word
        void* word_on_device
        uint32_t gate
        void* arrived
        void* gone

    ctypedef struct hetccl_ring_t:
        hetccl_ring_piece_t* pieces           # HETCCL_RING_PIECES
        uint64_t ntaken
        hetccl_rank_block_t* bell
        int* lost

    hetccl_ring_piece_t* hetccl_ring_piece(hetccl_ring_t* ring, uint64_t use)
    uint32_t hetccl_ring_serial(uint64_t use)
    bint hetccl_ring_is_open(hetccl_ring_t* ring, uint64_t use)
    void hetccl_ring_complete(hetccl_ring_t* ring, uint64_t use)
    void hetccl_piece_arrive(void* piece)
    void hetccl_ring_mute(hetccl_ring_t* ring)
    void hetccl_ring_release(hetccl_ring_t* ring)


ctypedef struct Passage:                 # of a call on GPU memory, besides its Collective, with the GPU's pointers
    hetccl_ring_t* ring
    uint64_t first                       # the use of a piece that the first portion is; the others follow
    int64_t nportions
    int nin                              # units of IN and of OUT in a piece
    int nout
    int own                              # the unit of OUT that lies in its place already, or NO_UNIT
    bint returns                         # whether anything is copied from OUT to the GPU
    bint alias                           # IN's units are OUT's too
    Part* staged                         # owned: nin + nout parts of the portion at work; NULL: units alike
    hetccl_scale_fn scale                # what comes in is multiplied by `factor` first (premul_sum); else NULL
    uint8_t[FACTOR_BYTES] factor         # of the dtype

cdef enum:
    NO_UNIT = -1


# Whether the input of a portion has arrived.
cdef bint passage_is_open(const Passage* passage, int64_t portion) noexcept nogil
# Let the run work on a portion, of which a unit has `length` elements at most. run.skip and run.count are set.
cdef void passage_enter(Passage* passage, Run* run, int64_t portion, int64_t length) noexcept nogil
# Let the stream have a portion's result. Of the last one: nothing of the passage may be touched afterwards.
cdef void passage_complete(const Passage* passage, int64_t portion) noexcept nogil
