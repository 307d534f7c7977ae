/* What a GPU runtime offers, whoever made it (layer L1): one table of functions, filled at run time from the CUDA
 * driver, from HIP, or with the host's own. Every function answers 0 or the runtime's own error code; a function that
 * the library lacks answers HETCCL_MISSING, never success. Handles are the runtime's own pointers. Streams: NULL is the
 * legacy default stream. All but `enter` need the device's context to be current. */
#ifndef HETCCL_RUNTIME_H
#define HETCCL_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#include "hetccl/abi.h"

enum { HETCCL_MISSING = -32768 }; /* no vendor's code */

enum { HETCCL_PCI_CHARS = 16, HETCCL_ARCH_CHARS = 64, HETCCL_IPC_BYTES = 64 };

/* Who sees what an RDMA device has written to a GPU's memory once its completion is there. CUDA's numbers. */
enum hetccl_rdma_scope { HETCCL_RDMA_NOBODY = 0, HETCCL_RDMA_OWNER = 100, HETCCL_RDMA_ALL_DEVICES = 200 };

/* What the runtime knows of an address. */
typedef struct hetccl_pointer {
    int kind;           /* enum hetccl_memory: host for memory that no runtime knows */
    int device;         /* -1: of no device */
    int registered;     /* host memory that the device can reach */
    int managed;        /* migrates between host and device */
    uint64_t buffer_id; /* names the allocation for good; 0 where the runtime has none */
    void *base;         /* of the allocation; NULL: not known */
    size_t nbytes;      /* of the allocation */
} hetccl_pointer_t;

typedef struct hetccl_runtime {
    const char *name; /* "cuda", "hip", "host" */
    int kind;         /* enum hetccl_memory of its device memory */
    int version;      /* as the runtime encodes it */
    int not_ready;    /* what stream_query and event_query answer while work is left */

    /* Make the device's context the thread's current one; `saved` is what was, for leave(). */
    int (*enter)(int device, void **saved);
    int (*leave)(void *saved);
    int (*device_count)(int *count);
    int (*device_current)(int *device); /* of this thread; -1: none yet */
    int (*device_active)(int device, int *active); /* whether this process has a context on it */
    int (*device_pci)(int device, char *text);  /* "dddd:bb:dd.f", HETCCL_PCI_CHARS */
    int (*device_arch)(int device, char *text); /* "sm_90", "gfx942", HETCCL_ARCH_CHARS */
    const char *(*error_text)(int code);        /* "CUDA_ERROR_OUT_OF_MEMORY: out of memory" or the like; never NULL */

    int (*alloc)(void **ptr, size_t nbytes); /* here and below: nbytes above 0 */
    int (*dealloc)(void *ptr);
    int (*alloc_async)(void **ptr, size_t nbytes, void *stream);
    int (*dealloc_async)(void *ptr, void *stream);
    int (*host_alloc)(void **ptr, size_t nbytes); /* pinned, and visible to all devices */
    int (*host_dealloc)(void *ptr);
    int (*host_register)(void *ptr, size_t nbytes);
    int (*host_unregister)(void *ptr);
    int (*host_address)(void *ptr, void **on_device); /* where the device sees pinned or registered memory */
    int (*pointer)(const void *ptr, hetccl_pointer_t *about);

    /* Any direction; 0 bytes need no address. */
    int (*copy_async)(void *dst, const void *src, size_t nbytes, void *stream);
    /* count elements of width bytes (1, 2, 4 or 8), all of `value`'s low bytes. */
    int (*fill_async)(void *dst, uint64_t value, size_t width, size_t count, void *stream);

    int (*stream_create)(void **stream); /* does not wait for the legacy default stream */
    int (*stream_destroy)(void *stream);
    int (*stream_query)(void *stream);
    int (*stream_synchronize)(void *stream);
    int (*stream_capturing)(void *stream, int *capturing);
    int (*stream_wait_event)(void *stream, void *event);
    int (*stream_write32)(void *stream, void *ptr, uint32_t value);
    int (*stream_wait32)(void *stream, void *ptr, uint32_t value); /* until (int32_t)(*ptr - value) >= 0 */
    int (*host_function)(void *stream, void (*function)(void *), void *argument);

    int (*event_create)(void **event); /* without timing */
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_query)(void *event);
    int (*event_synchronize)(void *event);

    int (*ipc_export)(void *ptr, void *handle); /* HETCCL_IPC_BYTES */
    int (*ipc_open)(const void *handle, void **ptr);
    int (*ipc_close)(void *ptr);
    int (*dmabuf_export)(void *ptr, size_t nbytes, int *fd, uint64_t *offset); /* ptr is at offset of the new fd */
    /* *scope: enum hetccl_rdma_scope, without a flush; *flushable: whether rdma_flush() works. No context is needed. */
    int (*rdma_ordering)(int device, int *scope, int *flushable);
    int (*rdma_flush)(int scope); /* what was written to the current device is seen by `scope` when it returns */

    int (*module_load)(void **module, const void *image);
    int (*module_unload)(void *module);
    int (*module_function)(void **function, void *module, const char *name);
    int (*launch)(void *function, const unsigned *grid, const unsigned *block, unsigned shared_nbytes, void *stream,
                  void **arguments);
} hetccl_runtime_t;

#endif
