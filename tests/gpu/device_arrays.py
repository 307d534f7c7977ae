"""Arrays in device memory, as each library that users have makes them, behind one small interface; and guard bytes.

An object of one of these classes makes all arrays of one device: `upload` copies bytes there, `view` gives the
library's array on part of them, `download` copies them back when all work queued on the library's current stream is
done. The libraries are imported when an object is made: pytest's own process reads only what each of them carries.
"""

import ctypes
import functools

import numpy as np

NUMPY_DTYPES = frozenset(
    {
        "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32",
        "float64", "complex64", "complex128",
    }
)  # fmt: skip
ML_DTYPES = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2"})


class Cupy:
    carries = NUMPY_DTYPES

    def __init__(self, device):
        import cupy

        self.cupy, self.device = cupy, device
        cupy.cuda.Device(device).use()

    def upload(self, values):
        """values : 1-d uint8 ndarray"""
        return self.cupy.asarray(values)

    def view(self, raw, start, stop, dtype):
        return raw[start:stop].view(dtype)

    def download(self, raw):
        return raw.get()


class Torch:
    carries = NUMPY_DTYPES | ML_DTYPES

    def __init__(self, device):
        import torch

        self.torch, self.device = torch, device
        torch.cuda.set_device(device)

    def upload(self, values):
        return self.torch.from_numpy(values).to(f"cuda:{self.device}")

    def view(self, raw, start, stop, dtype):
        return raw[start:stop].view(getattr(self.torch, dtype.name))

    def download(self, raw):
        return raw.cpu().numpy()


class Bytes:
    """An allocation of a driver."""

    def __init__(self, memory, nbytes, device):
        self.memory, self.nbytes, self.device = memory, nbytes, device
        self.address = memory.alloc(max(1, nbytes), device)

    def __del__(self):
        # Left to the process where the interpreter or the driver is already gone.
        try:
            self.memory.free(self.address, self.device)
        except (AttributeError, RuntimeError, TypeError):
            pass


class Fake:
    """The tests' own arrays, exported by DLPack, in memory of the CUDA driver that HETCCL_CUDA_LIB names."""

    carries = NUMPY_DTYPES | ML_DTYPES
    memory_class = "Cuda"

    def __init__(self, device):
        from fakes import arrays

        self.memory, self.device = getattr(arrays, self.memory_class)(), device
        self.array_class = _array_class(arrays.DLPACK_KINDS[self.memory.kind])

    def upload(self, values):
        raw = Bytes(self.memory, values.nbytes, self.device)
        self.memory.copy(raw.address, values.ctypes.data, values.nbytes, self.device)
        return raw

    def view(self, raw, start, stop, dtype):
        # Only a description: the memory is not read through it.
        place = (ctypes.c_char * (stop - start)).from_address(raw.address + start)
        return self.array_class(raw, np.ndarray((stop - start) // dtype.itemsize, dtype, place))

    def download(self, raw):
        values = np.empty(raw.nbytes, np.uint8)
        self.memory.copy(values.ctypes.data, raw.address, raw.nbytes, self.device)
        return values


class Emulated(Fake):
    """The same in memory of the HIP runtime that HETCCL_HIP_LIB names: an emulation, or the real one."""

    memory_class = "Hip"


@functools.cache
def _array_class(kind):
    from buffers import Dlpack1

    class Array(Dlpack1):
        """An array of one dimension or more in an allocation: as much of an array library as the checks use."""

        def __init__(self, raw, values):
            super().__init__(values, (kind, raw.device))
            self.raw = raw

        def __getitem__(self, place):
            return Array(self.raw, self.values[place])

        def __setitem__(self, place, other):
            mine, nbytes = self.values[place], other.values.nbytes
            assert mine.flags.c_contiguous and mine.nbytes == nbytes
            self.raw.memory.copy(mine.ctypes.data, other.values.ctypes.data, nbytes, self.raw.device)

        def __len__(self):
            return len(self.values)

        def reshape(self, *shape):
            return Array(self.raw, self.values.reshape(*shape))

    return Array


LIBRARIES = {"cupy": Cupy, "torch": Torch, "fake": Fake, "emulated": Emulated}


class Guarded:
    """A device array with guard bytes on both sides.

    host   : support.Guarded, whose bytes are copied to the device; `fetch` copies the device's back into it
    array  : the library's array
    """

    def __init__(self, library, host):
        self.library, self.host = library, host
        self.raw = library.upload(host.raw)
        self.array = library.view(self.raw, host.start, host.stop, host.array.dtype)

    def fetch(self):
        self.host.raw[:] = self.library.download(self.raw)
        return self.host


def device_count(path="libcuda.so.1"):
    """How many devices the CUDA driver shows; 0 without a driver."""
    try:
        driver = ctypes.CDLL(path)
    except OSError:
        return 0
    count = ctypes.c_int(0)
    return 0 if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) else count.value


def from_numpy(library, values):
    """The library's array with a copy of the values of a 1-d ndarray."""
    raw = library.upload(np.ascontiguousarray(values).view(np.uint8))
    return library.view(raw, 0, values.nbytes, values.dtype)
