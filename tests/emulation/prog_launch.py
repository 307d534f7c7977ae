"""A kernel through hetccl's HIP table on the emulation. Its image is what the emulation takes for an AMD GPU's code.

usage: ... <libamdhip64> <file with the image for what lies under the emulation>
"""

import ctypes
import struct
import sys
from pathlib import Path

import runtime_checks
from runtime_table import Table

from hetccl import _hip

EM_AMDGPU, ET_DYN, HEADER_NBYTES = 224, 3, 64
NO_BINARY_FOR_GPU = 209  # hipErrorNoBinaryForGpu


def amd_image(inner):
    """An ELF header of an AMD GPU's code object that has no sections, and behind it an image of NVIDIA's."""
    ident = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    fields = struct.pack("<HHIQQQIHHHHHH", ET_DYN, EM_AMDGPU, 1, 0, 0, 0, 0, HEADER_NBYTES, 0, 0, 0, 0, 0)
    assert len(ident + fields) == HEADER_NBYTES
    return ident + fields + inner


def main(library, image):
    inner = Path(image).read_bytes() + b"\0"
    with Table(_hip.open(library)) as table:
        stream = table.made("stream_create")
        place = ctypes.byref(ctypes.c_void_p())
        assert table.code("module_load", place, inner) == NO_BINARY_FOR_GPU, "an image of NVIDIA's is no code for AMD's"
        runtime_checks.launches(table, stream, amd_image(inner))
        table("stream_destroy", stream)
    print("emulated: launched")


if __name__ == "__main__":
    main(*sys.argv[1:])
