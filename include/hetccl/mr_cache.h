/* Registered memory (layer L2): which of a user's memory an RDMA device may reach directly, and until when.
 *
 * One cache per protection domain, all of them over the same noted ranges (mr_range.h). A rail gets keys for the memory
 * of a message here and gives them back when the last write that uses them is complete. A range is registered whole
 * when it is first used, and stays so until its owner dies or room is needed: registering costs about as much as
 * copying.
 *
 * Everything is guarded by one lock of the process, which is taken last: whoever holds it calls into libibverbs, never
 * into Python, and takes no other lock. So it may be taken with the GIL or an engine's mutex held. */
#ifndef HETCCL_MR_CACHE_H
#define HETCCL_MR_CACHE_H

#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "hetccl/mr_range.h"
#include "hetccl/rail.h"
#include "hetccl/verbs.h"

/* What a user should hear of, once per device: bits of hetccl_mr_cache_t.told. */
enum hetccl_mr_event {
    HETCCL_MR_MEMLOCK = 0, /* the system does not let so much memory be pinned */
    HETCCL_MR_REFUSED = 1, /* the memory cannot be pinned: read-only or a device's mapping, a file */
    HETCCL_MR_LIMIT = 2,   /* larger than this cache's own limit */
    HETCCL_MR_STUCK = 3,   /* dereg_mr failed: the memory stays pinned */
    HETCCL_MR_DMABUF = 4,  /* device memory cannot be registered as a dma-buf */
    HETCCL_MR_PEERMEM = 5, /* nor by a peer-memory module */
    HETCCL_MR_FORK = 6,    /* a child of fork could not touch registered memory */
    HETCCL_MR_NEVENTS = 7,
};

enum { HETCCL_MR_NAME_CHARS = 64, HETCCL_MR_NKINDS = 4 /* enum hetccl_memory */ };

struct hetccl_mr_cache;

/* One registration, or that it was refused. */
typedef struct hetccl_mr {
    hetccl_ibv_mr_t *verbs; /* NULL: refused; or revoked, since the memory's owner died while it was in use */
    struct hetccl_mr_cache *cache;
    hetccl_mr_range_t *range; /* NULL: of the engine's memory, of a device's, or revoked */
    struct hetccl_mr *next;   /* of the range; of the cache's device allocations */
    struct hetccl_mr *older, *newer; /* of the cache, by last use */
    size_t nbytes;
    int users;
    uint64_t buffer_id; /* of a device's allocation, 0: its runtime has none; an address alone may be another's */
    void *base;         /* of a device's allocation; NULL: host memory */
} hetccl_mr_t;

/* The process's noted ranges. */
typedef struct hetccl_mr_notes {
    pthread_mutex_t lock;
    hetccl_mr_ranges_t ranges;
    struct hetccl_mr_cache *caches;
    int news; /* some cache has something to tell; read without the lock */
} hetccl_mr_notes_t;

typedef struct hetccl_mr_cache {
    hetccl_mr_notes_t *notes;
    struct hetccl_mr_cache *next;
    const hetccl_verbs_t *verbs;
    hetccl_ibv_pd_t *pd;
    int automatic;     /* 0: only what users have registered themselves */
    int max_count;     /* of users' registrations */
    size_t max_nbytes; /* of them together */
    int count;
    size_t nbytes;
    int nengine;       /* registrations of the engine's memory */
    hetccl_mr_t *oldest, *newest; /* users' registrations, by last use */
    hetccl_mr_t *devices;         /* those of device memory, and the refused allocations */
    uint32_t stages_off[HETCCL_MR_NKINDS];    /* by kind of memory: stages that do not work here (mr_device.h) */
    uint32_t stages_proven[HETCCL_MR_NKINDS]; /* stages that have worked */
    uint32_t told; /* events that have happened, from 1 << enum hetccl_mr_event */
    uint32_t news; /* those that nobody has been told of yet */
    int error[HETCCL_MR_NEVENTS];     /* errno of each event's first time */
    size_t event_nbytes[HETCCL_MR_NEVENTS];
    char name[HETCCL_MR_NAME_CHARS];  /* of the RDMA device */
} hetccl_mr_cache_t;

#define HETCCL_MR_ACCESS (HETCCL_IBV_ACCESS_LOCAL_WRITE | HETCCL_IBV_ACCESS_REMOTE_WRITE)

static inline void hetccl_mr_tell(hetccl_mr_cache_t *cache, int event, int error, size_t nbytes) {
    if (cache->told >> event & 1) return;
    cache->told |= 1u << event;
    cache->news |= 1u << event;
    cache->error[event] = error;
    cache->event_nbytes[event] = nbytes;
    __atomic_store_n(&cache->notes->news, 1, __ATOMIC_RELAXED);
}

