/* HIP for tests, on host memory: its functions stand on the fake CUDA driver's, with HIP's own ways added: the current
 * device is a number, errors are remembered, memory types and structs change with the release. It proves what hetccl
 * makes of HIP's interface, nothing of AMD's software.
 *
 * FAKE_HIP_DEVICES, _FAIL, _QUEUES, _LAZY and _WAIT_MS as for the fake driver; HIP_VISIBLE_DEVICES
 * FAKE_HIP_ARCH=gfx942          architecture of all devices
 * FAKE_HIP_VERSION=70125424     as hipRuntimeGetVersion tells it; below 60000000 HIP 5's numbers hold */
#define _GNU_SOURCE
#define FAKE_HIP
#define API __attribute__((visibility("hidden")))
#define PREFIX "FAKE_HIP_"
#define VISIBLE "HIP_VISIBLE_DEVICES"
#define FIRST_BUS 0xC1
#include "fakecuda.c"

typedef struct { int type, device; void *on_device, *on_host; int managed; unsigned flags; } attributes_t;

static __thread int device_now;
static __thread int last_error;

static int version(void) {
    return setting("FAKE_HIP_VERSION", 70125424);
}

static int since6(void) {
    return version() >= 60000000;
}

/* What a function answers is the thread's last error too; newer releases leave "not ready" out. */
static int remember(int code) {
    if (code && !(code == NOT_READY && since6())) last_error = code;
    return code;
}

/* HIP needs no current context: the thread's device is 0 until it says otherwise. */
static int ready(const char *function) {
    counted(function);
    int code = injected(function);
    if (code || current) return code;
    CUcontext context;
    code = cuDevicePrimaryCtxRetain(&context, device_now);
    return code ? code : cuCtxSetCurrent(context);
}

#define FORWARD(call)                            \
    int code = ready(__func__);                  \
    return remember(code ? code : (int)(call))

EXPORT int hipInit(unsigned flags) {
    counted(__func__);
    int code = injected(__func__);
    return remember(code ? code : (int)cuInit(flags));
}

EXPORT int hipRuntimeGetVersion(int *number) {
    *number = version();
    return remember(injected(__func__));
}

EXPORT const char *hipGetErrorName(int code) {
    const char *text;
    static __thread char name[64];
    if (cuGetErrorName(code, &text)) return "hipErrorUnknown";
    snprintf(name, sizeof name, "hip%s", text + sizeof "CUDA" - 1);
    return name;
}

EXPORT const char *hipGetErrorString(int code) {
    const char *text;
    return cuGetErrorString(code, &text) ? "unknown" : "as the fake HIP was told";
}

EXPORT int hipPeekAtLastError(void) {
    return last_error;
}

EXPORT int hipGetLastError(void) {
    int code = last_error;
    last_error = OK;
    return code;
}

EXPORT int hipGetDeviceCount(int *count) {
    counted(__func__);
    int code = injected(__func__);
    return remember(code ? code : (int)cuDeviceGetCount(count));
}

EXPORT int hipGetDevice(int *device) {
    *device = device_now;
    return remember(injected(__func__));
}

EXPORT int hipSetDevice(int device) {
    CUcontext context;
    counted(__func__);
    int code = injected(__func__);
    if (!code) code = cuDevicePrimaryCtxRetain(&context, device);
    if (!code) code = cuCtxSetCurrent(context);
    if (!code) device_now = device;
    return remember(code);
}

EXPORT int hipDeviceSynchronize(void) {
    FORWARD(cuCtxSynchronize());
}

EXPORT int hipDeviceGetPCIBusId(char *text, int nchars, int device) {
    FORWARD(cuDeviceGetPCIBusId(text, nchars, device));
}

EXPORT int hipDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    FORWARD(cuDevicePrimaryCtxGetState(device, flags, active));
}

static int properties(char *struct_, size_t nbytes, size_t arch_offset, int device) {
    const char *arch = getenv("FAKE_HIP_ARCH");
    if (physical(device) < 0) return BAD_DEVICE;
    memset(struct_, 0xEE, nbytes);
    snprintf(struct_ + arch_offset, 64, "%s:sramecc+:xnack-", arch ? arch : "gfx942");
    return OK;
}

EXPORT int hipGetDevicePropertiesR0600(void *struct_, int device) {
    FORWARD(properties(struct_, 1472, 1160, device));
}

EXPORT int hipGetDeviceProperties(void *struct_, int device) {
    FORWARD(properties(struct_, 792, 396, device));
}

