/* The part of libibverbs' binary interface that hetccl uses (layer L1): structs that both sides read, and numbers.
 * Declared by hand, so that hetccl is compiled where no verbs header is and runs where no library is. The interface is
 * the one of symbol versions IBVERBS_1.0 to IBVERBS_1.13 on 64-bit Linux, which has kept its layout since 2008 (structs
 * grow at the end). tests/unit/test_verbs_abi.py compares every size, offset and number below with the system's header.
 * Structs that the library alone makes are declared as far as hetccl reads them: only pointers to them are used. */
#ifndef HETCCL_VERBS_ABI_H
#define HETCCL_VERBS_ABI_H

#include <stddef.h>
#include <stdint.h>

enum hetccl_ibv_node { HETCCL_IBV_NODE_CA = 1, HETCCL_IBV_NODE_RNIC = 4 };

enum hetccl_ibv_transport { HETCCL_IBV_TRANSPORT_IB = 0, HETCCL_IBV_TRANSPORT_IWARP = 1 };

enum hetccl_ibv_port_state {
    HETCCL_IBV_PORT_NOP = 0,
    HETCCL_IBV_PORT_DOWN = 1,
    HETCCL_IBV_PORT_INIT = 2,
    HETCCL_IBV_PORT_ARMED = 3,
    HETCCL_IBV_PORT_ACTIVE = 4,
    HETCCL_IBV_PORT_ACTIVE_DEFER = 5
};

enum hetccl_ibv_link_layer {
    HETCCL_IBV_LINK_LAYER_UNSPECIFIED = 0, /* InfiniBand, to old drivers */
    HETCCL_IBV_LINK_LAYER_INFINIBAND = 1,
    HETCCL_IBV_LINK_LAYER_ETHERNET = 2
};

/* Bytes of payload are 128 << value. */
enum hetccl_ibv_mtu { HETCCL_IBV_MTU_256 = 1, HETCCL_IBV_MTU_4096 = 5 };

enum hetccl_ibv_gid_type { /* of hetccl_ibv_gid_entry_t */
    HETCCL_IBV_GID_TYPE_IB = 0,
    HETCCL_IBV_GID_TYPE_ROCE_V1 = 1,
    HETCCL_IBV_GID_TYPE_ROCE_V2 = 2
};

enum hetccl_ibv_access {
    HETCCL_IBV_ACCESS_LOCAL_WRITE = 1,
    HETCCL_IBV_ACCESS_REMOTE_WRITE = 2,
    HETCCL_IBV_ACCESS_REMOTE_READ = 4,
    HETCCL_IBV_ACCESS_RELAXED_ORDERING = 1 << 20
};

enum hetccl_ibv_qp_type { HETCCL_IBV_QPT_RC = 2 };

enum hetccl_ibv_qp_state {
    HETCCL_IBV_QPS_RESET = 0,
    HETCCL_IBV_QPS_INIT = 1,
    HETCCL_IBV_QPS_RTR = 2,
    HETCCL_IBV_QPS_RTS = 3,
    HETCCL_IBV_QPS_SQD = 4,
    HETCCL_IBV_QPS_SQE = 5,
    HETCCL_IBV_QPS_ERR = 6
};

enum hetccl_ibv_qp_attr_mask { /* which members of hetccl_ibv_qp_attr_t count */
    HETCCL_IBV_QP_STATE = 1 << 0,
    HETCCL_IBV_QP_ACCESS_FLAGS = 1 << 3,
    HETCCL_IBV_QP_PKEY_INDEX = 1 << 4,
    HETCCL_IBV_QP_PORT = 1 << 5,
    HETCCL_IBV_QP_AV = 1 << 7,
    HETCCL_IBV_QP_PATH_MTU = 1 << 8,
    HETCCL_IBV_QP_TIMEOUT = 1 << 9,
    HETCCL_IBV_QP_RETRY_CNT = 1 << 10,
    HETCCL_IBV_QP_RNR_RETRY = 1 << 11,
    HETCCL_IBV_QP_RQ_PSN = 1 << 12,
    HETCCL_IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
    HETCCL_IBV_QP_MIN_RNR_TIMER = 1 << 15,
    HETCCL_IBV_QP_SQ_PSN = 1 << 16,
    HETCCL_IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
    HETCCL_IBV_QP_CAP = 1 << 19,
    HETCCL_IBV_QP_DEST_QPN = 1 << 20
};

