"""Reduction kernels of a device (include/hetccl/device_reduce.h): loaded once, found by op and dtype, queued.

The code is a file that was built ahead (tools/device_kernels.py), else what a run-time compiler makes of the source,
which is part of this module. Whoever queues kernels takes `kernel_for` when it is built and `queue` at each call,
without the GIL; loading and looking up need the GIL and may wait for the device. The Python methods serve tests,
benchmarks and `doctor`.
"""

import os.path

from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy, memset

from hetccl._device_compiler import Compiler
from hetccl.errors import GpuError, HetcclError, LibraryNotFound

from hetccl._abi cimport (
    HETCCL_AVG,
    HETCCL_BAND,
    HETCCL_BFLOAT16,
    HETCCL_BOOL,
    HETCCL_BOR,
    HETCCL_BXOR,
    HETCCL_COMPLEX64,
    HETCCL_COMPLEX128,
    HETCCL_DOUBLE_INT,
    HETCCL_FLOAT8_E4M3,
    HETCCL_FLOAT8_E5M2,
    HETCCL_FLOAT16,
    HETCCL_FLOAT32,
    HETCCL_FLOAT64,
    HETCCL_FLOAT_INT,
    HETCCL_INT8,
    HETCCL_INT16,
    HETCCL_INT32,
    HETCCL_INT64,
    HETCCL_INT_INT,
    HETCCL_LAND,
    HETCCL_LONG_INT,
    HETCCL_LOR,
    HETCCL_LXOR,
    HETCCL_MAX,
    HETCCL_MAXLOC,
    HETCCL_MIN,
    HETCCL_MINLOC,
    HETCCL_PROD,
    HETCCL_SHORT_INT,
    HETCCL_SUM,
    HETCCL_UINT8,
    HETCCL_UINT16,
    HETCCL_UINT32,
    HETCCL_UINT64,
)
from hetccl._dtype cimport dtype_itemsize
from hetccl._runtime cimport Runtime

cdef extern from "device_source.h" nogil:
    const char* hetccl_device_key
    const char* hetccl_device_source

cdef extern from "hetccl/device_args.h" nogil:
    ctypedef struct hetccl_device_args_t:
        void* out
        const void** in_ "in"
        uint64_t count
        uint64_t* factor
        uint32_t nsources
        uint32_t nblocks
        uint32_t divisor

# Blocks of a launch at most: enough to fill any of today's devices, while a thread still has several units of work of a
# large buffer. Not measured.
cdef enum:
    BLOCKS_MAX = 1024

KEY = hetccl_device_key.decode()
FOLDER = os.path.join(os.path.dirname(__file__), "device_code")

# Types of the kernels' names. Of a bool the logical ops are a byte's.
cdef dict INTEGERS = {
    HETCCL_INT8: "i8", HETCCL_UINT8: "u8", HETCCL_INT16: "i16", HETCCL_UINT16: "u16",
    HETCCL_INT32: "i32", HETCCL_UINT32: "u32", HETCCL_INT64: "i64", HETCCL_UINT64: "u64",
}
cdef dict FLOATS = {
    HETCCL_FLOAT16: "f16", HETCCL_BFLOAT16: "bf16", HETCCL_FLOAT8_E4M3: "e4m3", HETCCL_FLOAT8_E5M2: "e5m2",
    HETCCL_FLOAT32: "f32", HETCCL_FLOAT64: "f64",
}
cdef dict COMPLEX = {HETCCL_COMPLEX64: ("c64", "f32"), HETCCL_COMPLEX128: ("c128", "f64")}  # and their parts
cdef dict PAIRS = {
    HETCCL_FLOAT_INT: "float_int", HETCCL_DOUBLE_INT: "double_int", HETCCL_LONG_INT: "long_int",
    HETCCL_INT_INT: "int_int", HETCCL_SHORT_INT: "short_int",
}
cdef dict ARITHMETIC = {
    HETCCL_SUM: "sum", HETCCL_PROD: "prod", HETCCL_MAX: "max", HETCCL_MIN: "min", HETCCL_AVG: "avg",
}
cdef dict BITWISE = {
    HETCCL_LAND: "land", HETCCL_LOR: "lor", HETCCL_LXOR: "lxor", HETCCL_BAND: "band", HETCCL_BOR: "bor",
    HETCCL_BXOR: "bxor",
}
cdef dict LOCATIONS = {HETCCL_MINLOC: "minloc", HETCCL_MAXLOC: "maxloc"}
cdef dict OF_BOOL = {
    HETCCL_SUM: "lor", HETCCL_MAX: "lor", HETCCL_LOR: "lor", HETCCL_BOR: "lor", HETCCL_PROD: "land",
    HETCCL_MIN: "land", HETCCL_LAND: "land", HETCCL_BAND: "land", HETCCL_LXOR: "lxor", HETCCL_BXOR: "lxor",
}


