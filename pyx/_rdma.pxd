"""Rails over verbs as objects. C side: include/hetccl/verbs_port.h and rail_verbs.h."""

from libc.stdint cimport uint16_t, uint32_t, uint64_t

from hetccl._rail cimport Port, Rail, hetccl_mem_t, hetccl_port_t, hetccl_rail_ops_t, hetccl_rail_t, hetccl_write_t
from hetccl._rdma_device cimport OpenDevice, hetccl_verbs_device_t
from hetccl._runtime cimport hetccl_pointer_t, hetccl_runtime_t
from hetccl._verbs cimport hetccl_ibv_comp_channel_t, hetccl_ibv_cq_t, hetccl_ibv_port_attr_t, hetccl_ibv_qp_t

cdef extern from "hetccl/verbs_port.h" nogil:
    enum:
        HETCCL_VERBS_RECV_BATCH
        HETCCL_VERBS_MAX_CQS

    ctypedef struct hetccl_verbs_rail_t:
        hetccl_rail_t rail
        hetccl_verbs_port_t* port
        hetccl_ibv_qp_t* qp
        int cq
        uint64_t id
        uint32_t send_depth
        uint32_t recv_depth
        uint32_t max_inline
        uint32_t recv_due
        uint32_t recv_left
        uint64_t sends_left
        uint64_t flushed

    ctypedef struct hetccl_verbs_cq_t:
        hetccl_ibv_cq_t* cq
        int used

    ctypedef struct hetccl_verbs_port_t:
        hetccl_port_t port
        hetccl_rail_ops_t ops
        hetccl_verbs_device_t* device
        hetccl_ibv_comp_channel_t* channel
        int news_fd
        hetccl_verbs_cq_t cqs[256]
        int ncqs
        hetccl_verbs_rail_t** slots
        hetccl_verbs_rail_t* loop
        uint16_t* generations
        int nslots

    int hetccl_verbs_rail_post_recvs(hetccl_verbs_rail_t* vr, int all)
    int hetccl_verbs_port_poll(hetccl_port_t* port)
    int hetccl_verbs_port_arm(hetccl_port_t* port)
    int hetccl_verbs_port_add(hetccl_verbs_port_t* vp, hetccl_verbs_rail_t* vr, int most)
    void hetccl_verbs_port_remove(hetccl_verbs_port_t* vp, hetccl_verbs_rail_t* vr)
    int hetccl_verbs_port_open(hetccl_verbs_port_t* vp)
    void hetccl_verbs_port_close(hetccl_verbs_port_t* vp)


cdef extern from "hetccl/rail_verbs.h" nogil:
    int hetccl_verbs_rail_write(hetccl_rail_t* rail, const hetccl_write_t* write)
    int hetccl_verbs_rail_room(hetccl_rail_t* rail)
    int hetccl_verbs_rail_reg(hetccl_rail_t* rail, void* ptr, size_t nbytes, int whose, hetccl_mem_t* mem)
    void hetccl_verbs_rail_dereg(hetccl_rail_t* rail, hetccl_mem_t* mem)
    void hetccl_verbs_rail_stop(hetccl_rail_t* rail)
    int hetccl_verbs_rail_read(hetccl_rail_t* rail, const hetccl_write_t* write)
    int hetccl_verbs_rail_reg_device(hetccl_rail_t* rail, const hetccl_runtime_t* runtime,
                                     const hetccl_pointer_t* about, hetccl_mem_t* mem, int* why_p)
    hetccl_rail_t* hetccl_verbs_rail_loop(hetccl_rail_t* rail)
    void hetccl_verbs_rail_settle(hetccl_rail_t* rail)
    void hetccl_verbs_port_set_loop(hetccl_verbs_port_t* vp, hetccl_verbs_rail_t* loop)
    int hetccl_verbs_rail_drain(hetccl_verbs_rail_t* vr)
    void hetccl_verbs_rail_close(hetccl_verbs_rail_t* vr)


cdef class QueuePair(Rail)


cdef class RdmaPort(Port):
    cdef hetccl_verbs_port_t* state      # NULL once closed
    cdef OpenDevice opened
    cdef readonly dict card              # this rank's card of the rail
    cdef readonly dict settings
    cdef hetccl_ibv_port_attr_t attr
    cdef int owner_pid
    cdef int nlive                       # rails that are not closed
    cdef object loop_                    # weak reference to loop()'s rail, None: never made
    cdef int check(self) except -1
    cdef QueuePair loop_known(self)


cdef class QueuePair(Rail):
    cdef hetccl_verbs_rail_t* state      # NULL once closed
    cdef readonly RdmaPort port
    cdef readonly int peer
    cdef uint32_t psn                    # of what this end sends first
    cdef bint is_loop                    # to itself: see RdmaPort.loop()

    cdef hetccl_verbs_rail_t* opened(self) except NULL
    cdef int failed(self, str call, int error) except -1
