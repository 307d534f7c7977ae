"""The shared-memory segment of one communicator, and its links. C side: include/hetccl/shm.h and shm_link.h."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t

from hetccl._layout cimport hetccl_layout_t


cdef extern from "hetccl/transport.h" nogil:
    enum:
        HETCCL_MOVED
        HETCCL_DONE
        HETCCL_AGAIN
        HETCCL_EPEER
        HETCCL_ELENGTH
        HETCCL_ESYSTEM
        HETCCL_ENOMEM
        HETCCL_EBROKEN
        HETCCL_ETAG
        HETCCL_EDIRECT
        HETCCL_MSG_NEW
        HETCCL_MSG_POSTED
        HETCCL_MSG_STREAM
        HETCCL_MSG_SYNC
        HETCCL_MSG_PAST_CACHE
        HETCCL_MSG_ALL_DEVICES

    ctypedef struct hetccl_device_memory_t:
        const void* runtime              # hetccl_runtime_t
        uintptr_t address

    ctypedef struct hetccl_msg_t:
        uint8_t* ptr
        const hetccl_layout_t* layout
        size_t skip
        size_t nbytes
        size_t done
        size_t cell_done
        uint32_t tag
        uint32_t flags
        int32_t state
        int32_t slot
        int32_t error
        hetccl_device_memory_t device    # with a runtime: ptr and layout are NULL

    ctypedef struct hetccl_header_t:
        size_t nbytes
        size_t hold_nbytes
        uint32_t tag

    ctypedef struct hetccl_aside_t:
        uint8_t* buffer
        size_t nbytes
        size_t done
        uint64_t address
        uint32_t tag
        int32_t slot

    ctypedef struct hetccl_transport_t:
        const char* name
        int (*send)(void* link, hetccl_msg_t* msg) noexcept nogil
        int (*recv)(void* link, hetccl_msg_t* msg) noexcept nogil
        int64_t (*available)(void* link, hetccl_msg_t* msg) noexcept nogil
        const void* (*fetch)(void* link, hetccl_msg_t* msg, size_t nbytes, void* scratch) noexcept nogil
        void (*consume)(void* link, hetccl_msg_t* msg, size_t nbytes) noexcept nogil
        int (*peek)(void* link, hetccl_header_t* header_p) noexcept nogil
        int (*set_aside)(void* link, hetccl_aside_t* aside) noexcept nogil
        int (*recv_aside)(void* link, hetccl_aside_t* aside, hetccl_msg_t* msg) noexcept nogil


cdef extern from "hetccl/process.h" nogil:
    int64_t hetccl_now_ns()
    uint64_t hetccl_process_start_ticks(int64_t pid)
    uint64_t HETCCL_TICKS_UNKNOWN


cdef extern from "hetccl/shm.h" nogil:
    enum:
        HETCCL_SHM_SECRET_BYTES
        HETCCL_CACHE_LINE
        HETCCL_RANK_ALIVE
        HETCCL_RANK_FREED
        HETCCL_RANK_DEAD
        HETCCL_REASON_DEAD
        HETCCL_REASON_LEFT
        HETCCL_REASON_TIMEOUT
        HETCCL_REASON_FREED
        HETCCL_REASON_NETWORK
    uint64_t HETCCL_SHM_MAGIC

    ctypedef struct hetccl_rank_block_t:
        uint32_t bell
        uint32_t sleepers
        uint64_t entered
        uint32_t call
        uint32_t state
        uint64_t pid
        uint64_t start_ticks
        uint64_t probe_address

    ctypedef struct hetccl_shm_header_t:
        uint64_t magic
        uint8_t* secret
        uint32_t nranks
        uint32_t ncells
        uint64_t cell_bytes
        uint64_t total_bytes
        uint64_t fault

    size_t hetccl_shm_blocks_at()
    size_t hetccl_shm_tails_at(size_t nranks)
    size_t hetccl_shm_acks_at(size_t nranks)
    size_t hetccl_shm_readable_at(size_t nranks)
    size_t hetccl_shm_cells_at(size_t nranks)
    size_t hetccl_shm_total(size_t nranks, size_t ncells, size_t cell_bytes)
    void hetccl_bell_ring(hetccl_rank_block_t* block)
    uint32_t hetccl_bell_now(hetccl_rank_block_t* block)
    uint32_t hetccl_bell_arm(hetccl_rank_block_t* block)
    void hetccl_bell_sleep(hetccl_rank_block_t* block, uint32_t bell, int64_t timeout_ns)
    void hetccl_bell_disarm(hetccl_rank_block_t* block)
    uint64_t HETCCL_FAULT(int reason, int reporter, int culprit)
    int HETCCL_FAULT_REASON(uint64_t fault)
    int HETCCL_FAULT_REPORTER(uint64_t fault)
    int HETCCL_FAULT_CULPRIT(uint64_t fault)


cdef extern from "hetccl/shm_link.h" nogil:
    const hetccl_transport_t hetccl_shm_transport

    ctypedef struct hetccl_shm_link_t:
        uint8_t* cells
        size_t cell_bytes
        uint64_t ncells
        uint64_t* tail
        uint64_t* acks
        size_t eager_max
        hetccl_rank_block_t* peer_block
        int32_t peer_pid
        int32_t own_pid

    int hetccl_shm_read_peer(hetccl_shm_link_t* link, hetccl_msg_t* msg, void* dst, uint64_t address, size_t nbytes)


# Two classes of traffic with rings of their own, so that a Send never stands in the way of a collective.
cdef enum:
    COLLECTIVE = 0
    POINT_TO_POINT = 1


cdef class Segment:
    cdef object __weakref__
    cdef readonly int rank
    cdef readonly int nranks
    cdef uint8_t* base                   # NULL once closed
    cdef size_t nbytes
    cdef hetccl_shm_header_t* header
    cdef hetccl_rank_block_t* blocks     # nranks of them
    cdef hetccl_shm_link_t* links        # [class][send 0 | receive 1][peer]
    cdef uint64_t probe_word             # peers try to read it
    cdef long owner_pid

    cdef hetccl_shm_link_t* link(self, int traffic, bint receive, int peer) noexcept nogil
    # fault: HETCCL_FAULT, of ranks of the communicator
    cdef void raise_fault(self, uint64_t fault) noexcept nogil
    cdef bint is_gone(self, int peer) noexcept nogil