def kernel_name(int op, int dtype):
    """The kernel of an op on a dtype: (name, parts of an element that it takes for elements), None if there is none.

    op, dtype : numbers of abi.h. AVG's kernel divides; the steps before the last are SUM's
    """
    if dtype in INTEGERS and op in ARITHMETIC:
        signed = op in (HETCCL_MAX, HETCCL_MIN, HETCCL_AVG)
        return f"hetccl_reduce_{ARITHMETIC[op]}_{INTEGERS[dtype] if signed else unsigned(dtype)}", 1
    if dtype in INTEGERS and op in BITWISE:
        return f"hetccl_reduce_{BITWISE[op]}_{unsigned(dtype)}", 1
    if dtype in FLOATS and op in ARITHMETIC:
        return f"hetccl_reduce_{ARITHMETIC[op]}_{FLOATS[dtype]}", 1
    if dtype in COMPLEX and op == HETCCL_PROD:
        return f"hetccl_reduce_prod_{COMPLEX[dtype][0]}", 1
    if dtype in COMPLEX and op in (HETCCL_SUM, HETCCL_AVG):
        return f"hetccl_reduce_{ARITHMETIC[op]}_{COMPLEX[dtype][1]}", 2
    if dtype == HETCCL_BOOL and op in OF_BOOL:
        return f"hetccl_reduce_{OF_BOOL[op]}_u8", 1
    if dtype in PAIRS and op in LOCATIONS:
        return f"hetccl_reduce_{LOCATIONS[op]}_{PAIRS[dtype]}", 1
    return None


def scaling_name(int dtype):
    """The kernel of a product with a factor, None if there is none. A product that wraps has no sign."""
    if dtype in INTEGERS:
        return f"hetccl_scale_{unsigned(dtype)}"
    if dtype in FLOATS:
        return f"hetccl_scale_{FLOATS[dtype]}"
    return f"hetccl_scale_{COMPLEX[dtype][0]}" if dtype in COMPLEX else None


cdef str unsigned(int dtype):
    return "u" + INTEGERS[dtype][1:]


def source():
    """The kernels' C++, as it is compiled: str."""
    return hetccl_device_source.decode()


def built_ahead(str runtime, str arch, folder=None):
    """Path of the file with code for a device, which need not be there: NVIDIA's has all architectures in it."""
    name = f"kernels-{KEY}.fatbin" if runtime == "cuda" else f"kernels-{KEY}-{arch}.co"
    return os.path.join(folder or FOLDER, name)


