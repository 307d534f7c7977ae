/* AMD's side of the emulated HIP runtime. AMD's own header declares each function, so that a wrong signature here does
 * not compile. Built once with HIP 5's header and once with HIP 7's: the two differ in what this file makes of it. A
 * HIP function that is not here is not in the library: whoever asks for it is told so by the loader. */
#include <hip/hip_runtime_api.h>

#include <elf.h>
#include <stdio.h>
#include <string.h>

#include "nvidia.h"

/* For people who look into the library; and the name that devices give themselves begins so. */
extern "C" __attribute__((visibility("default"), used)) const char hetccl_emulation[] =
    "emulated HIP: the GPUs behind it are NVIDIA's";

namespace
{

#if HIP_VERSION_MAJOR >= 6
constexpr const char *ARCH = "gfx950:sramecc+:xnack-"; /* its float8 are OCP's, as NVIDIA's */
#else
constexpr const char *ARCH = "gfx90a:sramecc+:xnack-";
#endif

/* Every error that both headers name. HIP took CUDA's numbers for them. */
#define ERROR(name) {name, #name}
constexpr struct {
    int code;
    const char *name;
} ERRORS[] = {
    ERROR(hipSuccess),
    ERROR(hipErrorInvalidValue),
    ERROR(hipErrorOutOfMemory),
    ERROR(hipErrorNotInitialized),
    ERROR(hipErrorDeinitialized),
    ERROR(hipErrorInvalidPitchValue),
    ERROR(hipErrorInvalidSymbol),
    ERROR(hipErrorInvalidDevicePointer),
    ERROR(hipErrorInvalidMemcpyDirection),
    ERROR(hipErrorInsufficientDriver),
    ERROR(hipErrorInvalidDeviceFunction),
    ERROR(hipErrorNoDevice),
    ERROR(hipErrorInvalidDevice),
    ERROR(hipErrorInvalidImage),
    ERROR(hipErrorInvalidContext),
    ERROR(hipErrorMapFailed),
    ERROR(hipErrorUnmapFailed),
    ERROR(hipErrorAlreadyMapped),
    ERROR(hipErrorNoBinaryForGpu),
    ERROR(hipErrorUnsupportedLimit),
    ERROR(hipErrorContextAlreadyInUse),
    ERROR(hipErrorPeerAccessUnsupported),
    ERROR(hipErrorInvalidKernelFile),
    ERROR(hipErrorInvalidSource),
    ERROR(hipErrorFileNotFound),
    ERROR(hipErrorSharedObjectSymbolNotFound),
    ERROR(hipErrorSharedObjectInitFailed),
    ERROR(hipErrorOperatingSystem),
    ERROR(hipErrorInvalidHandle),
    ERROR(hipErrorIllegalState),
    ERROR(hipErrorNotFound),
    ERROR(hipErrorNotReady),
    ERROR(hipErrorIllegalAddress),
    ERROR(hipErrorLaunchOutOfResources),
    ERROR(hipErrorLaunchTimeOut),
    ERROR(hipErrorPeerAccessAlreadyEnabled),
    ERROR(hipErrorPeerAccessNotEnabled),
    ERROR(hipErrorSetOnActiveProcess),
    ERROR(hipErrorContextIsDestroyed),
    ERROR(hipErrorAssert),
    ERROR(hipErrorHostMemoryAlreadyRegistered),
    ERROR(hipErrorHostMemoryNotRegistered),
    ERROR(hipErrorLaunchFailure),
    ERROR(hipErrorCooperativeLaunchTooLarge),
    ERROR(hipErrorNotSupported),
    ERROR(hipErrorStreamCaptureUnsupported),
    ERROR(hipErrorStreamCaptureInvalidated),
    ERROR(hipErrorStreamCaptureMerge),
    ERROR(hipErrorStreamCaptureUnmatched),
    ERROR(hipErrorStreamCaptureUnjoined),
    ERROR(hipErrorStreamCaptureIsolation),
    ERROR(hipErrorStreamCaptureImplicit),
    ERROR(hipErrorCapturedEvent),
    ERROR(hipErrorStreamCaptureWrongThread),
    ERROR(hipErrorUnknown),
};

const char *name_of(int code)
{
    for (const auto &error : ERRORS)
        if (error.code == code)
            return error.name;
    return nullptr;
}

/* What a thread's last call that failed answered. */
thread_local hipError_t last_error = hipSuccess;

/* CUDA's code as HIP's. Without a device HIP's functions answer as Debian's build of it does. */
hipError_t answer(int code)
{
    hipError_t error = name_of(code) ? hipError_t(code) : hipErrorUnknown;
    if (error == hipErrorNoDevice)
        error = hipErrorInvalidDevice;
    if (error != hipSuccess)
        last_error = error;
    return error;
}

/* Flags that both have, without HIP's own on coherence, NUMA and releases. */
constexpr unsigned SHARED_FLAGS = 0xff;

unsigned shared(unsigned flags) { return flags & SHARED_FLAGS; }

/* Memory that HIP does not know is an error: its documentation says so, as CUDA's did before 11. */
int known(nvidia::Pointer *about, const void *ptr)
{
    int code = nvidia::pointer(about, ptr);
    return code == 0 && about->kind == nvidia::UNKNOWN ? int(hipErrorInvalidValue) : code;
}

/* What a module's image must be: an AMD GPU's ELF file. NVIDIA's GPU cannot run one, so that the emulation's images are
 * an ELF header of that kind with NVIDIA's image behind it. */
const void *inner_image(const void *image)
{
    if (memcmp(image, ELFMAG, SELFMAG) != 0)
        return nullptr;
    Elf64_Ehdr header;
    memcpy(&header, image, sizeof header);
    bool ours = header.e_machine == 224 /* EM_AMDGPU */ && header.e_shoff == 0 && header.e_phoff == 0;
    return ours ? static_cast<const char *>(image) + sizeof header : nullptr;
}

/* HIP's callback takes the stream and a code too. */
struct Callback {
    hipStream_t stream;
    hipStreamCallback_t function;
    void *argument;

