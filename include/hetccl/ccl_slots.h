/* The table of a vendor's CCL by the names of its slots, and what stands in a slot whose function the library lacks
 * (layer L1). */
#ifndef HETCCL_CCL_SLOTS_H
#define HETCCL_CCL_SLOTS_H

#include <string.h>

#include "hetccl/ccl.h"

static int hetccl_lacks_all_reduce(const void *s, void *r, size_t n, int t, int o, void *c, void *q) {
    return HETCCL_MISSING;
}
static int hetccl_lacks_reduce(const void *s, void *r, size_t n, int t, int o, int root, void *c, void *q) {
    return HETCCL_MISSING;
}
static int hetccl_lacks_rooted(const void *s, void *r, size_t n, int t, int root, void *c, void *q) {
    return HETCCL_MISSING;
}
static int hetccl_lacks_all_gather(const void *s, void *r, size_t n, int t, void *c, void *q) { return HETCCL_MISSING; }
static int hetccl_lacks_send(const void *s, size_t n, int t, int peer, void *c, void *q) { return HETCCL_MISSING; }
static int hetccl_lacks_recv(void *r, size_t n, int t, int peer, void *c, void *q) { return HETCCL_MISSING; }
static int hetccl_lacks_group(void) { return HETCCL_MISSING; }
static int hetccl_lacks_unique_id(const hetccl_ccl_t *l, void *id) { return HETCCL_MISSING; }
static int hetccl_lacks_init(const hetccl_ccl_t *l, void **c, int n, const void *id, int rank) {
    return HETCCL_MISSING;
}
static int hetccl_lacks_split(const hetccl_ccl_t *l, void *c, int color, int key, void **child) {
    return HETCCL_MISSING;
}
static int hetccl_lacks_number(void *c, int *number) { return HETCCL_MISSING; }
static int hetccl_lacks_ending(void *c) { return HETCCL_MISSING; }
static int hetccl_lacks_op_create(int *op, void *f, int t, int residence, void *c) { return HETCCL_MISSING; }
static int hetccl_lacks_op_destroy(int op, void *c) { return HETCCL_MISSING; }
static int hetccl_lacks_register(void *c, void *p, size_t n, void **h) { return HETCCL_MISSING; }
static int hetccl_lacks_deregister(void *c, void *h) { return HETCCL_MISSING; }
static const char *hetccl_lacks_error_text(int code) { return "no text"; }
static const char *hetccl_lacks_last_error(void *c) { return ""; }

#define HETCCL_CCL_SLOT(slot, function) {#slot, offsetof(hetccl_ccl_t, slot), (void *)(function)}

typedef struct hetccl_ccl_slot {
    const char *name;
    size_t offset; /* in hetccl_ccl_t */
    void *missing; /* the function of that shape that answers HETCCL_MISSING */
} hetccl_ccl_slot_t;

static const hetccl_ccl_slot_t hetccl_ccl_slots[] = {
    HETCCL_CCL_SLOT(all_reduce, hetccl_lacks_all_reduce),
    HETCCL_CCL_SLOT(reduce, hetccl_lacks_reduce),
    HETCCL_CCL_SLOT(reduce_scatter, hetccl_lacks_all_reduce),
    HETCCL_CCL_SLOT(broadcast, hetccl_lacks_rooted),
    HETCCL_CCL_SLOT(all_gather, hetccl_lacks_all_gather),
    HETCCL_CCL_SLOT(all_to_all, hetccl_lacks_all_gather),
    HETCCL_CCL_SLOT(gather, hetccl_lacks_rooted),
    HETCCL_CCL_SLOT(scatter, hetccl_lacks_rooted),
    HETCCL_CCL_SLOT(send, hetccl_lacks_send),
    HETCCL_CCL_SLOT(recv, hetccl_lacks_recv),
    HETCCL_CCL_SLOT(group_start, hetccl_lacks_group),
    HETCCL_CCL_SLOT(group_end, hetccl_lacks_group),
    HETCCL_CCL_SLOT(unique_id, hetccl_lacks_unique_id),
    HETCCL_CCL_SLOT(init, hetccl_lacks_init),
    HETCCL_CCL_SLOT(split, hetccl_lacks_split),
    HETCCL_CCL_SLOT(async_error, hetccl_lacks_number),
    HETCCL_CCL_SLOT(finalize, hetccl_lacks_ending),
    HETCCL_CCL_SLOT(destroy, hetccl_lacks_ending),
    HETCCL_CCL_SLOT(abort, hetccl_lacks_ending),
    HETCCL_CCL_SLOT(count, hetccl_lacks_number),
    HETCCL_CCL_SLOT(user_rank, hetccl_lacks_number),
    HETCCL_CCL_SLOT(op_create, hetccl_lacks_op_create),
    HETCCL_CCL_SLOT(op_destroy, hetccl_lacks_op_destroy),
    HETCCL_CCL_SLOT(register_buffer, hetccl_lacks_register),
    HETCCL_CCL_SLOT(deregister_buffer, hetccl_lacks_deregister),
    HETCCL_CCL_SLOT(error_text, hetccl_lacks_error_text),
    HETCCL_CCL_SLOT(last_error, hetccl_lacks_last_error),
};

enum { HETCCL_CCL_SLOTS = sizeof hetccl_ccl_slots / sizeof hetccl_ccl_slots[0] };

static inline void **hetccl_ccl_place(hetccl_ccl_t *table, int index) {
    return (void **)((char *)table + hetccl_ccl_slots[index].offset);
}

#endif
