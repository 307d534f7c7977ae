/* HIP as a runtime (layer L1, used by _hip alone), releases 5, 6 and 7. Declared by hand from hip_runtime_api.h; no
 * header of ROCm's is needed. What differs between releases is decided by hipRuntimeGetVersion, and only prefixes of
 * structs are read. HIP remembers a thread's last error, and programs ask for it after their own kernels: errors that
 * are answers here (not ready, unknown memory) are taken back. */
#ifndef HETCCL_RUNTIME_HIP_H
#define HETCCL_RUNTIME_HIP_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hetccl/symbol.h"

typedef struct { char bytes[HETCCL_IPC_BYTES]; } hetccl_hip_ipc_t; /* hipIpcMemHandle_t */

/* hipPointerAttribute_t: 32 bytes in all releases */
typedef struct {
    int type;
    int device;
    void *on_device, *on_host;
    int managed;
    unsigned flags;
} hetccl_hip_attributes_t;

enum {
    HETCCL_HIP_6 = 60000000, /* hipRuntimeGetVersion from 6.0 on */
    HETCCL_HIP_INVALID_VALUE = 1,
    HETCCL_HIP_INVALID_POINTER = 17,
    HETCCL_HIP_NO_DEVICE = 100,
    HETCCL_HIP_NOT_READY = 600,
    HETCCL_HIP_NOT_SUPPORTED = 801,
    HETCCL_HIP_UNKNOWN = 999,
    HETCCL_HSA_FIRST = 0x1000, /* hsa_status_t's errors begin here, above all of HIP's */
    HETCCL_HIP_POINTER_BUFFER_ID = 7,
    /* hipMemoryType, before and since 6.0 */
    HETCCL_HIP5_DEVICE = 1,
    HETCCL_HIP6_UNREGISTERED = 0,
    HETCCL_HIP6_DEVICE = 2,
    HETCCL_HIP6_MANAGED = 3,
    /* hipDeviceProp_t: where gcnArchName begins, and room for the whole struct (792 bytes in 5.2, 1472 in 6 and 7) */
    HETCCL_HIP5_ARCH_OFFSET = 396,
    HETCCL_HIP6_ARCH_OFFSET = 1160,
    HETCCL_HIP_PROPERTIES_NBYTES = 8192,
    HETCCL_HIP_COPY_DEFAULT = 4,
    /* hipHostMallocPortable | Mapped | Coherent: coherent, since kernels and the CPU talk through it while both run */
    HETCCL_HIP_HOST_ALLOC = 1 | 2 | 0x40000000,
    HETCCL_HIP_HOST_REGISTER = 1 | 2,
    HETCCL_HIP_STREAM_NON_BLOCKING = 1,
    HETCCL_HIP_EVENT_DISABLE_TIMING = 2,
    HETCCL_HIP_WAIT_GTE = 0,
    HETCCL_HIP_RANGE_DMABUF = 1
};

#define HETCCL_HIP_DIRECT(X)                                                                                         \
    X(device_count, hipGetDeviceCount, NULL, "5.0", (int *count))                                                    \
    X(device_current, hipGetDevice, NULL, "5.0", (int *device))                                                      \
    X(alloc, hipMalloc, NULL, "5.0", (void **ptr, size_t nbytes))                                                    \
    X(dealloc, hipFree, NULL, "5.0", (void *ptr))                                                                    \
    X(alloc_async, hipMallocAsync, NULL, "5.2", (void **ptr, size_t nbytes, void *stream))                           \
    X(dealloc_async, hipFreeAsync, NULL, "5.2", (void *ptr, void *stream))                                           \
    X(host_dealloc, hipHostFree, NULL, "5.0", (void *ptr))                                                           \
    X(host_unregister, hipHostUnregister, NULL, "5.0", (void *ptr))                                                  \
    X(stream_destroy, hipStreamDestroy, NULL, "5.0", (void *stream))                                                 \
    X(stream_synchronize, hipStreamSynchronize, NULL, "5.0", (void *stream))                                         \
    X(stream_capturing, hipStreamIsCapturing, NULL, "5.0", (void *stream, int *capturing))                           \
    X(event_destroy, hipEventDestroy, NULL, "5.0", (void *event))                                                    \
    X(event_record, hipEventRecord, NULL, "5.0", (void *event, void *stream))                                        \
    X(event_synchronize, hipEventSynchronize, NULL, "5.0", (void *event))                                            \
    X(ipc_close, hipIpcCloseMemHandle, NULL, "5.0", (void *ptr))                                                     \
    X(module_load, hipModuleLoadData, NULL, "5.0", (void **module, const void *image))                               \
    X(module_unload, hipModuleUnload, NULL, "5.0", (void *module))                                                   \
    X(module_function, hipModuleGetFunction, NULL, "5.0", (void **function, void *module, const char *name))

