/* A vendor CCL for tests: NCCL's ABI on host memory, between processes of one host. What is called is done when the
 * call returns, whatever the stream; so a call waits for its peers, at most FAKE_CCL_TIMEOUT_S seconds (30), or until
 * another thread aborts the communicator. It checks its arguments as NCCL does. A communicator that does not block is
 * in progress after its birth, its first call and its end, until it has been asked about it.
 *
 * FAKE_CCL_VERSION=22005                     what ncclGetVersion says; 22809 without it
 * FAKE_CCL_FAIL=ncclSend=2,ncclAllReduce=3@5 these functions answer these codes, always or at their nth call
 * FAKE_CCL_HANG=ncclCommInitRankConfig       what the function begins never ends, or it does not return
 * FAKE_CCL_NONBLOCKING=1                     communicators do not block, whatever their configuration says
 * FAKE_CCL_ASYNC_ERROR=6                     the communicator's error after its first call
 */
#define _GNU_SOURCE
#include "fakeccl_state.h"

enum { VERSION = 22809, ID_BYTES = 128, CALLS_MAX = 4096, NO_COLOR = -1 };
enum { ALL_REDUCE, REDUCE, REDUCE_SCATTER, BROADCAST, ALL_GATHER, ALL_TO_ALL, GATHER, SCATTER, SEND, RECV, SPLIT };

typedef struct unique_id {
    char bytes[ID_BYTES];
} unique_id_t;

typedef struct config {
    size_t size;
    unsigned magic, version;
    int blocking, cga, min_ctas, max_ctas;
    const char *net;
    int split_share;
} config_t;

typedef struct call {
    int kind;
    comm_t *comm;
    const void *send;
    void *recv;
    size_t count;
    int dtype, op, peer; /* peer: or root */
    char *parts;         /* of all ranks, to be reduced */
    char *scaled;        /* what is sent instead of `send` */
} call_t;

static __thread int depth;
static __thread call_t queue[CALLS_MAX];
static __thread int nqueued;

API int ncclGetVersion(int *version) {
    const char *text = getenv("FAKE_CCL_VERSION");
    if (!version) return fail(INVALID_ARGUMENT, "ncclGetVersion: version is NULL");
    *version = text ? atoi(text) : VERSION;
    return OK;
}