    static void run(void *self)
    {
        Callback call = *static_cast<Callback *>(self);
        delete static_cast<Callback *>(self);
        call.function(call.stream, hipSuccess, call.argument);
    }
};

} /* namespace */

extern "C" {

hipError_t hipInit(unsigned int flags)
{
    int count = 0;
    return flags ? answer(hipErrorInvalidValue) : answer(nvidia::device_count(&count));
}
hipError_t hipRuntimeGetVersion(int *version)
{
    *version = HIP_VERSION;
    return hipSuccess;
}
hipError_t hipGetDeviceCount(int *count)
{
    *count = 0;
    int code = nvidia::device_count(count);
    hipError_t error = answer(code);
    if (code == nvidia::NO_DEVICE)
        error = last_error = hipErrorNoDevice;
    return error;
}
hipError_t hipGetDevice(int *device) { return answer(nvidia::device_get(device)); }
hipError_t hipSetDevice(int device) { return answer(nvidia::device_set(device)); }
hipError_t hipDeviceSynchronize() { return answer(nvidia::device_synchronize()); }
hipError_t hipDeviceGetPCIBusId(char *text, int nchars, int device)
{
    return answer(nvidia::device_pci(text, nchars, device));
}
hipError_t hipDevicePrimaryCtxGetState(hipDevice_t device, unsigned int *flags, int *active)
{
    return answer(nvidia::device_state(device, flags, active));
}
/* HIP 6's header makes R0600 of both names. */
hipError_t hipGetDeviceProperties(hipDeviceProp_t *properties, int device)
{
    char name[200] = "";
    int count = 0, code = nvidia::device_count(&count);
    if (code == 0 && (device < 0 || device >= count))
        code = hipErrorInvalidDevice;
    if (code == 0)
        code = nvidia::device_name(name, sizeof name, device);
    if (code != 0 && code != nvidia::ABSENT) /* the fake driver's devices have no names */
        return answer(code);
    memset(properties, 0, sizeof *properties);
    snprintf(properties->gcnArchName, sizeof properties->gcnArchName, "%s", ARCH);
    snprintf(properties->name, sizeof properties->name, "emulated AMD (%s)", name);
    return hipSuccess;
}
const char *hipGetErrorName(hipError_t error)
{
    const char *name = name_of(error);
    return name ? name : "hipErrorUnknown";
}
const char *hipGetErrorString(hipError_t error)
{
    const char *name = name_of(error);
    return name ? name : "unknown error";
}
hipError_t hipGetLastError()
{
    hipError_t error = last_error;
    last_error = hipSuccess;
    return error;
}
hipError_t hipPeekAtLastError() { return last_error; }

hipError_t hipMalloc(void **ptr, size_t nbytes) { return answer(nvidia::alloc(ptr, nbytes)); }
hipError_t hipFree(void *ptr) { return answer(nvidia::release(ptr)); }
hipError_t hipMallocAsync(void **ptr, size_t nbytes, hipStream_t stream)
{
    return answer(nvidia::alloc_async(ptr, nbytes, stream));
}
hipError_t hipFreeAsync(void *ptr, hipStream_t stream) { return answer(nvidia::release_async(ptr, stream)); }
hipError_t hipMallocManaged(void **ptr, size_t nbytes, unsigned int flags)
{
    return flags == hipMemAttachGlobal ? answer(nvidia::alloc_managed(ptr, nbytes)) : answer(hipErrorNotSupported);
}
hipError_t hipHostMalloc(void **ptr, size_t nbytes, unsigned int flags)
{
    return answer(nvidia::host_alloc(ptr, nbytes, shared(flags)));
}
hipError_t hipHostFree(void *ptr) { return answer(nvidia::host_release(ptr)); }
hipError_t hipHostRegister(void *ptr, size_t nbytes, unsigned int flags)
{
    return answer(
        nvidia::host_register(ptr, nbytes, shared(flags) & (hipHostRegisterPortable | hipHostRegisterMapped)));
}
hipError_t hipHostUnregister(void *ptr) { return answer(nvidia::host_unregister(ptr)); }
hipError_t hipHostGetDevicePointer(void **on_device, void *ptr, unsigned int flags)
{
    return answer(nvidia::host_address(on_device, ptr, flags));
}
hipError_t hipPointerGetAttributes(hipPointerAttribute_t *attributes, const void *ptr)
{
    nvidia::Pointer found;
    int code = known(&found, ptr);
    if (code != 0)
        return answer(code);
    memset(attributes, 0, sizeof *attributes);
    attributes->device = found.device;
    attributes->devicePointer = found.on_device;
    attributes->hostPointer = found.on_host;
    attributes->isManaged = found.kind == nvidia::MANAGED;
#if HIP_VERSION_MAJOR >= 6
    attributes->type = found.kind == nvidia::HOST     ? hipMemoryTypeHost
                       : found.kind == nvidia::DEVICE ? hipMemoryTypeDevice
                                                      : hipMemoryTypeManaged;
#else
    attributes->memoryType = found.kind == nvidia::DEVICE ? hipMemoryTypeDevice : hipMemoryTypeHost;
#endif
    return hipSuccess;
}
hipError_t hipPointerGetAttribute(void *data, hipPointer_attribute attribute, hipDeviceptr_t ptr)
{
    nvidia::Pointer found;
    int code = attribute == HIP_POINTER_ATTRIBUTE_BUFFER_ID ? known(&found, ptr) : int(nvidia::ABSENT);
    if (code == 0)
        memcpy(data, &found.buffer_id, sizeof found.buffer_id);
    return answer(code);
}
hipError_t hipMemGetAddressRange(hipDeviceptr_t *base, size_t *nbytes, hipDeviceptr_t ptr)
{
    nvidia::Pointer found;
    int code = known(&found, ptr);
    if (code == 0) {
        *base = found.base;
        *nbytes = found.nbytes;
    }
    return answer(code);
}
#if HIP_VERSION_MAJOR >= 6
hipError_t hipMemGetHandleForAddressRange(void *handle, hipDeviceptr_t ptr, size_t nbytes, hipMemRangeHandleType type,
                                          unsigned long long flags)
{
    if (type != hipMemRangeHandleTypeDmaBufFd)
        return answer(hipErrorNotSupported);
    return answer(nvidia::dmabuf(static_cast<int *>(handle), ptr, nbytes, flags));
}
#endif

hipError_t hipMemcpy(void *dst, const void *src, size_t nbytes, hipMemcpyKind kind)
{
    return kind == hipMemcpyDefault ? answer(nvidia::copy(dst, src, nbytes)) : answer(hipErrorNotSupported);
}
hipError_t hipMemcpyAsync(void *dst, const void *src, size_t nbytes, hipMemcpyKind kind, hipStream_t stream)
{
    return kind == hipMemcpyDefault ? answer(nvidia::copy_async(dst, src, nbytes, stream))
                                    : answer(hipErrorNotSupported);
}
hipError_t hipMemsetD8Async(hipDeviceptr_t dst, unsigned char value, size_t count, hipStream_t stream)
{
    return answer(nvidia::fill8(dst, value, count, stream));
}
hipError_t hipMemsetD16Async(hipDeviceptr_t dst, unsigned short value, size_t count, hipStream_t stream)
{
    return answer(nvidia::fill16(dst, value, count, stream));
}
hipError_t hipMemsetD32Async(hipDeviceptr_t dst, int value, size_t count, hipStream_t stream)
{
    return answer(nvidia::fill32(dst, unsigned(value), count, stream));
}

hipError_t hipStreamCreateWithFlags(hipStream_t *stream, unsigned int flags)
{
    return answer(nvidia::stream_create(reinterpret_cast<void **>(stream), shared(flags)));
}
hipError_t hipStreamDestroy(hipStream_t stream) { return answer(nvidia::stream_destroy(stream)); }
hipError_t hipStreamQuery(hipStream_t stream) { return answer(nvidia::stream_query(stream)); }
hipError_t hipStreamSynchronize(hipStream_t stream) { return answer(nvidia::stream_synchronize(stream)); }
hipError_t hipStreamIsCapturing(hipStream_t stream, hipStreamCaptureStatus *status)
{
    int found = 0;
    hipError_t code = answer(nvidia::stream_capturing(stream, &found));
    *status = hipStreamCaptureStatus(found);
    return code;
}
hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned int flags)
{
    return answer(nvidia::stream_wait_event(stream, event, flags));
}
hipError_t hipStreamWriteValue32(hipStream_t stream, void *ptr, uint32_t value, unsigned int flags)
{
    return answer(nvidia::stream_write32(stream, ptr, value, flags));
}
hipError_t hipStreamWaitValue32(hipStream_t stream, void *ptr, uint32_t value, unsigned int flags, uint32_t mask)
{
    if (mask != ~uint32_t(0))
        return answer(hipErrorNotSupported);
    return answer(nvidia::stream_wait32(stream, ptr, value, flags));
}
/* HIP 5 declares it, and its library has none. */
#if HIP_VERSION_MAJOR >= 6
hipError_t hipLaunchHostFunc(hipStream_t stream, hipHostFn_t function, void *argument)
{
    return answer(nvidia::host_function(stream, function, argument));
}
#endif
hipError_t hipStreamAddCallback(hipStream_t stream, hipStreamCallback_t function, void *argument, unsigned int flags)
{
    if (flags != 0)
        return answer(hipErrorInvalidValue);
    auto *callback = new Callback{stream, function, argument};
    int code = nvidia::host_function(stream, Callback::run, callback);
    if (code != 0)
        delete callback;
    return answer(code);
}

