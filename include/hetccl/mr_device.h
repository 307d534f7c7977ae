/* Registered memory of GPUs (layer L2): the ways to register it, tried in this order:
 *
 *     dma-buf       the runtime exports the allocation, the RDMA driver imports it (Linux 5.12, rdma-core 34)
 *     peer memory   ibv_reg_mr of the device's address, which a module of the GPU's vendor makes possible
 *
 * and if neither works, the caller has to stage the data in host memory. A way that fails before it has ever worked is
 * not tried again with that kind of memory on that RDMA device; one that has worked is refused to the allocation alone.
 *
 * An allocation is known by its buffer id, which the runtime is asked for at each use, not by its address alone: once
 * it is freed, the next one may lie at the same address. Under the same lock as the rest of mr_cache.h. */
#ifndef HETCCL_MR_DEVICE_H
#define HETCCL_MR_DEVICE_H

#include <unistd.h>

#include "hetccl/mr_direct.h"
#include "hetccl/mr_cache.h"

/* A loop (rail.h) reads a byte back, to flush what was written. No peer can read: its queue pairs are not given the
 * right. */
#define HETCCL_MR_DEVICE_ACCESS (HETCCL_MR_ACCESS | HETCCL_IBV_ACCESS_REMOTE_READ)

typedef struct hetccl_mr_stage {
    int event; /* enum hetccl_mr_event: what a failure means */
    /* Registers the whole allocation; NULL, and its errno. */
    hetccl_ibv_mr_t *(*reg)(hetccl_mr_cache_t *cache, const hetccl_runtime_t *runtime, const hetccl_pointer_t *about,
                            int *error_p);
} hetccl_mr_stage_t;

/* The progress thread has no context of its own. Whether it worked. */
static inline int hetccl_mr_export(const hetccl_runtime_t *runtime, const hetccl_pointer_t *about, int *fd,
                                   uint64_t *offset) {
    void *saved;
    if (runtime->enter(about->device, &saved) != 0) return 0;
    int code = runtime->dmabuf_export(about->base, about->nbytes, fd, offset);
    runtime->leave(saved);
    return code == 0;
}

static hetccl_ibv_mr_t *hetccl_mr_reg_dmabuf(hetccl_mr_cache_t *cache, const hetccl_runtime_t *runtime,
                                             const hetccl_pointer_t *about, int *error_p) {
    int fd = -1;
    uint64_t offset = 0;
    *error_p = EOPNOTSUPP;
    if (cache->verbs->reg_dmabuf_mr == NULL || !hetccl_mr_export(runtime, about, &fd, &offset)) return NULL;
    hetccl_ibv_mr_t *verbs = cache->verbs->reg_dmabuf_mr(cache->pd, offset, about->nbytes, (uintptr_t)about->base, fd,
                                                         HETCCL_MR_DEVICE_ACCESS);
    *error_p = verbs == NULL && errno ? errno : EIO;
    close(fd); /* the registration has a reference of its own */
    return verbs;
}

static hetccl_ibv_mr_t *hetccl_mr_reg_peer(hetccl_mr_cache_t *cache, const hetccl_runtime_t *runtime,
                                           const hetccl_pointer_t *about, int *error_p) {
    (void)runtime;
    hetccl_ibv_mr_t *verbs = cache->verbs->reg_mr(cache->pd, about->base, about->nbytes, HETCCL_MR_DEVICE_ACCESS);
    *error_p = verbs == NULL && errno ? errno : EIO;
    return verbs;
}

static const hetccl_mr_stage_t hetccl_mr_stages[] = {
    {HETCCL_MR_DMABUF, hetccl_mr_reg_dmabuf},
    {HETCCL_MR_PEERMEM, hetccl_mr_reg_peer},
};

enum { HETCCL_MR_NSTAGES = sizeof hetccl_mr_stages / sizeof *hetccl_mr_stages };

