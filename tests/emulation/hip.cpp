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
#define ERRORS(each)                                                                                                   \
    each(hipSuccess) each(hipErrorInvalidValue) each(hipErrorOutOfMemory) each(hipErrorNotInitialized)                 \
        each(hipErrorDeinitialized) each(hipErrorInvalidPitchValue) each(hipErrorInvalidSymbol) each(                  \
            hipErrorInvalidDevicePointer) each(hipErrorInvalidMemcpyDirection) each(hipErrorInsufficientDriver)        \
            each(hipErrorInvalidDeviceFunction) each(hipErrorNoDevice) each(hipErrorInvalidDevice) each(               \
                hipErrorInvalidImage) each(hipErrorInvalidContext) each(hipErrorMapFailed) each(hipErrorUnmapFailed)   \
                each(hipErrorAlreadyMapped) each(hipErrorNoBinaryForGpu) each(hipErrorUnsupportedLimit) each(          \
                    hipErrorContextAlreadyInUse) each(hipErrorPeerAccessUnsupported) each(hipErrorInvalidKernelFile)   \
                    each(hipErrorInvalidSource) each(hipErrorFileNotFound) each(hipErrorSharedObjectSymbolNotFound)    \
                        each(hipErrorSharedObjectInitFailed) each(hipErrorOperatingSystem) each(hipErrorInvalidHandle) \
                            each(hipErrorIllegalState) each(hipErrorNotFound) each(hipErrorNotReady) each(             \
                                hipErrorIllegalAddress) each(hipErrorLaunchOutOfResources) each(hipErrorLaunchTimeOut) \
                                each(hipErrorPeerAccessAlreadyEnabled) each(hipErrorPeerAccessNotEnabled) each(        \
                                    hipErrorSetOnActiveProcess) each(hipErrorContextIsDestroyed) each(hipErrorAssert)  \
                                    each(hipErrorHostMemoryAlreadyRegistered) each(hipErrorHostMemoryNotRegistered)    \
                                        each(hipErrorLaunchFailure) each(hipErrorCooperativeLaunchTooLarge)            \
                                            each(hipErrorNotSupported) each(hipErrorStreamCaptureUnsupported)          \
                                                each(hipErrorStreamCaptureInvalidated)                                 \
                                                    each(hipErrorStreamCaptureMerge)                                   \
                                                        each(hipErrorStreamCaptureUnmatched)                           \
                                                            each(hipErrorStreamCaptureUnjoined)                        \
                                                                each(hipErrorStreamCaptureIsolation)                   \
                                                                    each(hipErrorStreamCaptureImplicit)                \
                                                                        each(hipErrorCapturedEvent)                    \
                                                                            each(hipErrorStreamCaptureWrongThread)     \
                                                                                each(hipErrorUnknown)

const char *name_of(int code)
{
#define NAME(error)                                                                                                    \
    case error:                                                                                                        \
        return #error;
    switch (code) {
        ERRORS(NAME)
    default:
        return nullptr;
    }
}

/* CUDA's code as HIP's. Without a device HIP's functions answer as Debian's build of it does. */
hipError_t answer(int code)
{
    if (code == hipErrorInsufficientDriver || code == hipErrorNoDevice)
        return hipErrorInvalidDevice;
    return name_of(code) ? hipError_t(code) : hipErrorUnknown;
}

/* Flags that both have, without HIP's own on coherence, NUMA and releases. */
constexpr unsigned SHARED_FLAGS = 0xff;

unsigned shared(unsigned flags) { return flags & SHARED_FLAGS; }

int copy_kind(hipMemcpyKind kind) { return kind <= hipMemcpyDefault ? int(kind) : int(hipMemcpyDeviceToDevice); }

/* What a module's image must be: an AMD GPU's ELF file. NVIDIA's GPU cannot run one, so that the emulation's images are
 * an ELF header of that kind with NVIDIA's image behind it. */
const void *inner_image(const void *image)
{
    Elf64_Ehdr header;
    memcpy(&header, image, sizeof header);
    bool amd = memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 && header.e_machine == 224 /* EM_AMDGPU */;
    bool ours = amd && header.e_shoff == 0 && header.e_phoff == 0;
    return ours ? static_cast<const char *>(image) + sizeof header : nullptr;
}

} /* namespace */

