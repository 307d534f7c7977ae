/* Why memory of a GPU can, or cannot, be reached by RDMA devices (layer L2): what the ladder of mr_device.h, the rails
 * and the wire answer. */
#ifndef HETCCL_MR_DIRECT_H
#define HETCCL_MR_DIRECT_H

#include "hetccl/runtime.h"

enum hetccl_direct {
    HETCCL_DIRECT = 0,             /* it can */
    HETCCL_DIRECT_HOST = 1,        /* the runtime does not know it as a GPU's */
    HETCCL_DIRECT_MANAGED = 2,     /* it migrates between host and GPU */
    HETCCL_DIRECT_PIECES = 3,      /* it reaches beyond its allocation: mapped in pieces */
    HETCCL_DIRECT_REFUSED = 4,     /* neither a dma-buf nor a peer-memory module registers it */
    HETCCL_DIRECT_SHORT = 5,       /* no more can be registered now */
    HETCCL_DIRECT_LIMIT = 6,       /* larger than what is ever registered */
    HETCCL_DIRECT_UNCONNECTED = 7, /* the peer is not connected (yet) */
    HETCCL_DIRECT_TCP = 8,         /* a rail of the peer is TCP's */
    HETCCL_DIRECT_SHM = 9,         /* the peer is reached through shared memory */
    HETCCL_DIRECT_LOOP = 10,       /* a device has no loop (rail.h), which this memory needs */
    HETCCL_DIRECT_FLUSH = 11,      /* it has been written, and who reads it may not see that: the flush failed */
    HETCCL_DIRECT_FETCH = 12,      /* the receiver wants to read it where it landed */
    HETCCL_DIRECT_NREASONS = 13,
};

/* What the runtime says of memory that is to be registered; 0, or enum hetccl_direct. No bytes are nobody's. */
static inline int hetccl_direct_about(const hetccl_runtime_t *runtime, uintptr_t address, size_t nbytes,
                                      hetccl_pointer_t *about) {
    if (nbytes == 0 || runtime->pointer((const void *)address, about) != 0) return HETCCL_DIRECT_HOST;
    if (about->kind == HETCCL_MEM_HOST || about->base == NULL) return HETCCL_DIRECT_HOST;
    if (about->managed) return HETCCL_DIRECT_MANAGED;
    uintptr_t base = (uintptr_t)about->base;
    return nbytes > about->nbytes - (address - base) ? HETCCL_DIRECT_PIECES : HETCCL_DIRECT;
}

#endif
