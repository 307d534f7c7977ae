"""One peer of a wire. C side: include/hetccl/wire_peer.h, where the state is, and wire_link.h."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t, uintptr_t

from hetccl._rail cimport hetccl_rail_t
from hetccl._runtime cimport hetccl_runtime_t
from hetccl._shm cimport hetccl_transport_t


cdef extern from "hetccl/wire.h" nogil:
    enum:
        HETCCL_WIRE_CLASSES
        HETCCL_WIRE_CTS_MAX
        HETCCL_WIRE_CELLS_MIN
        HETCCL_WIRE_CELLS_MAX
        HETCCL_WIRE_CELL_BYTES_MIN
        HETCCL_WIRE_CELL_BYTES_MAX
        HETCCL_WIRE_CELL_UNIT

    ctypedef struct hetccl_wire_shape_t:
        uint32_t ncells
        uint32_t cell_bytes

    bint hetccl_wire_shape_is_good(const hetccl_wire_shape_t* shape)
    size_t hetccl_wire_inbox_bytes(const hetccl_wire_shape_t* shape)
    size_t hetccl_wire_payload_bytes(const hetccl_wire_shape_t* shape)


cdef extern from "hetccl/wire_link.h" nogil:
    const hetccl_transport_t hetccl_wire_transport

    enum:
        HETCCL_WIRE_NOWHERE
        HETCCL_WIRE_CHUNKS_MAX
        HETCCL_WIRE_UNCONNECTED
        HETCCL_WIRE_WANTED
        HETCCL_WIRE_CONNECTING
        HETCCL_WIRE_READY
        HETCCL_WIRE_UP
        HETCCL_WIRE_LOST
        HETCCL_WIRE_FAILED

    ctypedef struct hetccl_wire_t:
        hetccl_wire_shape_t shape
        uint32_t chunk_bytes
        uint32_t nchunks
        size_t cut_bytes
        uint32_t first
        int wake_fd

    ctypedef struct hetccl_wire_counters_t:
        uint64_t eager
        uint64_t rts
        uint64_t cts
        uint64_t credits
        uint64_t direct_out
        uint64_t staged_out
        uint64_t direct_in
        uint64_t landed_in
        uint64_t gathered_out
        uint64_t carried_in
        uint64_t flushes
        uint64_t read_backs
        uint64_t* writes                 # HETCCL_RAILS
        uint64_t* bytes

    ctypedef struct hetccl_wire_tables_t:
        hetccl_wire_counters_t counters

    ctypedef struct hetccl_wire_link_t:
        pass

    ctypedef struct hetccl_wire_peer_t:
        int rank
        int32_t state                    # HETCCL_WIRE_...
        hetccl_wire_link_t[2][2] links   # [class][send 0 | receive 1]
        hetccl_rail_t** rails            # HETCCL_RAILS; NULL: none, or closed
        int32_t nrails
        int32_t carrier
        uint32_t failed                  # bits of rails: nothing is sent until they are resumed
        uint32_t untold                  # bits of those that the connector has not heard of; it clears them
        uint8_t* own
        size_t own_nbytes
        hetccl_wire_tables_t* tables     # NULL while there is no connection

    ctypedef struct hetccl_wire_open_t:
        uint32_t position
        uint32_t parts
        uint32_t mask

    ctypedef struct hetccl_wire_arrived_t:
        uint32_t[2] cells
        uint32_t[2] cts
        uint32_t[2] nopen
        hetccl_wire_open_t[2][64] open   # [class][HETCCL_WIRE_CTS_MAX]

    int hetccl_wire_direct(hetccl_wire_peer_t* peer, const hetccl_runtime_t* runtime, uintptr_t address, size_t nbytes,
                           uint32_t flags, int* rail_p)
    void hetccl_wire_peer_init(hetccl_wire_peer_t* peer, hetccl_wire_t* wire, int rank)
    int hetccl_wire_peer_open(hetccl_wire_peer_t* peer, hetccl_rail_t** rails, int nrails, int* rail_p)
    uint64_t hetccl_wire_peer_address(const hetccl_wire_peer_t* peer)
    uint32_t hetccl_wire_peer_rkey(const hetccl_wire_peer_t* peer, int rail)
    int hetccl_wire_peer_attach(hetccl_wire_peer_t* peer, uint64_t address, const hetccl_wire_shape_t* shape,
                                const uint32_t* rkeys, int* rail_p)
    void hetccl_wire_peer_go(hetccl_wire_peer_t* peer)
    void hetccl_wire_peer_close(hetccl_wire_peer_t* peer)
    void hetccl_wire_want(hetccl_wire_peer_t* peer)
    int hetccl_wire_peer_poll(hetccl_wire_peer_t* peer)
    bint hetccl_wire_peer_is_idle(hetccl_wire_peer_t* peer)
    void hetccl_wire_peer_close_rail(hetccl_wire_peer_t* peer, int rail, hetccl_wire_arrived_t* arrived_p)
    int hetccl_wire_peer_resume(hetccl_wire_peer_t* peer, int rail, const hetccl_wire_arrived_t* got)
    void hetccl_wire_peer_end(hetccl_wire_peer_t* peer, int state)
    void hetccl_wire_peer_quiet(hetccl_wire_peer_t* peer)
    void hetccl_wire_wake(const hetccl_wire_t* wire)