API const char *ncclGetErrorString(int code) {
    static const char *const texts[] = {"no error",         "unhandled cuda error", "unhandled system error",
                                        "internal error",   "invalid argument",     "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return code >= 0 && code <= IN_PROGRESS ? texts[code] : "unknown result code";
}

API const char *ncclGetLastError(comm_t *comm) {
    (void)comm;
    return last_error;
}

/* Communicators that have been neither destroyed nor aborted. */
API int fakeLive(void) { return atomic_load(&ncomms); }

API int ncclGetUniqueId(unique_id_t *id) {
    static atomic_int nids;
    int code = injected(__func__);
    if (code) return code;
    if (!id) return fail(INVALID_ARGUMENT, "%s: id is NULL", __func__);
    memset(id, 0, sizeof *id);
    unsigned salt = (unsigned)(now_s() * 1e6);
    snprintf(id->bytes, ID_BYTES, "/dev/shm/fakeccl-%d-%d-%08x", getpid(), atomic_fetch_add(&nids, 1), salt);
    return OK;
}

static int check_config(const config_t *config, const char *function) {
    if (!config) return OK;
    if (config->size < CONFIG_BYTES_MIN || config->magic != 0xcafebeef || config->version < OLDEST_CONFIG)
        return fail(INVALID_ARGUMENT, "%s: config is not initialized", function);
    if (config->blocking != INT_MIN && config->blocking != 0 && config->blocking != 1)
        return fail(INVALID_ARGUMENT, "%s: config.blocking is %d", function, config->blocking);
    return OK;
}

static int blocks(const config_t *config, int otherwise) {
    if (getenv("FAKE_CCL_NONBLOCKING")) return 0;
    return config ? config->blocking != 0 : otherwise;
}

static void comm_free(comm_t *comm) {
    link_close(&comm->link);
    comm->mark = 0;
    free(comm);
    atomic_fetch_sub(&ncomms, 1);
}

static int comm_new(comm_t **out, const char *name, int rank, int nranks, int is_blocking, const char *function) {
    comm_t *comm = calloc(1, sizeof *comm);
    if (!comm) return fail(SYSTEM_ERROR, "%s: no memory", function);
    atomic_fetch_add(&ncomms, 1);
    int error = link_open(&comm->link, name, rank, nranks);
    if (error) {
        comm_free(comm);
        if (error == EEXIST) return fail(INVALID_USAGE, "%s: rank %d is there already", function, rank);
        return fail(SYSTEM_ERROR, "%s: %s: %s", function, name, strerror(error));
    }
    comm->mark = ALIVE;
    comm->is_blocking = is_blocking;
    comm->is_connecting = 1;
    *out = comm;
    if (!is_blocking) return done(comm, function, 2);
    for (double until_s = now_s() + patience_s(); !link_is_complete(&comm->link) && now_s() < until_s;)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    if (progress(comm) == OK) return OK;
    comm_free(comm);
    *out = NULL;
    return fail(REMOTE_ERROR, "%s: not all ranks have come", function);
}

API int ncclCommInitRankConfig(comm_t **out, int nranks, unique_id_t id, int rank, const config_t *config) {
    int code = injected(__func__);
    if (!code) code = check_config(config, __func__);
    if (code) return code;
    if (!out || nranks < 1 || nranks > RANKS_MAX || rank < 0 || rank >= nranks || strncmp(id.bytes, "/dev/shm/", 9))
        return fail(INVALID_ARGUMENT, "%s: comm, nranks %d, rank %d or id is not valid", __func__, nranks, rank);
    *out = NULL;
    if (blocks(config, 1)) hang(NULL, __func__);
    return comm_new(out, id.bytes, rank, nranks, blocks(config, 1), __func__);
}

API int ncclCommInitRank(comm_t **out, int nranks, unique_id_t id, int rank) {
    return ncclCommInitRankConfig(out, nranks, id, rank, NULL);
}

API int ncclCommGetAsyncError(comm_t *comm, int *state) {
    if (!is_comm(comm) || !state) return fail(INVALID_ARGUMENT, "%s: comm or state is NULL", __func__);
    *state = progress(comm);
    return OK;
}

API int ncclCommCount(comm_t *comm, int *nranks) {
    if (!is_comm(comm) || !nranks) return fail(INVALID_ARGUMENT, "%s: comm or count is NULL", __func__);
    *nranks = comm->link.nranks;
    return injected(__func__);
}

API int ncclCommUserRank(comm_t *comm, int *rank) {
    if (!is_comm(comm) || !rank) return fail(INVALID_ARGUMENT, "%s: comm or rank is NULL", __func__);
    *rank = comm->link.rank;
    return injected(__func__);
}

API int ncclCommFinalize(comm_t *comm) {
    int code = ready(comm, __func__);
    if (code) return code;
    comm->is_finalized = 1;
    atomic_fetch_add(&comm->inside, 1);
    if (comm->is_blocking) hang(&comm->link.aborted, __func__);
    code = done(comm, __func__, 1);
    atomic_fetch_sub(&comm->inside, 1);
    return code;
}

API int ncclCommDestroy(comm_t *comm) {
    if (!is_comm(comm)) return fail(INVALID_ARGUMENT, "%s: comm is NULL or freed", __func__);
    int code = injected(__func__);
    hang(NULL, __func__);
    if (code) return code;
    if (comm->nregistered) return fail(INVALID_USAGE, "%s: %d buffers are registered", __func__, comm->nregistered);
    comm_free(comm);
    return OK;
}

API int ncclCommAbort(comm_t *comm) {
    if (!is_comm(comm)) return fail(INVALID_ARGUMENT, "%s: comm is NULL or freed", __func__);
    int code = injected(__func__);
    hang(NULL, __func__);
    if (code) return code;
    atomic_store(&comm->link.aborted, 1);
    while (atomic_load(&comm->inside)) sched_yield();
    comm_free(comm);
    return OK;
}

API int ncclCommRegister(comm_t *comm, void *ptr, size_t nbytes, void **handle) {
    int code = ready(comm, __func__);
    if (code) return code;
    if (!ptr || !nbytes || !handle) return fail(INVALID_ARGUMENT, "%s: buff, size or handle is 0", __func__);
    *handle = malloc(1);
    comm->nregistered++;
    return OK;
}

API int ncclCommDeregister(comm_t *comm, void *handle) {
    int code = ready(comm, __func__);
    if (code) return code;
    if (!handle || !comm->nregistered) return fail(INVALID_ARGUMENT, "%s: handle is not registered", __func__);
    free(handle);
    comm->nregistered--;
    return OK;
}

API int ncclRedOpCreatePreMulSum(int *op, void *factor, int dtype, int residence, comm_t *comm) {
    int code = ready(comm, __func__), i = 0;
    if (code) return code;
    if (!op || !factor || dtype < 0 || dtype >= DTYPES || residence < 0 || residence > 1)
        return fail(INVALID_ARGUMENT, "%s: op, scalar, datatype %d or residence %d", __func__, dtype, residence);
    while (i < OPS_OF_USERS_MAX && comm->factors[i].used) i++;
    if (i == OPS_OF_USERS_MAX) return fail(INTERNAL_ERROR, "%s: too many ops", __func__);
    comm->factors[i] = (factor_t){.used = 1, .dtype = dtype, .on_device = residence ? NULL : factor};
    if (residence) memcpy(comm->factors[i].value, factor, widths[dtype]);
    *op = OPS + i;
    return OK;
}

API int ncclRedOpDestroy(int op, comm_t *comm) {
    int code = ready(comm, __func__);
    if (code) return code;
    if (op < OPS || op >= OPS + OPS_OF_USERS_MAX || !comm->factors[op - OPS].used)
        return fail(INVALID_ARGUMENT, "%s: op %d was not created", __func__, op);
    comm->factors[op - OPS].used = 0;
    return OK;
}

#include "fakeccl_calls.h"

API int ncclGroupStart(void) {
    depth++;
    return injected(__func__);
}

API int ncclGroupEnd(void) {
    int code = injected(__func__);
    if (depth == 0) return fail(INVALID_USAGE, "%s: without ncclGroupStart", __func__);
    if (--depth) return code;
    int n = nqueued;
    nqueued = 0;
    return code ? code : calls_run(queue, n, __func__);
}
