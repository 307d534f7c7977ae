/* Two queue pairs of one process, through include/hetccl/verbs.h and a libibverbs that is given by its path: what a
 * write does, and how each failure looks. Prints what happened, the same for the fake as for a real device.
 *
 *     verbs_trial LIBRARY DEVICE GID_INDEX TRIAL */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "hetccl/verbs.h"

enum { DEPTH = 16, RECVS = 64, NBYTES = 4096, INLINE_BYTES = 64, WAIT_MS = 20000 };

typedef struct end {
    hetccl_ibv_pd_t *pd;
    hetccl_ibv_comp_channel_t *channel;
    hetccl_ibv_cq_t *cq;
    hetccl_ibv_qp_t *qp;
    hetccl_ibv_mr_t *mr;
    uint8_t *memory;
} end_t;

static hetccl_verbs_t verbs;
static hetccl_ibv_context_t *context;
static hetccl_ibv_gid_t gid;
static int gid_index;
static end_t a, b;

#define NEED(condition)                                               \
    do {                                                              \
        if (!(condition)) {                                           \
            printf("line %d: %s: %s\n", __LINE__, #condition, strerror(errno)); \
            exit(1);                                                  \
        }                                                             \
    } while (0)

static void load(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) printf("%s\n", dlerror());
    NEED(library);
    for (int i = 0; i < HETCCL_VERBS_NSYMBOLS; i++) {
        const hetccl_verbs_symbol_t *symbol = &hetccl_verbs_symbols[i];
        void *address = dlvsym(library, symbol->name, symbol->version);
        NEED(address || !symbol->needed);
        memcpy((char *)&verbs + symbol->offset, &address, sizeof address);
    }
}

static void open_named(const char *name) {
    int count = 0;
    hetccl_ibv_device_t **list = verbs.get_device_list(&count);
    NEED(list);
    for (int i = 0; i < count; i++)
        if (!strcmp(verbs.get_device_name(list[i]), name)) context = verbs.open_device(list[i]);
    verbs.free_device_list(list);
    NEED(context);
    NEED(!verbs.query_gid(context, 1, gid_index, &gid));
}

static void end_open(end_t *end) {
    int access = HETCCL_IBV_ACCESS_LOCAL_WRITE | HETCCL_IBV_ACCESS_REMOTE_WRITE;
    NEED(end->pd = verbs.alloc_pd(context));
    NEED(end->channel = verbs.create_comp_channel(context));
    NEED(end->cq = verbs.create_cq(context, 256, end, end->channel, 0));
    NEED(end->memory = calloc(1, NBYTES));
    NEED(end->mr = verbs.reg_mr(end->pd, end->memory, NBYTES, access));
    hetccl_ibv_qp_init_attr_t init = {.send_cq = end->cq, .recv_cq = end->cq, .qp_type = HETCCL_IBV_QPT_RC};
    init.cap = (hetccl_ibv_qp_cap_t){DEPTH, RECVS, 2, 1, INLINE_BYTES};
    NEED(end->qp = verbs.create_qp(end->pd, &init));
    hetccl_ibv_qp_attr_t attr = {.qp_state = HETCCL_IBV_QPS_INIT, .port_num = 1,
                                 .qp_access_flags = HETCCL_IBV_ACCESS_REMOTE_WRITE};
    NEED(!verbs.modify_qp(end->qp, &attr, HETCCL_IBV_QP_STATE | HETCCL_IBV_QP_PKEY_INDEX | HETCCL_IBV_QP_PORT |
                                              HETCCL_IBV_QP_ACCESS_FLAGS));
}

