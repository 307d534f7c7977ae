"""The reduction kernels as they are installed: for which devices code was built ahead, and who compiles the rest.

Nothing here touches a device; hetccl._device_kernels loads what is described here.
"""

import re
import struct
from pathlib import Path
from typing import NamedTuple

from hetccl import _device_kernels, libraries
from hetccl._device_compiler import Compiler
from hetccl.errors import HetcclError

# A fat binary's parts, as nvcc writes it: a header, then entries of code for one architecture each.
FATBIN_MAGIC = 0xBA55ED50
FATBIN_PTX, FATBIN_CODE = 1, 2
ARCH_OFFSET = 28  # in an entry: the architecture's number, 90
# NVIDIA promises that code runs on later minor releases of its architecture, but not across to these boards.
ALONE = ("sm_87", "sm_88", "sm_110")


class Kernels(NamedTuple):
    """What serves the devices of a runtime, as plain values.

    runtime  : "cuda" | "hip"
    ahead    : architectures whose code was built ahead, "PTX" among them if the driver can make code for later ones
    compiler : "NVRTC 13.5 /path (wheel)", "" without one
    problem  : why there is no run-time compiler; "" with one
    """

    runtime: str
    ahead: tuple
    compiler: str
    problem: str


def fatbin_entries(data):
    """The pieces of code in a fat binary: list of (FATBIN_PTX or FATBIN_CODE, architecture's number).

    Raises : ValueError (it is none)
    """
    if len(data) < 16 or struct.unpack_from("<I", data)[0] != FATBIN_MAGIC:
        raise ValueError("not a fat binary")
    at, nbytes = struct.unpack_from("<6xHQ", data)
    end, found = at + nbytes, []
    while at + ARCH_OFFSET + 4 <= min(end, len(data)):
        kind, _, header, size = struct.unpack_from("<HHIQ", data, at)
        found.append((kind, struct.unpack_from("<I", data, at + ARCH_OFFSET)[0]))
        at += header + size
    if at != end or end != len(data):
        raise ValueError("a fat binary that is cut short")
    return found


def built_ahead(runtime, folder=None):
    """Architectures whose code was built ahead: tuple of str. folder : None, or in whose place the package's is."""
    if runtime == "cuda":
        try:
            entries = fatbin_entries(Path(_device_kernels.built_ahead("cuda", "", folder)).read_bytes())
        except (OSError, ValueError):
            return ()
        codes = sorted(number for kind, number in entries if kind == FATBIN_CODE)
        return (*(f"sm_{number}" for number in codes), *("PTX" for kind, _ in entries if kind == FATBIN_PTX))
    pattern = re.compile(rf"kernels-{_device_kernels.KEY}-(gfx\w+)\.co")
    names = (path.name for path in Path(folder or _device_kernels.FOLDER).glob("*.co"))
    return tuple(sorted(found[1] for found in map(pattern.fullmatch, names) if found))


def describe(runtime, folder=None):
    """What serves a runtime's devices: Kernels. Opens the run-time compiler's library."""
    ahead = built_ahead(runtime, folder)
    try:
        compiler = Compiler.open(runtime, folders=libraries.wheel_folders())
        library = compiler.library
        text = f"{compiler.name} {compiler.version()} {library.path} ({library.origin})"
        return Kernels(runtime, ahead, text, "")
    except HetcclError as error:
        return Kernels(runtime, ahead, "", str(error).partition("\n")[0].partition(";")[0])


def serving(kernels, arch):
    """Which code serves a device, in words. kernels : Kernels; arch : "sm_90", "gfx942"."""
    if code := _code_for(arch, kernels.ahead):
        return f"built ahead for {code}" + (f", which runs on {arch}" if code != arch else "")
    if "PTX" in kernels.ahead:
        return f"built ahead as PTX, from which the driver makes code for {arch}"
    if kernels.compiler:
        return f"compiled for {arch} at run time by {kernels.compiler}"
    return f"none for {arch}: not built ahead, and no run-time compiler ({kernels.problem})"


def _code_for(arch, ahead):
    """The architecture whose code runs on a device, "" if none does: NVIDIA's also on a later minor release."""
    if arch in ahead or not arch.startswith("sm_") or arch in ALONE:
        return arch if arch in ahead else ""
    major, minor = divmod(int(arch[3:]), 10)
    releases = [divmod(int(name[3:]), 10) for name in ahead if name.startswith("sm_") and name not in ALONE]
    earlier = [release for release in releases if release[0] == major and release[1] <= minor]
    return f"sm_{max(earlier)[0]}{max(earlier)[1]}" if earlier else ""