enum hetccl_ibv_wr_opcode {
    HETCCL_IBV_WR_RDMA_WRITE = 0,
    HETCCL_IBV_WR_RDMA_WRITE_WITH_IMM = 1,
    HETCCL_IBV_WR_SEND = 2,
    HETCCL_IBV_WR_SEND_WITH_IMM = 3,
    HETCCL_IBV_WR_RDMA_READ = 4
};

enum hetccl_ibv_send_flags {
    HETCCL_IBV_SEND_FENCE = 1,
    HETCCL_IBV_SEND_SIGNALED = 2,
    HETCCL_IBV_SEND_SOLICITED = 4,
    HETCCL_IBV_SEND_INLINE = 8
};

enum hetccl_ibv_wc_status {
    HETCCL_IBV_WC_SUCCESS = 0,
    HETCCL_IBV_WC_LOC_LEN_ERR = 1,
    HETCCL_IBV_WC_LOC_QP_OP_ERR = 2,
    HETCCL_IBV_WC_LOC_EEC_OP_ERR = 3,
    HETCCL_IBV_WC_LOC_PROT_ERR = 4,
    HETCCL_IBV_WC_WR_FLUSH_ERR = 5,
    HETCCL_IBV_WC_MW_BIND_ERR = 6,
    HETCCL_IBV_WC_BAD_RESP_ERR = 7,
    HETCCL_IBV_WC_LOC_ACCESS_ERR = 8,
    HETCCL_IBV_WC_REM_INV_REQ_ERR = 9,
    HETCCL_IBV_WC_REM_ACCESS_ERR = 10,
    HETCCL_IBV_WC_REM_OP_ERR = 11,
    HETCCL_IBV_WC_RETRY_EXC_ERR = 12,
    HETCCL_IBV_WC_RNR_RETRY_EXC_ERR = 13,
    HETCCL_IBV_WC_LOC_RDD_VIOL_ERR = 14,
    HETCCL_IBV_WC_REM_INV_RD_REQ_ERR = 15,
    HETCCL_IBV_WC_REM_ABORT_ERR = 16,
    HETCCL_IBV_WC_INV_EECN_ERR = 17,
    HETCCL_IBV_WC_INV_EEC_STATE_ERR = 18,
    HETCCL_IBV_WC_FATAL_ERR = 19,
    HETCCL_IBV_WC_RESP_TIMEOUT_ERR = 20,
    HETCCL_IBV_WC_GENERAL_ERR = 21
};

enum hetccl_ibv_wc_opcode { /* of a completion with status SUCCESS */
    HETCCL_IBV_WC_SEND = 0,
    HETCCL_IBV_WC_RDMA_WRITE = 1,
    HETCCL_IBV_WC_RDMA_READ = 2,
    HETCCL_IBV_WC_RECV = 128,
    HETCCL_IBV_WC_RECV_RDMA_WITH_IMM = 129
};

enum hetccl_ibv_wc_flags { HETCCL_IBV_WC_WITH_IMM = 2 };

enum hetccl_ibv_event_type {
    HETCCL_IBV_EVENT_CQ_ERR = 0,
    HETCCL_IBV_EVENT_QP_FATAL = 1,
    HETCCL_IBV_EVENT_QP_REQ_ERR = 2,
    HETCCL_IBV_EVENT_QP_ACCESS_ERR = 3,
    HETCCL_IBV_EVENT_COMM_EST = 4,
    HETCCL_IBV_EVENT_SQ_DRAINED = 5,
    HETCCL_IBV_EVENT_PATH_MIG = 6,
    HETCCL_IBV_EVENT_PATH_MIG_ERR = 7,
    HETCCL_IBV_EVENT_DEVICE_FATAL = 8,
    HETCCL_IBV_EVENT_PORT_ACTIVE = 9,
    HETCCL_IBV_EVENT_PORT_ERR = 10,
    HETCCL_IBV_EVENT_LID_CHANGE = 11,
    HETCCL_IBV_EVENT_PKEY_CHANGE = 12,
    HETCCL_IBV_EVENT_SM_CHANGE = 13,
    HETCCL_IBV_EVENT_SRQ_ERR = 14,
    HETCCL_IBV_EVENT_SRQ_LIMIT_REACHED = 15,
    HETCCL_IBV_EVENT_QP_LAST_WQE_REACHED = 16,
    HETCCL_IBV_EVENT_CLIENT_REREGISTER = 17,
    HETCCL_IBV_EVENT_GID_CHANGE = 18,
    HETCCL_IBV_EVENT_WQ_FATAL = 19
};

