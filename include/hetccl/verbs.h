/* libibverbs behind one table (layer L1). _verbs opens the library and fills the table once for the process; rails,
 * ports and the cache of registrations call through it without the GIL, and take no lock for it: libibverbs is
 * thread-safe, but for polling one queue in two threads at once, whose order is then lost. */
#ifndef HETCCL_VERBS_H
#define HETCCL_VERBS_H

#include <errno.h>
#include <sys/types.h>

#include "hetccl/verbs_abi.h"

/* One line per function:
 *     X(result, slot, symbol, version, needed, parameters)
 * version: of the symbol, so that the layouts of verbs_abi.h are those it means; the unversioned name could be that of
 * 1.0, whose structs differ. needed 0: newer than the oldest library that will do (IBVERBS_1.1); the slot may be NULL.
 * Results: a pointer, NULL with errno on failure; an int, see hetccl_verbs_errno(). */
#define HETCCL_VERBS_FUNCTIONS(X)                                                                                     \
    X(hetccl_ibv_device_t **, get_device_list, ibv_get_device_list, "IBVERBS_1.1", 1, (int *count))                   \
    X(void, free_device_list, ibv_free_device_list, "IBVERBS_1.1", 1, (hetccl_ibv_device_t **list))                   \
    X(const char *, get_device_name, ibv_get_device_name, "IBVERBS_1.1", 1, (hetccl_ibv_device_t *device))            \
    X(uint64_t, get_device_guid, ibv_get_device_guid, "IBVERBS_1.1", 1, (hetccl_ibv_device_t *device))                \
    X(hetccl_ibv_context_t *, open_device, ibv_open_device, "IBVERBS_1.1", 1, (hetccl_ibv_device_t *device))          \
    X(int, close_device, ibv_close_device, "IBVERBS_1.1", 1, (hetccl_ibv_context_t *context))                         \
    X(int, query_device, ibv_query_device, "IBVERBS_1.1", 1,                                                          \
      (hetccl_ibv_context_t *context, hetccl_ibv_device_attr_t *attr))                                                \
    X(int, query_port, ibv_query_port, "IBVERBS_1.1", 1,                                                              \
      (hetccl_ibv_context_t *context, uint8_t port, hetccl_ibv_port_attr_t *attr))                                    \
    X(int, query_gid, ibv_query_gid, "IBVERBS_1.1", 1,                                                                \
      (hetccl_ibv_context_t *context, uint8_t port, int index, hetccl_ibv_gid_t *gid))                                \
    X(ssize_t, query_gid_table, _ibv_query_gid_table, "IBVERBS_1.11", 0,                                              \
      (hetccl_ibv_context_t *context, hetccl_ibv_gid_entry_t *entries, size_t nentries, uint32_t flags,               \
       size_t entry_nbytes))                                                                                          \
    X(hetccl_ibv_pd_t *, alloc_pd, ibv_alloc_pd, "IBVERBS_1.1", 1, (hetccl_ibv_context_t *context))                   \
    X(int, dealloc_pd, ibv_dealloc_pd, "IBVERBS_1.1", 1, (hetccl_ibv_pd_t *pd))                                       \
    X(hetccl_ibv_mr_t *, reg_mr, ibv_reg_mr, "IBVERBS_1.1", 1,                                                        \
      (hetccl_ibv_pd_t *pd, void *ptr, size_t nbytes, int access))                                                    \
    X(hetccl_ibv_mr_t *, reg_dmabuf_mr, ibv_reg_dmabuf_mr, "IBVERBS_1.12", 0,                                         \
      (hetccl_ibv_pd_t *pd, uint64_t offset, size_t nbytes, uint64_t iova, int fd, int access))                       \
    X(int, dereg_mr, ibv_dereg_mr, "IBVERBS_1.1", 1, (hetccl_ibv_mr_t *mr))                                           \
    X(hetccl_ibv_comp_channel_t *, create_comp_channel, ibv_create_comp_channel, "IBVERBS_1.0", 1,                    \
      (hetccl_ibv_context_t *context))                                                                                \
    X(int, destroy_comp_channel, ibv_destroy_comp_channel, "IBVERBS_1.0", 1, (hetccl_ibv_comp_channel_t *channel))    \
    X(hetccl_ibv_cq_t *, create_cq, ibv_create_cq, "IBVERBS_1.1", 1,                                                  \
      (hetccl_ibv_context_t *context, int cqe, void *cq_context, hetccl_ibv_comp_channel_t *channel,                  \
       int comp_vector))                                                                                              \
    X(int, resize_cq, ibv_resize_cq, "IBVERBS_1.1", 1, (hetccl_ibv_cq_t *cq, int cqe))                                \
    X(int, destroy_cq, ibv_destroy_cq, "IBVERBS_1.1", 1, (hetccl_ibv_cq_t *cq))                                       \
    X(int, get_cq_event, ibv_get_cq_event, "IBVERBS_1.1", 1,                                                          \
      (hetccl_ibv_comp_channel_t *channel, hetccl_ibv_cq_t **cq, void **cq_context))                                  \
    X(void, ack_cq_events, ibv_ack_cq_events, "IBVERBS_1.1", 1, (hetccl_ibv_cq_t *cq, unsigned nevents))              \
    X(hetccl_ibv_qp_t *, create_qp, ibv_create_qp, "IBVERBS_1.1", 1,                                                  \
      (hetccl_ibv_pd_t *pd, hetccl_ibv_qp_init_attr_t *attr))                                                         \
    X(int, modify_qp, ibv_modify_qp, "IBVERBS_1.1", 1,                                                                \
      (hetccl_ibv_qp_t *qp, hetccl_ibv_qp_attr_t *attr, int attr_mask))                                               \
    X(int, query_qp, ibv_query_qp, "IBVERBS_1.1", 1,                                                                  \
      (hetccl_ibv_qp_t *qp, hetccl_ibv_qp_attr_t *attr, int attr_mask, hetccl_ibv_qp_init_attr_t *init_attr))         \
    X(int, destroy_qp, ibv_destroy_qp, "IBVERBS_1.1", 1, (hetccl_ibv_qp_t *qp))                                       \
    X(int, get_async_event, ibv_get_async_event, "IBVERBS_1.1", 1,                                                    \
      (hetccl_ibv_context_t *context, hetccl_ibv_async_event_t *event))                                               \
    X(void, ack_async_event, ibv_ack_async_event, "IBVERBS_1.1", 1, (hetccl_ibv_async_event_t *event))                \
    X(int, fork_init, ibv_fork_init, "IBVERBS_1.1", 1, (void))                                                        \
    X(int, is_fork_initialized, ibv_is_fork_initialized, "IBVERBS_1.13", 0, (void))