/* The order of use. */
static inline void hetccl_mr_unlink(hetccl_mr_t *mr) {
    hetccl_mr_cache_t *cache = mr->cache;
    *(mr->older ? &mr->older->newer : &cache->oldest) = mr->newer;
    *(mr->newer ? &mr->newer->older : &cache->newest) = mr->older;
    mr->older = mr->newer = NULL;
}

static inline void hetccl_mr_link_newest(hetccl_mr_t *mr) {
    hetccl_mr_cache_t *cache = mr->cache;
    mr->newer = NULL;
    mr->older = cache->newest;
    *(mr->older ? &mr->older->newer : &cache->oldest) = mr;
    cache->newest = mr;
}

static inline void hetccl_mr_dereg(hetccl_mr_cache_t *cache, hetccl_ibv_mr_t *verbs) {
    int rc = cache->verbs->dereg_mr(verbs);
    if (rc != 0) hetccl_mr_tell(cache, HETCCL_MR_STUCK, hetccl_verbs_errno(rc), 0);
}

/* Takes a user's registration back, and out of the order of use; what refers to it must be told otherwise. */
static inline void hetccl_mr_revoke(hetccl_mr_t *mr) {
    hetccl_mr_cache_t *cache = mr->cache;
    if (mr->verbs != NULL) {
        hetccl_mr_unlink(mr);
        cache->count--;
        cache->nbytes -= mr->nbytes;
        hetccl_mr_dereg(cache, mr->verbs);
    }
    mr->verbs = NULL;
    mr->range = NULL;
    if (mr->users == 0) free(mr);
}

static inline void hetccl_mr_leave_list(hetccl_mr_t **list, const hetccl_mr_t *mr) {
    while (*list != mr) list = &(*list)->next;
    *list = mr->next;
}

static inline void hetccl_mr_drop(hetccl_mr_t *mr) {
    hetccl_mr_leave_list(mr->range ? &mr->range->mrs : &mr->cache->devices, mr);
    hetccl_mr_revoke(mr);
}

static inline int hetccl_mr_may_go(const hetccl_mr_t *mr) {
    return mr->users == 0 && (mr->range == NULL || mr->range->kept == 0);
}

/* Evicts what has not been used for the longest time. 0: all are in use, or kept. */
static inline int hetccl_mr_evict_one(hetccl_mr_cache_t *cache) {
    for (hetccl_mr_t *mr = cache->oldest; mr != NULL; mr = mr->newer) {
        if (!hetccl_mr_may_go(mr)) continue;
        hetccl_mr_drop(mr);
        return 1;
    }
    return 0;
}

/* Evicts what is unused, in all caches: they pin memory under the same limit. Whether there was anything. */
static inline int hetccl_mr_evict_all(hetccl_mr_notes_t *notes) {
    int evicted = 0;
    for (hetccl_mr_cache_t *cache = notes->caches; cache != NULL; cache = cache->next)
        while (hetccl_mr_evict_one(cache)) evicted = 1;
    return evicted;
}

/* Whether an errno of a registration means that memory or the right to pin it is short. */
static inline int hetccl_mr_is_shortage(int error) { return error == ENOMEM || error == EAGAIN || error == EPERM; }

static inline hetccl_ibv_mr_t *hetccl_mr_reg(hetccl_mr_cache_t *cache, void *ptr, size_t nbytes, int *error_p) {
    for (;;) {
        hetccl_ibv_mr_t *verbs = cache->verbs->reg_mr(cache->pd, ptr, nbytes, HETCCL_MR_ACCESS);
        if (verbs != NULL) return verbs;
        *error_p = errno ? errno : EIO;
        if (!hetccl_mr_is_shortage(*error_p) || !hetccl_mr_evict_all(cache->notes)) return NULL;
    }
}

static inline int hetccl_mr_hand_out(hetccl_mr_t *mr, hetccl_mem_t *mem) {
    mr->users++;
    mem->lkey = mr->verbs->lkey;
    mem->rkey = mr->verbs->rkey;
    mem->handle = mr;
    return HETCCL_DONE;
}

static inline int hetccl_mr_get_engines(hetccl_mr_cache_t *cache, void *ptr, size_t nbytes, hetccl_mem_t *mem) {
    int error = 0;
    hetccl_mr_t *mr = calloc(1, sizeof *mr);
    if (mr == NULL) return HETCCL_AGAIN;
    mr->verbs = hetccl_mr_reg(cache, ptr, nbytes, &error);
    if (mr->verbs == NULL) {
        hetccl_mr_tell(cache, hetccl_mr_is_shortage(error) ? HETCCL_MR_MEMLOCK : HETCCL_MR_REFUSED, error, nbytes);
        free(mr);
        return HETCCL_AGAIN;
    }
    mr->cache = cache;
    cache->nengine++;
    return hetccl_mr_hand_out(mr, mem);
}

