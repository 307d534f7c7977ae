/* The CUDA driver as a runtime (layer L1, used by _cuda alone). From the driver, not from libcudart: each process has
 * one driver, whatever CUDA runtimes its libraries brought along. Declared by hand from cuda.h; no header of CUDA's is
 * needed. Names without _ptsz: for them stream NULL is the legacy default stream. The device's context is its primary
 * one, which libcudart, CuPy and PyTorch use too. */
#ifndef HETCCL_RUNTIME_CUDA_H
#define HETCCL_RUNTIME_CUDA_H

#include <stdio.h>
#include <unistd.h>

#include "hetccl/symbol.h"

typedef struct { char bytes[HETCCL_IPC_BYTES]; } hetccl_cuda_ipc_t; /* CUipcMemHandle */

/* Values of cuda.h, all stable since the release of the function that takes them. */
enum {
    HETCCL_CU_INVALID_VALUE = 1,
    HETCCL_CU_INVALID_DEVICE = 101,
    HETCCL_CU_NOT_READY = 600,
    HETCCL_CU_ATTRIBUTE_MAJOR = 75, /* CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR */
    HETCCL_CU_ATTRIBUTE_MINOR = 76,
    HETCCL_CU_ATTRIBUTE_FLUSH = 117,    /* CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS */
    HETCCL_CU_ATTRIBUTE_ORDERING = 118, /* CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING */
    HETCCL_CU_FLUSH_OF_HOST = 1,        /* CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST */
    HETCCL_CU_FLUSH_CURRENT = 0,        /* CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX */
    HETCCL_CU_POINTER_MEMORY_TYPE = 2,
    HETCCL_CU_POINTER_BUFFER_ID = 7,
    HETCCL_CU_POINTER_MANAGED = 8,
    HETCCL_CU_POINTER_DEVICE = 9,
    HETCCL_CU_POINTER_START = 11,
    HETCCL_CU_POINTER_SIZE = 12,
    HETCCL_CU_MEMORY_HOST = 1,
    HETCCL_CU_HOST_PORTABLE_MAPPED = 3, /* CU_MEMHOSTALLOC_ and CU_MEMHOSTREGISTER_PORTABLE | _DEVICEMAP */
    HETCCL_CU_STREAM_NON_BLOCKING = 1,
    HETCCL_CU_EVENT_DISABLE_TIMING = 2,
    HETCCL_CU_WAIT_GEQ = 0,
    HETCCL_CU_IPC_LAZY_PEER = 1,
    HETCCL_CU_RANGE_DMABUF = 1
};

#define HETCCL_CUDA_DIRECT(X)                                                                                        \
    X(device_count, cuDeviceGetCount, NULL, "2.0", (int *count))                                                     \
    X(alloc, cuMemAlloc_v2, NULL, "3.2", (void **ptr, size_t nbytes))                                                \
    X(dealloc, cuMemFree_v2, NULL, "3.2", (void *ptr))                                                               \
    X(alloc_async, cuMemAllocAsync, NULL, "11.2", (void **ptr, size_t nbytes, void *stream))                         \
    X(dealloc_async, cuMemFreeAsync, NULL, "11.2", (void *ptr, void *stream))                                        \
    X(host_dealloc, cuMemFreeHost, NULL, "2.0", (void *ptr))                                                         \
    X(host_unregister, cuMemHostUnregister, NULL, "4.0", (void *ptr))                                                \
    X(stream_destroy, cuStreamDestroy_v2, NULL, "4.0", (void *stream))                                               \
    X(stream_query, cuStreamQuery, NULL, "2.0", (void *stream))                                                      \
    X(stream_synchronize, cuStreamSynchronize, NULL, "2.0", (void *stream))                                          \
    X(stream_capturing, cuStreamIsCapturing, NULL, "10.0", (void *stream, int *capturing))                           \
    X(host_function, cuLaunchHostFunc, NULL, "10.0", (void *stream, void (*function)(void *), void *argument))       \
    X(event_destroy, cuEventDestroy_v2, NULL, "4.0", (void *event))                                                  \
    X(event_record, cuEventRecord, NULL, "2.0", (void *event, void *stream))                                         \
    X(event_query, cuEventQuery, NULL, "2.0", (void *event))                                                         \
    X(event_synchronize, cuEventSynchronize, NULL, "2.0", (void *event))                                             \
    X(ipc_close, cuIpcCloseMemHandle, NULL, "4.1", (void *ptr))                                                      \
    X(module_load, cuModuleLoadData, NULL, "2.0", (void **module, const void *image))                                \
    X(module_unload, cuModuleUnload, NULL, "2.0", (void *module))                                                    \
    X(module_function, cuModuleGetFunction, NULL, "2.0", (void **function, void *module, const char *name))