/* Slots "open" and "version": what opening needs. */
#define HETCCL_HIP_ADAPTED(X)                                                                                        \
    X(open, hipInit, NULL, "5.0", (unsigned flags))                                                                  \
    X(version, hipRuntimeGetVersion, NULL, "5.0", (int *version))                                                    \
    X(enter, hipSetDevice, NULL, "5.0", (int device))                                                                \
    X(device_active, hipDevicePrimaryCtxGetState, NULL, "5.0", (int device, unsigned *flags, int *active))           \
    X(device_pci, hipDeviceGetPCIBusId, NULL, "5.0", (char *text, int nchars, int device))                           \
    X(host_alloc, hipHostMalloc, NULL, "5.0", (void **ptr, size_t nbytes, unsigned flags))                           \
    X(host_register, hipHostRegister, NULL, "5.0", (void *ptr, size_t nbytes, unsigned flags))                       \
    X(host_address, hipHostGetDevicePointer, NULL, "5.0", (void **on_device, void *ptr, unsigned flags))             \
    X(pointer, hipPointerGetAttributes, NULL, "5.0", (hetccl_hip_attributes_t *attributes, const void *ptr))         \
    X(pointer, hipPointerGetAttribute, NULL, "5.0", (void *value, int attribute, const void *ptr))                   \
    X(pointer, hipMemGetAddressRange, NULL, "5.0", (void **base, size_t *nbytes, const void *ptr))                   \
    X(pointer, hipPeekAtLastError, NULL, "5.0", (void))                                                              \
    X(pointer, hipGetLastError, NULL, "5.0", (void))                                                                 \
    X(copy_async, hipMemcpyAsync, NULL, "5.0", (void *dst, const void *src, size_t nbytes, int kind, void *stream))  \
    X(fill_async, hipMemsetD8Async, NULL, "5.0", (void *dst, unsigned char value, size_t count, void *stream))       \
    X(fill_async, hipMemsetD16Async, NULL, "5.0", (void *dst, unsigned short value, size_t count, void *stream))     \
    X(fill_async, hipMemsetD32Async, NULL, "5.0", (void *dst, int value, size_t count, void *stream))                \
    X(stream_create, hipStreamCreateWithFlags, NULL, "5.0", (void **stream, unsigned flags))                         \
    X(stream_query, hipStreamQuery, NULL, "5.0", (void *stream))                                                     \
    X(stream_wait_event, hipStreamWaitEvent, NULL, "5.0", (void *stream, void *event, unsigned flags))               \
    X(stream_write32, hipStreamWriteValue32, NULL, "5.0", (void *stream, void *ptr, uint32_t value, unsigned flags)) \
    X(stream_wait32, hipStreamWaitValue32, NULL, "5.0",                                                              \
      (void *stream, void *ptr, uint32_t value, unsigned flags, uint32_t mask))                                      \
    X(event_create, hipEventCreateWithFlags, NULL, "5.0", (void **event, unsigned flags))                            \
    X(event_query, hipEventQuery, NULL, "5.0", (void *event))                                                        \
    X(ipc_export, hipIpcGetMemHandle, NULL, "5.0", (void *handle, void *ptr))                                        \
    X(ipc_open, hipIpcOpenMemHandle, NULL, "5.0", (void **ptr, hetccl_hip_ipc_t handle, unsigned flags))             \
    X(launch, hipModuleLaunchKernel, NULL, "5.0",                                                                    \
      (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,        \
       unsigned block_z, unsigned shared_nbytes, void *stream, void **arguments, void **extra))