EXPORT int hipMalloc(void **pointer, size_t nbytes) {
    FORWARD(cuMemAlloc_v2((CUdeviceptr *)pointer, nbytes));
}

EXPORT int hipMallocManaged(void **pointer, size_t nbytes, unsigned flags) {
    FORWARD(cuMemAllocManaged((CUdeviceptr *)pointer, nbytes, flags));
}

EXPORT int hipFree(void *pointer) {
    FORWARD(cuMemFree_v2((CUdeviceptr)pointer));
}

EXPORT int hipMallocAsync(void **pointer, size_t nbytes, CUstream stream) {
    FORWARD(cuMemAllocAsync((CUdeviceptr *)pointer, nbytes, stream));
}

EXPORT int hipFreeAsync(void *pointer, CUstream stream) {
    FORWARD(cuMemFreeAsync((CUdeviceptr)pointer, stream));
}

EXPORT int hipHostMalloc(void **pointer, size_t nbytes, unsigned flags) {
    FORWARD(flags & ~0xF0000007u ? INVALID : (int)cuMemHostAlloc(pointer, nbytes, flags & 7));
}

EXPORT int hipHostFree(void *pointer) {
    FORWARD(cuMemFreeHost(pointer));
}

EXPORT int hipHostRegister(void *pointer, size_t nbytes, unsigned flags) {
    FORWARD(cuMemHostRegister_v2(pointer, nbytes, flags));
}

EXPORT int hipHostUnregister(void *pointer) {
    FORWARD(cuMemHostUnregister(pointer));
}

EXPORT int hipHostGetDevicePointer(void **on_device, void *pointer, unsigned flags) {
    FORWARD(cuMemHostGetDevicePointer_v2((CUdeviceptr *)on_device, pointer, flags));
}

/* HIP 5: host 0, device 1, and an error for unknown memory. HIP 6: unregistered 0, host 1, device 2, managed 3. */
EXPORT int hipPointerGetAttributes(attributes_t *about, const void *pointer) {
    int code = ready(__func__);
    pthread_mutex_lock(&lock);
    const range_t *range = range_of(pointer);
    int kind = range ? range->kind : 0, device = range ? range->device : -1;
    pthread_mutex_unlock(&lock);
    int host = kind == HOST || kind == REGISTERED;
    if (code || (!kind && !since6())) return remember(code ? code : INVALID);
    *about = (attributes_t){.device = device, .managed = kind == MANAGED};
    about->type = !kind ? 0 : (kind == MANAGED && since6() ? 3 : !host + since6());
    return OK;
}

EXPORT int hipPointerGetAttribute(void *value, int attribute, const void *pointer) {
    void *values[] = {value};
    CUpointer_attribute attributes[] = {attribute};
    FORWARD(inside(pointer, 0) ? cuPointerGetAttributes(1, attributes, values, (CUdeviceptr)pointer) : INVALID);
}

EXPORT int hipMemGetAddressRange(void **base, size_t *nbytes, const void *pointer) {
    int code = ready(__func__);
    pthread_mutex_lock(&lock);
    const range_t *range = range_of(pointer);
    if (!code && !range) code = INVALID;
    if (!code) {
        *base = range->base;
        *nbytes = range->nbytes;
    }
    pthread_mutex_unlock(&lock);
    return remember(code);
}

EXPORT int hipMemcpyAsync(void *dst, const void *src, size_t nbytes, int kind, CUstream stream) {
    FORWARD(kind == 4 ? (int)cuMemcpyAsync((CUdeviceptr)dst, (CUdeviceptr)src, nbytes, stream) : INVALID);
}

EXPORT int hipMemcpy(void *dst, const void *src, size_t nbytes, int kind) {
    FORWARD(kind == 4 ? (int)cuMemcpy((CUdeviceptr)dst, (CUdeviceptr)src, nbytes) : INVALID);
}

EXPORT int hipMemsetD8Async(void *dst, unsigned char value, size_t count, CUstream stream) {
    FORWARD(cuMemsetD8Async((CUdeviceptr)dst, value, count, stream));
}

EXPORT int hipMemsetD16Async(void *dst, unsigned short value, size_t count, CUstream stream) {
    FORWARD(cuMemsetD16Async((CUdeviceptr)dst, value, count, stream));
}

EXPORT int hipMemsetD32Async(void *dst, int value, size_t count, CUstream stream) {
    FORWARD(cuMemsetD32Async((CUdeviceptr)dst, (unsigned)value, count, stream));
}

EXPORT int hipStreamCreateWithFlags(CUstream *stream, unsigned flags) {
    FORWARD(cuStreamCreate(stream, flags));
}

