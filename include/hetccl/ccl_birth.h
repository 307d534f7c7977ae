/* The making of a communicator, on a thread of its own (layer L2). A communicator of NCCL's that does not block can be
 * waited for with a time-out, but starts a thread for each call (2.28: 50 to 60 us); one that blocks cannot be given
 * up while it connects. So it is the wait that is given up: the thread and what it works on are then left behind. */
#ifndef HETCCL_CCL_BIRTH_H
#define HETCCL_CCL_BIRTH_H

#include <string.h>

#include "hetccl/ccl_job.h"

typedef struct hetccl_birth {
    const hetccl_ccl_t *ccl;
    hetccl_job_t *job;
    void *comm; /* what the library made */
    int nranks, rank;
    char id[HETCCL_ID_BYTES_MAX];
} hetccl_birth_t;

static int hetccl_birth_main(void *argument) {
    hetccl_birth_t *birth = argument;
    return birth->ccl->init(birth->ccl, &birth->comm, birth->nranks, birth->id, birth->rank);
}

/* NULL: no memory, or no thread. */
static inline hetccl_birth_t *hetccl_birth_start(const hetccl_ccl_t *ccl, const hetccl_runtime_t *gpu, int device,
                                                 int nranks, int rank, const void *id) {
    hetccl_birth_t *birth = calloc(1, sizeof *birth);
    if (!birth) return NULL;
    birth->ccl = ccl;
    birth->nranks = nranks;
    birth->rank = rank;
    memcpy(birth->id, id, ccl->id_nbytes);
    birth->job = hetccl_job_start(gpu, device, hetccl_birth_main, birth);
    if (!birth->job) {
        free(birth);
        return NULL;
    }
    return birth;
}

/* 1 when the library has answered `code` and made *comm; the birth is then gone. */
static inline int hetccl_birth_wait(hetccl_birth_t *birth, int64_t timeout_ns, int *code, void **comm) {
    if (!hetccl_job_wait(birth->job, timeout_ns, code)) return 0;
    *comm = birth->comm;
    hetccl_job_drop(birth->job);
    free(birth);
    return 1;
}

#endif
