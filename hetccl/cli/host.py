"""doctor's checks of one host: shared memory, reading a peer's memory, sleeping on a word, cores."""

import ctypes
import errno
import mmap
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from hetccl.cli.job import plural

SHARED_BYTES = 1 << 20
READ_PEER_SECONDS = 30
# Linux's system call numbers (asm/unistd.h); C libraries have no wrapper for futex.
SYS_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
FUTEX_WAKE = 1
# prctl(2). By PTRACER_ANY a process lets every process of its user read it where yama's ptrace_scope is 1.
PR_SET_PTRACER, PTRACER_ANY = 0x59616D61, ctypes.c_ulong(-1)

# Reads argv[3] bytes at address argv[2] of process argv[1] and writes them out; exits with errno if it may not.
_READER = """
import ctypes, sys
class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("nbytes", ctypes.c_size_t)]
pid, address, nbytes = map(int, sys.argv[1:])
libc = ctypes.CDLL(None, use_errno=True)
libc.process_vm_readv.restype = ctypes.c_ssize_t
data = ctypes.create_string_buffer(nbytes)
mine, theirs = Vector(ctypes.addressof(data), nbytes), Vector(address, nbytes)
one, none = ctypes.c_ulong(1), ctypes.c_ulong(0)
got = libc.process_vm_readv(pid, ctypes.byref(mine), one, ctypes.byref(theirs), one, none)
if got != nbytes:
    sys.exit(ctypes.get_errno() or 1)
sys.stdout.buffer.write(data.raw)
"""


class Check(NamedTuple):
    """One line of doctor's page.

    status : "ok" | "warn" (works, but slower or less) | "fail" (needed and missing)
    advice : what to do; "" if nothing
    """

    name: str
    status: str
    text: str
    advice: str = ""


def checks(nranks, cores):
    """All checks of this host, as a list.

    nranks : ranks of the job that run here
    cores  : set of the cores that they may use together
    """
    return [shared_memory(), single_copy(), futex(), enough_cores(nranks, cores, cpu_quota())]


def shared_memory():
    """Whether ranks can share anonymous memory by its descriptor in /proc."""
    try:
        fd = os.memfd_create("hetccl-doctor", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, SHARED_BYTES)
            again = os.open(f"/proc/{os.getpid()}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
            try:
                with mmap.mmap(again, SHARED_BYTES) as mapped:
                    mapped[-1] = 1
            finally:
                os.close(again)
            seen = os.pread(fd, 1, SHARED_BYTES - 1)
        finally:
            os.close(fd)
    except OSError as error:
        return Check(
            "shared memory",
            "fail",
            f"memfd_create or /proc/<pid>/fd refused: {error.strerror}",
            "Linux 3.17 with /proc mounted is needed; in a container, allow memfd_create in its seccomp profile",
        )
    if seen != b"\1":
        return Check(
            "shared memory", "fail", "two mappings of one memfd differ", "report it with your kernel's version"
        )
    return Check("shared memory", "ok", "memfd, opened through /proc/<pid>/fd")


def single_copy(proc=Path("/proc")):
    """Whether a process of the user may read another's memory: large messages then take one copy instead of two."""
    secret = os.urandom(16)
    held = ctypes.create_string_buffer(secret, len(secret))
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, PTRACER_ANY, 0, 0, 0)
    arguments = [str(number) for number in (os.getpid(), ctypes.addressof(held), len(secret))]
    command = [sys.executable, "-c", _READER, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=READ_PEER_SECONDS)
    except subprocess.TimeoutExpired:
        reason = f"no answer in {READ_PEER_SECONDS} s"
    else:
        if done.returncode == 0 and done.stdout == secret:
            return Check("single copy", "ok", "process_vm_readv reads a peer's memory")
        known = done.returncode in errno.errorcode
        reason = os.strerror(done.returncode) if known else f"exit status {done.returncode}"
    said = f"process_vm_readv: {reason}; large messages take two copies"
    return Check("single copy", "warn", said, _ptrace_advice(proc))


def _ptrace_advice(proc):
    try:
        scope = int((proc / "sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        scope = 0
    if scope:
        return f"kernel.yama.ptrace_scope is {scope}; as root: sysctl kernel.yama.ptrace_scope=0"
    return "in a container, allow process_vm_readv: --cap-add SYS_PTRACE, or a seccomp profile that has it"


def futex():
    """Whether a waiting rank can sleep on a word of shared memory."""
    number = SYS_FUTEX.get(platform.machine())
    if number is None:
        return Check(
            "futex", "warn", f"not checked on {platform.machine()}", "run the tests on this machine: make test"
        )
    libc = ctypes.CDLL(None, use_errno=True)
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        word = ctypes.c_uint32.from_buffer(page)
        woken = libc.syscall(ctypes.c_long(number), ctypes.byref(word), FUTEX_WAKE, 1, None, None, 0)
        reason = os.strerror(ctypes.get_errno())
        del word  # the page cannot be unmapped while something points into it
    if woken != 0:
        return Check("futex", "fail", f"futex refused: {reason}", "allow futex in the container's seccomp profile")
    return Check("futex", "ok", "a waiting rank sleeps on shared memory")


def cpu_quota(cgroup=Path("/sys/fs/cgroup/cpu.max")):
    """Cores' worth of time that the control group grants, a float; None without a limit. Source: cgroup-v2, cpu.max."""
    try:
        quota, period = cgroup.read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def enough_cores(nranks, cores, quota):
    """Whether each rank has a core to itself."""
    usable = len(cores) if quota is None else min(len(cores), quota)
    limit = f" (control group: {quota:g})" if quota is not None and quota < len(cores) else ""
    has = f"{plural(nranks, 'rank')} on {plural(len(cores), 'core')}{limit}"
    if nranks <= usable:
        return Check("cores", "ok", has)
    return Check(
        "cores",
        "warn",
        f"{has}: ranks take turns on a core, so small messages are slower",
        "start fewer ranks, or let them use more cores (mpirun --bind-to none)",
    )
