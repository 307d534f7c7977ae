"""Rails over TCP. C side: include/hetccl/rail_tcp.h."""

from libc.stdint cimport uint64_t

from hetccl._rail cimport Port, Rail, hetccl_port_t, hetccl_rail_t


cdef extern from "hetccl/rail_tcp.h" nogil:
    enum:
        HETCCL_TCP_VERSION
        HETCCL_TCP_CONNECTIONS

    ctypedef struct hetccl_tcp_port_t:
        hetccl_port_t base

    ctypedef struct hetccl_tcp_rail_t:
        hetccl_rail_t base
        uint64_t sent_nbytes
        uint64_t received_nbytes

    int hetccl_tcp_port_open(hetccl_tcp_port_t* port)
    void hetccl_tcp_port_close(hetccl_tcp_port_t* port)
    void hetccl_tcp_rail_open(hetccl_tcp_rail_t* rail, hetccl_tcp_port_t* port, int index)
    int hetccl_tcp_rail_connect(hetccl_tcp_rail_t* rail, const int* fds, int nfds)
    void hetccl_tcp_rail_close(hetccl_tcp_rail_t* rail)
    void hetccl_tcp_rail_forget(hetccl_tcp_rail_t* rail)


cdef class TcpPort(Port):
    cdef hetccl_tcp_port_t* tcp          # NULL once closed
    cdef int owner_pid
    cdef int nrails                      # not closed
    cdef double timeout_s


cdef class TcpRail(Rail):
    cdef readonly TcpPort port_
    cdef hetccl_tcp_rail_t* tcp          # NULL once closed
    cdef str where
    cdef str last_fault

    cdef void release(self) noexcept
