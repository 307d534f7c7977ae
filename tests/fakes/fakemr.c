/* Two things for the tests of registered memory (include/hetccl/mr_cache.h, mr_device.h): a table of verbs functions
 * and one of a GPU runtime that note what they are asked and fail when told to; and, for tests that need no Python
 * object, a cache over them, called by ctypes. Nothing is pinned: a registration is a number. */
#include <pthread.h>

#include "hetccl/mr_device.h"

#define EXPORT __attribute__((visibility("default")))

enum { REG, DMABUF, DEREG, EXPORT_FD, NCALLS };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { int skip, times, error; } plan[NCALLS];
static long calls[NCALLS], live, live_nbytes;
static uint32_t next_key = 1000;
static int fork_status = HETCCL_IBV_FORK_UNNEEDED;
static int open_fds;

/* Whether this call is to fail; errno is set. */
static int fails(int call) {
    pthread_mutex_lock(&lock);
    calls[call]++;
    int error = 0;
    if (plan[call].skip > 0)
        plan[call].skip--;
    else if (plan[call].times > 0 && plan[call].times--)
        error = plan[call].error;
    pthread_mutex_unlock(&lock);
    errno = error;
    return error;
}

static hetccl_ibv_mr_t *mr_new(void *ptr, size_t nbytes) {
    hetccl_ibv_mr_t *mr = calloc(1, sizeof *mr);
    pthread_mutex_lock(&lock);
    mr->addr = ptr;
    mr->length = nbytes;
    mr->lkey = next_key++;
    mr->rkey = mr->lkey + 1000000;
    live++;
    live_nbytes += nbytes;
    pthread_mutex_unlock(&lock);
    return mr;
}

static hetccl_ibv_mr_t *reg_mr(hetccl_ibv_pd_t *pd, void *ptr, size_t nbytes, int access) {
    (void)pd;
    if (access != HETCCL_MR_ACCESS && access != HETCCL_MR_DEVICE_ACCESS) abort();
    return fails(REG) ? NULL : mr_new(ptr, nbytes);
}

static hetccl_ibv_mr_t *reg_dmabuf_mr(hetccl_ibv_pd_t *pd, uint64_t offset, size_t nbytes, uint64_t iova, int fd,
                                      int access) {
    (void)pd;
    if (access != HETCCL_MR_DEVICE_ACCESS || fd < 0 || offset != iova % 4096) abort();
    return fails(DMABUF) ? NULL : mr_new((void *)iova, nbytes);
}

static int dereg_mr(hetccl_ibv_mr_t *mr) {
    int error = fails(DEREG);
    if (error) return error;
    pthread_mutex_lock(&lock);
    live--;
    live_nbytes -= mr->length;
    pthread_mutex_unlock(&lock);
    free(mr);
    return 0;
}

static int is_fork_initialized(void) { return fork_status; }

static hetccl_verbs_t verbs = {
    .reg_mr = reg_mr,
    .reg_dmabuf_mr = reg_dmabuf_mr,
    .dereg_mr = dereg_mr,
    .is_fork_initialized = is_fork_initialized,
};

/* The allocation that the runtime knows. */
static hetccl_pointer_t allocation;

static int pointer(const void *ptr, hetccl_pointer_t *about) {
    uintptr_t place = (uintptr_t)ptr - (uintptr_t)allocation.base;
    *about = place < allocation.nbytes ? allocation : (hetccl_pointer_t){.kind = HETCCL_MEM_HOST, .device = -1};
    return 0;
}

static int entered; /* 1: in the allocation's device's context */

static int dmabuf_export(void *ptr, size_t nbytes, int *fd, uint64_t *offset) {
    (void)nbytes;
    if (entered != 1) abort();
    if (fails(EXPORT_FD)) return HETCCL_MISSING;
    *fd = dup(0);
    *offset = (uintptr_t)ptr % 4096;
    open_fds++;
    return 0;
}

static int enter(int device, void **saved) {
    *saved = &entered;
    entered += device == allocation.device;
    return 0;
}

static int leave(void *saved) {
    if (saved != &entered || entered-- != 1) abort();
    return 0;
}

static hetccl_runtime_t runtime = {
    .name = "fake", .enter = enter, .leave = leave, .pointer = pointer, .dmabuf_export = dmabuf_export};

EXPORT void *fake_table(void) { return &verbs; }

/* From the call after the next `skip` on, so many calls of a function fail. */
EXPORT void fake_fail(int call, int skip, int times, int error) {
    plan[call].skip = skip;
    plan[call].times = times;
    plan[call].error = error;
}

EXPORT void fake_reset(void) {
    memset(plan, 0, sizeof plan);
    memset(calls, 0, sizeof calls);
    live = live_nbytes = 0;
    fork_status = HETCCL_IBV_FORK_UNNEEDED;
    verbs.reg_dmabuf_mr = reg_dmabuf_mr;
    verbs.is_fork_initialized = is_fork_initialized;
}

EXPORT long fake_calls(int call) { return calls[call]; }
EXPORT long fake_live(void) { return live; }
EXPORT long fake_live_nbytes(void) { return live_nbytes; }
EXPORT void fake_fork_status(int status) { fork_status = status; }
EXPORT void fake_lacks_dmabuf(void) { verbs.reg_dmabuf_mr = NULL; }
EXPORT void fake_lacks_fork_status(void) { verbs.is_fork_initialized = NULL; }

