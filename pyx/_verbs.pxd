"""libibverbs: its table, errors and devices. C side: include/hetccl/verbs.h and verbs_abi.h."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t

from hetccl._dl cimport Library

cdef extern from "hetccl/verbs_abi.h" nogil:
    enum:
        HETCCL_IBV_NODE_CA
        HETCCL_IBV_NODE_RNIC
        HETCCL_IBV_TRANSPORT_IB
        HETCCL_IBV_PORT_ACTIVE
        HETCCL_IBV_LINK_LAYER_ETHERNET
        HETCCL_IBV_GID_TYPE_IB
        HETCCL_IBV_GID_TYPE_ROCE_V1
        HETCCL_IBV_GID_TYPE_ROCE_V2
        HETCCL_IBV_ACCESS_LOCAL_WRITE
        HETCCL_IBV_ACCESS_REMOTE_WRITE
        HETCCL_IBV_ACCESS_REMOTE_READ
        HETCCL_IBV_ACCESS_RELAXED_ORDERING
        HETCCL_IBV_QPT_RC
        HETCCL_IBV_QPS_RESET
        HETCCL_IBV_QPS_INIT
        HETCCL_IBV_QPS_RTR
        HETCCL_IBV_QPS_RTS
        HETCCL_IBV_QPS_ERR
        HETCCL_IBV_QP_STATE
        HETCCL_IBV_QP_ACCESS_FLAGS
        HETCCL_IBV_QP_PKEY_INDEX
        HETCCL_IBV_QP_PORT
        HETCCL_IBV_QP_AV
        HETCCL_IBV_QP_PATH_MTU
        HETCCL_IBV_QP_TIMEOUT
        HETCCL_IBV_QP_RETRY_CNT
        HETCCL_IBV_QP_RNR_RETRY
        HETCCL_IBV_QP_RQ_PSN
        HETCCL_IBV_QP_MAX_QP_RD_ATOMIC
        HETCCL_IBV_QP_MIN_RNR_TIMER
        HETCCL_IBV_QP_SQ_PSN
        HETCCL_IBV_QP_MAX_DEST_RD_ATOMIC
        HETCCL_IBV_QP_CAP
        HETCCL_IBV_QP_DEST_QPN
        HETCCL_IBV_WC_SUCCESS
        HETCCL_IBV_WC_GENERAL_ERR
        HETCCL_IBV_FORK_DISABLED
        HETCCL_IBV_FORK_ENABLED
        HETCCL_IBV_FORK_UNNEEDED

    ctypedef union hetccl_ibv_gid_t:
        uint8_t raw[16]
        uint64_t half[2]

    ctypedef struct hetccl_ibv_gid_entry_t:
        hetccl_ibv_gid_t gid
        uint32_t gid_index
        uint32_t port_num
        uint32_t gid_type
        uint32_t ndev_ifindex

    ctypedef struct hetccl_ibv_device_t:
        int32_t node_type
        int32_t transport_type
        char* name
        char* dev_name
        char* ibdev_path

    ctypedef struct hetccl_ibv_context_t:
        hetccl_ibv_device_t* device
        int32_t cmd_fd
        int32_t async_fd
        int32_t num_comp_vectors

    ctypedef struct hetccl_ibv_pd_t:
        hetccl_ibv_context_t* context

    ctypedef struct hetccl_ibv_mr_t:
        void* addr
        size_t length
        uint32_t lkey
        uint32_t rkey

    ctypedef struct hetccl_ibv_comp_channel_t:
        int32_t fd

    ctypedef struct hetccl_ibv_cq_t:
        hetccl_ibv_context_t* context
        int32_t cqe

    ctypedef struct hetccl_ibv_qp_t:
        hetccl_ibv_context_t* context
        uint32_t qp_num
        int32_t state

    ctypedef struct hetccl_ibv_qp_cap_t:
        uint32_t max_send_wr
        uint32_t max_recv_wr
        uint32_t max_send_sge
        uint32_t max_recv_sge
        uint32_t max_inline_data

    ctypedef struct hetccl_ibv_qp_init_attr_t:
        void* qp_context
        hetccl_ibv_cq_t* send_cq
        hetccl_ibv_cq_t* recv_cq
        hetccl_ibv_qp_cap_t cap
        int32_t qp_type
        int32_t sq_sig_all

    ctypedef struct hetccl_ibv_global_route_t:
        hetccl_ibv_gid_t dgid
        uint32_t flow_label
        uint8_t sgid_index
        uint8_t hop_limit
        uint8_t traffic_class

    ctypedef struct hetccl_ibv_ah_attr_t:
        hetccl_ibv_global_route_t grh
        uint16_t dlid
        uint8_t sl
        uint8_t src_path_bits
        uint8_t static_rate
        uint8_t is_global
        uint8_t port_num

    ctypedef struct hetccl_ibv_qp_attr_t:
        int32_t qp_state
        int32_t path_mtu
        uint32_t rq_psn
        uint32_t sq_psn
        uint32_t dest_qp_num
        uint32_t qp_access_flags
        hetccl_ibv_qp_cap_t cap
        hetccl_ibv_ah_attr_t ah_attr
        uint16_t pkey_index
        uint8_t max_rd_atomic
        uint8_t max_dest_rd_atomic
        uint8_t min_rnr_timer
        uint8_t port_num
        uint8_t timeout
        uint8_t retry_cnt
        uint8_t rnr_retry

    ctypedef struct hetccl_ibv_port_attr_t:
        int32_t state
        int32_t max_mtu
        int32_t active_mtu
        int32_t gid_tbl_len
        uint32_t max_msg_sz
        uint16_t pkey_tbl_len
        uint16_t lid
        uint16_t sm_lid
        uint8_t lmc
        uint8_t active_width
        uint8_t active_speed
        uint8_t link_layer

    ctypedef struct hetccl_ibv_device_attr_t:
        char* fw_ver
        uint64_t node_guid
        int32_t max_qp
        int32_t max_qp_wr
        int32_t max_sge
        int32_t max_cqe
        int32_t max_mr
        int32_t max_qp_rd_atom
        uint8_t phys_port_cnt

    ctypedef union hetccl_ibv_async_element_t:
        hetccl_ibv_cq_t* cq
        hetccl_ibv_qp_t* qp
        int32_t port_num

    ctypedef struct hetccl_ibv_async_event_t:
        hetccl_ibv_async_element_t element
        int32_t event_type


cdef extern from "hetccl/verbs.h" nogil:
    ctypedef struct hetccl_verbs_t:
        hetccl_ibv_device_t** (*get_device_list)(int* count) noexcept nogil
        void (*free_device_list)(hetccl_ibv_device_t** list) noexcept nogil
        const char* (*get_device_name)(hetccl_ibv_device_t* device) noexcept nogil
        uint64_t (*get_device_guid)(hetccl_ibv_device_t* device) noexcept nogil
        hetccl_ibv_context_t* (*open_device)(hetccl_ibv_device_t* device) noexcept nogil
        int (*close_device)(hetccl_ibv_context_t* context) noexcept nogil
        int (*query_device)(hetccl_ibv_context_t* context, hetccl_ibv_device_attr_t* attr) noexcept nogil
        int (*query_port)(hetccl_ibv_context_t* context, uint8_t port, hetccl_ibv_port_attr_t* attr) noexcept nogil
        int (*query_gid)(
            hetccl_ibv_context_t* context, uint8_t port, int index, hetccl_ibv_gid_t* gid) noexcept nogil
        ssize_t (*query_gid_table)(
            hetccl_ibv_context_t* context, hetccl_ibv_gid_entry_t* entries, size_t nentries, uint32_t flags,
            size_t entry_nbytes) noexcept nogil
        hetccl_ibv_pd_t* (*alloc_pd)(hetccl_ibv_context_t* context) noexcept nogil
        int (*dealloc_pd)(hetccl_ibv_pd_t* pd) noexcept nogil
        hetccl_ibv_mr_t* (*reg_mr)(hetccl_ibv_pd_t* pd, void* ptr, size_t nbytes, int access) noexcept nogil
        hetccl_ibv_mr_t* (*reg_dmabuf_mr)(
            hetccl_ibv_pd_t* pd, uint64_t offset, size_t nbytes, uint64_t iova, int fd, int access) noexcept nogil
        int (*dereg_mr)(hetccl_ibv_mr_t* mr) noexcept nogil
        hetccl_ibv_comp_channel_t* (*create_comp_channel)(hetccl_ibv_context_t* context) noexcept nogil
        int (*destroy_comp_channel)(hetccl_ibv_comp_channel_t* channel) noexcept nogil
        hetccl_ibv_cq_t* (*create_cq)(
            hetccl_ibv_context_t* context, int cqe, void* cq_context, hetccl_ibv_comp_channel_t* channel,
            int comp_vector) noexcept nogil
        int (*resize_cq)(hetccl_ibv_cq_t* cq, int cqe) noexcept nogil
        int (*destroy_cq)(hetccl_ibv_cq_t* cq) noexcept nogil
        int (*get_cq_event)(
            hetccl_ibv_comp_channel_t* channel, hetccl_ibv_cq_t** cq, void** cq_context) noexcept nogil
        void (*ack_cq_events)(hetccl_ibv_cq_t* cq, unsigned nevents) noexcept nogil
        hetccl_ibv_qp_t* (*create_qp)(hetccl_ibv_pd_t* pd, hetccl_ibv_qp_init_attr_t* attr) noexcept nogil
        int (*modify_qp)(hetccl_ibv_qp_t* qp, hetccl_ibv_qp_attr_t* attr, int attr_mask) noexcept nogil
        int (*query_qp)(
            hetccl_ibv_qp_t* qp, hetccl_ibv_qp_attr_t* attr, int attr_mask,
            hetccl_ibv_qp_init_attr_t* init_attr) noexcept nogil
        int (*destroy_qp)(hetccl_ibv_qp_t* qp) noexcept nogil
        int (*get_async_event)(hetccl_ibv_context_t* context, hetccl_ibv_async_event_t* event) noexcept nogil
        void (*ack_async_event)(hetccl_ibv_async_event_t* event) noexcept nogil
        int (*fork_init)() noexcept nogil
        int (*is_fork_initialized)() noexcept nogil

    ctypedef struct hetccl_verbs_symbol_t:
        const char* slot
        const char* name
        const char* version
        size_t offset
        int needed

    const hetccl_verbs_symbol_t* hetccl_verbs_symbols
    enum:
        HETCCL_VERBS_NSYMBOLS
    int hetccl_verbs_errno(int rc)


cdef class Verbs:                        # one per process; its table lives as long as the process
    cdef const hetccl_verbs_t* table
    cdef readonly Library library
    cdef readonly bint fork_safe         # a child process does not disturb registered memory
    cdef readonly str fork               # why, in words


cdef class Device:
    cdef Verbs verbs
    cdef hetccl_ibv_context_t* context   # NULL once closed
    cdef readonly str name

    # The context, or ValueError if it is closed.
    cdef hetccl_ibv_context_t* opened(self) except NULL


# The library of this process, opened on first use; override counts then only.
cdef Verbs verbs_open(str override)