/* Slots "open" and "version": what opening needs. */
#define HETCCL_CUDA_ADAPTED(X)                                                                                       \
    X(open, cuInit, NULL, "2.0", (unsigned flags))                                                                   \
    X(version, cuDriverGetVersion, NULL, "2.2", (int *version))                                                      \
    X(enter, cuDevicePrimaryCtxRetain, NULL, "7.0", (void **context, int device))                                    \
    X(enter, cuCtxGetCurrent, NULL, "4.0", (void **context))                                                         \
    X(leave, cuCtxSetCurrent, NULL, "4.0", (void *context))                                                          \
    X(device_current, cuCtxGetDevice, NULL, "2.0", (int *device))                                                    \
    X(device_active, cuDevicePrimaryCtxGetState, NULL, "7.0", (int device, unsigned *flags, int *active))            \
    X(device_pci, cuDeviceGetPCIBusId, NULL, "4.1", (char *text, int nchars, int device))                            \
    X(device_arch, cuDeviceGetAttribute, NULL, "2.0", (int *value, int attribute, int device))                       \
    X(error_text, cuGetErrorName, NULL, "6.0", (int code, const char **text))                                        \
    X(error_text, cuGetErrorString, NULL, "6.0", (int code, const char **text))                                      \
    X(host_alloc, cuMemHostAlloc, NULL, "2.2", (void **ptr, size_t nbytes, unsigned flags))                          \
    X(host_register, cuMemHostRegister_v2, "cuMemHostRegister", "6.5", (void *ptr, size_t nbytes, unsigned flags))   \
    X(host_address, cuMemHostGetDevicePointer_v2, NULL, "3.2", (void **on_device, void *ptr, unsigned flags))        \
    X(pointer, cuPointerGetAttributes, NULL, "7.0", (unsigned count, int *attributes, void **values, const void *ptr)) \
    X(copy_async, cuMemcpyAsync, NULL, "4.0", (void *dst, const void *src, size_t nbytes, void *stream))             \
    X(fill_async, cuMemsetD8Async, NULL, "3.2", (void *dst, unsigned char value, size_t count, void *stream))        \
    X(fill_async, cuMemsetD16Async, NULL, "3.2", (void *dst, unsigned short value, size_t count, void *stream))      \
    X(fill_async, cuMemsetD32Async, NULL, "3.2", (void *dst, unsigned value, size_t count, void *stream))            \
    X(stream_create, cuStreamCreate, NULL, "5.0", (void **stream, unsigned flags))                                   \
    X(stream_wait_event, cuStreamWaitEvent, NULL, "3.2", (void *stream, void *event, unsigned flags))                \
    X(stream_write32, cuStreamWriteValue32_v2, "cuStreamWriteValue32", "8.0",                                        \
      (void *stream, void *ptr, uint32_t value, unsigned flags))                                                     \
    X(stream_wait32, cuStreamWaitValue32_v2, "cuStreamWaitValue32", "8.0",                                           \
      (void *stream, void *ptr, uint32_t value, unsigned flags))                                                     \
    X(event_create, cuEventCreate, NULL, "2.0", (void **event, unsigned flags))                                      \
    X(ipc_export, cuIpcGetMemHandle, NULL, "4.1", (void *handle, void *ptr))                                         \
    X(ipc_open, cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", "4.1",                                                  \
      (void **ptr, hetccl_cuda_ipc_t handle, unsigned flags))                                                        \
    X(dmabuf_export, cuMemGetHandleForAddressRange, NULL, "11.7",                                                    \
      (void *handle, void *ptr, size_t nbytes, int type, unsigned long long flags))                                  \
    X(rdma_flush, cuFlushGPUDirectRDMAWrites, NULL, "11.3", (int target, int scope))                                 \
    X(launch, cuLaunchKernel, NULL, "4.0",                                                                           \
      (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,        \
       unsigned block_z, unsigned shared_nbytes, void *stream, void **arguments, void **extra))

HETCCL_CUDA_DIRECT(HETCCL_ABSENT)
HETCCL_CUDA_ADAPTED(HETCCL_ABSENT)

static hetccl_runtime_t hetccl_cuda;
static struct { HETCCL_CUDA_ADAPTED(HETCCL_POINTER) } hetccl_cu;

#define HETCCL_CUDA_SLOT(slot, symbol, older, release, parameters) \
    HETCCL_ROW(slot, symbol, older, release, &hetccl_cuda.slot, 0)
#define HETCCL_CUDA_FIELD(slot, symbol, older, release, parameters) \
    HETCCL_ROW(slot, symbol, older, release, &hetccl_cu.symbol, 0)

static hetccl_symbol_t hetccl_cuda_symbols[] = {
    HETCCL_CUDA_DIRECT(HETCCL_CUDA_SLOT)
    HETCCL_CUDA_ADAPTED(HETCCL_CUDA_FIELD)
    HETCCL_ROW(rdma_ordering, cuDeviceGetAttribute, NULL, "2.0", &hetccl_cu.cuDeviceGetAttribute, 0)
};
enum { HETCCL_CUDA_NSYMBOLS = sizeof hetccl_cuda_symbols / sizeof *hetccl_cuda_symbols };

enum { HETCCL_CUDA_DEVICES_MAX = 128 };
/* A primary context is retained once for the life of the process: releasing the last reference would destroy it under
 * the array libraries. Two threads that race retain it twice, which harms nobody. */
static _Atomic(void *) hetccl_cuda_contexts[HETCCL_CUDA_DEVICES_MAX];

static int hetccl_cuda_version(void) {
    return hetccl_cu.cuDriverGetVersion(&hetccl_cuda.version);
}

static int hetccl_cuda_init(void) {
    return hetccl_cu.cuInit(0);
}

static int hetccl_cuda_enter(int device, void **saved) {
    int code = hetccl_cu.cuCtxGetCurrent(saved);
    if (code) return code;
    if (device < 0 || device >= HETCCL_CUDA_DEVICES_MAX) return HETCCL_CU_INVALID_DEVICE;
    void *context = hetccl_cuda_contexts[device];
    if (!context) {
        code = hetccl_cu.cuDevicePrimaryCtxRetain(&context, device);
        if (code) return code;
        hetccl_cuda_contexts[device] = context;
    }
    return context == *saved ? 0 : hetccl_cu.cuCtxSetCurrent(context);
}

static int hetccl_cuda_leave(void *saved) {
    void *current;
    int code = hetccl_cu.cuCtxGetCurrent(&current);
    return code || current == saved ? code : hetccl_cu.cuCtxSetCurrent(saved);
}

static int hetccl_cuda_device_current(int *device) {
    void *context;
    *device = -1;
    int code = hetccl_cu.cuCtxGetCurrent(&context);
    return code || !context ? code : hetccl_cu.cuCtxGetDevice(device);
}

static int hetccl_cuda_device_active(int device, int *active) {
    unsigned flags;
    return hetccl_cu.cuDevicePrimaryCtxGetState(device, &flags, active);
}

static int hetccl_cuda_device_pci(int device, char *text) {
    int code = hetccl_cu.cuDeviceGetPCIBusId(text, HETCCL_PCI_CHARS, device);
    if (!code) hetccl_text_lower(text);
    return code;
}

static int hetccl_cuda_device_arch(int device, char *text) {
    int major = 0, minor = 0;
    int code = hetccl_cu.cuDeviceGetAttribute(&major, HETCCL_CU_ATTRIBUTE_MAJOR, device);
    if (!code) code = hetccl_cu.cuDeviceGetAttribute(&minor, HETCCL_CU_ATTRIBUTE_MINOR, device);
    snprintf(text, HETCCL_ARCH_CHARS, "sm_%d%d", major, minor);
    return code;
}

static const char *hetccl_cuda_error_text(int code) {
    static _Thread_local char text[256];
    const char *name = NULL, *words = NULL;
    if (hetccl_cu.cuGetErrorName(code, &name) || !name) name = "unknown error";
    if (hetccl_cu.cuGetErrorString(code, &words) || !words) words = "the driver has no text for it";
    snprintf(text, sizeof text, "%s: %s", name, words);
    return text;
}

static int hetccl_cuda_host_alloc(void **ptr, size_t nbytes) {
    return hetccl_cu.cuMemHostAlloc(ptr, nbytes, HETCCL_CU_HOST_PORTABLE_MAPPED);
}

static int hetccl_cuda_host_register(void *ptr, size_t nbytes) {
    return hetccl_cu.cuMemHostRegister_v2(ptr, nbytes, HETCCL_CU_HOST_PORTABLE_MAPPED);
}

static int hetccl_cuda_host_address(void *ptr, void **on_device) {
    return hetccl_cu.cuMemHostGetDevicePointer_v2(on_device, ptr, 0);
}

/* Of memory that it does not know the driver says 0 for all attributes, and success. */
static int hetccl_cuda_pointer(const void *ptr, hetccl_pointer_t *about) {
    unsigned type = 0, managed = 0;
    unsigned long long buffer_id = 0;
    int device = -1;
    void *start = NULL;
    size_t nbytes = 0;
    int attributes[] = {HETCCL_CU_POINTER_MEMORY_TYPE, HETCCL_CU_POINTER_MANAGED, HETCCL_CU_POINTER_DEVICE,
                        HETCCL_CU_POINTER_BUFFER_ID,   HETCCL_CU_POINTER_START,   HETCCL_CU_POINTER_SIZE};
    void *values[] = {&type, &managed, &device, &buffer_id, &start, &nbytes};
    int code = hetccl_cu.cuPointerGetAttributes(6, attributes, values, ptr);
    *about = (hetccl_pointer_t){.kind = HETCCL_MEM_HOST, .device = -1};
    if (code == HETCCL_CU_INVALID_VALUE || (!code && !type && !managed)) return 0;
    if (code) return code;
    about->registered = type == HETCCL_CU_MEMORY_HOST && !managed;
    about->managed = managed != 0;
    about->kind = about->registered ? HETCCL_MEM_HOST : HETCCL_MEM_CUDA;
    about->device = device;
    about->buffer_id = buffer_id;
    about->base = start;
    about->nbytes = nbytes;
    return 0;
}

static int hetccl_cuda_copy_async(void *dst, const void *src, size_t nbytes, void *stream) {
    return nbytes ? hetccl_cu.cuMemcpyAsync(dst, src, nbytes, stream) : 0;
}

static int hetccl_cuda_fill_async(void *dst, uint64_t value, size_t width, size_t count, void *stream) {
    if (!count) return 0;
    switch (width) {
    case 1: return hetccl_cu.cuMemsetD8Async(dst, (unsigned char)value, count, stream);
    case 2: return hetccl_cu.cuMemsetD16Async(dst, (unsigned short)value, count, stream);
    case 4: return hetccl_cu.cuMemsetD32Async(dst, (unsigned)value, count, stream);
    case 8: return hetccl_fill_pairs(&hetccl_cuda, dst, value, count, stream);
    default: return HETCCL_CU_INVALID_VALUE;
    }
}

static int hetccl_cuda_stream_create(void **stream) {
    return hetccl_cu.cuStreamCreate(stream, HETCCL_CU_STREAM_NON_BLOCKING);
}

static int hetccl_cuda_stream_wait_event(void *stream, void *event) {
    return hetccl_cu.cuStreamWaitEvent(stream, event, 0);
}

static int hetccl_cuda_stream_write32(void *stream, void *ptr, uint32_t value) {
    return hetccl_cu.cuStreamWriteValue32_v2(stream, ptr, value, 0);
}

static int hetccl_cuda_stream_wait32(void *stream, void *ptr, uint32_t value) {
    return hetccl_cu.cuStreamWaitValue32_v2(stream, ptr, value, HETCCL_CU_WAIT_GEQ);
}

static int hetccl_cuda_event_create(void **event) {
    return hetccl_cu.cuEventCreate(event, HETCCL_CU_EVENT_DISABLE_TIMING);
}

static int hetccl_cuda_ipc_export(void *ptr, void *handle) {
    return hetccl_cu.cuIpcGetMemHandle(handle, ptr);
}

static int hetccl_cuda_ipc_open(const void *handle, void **ptr) {
    return hetccl_cu.cuIpcOpenMemHandle_v2(ptr, *(const hetccl_cuda_ipc_t *)handle, HETCCL_CU_IPC_LAZY_PEER);
}

/* The driver exports whole pages, so the range is widened to them. */
static int hetccl_cuda_dmabuf_export(void *ptr, size_t nbytes, int *fd, uint64_t *offset) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), address = (uintptr_t)ptr;
    uintptr_t start = address & ~(page - 1), end = (address + nbytes + page - 1) & ~(page - 1);
    *offset = address - start;
    return hetccl_cu.cuMemGetHandleForAddressRange(fd, (void *)start, end - start, HETCCL_CU_RANGE_DMABUF, 0);
}

