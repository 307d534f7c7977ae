/* The bytes of a message where its owner has them (layer L2): contiguous, or as its layout says. For transports. */
#ifndef HETCCL_MESSAGE_H
#define HETCCL_MESSAGE_H

#include <string.h>
#include <sys/uio.h>

#include "hetccl/layout.h"
#include "hetccl/transport.h"

/* A GPU's memory is not the CPU's to touch: who tries ends here, whatever the address means to it. */
static inline void hetccl_msg_on_host(const hetccl_msg_t *msg) {
    if (__builtin_expect(msg->device.runtime != NULL, 0)) __builtin_trap();
}

/* Copies the message's bytes [at, at + nbytes) to out. */
static inline void hetccl_msg_get(const hetccl_msg_t *msg, size_t at, size_t nbytes, uint8_t *out) {
    if (nbytes > 0) hetccl_msg_on_host(msg);
    if (msg->layout) {
        hetccl_layout_pack(msg->layout, msg->ptr, msg->skip + at, nbytes, out);
    } else if (nbytes > 0) {
        memcpy(out, msg->ptr + at, nbytes);
    }
}

/* Copies to them, in the way that its flags ask for. */
static inline void hetccl_msg_put(const hetccl_msg_t *msg, size_t at, size_t nbytes, const uint8_t *bytes) {
    int past_cache = msg->flags & HETCCL_MSG_PAST_CACHE;
    if (nbytes == 0) return;
    hetccl_msg_on_host(msg);
    if (msg->layout && past_cache) {
        hetccl_layout_unpack_past(msg->layout, msg->ptr, msg->skip + at, nbytes, bytes);
    } else if (msg->layout) {
        hetccl_layout_unpack(msg->layout, msg->ptr, msg->skip + at, nbytes, bytes);
    } else if (past_cache) {
        hetccl_copy_past_cache(msg->ptr + at, bytes, nbytes);
    } else {
        memcpy(msg->ptr + at, bytes, nbytes);
    }
    if (past_cache) hetccl_copy_fence();
}

/* Where all of its bytes lie, if in one run; else NULL. */
static inline uint8_t *hetccl_msg_only_run(const hetccl_msg_t *msg) {
    struct iovec run;
    if (!msg->layout) return msg->ptr;
    hetccl_layout_runs(msg->layout, msg->ptr, msg->skip, msg->nbytes, &run, 1);
    return run.iov_len == msg->nbytes ? run.iov_base : NULL;
}

#endif