static void end_connect(end_t *end, const end_t *peer) {
    hetccl_ibv_qp_attr_t attr = {.qp_state = HETCCL_IBV_QPS_RTR, .path_mtu = 3, .dest_qp_num = peer->qp->qp_num,
                                 .rq_psn = 7, .max_dest_rd_atomic = 1, .min_rnr_timer = 12};
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh = (hetccl_ibv_global_route_t){.dgid = gid, .sgid_index = (uint8_t)gid_index, .hop_limit = 64};
    NEED(!verbs.modify_qp(end->qp, &attr, HETCCL_IBV_QP_STATE | HETCCL_IBV_QP_AV | HETCCL_IBV_QP_PATH_MTU |
                                              HETCCL_IBV_QP_DEST_QPN | HETCCL_IBV_QP_RQ_PSN |
                                              HETCCL_IBV_QP_MAX_DEST_RD_ATOMIC | HETCCL_IBV_QP_MIN_RNR_TIMER));
    attr = (hetccl_ibv_qp_attr_t){.qp_state = HETCCL_IBV_QPS_RTS, .sq_psn = 7, .timeout = 10, .retry_cnt = 3,
                                  .rnr_retry = 3, .max_rd_atomic = 1};
    NEED(!verbs.modify_qp(end->qp, &attr, HETCCL_IBV_QP_STATE | HETCCL_IBV_QP_SQ_PSN | HETCCL_IBV_QP_TIMEOUT |
                                              HETCCL_IBV_QP_RETRY_CNT | HETCCL_IBV_QP_RNR_RETRY |
                                              HETCCL_IBV_QP_MAX_QP_RD_ATOMIC));
}

static void end_close(end_t *end) {
    if (end->qp) NEED(!verbs.destroy_qp(end->qp));
    NEED(!verbs.destroy_cq(end->cq));
    NEED(!verbs.destroy_comp_channel(end->channel));
    NEED(!verbs.dereg_mr(end->mr));
    NEED(!verbs.dealloc_pd(end->pd));
    free(end->memory);
}

static void receive(end_t *end, int count) {
    for (int i = 0; i < count; i++) {
        hetccl_ibv_recv_wr_t wr = {.wr_id = 100 + (uint64_t)i}, *bad;
        NEED(!hetccl_verbs_post_recv(end->qp, &wr, &bad));
    }
}

/* Write `nbytes` from a's memory at 0 to b's at 1000; in two pieces where there are at least two bytes. */
static int write_from_a(uint64_t wr_id, uint32_t nbytes, int opcode, int flags, uint32_t imm, uint32_t rkey) {
    uint64_t from = (uintptr_t)a.memory;
    uint32_t half = nbytes / 2;
    hetccl_ibv_sge_t pieces[2] = {{from, half, a.mr->lkey}, {from + half, nbytes - half, a.mr->lkey}};
    hetccl_ibv_send_wr_t wr = {.wr_id = wr_id, .sg_list = pieces, .num_sge = nbytes ? 2 : 0, .opcode = opcode,
                               .send_flags = (uint32_t)flags, .imm_data = imm,
                               .remote_addr = (uintptr_t)b.memory + 1000, .rkey = rkey}, *bad = NULL;
    int rc = hetccl_verbs_post_send(a.qp, &wr, &bad);
    NEED(!rc || bad == &wr);
    return rc ? hetccl_verbs_errno(rc) : 0;
}

static long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static hetccl_ibv_wc_t completion(end_t *end) {
    hetccl_ibv_wc_t wc;
    long deadline = now_ms() + WAIT_MS;
    int count;
    while (!(count = hetccl_verbs_poll_cq(end->cq, 1, &wc))) NEED(now_ms() < deadline);
    NEED(count == 1);
    return wc;
}

static void show(const char *who, end_t *end) {
    hetccl_ibv_wc_t wc = completion(end);
    printf("%s: wr_id %ld status %d", who, (long)wc.wr_id, wc.status);
    if (wc.status == 0) printf(" opcode %d", wc.opcode);
    if (wc.status == 0 && wc.opcode == HETCCL_IBV_WC_RECV_RDMA_WITH_IMM && wc.wc_flags & HETCCL_IBV_WC_WITH_IMM)
        printf(" imm %x nbytes %u", wc.imm_data, wc.byte_len);
    printf("%s\n", wc.qp_num == end->qp->qp_num ? "" : " of another queue pair");
}

static void show_state(const char *who, end_t *end) {
    hetccl_ibv_qp_attr_t attr;
    hetccl_ibv_qp_init_attr_t init;
    NEED(!verbs.query_qp(end->qp, &attr, HETCCL_IBV_QP_STATE, &init));
    printf("%s: state %d\n", who, attr.qp_state);
}

