/* NVIDIA's side of the emulated HIP runtime: the CUDA driver, or in EMULATION_CUDA what stands for it. NVIDIA's header
 * declares each function. The driver rather than libcudart: a process has exactly one, whatever its libraries brought
 * along, and the tests' fake driver can stand for it where no GPU is. */
#include "nvidia.h"

#include <cuda.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* cuda.h renames functions by macros (cuMemFree_v2): the names must expand before they become text. */
#define TEXT(name) #name
#define TEXT_OF(name) TEXT(name)

/* The driver's function of that name, with NVIDIA's declaration; NULL where this driver has none. */
#define DRIVER(name)                                                                                                   \
    ([] {                                                                                                              \
        static auto function = reinterpret_cast<decltype(&name)>(find(TEXT_OF(name)));                                 \
        return function;                                                                                               \
    }())

namespace
{

void *library()
{
    static void *opened = [] {
        const char *given = getenv("EMULATION_CUDA");
        return dlopen(given ? given : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    }();
    return opened;
}

void *find(const char *name) { return library() ? dlsym(library(), name) : nullptr; }

/* Call it as it is. A machine without a driver is one without a device. */
template <typename Function, typename... Given> int bare(Function function, Given... given)
{
    if (!function)
        return library() ? int(nvidia::ABSENT) : int(nvidia::NO_DEVICE);
    return function(given...);
}

int initialized()
{
    static int code = bare(DRIVER(cuInit), 0u);
    return code;
}

enum { DEVICES_MAX = 64 };

/* Retained once for the life of the process, as libcudart does: releasing the last reference would destroy it. */
int make_current(int device)
{
    static CUcontext contexts[DEVICES_MAX];
    int code = initialized();
    if (code != 0)
        return code;
    if (device < 0 || device >= DEVICES_MAX)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!contexts[device])
        code = bare(DRIVER(cuDevicePrimaryCtxRetain), &contexts[device], device);
    return code != 0 ? code : bare(DRIVER(cuCtxSetCurrent), contexts[device]);
}

int current()
{
    CUcontext context = nullptr;
    int code = initialized();
    if (code == 0)
        code = bare(DRIVER(cuCtxGetCurrent), &context);
    return code != 0 || context ? code : make_current(0);
}

/* Call it in a context. */
template <typename Function, typename... Given> int driver(Function function, Given... given)
{
    int code = current();
    return code != 0 ? code : bare(function, given...);
}

CUdeviceptr address(const void *ptr) { return reinterpret_cast<CUdeviceptr>(ptr); }
CUdeviceptr *place(void **ptr) { return reinterpret_cast<CUdeviceptr *>(ptr); }
CUstream stream_of(void *stream) { return static_cast<CUstream>(stream); }
CUevent event_of(void *event) { return static_cast<CUevent>(event); }

static_assert(sizeof(CUipcMemHandle) == nvidia::IPC_BYTES, "an IPC handle");

} /* namespace */

namespace nvidia
{

int device_count(int *count)
{
    int code = initialized();
    return code != 0 ? code : bare(DRIVER(cuDeviceGetCount), count);
}
int device_get(int *device)
{
    CUcontext context = nullptr;
    int code = initialized();
    if (code == 0)
        code = bare(DRIVER(cuCtxGetCurrent), &context);
    *device = 0;
    return code != 0 || !context ? code : bare(DRIVER(cuCtxGetDevice), device);
}
int device_set(int device) { return make_current(device); }
int device_synchronize() { return driver(DRIVER(cuCtxSynchronize)); }
int device_name(char *text, int nchars, int device) { return driver(DRIVER(cuDeviceGetName), text, nchars, device); }
int device_pci(char *text, int nchars, int device)
{
    int code = initialized();
    return code != 0 ? code : bare(DRIVER(cuDeviceGetPCIBusId), text, nchars, device);
}
int device_state(int device, unsigned *flags, int *active)
{
    int code = initialized();
    return code != 0 ? code : bare(DRIVER(cuDevicePrimaryCtxGetState), device, flags, active);
}

int alloc(void **ptr, size_t nbytes) { return driver(DRIVER(cuMemAlloc), place(ptr), nbytes); }
int release(void *ptr) { return ptr ? driver(DRIVER(cuMemFree), address(ptr)) : current(); }
int alloc_async(void **ptr, size_t nbytes, void *stream)
{
    return driver(DRIVER(cuMemAllocAsync), place(ptr), nbytes, stream_of(stream));
}
int release_async(void *ptr, void *stream) { return driver(DRIVER(cuMemFreeAsync), address(ptr), stream_of(stream)); }
int alloc_managed(void **ptr, size_t nbytes)
{
    return driver(DRIVER(cuMemAllocManaged), place(ptr), nbytes, unsigned(CU_MEM_ATTACH_GLOBAL));
}
int host_alloc(void **ptr, size_t nbytes, unsigned flags) { return driver(DRIVER(cuMemHostAlloc), ptr, nbytes, flags); }
int host_release(void *ptr) { return ptr ? driver(DRIVER(cuMemFreeHost), ptr) : current(); }
int host_register(void *ptr, size_t nbytes, unsigned flags)
{
    return driver(DRIVER(cuMemHostRegister), ptr, nbytes, flags);
}
int host_unregister(void *ptr) { return driver(DRIVER(cuMemHostUnregister), ptr); }
int host_address(void **on_device, void *ptr, unsigned flags)
{
    return driver(DRIVER(cuMemHostGetDevicePointer), place(on_device), ptr, flags);
}

int pointer(Pointer *about, const void *ptr)
{
    CUpointer_attribute wanted[] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,      CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_BUFFER_ID,
    };
    /* The driver writes a byte or an int for a boolean: zeroed ints take both. */
    int type = 0, managed = 0;
    *about = Pointer{};
    void *values[] = {&type, &managed, &about->device, &about->base, &about->nbytes, &about->buffer_id};
    int code =
        driver(DRIVER(cuPointerGetAttributes), unsigned(sizeof values / sizeof *values), wanted, values, address(ptr));
    if (code != 0)
        return code;
    void *same = const_cast<void *>(ptr); /* all addresses are unified */
    about->kind = managed                        ? MANAGED
                  : type == CU_MEMORYTYPE_DEVICE ? DEVICE
                  : type == CU_MEMORYTYPE_HOST   ? HOST
                                                 : UNKNOWN;
    about->on_device = about->kind == UNKNOWN ? nullptr : same;
    about->on_host = about->kind == HOST || about->kind == MANAGED ? same : nullptr;
    return 0;
}

