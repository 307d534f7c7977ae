/* The fake's collectives and messages: each becomes transfers between pairs of ranks, and perhaps a reduction after
 * them. The calls of a group are run together, each communicator's in turn. */
#ifndef FAKECCL_CALLS_H
#define FAKECCL_CALLS_H

static void add(transfer_t *transfers, size_t *n, int is_send, int peer, int kind, const char *ptr, size_t nbytes) {
    if (nbytes) transfers[(*n)++] = (transfer_t){is_send, peer, (uint32_t)kind, (char *)ptr, nbytes, 0};
}

/* Between this rank and all: what goes to a rank lies at its index times `send_step`, and likewise what comes. */
static void add_all(call_t *call, transfer_t *t, size_t *n, const char *send, size_t send_step, char *recv,
                    size_t recv_step) {
    size_t nbytes = call->count * widths[call->dtype];
    for (int peer = 0; peer < call->comm->link.nranks; peer++) {
        if (send) add(t, n, 1, peer, call->kind, send + peer * send_step, nbytes);
        if (recv) add(t, n, 0, peer, call->kind, recv + peer * recv_step, nbytes);
    }
}

static void add_transfers(call_t *call, transfer_t *t, size_t *n) {
    size_t nbytes = call->count * widths[call->dtype];
    const char *send = call->scaled ? call->scaled : call->send;
    char *recv = call->recv;
    int is_root = call->peer == call->comm->link.rank;
    switch (call->kind) {
        case ALL_REDUCE: add_all(call, t, n, send, 0, call->parts, nbytes); break;
        case REDUCE_SCATTER: add_all(call, t, n, send, nbytes, call->parts, nbytes); break;
        case ALL_GATHER: add_all(call, t, n, send, 0, recv, nbytes); break;
        case ALL_TO_ALL: add_all(call, t, n, send, nbytes, recv, nbytes); break;
        case REDUCE:
        case GATHER:
            add(t, n, 1, call->peer, call->kind, send, nbytes);
            if (is_root) add_all(call, t, n, NULL, 0, call->kind == REDUCE ? call->parts : recv, nbytes);
            break;
        case BROADCAST:
        case SCATTER:
            if (is_root) add_all(call, t, n, send, call->kind == SCATTER ? nbytes : 0, NULL, 0);
            add(t, n, 0, call->peer, call->kind, recv, nbytes);
            break;
        case SEND: add(t, n, 1, call->peer, SEND, send, nbytes); break;
        case RECV: add(t, n, 0, call->peer, SEND, recv, nbytes); break;
        default: break;
    }
}

static int has_op(const call_t *call) {
    return call->kind == ALL_REDUCE || call->kind == REDUCE || call->kind == REDUCE_SCATTER;
}

/* The memory of a reduction, and the operand times the factor of an op made by the user. */
static int prepare(call_t *call) {
    int nranks = call->comm->link.nranks;
    size_t nelements = call->count * (call->kind == REDUCE_SCATTER ? nranks : 1), width = widths[call->dtype];
    if (!has_op(call)) return OK;
    call->parts = malloc(nranks * call->count * width + 1);
    if (!call->parts) return fail(SYSTEM_ERROR, "no memory");
    if (call->op < OPS) return OK;
    factor_t *factor = &call->comm->factors[call->op - OPS];
    call->scaled = malloc(nelements * width + 1);
    if (!call->scaled) return fail(SYSTEM_ERROR, "no memory");
    scale(call->dtype, factor->on_device ? factor->on_device : factor->value, call->send, call->scaled, nelements);
    return OK;
}

static void finish(call_t *call, int was_right) {
    wire_t *link = &call->comm->link;
    if (was_right && has_op(call) && (call->kind != REDUCE || call->peer == link->rank))
        reduce(call->dtype, call->op < OPS ? call->op : SUM, call->recv, call->parts, call->count, link->nranks);
    free(call->parts);
    free(call->scaled);
}

/* Run the calls of one communicator; calls of others are left alone. */
static int calls_run_of(comm_t *comm, call_t *calls, int n, const char *function) {
    size_t ntransfers = 0;
    transfer_t *transfers = calloc((size_t)n * 2 * comm->link.nranks, sizeof *transfers);
    int code = transfers ? OK : fail(SYSTEM_ERROR, "no memory");
    atomic_fetch_add(&comm->inside, 1);
    for (int i = 0; i < n && !code; i++)
        if (calls[i].comm == comm) {
            code = prepare(&calls[i]);
            add_transfers(&calls[i], transfers, &ntransfers);
        }
    if (!code) code = explain(transfers_run(&comm->link, transfers, ntransfers), function);
    if (comm->is_blocking) hang(&comm->link.aborted, function);
    for (int i = 0; i < n; i++)
        if (calls[i].comm == comm) finish(&calls[i], !code);
    int is_first = comm->ncalls++ == 0;
    /* As NCCL, which connects the ranks when they first need it. */
    if (!code) code = done(comm, function, is_first);
    atomic_fetch_sub(&comm->inside, 1);
    free(transfers);
    return code;
}

static int calls_run(call_t *calls, int n, const char *function) {
    int outcome = OK;
    for (int i = 0; i < n; i++) {
        int is_first = 1;
        for (int j = 0; j < i; j++) is_first &= calls[j].comm != calls[i].comm;
        if (!is_first) continue;
        int code = calls_run_of(calls[i].comm, calls, n, function);
        if (outcome == OK || outcome == IN_PROGRESS) outcome = code ? code : outcome;
    }
    return outcome;
}