cdef class DeviceKernels:
    """The reduction kernels of one device: made by `load`.

    runtime : hetccl._runtime.Runtime
    device  : its index
    arch    : "sm_90", "gfx942"
    form    : where the code is from, for people
    """

    def __init__(self):
        raise TypeError("kernels are loaded, not made: hetccl._device_kernels.load(runtime, device)")

    def __repr__(self):
        return f"<DeviceKernels of {self.runtime.name} device {self.device}, {self.arch}: {self.form}>"

    def reduce(self, uintptr_t out, sources, size_t count, int op, int dtype, uintptr_t stream=0, int divisor=0):
        """Queue out[i] = sources[0][i] op sources[1][i] op ...; the fold's order is the sources'.

        out       : address that the device can write: its own memory, or pinned memory as it sees it
        sources   : 1 to 8 such addresses; out may be one of them. Fastest if all are multiples of 16
        count     : elements
        op, dtype : numbers of abi.h
        stream    : the runtime's handle; 0 is the legacy default stream
        divisor   : number of ranks on AVG's last step, else 0
        Blocks    : no; the first call of an op on a dtype may
        Raises    : TypeError (op not defined for dtype), ValueError (number of sources, divisor), GpuError
        """
        cdef const void* pointers[HETCCL_DEVICE_SOURCES]
        cdef device_kernel_t kernel
        cdef void* saved = NULL
        cdef int i, code, nsources = len(sources)
        if not 1 <= nsources <= HETCCL_DEVICE_SOURCES:
            raise ValueError(f"sources: {nsources} given, 1 to {HETCCL_DEVICE_SOURCES} wanted")
        if divisor < 0 or (divisor and op != HETCCL_AVG):
            raise ValueError(f"divisor: {divisor} given; 0, or with AVG the number of ranks, is wanted")
        for i in range(nsources):
            pointers[i] = <const void*> <uintptr_t> sources[i]
        self.runtime.check(self.runtime.table.enter(self.device, &saved), "enter")
        try:
            self.kernel_for(op, dtype, &kernel)
            code = self.queue(&kernel, <void*> out, pointers, nsources, count, divisor, <void*> stream)
            self.runtime.check(code, "launch")
        finally:
            self.runtime.check(self.runtime.table.leave(saved), "leave")

    def scale(self, uintptr_t out, uintptr_t source, size_t count, int dtype, bytes factor, uintptr_t stream=0):
        """Queue out[i] = source[i] * factor.

        out, source, count, dtype, stream : as reduce()'s; out may be source
        factor : the bytes of one element
        Raises : TypeError (the dtype has no product), ValueError (factor's length), GpuError
        """
        cdef hetccl_device_args_t args
        cdef const char* bytes_ = factor
        cdef void* saved = NULL
        cdef void* function
        name = scaling_name(dtype)
        if name is None:
            raise TypeError(f"dtype {dtype} (number of abi.h) has no kernel for a product with a factor")
        if <size_t> len(factor) != dtype_itemsize(dtype):
            raise ValueError(f"factor: {len(factor)} bytes given, {dtype_itemsize(dtype)} wanted")
        memset(&args, 0, sizeof(args))
        memcpy(args.factor, bytes_, <size_t> len(factor))
        args.out, args.in_[0], args.nsources, args.count = <void*> out, <const void*> source, 1, count
        self.runtime.check(self.runtime.table.enter(self.device, &saved), "enter")
        try:
            function = kernels_function(self, name)
            code = args_launch(self.runtime, function, &args, dtype_itemsize(dtype), <void*> stream)
            self.runtime.check(code, "launch")
        finally:
            self.runtime.check(self.runtime.table.leave(saved), "leave")

    cdef int kernel_for(self, int op, int dtype, device_kernel_t* kernel) except -1:
        named = kernel_name(HETCCL_SUM if op == HETCCL_AVG else op, dtype)
        dividing = kernel_name(HETCCL_AVG, dtype) if op == HETCCL_AVG else None
        if named is None or (op == HETCCL_AVG and dividing is None):
            raise TypeError(f"op {op} is not defined for dtype {dtype} (numbers of abi.h) in a device's memory")
        kernel.function = kernels_function(self, named[0])
        kernel.dividing = NULL if dividing is None else kernels_function(self, dividing[0])
        kernel.parts = named[1]
        kernel.part_nbytes = dtype_itemsize(dtype) // <size_t> kernel.parts
        return 0

    cdef int queue(self, const device_kernel_t* kernel, void* out, const void* const* sources, int nsources,
                   size_t count, int divisor, void* stream) noexcept nogil:
        cdef hetccl_device_args_t args
        cdef int s
        memset(&args, 0, sizeof(args))
        for s in range(nsources):
            args.in_[s] = sources[s]
        args.out = out
        args.nsources = <uint32_t> nsources
        args.count = count * <size_t> kernel.parts
        args.divisor = <uint32_t> divisor
        return args_launch(
            self.runtime, kernel.dividing if divisor > 0 else kernel.function, &args, kernel.part_nbytes, stream
        )


