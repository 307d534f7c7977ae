"""oneCCL for the CPU, taken out of Intel's wheels, for the tests: only the files that work without an Intel GPU.

The wheel of the CPU build lacks the C API and its plugin, and the big one has them beside a library for GPUs that does
not load here; installing both leaves either library in place. They are under Intel's licence, which is unpacked too.
"""

import ctypes
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

VERSION = "2022.2.0"
LICENCE = "share/doc/ccl/licensing/license.txt"
# The oldest libfabric that was seen to serve oneCCL: Debian 12's.
OLDEST_FABRIC = (1, 17)


class Wheel(NamedTuple):
    """files: below the wheel's data folder, {path there: path below the folder that is filled}."""

    requirement: str
    sha256: str
    files: dict


LIBRARIES = (
    Wheel(
        f"oneccl-cpu-devel=={VERSION}",
        "44346f5758843b17a20d277048aa4eb3a2991029009182b00755c59265b85f0b",
        {name: name for name in ("include/oneapi/ccl/v2/types.h", "include/oneapi/ccl.h")},
    ),
    Wheel(
        f"oneccl-cpu=={VERSION}",
        "cc912935bd882b4328a569f70a475942e6e77994255775bde7de6452a982af54",
        {"lib/libccl.so.1": "lib/libccl.so.1", LICENCE: "share/doc/oneccl/license.txt"},
    ),
    Wheel(
        f"oneccl=={VERSION}",
        "02c2f52434bfad50cc2d00be6e97fd81e3f365d279ac7bdabd2e3b656194c19f",
        {name: name for name in ("lib/libccl_legacy_cpu.so", "lib/libccl.so.2")},
    ),
)
# In a folder of its own: Open MPI's wheel has another libfabric, and would find this one first in lib.
FABRIC = Wheel(
    "impi-rt==2021.18.1",
    "51ca89c1e64e60d86a7d40a7d6124312ba63aafc03fb6aacc140b3c66371d814",
    {f"lib/lib{name}": f"lib/libfabric/lib{name}" for name in ("tcp-fi.so", "shm-fi.so", "rxm-fi.so", "fabric.so.1")},
)


class FetchError(Exception):
    """A wheel could not be fetched; the message is the last line that pip printed."""


def wheels():
    """Those that this system needs, the one whose files stand for all of them last; libfabric where there is none."""
    return LIBRARIES if _has_fabric() else (FABRIC, *LIBRARIES)


def present(folder):
    return all(_complete(wheel, folder) for wheel in wheels())


def fetch(folder):
    """Fill folder/lib, folder/include and folder/share with the files that are missing.

    folder : Path of a folder that exists
    Raises : FetchError
    """
    for wheel in wheels():
        if _complete(wheel, folder):
            continue
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            _unpack(_download(wheel, Path(scratch)), wheel, folder)


def _complete(wheel, folder):
    return all((folder / path).exists() for path in wheel.files.values())


def _download(wheel, scratch):
    wanted = scratch / "wanted.txt"
    wanted.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n")
    options = ("--quiet", "--no-input", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:")
    # Not cached: pip would keep a second copy of hundreds of megabytes.
    command = [sys.executable, "-m", "pip", "download", *options, "--no-cache-dir", "--require-hashes"]
    done = subprocess.run(
        [*command, "--dest", str(scratch), "-r", str(wanted)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    found = list(scratch.glob("*.whl"))
    if done.returncode != 0 or len(found) != 1:
        raise FetchError((done.stdout.strip() or "pip download gave no wheel").splitlines()[-1])
    return found[0]


def _unpack(archive, wheel, folder):
    with zipfile.ZipFile(archive) as bundle:
        for member in bundle.namelist():
            target = wheel.files.get(member.partition(".data/data/")[2])
            if target is None:
                continue
            path = folder / target
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(path.name + ".part")
            with bundle.open(member) as source, part.open("wb") as sink:
                shutil.copyfileobj(source, sink)
            # Complete or absent: what exists is not fetched again.
            part.rename(path)


def _has_fabric():
    """Whether the system's own libfabric can serve oneCCL."""
    try:
        number = ctypes.CDLL("libfabric.so.1").fi_version()
    except (OSError, AttributeError):
        return False
    return (number >> 16, number & 0xFFFF) >= OLDEST_FABRIC
