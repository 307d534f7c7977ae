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
        hetccl_ring_t* next
        hetccl_ring_piece_t* pieces           # HETCCL_RING_PIECES
        uint64_t ntaken
        hetccl_rank_block_t* bell
        int* lost
        int taken

    hetccl_ring_piece_t* hetccl_ring_piece(hetccl_ring_t* ring, uint64_t use)
    uint32_t hetccl_ring_serial(uint64_t use)
    bint hetccl_ring_is_open(hetccl_ring_t* ring, uint64_t use)
    uint32_t hetccl_ring_gate(hetccl_ring_t* ring, int place)
    void hetccl_ring_complete(hetccl_ring_t* ring, uint64_t use)
    void hetccl_piece_arrive(void* piece)
    void hetccl_ring_mute(hetccl_ring_t* ring)
    void hetccl_ring_release(hetccl_ring_t* ring)

    int64_t hetccl_portion_length(int64_t number)
    int64_t hetccl_portion_begin(int64_t number)
    int64_t hetccl_portions(int64_t count, int64_t first)


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


ctypedef struct Transit:                 # of a message in GPU memory, besides its Message
    hetccl_ring_t* ring
    uint64_t first                       # the use of a piece that the first portion is, piece 0's; the others follow
    uint32_t[4] gates                    # how often each piece's gate had been opened before
    bint sending
    int64_t nportions
    size_t portion                       # bytes, but in the last
    size_t nbytes                        # that are sent, or that must come
    bint open_length                     # to receive: nothing is queued yet, so that less may come as well
    bint queued                          # a stream has the copies


# Where a byte of the message lies in pinned memory, with those of its portion.
cdef inline uint8_t* transit_place(const Transit* transit, size_t at) noexcept nogil:
    return hetccl_ring_piece(transit.ring, transit.first + at // transit.portion).memory + at % transit.portion


# Whether that memory may be used: what is sent has come, or what was received there before has gone.
cdef inline bint transit_is_open(const Transit* transit, size_t at) noexcept nogil:
    cdef uint64_t number = at // transit.portion
    cdef int place = number % HETCCL_RING_PIECES
    cdef uint32_t opened = hetccl_ring_gate(transit.ring, place) - transit.gates[place]
    return opened >= <uint32_t>(number // HETCCL_RING_PIECES + transit.sending)


# Let the stream have a portion that was received, or its memory back.
cdef inline void transit_complete(const Transit* transit, size_t at) noexcept nogil:
    hetccl_ring_complete(transit.ring, transit.first + at // transit.portion)


# Whether the input of a portion has arrived.
cdef bint passage_is_open(const Passage* passage, int64_t portion) noexcept nogil
# Let the run work on a portion, of which a unit has `length` elements at most. run.skip and run.count are set.
cdef void passage_enter(Passage* passage, Run* run, int64_t portion, int64_t length) noexcept nogil
# Let the stream have a portion's result. Of the last one: nothing of the passage may be touched afterwards.
cdef void passage_complete(const Passage* passage, int64_t portion) noexcept nogil