enum hetccl_ibv_fork_status {
    HETCCL_IBV_FORK_DISABLED = 0,
    HETCCL_IBV_FORK_ENABLED = 1, /* registered pages are kept from children (MADV_DONTFORK) */
    HETCCL_IBV_FORK_UNNEEDED = 2 /* the kernel copies registered pages at a fork: Linux 5.12 */
};

typedef union hetccl_ibv_gid {
    uint8_t raw[16];
    uint64_t half[2]; /* big endian */
} hetccl_ibv_gid_t;

typedef struct hetccl_ibv_gid_entry {
    hetccl_ibv_gid_t gid;
    uint32_t gid_index;
    uint32_t port_num;
    uint32_t gid_type;     /* enum hetccl_ibv_gid_type */
    uint32_t ndev_ifindex; /* of the network interface; 0: none */
} hetccl_ibv_gid_entry_t;

typedef struct hetccl_ibv_device {
    void *reserved[2];
    int32_t node_type;      /* enum hetccl_ibv_node */
    int32_t transport_type; /* enum hetccl_ibv_transport */
    char name[64];          /* "uverbs0" is dev_name, "mlx5_0" is name */
    char dev_name[64];
    char dev_path[256];
    char ibdev_path[256]; /* in sysfs: /sys/class/infiniband/mlx5_0 */
} hetccl_ibv_device_t;

typedef struct hetccl_ibv_context hetccl_ibv_context_t;
typedef struct hetccl_ibv_cq hetccl_ibv_cq_t;
typedef struct hetccl_ibv_qp hetccl_ibv_qp_t;
typedef struct hetccl_ibv_wc hetccl_ibv_wc_t;
typedef struct hetccl_ibv_send_wr hetccl_ibv_send_wr_t;
typedef struct hetccl_ibv_recv_wr hetccl_ibv_recv_wr_t;

/* The driver's functions. Of its 32 slots, those through which work passes; the header's inline functions call them. */
typedef struct hetccl_ibv_context_ops {
    void *reserved0[11];
    int (*poll_cq)(hetccl_ibv_cq_t *cq, int nentries, hetccl_ibv_wc_t *wc);
    int (*req_notify_cq)(hetccl_ibv_cq_t *cq, int solicited_only);
    void *reserved1[12];
    int (*post_send)(hetccl_ibv_qp_t *qp, hetccl_ibv_send_wr_t *wr, hetccl_ibv_send_wr_t **bad_wr);
    int (*post_recv)(hetccl_ibv_qp_t *qp, hetccl_ibv_recv_wr_t *wr, hetccl_ibv_recv_wr_t **bad_wr);
    void *reserved2[5];
} hetccl_ibv_context_ops_t;

struct hetccl_ibv_context {
    hetccl_ibv_device_t *device;
    hetccl_ibv_context_ops_t ops;
    int32_t cmd_fd;
    int32_t async_fd; /* readable when get_async_event() has something */
    int32_t num_comp_vectors;
};

typedef struct hetccl_ibv_pd {
    hetccl_ibv_context_t *context;
    uint32_t handle;
} hetccl_ibv_pd_t;

typedef struct hetccl_ibv_mr {
    hetccl_ibv_context_t *context;
    hetccl_ibv_pd_t *pd;
    void *addr;
    size_t length;
    uint32_t handle;
    uint32_t lkey;
    uint32_t rkey;
} hetccl_ibv_mr_t;

