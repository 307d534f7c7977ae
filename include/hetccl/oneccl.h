/* What oneCCL's C API looks like (layer L1). Declared here, since no vendor's header is included. Source: oneapi/ccl.h
 * and oneapi/ccl/v2/types.h of 2022.2; a test compares the two. */
#ifndef HETCCL_ONECCL_H
#define HETCCL_ONECCL_H

#include "hetccl/ccl.h"

enum {
    HETCCL_ONECCL_INVALID_USAGE = 5,
    HETCCL_ONECCL_IN_PROGRESS = 6,
    HETCCL_ONECCL_NO_MEMORY = 9,
    HETCCL_ONECCL_ID_BYTES = 4096
};

typedef struct hetccl_oneccl_id {
    char bytes[HETCCL_ONECCL_ID_BYTES];
} hetccl_oneccl_id_t;

/* The two whose shapes are not the table's. */
typedef int hetccl_oneccl_unique_id_fn(hetccl_oneccl_id_t *id);
typedef int hetccl_oneccl_init_fn(void **comm, size_t nranks, hetccl_oneccl_id_t id, int rank);

/* Names of types.h: the library's own texts know fewer. NULL: 2022.2 has no such code. */
static inline const char *hetccl_oneccl_result_name(int code) {
    switch (code) {
        case 0: return "onecclSuccess";
        case 1: return "onecclError";
        case 2: return "onecclSystemError";
        case 3: return "onecclInternalError";
        case 4: return "onecclInvalidArgument";
        case HETCCL_ONECCL_INVALID_USAGE: return "onecclInvalidUsage";
        case HETCCL_ONECCL_IN_PROGRESS: return "onecclInProgress";
        case 7: return "onecclFailureGPU";
        case 8: return "onecclFailureCPU";
        case HETCCL_ONECCL_NO_MEMORY: return "onecclAllocFailureCPU";
        case 10: return "onecclAllocFailureGPU";
        case 11: return "onecclPluginException";
        case 12: return "onecclNotImplemented";
        default: return NULL;
    }
}

#endif