int dmabuf(int *fd, void *ptr, size_t nbytes, unsigned long long flags)
{
    return driver(DRIVER(cuMemGetHandleForAddressRange), fd, address(ptr), nbytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                  flags);
}

int copy(void *dst, const void *src, size_t nbytes)
{
    return driver(DRIVER(cuMemcpy), address(dst), address(src), nbytes);
}
int copy_async(void *dst, const void *src, size_t nbytes, void *stream)
{
    return driver(DRIVER(cuMemcpyAsync), address(dst), address(src), nbytes, stream_of(stream));
}
int fill8(void *dst, unsigned char value, size_t count, void *stream)
{
    return driver(DRIVER(cuMemsetD8Async), address(dst), value, count, stream_of(stream));
}
int fill16(void *dst, unsigned short value, size_t count, void *stream)
{
    return driver(DRIVER(cuMemsetD16Async), address(dst), value, count, stream_of(stream));
}
int fill32(void *dst, unsigned value, size_t count, void *stream)
{
    return driver(DRIVER(cuMemsetD32Async), address(dst), value, count, stream_of(stream));
}

int stream_create(void **stream, unsigned flags)
{
    return driver(DRIVER(cuStreamCreate), reinterpret_cast<CUstream *>(stream), flags);
}
int stream_destroy(void *stream) { return driver(DRIVER(cuStreamDestroy), stream_of(stream)); }
int stream_query(void *stream) { return driver(DRIVER(cuStreamQuery), stream_of(stream)); }
int stream_synchronize(void *stream) { return driver(DRIVER(cuStreamSynchronize), stream_of(stream)); }
int stream_capturing(void *stream, int *status)
{
    CUstreamCaptureStatus found = CU_STREAM_CAPTURE_STATUS_NONE;
    int code = driver(DRIVER(cuStreamIsCapturing), stream_of(stream), &found);
    *status = found;
    return code;
}
int stream_wait_event(void *stream, void *event, unsigned flags)
{
    return driver(DRIVER(cuStreamWaitEvent), stream_of(stream), event_of(event), flags);
}
int stream_write32(void *stream, void *ptr, uint32_t value, unsigned flags)
{
    return driver(DRIVER(cuStreamWriteValue32), stream_of(stream), address(ptr), value, flags);
}
int stream_wait32(void *stream, void *ptr, uint32_t value, unsigned flags)
{
    return driver(DRIVER(cuStreamWaitValue32), stream_of(stream), address(ptr), value, flags);
}
int host_function(void *stream, void (*function)(void *), void *argument)
{
    return driver(DRIVER(cuLaunchHostFunc), stream_of(stream), function, argument);
}

int event_create(void **event, unsigned flags)
{
    return driver(DRIVER(cuEventCreate), reinterpret_cast<CUevent *>(event), flags);
}
int event_destroy(void *event) { return driver(DRIVER(cuEventDestroy), event_of(event)); }
int event_record(void *event, void *stream)
{
    return driver(DRIVER(cuEventRecord), event_of(event), stream_of(stream));
}
int event_query(void *event) { return driver(DRIVER(cuEventQuery), event_of(event)); }
int event_synchronize(void *event) { return driver(DRIVER(cuEventSynchronize), event_of(event)); }

int ipc_export(void *handle, void *ptr)
{
    return driver(DRIVER(cuIpcGetMemHandle), static_cast<CUipcMemHandle *>(handle), address(ptr));
}
int ipc_open(void **ptr, const void *handle)
{
    CUipcMemHandle given;
    memcpy(&given, handle, sizeof given);
    return driver(DRIVER(cuIpcOpenMemHandle), place(ptr), given, unsigned(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
}
int ipc_close(void *ptr) { return driver(DRIVER(cuIpcCloseMemHandle), address(ptr)); }

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
                  sizes[4], sizes[5], shared_nbytes, stream_of(stream), arguments, extra);
}

} /* namespace nvidia */
