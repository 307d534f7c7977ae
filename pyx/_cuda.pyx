"""The CUDA driver as a runtime (include/hetccl/runtime_cuda.h); layer L1.

Called with the GIL held, which is released while the driver initializes.
"""

from hetccl._dl cimport Library
from hetccl._runtime cimport Runtime, hetccl_runtime_t, hetccl_symbol_t, runtime_new, symbols_fill

cdef extern from "hetccl/runtime_cuda.h" nogil:
    hetccl_runtime_t hetccl_cuda
    hetccl_symbol_t* hetccl_cuda_symbols
    enum:
        HETCCL_CUDA_NSYMBOLS
    int hetccl_cuda_version()
    int hetccl_cuda_init()

SONAMES = ("libcuda.so.1",)

# What to do, by error code. Numbers and causes: cuda.h, CUresult.
cdef dict HINTS = {
    2: "Free device memory or use smaller buffers; other processes use the same device's memory too (nvidia-smi)",
    3: "A process that was forked cannot use the driver of its parent: use mpirun, or multiprocessing's spawn",
    34: "This is the toolkit's stub, not the driver: remove its folder from LD_LIBRARY_PATH, or set HETCCL_CUDA_LIB",
    100: "No NVIDIA device can be seen: look at nvidia-smi, CUDA_VISIBLE_DEVICES, and the GPUs of the job or container",
    101: "No device has this index: look at CUDA_VISIBLE_DEVICES",
    201: "The thread has no current device",
    214: "The device's memory failed: see nvidia-smi -q -d ECC",
    222: "The driver is older than the code's PTX: update it, or load code that was compiled for this device",
    700: "An earlier kernel or copy on this device used memory that is not its own; CUDA_LAUNCH_BLOCKING=1 shows which",
    702: "An earlier kernel ran too long for this device",
    709: "The device was reset; buffers and communicators made before are lost",
    716: "An earlier kernel on this device used a misaligned address; CUDA_LAUNCH_BLOCKING=1 shows which",
    719: "An earlier kernel on this device failed; CUDA_LAUNCH_BLOCKING=1 shows which",
    801: "This device or driver does not have it",
    802: "The system is not ready: with NVSwitch, nvidia-fabricmanager must run",
    803: "The driver's library and its kernel module differ in version: restart the machine after an update",
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
    symbols_fill(library, hetccl_cuda_symbols, HETCCL_CUDA_NSYMBOLS)
    cdef int code = hetccl_cuda_version()
    cdef Runtime runtime = runtime_new(
        &hetccl_cuda, library, hetccl_cuda_symbols, HETCCL_CUDA_NSYMBOLS, version_text(hetccl_cuda.version), HINTS
    )
    runtime.check(code, "version")
    return runtime


def open(override=None, folders=()):
    """The CUDA driver of this process, initialized; the same Runtime each time.

    override : None | str, path or name of the driver's library
    folders  : sequence of str, where wheels keep libraries; searched before the system
    Raises   : LibraryNotFound (with each path tried), SymbolNotFound, GpuError (no device, a driver that does not work)
    """
    global opened
    cdef Runtime runtime = load(override, folders)
    if runtime is opened:
        return opened
    cdef int code
    with nogil:
        code = hetccl_cuda_init()
    runtime.check(code, "open")
    if opened is None:  # another thread may have been as far while the GIL was released
        opened = runtime
    return opened


cdef str version_text(int number):
    return f"{number // 1000}.{number % 1000 // 10}"
