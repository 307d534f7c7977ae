"""doctor's part about versions: what each rank runs, and what differs between ranks that should be the same."""

import platform

import numpy as np

from hetccl import topology
from hetccl._version import VERSION
from hetccl.cli import job
from hetccl.cli.host import Check

# What to do about a version that differs; a difference of the others is told, and is no fault.
ADVICE = {
    "hetccl": "install the same version for all ranks: hetccl.Comm refuses others",
    "Python": "let all ranks run one environment",
    "NumPy": "let all ranks run one environment",
    "mpi4py": "let all ranks run one environment",
    "MPI": "let all ranks load the same MPI library: LD_LIBRARY_PATH or the module of one host is another's",
}
FATAL = ("hetccl",)


def of_this_rank(sight, mpi):
    """{name: version}, of what this rank has.

    sight : of hetccl.cli.gpu     mpi : job.MpiFound or None
    """
    found = {"hetccl": VERSION, "Python": platform.python_version(), "NumPy": np.__version__}
    if mpi is not None:
        found |= {"mpi4py": mpi.mpi4py, "MPI": mpi.library}
    found["kernel"] = f"{platform.system()} {platform.release()}"
    found |= kernel_drivers()
    for opened in (sight.runtime, sight.ccl):
        if opened is not None and not opened.problem:
            found[opened.name] = opened.version or "unknown"
    return found


def kernel_drivers(roots=topology.ROOTS):
    """{name: version} of the GPUs' kernel drivers that tell one."""
    files = {"NVIDIA kernel driver": "nvidia", "AMD kernel driver": "amdgpu"}
    found = {}
    for name, module in files.items():
        try:
            found[name] = (roots.sys / "module" / module / "version").read_text().strip()
        except OSError:
            continue  # no such driver, or one that came with the kernel and has no version of its own
    return found


def differences(everyone):
    """{name: {version: ranks}} of what is not the same on all ranks that have it. everyone : of_this_rank() of each"""
    ranks = {}
    for rank, found in enumerate(everyone):
        for name, version in found.items():
            ranks.setdefault(name, {}).setdefault(version, []).append(rank)
    return {name: versions for name, versions in ranks.items() if len(versions) > 1}


def job_checks(everyone):
    """A line about what is the same, and one for each that differs."""
    differ = differences(everyone)
    same = {name: version for found in everyone for name, version in found.items() if name not in differ}
    yield Check("versions", "ok", ", ".join(f"{name} {version}" for name, version in same.items()))
    for name, versions in differ.items():
        each = "; ".join(f"{version} on {job.ranks_text(ranks)}" for version, ranks in versions.items())
        status = "fail" if name in FATAL else "warn" if name in ADVICE else "ok"
        yield Check("versions", status, f"{name} differs: {each}", ADVICE.get(name, ""))