/* Room for a registration within the cache's limits. 0: not now; not ever if it is told so. */
static inline int hetccl_mr_make_room(hetccl_mr_cache_t *cache, size_t nbytes) {
    if (nbytes > cache->max_nbytes) hetccl_mr_tell(cache, HETCCL_MR_LIMIT, 0, nbytes);
    if (nbytes > cache->max_nbytes) return 0;
    while (cache->count >= cache->max_count || cache->nbytes + nbytes > cache->max_nbytes)
        if (!hetccl_mr_evict_one(cache)) return 0;
    return 1;
}

/* Where the kernel copies registered pages for a child of fork, the child shall have them, though another library of
 * the process (UCX and libfabric, inside an MPI) may have called ibv_fork_init(), which then keeps them from it all the
 * same. Memory that cannot be advised on stays as it is. */
static inline void hetccl_mr_let_inherit(const hetccl_mr_cache_t *cache, const hetccl_mr_range_t *range) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = range->base & ~(page - 1);
    if (cache->automatic) madvise((void *)start, hetccl_mr_range_end(range) - start, MADV_DOFORK);
}

/* Enters a registration that is new. */
static inline void hetccl_mr_enter(hetccl_mr_t *mr, hetccl_mr_t **list, hetccl_ibv_mr_t *verbs) {
    mr->verbs = verbs;
    mr->next = *list;
    *list = mr;
    if (verbs == NULL) return; /* remembered, so that it is not tried again */
    hetccl_mr_link_newest(mr);
    mr->cache->count++;
    mr->cache->nbytes += mr->nbytes;
}

static inline hetccl_mr_t *hetccl_mr_of(const hetccl_mr_range_t *range, const hetccl_mr_cache_t *cache) {
    hetccl_mr_t *mr = range->mrs;
    while (mr != NULL && mr->cache != cache) mr = mr->next;
    return mr;
}

static inline hetccl_mr_t *hetccl_mr_new(hetccl_mr_cache_t *cache, hetccl_mr_range_t *range) {
    int error = 0;
    if (!hetccl_mr_make_room(cache, range->nbytes)) return NULL;
    hetccl_mr_t *mr = calloc(1, sizeof *mr);
    if (mr == NULL) return NULL;
    mr->cache = cache;
    mr->range = range;
    mr->nbytes = range->nbytes;
    hetccl_ibv_mr_t *verbs = hetccl_mr_reg(cache, (void *)range->base, range->nbytes, &error);
    if (verbs == NULL)
        hetccl_mr_tell(cache, hetccl_mr_is_shortage(error) ? HETCCL_MR_MEMLOCK : HETCCL_MR_REFUSED, error,
                       range->nbytes);
    else
        hetccl_mr_let_inherit(cache, range);
    hetccl_mr_enter(mr, &range->mrs, verbs);
    return mr;
}

static inline int hetccl_mr_get_noted(hetccl_mr_cache_t *cache, void *ptr, size_t nbytes, hetccl_mem_t *mem) {
    hetccl_mr_range_t *range = hetccl_mr_ranges_find(&cache->notes->ranges, (uintptr_t)ptr, nbytes);
    if (range == NULL) return HETCCL_AGAIN;
    if (!cache->automatic && range->kept == 0) {
        hetccl_mr_tell(cache, HETCCL_MR_FORK, 0, nbytes);
        return HETCCL_AGAIN;
    }
    hetccl_mr_t *mr = hetccl_mr_of(range, cache);
    if (mr == NULL) mr = hetccl_mr_new(cache, range);
    if (mr == NULL || mr->verbs == NULL) return HETCCL_AGAIN;
    hetccl_mr_unlink(mr);
    hetccl_mr_link_newest(mr);
    return hetccl_mr_hand_out(mr, mem);
}

/* Keys of memory, in use until put(). whose: enum hetccl_mem_owner. AGAIN: it cannot be registered: go through memory
 * that is. Takes the lock. */
static inline int hetccl_mr_cache_get(hetccl_mr_cache_t *cache, void *ptr, size_t nbytes, int whose,
                                      hetccl_mem_t *mem) {
    if (nbytes == 0) return HETCCL_AGAIN;
    pthread_mutex_lock(&cache->notes->lock);
    int status = whose == HETCCL_MEM_OF_ENGINE ? hetccl_mr_get_engines(cache, ptr, nbytes, mem)
                                               : hetccl_mr_get_noted(cache, ptr, nbytes, mem);
    pthread_mutex_unlock(&cache->notes->lock);
    return status;
}

