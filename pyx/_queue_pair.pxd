"""What is made of an RDMA device: domains, registrations, completion queues, queue pairs."""

from hetccl._verbs cimport (
    Device, hetccl_ibv_comp_channel_t, hetccl_ibv_cq_t, hetccl_ibv_mr_t, hetccl_ibv_pd_t, hetccl_ibv_qp_attr_t,
    hetccl_ibv_qp_cap_t, hetccl_ibv_qp_t, hetccl_verbs_t,
)

# Each holds its parents, which count it in nlive; its C handle is NULL once it is closed.


cdef class ProtectionDomain:
    cdef const hetccl_verbs_t* table
    cdef readonly Device device
    cdef hetccl_ibv_pd_t* pd
    cdef int nlive

    cdef hetccl_ibv_pd_t* opened(self) except NULL


cdef class MemoryRegion:
    cdef ProtectionDomain domain
    cdef hetccl_ibv_mr_t* mr

    cdef hetccl_ibv_mr_t* opened(self) except NULL


cdef class CompletionChannel:
    cdef readonly Device device
    cdef hetccl_ibv_comp_channel_t* channel
    cdef int nlive


cdef class CompletionQueue:
    cdef readonly Device device
    cdef CompletionChannel channel       # None: completions are polled for only
    cdef hetccl_ibv_cq_t* cq
    cdef unsigned nevents                # taken by get_cq_event and not acknowledged: they would block close()
    cdef int nlive

    cdef hetccl_ibv_cq_t* opened(self) except NULL


cdef class QueuePair:
    cdef readonly ProtectionDomain domain
    cdef readonly CompletionQueue send_cq
    cdef readonly CompletionQueue recv_cq
    cdef hetccl_ibv_qp_t* qp
    cdef hetccl_ibv_qp_cap_t cap         # as the device gave it
    cdef int port                        # of the messages; 0 before to_init()

    cdef hetccl_ibv_qp_t* opened(self) except NULL
    # Raise VerbsError unless the device takes the attributes. what: "to RTR".
    cdef int modify(self, hetccl_ibv_qp_attr_t* attr, int mask, str what) except -1
