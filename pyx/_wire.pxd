"""The peers of one communicator that are reached over a network. C side: include/hetccl/wire.h and wire_link.h."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from hetccl._mutex cimport hetccl_mutex_t
from hetccl._rail cimport hetccl_port_t, hetccl_rail_t
from hetccl._shm cimport hetccl_rank_block_t, hetccl_transport_t


cdef extern from "hetccl/wire_link.h" nogil:
    const hetccl_transport_t hetccl_wire_transport

    ctypedef struct hetccl_wire_link_t:
        pass

    ctypedef struct hetccl_wire_peer_t:
        int rank


cdef class Wire:
    cdef object __weakref__
    cdef readonly int rank
    cdef readonly int nranks
    cdef readonly int wake_fd            # eventfd: readable when the connector has something to do
    cdef hetccl_mutex_t* mutex           # the engine's, once it has taken the wire over; NULL before
    cdef hetccl_rank_block_t* bell       # this rank's, likewise
    cdef hetccl_wire_peer_t* peers       # nranks of them

    # The engine takes the wire over; the mutex guards everything from now on.
    cdef void adopt(self, hetccl_mutex_t* mutex, hetccl_rank_block_t* bell) noexcept
    # State of a link for hetccl_wire_transport. traffic: COLLECTIVE or POINT_TO_POINT.
    cdef void* link(self, int traffic, bint receive, int peer) noexcept nogil
    # Take in what has come on all ports: HETCCL_MOVED or HETCCL_AGAIN. Under the mutex.
    cdef int poll(self) noexcept nogil
    # Before a sleep on the bell, which rings from now on when something comes: MOVED: poll first, or DONE.
    cdef int arm(self) noexcept nogil
    # Ask the connector to connect this peer, if it is not connected.
    cdef void want(self, int peer) noexcept nogil
    # Wake the connector: it has a fault to tell the peers.
    cdef void wake(self) noexcept nogil