enum { WRITE = HETCCL_IBV_WR_RDMA_WRITE, WRITE_IMM = HETCCL_IBV_WR_RDMA_WRITE_WITH_IMM,
       SIGNALED = HETCCL_IBV_SEND_SIGNALED, INLINE = HETCCL_IBV_SEND_INLINE };

static void try_write(void) {
    receive(&b, 3);
    for (int i = 0; i < NBYTES; i++) a.memory[i] = (uint8_t)(i * 7 + 1);
    printf("post: %d\n", write_from_a(1, 777, WRITE, 0, 0, b.mr->rkey));
    printf("post: %d\n", write_from_a(2, 61, WRITE_IMM, SIGNALED | INLINE, 0x11223344, b.mr->rkey));
    show("a", &a);
    show("b", &b);
    int wrong = memcmp(b.memory + 1000, a.memory, 777);
    for (int i = 0; i < NBYTES; i++) wrong |= (i < 1000 || i >= 1777) && b.memory[i];
    printf("bytes: %s\n", wrong ? "wrong" : "right");
    printf("post: %d\n", write_from_a(3, 0, WRITE_IMM, SIGNALED, 5, 0));
    printf("post: %d\n", write_from_a(4, 2999, WRITE_IMM, SIGNALED, 6, b.mr->rkey));
    show("a", &a);
    show("b", &b);
    show("a", &a);
    show("b", &b);
    printf("inline too long: %s\n", write_from_a(5, 2048, WRITE, INLINE, 0, b.mr->rkey) ? "refused" : "taken");
}

/* How much more than a queue is taken is the device's affair. */
static void try_full(void) {
    int error = 0, taken = 0;
    while (!error && taken < 200) taken += !(error = write_from_a((uint64_t)taken, 8, WRITE, SIGNALED, 0, b.mr->rkey));
    const char *problem = !error || error == ENOMEM ? "ok" : strerror(error);
    printf("%s: %s\n", taken >= DEPTH ? "a queue at least" : "less", problem);
    for (int i = 0; i < taken; i++) NEED(completion(&a).wr_id == (uint64_t)i);
    printf("then: %d\n", write_from_a(5, 8, WRITE, SIGNALED, 0, b.mr->rkey));
    show("a", &a);
}

static void try_key(void) {
    receive(&b, 1);
    write_from_a(1, 8, WRITE, SIGNALED, 0, b.mr->rkey + 0x100000);
    write_from_a(2, 8, WRITE, 0, 0, b.mr->rkey);
    show("a", &a);
    show("a", &a);
    show("b", &b);
    show_state("a", &a);
    show_state("b", &b);
    write_from_a(3, 8, WRITE, 0, 0, b.mr->rkey);
    show("a", &a);
}

static void try_range(void) {
    write_from_a(1, 3097, WRITE, SIGNALED, 0, b.mr->rkey);
    show("a", &a);
}

static void try_flush(void) {
    hetccl_ibv_qp_attr_t attr = {.qp_state = HETCCL_IBV_QPS_ERR};
    receive(&b, 2);
    NEED(!verbs.modify_qp(b.qp, &attr, HETCCL_IBV_QP_STATE));
    show("b", &b);
    show("b", &b);
}

static void try_unready(void) {
    write_from_a(1, 8, WRITE_IMM, SIGNALED, 1, b.mr->rkey);
    show("a", &a);
    show_state("a", &a);
}

static void try_late(void) {
    write_from_a(1, 8, WRITE_IMM, SIGNALED, 1, b.mr->rkey);
    receive(&b, 1);
    show("a", &a);
    show("b", &b);
}

static void try_lost(void) {
    NEED(!verbs.destroy_qp(b.qp));
    b.qp = NULL;
    write_from_a(1, 8, WRITE, SIGNALED, 0, b.mr->rkey);
    show("a", &a);
    show_state("a", &a);
}

