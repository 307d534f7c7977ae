"""The libraries that hetccl opens at run time: their names, how each tells its version, and where wheels put them."""

import ctypes
import sys
from dataclasses import dataclass
from pathlib import Path

from hetccl._dl import Library
from hetccl.errors import SymbolNotFound

# Folders of wheels below a site-packages folder that hold vendor libraries.
WHEEL_FOLDERS = ("nvidia/*/lib", "_rocm_sdk_*/lib", "torch/lib")


@dataclass(frozen=True)
class Known:
    """One library.

    name          : what users call it
    sonames       : best first
    version_call  : C function `int f(int *version)` that needs no initialization, "" if it has none
    version_parts : how the number splits: divisors of major, minor and patch, each taken modulo the one before
    setting       : the field of config.Config with the path or name that the user wants instead, "" if there is none
    """

    name: str
    sonames: tuple
    version_call: str = ""
    version_parts: tuple = ()
    setting: str = ""

    def override(self, settings):
        """The user's path or name, None without one. settings : config.Config."""
        return getattr(settings, self.setting) if self.setting else None

    def open(self, settings):
        """Open it, or raise LibraryNotFound. settings : config.Config."""
        return Library.open(self.sonames, override=self.override(settings), folders=wheel_folders())

    def version(self, library):
        """The version as text; "" if the library does not tell."""
        if not self.version_call:
            return ""
        try:
            address = library.address(self.version_call)
        except SymbolNotFound:
            return ""
        number = ctypes.c_int()
        failed = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))(address)(ctypes.byref(number))
        return "" if failed else self.version_text(number.value)

    def version_text(self, number):
        """22703 -> "2.27.3"."""
        parts = []
        for divisor in self.version_parts:
            part, number = divmod(number, divisor)
            parts.append(str(part))
        return ".".join(parts)


_CUDA_PARTS = (1000, 10)
_NCCL_PARTS = (10000, 100, 1)

# Version encodings: cuda.h, nccl.h (since 2.9), hip_version.h, oneapi/ccl.h. libibverbs and MPI have no such call.
LIBRARIES = (
    Known("MPI", ("libmpi.so.40", "libmpi.so.12", "libmpi.so")),
    Known("CUDA driver", ("libcuda.so.1",), "cuDriverGetVersion", _CUDA_PARTS, "cuda_lib"),
    Known("CUDA runtime", ("libcudart.so.13", "libcudart.so.12", "libcudart.so"), "cudaRuntimeGetVersion", _CUDA_PARTS),
    Known("NCCL", ("libnccl.so.2",), "ncclGetVersion", _NCCL_PARTS, "nccl_lib"),
    Known(
        "HIP",
        ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"),
        "hipRuntimeGetVersion",
        (10_000_000, 100_000, 1),
        "hip_lib",
    ),
    Known("RCCL", ("librccl.so.1",), "ncclGetVersion", _NCCL_PARTS, "rccl_lib"),
    Known("oneCCL", ("libccl.so.2",), "onecclGetVersion", _NCCL_PARTS, "oneccl_lib"),
    Known("libibverbs", ("libibverbs.so.1",), setting="verbs_lib"),
)


def wheel_folders():
    """Folders of installed wheels that hold vendor libraries, in sys.path's order: tuple of str."""
    sites = [Path(entry) for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))]
    found = [folder for site in sites for pattern in WHEEL_FOLDERS for folder in sorted(site.glob(pattern))]
    # Wheels whose libraries are data files (oneCCL, MPI) land beside the interpreter.
    return tuple(str(folder) for folder in [*found, Path(sys.prefix) / "lib"] if folder.is_dir())
