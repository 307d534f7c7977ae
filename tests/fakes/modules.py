"""CuPy and PyTorch as far as hetccl looks at them, without a GPU: arrays that say they are on one, and streams.

`Cupy()` and `Torch()` stand in `sys.modules` for the libraries; each has classes of its own, so that what is remembered
of a class in one test is not known in the next. A `Cupy(c=True)` has the C function that cupy_backends exports.
"""

import ctypes
from types import ModuleType, SimpleNamespace

from buffers import PyCapsule_New


class Stream:
    """What both libraries' streams have, under the names that each of them uses."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Cupy:
    """A CuPy. current: handle of the current stream of each device; asked: devices whose stream was asked for."""

    def __init__(self, c=False, is_hip=False, signature=b"intptr_t (int)"):
        self.current, self.asked = {0: 0, 1: 0}, []
        self.ndarray = type("ndarray", (_CupyArray,), {})
        runtime = SimpleNamespace(is_hip=is_hip)
        self.cuda = SimpleNamespace(runtime=runtime, get_current_stream=self.get_current_stream)
        self.function = ctypes.PYFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int)(self.get_stream_ptr)
        capsule = PyCapsule_New(ctypes.cast(self.function, ctypes.c_void_p).value, signature, None)
        self.backend = SimpleNamespace(__pyx_capi__={"get_stream_ptr": capsule} if c else {})
        self.signature = signature  # a capsule keeps its name's address

    def get_current_stream(self, device):
        self.asked.append(("python", device))
        return Stream(ptr=self.current[device], device_id=device)

    def get_stream_ptr(self, device):
        self.asked.append(device)
        return self.current[device]

    def modules(self):
        module = ModuleType("cupy")
        module.ndarray, module.cuda = self.ndarray, self.cuda
        return {"cupy": module, "cupy_backends.cuda.stream": self.backend}


class _CupyArray:
    """An ndarray's memory with the attributes of CuPy's arrays; its DLPack must not be asked."""

    def __init__(self, values, device=0):
        self.values, self.size, self.dtype = values, values.size, values.dtype
        self.shape, self.strides = values.shape, values.strides
        self.flags = values.flags
        self.data = SimpleNamespace(ptr=values.ctypes.data, device_id=device)

    def __dlpack__(self, **keywords):
        raise AssertionError("CuPy's DLPack is slow and knows no bfloat16")

    __dlpack_device__ = __dlpack__


class Torch:
    """A torch older than the exchange table: tensors are read by DLPack, streams by torch.cuda.current_stream."""

    def __init__(self, base):
        self.current, self.asked = {0: 0, 1: 0}, []
        flags = dict.fromkeys(("is_neg", "is_conj"), lambda self: False)
        self.Tensor = type("Tensor", (base,), {"requires_grad": False, **flags})
        self.cuda = SimpleNamespace(current_stream=self.current_stream)

    def current_stream(self, device):
        self.asked.append(device)
        return Stream(cuda_stream=self.current[device], device_index=device)

    def modules(self):
        module = ModuleType("torch")
        module.Tensor, module.cuda = self.Tensor, self.cuda
        return {"torch": module}