static void try_event(void) {
    struct pollfd fd = {.fd = b.channel->fd, .events = POLLIN};
    hetccl_ibv_cq_t *cq = NULL;
    void *user = NULL;
    receive(&b, 4);
    NEED(!fcntl(fd.fd, F_SETFL, fcntl(fd.fd, F_GETFL) | O_NONBLOCK));
    int rc = verbs.get_cq_event(b.channel, &cq, &user);
    printf("none: %d %s\n", rc, strerror(errno));
    NEED(!hetccl_verbs_req_notify_cq(b.cq, 0));
    printf("before: %d\n", poll(&fd, 1, 50));
    write_from_a(1, 8, WRITE_IMM, 0, 1, b.mr->rkey);
    write_from_a(2, 8, WRITE_IMM, 0, 2, b.mr->rkey);
    printf("after: %d\n", poll(&fd, 1, WAIT_MS));
    NEED(!verbs.get_cq_event(b.channel, &cq, &user));
    printf("whose: %d %d\n", cq == b.cq, user == &b);
    show("b", &b);
    show("b", &b);
    write_from_a(3, 8, WRITE_IMM, SIGNALED, 3, b.mr->rkey);
    show("a", &a);
    printf("not armed: %d\n", poll(&fd, 1, 50));
    verbs.ack_cq_events(b.cq, 1);
    NEED(!verbs.resize_cq(b.cq, 1000));
    printf("resized: %s\n", b.cq->cqe >= 1000 ? "yes" : "no");
    show("b", &b);
}

static void try_states(void) {
    hetccl_ibv_qp_attr_t attr = {.qp_state = HETCCL_IBV_QPS_RTS};
    printf("RTS to RTR: %s\n", verbs.modify_qp(a.qp, &(hetccl_ibv_qp_attr_t){.qp_state = HETCCL_IBV_QPS_RTR},
                                               HETCCL_IBV_QP_STATE) ? "refused" : "taken");
    show_state("a", &a);
    hetccl_ibv_qp_init_attr_t init = {.send_cq = a.cq, .recv_cq = a.cq, .qp_type = HETCCL_IBV_QPT_RC};
    init.cap = (hetccl_ibv_qp_cap_t){DEPTH, RECVS, 2, 1, 0};
    hetccl_ibv_qp_t *qp = verbs.create_qp(a.pd, &init);
    NEED(qp);
    printf("RESET to RTS: %s\n", verbs.modify_qp(qp, &attr, HETCCL_IBV_QP_STATE) ? "refused" : "taken");
    NEED(!verbs.destroy_qp(qp));
    init.cap.max_send_sge = 1000;
    printf("1000 pieces: %s\n", verbs.create_qp(a.pd, &init) ? "taken" : strerror(errno));
    printf("CQ too long: %s\n", verbs.create_cq(context, 1 << 30, NULL, NULL, 0) ? "taken" : strerror(errno));
    printf("unmapped: %s\n", verbs.reg_mr(a.pd, (void *)4096, 4096, 1) ? "taken" : strerror(errno));
    printf("domain in use: %s\n", verbs.dealloc_pd(a.pd) ? "refused" : "freed");
}

static const struct { const char *name; void (*run)(void); } trials[] = {
    {"write", try_write}, {"full", try_full}, {"key", try_key}, {"range", try_range}, {"flush", try_flush},
    {"unready", try_unready}, {"late", try_late}, {"lost", try_lost}, {"event", try_event}, {"states", try_states}};

int main(int argc, char **argv) {
    NEED(argc == 5);
    load(argv[1]);
    gid_index = atoi(argv[3]);
    for (size_t i = 0; i < sizeof trials / sizeof *trials; i++) {
        if (strcmp(argv[4], trials[i].name) && strcmp(argv[4], "all")) continue;
        if (!strcmp(argv[4], "all")) printf("== %s\n", trials[i].name);
        open_named(argv[2]);
        end_open(&a);
        end_open(&b);
        end_connect(&a, &b);
        end_connect(&b, &a);
        trials[i].run();
        end_close(&a);
        end_close(&b);
        NEED(!verbs.close_device(context));
    }
    return 0;
}