/* NULL: no stage can. *short_p: for want of room to pin or map it, which may come. */
static inline hetccl_ibv_mr_t *hetccl_mr_reg_staged(hetccl_mr_cache_t *cache, const hetccl_runtime_t *runtime,
                                                    const hetccl_pointer_t *about, int *short_p) {
    for (int i = 0; i < HETCCL_MR_NSTAGES; i++) {
        int error = 0;
        hetccl_ibv_mr_t *verbs;
        if (cache->stages_off[about->kind] >> i & 1) continue;
        do {
            verbs = hetccl_mr_stages[i].reg(cache, runtime, about, &error);
        } while (verbs == NULL && hetccl_mr_is_shortage(error) && hetccl_mr_evict_all(cache->notes));
        if (verbs != NULL) {
            cache->stages_proven[about->kind] |= 1u << i;
            return verbs;
        }
        hetccl_mr_tell(cache, hetccl_mr_stages[i].event, error, about->nbytes);
        *short_p = hetccl_mr_is_shortage(error);
        if (*short_p) return NULL;
        if (!(cache->stages_proven[about->kind] >> i & 1)) cache->stages_off[about->kind] |= 1u << i;
    }
    return NULL;
}

/* The allocation's registration, or that it was refused; NULL: it is new. One of an earlier allocation at the same
 * address goes. */
static inline hetccl_mr_t *hetccl_mr_find_device(hetccl_mr_cache_t *cache, const hetccl_pointer_t *about) {
    hetccl_mr_t *mr = cache->devices, *next;
    for (; mr != NULL; mr = next) {
        next = mr->next;
        if (mr->base != about->base) continue;
        if (about->buffer_id != 0 && mr->buffer_id == about->buffer_id && mr->nbytes == about->nbytes) return mr;
        if (about->buffer_id != 0) hetccl_mr_drop(mr);
    }
    return NULL;
}

/* NULL: *why_p says why. */
static inline hetccl_mr_t *hetccl_mr_new_device(hetccl_mr_cache_t *cache, const hetccl_runtime_t *runtime,
                                                const hetccl_pointer_t *about, int *why_p) {
    int is_short = 0;
    *why_p = about->nbytes > cache->max_nbytes ? HETCCL_DIRECT_LIMIT : HETCCL_DIRECT_SHORT;
    if (!hetccl_mr_make_room(cache, about->nbytes)) return NULL;
    hetccl_ibv_mr_t *verbs = hetccl_mr_reg_staged(cache, runtime, about, &is_short);
    int is_hopeless = cache->stages_off[about->kind] == (1u << HETCCL_MR_NSTAGES) - 1;
    if (verbs == NULL && !is_short) *why_p = HETCCL_DIRECT_REFUSED;
    if (verbs == NULL && (is_short || is_hopeless || about->buffer_id == 0)) return NULL;
    hetccl_mr_t *mr = calloc(1, sizeof *mr);
    if (mr == NULL) {
        if (verbs != NULL) hetccl_mr_dereg(cache, verbs);
        return NULL;
    }
    mr->cache = cache;
    mr->base = about->base;
    mr->buffer_id = about->buffer_id;
    mr->nbytes = about->nbytes;
    hetccl_mr_enter(mr, &cache->devices, verbs);
    return mr;
}

/* As hetccl_mr_cache_get(), for a whole allocation of a runtime's device, of which hetccl_direct_about() has told.
 * AGAIN: *why_p, enum hetccl_direct. Takes the lock. */
static inline int hetccl_mr_cache_get_device(hetccl_mr_cache_t *cache, const hetccl_runtime_t *runtime,
                                             const hetccl_pointer_t *about, hetccl_mem_t *mem, int *why_p) {
    pthread_mutex_lock(&cache->notes->lock);
    *why_p = HETCCL_DIRECT_REFUSED;
    hetccl_mr_t *mr = hetccl_mr_find_device(cache, about);
    if (mr == NULL) mr = hetccl_mr_new_device(cache, runtime, about, why_p);
    int status = HETCCL_AGAIN;
    if (mr != NULL && mr->verbs != NULL) {
        hetccl_mr_unlink(mr);
        hetccl_mr_link_newest(mr);
        status = hetccl_mr_hand_out(mr, mem);
    }
    pthread_mutex_unlock(&cache->notes->lock);
    return status;
}

#endif
