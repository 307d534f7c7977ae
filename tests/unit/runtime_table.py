"""Calls a runtime's table (include/hetccl/runtime.h) from Python, by the prototypes that the header declares."""

import ctypes
import re
from pathlib import Path

import numpy as np

HEADER = Path(__file__).resolve().parents[2] / "include" / "hetccl" / "runtime.h"
MISSING = -32768
SCALARS = {
    "int": ctypes.c_int,
    "unsigned": ctypes.c_uint,
    "size_t": ctypes.c_size_t,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
}


class Pointer(ctypes.Structure):
    """hetccl_pointer_t"""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("device", ctypes.c_int),
        ("registered", ctypes.c_int),
        ("managed", ctypes.c_int),
        ("buffer_id", ctypes.c_uint64),
        ("base", ctypes.c_void_p),
        ("nbytes", ctypes.c_size_t),
    )


def prototypes():
    """{slot: (result type, argument types)} as the header has them."""
    struct = HEADER.read_text().partition("typedef struct hetccl_runtime {")[2].partition("} hetccl_runtime_t;")[0]
    text = re.sub(r"/\*.*?\*/", "", struct, flags=re.DOTALL)
    found = {}
    for result, name, arguments in re.findall(r"([\w ]+\*?)\(\*(\w+)\)\(((?:[^()]|\([^()]*\))*)\);", text):
        # A function pointer among the arguments: `void (*function)(void *)`.
        flat = re.sub(r"\w+ \(\*\w+\)\([^()]*\)", "void *", arguments)
        types = [a.strip() for a in flat.split(",")]
        found[name] = (
            ctypes.c_char_p if "char" in result else ctypes.c_int,
            [ctypes.c_void_p if "*" in t else SCALARS[t.split()[0]] for t in types],
        )
    return found


PROTOTYPES = prototypes()


class Table:
    """A Runtime's functions: `table(name, ...)` calls one and asserts success; `table.code` gives what it answers."""

    def __init__(self, runtime, device=0):
        self.runtime, self.device = runtime, device
        self.functions = {
            name: ctypes.CFUNCTYPE(result, *arguments)(runtime.address(name))
            for name, (result, arguments) in PROTOTYPES.items()
        }

    def code(self, name, *arguments):
        return self.functions[name](*arguments)

    def __call__(self, name, *arguments):
        code = self.code(name, *arguments)
        assert code == 0, f"{name}: {self.code('error_text', code)}"

    def made(self, name, *arguments):
        """What a function whose first argument is a result gives: the int of a `void **`."""
        out = ctypes.c_void_p()
        self(name, ctypes.byref(out), *arguments)
        return out.value

    def __enter__(self):
        """Make the device current, as for most of the table."""
        self.saved = ctypes.c_void_p()
        self("enter", self.device, ctypes.byref(self.saved))
        return self

    def __exit__(self, *_):
        self("leave", self.saved)

    def current(self):
        return self.runtime.device_current()

    def about(self, address):
        about = Pointer()
        self("pointer", address, ctypes.byref(about))
        return about

    def pinned(self, nbytes):
        """(address, ndarray of bytes) of new host memory that the device can reach."""
        address = self.made("host_alloc", nbytes)
        return address, bytes_at(address, nbytes)

    def put(self, address, values, stream):
        """Copy an ndarray's bytes to an address, and wait."""
        values = np.ascontiguousarray(values)
        self("copy_async", address, values.ctypes.data, values.nbytes, stream)
        self("stream_synchronize", stream)

    def get(self, address, nbytes, stream):
        """The bytes at an address, as an ndarray."""
        values = np.zeros(nbytes, "u1")
        self("copy_async", values.ctypes.data, address, nbytes, stream)
        self("stream_synchronize", stream)
        return values


def bytes_at(address, nbytes):
    return np.ndarray(nbytes, "u1", (ctypes.c_char * nbytes).from_address(address))