/* The one allocation that the runtime knows from now on. */
EXPORT void fake_allocate(void *base, size_t nbytes, uint64_t buffer_id, int kind, int managed) {
    allocation = (hetccl_pointer_t){.kind = kind, .buffer_id = buffer_id, .base = base, .nbytes = nbytes,
                                    .managed = managed};
}

static hetccl_mr_notes_t notes = {.lock = PTHREAD_MUTEX_INITIALIZER};
static hetccl_mr_cache_t caches[2];

EXPORT void cache_open(int which, int max_count, size_t max_nbytes) {
    hetccl_mr_cache_open(&caches[which], &notes, &verbs, NULL, "fake", max_count, max_nbytes);
}

EXPORT void cache_close(int which) { hetccl_mr_cache_close(&caches[which]); }
EXPORT uint32_t cache_told(int which) { return caches[which].told; }
EXPORT int cache_error(int which, int event) { return caches[which].error[event]; }
EXPORT int cache_count(int which) { return caches[which].count; }
EXPORT size_t cache_nbytes(int which) { return caches[which].nbytes; }
EXPORT int cache_nengine(int which) { return caches[which].nengine; }

EXPORT int cache_get(int which, void *ptr, size_t nbytes, int whose, hetccl_mem_t *mem) {
    return hetccl_mr_cache_get(&caches[which], ptr, nbytes, whose, mem);
}

/* Why the last cache_get_device() said no. */
static int why;
EXPORT int cache_why(void) { return why; }

EXPORT int cache_get_device(int which, void *ptr, size_t nbytes, hetccl_mem_t *mem) {
    hetccl_pointer_t about;
    why = hetccl_direct_about(&runtime, (uintptr_t)ptr, nbytes, &about);
    if (why) return HETCCL_AGAIN;
    int status = hetccl_mr_cache_get_device(&caches[which], &runtime, &about, mem, &why);
    if (status == HETCCL_DONE) why = HETCCL_DIRECT;
    return status;
}

EXPORT void cache_put(int which, hetccl_mem_t *mem) { hetccl_mr_cache_put(&caches[which], mem); }

EXPORT void *range_note(void *base, size_t nbytes, int promised) {
    pthread_mutex_lock(&notes.lock);
    hetccl_mr_range_t *range = hetccl_mr_note(&notes, base, nbytes, promised);
    pthread_mutex_unlock(&notes.lock);
    return range;
}

EXPORT void range_forget(hetccl_mr_range_t *range) {
    pthread_mutex_lock(&notes.lock);
    hetccl_mr_forget(&notes, range);
    pthread_mutex_unlock(&notes.lock);
}

EXPORT int range_keep(hetccl_mr_range_t *range) {
    pthread_mutex_lock(&notes.lock);
    int ndevices = hetccl_mr_keep(&notes, range);
    pthread_mutex_unlock(&notes.lock);
    return ndevices;
}

EXPORT void range_release(hetccl_mr_range_t *range) {
    pthread_mutex_lock(&notes.lock);
    hetccl_mr_release(&notes, range);
    pthread_mutex_unlock(&notes.lock);
}

EXPORT void *range_find(void *ptr, size_t nbytes) {
    return hetccl_mr_ranges_find(&notes.ranges, (uintptr_t)ptr, nbytes);
}

EXPORT void *range_touching(void *ptr, size_t nbytes) {
    return hetccl_mr_ranges_touching(&notes.ranges, (uintptr_t)ptr, nbytes);
}

EXPORT size_t range_count(void) { return notes.ranges.count; }

/* What threads do to one another: one notes and forgets, the others get and put, all over the same few addresses. */
static void *user_of(void *seed_p) {
    unsigned seed = (unsigned)(uintptr_t)seed_p;
    for (int i = 0; i < 20000; i++) {
        hetccl_mem_t mem = {0};
        uintptr_t ptr = 0x10000 + (rand_r(&seed) % 8) * 0x1000;
        int which = rand_r(&seed) % 2, whose = rand_r(&seed) % 16 == 0 ? HETCCL_MEM_OF_ENGINE : HETCCL_MEM_OF_USER;
        if (cache_get(which, (void *)ptr, 1 + rand_r(&seed) % 0x1000, whose, &mem) == HETCCL_DONE)
            cache_put(which, &mem);
    }
    return NULL;
}

static void *owner_of(void *seed_p) {
    unsigned seed = (unsigned)(uintptr_t)seed_p;
    hetccl_mr_range_t *ranges[8] = {0};
    for (int i = 0; i < 20000; i++) {
        int which = rand_r(&seed) % 8;
        if (ranges[which] != NULL) range_forget(ranges[which]);
        ranges[which] = rand_r(&seed) % 4 ? range_note((void *)(uintptr_t)(0x10000 + which * 0x1000), 0x1000, 0) : NULL;
    }
    for (int i = 0; i < 8; i++)
        if (ranges[i] != NULL) range_forget(ranges[i]);
    return NULL;
}

/* Registrations that are left after it. */
EXPORT long race(unsigned seed) {
    pthread_t threads[4];
    cache_open(0, 3, 1 << 20);
    cache_open(1, 5, 1 << 20);
    for (unsigned i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, i ? user_of : owner_of, (void *)(uintptr_t)(4 * seed + i));
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    long left = cache_count(0) + cache_count(1) + cache_nengine(0) + cache_nengine(1) + (long)range_count();
    cache_close(0);
    cache_close(1);
    return left + fake_live();
}

#ifdef RACE_MAIN
int main(void) {
    for (unsigned seed = 0; seed < 5; seed++)
        if (race(seed) != 0) return 1;
    return 0;
}
#endif
