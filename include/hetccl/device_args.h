/* What a reduction kernel is launched with: shared by the host, which fills it, and the kernels (device_reduce.h). */
#ifndef HETCCL_DEVICE_ARGS_H
#define HETCCL_DEVICE_ARGS_H

#include "hetccl/abi.h"

enum {
    HETCCL_DEVICE_SOURCES = 8, /* of one launch at most */
    HETCCL_DEVICE_BLOCK = 256, /* threads of a block: 4 of AMD's wavefronts of 64, 8 of NVIDIA's warps */
    HETCCL_DEVICE_ACCESS = 16  /* bytes of the widest load of a thread */
};

/* The one argument of every kernel, by value. */
typedef struct hetccl_device_args {
    void *out;
    const void *in[HETCCL_DEVICE_SOURCES]; /* in the order of the fold; out may be one of them */
    uint64_t count;                        /* elements */
    uint64_t factor[2];                    /* of a product with a factor: one element's bytes, from the first byte on */
    uint32_t nsources;                     /* 1 to HETCCL_DEVICE_SOURCES */
    uint32_t nblocks;                      /* of the grid: a kernel cannot ask for it everywhere */
    uint32_t divisor;                      /* of an average: 1 or more */
    uint32_t zero;                         /* so that no byte of the argument is undefined */
} hetccl_device_args_t;

#endif