typedef struct hetccl_ibv_comp_channel {
    hetccl_ibv_context_t *context;
    int32_t fd; /* readable when get_cq_event() has something */
    int32_t refcnt;
} hetccl_ibv_comp_channel_t;

struct hetccl_ibv_cq {
    hetccl_ibv_context_t *context;
    hetccl_ibv_comp_channel_t *channel;
    void *cq_context;
    uint32_t handle;
    int32_t cqe; /* entries it really has */
};

struct hetccl_ibv_qp {
    hetccl_ibv_context_t *context;
    void *qp_context;
    hetccl_ibv_pd_t *pd;
    hetccl_ibv_cq_t *send_cq;
    hetccl_ibv_cq_t *recv_cq;
    void *srq;
    uint32_t handle;
    uint32_t qp_num;
    int32_t state; /* as modify_qp() and query_qp() saw it last; enum hetccl_ibv_qp_state */
    int32_t qp_type;
};

struct hetccl_ibv_wc {
    uint64_t wr_id;
    int32_t status; /* enum hetccl_ibv_wc_status; unless it is SUCCESS, only wr_id, vendor_err and qp_num count */
    int32_t opcode; /* enum hetccl_ibv_wc_opcode */
    uint32_t vendor_err;
    uint32_t byte_len; /* of a receive */
    uint32_t imm_data; /* big endian */
    uint32_t qp_num;
    uint32_t src_qp;
    uint32_t wc_flags;
    uint16_t pkey_index;
    uint16_t slid;
    uint8_t sl;
    uint8_t dlid_path_bits;
};

typedef struct hetccl_ibv_sge {
    uint64_t addr;
    uint32_t length;
    uint32_t lkey;
} hetccl_ibv_sge_t;

struct hetccl_ibv_send_wr {
    uint64_t wr_id;
    hetccl_ibv_send_wr_t *next;
    hetccl_ibv_sge_t *sg_list;
    int32_t num_sge;
    int32_t opcode;      /* enum hetccl_ibv_wr_opcode */
    uint32_t send_flags; /* enum hetccl_ibv_send_flags */
    uint32_t imm_data;   /* big endian */
    uint64_t remote_addr;
    uint32_t rkey;
    uint32_t reserved[19]; /* of other opcodes and types of queue pairs */
};

struct hetccl_ibv_recv_wr {
    uint64_t wr_id;
    hetccl_ibv_recv_wr_t *next;
    hetccl_ibv_sge_t *sg_list;
    int32_t num_sge;
};

typedef struct hetccl_ibv_qp_cap {
    uint32_t max_send_wr;
    uint32_t max_recv_wr;
    uint32_t max_send_sge;
    uint32_t max_recv_sge;
    uint32_t max_inline_data; /* bytes */
} hetccl_ibv_qp_cap_t;

typedef struct hetccl_ibv_qp_init_attr {
    void *qp_context;
    hetccl_ibv_cq_t *send_cq;
    hetccl_ibv_cq_t *recv_cq;
    void *srq;
    hetccl_ibv_qp_cap_t cap; /* asked for; create_qp() puts what was given, which may be more */
    int32_t qp_type;         /* enum hetccl_ibv_qp_type */
    int32_t sq_sig_all;
} hetccl_ibv_qp_init_attr_t;

typedef struct hetccl_ibv_global_route {
    hetccl_ibv_gid_t dgid;
    uint32_t flow_label;
    uint8_t sgid_index;
    uint8_t hop_limit;
    uint8_t traffic_class;
} hetccl_ibv_global_route_t;

typedef struct hetccl_ibv_ah_attr {
    hetccl_ibv_global_route_t grh;
    uint16_t dlid;
    uint8_t sl;
    uint8_t src_path_bits;
    uint8_t static_rate;
    uint8_t is_global; /* grh counts: always on Ethernet, and between InfiniBand subnets */
    uint8_t port_num;
} hetccl_ibv_ah_attr_t;

