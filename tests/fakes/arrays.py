"""Arrays in device memory without an array library: allocated and read through the runtime itself, by ctypes.

`Cuda(path)` and `Hip(path)` are the memory of a driver, fake, emulated or real; `DlpackArray` and `CaiArray` lie in it.
With `guard` bytes on both sides, `check_guards()` shows that nothing was written beyond the array.
"""

import ctypes
import os

import numpy as np

from buffers import Cai, Dlpack1

GUARD = 0x5C
DLPACK_KINDS = {"cuda": 2, "hip": 10}


class Cuda:
    """Memory of a CUDA driver; each call runs in the device's primary context and leaves the current one as it was."""

    kind = "cuda"

    def __init__(self, path=None):
        self.library = ctypes.CDLL(path or os.environ.get("HETCCL_CUDA_LIB") or "libcuda.so.1")
        self.contexts = {}
        self.call("cuInit", 0)

    def call(self, name, *arguments):
        """Call a function of the driver; RuntimeError unless it answers 0."""
        code = getattr(self.library, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} answered {code}")

    def within(self, device, name, *arguments):
        """Call a function while the device is current."""
        if device not in self.contexts:
            self.contexts[device] = ctypes.c_void_p()
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.contexts[device]), device)
        before = ctypes.c_void_p()
        self.call("cuCtxGetCurrent", ctypes.byref(before))
        self.call("cuCtxSetCurrent", self.contexts[device])
        try:
            self.call(name, *arguments)
        finally:
            self.call("cuCtxSetCurrent", before)

    def alloc(self, nbytes, device=0):
        pointer = ctypes.c_uint64()
        self.within(device, "cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(nbytes))
        return pointer.value

    def alloc_managed(self, nbytes, device=0):
        pointer = ctypes.c_uint64()
        self.within(device, "cuMemAllocManaged", ctypes.byref(pointer), ctypes.c_size_t(nbytes), 1)
        return pointer.value

    def free(self, address, device=0):
        self.within(device, "cuMemFree_v2", ctypes.c_uint64(address))

    def copy(self, dst, src, nbytes, device=0):
        """Copy between any two addresses, after all work of the device."""
        self.within(device, "cuCtxSynchronize")
        self.within(device, "cuMemcpy", ctypes.c_uint64(dst), ctypes.c_uint64(src), ctypes.c_size_t(nbytes))

    def stream(self, device=0):
        """A new stream that does not wait for the legacy default one, as int."""
        stream = ctypes.c_void_p()
        self.within(device, "cuStreamCreate", ctypes.byref(stream), 1)
        return stream.value


class Hip:
    """Memory of a HIP runtime, with the same methods."""

    kind = "hip"

    def __init__(self, path=None):
        self.library = ctypes.CDLL(path or os.environ.get("HETCCL_HIP_LIB") or "libamdhip64.so")
        self.call("hipInit", 0)

    call = Cuda.call

    def within(self, device, name, *arguments):
        before = ctypes.c_int()
        self.call("hipGetDevice", ctypes.byref(before))
        self.call("hipSetDevice", device)
        try:
            self.call(name, *arguments)
        finally:
            self.call("hipSetDevice", before)

    def alloc(self, nbytes, device=0):
        pointer = ctypes.c_void_p()
        self.within(device, "hipMalloc", ctypes.byref(pointer), ctypes.c_size_t(nbytes))
        return pointer.value

    def free(self, address, device=0):
        self.within(device, "hipFree", ctypes.c_void_p(address))

    def copy(self, dst, src, nbytes, device=0):
        self.within(device, "hipDeviceSynchronize")
        self.within(device, "hipMemcpy", ctypes.c_void_p(dst), ctypes.c_void_p(src), ctypes.c_size_t(nbytes), 4)

    def stream(self, device=0):
        stream = ctypes.c_void_p()
        self.within(device, "hipStreamCreateWithFlags", ctypes.byref(stream), 1)
        return stream.value


class Block:
    """An allocation with room for an ndarray's values between two guards; freed with the object."""

    def __init__(self, memory, values, device=0, guard=256, alloc=None):
        self.memory, self.device_id, self.guard, self.nbytes = memory, device, guard, values.nbytes
        self.base = (alloc or memory.alloc)(max(1, values.nbytes + 2 * guard), device)
        self.fill(bytes([GUARD]) * (values.nbytes + 2 * guard), 0)
        self.fill(values.tobytes(), guard)
        # An ndarray at the device's address: a description that is never read through.
        whole = (ctypes.c_char * (values.nbytes + 2 * guard)).from_address(self.base)
        self.view = np.ndarray(values.shape, values.dtype, whole, guard)

    def fill(self, data, offset):
        if data:
            self.memory.copy(self.base + offset, _address(data), len(data), self.device_id)

    def fetch(self, offset, nbytes):
        data = bytearray(nbytes)
        if nbytes:
            target = (ctypes.c_char * nbytes).from_buffer(data)
            self.memory.copy(ctypes.addressof(target), self.base + offset, nbytes, self.device_id)
        return bytes(data)

    def __del__(self):
        # Left to the process where the interpreter or the driver is already gone.
        try:
            self.memory.free(self.base, self.device_id)
        except (AttributeError, RuntimeError, TypeError):
            pass


def _address(data):
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value


class _InBlock:
    """What both kinds of arrays have besides their protocol."""

    def numpy(self):
        """A copy of the values, as an ndarray of the same shape and dtype, after all work of the device."""
        data = self.block.fetch(self.block.guard, self.block.nbytes)
        return np.ndarray(self.shape, self.dtype, bytearray(data) or None)

    def set(self, values):
        """Overwrite the values."""
        values = np.ascontiguousarray(values, self.dtype)
        assert values.nbytes == self.block.nbytes, (values.shape, self.shape)
        self.block.fill(values.tobytes(), self.block.guard)

    def check_guards(self):
        """AssertionError if a byte beside the array was written."""
        for side, offset in (("before", 0), ("behind", self.block.guard + self.block.nbytes)):
            got = self.block.fetch(offset, self.block.guard)
            assert got == bytes([GUARD]) * self.block.guard, f"bytes {side} the array were written"

    @property
    def shape(self):
        return self.block.view.shape

    @property
    def dtype(self):
        return self.block.view.dtype

    @property
    def address(self):
        return self.block.base + self.block.guard


class DlpackArray(_InBlock, Dlpack1):
    """A device array that exports DLPack 1.x. `calls` holds the keywords of each export, the stream among them.

    memory : Cuda or Hip
    values : ndarray, what is in it at first
    device : index
    fields : flags=, major= and the like of buffers.managed_new
    """

    def __init__(self, memory, values, device=0, guard=256, alloc=None, **fields):
        self.block = Block(memory, np.asarray(values), device, guard, alloc)
        super().__init__(self.block.view, (DLPACK_KINDS[memory.kind], device), **fields)


class CaiArray(_InBlock, Cai):
    """A device array that has __cuda_array_interface__ alone; stream= is its key of that name."""

    def __init__(self, memory, values, device=0, guard=256, alloc=None, **fields):
        self.block = Block(memory, np.asarray(values), device, guard, alloc)
        super().__init__(self.block.view, **fields)