EXPORT int hipStreamDestroy(CUstream stream) {
    FORWARD(cuStreamDestroy_v2(stream));
}

EXPORT int hipStreamQuery(CUstream stream) {
    FORWARD(cuStreamQuery(stream));
}

EXPORT int hipStreamSynchronize(CUstream stream) {
    FORWARD(cuStreamSynchronize(stream));
}

EXPORT int hipStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    FORWARD(cuStreamIsCapturing(stream, status));
}

EXPORT int hipStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    FORWARD(cuStreamWaitEvent(stream, event, flags));
}

EXPORT int hipStreamWriteValue32(CUstream stream, void *address, uint32_t value, unsigned flags) {
    FORWARD(cuStreamWriteValue32_v2(stream, (CUdeviceptr)address, value, flags));
}

EXPORT int hipStreamWaitValue32(CUstream stream, void *address, uint32_t value, unsigned flags, uint32_t mask) {
    FORWARD(!stream_of(stream) ? BAD_HANDLE
            : flags || mask != UINT32_MAX
                ? INVALID
                : submit(stream_of(stream), (work_t){.kind = WAIT, .dst = address, .value = value}));
}

EXPORT int hipLaunchHostFunc(CUstream stream, void (*function)(void *), void *argument) {
    FORWARD(cuLaunchHostFunc(stream, function, argument));
}

EXPORT int hipStreamAddCallback(CUstream stream, void (*callback)(CUstream, int, void *), void *argument,
                                unsigned flags) {
    int code = ready(__func__);
    if (!code && !stream_of(stream)) code = BAD_HANDLE;
    if (!code && flags) code = INVALID;
    if (!code) callback(stream, OK, argument);
    return remember(code);
}

EXPORT int hipEventCreateWithFlags(CUevent *event, unsigned flags) {
    FORWARD(cuEventCreate(event, flags));
}

EXPORT int hipEventDestroy(CUevent event) {
    FORWARD(cuEventDestroy_v2(event));
}

EXPORT int hipEventRecord(CUevent event, CUstream stream) {
    FORWARD(cuEventRecord(event, stream));
}

EXPORT int hipEventQuery(CUevent event) {
    FORWARD(cuEventQuery(event));
}

EXPORT int hipEventSynchronize(CUevent event) {
    FORWARD(cuEventSynchronize(event));
}

EXPORT int hipIpcGetMemHandle(CUipcMemHandle *handle, void *pointer) {
    FORWARD(cuIpcGetMemHandle(handle, (CUdeviceptr)pointer));
}

EXPORT int hipIpcOpenMemHandle(void **pointer, CUipcMemHandle handle, unsigned flags) {
    FORWARD((int)flags == since6() ? (int)cuIpcOpenMemHandle_v2((CUdeviceptr *)pointer, handle, 1) : INVALID);
}

EXPORT int hipIpcCloseMemHandle(void *pointer) {
    FORWARD(cuIpcCloseMemHandle((CUdeviceptr)pointer));
}

EXPORT int hipMemGetHandleForAddressRange(void *handle, void *pointer, size_t nbytes, int type,
                                          unsigned long long flags) {
    FORWARD(cuMemGetHandleForAddressRange(handle, (CUdeviceptr)pointer, nbytes, type, flags));
}

EXPORT int hipModuleLoadData(CUmodule *module, const void *image) {
    FORWARD(cuModuleLoadData(module, image));
}

EXPORT int hipModuleUnload(CUmodule module) {
    FORWARD(cuModuleUnload(module));
}

EXPORT int hipModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    FORWARD(cuModuleGetFunction(function, module, name));
}

EXPORT int hipModuleLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                 unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_nbytes,
                                 CUstream stream, void **arguments, void **extra) {
    FORWARD(cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_nbytes, stream,
                           arguments, extra));
}

/* As libhsa-runtime64's: the descriptor of the whole allocation, and the place in it. */
EXPORT int hsa_amd_portable_export_dmabuf(const void *pointer, size_t nbytes, int *fd, uint64_t *offset) {
    counted(__func__);
    pthread_mutex_lock(&lock);
    range_t *range = range_of(pointer);
    *fd = range && range->kind == DEVICE && nbytes ? fcntl(range->fd, F_DUPFD_CLOEXEC, 3) : -1;
    *offset = range ? (uint64_t)((const char *)pointer - range->base) : 0;
    pthread_mutex_unlock(&lock);
    return *fd < 0 ? 0x1001 : OK;
}