typedef struct hetccl_ibv_qp_attr {
    int32_t qp_state; /* enum hetccl_ibv_qp_state */
    int32_t cur_qp_state;
    int32_t path_mtu; /* enum hetccl_ibv_mtu */
    int32_t path_mig_state;
    uint32_t qkey;
    uint32_t rq_psn; /* 24 bits */
    uint32_t sq_psn; /* 24 bits */
    uint32_t dest_qp_num;
    uint32_t qp_access_flags; /* enum hetccl_ibv_access */
    hetccl_ibv_qp_cap_t cap;
    hetccl_ibv_ah_attr_t ah_attr;
    hetccl_ibv_ah_attr_t alt_ah_attr;
    uint16_t pkey_index;
    uint16_t alt_pkey_index;
    uint8_t en_sqd_async_notify;
    uint8_t sq_draining;
    uint8_t max_rd_atomic;
    uint8_t max_dest_rd_atomic;
    uint8_t min_rnr_timer; /* code, 0 to 31; 0 is the longest */
    uint8_t port_num;
    uint8_t timeout; /* 4.096 us << timeout, 1 to 31; 0: for ever */
    uint8_t retry_cnt;
    uint8_t rnr_retry; /* 7: for ever */
    uint8_t alt_port_num;
    uint8_t alt_timeout;
    uint32_t rate_limit;
} hetccl_ibv_qp_attr_t;

/* query_port@IBVERBS_1.1 fills it up to and with `flags`; what follows stays as the caller left it. */
typedef struct hetccl_ibv_port_attr {
    int32_t state;      /* enum hetccl_ibv_port_state */
    int32_t max_mtu;    /* enum hetccl_ibv_mtu */
    int32_t active_mtu; /* enum hetccl_ibv_mtu */
    int32_t gid_tbl_len;
    uint32_t port_cap_flags;
    uint32_t max_msg_sz; /* bytes */
    uint32_t bad_pkey_cntr;
    uint32_t qkey_viol_cntr;
    uint16_t pkey_tbl_len;
    uint16_t lid;
    uint16_t sm_lid;
    uint8_t lmc;
    uint8_t max_vl_num;
    uint8_t sm_sl;
    uint8_t subnet_timeout;
    uint8_t init_type_reply;
    uint8_t active_width; /* lanes, as a code: 1 for 1, 2 for 4, 4 for 8, 8 for 12, 16 for 2 */
    uint8_t active_speed; /* of a lane, as a code: 1 2.5 Gb/s, 2 5, 4 and 8 10, 16 14, 32 25, 64 50, 128 100 */
    uint8_t phys_state;
    uint8_t link_layer; /* enum hetccl_ibv_link_layer */
    uint8_t flags;
    uint16_t port_cap_flags2;
    uint16_t reserved;
} hetccl_ibv_port_attr_t;

typedef struct hetccl_ibv_device_attr {
    char fw_ver[64];
    uint64_t node_guid; /* big endian */
    uint64_t sys_image_guid;
    uint64_t max_mr_size;
    uint64_t page_size_cap;
    uint32_t vendor_id;
    uint32_t vendor_part_id;
    uint32_t hw_ver;
    int32_t max_qp;
    int32_t max_qp_wr;
    uint32_t device_cap_flags;
    int32_t max_sge;
    int32_t max_sge_rd;
    int32_t max_cq;
    int32_t max_cqe;
    int32_t max_mr;
    int32_t max_pd;
    int32_t max_qp_rd_atom;
    int32_t reserved0[2];
    int32_t max_qp_init_rd_atom;
    int32_t reserved1[16];
    uint16_t max_pkeys;
    uint8_t local_ca_ack_delay;
    uint8_t phys_port_cnt;
    uint32_t reserved2;
} hetccl_ibv_device_attr_t;

typedef union hetccl_ibv_async_element {
    hetccl_ibv_cq_t *cq;
    hetccl_ibv_qp_t *qp;
    int32_t port_num;
} hetccl_ibv_async_element_t;

typedef struct hetccl_ibv_async_event {
    hetccl_ibv_async_element_t element; /* by the type: which of them */
    int32_t event_type; /* enum hetccl_ibv_event_type */
} hetccl_ibv_async_event_t;

#endif