cdef int args_launch(Runtime runtime, void* function, hetccl_device_args_t* args, size_t nbytes,
                     void* stream) noexcept nogil:
    """Launch over args.count elements of nbytes; 0 elements need no launch, and a grid of 0 blocks is an error."""
    cdef unsigned[3] grid
    cdef unsigned[3] block
    cdef void* argument = args
    cdef uint64_t per_block = HETCCL_DEVICE_BLOCK * HETCCL_DEVICE_ACCESS
    cdef uint64_t nblocks = (args.count * nbytes + per_block - 1) // per_block
    if args.count == 0:
        return 0
    args.nblocks = <uint32_t> min(nblocks, <uint64_t> BLOCKS_MAX)
    grid[0], grid[1], grid[2] = args.nblocks, 1, 1
    block[0], block[1], block[2] = HETCCL_DEVICE_BLOCK, 1, 1
    return runtime.table.launch(function, grid, block, 0, stream, &argument)


cdef void* kernels_function(DeviceKernels kernels, str name) except NULL:
    cdef void* function = NULL
    cdef bytes name_ = name.encode()
    cdef const char* text = name_
    if name not in kernels.functions:
        code = kernels.runtime.table.module_function(&function, kernels.module, text)
        kernels.runtime.check(code, "module_function")
        kernels.functions[name] = <uintptr_t> function
    return <void*> <uintptr_t> kernels.functions[name]


cdef dict loaded = {}  # (runtime's name, device) -> DeviceKernels


def load(Runtime runtime, int device, folder=None, override=None, folders=()):
    """The kernels of a device; the same DeviceKernels each time.

    runtime  : of a vendor
    folder   : where code built ahead is, None: in the package
    override : None | str, path or name of the run-time compiler's library
    folders  : sequence of str, where wheels keep libraries
    Blocks   : seconds, if the source must be compiled
    Raises   : GpuError, SymbolNotFound, LibraryNotFound (with each way tried and why it failed)
    """
    return kernels_load(runtime, device, folder, override, folders)


cdef DeviceKernels kernels_load(Runtime runtime, int device, folder, override, folders):
    cdef void* saved = NULL
    if (runtime.name, device) in loaded:
        return loaded[runtime.name, device]
    runtime.check(runtime.table.enter(device, &saved), "enter")
    try:
        kernels = kernels_new(runtime, device, folder, override, folders)
    finally:
        runtime.check(runtime.table.leave(saved), "leave")
    # Another thread may have been as far while the GIL was released.
    return loaded.setdefault((runtime.name, device), kernels)


cdef DeviceKernels kernels_new(Runtime runtime, int device, folder, override, folders):
    """Code built ahead if the driver takes it, else compiled now. The device's context is current."""
    cdef DeviceKernels kernels = DeviceKernels.__new__(DeviceKernels)
    kernels.runtime, kernels.device, kernels.functions = runtime, device, {}
    kernels.arch = runtime.device_arch(device)
    path = built_ahead(runtime.name, kernels.arch, folder)
    try:
        with open(path, "rb") as file:
            module_load(kernels, file.read())
        kernels.form = f"built ahead, {path}"
        return kernels
    except OSError as error:
        ahead = f"{path}: {error.strerror}"
    except GpuError as error:
        ahead = f"{path}: {error}"
    try:
        compiler = Compiler.open(runtime.name, override, folders)
        image, target = compiler.compile(hetccl_device_source, kernels.arch)
        module_load(kernels, image)
    except HetcclError as error:
        raise LibraryNotFound(
            f"no reduction kernels for {runtime.name} device {device} ({kernels.arch}): neither built ahead ({ahead}) "
            f"nor compiled at run time ({error})"
        ) from error
    made = f"compiled for {target} at run time by {compiler.name} {compiler.version()}"
    kernels.form = f"{made}; not built ahead ({ahead})"
    return kernels


cdef int module_load(DeviceKernels kernels, bytes image) except -1:
    cdef const char* bytes_ = image
    cdef int code
    with nogil:
        code = kernels.runtime.table.module_load(&kernels.module, bytes_)
    return kernels.runtime.check(code, "module_load")
