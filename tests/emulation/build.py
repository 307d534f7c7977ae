"""Builds the emulated HIP and RCCL: test libraries with AMD's names and signatures that hand each call on to NVIDIA's.

They exist to run hetccl's HIP and RCCL code on a machine with NVIDIA's GPUs. docs/evidence.md says what that proves and
what it does not. They are never part of the package.

usage: python tests/emulation/build.py     builds what it can in build/emulation, and says where each lies
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import amd_files  # noqa: E402  (tools/ is no package)

OUT = ROOT / "build" / "emulation"
WARNINGS = ("-Wall", "-Wextra", "-Werror")
CUDA_WHEEL = "nvidia-cuda-runtime>=13,<14"  # has cuda.h
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
    library = OUT / f"hip{major}" / f"libamdhip64.so.{major}"
    sources = [HERE / name for name in ("hip.cpp", "nvidia.cpp", "nvidia.h")]
    flags = ["-std=c++17", "-O2", "-fPIC", *WARNINGS]

    def make(folder):
        try:
            amd_include, cuda_include = amd_files.headers(major), cuda_headers()
        except amd_files.FetchError as error:
            raise Unavailable(f"no headers of HIP {major} or of CUDA: {error}") from None
        objects = [folder / "hip.o", folder / "nvidia.o"]
        _run("g++", *flags, "-D__HIP_PLATFORM_AMD__", "-isystem", amd_include, "-c", sources[0], "-o", objects[0])
        _run("g++", *flags, "-fvisibility=hidden", "-isystem", cuda_include, "-c", sources[1], "-o", objects[1])
        return ["g++", *objects]

    return _built(library, sources, make)


def rccl():
    """Build librccl.so.1: its path. Raises Unavailable, BuildError."""
    if platform.machine() != "x86_64":
        raise Unavailable(f"the emulated RCCL is written for x86-64, not {platform.machine()}")
    sources = [HERE / "rccl.c", HERE / "rccl_names.h"]
    command = ["gcc", "-std=gnu11", "-O2", "-fPIC", *WARNINGS, sources[0]]
    return _built(OUT / "librccl.so.1", sources, lambda folder: command)


def cuda_headers():
    """The include folder of CUDA: of an installed toolkit, else of a wheel. Raises amd_files.FetchError."""
    nvcc = shutil.which("nvcc")
    homes = [os.environ.get("CUDA_HOME"), nvcc and Path(nvcc).resolve().parent.parent, "/usr/local/cuda"]
    for home in [*filter(None, homes), *sorted(Path("/usr/local").glob("cuda-*"), reverse=True)]:
        if Path(home, "include", "cuda.h").exists():
            return Path(home, "include")
    found = sorted(amd_files.wheels("cuda", [CUDA_WHEEL]).rglob("cuda.h"))
    if not found:
        raise amd_files.FetchError(f"{CUDA_WHEEL} holds no cuda.h")
    return found[0].parent


def _built(library, sources, make):
    """The library, linked anew if it is not of these sources. make(folder) -> compiler and what it shall link."""
    text = b"".join(source.read_bytes() for source in [*sources, Path(__file__)])
    stamp, digest = library.with_suffix(".sources"), hashlib.sha256(text).hexdigest()
    # Not by time: libraries may have been copied here with the sources.
    if not (library.exists() and stamp.exists() and stamp.read_text() == digest):
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            half = Path(folder, library.name)
            _run(*make(Path(folder)), "-shared", f"-Wl,-soname,{library.name}", "-Wl,-Bsymbolic", "-o", half, "-ldl")
            half.replace(library)
        stamp.write_text(digest)
    return library


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
