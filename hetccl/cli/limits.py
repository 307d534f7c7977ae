"""doctor's part about limits: of the process, of its control group and of the host, against what a job needs."""

import os
import resource
from pathlib import Path

from hetccl import _shm, topology
from hetccl._verbs_errors import memlock_text
from hetccl.cli.host import Check
from hetccl.cli.job import memory_available, plural

# Of a process before it has connected to anybody: Python's, MPI's and a GPU driver's files.
FILES_AT_REST = 256
# Of a rank: hetccl's progress thread, connector, watch and helpers, MPI's, and a pool of NumPy's or the driver's.
THREADS_OF_A_RANK = 32
# NCCL and RCCL keep the buffers between GPUs of a host in /dev/shm; containers have 64 MiB by default.
CCL_SHM_BYTES = 1 << 30
MIB = 1 << 20


def rank_checks(ways, settings, rdma, has_gpu):
    """Limits of this process.

    ways : of hetccl.cli.network     rdma : whether it would use a port, which has a line about locked memory of its own
    """
    yield open_files(ways, settings, resource.getrlimit(resource.RLIMIT_NOFILE))
    if not rdma:
        yield Check("locked memory", "ok", f"{memlock_text()}; not needed here, without an RDMA port")
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        text = f"limited to {soft // MIB} MiB: GPU drivers map far more than they use"
        yield Check("address space", "warn" if has_gpu else "ok", text, "ulimit -v unlimited" if has_gpu else "")


def host_checks(nranks, has_gpu, settings):
    """Limits of this host and control group. nranks : ranks here     has_gpu : whether one of them has a GPU"""
    return [processes(nranks), dev_shm(has_gpu), memory(nranks, settings)]


def open_files(ways, settings, limit):
    """Whether there are descriptors enough for a connection to each rank of other hosts. limit : (soft, hard)"""
    each = {"tcp": 1 + settings.tcp_connections, "verbs": 1}
    needed = FILES_AT_REST + sum(each.get(way["kind"], 0) * len(way["ranks"]) for way in ways)
    soft, hard = (None if value == resource.RLIM_INFINITY else value for value in limit)
    if soft is None or soft >= needed:
        return Check("open files", "ok", f"{soft or 'unlimited'}, and about {needed} are needed")
    advice = f"ulimit -n {needed} before the ranks start"
    if hard is not None and hard < needed:
        advice = (
            f"raise nofile for this user (/etc/security/limits.conf, or the batch system's): the hard limit is {hard}"
        )
    return Check("open files", "warn", f"{soft}, but about {needed} are needed: connections would fail", advice)


def processes(nranks, roots=topology.ROOTS):
    """Whether the ranks of this host can start their threads."""
    needed, name = THREADS_OF_A_RANK * nranks, "processes"
    limits = []
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:
        limits.append((soft - _threads_of_user(roots), f"RLIMIT_NPROC {soft}", "raise it by ulimit -u"))
    top, now = (_number(roots.sys / "fs/cgroup" / file) for file in ("pids.max", "pids.current"))
    if top is not None and now is not None:
        limits.append((top - now, f"the control group's pids.max {top}", "give the container or job more processes"))
    if not limits:
        return Check(name, "ok", "unlimited")
    free, what, advice = min(limits)
    if free >= needed:
        return Check(name, "ok", f"room for {_rounded(free)} more threads ({what})")
    return Check(name, "warn", f"room for {free} more threads ({what}), and {needed} may be needed", advice)


def dev_shm(has_gpu, roots=topology.ROOTS):
    """Whether /dev/shm suffices for those who use it, which hetccl does not."""
    name, who = "/dev/shm", "hetccl does not use it; MPI libraries, NCCL and RCCL do"
    try:
        about = os.statvfs(roots.dev / "shm")
    except OSError as error:
        return Check(name, "warn" if has_gpu else "ok", f"{error.strerror}; {who}", "mount a tmpfs there" * has_gpu)
    total = about.f_blocks * about.f_frsize
    text = f"{total // MIB} MiB; {who}"
    if has_gpu and total < CCL_SHM_BYTES:
        return Check(name, "warn", text, "in a container: --shm-size=1g, or --ipc=host")
    return Check(name, "ok", text)


def memory(nranks, settings):
    """Whether this host's memory holds what the ranks share."""
    try:
        fd = _shm.create(nranks, bytes(_shm.SECRET_BYTES), settings.ring_bytes)
    except ValueError as error:
        return Check("memory", "fail", str(error), "set a smaller one, or unset it")
    except OSError as error:
        return Check("memory", "ok", f"not checked: {error.strerror}")  # the line about shared memory has the fault
    nbytes = os.fstat(fd).st_size
    os.close(fd)
    available = min(filter(None, (memory_available(), _of_group(topology.ROOTS))))
    shared = f"{plural(nranks, 'rank')} of a host share at most {-(-nbytes // MIB)} MiB"
    text = f"about {available / (MIB << 10):.0f} GiB available; {shared}"
    if nbytes > available:
        return Check("memory", "warn", text, "set HETCCL_RING_BYTES lower, or give the job more memory")
    return Check("memory", "ok", text)


def _of_group(roots):
    """Bytes that the control group still grants; None without a limit. Source: cgroup-v2, memory.max."""
    top, now = (_number(roots.sys / "fs/cgroup" / file) for file in ("memory.max", "memory.current"))
    return None if top is None or now is None else max(1, top - now)


def _threads_of_user(roots):
    """Threads of this user's processes."""
    user, count = str(os.getuid()), 0
    for path in roots.proc.glob("[0-9]*/status"):
        try:
            fields = dict(line.partition(":")[::2] for line in path.read_text().splitlines())
            count += int(fields["Threads"]) if fields["Uid"].split()[0] == user else 0
        except (OSError, KeyError):
            continue  # it has ended meanwhile
    return count


def _number(path: Path):
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _rounded(number):
    """Two leading digits: ranks of one host read it at different moments."""
    unit = 10 ** max(0, len(str(number)) - 2)
    return number // unit * unit
