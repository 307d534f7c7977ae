/* Host memory as a runtime with one device (layer L1, used by _host alone): what runs on a stream is done when the call
 * returns, so streams and events are tokens. Codes are errno's. What only a GPU has is missing. */
#ifndef HETCCL_RUNTIME_HOST_H
#define HETCCL_RUNTIME_HOST_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "hetccl/symbol.h"

#define HETCCL_HOST_ABSENT(X)                                                                              \
    X(device_pci, device_pci, NULL, "", (int device, char *text))                                          \
    X(ipc_export, ipc_export, NULL, "", (void *ptr, void *handle))                                         \
    X(ipc_open, ipc_open, NULL, "", (const void *handle, void **ptr))                                      \
    X(ipc_close, ipc_close, NULL, "", (void *ptr))                                                         \
    X(dmabuf_export, dmabuf_export, NULL, "", (void *ptr, size_t nbytes, int *fd, uint64_t *offset))       \
    X(rdma_flush, rdma_flush, NULL, "", (int scope))                                                       \
    X(module_load, module_load, NULL, "", (void **module, const void *image))                              \
    X(module_unload, module_unload, NULL, "", (void *module))                                              \
    X(module_function, module_function, NULL, "", (void **function, void *module, const char *name))       \
    X(launch, launch, NULL, "",                                                                            \
      (void *function, const unsigned *grid, const unsigned *block, unsigned shared_nbytes, void *stream,  \
       void **arguments))

HETCCL_HOST_ABSENT(HETCCL_ABSENT)

#define HETCCL_HOST_ROW(slot, symbol, older, release, parameters) HETCCL_ROW(slot, symbol, older, release, NULL, 0)
static const hetccl_symbol_t hetccl_host_symbols[] = {HETCCL_HOST_ABSENT(HETCCL_HOST_ROW)};
enum { HETCCL_HOST_NSYMBOLS = sizeof hetccl_host_symbols / sizeof *hetccl_host_symbols };

static char hetccl_host_token; /* every stream and every event */

static int hetccl_host_enter(int device, void **saved) {
    *saved = NULL;
    return device ? EINVAL : 0;
}

static int hetccl_host_done(void *handle) {
    (void)handle;
    return 0;
}

static int hetccl_host_done_on(void *stream, void *event) {
    (void)stream;
    (void)event;
    return 0;
}

static int hetccl_host_device_count(int *count) {
    *count = 1;
    return 0;
}

static int hetccl_host_device_current(int *device) {
    *device = 0;
    return 0;
}

static int hetccl_host_device_active(int device, int *active) {
    *active = 1;
    return device ? EINVAL : 0;
}

static int hetccl_host_device_arch(int device, char *text) {
    struct utsname names;
    if (device) return EINVAL;
    if (uname(&names)) return errno;
    snprintf(text, HETCCL_ARCH_CHARS, "%.*s", HETCCL_ARCH_CHARS - 1, names.machine);
    return 0;
}

static const char *hetccl_host_error_text(int code) {
    switch (code) {
    case EAGAIN: return "EAGAIN: not done yet";
    case EINVAL: return "EINVAL: invalid argument";
    case ENOMEM: return "ENOMEM: out of memory";
    default: return "an error of the operating system";
    }
}

static int hetccl_host_alloc(void **ptr, size_t nbytes) {
    return posix_memalign(ptr, 64, nbytes ? nbytes : 1); /* cache lines of their own */
}

static int hetccl_host_dealloc(void *ptr) {
    free(ptr);
    return 0;
}

static int hetccl_host_alloc_async(void **ptr, size_t nbytes, void *stream) {
    (void)stream;
    return hetccl_host_alloc(ptr, nbytes);
}

static int hetccl_host_dealloc_async(void *ptr, void *stream) {
    (void)stream;
    return hetccl_host_dealloc(ptr);
}

/* Host memory is within the host's reach as it is. */
static int hetccl_host_register(void *ptr, size_t nbytes) {
    return ptr && nbytes ? 0 : EINVAL;
}

static int hetccl_host_address(void *ptr, void **on_device) {
    *on_device = ptr;
    return 0;
}

static int hetccl_host_pointer(const void *ptr, hetccl_pointer_t *about) {
    (void)ptr;
    *about = (hetccl_pointer_t){.kind = HETCCL_MEM_HOST, .device = -1, .registered = 1};
    return 0;
}