/* Of these, one for each slot is enough. */
#define HETCCL_HIP_EITHER(X)                                                                                         \
    X(host_function, hipLaunchHostFunc, NULL, "5.3", (void *stream, void (*function)(void *), void *argument))       \
    X(host_function, hipStreamAddCallback, NULL, "5.0",                                                              \
      (void *stream, void (*callback)(void *stream, int code, void *argument), void *argument, unsigned flags))      \
    X(device_arch, hipGetDevicePropertiesR0600, NULL, "6.0", (void *properties, int device))                         \
    X(device_arch, hipGetDeviceProperties, NULL, "5.0", (void *properties, int device))                              \
    X(dmabuf_export, hipMemGetHandleForAddressRange, NULL, "7.0",                                                    \
      (void *handle, void *ptr, size_t nbytes, int type, unsigned long long flags))

/* Of libhsa-runtime64, on which libamdhip64 stands. The fd is the whole allocation's, offset is ptr's place in it. */
#define HETCCL_HIP_HSA(X)                                                                                            \
    X(dmabuf_export, hsa_amd_portable_export_dmabuf, NULL, "5.3",                                                    \
      (const void *ptr, size_t nbytes, int *fd, uint64_t *offset))

HETCCL_HIP_DIRECT(HETCCL_ABSENT)
HETCCL_HIP_ADAPTED(HETCCL_ABSENT)
HETCCL_HIP_EITHER(HETCCL_ABSENT)
HETCCL_HIP_HSA(HETCCL_ABSENT)
static const char *hetccl_absent_hipGetErrorName(int code) {
    (void)code;
    return "unknown error";
}
static const char *hetccl_absent_hipGetErrorString(int code) {
    (void)code;
    return "the library has no text for it";
}

static hetccl_runtime_t hetccl_hip;
static struct {
    HETCCL_HIP_ADAPTED(HETCCL_POINTER)
    HETCCL_HIP_EITHER(HETCCL_POINTER)
    HETCCL_HIP_HSA(HETCCL_POINTER)
    const char *(*hipGetErrorName)(int code);
    const char *(*hipGetErrorString)(int code);
} hetccl_hi;

#define HETCCL_HIP_SLOT(slot, symbol, older, release, parameters) \
    HETCCL_ROW(slot, symbol, older, release, &hetccl_hip.slot, 0)
#define HETCCL_HIP_FIELD(slot, symbol, older, release, parameters) \
    HETCCL_ROW(slot, symbol, older, release, &hetccl_hi.symbol, 0)
#define HETCCL_HIP_CHOICE(slot, symbol, older, release, parameters) \
    HETCCL_ROW(slot, symbol, older, release, &hetccl_hi.symbol, 1)

static hetccl_symbol_t hetccl_hip_symbols[] = {
    HETCCL_HIP_HSA(HETCCL_HIP_CHOICE)
    HETCCL_HIP_DIRECT(HETCCL_HIP_SLOT)
    HETCCL_HIP_ADAPTED(HETCCL_HIP_FIELD)
    HETCCL_ROW(error_text, hipGetErrorName, NULL, "5.0", &hetccl_hi.hipGetErrorName, 0)
    HETCCL_ROW(error_text, hipGetErrorString, NULL, "5.0", &hetccl_hi.hipGetErrorString, 0)
    HETCCL_HIP_EITHER(HETCCL_HIP_CHOICE)
};
enum {
    HETCCL_HIP_NSYMBOLS = sizeof hetccl_hip_symbols / sizeof *hetccl_hip_symbols,
    HETCCL_HIP_NHSA = 1 /* the first of them */
};

static int hetccl_hip_version(void) {
    return hetccl_hi.hipRuntimeGetVersion(&hetccl_hip.version);
}

static int hetccl_hip_init(void) {
    int ndevices = 0, code = hetccl_hi.hipInit(0);
    if (!code) code = hetccl_hip.device_count(&ndevices);
    return code || ndevices ? code : HETCCL_HIP_NO_DEVICE;
}