extern "C" {

hipError_t hipInit(unsigned int flags)
{
    int count = 0;
    return flags ? hipErrorInvalidValue : answer(hipGetDeviceCount(&count));
}
hipError_t hipDriverGetVersion(int *version) { return hipRuntimeGetVersion(version); }
hipError_t hipRuntimeGetVersion(int *version)
{
    if (!version)
        return hipErrorInvalidValue;
    *version = HIP_VERSION;
    return hipSuccess;
}
hipError_t hipGetDeviceCount(int *count)
{
    if (!count)
        return hipErrorInvalidValue;
    *count = 0;
    hipError_t code = answer(nvidia::device_count(count));
    return code == hipErrorInvalidDevice ? hipErrorNoDevice : code;
}
hipError_t hipGetDevice(int *device) { return answer(nvidia::device_get(device)); }
hipError_t hipSetDevice(int device) { return answer(nvidia::device_set(device)); }
hipError_t hipDeviceSynchronize() { return answer(nvidia::device_synchronize()); }
hipError_t hipDeviceGet(hipDevice_t *handle, int device)
{
    int count = 0;
    hipError_t code = hipGetDeviceCount(&count);
    if (code == hipSuccess && (device < 0 || device >= count))
        code = hipErrorInvalidDevice;
    if (code == hipSuccess)
        *handle = device;
    return code;
}
hipError_t hipDeviceGetName(char *text, int nchars, hipDevice_t device)
{
    char name[200];
    hipError_t code = answer(nvidia::device_name(name, sizeof name, device));
    if (code == hipSuccess)
        snprintf(text, nchars, "emulated AMD (%s)", name);
    return code;
}
hipError_t hipDeviceGetPCIBusId(char *text, int nchars, int device)
{
    return answer(nvidia::device_pci(text, nchars, device));
}
hipError_t hipDeviceGetByPCIBusId(int *device, const char *text) { return answer(nvidia::device_by_pci(device, text)); }
hipError_t hipDevicePrimaryCtxGetState(hipDevice_t device, unsigned int *flags, int *active)
{
    return answer(nvidia::device_state(device, flags, active));
}
/* HIP 6's header makes R0600 of both names. */
hipError_t hipGetDeviceProperties(hipDeviceProp_t *properties, int device)
{
    memset(properties, 0, sizeof *properties);
    snprintf(properties->gcnArchName, sizeof properties->gcnArchName, "%s", ARCH);
    return hipDeviceGetName(properties->name, sizeof properties->name, device);
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
hipError_t hipGetLastError() { return answer(nvidia::last_error(false)); }
hipError_t hipPeekAtLastError() { return answer(nvidia::last_error(true)); }

hipError_t hipMalloc(void **ptr, size_t nbytes) { return answer(nvidia::alloc(ptr, nbytes)); }
hipError_t hipFree(void *ptr) { return answer(nvidia::release(ptr)); }
hipError_t hipMallocAsync(void **ptr, size_t nbytes, hipStream_t stream)
{
    return answer(nvidia::alloc_async(ptr, nbytes, stream));
}
hipError_t hipFreeAsync(void *ptr, hipStream_t stream) { return answer(nvidia::release_async(ptr, stream)); }
hipError_t hipMallocManaged(void **ptr, size_t nbytes, unsigned int flags)
{
    return answer(nvidia::alloc_managed(ptr, nbytes, flags));
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
    int code = nvidia::pointer(&found, ptr);
    /* Memory that HIP does not know is an error: its documentation says, as CUDA's before 11. */
    if (code != 0 || found.kind == 0)
        return code != 0 ? answer(code) : hipErrorInvalidValue;
    memset(attributes, 0, sizeof *attributes);
    attributes->device = found.device;
    attributes->devicePointer = found.on_device;
    attributes->hostPointer = found.on_host;
    attributes->isManaged = found.kind == 3;
#if HIP_VERSION_MAJOR >= 6
    attributes->type = found.kind == 1   ? hipMemoryTypeHost
                       : found.kind == 2 ? hipMemoryTypeDevice
                                         : hipMemoryTypeManaged;
#else
    attributes->memoryType = found.kind == 2 ? hipMemoryTypeDevice : hipMemoryTypeHost;
#endif
    return hipSuccess;
}
hipError_t hipPointerGetAttribute(void *data, hipPointer_attribute attribute, hipDeviceptr_t ptr)
{
    if (attribute != HIP_POINTER_ATTRIBUTE_BUFFER_ID)
        return hipErrorNotSupported;
    return answer(nvidia::buffer_id(static_cast<unsigned long long *>(data), ptr));
}
hipError_t hipMemGetAddressRange(hipDeviceptr_t *base, size_t *nbytes, hipDeviceptr_t ptr)
{
    return answer(nvidia::address_range(base, nbytes, ptr));
}
#if HIP_VERSION_MAJOR >= 6
hipError_t hipMemGetHandleForAddressRange(void *handle, hipDeviceptr_t ptr, size_t nbytes, hipMemRangeHandleType type,
                                          unsigned long long flags)
{
    if (type != hipMemRangeHandleTypeDmaBufFd)
        return hipErrorNotSupported;
    return answer(nvidia::dmabuf(static_cast<int *>(handle), ptr, nbytes, flags));
}
#endif

hipError_t hipMemcpy(void *dst, const void *src, size_t nbytes, hipMemcpyKind kind)
{
    return answer(nvidia::copy(dst, src, nbytes, copy_kind(kind)));
}
hipError_t hipMemcpyAsync(void *dst, const void *src, size_t nbytes, hipMemcpyKind kind, hipStream_t stream)
{
    return answer(nvidia::copy_async(dst, src, nbytes, copy_kind(kind), stream));
}
hipError_t hipMemsetAsync(void *dst, int value, size_t nbytes, hipStream_t stream)
{
    return answer(nvidia::fill8(dst, value, nbytes, stream));
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
hipError_t hipMemset2DAsync(void *dst, size_t pitch, int value, size_t width, size_t height, hipStream_t stream)
{
    return answer(nvidia::fill8_rows(dst, pitch, value, width, height, stream));
}
#if HIP_VERSION_MAJOR >= 6
hipError_t hipMemsetD2D32Async(hipDeviceptr_t dst, size_t pitch, unsigned int value, size_t width, size_t height,
                               hipStream_t stream)
{
    return answer(nvidia::fill32_rows(dst, pitch, value, width, height, stream));
}
#endif

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
        return hipErrorNotSupported;
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
    auto plain = reinterpret_cast<void (*)(void *, int, void *)>(function);
    return answer(nvidia::callback(stream, plain, argument, flags));
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
        return hipErrorInvalidValue;
    return answer(nvidia::ipc_open(ptr, &handle));
}
hipError_t hipIpcCloseMemHandle(void *ptr) { return answer(nvidia::ipc_close(ptr)); }

hipError_t hipModuleLoadData(hipModule_t *module, const void *image)
{
    const void *inner = inner_image(image);
    if (!inner)
        return hipErrorNoBinaryForGpu;
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
