/* A CUDA driver for tests: the functions that hetccl's table uses, on host memory, each done by the time it returns.
 * Several devices; every handle and every range is checked, so that a use after destroy or a copy beyond an
 * allocation is an error code. Device memory is shared memory, so that IPC and dma-buf export work between processes.
 *
 * FAKE_CUDA_DEVICES=4           number of devices; CUDA_VISIBLE_DEVICES picks from them, by number
 * FAKE_CUDA_FAIL=cuMemAllocAsync=2,cuStreamQuery=700     these functions answer these codes
 * FAKE_CUDA_QUEUES=4            what is queued is done later, by so many threads, instead of at once
 * FAKE_CUDA_LAZY=1              a stream with new work, and an event recorded on it, are not ready when first asked
 * FAKE_CUDA_WAIT_MS=20000       how long a wait for a value may last, before it answers 702
 * FAKE_CUDA_GUARD=1             new device memory cannot be touched by the CPU; the driver has a mapping of its own,
 *                               which fakeWindow() tells
 * FAKE_CUDA_ORDERING=100        CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, and ..._FLUSH_WRITES_OPTIONS (1),
 * FAKE_CUDA_FLUSH=1             which a negative number makes an unknown attribute
 *
 * With -DFAKE_CUDA_HEADER the toolkit's cuda.h is included instead of the declarations below, so that the compiler
 * compares every signature with NVIDIA's. */
#define _GNU_SOURCE
#include "fakecuda_memory.h"

EXPORT long fakeCalls(const char *function) {
    for (int i = 0; i < CALLS_MAX && calls[i].name; i++)
        if (!strcmp(calls[i].name, function)) return calls[i].count;
    return 0;
}

/* Let a stream look as if it were captured into a graph. */
EXPORT void fakeStreamCapture(CUstream stream, int capturing) {
    stream_of(stream)->capturing = capturing;
}

API CUresult cuInit(unsigned int flags) {
    (void)flags;
    counted(__func__);
    int code = injected(__func__);
    if (code) return code;
    if (physical(0) < 0) return NO_DEVICE;
    if (!initialized_by) initialized_by = getpid();
    return initialized_by == getpid() ? OK : NOT_INITIALIZED;
}

API CUresult cuDriverGetVersion(int *version) {
    *version = setting(PREFIX "VERSION", 13000);
    return injected(__func__);
}

API CUresult cuGetErrorName(CUresult error, const char **text) {
    static const struct { int code; const char *name; } names[] = {
        {1, "CUDA_ERROR_INVALID_VALUE"},    {2, "CUDA_ERROR_OUT_OF_MEMORY"},   {3, "CUDA_ERROR_NOT_INITIALIZED"},
        {100, "CUDA_ERROR_NO_DEVICE"},      {101, "CUDA_ERROR_INVALID_DEVICE"}, {200, "CUDA_ERROR_INVALID_IMAGE"},
        {201, "CUDA_ERROR_INVALID_CONTEXT"}, {400, "CUDA_ERROR_INVALID_HANDLE"}, {500, "CUDA_ERROR_NOT_FOUND"},
        {600, "CUDA_ERROR_NOT_READY"},      {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}, {702, "CUDA_ERROR_LAUNCH_TIMEOUT"},
        {801, "CUDA_ERROR_NOT_SUPPORTED"},
    };
    *text = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].code == (int)error) *text = names[i].name;
    return *text ? OK : INVALID;
}

API CUresult cuGetErrorString(CUresult error, const char **text) {
    CUresult known = cuGetErrorName(error, text);
    *text = known == OK ? "as the fake driver was told" : NULL;
    return known;
}

API CUresult cuDeviceGetCount(int *count) {
    BEGIN(0);
    for (*count = 0; physical(*count) >= 0;) ++*count;
    return OK;
}

API CUresult cuDeviceGetPCIBusId(char *text, int nchars, CUdevice device) {
    BEGIN(0);
    if (physical(device) < 0) return BAD_DEVICE;
    snprintf(text, (size_t)nchars, "0000:%02X:00.0", FIRST_BUS + physical(device));
    return OK;
}