/* The answer of a call whose errors mean something to us alone; the thread's last error is as if it had not been. */
static int hetccl_hip_quiet(int code) {
    if (code && hetccl_hi.hipPeekAtLastError() == code) hetccl_hi.hipGetLastError();
    return code;
}

static int hetccl_hip_enter(int device, void **saved) {
    int before = -1, code = hetccl_hip.device_current(&before);
    if (code) return code;
    *saved = (void *)(intptr_t)before;
    return before == device ? 0 : hetccl_hi.hipSetDevice(device);
}

static int hetccl_hip_leave(void *saved) {
    int device = -1, code = hetccl_hip.device_current(&device);
    return code || device == (intptr_t)saved ? code : hetccl_hi.hipSetDevice((int)(intptr_t)saved);
}

static int hetccl_hip_device_active(int device, int *active) {
    unsigned flags;
    return hetccl_hi.hipDevicePrimaryCtxGetState(device, &flags, active);
}

static int hetccl_hip_device_pci(int device, char *text) {
    int code = hetccl_hi.hipDeviceGetPCIBusId(text, HETCCL_PCI_CHARS, device);
    if (!code) hetccl_text_lower(text);
    return code;
}

/* "gfx90a:sramecc+:xnack-" is the architecture with its modes; code is compiled for what stands before the colon. */
static int hetccl_hip_device_arch(int device, char *text) {
    char properties[HETCCL_HIP_PROPERTIES_NBYTES] = {0};
    int code = hetccl_hi.hipGetDevicePropertiesR0600(properties, device);
    const char *name = properties + HETCCL_HIP6_ARCH_OFFSET;
    if (code == HETCCL_MISSING) {
        code = hetccl_hi.hipGetDeviceProperties(properties, device);
        name = properties + HETCCL_HIP5_ARCH_OFFSET;
    }
    if (code) return code;
    if (strncmp(name, "gfx", 3)) return HETCCL_HIP_UNKNOWN;
    snprintf(text, HETCCL_ARCH_CHARS, "%.*s", (int)strcspn(name, ":"), name);
    return 0;
}

static const char *hetccl_hip_error_text(int code) {
    static _Thread_local char text[256];
    if (code >= HETCCL_HSA_FIRST) {
        snprintf(text, sizeof text, "HSA status 0x%x", (unsigned)code);
        return text;
    }
    const char *name = hetccl_hi.hipGetErrorName(code), *words = hetccl_hi.hipGetErrorString(code);
    int known = name && words && strcmp(name, words); /* HIP 5 has the name twice */
    snprintf(text, sizeof text, "%s%s%s", name ? name : "unknown error", known ? ": " : "", known ? words : "");
    return text;
}

static int hetccl_hip_host_alloc(void **ptr, size_t nbytes) {
    return hetccl_hi.hipHostMalloc(ptr, nbytes, HETCCL_HIP_HOST_ALLOC);
}

static int hetccl_hip_host_register(void *ptr, size_t nbytes) {
    return hetccl_hi.hipHostRegister(ptr, nbytes, HETCCL_HIP_HOST_REGISTER);
}

static int hetccl_hip_host_address(void *ptr, void **on_device) {
    return hetccl_hi.hipHostGetDevicePointer(on_device, ptr, 0);
}

