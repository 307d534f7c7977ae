/* How a table of runtime.h is filled from a library (layer L1): one line of a list per function of the library, from
 * which the macros below make the place for its address, the function that stands there if it is missing, and a row
 * that _runtime reads. A line is
 *     X(slot, symbol, older, release, parameters)
 * slot: of hetccl_runtime_t, served by this symbol, perhaps with others. symbol: its name in the library. older: its
 * name in older releases, or NULL. release: the library's first that has it. Symbols whose shape is the slot's go
 * right into the table; the others into a struct that adapters call. */
#ifndef HETCCL_SYMBOL_H
#define HETCCL_SYMBOL_H

#include "hetccl/runtime.h"

typedef struct hetccl_symbol {
    const char *slot;
    const char *name;
    const char *older;
    const char *release;
    void *target;      /* where the address goes */
    void *absent;      /* what goes there if the library lacks it: a function that answers HETCCL_MISSING */
    int either;        /* of the slot's symbols with 1, one is enough; those with 0 are all needed */
    const char *found; /* the name that the library knows, NULL: neither */
} hetccl_symbol_t;

#define HETCCL_ABSENT(slot, symbol, older, release, parameters) \
    static int hetccl_absent_##symbol parameters {              \
        return HETCCL_MISSING;                                  \
    }
#define HETCCL_POINTER(slot, symbol, older, release, parameters) int(*symbol) parameters;
#define HETCCL_ROW(slot, symbol, older, release, target, either) \
    {#slot, #symbol, older, release, (void *)(target), (void *)hetccl_absent_##symbol, either, NULL},

typedef struct hetccl_slot {
    const char *name;
    size_t offset; /* in hetccl_runtime_t */
} hetccl_slot_t;

#define HETCCL_SLOT(name) {#name, offsetof(hetccl_runtime_t, name)}

static const hetccl_slot_t hetccl_runtime_slots[] = {
    HETCCL_SLOT(enter),
    HETCCL_SLOT(leave),
    HETCCL_SLOT(device_count),
    HETCCL_SLOT(device_current),
    HETCCL_SLOT(device_active),
    HETCCL_SLOT(device_pci),
    HETCCL_SLOT(device_arch),
    HETCCL_SLOT(error_text),
    HETCCL_SLOT(alloc),
    HETCCL_SLOT(dealloc),
    HETCCL_SLOT(alloc_async),
    HETCCL_SLOT(dealloc_async),
    HETCCL_SLOT(host_alloc),
    HETCCL_SLOT(host_dealloc),
    HETCCL_SLOT(host_register),
    HETCCL_SLOT(host_unregister),
    HETCCL_SLOT(host_address),
    HETCCL_SLOT(pointer),
    HETCCL_SLOT(copy_async),
    HETCCL_SLOT(fill_async),
    HETCCL_SLOT(stream_create),
    HETCCL_SLOT(stream_destroy),
    HETCCL_SLOT(stream_query),
    HETCCL_SLOT(stream_synchronize),
    HETCCL_SLOT(stream_capturing),
    HETCCL_SLOT(stream_wait_event),
    HETCCL_SLOT(stream_write32),
    HETCCL_SLOT(stream_wait32),
    HETCCL_SLOT(host_function),
    HETCCL_SLOT(event_create),
    HETCCL_SLOT(event_destroy),
    HETCCL_SLOT(event_record),
    HETCCL_SLOT(event_query),
    HETCCL_SLOT(event_synchronize),
    HETCCL_SLOT(ipc_export),
    HETCCL_SLOT(ipc_open),
    HETCCL_SLOT(ipc_close),
    HETCCL_SLOT(dmabuf_export),
    HETCCL_SLOT(rdma_ordering),
    HETCCL_SLOT(rdma_flush),
    HETCCL_SLOT(module_load),
    HETCCL_SLOT(module_unload),
    HETCCL_SLOT(module_function),
    HETCCL_SLOT(launch),
};

enum { HETCCL_NSLOTS = sizeof hetccl_runtime_slots / sizeof *hetccl_runtime_slots };

/* One 8-byte value into many places, with what every runtime has: 4-byte fills and copies. The first element is
 * written, then what is written is doubled, so that the number of operations grows with the logarithm of count. */
static inline int hetccl_fill_pairs(const hetccl_runtime_t *table, void *dst, uint64_t value, size_t count,
                                    void *stream) {
    char *first = dst;
    uint32_t low = (uint32_t)value, high = (uint32_t)(value >> 32);
    if (low == high) return table->fill_async(dst, low, 4, 2 * count, stream);
    int code = table->fill_async(first, low, 4, 1, stream);
    if (!code) code = table->fill_async(first + 4, high, 4, 1, stream);
    for (size_t done = 1; !code && done < count; done *= 2) {
        size_t more = done < count - done ? done : count - done;
        code = table->copy_async(first + 8 * done, first, 8 * more, stream);
    }
    return code;
}

static inline void hetccl_text_lower(char *text) {
    for (; *text; text++)
        if (*text >= 'A' && *text <= 'Z') *text += 'a' - 'A';
}

#endif