API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    BEGIN(0);
    if (physical(device) < 0) return BAD_DEVICE;
    switch ((int)attribute) {
    case 75: *value = 9; return OK; /* compute capability 9.0 */
    case 76: *value = 0; return OK;
    case 117: *value = setting(PREFIX "FLUSH", 1); return *value < 0 ? INVALID : OK;
    case 118: *value = setting(PREFIX "ORDERING", 100); return OK;
    default: return INVALID;
    }
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    BEGIN(0);
    if (physical(device) < 0) return BAD_DEVICE;
    if (!primary[device]) {
        primary[device] = handle_new(CONTEXT, NULL);
        primary[device]->device = device;
    }
    retained[device]++;
    *context = (CUcontext)primary[device];
    return OK;
}

API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active) {
    BEGIN(0);
    if (physical(device) < 0) return BAD_DEVICE;
    *flags = 0;
    *active = retained[device] > 0;
    return OK;
}

API CUresult cuCtxGetCurrent(CUcontext *context) {
    BEGIN(0);
    *context = (CUcontext)current;
    return OK;
}

API CUresult cuCtxSetCurrent(CUcontext context) {
    BEGIN(0);
    handle_t *handle = handle_of(context, CONTEXT);
    if (context && !handle) return BAD_CONTEXT;
    current = handle;
    return OK;
}

API CUresult cuCtxGetDevice(CUdevice *device) {
    BEGIN(1);
    *device = current->device;
    return OK;
}

API CUresult cuCtxSynchronize(void) {
    BEGIN(1);
    drain_all();
    return OK;
}

API CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    BEGIN(1);
    if (flags > 1) return INVALID;
    *stream = (CUstream)handle_new(STREAM, NULL);
    return *stream ? OK : NO_MEMORY;
}

API CUresult cuStreamDestroy_v2(CUstream stream) {
    BEGIN(1);
    handle_t *queue = handle_of(stream, STREAM);
    if (!queue) return BAD_HANDLE;
    queue->alive = 0;
    return OK;
}

API CUresult cuStreamQuery(CUstream stream) {
    BEGIN(1);
    handle_t *queue = stream_of(stream);
    if (!queue) return BAD_HANDLE;
    if (queue->capturing) return CAPTURE_UNSUPPORTED;
    return !is_empty(queue) || (queue->pending && queue->pending--) ? NOT_READY : OK;
}

API CUresult cuStreamSynchronize(CUstream stream) {
    BEGIN(1);
    handle_t *queue = stream_of(stream);
    if (!queue) return BAD_HANDLE;
    if (queue->capturing) return CAPTURE_UNSUPPORTED;
    queue->pending = 0;
    if (nqueues()) drain(queue_of(queue));
    return OK;
}

API CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    BEGIN(1);
    handle_t *queue = stream_of(stream);
    if (!queue) return BAD_HANDLE;
    *status = queue->capturing;
    return OK;
}

API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
    BEGIN(1);
    (void)flags;
    handle_t *queue = stream_of(stream), *handle = handle_of(event, EVENT);
    if (!queue || !handle) return BAD_HANDLE;
    return submit(queue, (work_t){.kind = FOLLOW, .event = handle, .number = handle->recorded});
}

API CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags) {
    BEGIN(1);
    (void)flags;
    handle_t *queue = stream_of(stream);
    if (!queue) return BAD_HANDLE;
    if (address % 4) return INVALID;
    return submit(queue, (work_t){.kind = WRITE, .dst = (void *)address, .value = value});
}

API CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags) {
    BEGIN(1);
    if (!stream_of(stream)) return BAD_HANDLE;
    if (address % 4 || flags) return INVALID; /* only GEQ */
    return submit(stream_of(stream), (work_t){.kind = WAIT, .dst = (void *)address, .value = value, .wraps = 1});
}

API CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *argument) {
    BEGIN(1);
    handle_t *queue = stream_of(stream);
    if (!queue) return BAD_HANDLE;
    return submit(queue, (work_t){.kind = CALL, .function = function, .dst = argument});
}

API CUresult cuEventCreate(CUevent *event, unsigned int flags) {
    BEGIN(1);
    (void)flags;
    *event = (CUevent)handle_new(EVENT, NULL);
    return *event ? OK : NO_MEMORY;
}

