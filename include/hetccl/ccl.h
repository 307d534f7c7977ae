/* What a vendor's CCL offers, whichever it is (layer L1): one table, filled at run time from NCCL, RCCL or oneCCL. The
 * collectives have NCCL's own C signatures, so that the library's functions go in as they are; dtypes and ops are the
 * vendor's numbers. Every function answers 0 or the library's own code. A function that the library lacks is the one of
 * that shape that answers HETCCL_MISSING. */
#ifndef HETCCL_CCL_H
#define HETCCL_CCL_H

#include <stddef.h>
#include <stdint.h>

#include "hetccl/runtime.h"

enum { HETCCL_ID_BYTES_MAX = 4096 };

typedef struct hetccl_ccl hetccl_ccl_t;

struct hetccl_ccl {
    const char *name; /* "NCCL", "RCCL", "oneCCL" */
    int version;      /* as the library encodes it */
    int in_progress;  /* the code of a non-blocking communicator that is not done */
    size_t id_nbytes; /* of its unique id */

    int (*all_reduce)(const void *send, void *recv, size_t count, int dtype, int op, void *comm, void *stream);
    int (*reduce)(const void *send, void *recv, size_t count, int dtype, int op, int root, void *comm, void *stream);
    int (*reduce_scatter)(const void *send, void *recv, size_t recvcount, int dtype, int op, void *comm, void *stream);
    int (*broadcast)(const void *send, void *recv, size_t count, int dtype, int root, void *comm, void *stream);
    int (*all_gather)(const void *send, void *recv, size_t sendcount, int dtype, void *comm, void *stream);
    int (*all_to_all)(const void *send, void *recv, size_t count, int dtype, void *comm, void *stream);
    int (*gather)(const void *send, void *recv, size_t count, int dtype, int root, void *comm, void *stream);
    int (*scatter)(const void *send, void *recv, size_t count, int dtype, int root, void *comm, void *stream);
    int (*send)(const void *send, size_t count, int dtype, int peer, void *comm, void *stream);
    int (*recv)(void *recv, size_t count, int dtype, int peer, void *comm, void *stream);
    int (*group_start)(void);
    int (*group_end)(void);

    /* Life. `id`: id_nbytes bytes. init blocks until all ranks have come, and so may split: see ccl_birth.h. Whatever
     * answers in_progress is done when async_error says so. */
    int (*unique_id)(const hetccl_ccl_t *ccl, void *id);
    int (*init)(const hetccl_ccl_t *ccl, void **comm, int nranks, const void *id, int rank);
    int (*split)(const hetccl_ccl_t *ccl, void *comm, int color, int key, void **child); /* color -1: in none */
    int (*async_error)(void *comm, int *code);
    int (*finalize)(void *comm);
    int (*destroy)(void *comm);
    int (*abort)(void *comm);
    int (*count)(void *comm, int *nranks);
    int (*user_rank)(void *comm, int *rank);
    int (*op_create)(int *op, void *factor, int dtype, int residence, void *comm); /* residence 1: read at the call */
    int (*op_destroy)(int op, void *comm);
    int (*register_buffer)(void *comm, void *ptr, size_t nbytes, void **handle);
    int (*deregister_buffer)(void *comm, void *handle);
    const char *(*error_text)(int code);
    const char *(*last_error)(void *comm); /* what went wrong last in this thread, at length; may be "" */

    void *raw[4]; /* the library's functions that take the id by value or a configuration, for the adapters above */
};

#endif
