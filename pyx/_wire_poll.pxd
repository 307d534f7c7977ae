"""What the engine polls for the peers that are reached over a network. C side: wire_link.h, wire_watch.h."""

from hetccl._mutex cimport hetccl_mutex_t
from hetccl._rail cimport hetccl_port_t
from hetccl._shm cimport hetccl_rank_block_t
from hetccl._wire_peer cimport hetccl_wire_peer_t, hetccl_wire_t


cdef extern from "hetccl/wire_watch.h" nogil:
    enum:
        HETCCL_WIRE_PORTS

    ctypedef struct hetccl_wire_watch_t:
        hetccl_port_t* ports[HETCCL_WIRE_PORTS]
        int nports
        int running
        hetccl_rank_block_t* bell

    int hetccl_wire_watch_open(hetccl_wire_watch_t* watch)
    int hetccl_wire_watch_add(hetccl_wire_watch_t* watch, hetccl_port_t* port)
    int hetccl_wire_watch_arm(hetccl_wire_watch_t* watch)
    void hetccl_wire_watch_stop(hetccl_wire_watch_t* watch)
    void hetccl_wire_watch_close(hetccl_wire_watch_t* watch)
    void hetccl_wire_watch_forget(hetccl_wire_watch_t* watch)


cdef class Polled:
    cdef readonly int rank
    cdef readonly int nranks
    cdef readonly int wake_fd            # eventfd: readable when the connector has something to do; -1 once closed
    cdef hetccl_mutex_t* mutex           # guards the C structs: own_mutex, or the engine's
    cdef hetccl_mutex_t own_mutex
    cdef hetccl_rank_block_t* bell       # own_bell, or this rank's
    cdef hetccl_rank_block_t own_bell
    cdef hetccl_wire_t shared            # what the peers' C structs share
    cdef hetccl_wire_peer_t* peers       # nranks of them
    cdef int* live                       # ranks of those that are polled: READY or UP
    cdef int nlive
    cdef int turn                        # which of them is looked after next
    cdef hetccl_wire_watch_t watch       # and the ports
    cdef int owner_pid
    cdef bint closed

    # The engine takes the wire over: from now on its mutex guards everything, and `bell`, this rank's, is rung.
    cdef void adopt(self, hetccl_mutex_t* mutex, hetccl_rank_block_t* bell) noexcept
    # The reverse, before mutex and bell go: the engine polls no more.
    cdef void disown(self) noexcept
    # State of a link for hetccl_wire_transport. traffic: COLLECTIVE or POINT_TO_POINT.
    cdef void* link(self, int traffic, bint receive, int peer) noexcept nogil
    # The rest under the mutex. Take in what has come on all ports: HETCCL_MOVED or HETCCL_AGAIN.
    cdef int poll(self) noexcept nogil
    # Before a sleep on the bell, which rings from now on when something comes: MOVED: poll first, or DONE.
    cdef int arm(self) noexcept nogil
    # 0, or with what the traffic with this peer ends: HETCCL_EPEER or HETCCL_ENETWORK.
    cdef int status(self, int peer) noexcept nogil
    # Whether something that was sent leaves this host only while poll() is called.
    cdef bint is_busy(self) noexcept nogil
    # The communicator is broken: from now on no memory of the user's is read or written.
    cdef void quiet(self) noexcept nogil
    # Ask the connector to connect this peer, if it is not connected.
    cdef void want(self, int peer) noexcept nogil
    # Wake the connector: it has a fault to tell the peers.
    cdef void wake(self) noexcept nogil

    cdef void lock(self) noexcept nogil
    cdef void unlock(self) noexcept nogil
    cdef void move_to(self, hetccl_mutex_t* mutex, hetccl_rank_block_t* bell) noexcept nogil
    cdef int poll_ports(self) noexcept nogil
    cdef void add_live(self, int peer) noexcept nogil
    cdef void drop_live(self, int peer) noexcept nogil
    cdef bint is_idle(self) noexcept nogil
    cdef void give_back(self) noexcept nogil


# Polled.arm(), as Progress.listen.
cdef int wire_listen(void* polled) noexcept nogil