API CUresult cuEventDestroy_v2(CUevent event) {
    BEGIN(1);
    handle_t *handle = handle_of(event, EVENT);
    if (!handle) return BAD_HANDLE;
    handle->alive = 0;
    return OK;
}

API CUresult cuEventRecord(CUevent event, CUstream stream) {
    BEGIN(1);
    handle_t *handle = handle_of(event, EVENT), *queue = stream_of(stream);
    if (!handle || !queue) return BAD_HANDLE;
    handle->pending = queue->pending;
    return submit(queue, (work_t){.kind = RECORD, .event = handle, .number = ++handle->recorded});
}

API CUresult cuEventQuery(CUevent event) {
    BEGIN(0);
    handle_t *handle = handle_of(event, EVENT);
    if (!handle) return BAD_HANDLE;
    if (__atomic_load_n(&handle->reached, __ATOMIC_SEQ_CST) < handle->recorded) return NOT_READY;
    return handle->pending && handle->pending-- ? NOT_READY : OK;
}

API CUresult cuEventSynchronize(CUevent event) {
    BEGIN(0);
    handle_t *handle = handle_of(event, EVENT);
    if (!handle) return BAD_HANDLE;
    handle->pending = 0;
    return perform(&(work_t){.kind = FOLLOW, .event = handle, .number = handle->recorded});
}

/* An image is text, "fake-module:" and the path of a shared library whose functions stand for kernels:
 * void name(void **arguments, const unsigned *grid, const unsigned *block). If it says how long the one argument of
 * each of them is, by `const unsigned kernel_argument_nbytes`, a launch is queued; else it waits for what is queued
 * before. */
API CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    static const char magic[] = "fake-module:";
    BEGIN(1);
    if (strncmp(image, magic, sizeof magic - 1)) return BAD_IMAGE;
    void *library = dlopen((const char *)image + sizeof magic - 1, RTLD_NOW | RTLD_LOCAL);
    if (!library) return BAD_IMAGE;
    *module = (CUmodule)handle_new(MODULE, library);
    return OK;
}

API CUresult cuModuleUnload(CUmodule module) {
    BEGIN(1);
    handle_t *handle = handle_of(module, MODULE);
    if (!handle) return BAD_HANDLE;
    handle->alive = 0;
    dlclose(handle->object);
    return OK;
}

API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    BEGIN(1);
    handle_t *handle = handle_of(module, MODULE);
    if (!handle) return BAD_HANDLE;
    void *address = dlsym(handle->object, name);
    if (!address) return NOT_FOUND;
    *function = (CUfunction)handle_new(FUNCTION, address);
    const unsigned *nbytes = dlsym(handle->object, "kernel_argument_nbytes");
    if (*function && nbytes && *nbytes <= ARGUMENT_MAX) ((handle_t *)*function)->argument_nbytes = *nbytes;
    return *function ? OK : NO_MEMORY;
}

API CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                            unsigned int block_x, unsigned int block_y, unsigned int block_z,
                            unsigned int shared_nbytes, CUstream stream, void **arguments, void **extra) {
    BEGIN(1);
    handle_t *kernel = handle_of(function, FUNCTION), *queue = stream_of(stream);
    if (!kernel || !queue) return BAD_HANDLE;
    unsigned grid[] = {grid_x, grid_y, grid_z}, block[] = {block_x, block_y, block_z};
    unsigned long long nthreads = 1ull * block_x * block_y * block_z;
    if (!grid_x || !grid_y || !grid_z || !nthreads || nthreads > 1024 || shared_nbytes > 48 << 10 || extra)
        return INVALID;
    if (kernel->argument_nbytes) {
        work_t work = {.kind = LAUNCH, .grid = {grid_x, grid_y, grid_z}, .block = {block_x, block_y, block_z}};
        memcpy(&work.kernel, &kernel->object, sizeof work.kernel);
        memcpy(work.argument, arguments[0], kernel->argument_nbytes);
        return submit(queue, work);
    }
    if (nqueues()) drain(queue_of(queue)); /* the arguments are gone when this returns */
    ((void (*)(void **, const unsigned *, const unsigned *))kernel->object)(arguments, grid, block);
    worked(queue);
    return OK;
}
