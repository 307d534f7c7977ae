/* NVIDIA's side of the emulated HIP runtime: functions of libcudart and libcuda, opened when first asked for. */
#include "nvidia.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <string.h>

namespace
{

void *open_first(const char *const *names)
{
    for (; *names; names++)
        if (void *library = dlopen(*names, RTLD_NOW | RTLD_LOCAL))
            return library;
    return nullptr;
}

void *runtime_library()
{
    static const char *const names[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so", nullptr};
    static void *library = open_first(names);
    return library;
}

void *driver_library()
{
    static const char *const names[] = {"libcuda.so.1", nullptr};
    static void *library = open_first(names);
    return library;
}

void *find(void *library, const char *name) { return library ? dlsym(library, name) : nullptr; }

CUdeviceptr address(const void *ptr) { return reinterpret_cast<CUdeviceptr>(ptr); }
cudaStream_t runtime_stream(void *stream) { return static_cast<cudaStream_t>(stream); }
CUstream driver_stream(void *stream) { return static_cast<CUstream>(stream); }

} /* namespace */

/* cuda.h renames functions by macros (cuMemsetD32_v2): the names must expand before they become text. */
#define TEXT(name) #name
#define TEXT_OF(name) TEXT(name)

/* The function of that name, with NVIDIA's declaration; NULL where this machine's CUDA has none. */
#define RUNTIME(name)                                                                                                  \
    ([] {                                                                                                              \
        static auto function = reinterpret_cast<decltype(&name)>(find(runtime_library(), TEXT_OF(name)));              \
        return function;                                                                                               \
    }())
#define DRIVER(name)                                                                                                   \
    ([] {                                                                                                              \
        static auto function = reinterpret_cast<decltype(&name)>(find(driver_library(), TEXT_OF(name)));               \
        return function;                                                                                               \
    }())

namespace
{

template <typename Function, typename... Given> int runtime(Function function, Given... given)
{
    if (!function)
        return runtime_library() ? int(nvidia::ABSENT) : int(cudaErrorInsufficientDriver);
    return function(given...);
}

/* The runtime's current device becomes the driver's current context too: driver functions need one. */
int current()
{
    CUcontext context = nullptr;
    int code = runtime(DRIVER(cuCtxGetCurrent), &context);
    return code == 0 && context ? 0 : runtime(RUNTIME(cudaFree), nullptr);
}

template <typename Function, typename... Given> int driver(Function function, Given... given)
{
    int code = current();
    if (code != 0)
        return code;
    return function ? int(function(given...)) : int(nvidia::ABSENT);
}

} /* namespace */

namespace nvidia
{

int driver_version(int *version) { return runtime(RUNTIME(cudaDriverGetVersion), version); }
int device_count(int *count) { return runtime(RUNTIME(cudaGetDeviceCount), count); }
int device_get(int *device) { return runtime(RUNTIME(cudaGetDevice), device); }
int device_set(int device) { return runtime(RUNTIME(cudaSetDevice), device); }
int device_synchronize() { return runtime(RUNTIME(cudaDeviceSynchronize)); }
int device_name(char *text, int nchars, int device) { return driver(DRIVER(cuDeviceGetName), text, nchars, device); }
int device_pci(char *text, int nchars, int device)
{
    return runtime(RUNTIME(cudaDeviceGetPCIBusId), text, nchars, device);
}
int device_by_pci(int *device, const char *text) { return runtime(RUNTIME(cudaDeviceGetByPCIBusId), device, text); }

/* Not driver(): asking must not make the context that it asks about. */
int device_state(int device, unsigned *flags, int *active)
{
    int code = runtime(DRIVER(cuInit), 0u);
    return code != 0 ? code : runtime(DRIVER(cuDevicePrimaryCtxGetState), device, flags, active);
}

int last_error(bool keep) { return keep ? runtime(RUNTIME(cudaPeekAtLastError)) : runtime(RUNTIME(cudaGetLastError)); }

int alloc(void **ptr, size_t nbytes) { return runtime(RUNTIME(cudaMalloc), ptr, nbytes); }
int release(void *ptr) { return runtime(RUNTIME(cudaFree), ptr); }
int alloc_async(void **ptr, size_t nbytes, void *stream)
{
    return runtime(RUNTIME(cudaMallocAsync), ptr, nbytes, runtime_stream(stream));
}
int release_async(void *ptr, void *stream) { return runtime(RUNTIME(cudaFreeAsync), ptr, runtime_stream(stream)); }
int alloc_managed(void **ptr, size_t nbytes, unsigned flags)
{
    return runtime(RUNTIME(cudaMallocManaged), ptr, nbytes, flags);
}
int host_alloc(void **ptr, size_t nbytes, unsigned flags)
{
    return runtime(RUNTIME(cudaHostAlloc), ptr, nbytes, flags);
}
int host_release(void *ptr) { return runtime(RUNTIME(cudaFreeHost), ptr); }
int host_register(void *ptr, size_t nbytes, unsigned flags)
{
    return runtime(RUNTIME(cudaHostRegister), ptr, nbytes, flags);
}
int host_unregister(void *ptr) { return runtime(RUNTIME(cudaHostUnregister), ptr); }
int host_address(void **on_device, void *ptr, unsigned flags)
{
    return runtime(RUNTIME(cudaHostGetDevicePointer), on_device, ptr, flags);
}

int pointer(Pointer *about, const void *ptr)
{
    cudaPointerAttributes found = {};
    int code = runtime(RUNTIME(cudaPointerGetAttributes), &found, ptr);
    *about = Pointer{int(found.type), found.device, found.devicePointer, found.hostPointer};
    return code;
}

int buffer_id(unsigned long long *id, const void *ptr)
{
    return driver(DRIVER(cuPointerGetAttribute), id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address(ptr));
}

int address_range(void **base, size_t *nbytes, void *ptr)
{
    return driver(DRIVER(cuMemGetAddressRange), reinterpret_cast<CUdeviceptr *>(base), nbytes, address(ptr));
}

int dmabuf(int *fd, void *ptr, size_t nbytes, unsigned long long flags)
{
    return driver(DRIVER(cuMemGetHandleForAddressRange), fd, address(ptr), nbytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                  flags);
}

int copy(void *dst, const void *src, size_t nbytes, int kind)
{
    return runtime(RUNTIME(cudaMemcpy), dst, src, nbytes, cudaMemcpyKind(kind));
}
int copy_async(void *dst, const void *src, size_t nbytes, int kind, void *stream)
{
    return runtime(RUNTIME(cudaMemcpyAsync), dst, src, nbytes, cudaMemcpyKind(kind), runtime_stream(stream));
}
int fill8(void *dst, int value, size_t nbytes, void *stream)
{
    return runtime(RUNTIME(cudaMemsetAsync), dst, value, nbytes, runtime_stream(stream));
}
int fill16(void *dst, unsigned short value, size_t count, void *stream)
{
    return driver(DRIVER(cuMemsetD16Async), address(dst), value, count, driver_stream(stream));
}
int fill32(void *dst, unsigned value, size_t count, void *stream)
{
    return driver(DRIVER(cuMemsetD32Async), address(dst), value, count, driver_stream(stream));
}
int fill8_rows(void *dst, size_t pitch, int value, size_t width, size_t height, void *stream)
{
    return runtime(RUNTIME(cudaMemset2DAsync), dst, pitch, value, width, height, runtime_stream(stream));
}
int fill32_rows(void *dst, size_t pitch, unsigned value, size_t width, size_t height, void *stream)
{
    return driver(DRIVER(cuMemsetD2D32Async), address(dst), pitch, value, width, height, driver_stream(stream));
}

int stream_create(void **stream, unsigned flags)
{
    return runtime(RUNTIME(cudaStreamCreateWithFlags), reinterpret_cast<cudaStream_t *>(stream), flags);
}
int stream_destroy(void *stream) { return runtime(RUNTIME(cudaStreamDestroy), runtime_stream(stream)); }
int stream_query(void *stream) { return runtime(RUNTIME(cudaStreamQuery), runtime_stream(stream)); }
int stream_synchronize(void *stream) { return runtime(RUNTIME(cudaStreamSynchronize), runtime_stream(stream)); }
int stream_capturing(void *stream, int *status)
{
    return runtime(RUNTIME(cudaStreamIsCapturing), runtime_stream(stream),
                   reinterpret_cast<cudaStreamCaptureStatus *>(status));
}
int stream_wait_event(void *stream, void *event, unsigned flags)
{
    return runtime(RUNTIME(cudaStreamWaitEvent), runtime_stream(stream), static_cast<cudaEvent_t>(event), flags);
}
int stream_write32(void *stream, void *ptr, uint32_t value, unsigned flags)
{
    return driver(DRIVER(cuStreamWriteValue32), driver_stream(stream), address(ptr), value, flags);
}
int stream_wait32(void *stream, void *ptr, uint32_t value, unsigned flags)
{
    return driver(DRIVER(cuStreamWaitValue32), driver_stream(stream), address(ptr), value, flags);
}
int host_function(void *stream, void (*action)(void *), void *argument)
{
    return runtime(RUNTIME(cudaLaunchHostFunc), runtime_stream(stream), action, argument);
}
int callback(void *stream, void (*action)(void *, int, void *), void *argument, unsigned flags)
{
    return runtime(RUNTIME(cudaStreamAddCallback), runtime_stream(stream),
                   reinterpret_cast<cudaStreamCallback_t>(action), argument, flags);
}

int event_create(void **event, unsigned flags)
{
    return runtime(RUNTIME(cudaEventCreateWithFlags), reinterpret_cast<cudaEvent_t *>(event), flags);
}
int event_destroy(void *event) { return runtime(RUNTIME(cudaEventDestroy), static_cast<cudaEvent_t>(event)); }
int event_record(void *event, void *stream)
{
    return runtime(RUNTIME(cudaEventRecord), static_cast<cudaEvent_t>(event), runtime_stream(stream));
}
int event_query(void *event) { return runtime(RUNTIME(cudaEventQuery), static_cast<cudaEvent_t>(event)); }
int event_synchronize(void *event) { return runtime(RUNTIME(cudaEventSynchronize), static_cast<cudaEvent_t>(event)); }

static_assert(sizeof(cudaIpcMemHandle_t) == IPC_BYTES, "an IPC handle");

int ipc_export(void *handle, void *ptr)
{
    cudaIpcMemHandle_t made;
    int code = runtime(RUNTIME(cudaIpcGetMemHandle), &made, ptr);
    if (code == 0)
        memcpy(handle, &made, sizeof made);
    return code;
}

int ipc_open(void **ptr, const void *handle)
{
    cudaIpcMemHandle_t given;
    memcpy(&given, handle, sizeof given);
    return runtime(RUNTIME(cudaIpcOpenMemHandle), ptr, given, cudaIpcMemLazyEnablePeerAccess);
}
int ipc_close(void *ptr) { return runtime(RUNTIME(cudaIpcCloseMemHandle), ptr); }

int module_load(void **module, const void *image)
{
    return driver(DRIVER(cuModuleLoadData), reinterpret_cast<CUmodule *>(module), image);
}
int module_unload(void *module) { return driver(DRIVER(cuModuleUnload), static_cast<CUmodule>(module)); }
int module_function(void **found, void *module, const char *name)
{
    return driver(DRIVER(cuModuleGetFunction), reinterpret_cast<CUfunction *>(found), static_cast<CUmodule>(module),
                  name);
}
int launch(void *kernel, const unsigned sizes[6], unsigned shared_nbytes, void *stream, void **arguments, void **extra)
{
    return driver(DRIVER(cuLaunchKernel), static_cast<CUfunction>(kernel), sizes[0], sizes[1], sizes[2], sizes[3],
                  sizes[4], sizes[5], shared_nbytes, driver_stream(stream), arguments, extra);
}

} /* namespace nvidia */
