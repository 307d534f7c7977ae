"""Builds the emulated HIP and RCCL: test libraries with AMD's names and signatures that hand each call on to NVIDIA's.

They exist to run hetccl's HIP and RCCL code on a machine with NVIDIA's GPUs. docs/evidence.md says what that proves and
what it does not. They are never part of the package.

usage: python tests/emulation/build.py     builds what it can in build/emulation, and says where each lies
"""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import amd_files  # noqa: E402  (tools/ is no package)

OUT = ROOT / "build" / "emulation"
WARNINGS = ("-Wall", "-Wextra", "-Werror")
# CUDA's headers as wheels: the runtime's, and those that they include.
CUDA_WHEELS = ("nvidia-cuda-runtime>=13,<14", "nvidia-cuda-crt>=13,<14")
BUILD_S = 300


class Unavailable(Exception):
    """Something is missing here that the emulation is built from; the message says what."""


class BuildError(Exception):
    """The emulation's sources do not compile; the message is what the compiler said."""


def hip(major):
    """Build libamdhip64.so.<major> against HIP's own headers of that release: its path.

    major : 5 | 7
    Raises: Unavailable, BuildError
    """
    try:
        amd_include, cuda_include = amd_files.headers(major), cuda_headers()
    except amd_files.FetchError as error:
        raise Unavailable(f"no headers of HIP {major} or of CUDA: {error}") from None
    soname = f"libamdhip64.so.{major}"
    sources = [HERE / name for name in ("hip.cpp", "nvidia.cpp", "nvidia.h")]
    flags = ["-std=c++17", "-O2", "-fPIC", *WARNINGS]
    folder = OUT / f"hip{major}"
    folder.mkdir(parents=True, exist_ok=True)
    objects = [folder / "hip.o", folder / "nvidia.o"]
    if _older(folder / soname, sources):
        _run("g++", *flags, "-D__HIP_PLATFORM_AMD__", "-isystem", amd_include, "-c", sources[0], "-o", objects[0])
        _run("g++", *flags, "-fvisibility=hidden", *_isystem(cuda_include), "-c", sources[1], "-o", objects[1])
        _link("g++", folder / soname, objects)
    return folder / soname


def rccl():
    """Build librccl.so.1: its path. Raises Unavailable, BuildError."""
    if platform.machine() != "x86_64":
        raise Unavailable(f"the emulated RCCL is written for x86-64, not {platform.machine()}")
    OUT.mkdir(parents=True, exist_ok=True)
    library, sources = OUT / "librccl.so.1", [HERE / "rccl.c", HERE / "rccl_names.h"]
    if _older(library, sources):
        _run("gcc", "-std=gnu11", "-O2", "-fPIC", *WARNINGS, "-c", sources[0], "-o", OUT / "rccl.o")
        _link("gcc", library, [OUT / "rccl.o"])
    return library


def cuda_headers():
    """The include folders of CUDA: of an installed toolkit, else of wheels. Raises amd_files.FetchError."""
    nvcc = shutil.which("nvcc")
    homes = [os.environ.get("CUDA_HOME"), nvcc and Path(nvcc).resolve().parent.parent, "/usr/local/cuda"]
    for home in [*filter(None, homes), *sorted(Path("/usr/local").glob("cuda-*"), reverse=True)]:
        if Path(home, "include", "cuda_runtime_api.h").exists():
            return [Path(home, "include")]
    root = amd_files.wheels("cuda", CUDA_WHEELS)
    found = sorted({path.parent for name in ("cuda_runtime_api.h", "crt") for path in root.rglob(name)})
    if not found:
        raise amd_files.FetchError(f"{' '.join(CUDA_WHEELS)} hold no cuda_runtime_api.h")
    return found


def _isystem(folders):
    return [word for folder in folders for word in ("-isystem", folder)]


def _older(library, sources):
    return not library.exists() or library.stat().st_mtime < max(source.stat().st_mtime for source in sources)


def _link(compiler, library, objects):
    """All at once, so that two that build at the same time do not read each other's halves."""
    half = library.with_suffix(f".{os.getpid()}")
    _run(compiler, "-shared", f"-Wl,-soname,{library.name}", "-Wl,-Bsymbolic", *objects, "-o", half, "-ldl")
    half.replace(library)


def _run(*command):
    command = list(map(str, command))
    if not shutil.which(command[0]):
        raise Unavailable(f"no {command[0]} here")
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BUILD_S)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def main():
    for what, make in (("HIP 7", lambda: hip(7)), ("HIP 5", lambda: hip(5)), ("RCCL", rccl)):
        try:
            print(f"emulated {what:6} {make()}")
        except Unavailable as error:
            print(f"emulated {what:6} not built: {error}")


if __name__ == "__main__":
    main()