static int hetccl_host_copy_async(void *dst, const void *src, size_t nbytes, void *stream) {
    (void)stream;
    if (nbytes) memmove(dst, src, nbytes); /* an array without elements may have no address */
    return 0;
}

static int hetccl_host_fill_async(void *dst, uint64_t value, size_t width, size_t count, void *stream) {
    (void)stream;
    if (width != 1 && width != 2 && width != 4 && width != 8) return EINVAL;
    for (size_t i = 0; i < count; i++) memcpy((char *)dst + i * width, &value, width); /* its low bytes come first */
    return 0;
}

/* A completion tells that the bytes are in host memory. */
static int hetccl_host_rdma_ordering(int device, int *scope, int *flushable) {
    *scope = HETCCL_RDMA_ALL_DEVICES;
    *flushable = 0;
    return device ? EINVAL : 0;
}

static int hetccl_host_create(void **handle) {
    *handle = &hetccl_host_token;
    return 0;
}

static int hetccl_host_stream_capturing(void *stream, int *capturing) {
    (void)stream;
    *capturing = 0;
    return 0;
}

static int hetccl_host_stream_write32(void *stream, void *ptr, uint32_t value) {
    (void)stream;
    __atomic_store_n((uint32_t *)ptr, value, __ATOMIC_RELEASE);
    return 0;
}

/* A stream that is always done cannot wait: what has not come yet is for the caller to ask for again. */
static int hetccl_host_stream_wait32(void *stream, void *ptr, uint32_t value) {
    (void)stream;
    return (int32_t)(__atomic_load_n((uint32_t *)ptr, __ATOMIC_ACQUIRE) - value) >= 0 ? 0 : EAGAIN;
}

static int hetccl_host_function(void *stream, void (*function)(void *), void *argument) {
    (void)stream;
    function(argument);
    return 0;
}

static const hetccl_runtime_t hetccl_host = {
    .name = "host",
    .kind = HETCCL_MEM_HOST,
    .not_ready = EAGAIN,
    .enter = hetccl_host_enter,
    .leave = hetccl_host_done,
    .device_count = hetccl_host_device_count,
    .device_current = hetccl_host_device_current,
    .device_active = hetccl_host_device_active,
    .device_pci = hetccl_absent_device_pci,
    .device_arch = hetccl_host_device_arch,
    .error_text = hetccl_host_error_text,
    .alloc = hetccl_host_alloc,
    .dealloc = hetccl_host_dealloc,
    .alloc_async = hetccl_host_alloc_async,
    .dealloc_async = hetccl_host_dealloc_async,
    .host_alloc = hetccl_host_alloc,
    .host_dealloc = hetccl_host_dealloc,
    .host_register = hetccl_host_register,
    .host_unregister = hetccl_host_done,
    .host_address = hetccl_host_address,
    .pointer = hetccl_host_pointer,
    .copy_async = hetccl_host_copy_async,
    .fill_async = hetccl_host_fill_async,
    .stream_create = hetccl_host_create,
    .stream_destroy = hetccl_host_done,
    .stream_query = hetccl_host_done,
    .stream_synchronize = hetccl_host_done,
    .stream_capturing = hetccl_host_stream_capturing,
    .stream_wait_event = hetccl_host_done_on,
    .stream_write32 = hetccl_host_stream_write32,
    .stream_wait32 = hetccl_host_stream_wait32,
    .host_function = hetccl_host_function,
    .event_create = hetccl_host_create,
    .event_destroy = hetccl_host_done,
    .event_record = hetccl_host_done_on,
    .event_query = hetccl_host_done,
    .event_synchronize = hetccl_host_done,
    .ipc_export = hetccl_absent_ipc_export,
    .ipc_open = hetccl_absent_ipc_open,
    .ipc_close = hetccl_absent_ipc_close,
    .dmabuf_export = hetccl_absent_dmabuf_export,
    .rdma_ordering = hetccl_host_rdma_ordering,
    .rdma_flush = hetccl_absent_rdma_flush,
    .module_load = hetccl_absent_module_load,
    .module_unload = hetccl_absent_module_unload,
    .module_function = hetccl_absent_module_function,
    .launch = hetccl_absent_launch,
};

#endif