static int hetccl_hip_pointer(const void *ptr, hetccl_pointer_t *about) {
    hetccl_hip_attributes_t attributes = {0};
    uint64_t buffer_id = 0;
    *about = (hetccl_pointer_t){.kind = HETCCL_MEM_HOST, .device = -1};
    int code = hetccl_hip_quiet(hetccl_hi.hipPointerGetAttributes(&attributes, ptr));
    if (code == HETCCL_HIP_INVALID_VALUE || code == HETCCL_HIP_INVALID_POINTER) return 0; /* 5.x, of unknown memory */
    if (code) return code;
    int since6 = hetccl_hip.version >= HETCCL_HIP_6;
    if (since6 && attributes.type == HETCCL_HIP6_UNREGISTERED) return 0;
    about->managed = attributes.managed != 0 || (since6 && attributes.type == HETCCL_HIP6_MANAGED);
    int on_device = about->managed || attributes.type == (since6 ? HETCCL_HIP6_DEVICE : HETCCL_HIP5_DEVICE);
    about->kind = on_device ? HETCCL_MEM_HIP : HETCCL_MEM_HOST;
    about->registered = !on_device;
    about->device = attributes.device;
    if (!hetccl_hip_quiet(hetccl_hi.hipPointerGetAttribute(&buffer_id, HETCCL_HIP_POINTER_BUFFER_ID, ptr)))
        about->buffer_id = buffer_id;
    void *base = NULL;
    size_t nbytes = 0;
    if (!hetccl_hip_quiet(hetccl_hi.hipMemGetAddressRange(&base, &nbytes, ptr))) {
        about->base = base;
        about->nbytes = nbytes;
    }
    return 0;
}

static int hetccl_hip_copy_async(void *dst, const void *src, size_t nbytes, void *stream) {
    return nbytes ? hetccl_hi.hipMemcpyAsync(dst, src, nbytes, HETCCL_HIP_COPY_DEFAULT, stream) : 0;
}

static int hetccl_hip_fill_async(void *dst, uint64_t value, size_t width, size_t count, void *stream) {
    if (!count) return 0;
    switch (width) {
    case 1: return hetccl_hi.hipMemsetD8Async(dst, (unsigned char)value, count, stream);
    case 2: return hetccl_hi.hipMemsetD16Async(dst, (unsigned short)value, count, stream);
    case 4: return hetccl_hi.hipMemsetD32Async(dst, (int)value, count, stream);
    case 8: return hetccl_fill_pairs(&hetccl_hip, dst, value, count, stream);
    default: return HETCCL_HIP_INVALID_VALUE;
    }
}

static int hetccl_hip_stream_create(void **stream) {
    return hetccl_hi.hipStreamCreateWithFlags(stream, HETCCL_HIP_STREAM_NON_BLOCKING);
}

static int hetccl_hip_stream_query(void *stream) {
    int code = hetccl_hi.hipStreamQuery(stream);
    return code == HETCCL_HIP_NOT_READY ? hetccl_hip_quiet(code) : code;
}

static int hetccl_hip_stream_wait_event(void *stream, void *event) {
    return hetccl_hi.hipStreamWaitEvent(stream, event, 0);
}

static int hetccl_hip_stream_write32(void *stream, void *ptr, uint32_t value) {
    return hetccl_hi.hipStreamWriteValue32(stream, ptr, value, 0);
}

/* HIP compares unsigned values, without CUDA's wrap-around: counters that are waited for must not pass 2^32. */
static int hetccl_hip_stream_wait32(void *stream, void *ptr, uint32_t value) {
    return hetccl_hi.hipStreamWaitValue32(stream, ptr, value, HETCCL_HIP_WAIT_GTE, UINT32_MAX);
}

typedef struct {
    void (*function)(void *);
    void *argument;
} hetccl_hip_call_t;

static void hetccl_hip_callback(void *stream, int code, void *argument) {
    hetccl_hip_call_t call = *(hetccl_hip_call_t *)argument;
    (void)stream;
    (void)code;
    free(argument);
    call.function(call.argument);
}

static int hetccl_hip_host_function(void *stream, void (*function)(void *), void *argument) {
    int code = hetccl_hi.hipLaunchHostFunc(stream, function, argument);
    if (code != HETCCL_MISSING) return code;
    hetccl_hip_call_t *call = malloc(sizeof *call);
    if (!call) return HETCCL_HIP_UNKNOWN;
    *call = (hetccl_hip_call_t){function, argument};
    code = hetccl_hi.hipStreamAddCallback(stream, hetccl_hip_callback, call, 0);
    if (code) free(call);
    return code;
}

static int hetccl_hip_event_create(void **event) {
    return hetccl_hi.hipEventCreateWithFlags(event, HETCCL_HIP_EVENT_DISABLE_TIMING);
}

