"""Compile a fake library of this folder: `build("fakecuda")` is a path for HETCCL_CUDA_LIB."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / "build" / "fakes"
# A fake has its model's soname, so that whoever asks the process for a copy that is loaded finds it.
SONAMES = {
    "fakecuda": "libcuda.so.1",
    "fakehip": "libamdhip64.so.7",
    "fakeccl": "libnccl.so.2",
    "fakeverbs": "libibverbs.so.1",
    "fakenvrtc": "libnvrtc.so.13",
    "fakehiprtc": "libhiprtc.so.7",
}
INCLUDE = HERE.parents[1] / "include"
FLAGS = ("-std=gnu11", "-O1", "-g", "-Wall", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread", f"-I{INCLUDE}")


def compiler():
    """The C compiler's path, None if there is none."""
    return shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc")


def build(name, *options, without=()):
    """Compile name.c, once for each choice of arguments, and return the library's path.

    options : str, the compiler's, "-DNAME=1"
    without : sequence of str, functions that the library shall not have
    Raises  : RuntimeError (no compiler, or it failed)
    """
    if compiler() is None:
        raise RuntimeError(f"no C compiler to make {name} of tests/fakes: install gcc, or set CC")
    soname = SONAMES.get(name, f"lib{name}.so")
    command = [compiler(), *FLAGS, f"-Wl,-soname,{soname}", *options]
    sources = [path.read_text() for path in [*sorted(HERE.glob("*.[chm]*")), INCLUDE / "hetccl" / "verbs_abi.h"]]
    key = hashlib.sha256(repr((name, command, sorted(without), sources)).encode()).hexdigest()[:16]
    folder = CACHE / f"{name}-{key}"
    if not (folder / soname).exists():
        _compile(name, command, sorted(without), folder, soname)
    return str(folder / soname)


def _compile(name, command, without, folder, soname):
    folder.mkdir(parents=True, exist_ok=True)
    # Ranks of a job compile at the same time: each its own file, moved to its place when whole.
    partial = folder / f"{soname}.{os.getpid()}"
    command = [*command, "-o", str(partial), str(HERE / f"{name}.c"), "-ldl", "-lm"]
    versions = HERE / f"{name}.map"
    if without or versions.exists():
        script = folder / f"script.{os.getpid()}"
        script.write_text(_version_script(versions, without))
        command.insert(1, f"-Wl,--version-script={script}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    os.replace(partial, folder / soname)


def _version_script(versions, without):
    """The linker's: the library's own, if it has one, without some of its symbols; else one that only hides these."""
    if not versions.exists():
        return "{ local: " + " ".join(f"{symbol};" for symbol in without) + " };"
    return "".join(line for line in versions.read_text().splitlines(True) if line.strip().rstrip(";") not in without)


def kernels(source):
    """Compile the source of the reduction kernels with the host's C++ compiler; returns the library's path.

    source : str, C++; compiled once for each
    Raises : RuntimeError (no compiler, or it failed)
    """
    cxx = shutil.which(os.environ.get("CXX") or "c++") or shutil.which("g++")
    if cxx is None:
        raise RuntimeError("no C++ compiler to make the reduction kernels for the host: install g++, or set CXX")
    # Not -O3: most of the time of the tests would be its own.
    command = [cxx, "-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=off"]
    command += ["-fno-strict-aliasing", "-x", "c++", "-", "-o"]
    library = CACHE / f"kernels-{hashlib.sha256(repr((command, source)).encode()).hexdigest()[:16]}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        partial = library.with_suffix(f".{os.getpid()}")
        done = subprocess.run([*command, str(partial)], input=source, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
        os.replace(partial, library)
    return str(library)