#define HETCCL_VERBS_POINTER(result, slot, symbol, version, needed, parameters) result(*slot) parameters;

typedef struct hetccl_verbs {
    HETCCL_VERBS_FUNCTIONS(HETCCL_VERBS_POINTER)
} hetccl_verbs_t;

typedef struct hetccl_verbs_symbol {
    const char *slot;
    const char *name;
    const char *version;
    size_t offset; /* of the slot in the table */
    int needed;
} hetccl_verbs_symbol_t;

#define HETCCL_VERBS_ROW(result, slot, symbol, version, needed, parameters)                                           \
    {#slot, #symbol, version, offsetof(hetccl_verbs_t, slot), needed},

static const hetccl_verbs_symbol_t hetccl_verbs_symbols[] = {HETCCL_VERBS_FUNCTIONS(HETCCL_VERBS_ROW)};

enum { HETCCL_VERBS_NSYMBOLS = sizeof hetccl_verbs_symbols / sizeof *hetccl_verbs_symbols };

/* The errno of a call that answered rc, not 0. Most answer it, some -1 with errno set, some drivers -errno; call at
 * once. */
static inline int hetccl_verbs_errno(int rc) {
    int error = rc > 0 ? rc : rc < -1 ? -rc : errno;
    return error ? error : EIO;
}

/* The driver's functions. poll_cq: number of completions, negative on failure. post_send, post_recv: 0, or see
 * hetccl_verbs_errno(), with *bad_wr the first request that was not taken: those before it were. */
static inline int hetccl_verbs_poll_cq(hetccl_ibv_cq_t *cq, int nentries, hetccl_ibv_wc_t *wc) {
    return cq->context->ops.poll_cq(cq, nentries, wc);
}

static inline int hetccl_verbs_req_notify_cq(hetccl_ibv_cq_t *cq, int solicited_only) {
    return cq->context->ops.req_notify_cq(cq, solicited_only);
}

static inline int hetccl_verbs_post_send(hetccl_ibv_qp_t *qp, hetccl_ibv_send_wr_t *wr,
                                         hetccl_ibv_send_wr_t **bad_wr) {
    return qp->context->ops.post_send(qp, wr, bad_wr);
}

static inline int hetccl_verbs_post_recv(hetccl_ibv_qp_t *qp, hetccl_ibv_recv_wr_t *wr,
                                         hetccl_ibv_recv_wr_t **bad_wr) {
    return qp->context->ops.post_recv(qp, wr, bad_wr);
}

#endif
