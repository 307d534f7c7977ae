"""Where bench's buffers are: host memory, or a GPU's through CuPy or PyTorch, whichever the rank has.

A memory makes one-dimensional arrays of its library (`array`), copies values into them (`put`) and out (`get`), fills
their bytes (`fill`), waits for the work of the stream that calls are queued on (`wait`), and copies as many bytes as an
array has, within the memory (`copy`) or to the host and back (`exchange`), which no exchange through the host can beat.
The libraries are imported when a memory is made, never by hetccl itself.
"""

import importlib

import numpy as np

KINDS = ("host", "cuda", "hip")
# What results are written over: no element of a result has such bytes.
POISON = 0x5A
# Pinned memory that copies to the host and back go through. Numbers of cudaMemcpyKind and hipMemcpyKind.
PIECE_BYTES = 64 << 20
TO_DEVICE, TO_HOST = 1, 2


class MemoryMissing(Exception):
    """This rank cannot have such buffers; the message says why."""


class Host:
    """NumPy's arrays."""

    kind = "host"
    text = "host memory (NumPy)"

    def array(self, values):
        """values : ndarray. Returns an array with a copy of them."""
        return np.array(values)

    def put(self, array, values):
        """Overwrite an array with the values of an ndarray."""
        array[:] = values

    def get(self, array):
        """The values, as an ndarray, when all that was queued is done."""
        return array

    def fetch(self, array, into):
        """The same into an ndarray, which may be pinned."""
        into[:] = array

    def fill(self, array, byte):
        """Set all bytes of an array."""
        array.view(np.uint8).fill(byte)

    def copy(self, target, source):
        """Copy the bytes of one array to another of the same length; queued, where the memory has streams."""
        target[:] = source

    exchange = copy

    def pinned(self, values):
        """An ndarray like this one, in memory that the device reaches without a detour."""
        return np.array(values)

    def wait(self):
        """Return when all that was queued is done."""


class Cupy:
    """CuPy's arrays, on a stream of their own."""

    lacks = ("bfloat16",)
    module = "cupy"

    def __init__(self, index):
        self.cupy = importlib.import_module("cupy")
        self.cupyx = importlib.import_module("cupyx")
        self.index = index % max(1, self.cupy.cuda.runtime.getDeviceCount())
        self.cupy.cuda.Device(self.index).use()
        self.stream = self.cupy.cuda.Stream(non_blocking=True)
        self.stream.use()
        self.kind = "hip" if self.cupy.cuda.runtime.is_hip else "cuda"
        name = self.cupy.cuda.runtime.getDeviceProperties(self.index)["name"].decode()
        self.text = f"{name} (CuPy {self.cupy.__version__})"
        self.stream_pointer = self.stream.ptr
        self.sides = self.buffers = None

    def array(self, values):
        return self.cupy.asarray(values)

    def put(self, array, values):
        array.set(np.ascontiguousarray(values), stream=self.stream)
        self.wait()

    def get(self, array):
        return array.get(stream=self.stream)

    def fetch(self, array, into):
        array.get(out=into, stream=self.stream)
        self.wait()

    def fill(self, array, byte):
        array.view(self.cupy.uint8).fill(byte)

    def copy(self, target, source):
        self.cupy.copyto(target, source)

    def exchange(self, target, source):
        if self.sides is None:
            self.sides = [self.cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
            self.buffers = [self.cupyx.empty_pinned(PIECE_BYTES, np.uint8) for _ in range(2)]
        copy, begun = self.cupy.cuda.runtime.memcpyAsync, self.stream.record()
        for side in self.sides:
            side.wait_event(begun)
        for start in range(0, source.nbytes, PIECE_BYTES):
            nbytes = min(PIECE_BYTES, source.nbytes - start)
            copy(self.buffers[0].ctypes.data, source.data.ptr + start, nbytes, TO_HOST, self.sides[0].ptr)
            copy(target.data.ptr + start, self.buffers[1].ctypes.data, nbytes, TO_DEVICE, self.sides[1].ptr)
        for side in self.sides:
            self.stream.wait_event(side.record())

    def pinned(self, values):
        made = self.cupyx.empty_pinned(values.shape, values.dtype)
        made[:] = values
        return made

    def wait(self):
        self.stream.synchronize()


class Torch:
    """PyTorch's tensors, on a stream of their own."""

    lacks = ("uint16", "uint32", "uint64")
    module = "torch"

    def __init__(self, index):
        self.torch = torch = importlib.import_module("torch")
        self.index = index % max(1, torch.cuda.device_count())
        torch.cuda.set_device(self.index)
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        self.kind = "hip" if torch.version.hip else "cuda"
        self.text = f"{torch.cuda.get_device_name(self.index)} (PyTorch {torch.__version__})"
        self.stream_pointer = self.stream.cuda_stream
        # Of PyTorch's dtypes, NumPy's: it has no way back for those that NumPy itself lacks.
        self.dtypes = {}
        self.sides = self.buffers = None

    def array(self, values):
        dtype = getattr(self.torch, values.dtype.name)
        self.dtypes[dtype] = values.dtype
        return self.torch.from_numpy(np.array(values).view(np.uint8)).to(f"cuda:{self.index}").view(dtype)

    def put(self, array, values):
        values = np.ascontiguousarray(values)
        array.view(self.torch.uint8).copy_(self.torch.from_numpy(values.view(np.uint8)))
        self.wait()

    def get(self, array):
        return array.view(self.torch.uint8).cpu().numpy().view(self.dtypes[array.dtype])

    def fetch(self, array, into):
        self.torch.from_numpy(into.view(np.uint8)).copy_(array.view(self.torch.uint8))
        self.wait()

    def fill(self, array, byte):
        array.view(self.torch.uint8).fill_(byte)

    def copy(self, target, source):
        target.copy_(source)

    def exchange(self, target, source):
        torch = self.torch
        if self.sides is None:
            self.sides = [torch.cuda.Stream() for _ in range(2)]
            self.buffers = [torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        for side in self.sides:
            side.wait_stream(self.stream)
        for start in range(0, len(source), PIECE_BYTES):
            stop = min(start + PIECE_BYTES, len(source))
            with torch.cuda.stream(self.sides[0]):
                self.buffers[0][: stop - start].copy_(source[start:stop], non_blocking=True)
            with torch.cuda.stream(self.sides[1]):
                target[start:stop].copy_(self.buffers[1][: stop - start], non_blocking=True)
        for side in self.sides:
            self.stream.wait_stream(side)

    def pinned(self, values):
        made = self.torch.empty(values.nbytes, dtype=self.torch.uint8, pin_memory=True).numpy().view(values.dtype)
        made[:] = values
        return made

    def wait(self):
        self.stream.synchronize()


# In this order: CuPy has every dtype that NumPy has.
LIBRARIES = [Cupy, Torch]


def open_memory(kind, dtype, index):
    """The memory of this rank.

    kind   : of KINDS
    dtype  : NumPy's, which its arrays are to have
    index  : of the device, counted on; more than there are begin anew
    Raises : MemoryMissing
    """
    if kind == "host":
        return Host()
    whys = []
    for library in LIBRARIES:
        if dtype.name in library.lacks:
            whys.append(f"{library.module} has no {dtype.name}")
            continue
        try:
            made = library(index)
        except (ImportError, RuntimeError, AssertionError, OSError) as error:
            whys.append(f"{library.module}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
            continue
        if made.kind == kind:
            return made
        whys.append(f"{library.module} is built for {made.kind}")
    raise MemoryMissing("; ".join(whys))