static inline void hetccl_mr_let_go(hetccl_mem_t *mem) {
    hetccl_mr_t *mr = mem->handle;
    mem->handle = NULL;
    mr->users--;
    if (mr->range == NULL && mr->base == NULL && mr->verbs != NULL) { /* the engine's: registered for one user alone */
        mr->cache->nengine--;
        hetccl_mr_dereg(mr->cache, mr->verbs);
        mr->verbs = NULL;
    }
    if (mr->users > 0) return;
    if (mr->verbs == NULL)
        free(mr);
    else if (mr->base != NULL && mr->buffer_id == 0) /* it could not be told from the next one at that address */
        hetccl_mr_drop(mr);
}

/* No write that uses the keys is under way any more. Takes the lock. */
static inline void hetccl_mr_cache_put(hetccl_mr_cache_t *cache, hetccl_mem_t *mem) {
    if (mem->handle == NULL) return;
    pthread_mutex_lock(&cache->notes->lock);
    hetccl_mr_let_go(mem);
    pthread_mutex_unlock(&cache->notes->lock);
}

/* Notes a range. NULL: it cannot be, and is staged. The caller holds the lock, here and below. */
static inline hetccl_mr_range_t *hetccl_mr_note(hetccl_mr_notes_t *notes, void *base, size_t nbytes, int promised) {
    return hetccl_mr_ranges_add(&notes->ranges, (uintptr_t)base, nbytes, promised);
}

/* The range's memory may go after this. A registration that is in use is revoked at once: a write that still comes
 * fails, instead of changing what lies there next. */
static inline void hetccl_mr_forget(hetccl_mr_notes_t *notes, hetccl_mr_range_t *range) {
    while (range->mrs != NULL) {
        hetccl_mr_t *mr = range->mrs;
        range->mrs = mr->next;
        hetccl_mr_revoke(mr);
    }
    hetccl_mr_ranges_remove(&notes->ranges, range);
    range->gone = 1;
    if (range->kept == 0) free(range);
}

/* Registers a range now, with each device there is, until release(): how many took it. */
static inline int hetccl_mr_keep(hetccl_mr_notes_t *notes, hetccl_mr_range_t *range) {
    int ndevices = 0;
    hetccl_mem_t mem;
    range->kept++;
    for (hetccl_mr_cache_t *cache = notes->caches; cache != NULL; cache = cache->next) {
        if (hetccl_mr_get_noted(cache, (void *)range->base, range->nbytes, &mem) != HETCCL_DONE) continue;
        hetccl_mr_let_go(&mem);
        ndevices++;
    }
    return ndevices;
}

static inline void hetccl_mr_release(hetccl_mr_notes_t *notes, hetccl_mr_range_t *range) {
    if (--range->kept > 0) return;
    if (range->gone)
        free(range);
    else if (range->promised)
        hetccl_mr_forget(notes, range);
}

/* Whether memory that other data may share pages with can be registered: without the kernel's help (Linux 5.12),
 * ibv_fork_init() takes the pages of registered memory away from a child of fork, which then dies at their next use. */
static inline int hetccl_mr_shares_pages(const hetccl_verbs_t *verbs) {
    return verbs->is_fork_initialized != NULL && verbs->is_fork_initialized() == HETCCL_IBV_FORK_UNNEEDED;
}

/* verbs, pd: of the device, kept by the caller until close(). */
static inline void hetccl_mr_cache_open(hetccl_mr_cache_t *cache, hetccl_mr_notes_t *notes, const hetccl_verbs_t *verbs,
                                        hetccl_ibv_pd_t *pd, const char *name, int max_count, size_t max_nbytes) {
    memset(cache, 0, sizeof *cache);
    cache->notes = notes;
    cache->verbs = verbs;
    cache->pd = pd;
    cache->automatic = hetccl_mr_shares_pages(verbs);
    cache->max_count = max_count;
    cache->max_nbytes = max_nbytes;
    snprintf(cache->name, sizeof cache->name, "%s", name);
    cache->next = notes->caches;
    notes->caches = cache;
}

/* Takes all users' registrations back. Nothing may be in use any more: the protection domain goes next. Under the
 * lock. */
static inline void hetccl_mr_cache_close(hetccl_mr_cache_t *cache) {
    hetccl_mr_notes_t *notes = cache->notes;
    for (size_t i = 0; i < notes->ranges.count; i++) {
        hetccl_mr_t *mr = hetccl_mr_of(notes->ranges.at[i], cache);
        if (mr != NULL) hetccl_mr_drop(mr);
    }
    while (cache->devices != NULL) hetccl_mr_drop(cache->devices);
    hetccl_mr_cache_t **list = &notes->caches;
    while (*list != cache) list = &(*list)->next;
    *list = cache->next;
    cache->notes = NULL;
}

#endif
