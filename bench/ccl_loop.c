/* A plain loop over NCCL's functions: what bench/gpu.py measures hetccl against. Built as a shared library and loaded
 * into the benchmark's own processes, so that all contenders share one copy of NCCL, the buffers and the stream. NCCL
 * is the one that the process has loaded; its header is not needed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stddef.h>
#include <time.h>

enum { IN_PROGRESS = 7, MISSING = -1, ID_BYTES = 128 };
enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL };
enum { FLOAT32 = 7, SUM = 0, FLOAT_BYTES = 4 };

typedef struct unique_id {
    char bytes[ID_BYTES];
} unique_id_t;

/* The first fields of ncclConfig_t, as NCCL 2.18.1 has them. */
typedef struct config {
    size_t size;
    unsigned magic;
    unsigned version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share;
} config_t;

static struct {
    int (*version)(int *);
    int (*unique_id)(unique_id_t *);
    int (*init)(void **, int, unique_id_t, int, config_t *);
    int (*async_error)(void *, int *);
    int (*destroy)(void *);
    int (*all_reduce)(const void *, void *, size_t, int, int, void *, void *);
    int (*all_gather)(const void *, void *, size_t, int, void *, void *);
    int (*reduce_scatter)(const void *, void *, size_t, int, int, void *, void *);
    int (*all_to_all)(const void *, void *, size_t, int, void *, void *);
    int (*send)(const void *, size_t, int, int, void *, void *);
    int (*recv)(void *, size_t, int, int, void *, void *);
    int (*group_start)(void);
    int (*group_end)(void);
} nccl;

static int settle(void *comm, int code)
{
    while (code == IN_PROGRESS) {
        int failed = nccl.async_error(comm, &code);
        if (failed)
            return failed;
    }
    return code;
}

/* path: of the library that the process has loaded. Its version goes to *version. */
int ccl_loop_open(const char *path, int *version)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (!library)
        return MISSING;
#define FIND(slot, name) \
    if (!(*(void **)&nccl.slot = dlsym(library, name))) \
    return MISSING
    FIND(version, "ncclGetVersion");
    FIND(unique_id, "ncclGetUniqueId");
    FIND(init, "ncclCommInitRankConfig");
    FIND(async_error, "ncclCommGetAsyncError");
    FIND(destroy, "ncclCommDestroy");
    FIND(all_reduce, "ncclAllReduce");
    FIND(all_gather, "ncclAllGather");
    FIND(reduce_scatter, "ncclReduceScatter");
    FIND(send, "ncclSend");
    FIND(recv, "ncclRecv");
    FIND(group_start, "ncclGroupStart");
    FIND(group_end, "ncclGroupEnd");
#undef FIND
    *(void **)&nccl.all_to_all = dlsym(library, "ncclAlltoAll"); /* since 2.28 */
    return nccl.version(version);
}

int ccl_loop_id(unique_id_t *id)
{
    return nccl.unique_id(id);
}

int ccl_loop_init(int ranks, const unique_id_t *id, int rank, int blocking, void **comm)
{
    config_t config = {sizeof config, 0xcafebeef, 21801, blocking, INT_MIN, INT_MIN, INT_MIN, NULL, INT_MIN};
    int code = nccl.init(comm, ranks, *id, rank, &config);
    return settle(*comm, code);
}

int ccl_loop_close(void *comm)
{
    return nccl.destroy(comm);
}

static int exchange(const char *send, char *recv, size_t count, int ranks, void *comm, void *stream)
{
    size_t nbytes = count * FLOAT_BYTES;
    int code = nccl.group_start();
    for (int peer = 0; peer < ranks && !code; peer++) {
        code = nccl.send(send + peer * nbytes, count, FLOAT32, peer, comm, stream);
        if (!code)
            code = nccl.recv(recv + peer * nbytes, count, FLOAT32, peer, comm, stream);
    }
    int ended = nccl.group_end();
    return code ? code : ended;
}

static int call(int collective, const void *send, void *recv, size_t count, int ranks, void *comm, void *stream)
{
    switch (collective) {
    case ALL_REDUCE:
        return nccl.all_reduce(send, recv, count, FLOAT32, SUM, comm, stream);
    case ALL_GATHER:
        return nccl.all_gather(send, recv, count, FLOAT32, comm, stream);
    case REDUCE_SCATTER:
        return nccl.reduce_scatter(send, recv, count, FLOAT32, SUM, comm, stream);
    default:
        if (nccl.all_to_all)
            return nccl.all_to_all(send, recv, count, FLOAT32, comm, stream);
        return exchange(send, recv, count, ranks, comm, stream);
    }
}

/* Queue `calls` calls of `count` float32 per rank (all-reduce: in all); the host's seconds for that go to *seconds. */
int ccl_loop_run(int collective, const void *send, void *recv, size_t count, int ranks, void *comm, void *stream,
                 int calls, double *seconds)
{
    struct timespec begin, end;
    int code = 0;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 0; i < calls && !code; i++)
        code = settle(comm, call(collective, send, recv, count, ranks, comm, stream));
    clock_gettime(CLOCK_MONOTONIC, &end);
    *seconds = (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
    return code;
}
