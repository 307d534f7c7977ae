"""What a guest is booted from: QEMU, the RDMA programs, and a Debian kernel that has Soft-RoCE.

`prepare()` installs the packages that are missing (that needs root), fetches the newest kernel without installing it,
and packs an initrd. Everything but the packages lands in build/softroce.
"""

import lzma
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent.parent / "build" / "softroce"
PACKAGES = (
    *("qemu-system-x86", "busybox-static", "cpio", "kmod", "iproute2", "util-linux"),
    *("rdma-core", "ibverbs-utils", "ibverbs-providers", "perftest", "python3-pyverbs"),
)
# What the initrd must load before it sees the host's files.
BOOT_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_rng", "virtio_console")


class CannotPrepare(Exception):
    """No guest can be booted on this machine; the message says why."""


class Image(NamedTuple):
    """A kernel that is ready: `folder` has `kernel`, `initrd` and lib/modules/<version>."""

    folder: Path
    version: str


def say(text):
    print(f"softroce: {text}", file=sys.stderr, flush=True)


def prepare():
    """Return the Image of the newest kernel, after fetching what is missing. Raises CannotPrepare."""
    started = time.monotonic()
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise CannotPrepare(f"the guest is x86-64 Linux under QEMU; this is {sys.platform} on {platform.machine()}")
    install_packages()
    image = newest()
    if image is None:
        image = fetch_kernel()
        say(f"kernel {image.version} is ready ({time.monotonic() - started:.0f} s)")
    elif (image.folder / "initrd").stat().st_mtime < (HERE / "init.sh").stat().st_mtime:
        pack_initrd(image)
    return image


def newest():
    """The Image of the newest kernel that was fetched, or None."""
    ready = [path.parent for path in CACHE.glob("*/initrd")]
    if not ready:
        return None
    folder = max(ready, key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)])
    return Image(folder, folder.name)


def install_packages():
    """Install those of PACKAGES that are missing."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-query")):
        raise CannotPrepare("QEMU and the kernel come from Debian's packages; there is no apt-get here")
    query = ("dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *PACKAGES)
    listed = subprocess.run(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.splitlines()
    missing = [name for name in PACKAGES if f"{name} installed" not in listed]
    if not missing:
        return
    if os.geteuid() != 0:
        raise CannotPrepare(f"root must install {' '.join(missing)}: apt-get install --no-install-recommends ...")
    say("installing " + " ".join(missing))
    apt("update")
    apt("install", "-y", "--no-install-recommends", *missing)


def apt(*arguments, cwd=None):
    command = ["apt-get", "-qq", "-o=Dpkg::Use-Pty=0", "-o=APT::Sandbox::User=root", *arguments]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        cwd=cwd,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
    )
    if done.returncode != 0:
        raise CannotPrepare(f"{' '.join(command)} failed:\n{done.stdout}")


def run(*command):
    try:
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        raise CannotPrepare(f"{' '.join(map(str, command))}: {error}") from error


def kernel_package():
    """The package of Debian's newest kernel, or None if apt's lists have none."""
    found = re.search(r"Depends: (linux-image-\S+)", run("apt-cache", "depends", "linux-image-amd64"))
    return found and found[1]


def fetch_kernel():
    """Download and unpack the kernel's package, without installing it."""
    if kernel_package() is None:
        apt("update")
    package = kernel_package()
    if package is None:
        raise CannotPrepare("apt-get knows no linux-image-amd64")
    image = Image(CACHE / package.removeprefix("linux-image-"), package.removeprefix("linux-image-"))
    shutil.rmtree(image.folder, ignore_errors=True)
    image.folder.mkdir(parents=True)
    say(f"fetching {package}")
    try:
        apt("download", package, cwd=image.folder)
    except CannotPrepare:
        # An old list names a version that the mirror no longer has.
        apt("update")
        apt("download", package, cwd=image.folder)
    (archive,) = image.folder.glob("*.deb")
    run("dpkg-deb", "-x", archive, image.folder)
    archive.unlink()
    run("depmod", "-b", image.folder, image.version)
    unpack_kernel(image)
    pack_initrd(image)
    return image


def unpack_kernel(image):
    """Take the ELF kernel out of Debian's bzImage: QEMU boots that directly (PVH), some seconds sooner.

    Source: the kernel's Documentation/arch/x86/boot.rst: setup_sects at 0x1f1, payload_offset and _length at 0x248
    """
    packed = (image.folder / f"boot/vmlinuz-{image.version}").read_bytes()
    offset, nbytes = struct.unpack_from("<II", packed, 0x248)
    offset += (packed[0x1F1] + 1) * 512
    try:
        # The payload's last four bytes are the unpacked size.
        kernel = lzma.decompress(packed[offset : offset + nbytes - 4])
    except lzma.LZMAError:
        kernel = packed  # compressed in another way: QEMU boots the bzImage, too
    (image.folder / "kernel").write_bytes(kernel)


def pack_initrd(image):
    """Pack busybox, init.sh, and the modules that it loads in the order of their dependencies."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        for name in ("bin", "mods", "proc", "sys", "dev", "lower", "rw", "root"):
            (tree / name).mkdir()
        shutil.copy("/bin/busybox", tree / "bin")
        shutil.copy(HERE / "init.sh", tree / "init")
        (tree / "init").chmod(0o755)
        order = []
        for module in BOOT_MODULES:
            listing = run("modprobe", "-d", image.folder, "-S", image.version, "--show-depends", module)
            for line in listing.splitlines():
                kind, path, *_ = line.split()
                if kind == "insmod" and Path(path).name not in order:
                    order.append(Path(path).name)
                    shutil.copy(path, tree / "mods")
        (tree / "order").write_text("\n".join(order) + "\n")
        pack = "find . | cpio --quiet -o -H newc | gzip -1"
        packed = subprocess.run(pack, shell=True, check=True, cwd=tree, stdout=subprocess.PIPE).stdout
    # Renamed into place: a run that is stopped here leaves no half of it.
    half = image.folder / "initrd.new"
    half.write_bytes(packed)
    half.rename(image.folder / "initrd")