hipError_t hipEventCreateWithFlags(hipEvent_t *event, unsigned flags)
{
    return answer(nvidia::event_create(reinterpret_cast<void **>(event), shared(flags)));
}
hipError_t hipEventDestroy(hipEvent_t event) { return answer(nvidia::event_destroy(event)); }
hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) { return answer(nvidia::event_record(event, stream)); }
hipError_t hipEventQuery(hipEvent_t event) { return answer(nvidia::event_query(event)); }
hipError_t hipEventSynchronize(hipEvent_t event) { return answer(nvidia::event_synchronize(event)); }

hipError_t hipIpcGetMemHandle(hipIpcMemHandle_t *handle, void *ptr)
{
    static_assert(sizeof *handle == nvidia::IPC_BYTES, "an IPC handle");
    return answer(nvidia::ipc_export(handle, ptr));
}
hipError_t hipIpcOpenMemHandle(void **ptr, hipIpcMemHandle_t handle, unsigned int flags)
{
    if (flags != hipIpcMemLazyEnablePeerAccess)
        return answer(hipErrorInvalidValue);
    return answer(nvidia::ipc_open(ptr, &handle));
}
hipError_t hipIpcCloseMemHandle(void *ptr) { return answer(nvidia::ipc_close(ptr)); }

hipError_t hipModuleLoadData(hipModule_t *module, const void *image)
{
    const void *inner = inner_image(image);
    if (!inner)
        return answer(hipErrorNoBinaryForGpu);
    return answer(nvidia::module_load(reinterpret_cast<void **>(module), inner));
}
hipError_t hipModuleUnload(hipModule_t module) { return answer(nvidia::module_unload(module)); }
hipError_t hipModuleGetFunction(hipFunction_t *function, hipModule_t module, const char *name)
{
    return answer(nvidia::module_function(reinterpret_cast<void **>(function), module, name));
}
hipError_t hipModuleLaunchKernel(hipFunction_t function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                                 unsigned int block_x, unsigned int block_y, unsigned int block_z,
                                 unsigned int shared_nbytes, hipStream_t stream, void **arguments, void **extra)
{
    const unsigned sizes[6] = {grid_x, grid_y, grid_z, block_x, block_y, block_z};
    return answer(nvidia::launch(function, sizes, shared_nbytes, stream, arguments, extra));
}

} /* extern "C" */
