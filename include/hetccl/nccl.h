/* NCCL's and RCCL's functions that take the id by value or a configuration (layer L1). Declared here, since no vendor's
 * header is included. Source: nccl.h of 2.18; later releases only add to the end of the configuration, and read as much
 * of it as `size` says. */
#ifndef HETCCL_NCCL_H
#define HETCCL_NCCL_H

#include <limits.h>

#include "hetccl/ccl.h"

enum {
    HETCCL_NCCL_ID_BYTES = 128,
    HETCCL_NCCL_IN_PROGRESS = 7,
    HETCCL_NCCL_CONFIG_VERSION = 21801, /* the release that this prefix of the struct belongs to */
    HETCCL_NCCL_UNDEFINED = INT_MIN
};

#define HETCCL_NCCL_CONFIG_MAGIC 0xcafebeefu

enum { HETCCL_NCCL_INIT, HETCCL_NCCL_SPLIT, HETCCL_NCCL_UNIQUE_ID }; /* of hetccl_ccl_t's raw */

typedef struct hetccl_nccl_id {
    char bytes[HETCCL_NCCL_ID_BYTES];
} hetccl_nccl_id_t;

typedef struct hetccl_nccl_config {
    size_t size;
    unsigned magic;
    unsigned version;
    int blocking;
    int cga_cluster_size;
    int min_ctas;
    int max_ctas;
    const char *net_name;
    int split_share;
} hetccl_nccl_config_t;

static inline hetccl_nccl_config_t hetccl_nccl_config(void) {
    return (hetccl_nccl_config_t){
        .size = sizeof(hetccl_nccl_config_t),
        .magic = HETCCL_NCCL_CONFIG_MAGIC,
        .version = HETCCL_NCCL_CONFIG_VERSION,
        .blocking = 1, /* see ccl_birth.h */
        .cga_cluster_size = HETCCL_NCCL_UNDEFINED,
        .min_ctas = HETCCL_NCCL_UNDEFINED,
        .max_ctas = HETCCL_NCCL_UNDEFINED,
        .net_name = NULL,
        .split_share = HETCCL_NCCL_UNDEFINED,
    };
}

static int hetccl_nccl_unique_id(const hetccl_ccl_t *ccl, void *id) {
    return ((int (*)(void *))ccl->raw[HETCCL_NCCL_UNIQUE_ID])(id);
}

static int hetccl_nccl_init(const hetccl_ccl_t *ccl, void **comm, int nranks, const void *id, int rank) {
    typedef int init_fn(void **, int, hetccl_nccl_id_t, int, hetccl_nccl_config_t *);
    hetccl_nccl_config_t config = hetccl_nccl_config();
    return ((init_fn *)ccl->raw[HETCCL_NCCL_INIT])(comm, nranks, *(const hetccl_nccl_id_t *)id, rank, &config);
}

static int hetccl_nccl_split(const hetccl_ccl_t *ccl, void *comm, int color, int key, void **child) {
    typedef int split_fn(void *, int, int, void **, hetccl_nccl_config_t *);
    hetccl_nccl_config_t config = hetccl_nccl_config();
    return ((split_fn *)ccl->raw[HETCCL_NCCL_SPLIT])(comm, color, key, child, &config);
}

#endif