/* A driver older than 11.3 knows neither attribute, and orders nothing that it could tell of. */
static int hetccl_cuda_rdma_ordering(int device, int *scope, int *flushable) {
    int options = 0;
    *scope = HETCCL_RDMA_NOBODY;
    *flushable = 0;
    int code = hetccl_cu.cuDeviceGetAttribute(&options, HETCCL_CU_ATTRIBUTE_FLUSH, device);
    if (!code) code = hetccl_cu.cuDeviceGetAttribute(scope, HETCCL_CU_ATTRIBUTE_ORDERING, device);
    if (code == HETCCL_CU_INVALID_VALUE) return 0;
    if (!code) *flushable = (options & HETCCL_CU_FLUSH_OF_HOST) != 0;
    return code;
}

static int hetccl_cuda_rdma_flush(int scope) {
    return hetccl_cu.cuFlushGPUDirectRDMAWrites(HETCCL_CU_FLUSH_CURRENT, scope);
}

static int hetccl_cuda_launch(void *function, const unsigned *grid, const unsigned *block, unsigned shared_nbytes,
                              void *stream, void **arguments) {
    return hetccl_cu.cuLaunchKernel(function, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared_nbytes,
                                    stream, arguments, NULL);
}

static hetccl_runtime_t hetccl_cuda = {
    .name = "cuda",
    .kind = HETCCL_MEM_CUDA,
    .not_ready = HETCCL_CU_NOT_READY,
    .enter = hetccl_cuda_enter,
    .leave = hetccl_cuda_leave,
    .device_current = hetccl_cuda_device_current,
    .device_active = hetccl_cuda_device_active,
    .device_pci = hetccl_cuda_device_pci,
    .device_arch = hetccl_cuda_device_arch,
    .error_text = hetccl_cuda_error_text,
    .host_alloc = hetccl_cuda_host_alloc,
    .host_register = hetccl_cuda_host_register,
    .host_address = hetccl_cuda_host_address,
    .pointer = hetccl_cuda_pointer,
    .copy_async = hetccl_cuda_copy_async,
    .fill_async = hetccl_cuda_fill_async,
    .stream_create = hetccl_cuda_stream_create,
    .stream_wait_event = hetccl_cuda_stream_wait_event,
    .stream_write32 = hetccl_cuda_stream_write32,
    .stream_wait32 = hetccl_cuda_stream_wait32,
    .event_create = hetccl_cuda_event_create,
    .ipc_export = hetccl_cuda_ipc_export,
    .ipc_open = hetccl_cuda_ipc_open,
    .dmabuf_export = hetccl_cuda_dmabuf_export,
    .rdma_ordering = hetccl_cuda_rdma_ordering,
    .rdma_flush = hetccl_cuda_rdma_flush,
    .launch = hetccl_cuda_launch,
};

#endif
