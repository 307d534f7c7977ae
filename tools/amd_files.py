"""What AMD publishes of HIP and RCCL that needs no AMD machine: headers, bindings, and Debian's build of the runtime.

Each is fetched at most once and unpacked in build/amd, which is no part of the repository nor of the package. The tests
of hetccl's HIP and RCCL tables read them.

usage: python tools/amd_files.py     fetches all, and says where each lies
"""

import importlib.util
import platform
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import debian
from debian import FetchError

CACHE = Path(__file__).resolve().parent.parent / "build" / "amd"
DOWNLOAD_S = 300
# AMD's Cython bindings of ROCm 10: HIP 7.15, and RCCL at the level of NCCL 2.30.
BINDINGS = (
    "rocm-bindings-core==10.0.0.0.1.2",
    "rocm-bindings-hip==10.0.0.0.1.2",
    "rocm-bindings-systems==10.0.0.0.1.2",
)
# Triton carries HIP's own headers, of 7.1 in these releases.
TRITON = "triton>=3.6"
TRITON_HEADERS = "triton/backends/amd/include"


def bindings():
    """The folder to put on PYTHONPATH for `rocm.bindings`, for the Python that runs. Raises FetchError."""
    return wheels(f"bindings-{sys.implementation.cache_tag}", BINDINGS)


def headers(major):
    """The include folder with HIP's own headers. Raises FetchError.

    major : 5 (Debian's 5.2) | 7 (of an installed Triton, else of its wheel)
    """
    if major == 5:
        return debian_root() / "usr" / "include"
    installed = importlib.util.find_spec("triton")
    folder = Path(installed.origin).parent.parent / TRITON_HEADERS if installed and installed.origin else None
    if folder and folder.is_dir():
        return folder
    return _kept("triton", lambda folder: _unpack_wheels([TRITON], folder, TRITON_HEADERS)) / TRITON_HEADERS


def wheels(name, requirements):
    """The folder CACHE/name with all files of some wheels. Raises FetchError."""
    return _kept(name, lambda folder: _unpack_wheels(requirements, folder, ""))


def debian_root():
    """The folder where libamdhip64.so.5, all that it needs, and its headers are unpacked. Raises FetchError."""
    if platform.machine() != "x86_64":
        raise FetchError(f"Debian has no libamdhip64-5 for {platform.machine()}")
    if not debian.available():
        raise FetchError("Debian's packages need apt-get and dpkg-deb")
    root = _kept("debian", lambda folder: debian.fetch(["libamdhip64-5", "libamdhip64-dev"], folder)) / "root"
    if not (root / "usr" / "include" / "hip").is_dir() or not list(root.glob("usr/lib/*/libamdhip64.so.5")):
        raise FetchError(f"{root} holds no libamdhip64.so.5 with its headers")
    return root


def debian_library():
    """Debian's libamdhip64.so.5; load it with its folder in LD_LIBRARY_PATH. Raises FetchError."""
    (library,) = debian_root().glob("usr/lib/*/libamdhip64.so.5")
    return library


# What could not be had: asked for once per process, since a registry that does not answer takes its time each time.
_missing = {}


def _kept(name, fill):
    """CACHE/name; if it is not there yet, fill(folder) makes its content, all or nothing."""
    folder = CACHE / name
    if name in _missing:
        raise FetchError(_missing[name])
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            try:
                fill(Path(scratch, "content"))
            except FetchError as error:
                _missing[name] = str(error)
                raise
            Path(scratch, "content").rename(folder)
    return folder


def _unpack_wheels(requirements, folder, prefix):
    """Download wheels through pip and unpack their files below prefix."""
    folder.mkdir()
    with tempfile.TemporaryDirectory(dir=folder.parent) as wheels:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
        command += ["--only-binary", ":all:", "--dest", wheels, *requirements]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DOWNLOAD_S)
        except subprocess.TimeoutExpired:
            raise FetchError(f"pip has not answered in {DOWNLOAD_S} s") from None
        if done.returncode != 0:
            said = (done.stderr.strip() or "it gave no reason").splitlines()[-1]
            raise FetchError(f"pip cannot download {' '.join(requirements)}: {said}")
        for wheel in Path(wheels).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder, [name for name in archive.namelist() if name.startswith(prefix)])
    if prefix and not (folder / prefix).is_dir():
        raise FetchError(f"{' '.join(requirements)} holds no {prefix}")


def main():
    for what, get in (("bindings", bindings), ("HIP 7", lambda: headers(7)), ("Debian's", debian_library)):
        try:
            print(f"{what:10} {get()}")
        except FetchError as error:
            print(f"{what:10} not here: {error}")


if __name__ == "__main__":
    main()