static int check_call(const call_t *call, const char *function) {
    const comm_t *comm = call->comm;
    int needs_send = call->kind != RECV && !(call->kind == BROADCAST || call->kind == SCATTER);
    int is_root = call->peer == comm->link.rank, needs_recv = call->kind != SEND;
    if (call->kind == REDUCE || call->kind == GATHER) needs_recv = is_root;
    if (call->kind == BROADCAST || call->kind == SCATTER) needs_send = is_root;
    if (call->dtype < 0 || call->dtype >= DTYPES)
        return fail(INVALID_ARGUMENT, "%s: datatype %d", function, call->dtype);
    if (call->peer < 0 || call->peer >= comm->link.nranks)
        return fail(INVALID_ARGUMENT, "%s: root or peer %d of %d ranks", function, call->peer, comm->link.nranks);
    if (call->count && ((needs_send && !call->send) || (needs_recv && !call->recv)))
        return fail(INVALID_ARGUMENT, "%s: a buffer is NULL", function);
    if (!has_op(call)) return OK;
    int own = call->op - OPS;
    if (call->op < 0 || own >= OPS_OF_USERS_MAX || (own >= 0 && !comm->factors[own].used))
        return fail(INVALID_ARGUMENT, "%s: op %d", function, call->op);
    if (own >= 0 && comm->factors[own].dtype != call->dtype)
        return fail(INVALID_ARGUMENT, "%s: op %d is of another datatype", function, call->op);
    return OK;
}

static int enqueue(call_t call, const char *function) {
    int code = ready(call.comm, function);
    if (!code) code = check_call(&call, function);
    if (code) return code;
    if (depth == 0) return calls_run(&call, 1, function);
    if (nqueued == CALLS_MAX) return fail(INTERNAL_ERROR, "%s: too many calls in a group", function);
    queue[nqueued++] = call;
    return OK;
}

API int ncclAllReduce(const void *send, void *recv, size_t count, int dtype, int op, comm_t *comm, void *stream) {
    (void)stream;
    return enqueue((call_t){ALL_REDUCE, comm, send, recv, count, dtype, op, 0, NULL, NULL}, __func__);
}

API int ncclReduce(const void *send, void *recv, size_t count, int dtype, int op, int root, comm_t *comm,
                   void *stream) {
    (void)stream;
    return enqueue((call_t){REDUCE, comm, send, recv, count, dtype, op, root, NULL, NULL}, __func__);
}

API int ncclReduceScatter(const void *send, void *recv, size_t count, int dtype, int op, comm_t *comm, void *stream) {
    (void)stream;
    return enqueue((call_t){REDUCE_SCATTER, comm, send, recv, count, dtype, op, 0, NULL, NULL}, __func__);
}

API int ncclBroadcast(const void *send, void *recv, size_t count, int dtype, int root, comm_t *comm, void *stream) {
    (void)stream;
    return enqueue((call_t){BROADCAST, comm, send, recv, count, dtype, 0, root, NULL, NULL}, __func__);
}

API int ncclAllGather(const void *send, void *recv, size_t count, int dtype, comm_t *comm, void *stream) {
    (void)stream;
    return enqueue((call_t){ALL_GATHER, comm, send, recv, count, dtype, 0, 0, NULL, NULL}, __func__);
}

API int ncclAlltoAll(const void *send, void *recv, size_t count, int dtype, comm_t *comm, void *stream) {
    (void)stream;
    return enqueue((call_t){ALL_TO_ALL, comm, send, recv, count, dtype, 0, 0, NULL, NULL}, __func__);
}

API int ncclGather(const void *send, void *recv, size_t count, int dtype, int root, comm_t *comm, void *stream) {
    (void)stream;
    return enqueue((call_t){GATHER, comm, send, recv, count, dtype, 0, root, NULL, NULL}, __func__);
}

API int ncclScatter(const void *send, void *recv, size_t count, int dtype, int root, comm_t *comm, void *stream) {
    (void)stream;
    return enqueue((call_t){SCATTER, comm, send, recv, count, dtype, 0, root, NULL, NULL}, __func__);
}

API int ncclSend(const void *send, size_t count, int dtype, int peer, comm_t *comm, void *stream) {
    (void)stream;
    return enqueue((call_t){SEND, comm, send, NULL, count, dtype, 0, peer, NULL, NULL}, __func__);
}

API int ncclRecv(void *recv, size_t count, int dtype, int peer, comm_t *comm, void *stream) {
    (void)stream;
    return enqueue((call_t){RECV, comm, NULL, recv, count, dtype, 0, peer, NULL, NULL}, __func__);
}

/* The colors and keys of all ranks decide who is in the child, and as which rank. */
API int ncclCommSplit(comm_t *comm, int color, int key, comm_t **out, const config_t *config) {
    int code = ready(comm, __func__), mine[2] = {color, key}, all[2 * RANKS_MAX], rank = 0, nranks = 0;
    char name[NAME_BYTES];
    if (!code) code = check_config(config, __func__);
    if (code) return code;
    if (!out || color < NO_COLOR) return fail(INVALID_ARGUMENT, "%s: newcomm is NULL, or color %d", __func__, color);
    call_t call = {ALL_GATHER, comm, mine, all, 2, INT32, 0, 0, NULL, NULL};
    *out = NULL;
    code = calls_run_of(comm, &call, 1, __func__);
    if (code != OK && code != IN_PROGRESS) return code;
    for (int i = 0; i < comm->link.nranks; i++) {
        if (all[2 * i] != color) continue;
        nranks++;
        rank += all[2 * i + 1] < key || (all[2 * i + 1] == key && i < comm->link.rank);
    }
    snprintf(name, sizeof name, "%.200s-%d-%d", comm->link.name, comm->nsplits++, color);
    if (color != NO_COLOR) {
        int born = comm_new(out, name, rank, nranks, blocks(config, comm->is_blocking), __func__);
        if (born != OK && born != IN_PROGRESS) return born;
    }
    return done(comm, __func__, 1);
}

#endif
