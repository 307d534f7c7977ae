"""Compile the kernels by a run-time compiler, in a process of its own.

usage: prog_compile.py RUNTIME LIBRARY ARCHITECTURE OUT
"""

import sys
from pathlib import Path

from hetccl import _device_kernels
from hetccl._device_compiler import Compiler

runtime, library, arch, out = sys.argv[1:]
image, _ = Compiler.open(runtime, library).compile(_device_kernels.source().encode(), arch)
Path(out).write_bytes(image)
