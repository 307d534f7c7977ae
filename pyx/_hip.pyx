"""HIP as a runtime (include/hetccl/runtime_hip.h); layer L1.

Called with the GIL held, which is released while HIP initializes.
"""

from hetccl.errors import LibraryNotFound

from hetccl._dl cimport Library
from hetccl._runtime cimport Runtime, hetccl_runtime_t, hetccl_symbol_t, runtime_new, symbols_fill

cdef extern from "hetccl/runtime_hip.h" nogil:
    hetccl_runtime_t hetccl_hip
    hetccl_symbol_t* hetccl_hip_symbols
    enum:
        HETCCL_HIP_NSYMBOLS
        HETCCL_HIP_NHSA
    int hetccl_hip_version()
    int hetccl_hip_init()

SONAMES = ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so")
HSA_SONAMES = ("libhsa-runtime64.so.1", "libhsa-runtime64.so")

cdef str NO_DEVICE = (
    "No AMD device can be seen: look at rocminfo, /dev/kfd and its permissions, HIP_VISIBLE_DEVICES and "
    "ROCR_VISIBLE_DEVICES"
)

# What to do, by error code. Numbers and causes: hip_runtime_api.h, hipError_t.
cdef dict HINTS = {
    2: "Free device memory or use smaller buffers; other processes use the same device's memory too (rocm-smi)",
    3: "A process that was forked cannot use the runtime of its parent: use mpirun, or multiprocessing's spawn",
    35: "The amdgpu kernel driver is older than this HIP needs: update it, or use an older ROCm",
    100: NO_DEVICE,
    101: f"No device has this index, or there is none. {NO_DEVICE}",
    209: "The code was not compiled for this device's architecture",
    700: "An earlier kernel or copy on this device used memory that is not its own; AMD_SERIALIZE_KERNEL=3 shows which",
    709: "The device was reset; buffers and communicators made before are lost",
    719: "An earlier kernel on this device failed; AMD_SERIALIZE_KERNEL=3 shows which",
    801: "This device or this HIP does not have it",
    900: "This is not allowed while the stream is captured into a graph",
}

cdef Runtime opened = None


def load(override=None, folders=()):
    """Open the library and fill the table, without initializing anything: to ask what it has where no device is.

    Arguments and errors of the library: as for `open`.
    """
    if opened is not None:
        return opened
    cdef Library library = Library.open(SONAMES, override=override, folders=folders)
    symbols_fill(library, hetccl_hip_symbols, HETCCL_HIP_NSYMBOLS)
    fill_from_hsa(folders)
    cdef int code = hetccl_hip_version()
    cdef Runtime runtime = runtime_new(
        &hetccl_hip, library, hetccl_hip_symbols, HETCCL_HIP_NSYMBOLS, version_text(hetccl_hip.version), HINTS
    )
    runtime.check(code, "version")
    return runtime


def open(override=None, folders=()):
    """The HIP runtime of this process, initialized; the same Runtime each time.

    override : None | str, path or name of libamdhip64
    folders  : sequence of str, where wheels keep libraries; searched before the system
    Raises   : LibraryNotFound (with each path tried), SymbolNotFound, GpuError (no device, a driver that does not work)
    """
    global opened
    cdef Runtime runtime = load(override, folders)
    if runtime is opened:
        return opened
    cdef int code
    with nogil:
        code = hetccl_hip_init()
    runtime.check(code, "open")
    if opened is None:  # another thread may have been as far while the GIL was released
        opened = runtime
    return opened


cdef str version_text(int number):
    return f"{number // 10_000_000}.{number // 100_000 % 100}.{number % 100_000}"


cdef int fill_from_hsa(object folders) except -1:
    """Where libamdhip64 does not bring HSA's functions along, take them from HSA's own library, if there is one."""
    if hetccl_hip_symbols[0].found is not NULL:
        return 0
    try:
        library = Library.open(HSA_SONAMES, folders=folders)
    except LibraryNotFound:
        return 0
    symbols_fill(library, hetccl_hip_symbols, HETCCL_HIP_NHSA)
    return 0
