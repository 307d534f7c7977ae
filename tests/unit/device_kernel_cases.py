"""What the tests of the device kernels share: the kernels as functions of a library for the host."""

import ctypes
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from kernel_cases import BIT_OPS, DTYPES, LOC_OPS, OPS, PAIRS

from fakes import build
from hetccl import _device_kernels, _kernels

BLOCK = 256  # HETCCL_DEVICE_BLOCK
SOURCES_MAX = 8
OP_NUMBERS = {**OPS, **BIT_OPS, **LOC_OPS}
DTYPE_NUMBERS = {**{name: number for name, (number, _) in DTYPES.items()}, **PAIRS}
NO_GPU_HAS = {"longdouble", "clongdouble", "longdouble_int"}
ITEMSIZES = {"float_int": 8, "double_int": 16, "long_int": 16, "int_int": 8, "short_int": 8, "longdouble_int": 32}
ITEMSIZES |= {name: scalar.itemsize for name, (_, scalar) in DTYPES.items()}

_OPS, _DTYPES = ({number: name for name, number in table.items()} for table in (OP_NUMBERS, DTYPE_NUMBERS))
# Each (op, dtype) that the host's loops have, by name.
HOSTS = [(_OPS[op], _DTYPES[dtype]) for op, dtype in _kernels.defined()]
DEFINED = [(op, dtype) for op, dtype in HOSTS if dtype not in NO_GPU_HAS]
every_kernel = pytest.mark.parametrize("op, dtype", DEFINED, ids=[f"{dtype}-{op}" for op, dtype in DEFINED])


class Arguments(ctypes.Structure):
    """hetccl_device_args_t"""

    _fields_ = (
        ("out", ctypes.c_void_p),
        ("sources", ctypes.c_void_p * SOURCES_MAX),
        ("count", ctypes.c_uint64),
        ("factor", ctypes.c_uint64 * 2),
        ("nsources", ctypes.c_uint32),
        ("nblocks", ctypes.c_uint32),
        ("divisor", ctypes.c_uint32),
        ("zero", ctypes.c_uint32),
    )


@cache
def library():
    """The kernels' source, compiled for the host."""
    try:
        return ctypes.CDLL(build.kernels(_device_kernels.source()))
    except RuntimeError as error:
        pytest.skip(str(error))


def call(name, out, sources, count, nblocks=1, divisor=0, factor=b""):
    """Run a kernel on the host. out, sources: addresses; count: of what the kernel takes for elements."""
    arguments = Arguments(out, count=count, nsources=len(sources), nblocks=nblocks, divisor=divisor)
    arguments.sources[: len(sources)] = sources
    ctypes.memmove(arguments.factor, factor, len(factor))
    grid, block = (ctypes.c_uint * 3)(nblocks, 1, 1), (ctypes.c_uint * 3)(BLOCK, 1, 1)
    getattr(library(), name)((ctypes.c_void_p * 1)(ctypes.addressof(arguments)), grid, block)


def reduce(op, dtype, out, sources, nblocks=1, divisor=0):
    """The kernel of an op on a dtype, on uint8 arrays of whole elements."""
    name, parts = _device_kernels.kernel_name(OP_NUMBERS[op], DTYPE_NUMBERS[dtype])
    count = len(out) // ITEMSIZES[dtype] * parts
    call(name, out.ctypes.data, [source.ctypes.data for source in sources], count, nblocks, divisor)


def host_result(op, dtype, sources, divisor=0):
    """What the host's loops give, as bytes."""
    out = np.empty_like(sources[0])
    _kernels.reduce(OP_NUMBERS[op], DTYPE_NUMBERS[dtype], out, list(sources), divisor)
    return out


def divisor_of(op, ranks=7):
    return ranks if op == "avg" else 0


def rtc_command():
    """What the fake run-time compilers run."""
    return f"{sys.executable} {Path(build.HERE, 'compile_kernels.py')}"