static int hetccl_hip_event_query(void *event) {
    int code = hetccl_hi.hipEventQuery(event);
    return code == HETCCL_HIP_NOT_READY ? hetccl_hip_quiet(code) : code;
}

static int hetccl_hip_ipc_export(void *ptr, void *handle) {
    return hetccl_hi.hipIpcGetMemHandle(handle, ptr);
}

/* The one flag there is, "lazy peer access", is 0 in 5.2 and 1 in 7: whichever the library does not refuse. */
static int hetccl_hip_ipc_open(const void *handle, void **ptr) {
    unsigned flag = hetccl_hip.version >= HETCCL_HIP_6;
    int code = hetccl_hi.hipIpcOpenMemHandle(ptr, *(const hetccl_hip_ipc_t *)handle, flag);
    if (code != HETCCL_HIP_INVALID_VALUE) return code;
    hetccl_hip_quiet(code);
    return hetccl_hi.hipIpcOpenMemHandle(ptr, *(const hetccl_hip_ipc_t *)handle, !flag);
}

static int hetccl_hip_dmabuf_export(void *ptr, size_t nbytes, int *fd, uint64_t *offset) {
    int code = hetccl_hi.hsa_amd_portable_export_dmabuf(ptr, nbytes, fd, offset);
    if (code != HETCCL_MISSING) return code;
    void *base = NULL;
    size_t whole = 0;
    code = hetccl_hi.hipMemGetAddressRange(&base, &whole, ptr);
    if (code) return code;
    *offset = (uint64_t)((char *)ptr - (char *)base);
    return hetccl_hi.hipMemGetHandleForAddressRange(fd, base, whole, HETCCL_HIP_RANGE_DMABUF, 0);
}

/* No release of HIP so far tells how writes of RDMA devices are ordered, or flushes them for the host. */
static int hetccl_hip_rdma_ordering(int device, int *scope, int *flushable) {
    (void)device;
    *scope = HETCCL_RDMA_NOBODY;
    *flushable = 0;
    return 0;
}

static int hetccl_hip_rdma_flush(int scope) {
    (void)scope;
    return HETCCL_HIP_NOT_SUPPORTED;
}

static int hetccl_hip_launch(void *function, const unsigned *grid, const unsigned *block, unsigned shared_nbytes,
                             void *stream, void **arguments) {
    return hetccl_hi.hipModuleLaunchKernel(function, grid[0], grid[1], grid[2], block[0], block[1], block[2],
                                           shared_nbytes, stream, arguments, NULL);
}

static hetccl_runtime_t hetccl_hip = {
    .name = "hip",
    .kind = HETCCL_MEM_HIP,
    .not_ready = HETCCL_HIP_NOT_READY,
    .enter = hetccl_hip_enter,
    .leave = hetccl_hip_leave,
    .device_active = hetccl_hip_device_active,
    .device_pci = hetccl_hip_device_pci,
    .device_arch = hetccl_hip_device_arch,
    .error_text = hetccl_hip_error_text,
    .host_alloc = hetccl_hip_host_alloc,
    .host_register = hetccl_hip_host_register,
    .host_address = hetccl_hip_host_address,
    .pointer = hetccl_hip_pointer,
    .copy_async = hetccl_hip_copy_async,
    .fill_async = hetccl_hip_fill_async,
    .stream_create = hetccl_hip_stream_create,
    .stream_query = hetccl_hip_stream_query,
    .stream_wait_event = hetccl_hip_stream_wait_event,
    .stream_write32 = hetccl_hip_stream_write32,
    .stream_wait32 = hetccl_hip_stream_wait32,
    .host_function = hetccl_hip_host_function,
    .event_create = hetccl_hip_event_create,
    .event_query = hetccl_hip_event_query,
    .ipc_export = hetccl_hip_ipc_export,
    .ipc_open = hetccl_hip_ipc_open,
    .dmabuf_export = hetccl_hip_dmabuf_export,
    .rdma_ordering = hetccl_hip_rdma_ordering,
    .rdma_flush = hetccl_hip_rdma_flush,
    .launch = hetccl_hip_launch,
};

#endif
