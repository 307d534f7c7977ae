"""oneCCL for host buffers: the environment that it reads, who may share a communicator, and what doctor tells of it.

Nothing here runs unless HETCCL_HOST_CCL=oneccl asks for it.
"""

import os
from pathlib import Path
from typing import NamedTuple

from hetccl import _oneccl
from hetccl._dl import Library
from hetccl.errors import LibraryNotFound
from hetccl.libraries import wheel_folders

# The processes of this process's first communicator, as (machine, pid, start time); None: it has none yet.
_reach = None


class HostCcl(NamedTuple):
    """Who serves collectives of host buffers inside an island.

    name    : "hetccl" | "oneCCL"
    version : str, of oneCCL; "" for hetccl's own
    path    : str, the file that was found; "" for hetccl's own
    problem : str, why what the user asked for cannot be had; "" if it can
    """

    name: str
    version: str = ""
    path: str = ""
    problem: str = ""


def describe(settings):
    """Who serves host buffers, and from where; opens oneCCL if it was asked for, and makes no other call of it.

    settings : hetccl.config.Config
    Returns  : HostCcl
    """
    if settings.host_ccl != "oneccl":
        return HostCcl("hetccl")
    try:
        ccl = _oneccl.open(settings.oneccl_lib, wheel_folders())
    except LibraryNotFound as error:
        return HostCcl("oneCCL", problem=str(error))
    return HostCcl("oneCCL", ccl.version, ccl.library.path)


def open(settings, rank, nranks):
    """Open oneCCL and set the environment that it reads at its first call; what the user has set stays.

    settings     : hetccl.config.Config
    rank, nranks : of the first island, all of whose ranks are on this host
    Returns      : Ccl
    Raises       : LibraryNotFound
    """
    library = Library.open(_oneccl.SONAMES, override=settings.oneccl_lib, folders=wheel_folders())
    for name, value in environment(Path(library.path).parent, rank, nranks).items():
        os.environ.setdefault(name, value)
    return _oneccl.open(settings.oneccl_lib, wheel_folders())


def environment(folder, rank, nranks):
    """The variables that oneCCL and its libfabric need for ranks of one host: {name: text}.

    folder : Path, where libccl.so.2 is; a libfabric there comes before the system's
    Source : oneCCL's guide, "Environment variables"; fabric(7)
    """
    wanted = {
        # MPI's transport would start a second MPI in the process, or hang without its launcher.
        "CCL_ATL_TRANSPORT": "ofi",
        "CCL_PROCESS_LAUNCHER": "none",
        "CCL_LOCAL_RANK": str(rank),
        "CCL_LOCAL_SIZE": str(nranks),
        "CCL_ATL_SHM": "1",
        # The calling thread does the work: a thread of oneCCL's own for it makes small calls a hundred times slower
        # where the ranks have no cores to spare.
        "CCL_WORKER_OFFLOAD": "0",
        "CCL_LOG_LEVEL": "error",
        # Everybody is here, and no other host needs to see the ports.
        "CCL_KVS_IFACE": "lo",
        "FI_TCP_IFACE": "lo",
    }
    fabric = folder / "libfabric.so.1"
    if fabric.exists():
        wanted["CCL_OFI_LIBRARY_PATH"] = str(fabric)
    if any(folder.glob("*-fi.so")):
        wanted["FI_PROVIDER_PATH"] = str(folder)
    return wanted


def reach():
    """What this process tells the others before a communicator is made, for `unfit`; plain strings and ints."""
    return None if _reach is None else sorted(_reach)


def unfit(members, reaches):
    """Why oneCCL cannot serve these ranks together; "" if it can. Every rank comes to the same answer.

    members : sequence of Member, of the ranks
    reaches : what `reach` told on each of them
    """
    wanted = {_identity(member) for member in members}
    if len({member.machine for member in members}) > 1:
        return "the ranks are not all on one host"
    # A communicator with a rank that was not in the process's first one crashes oneCCL 2022.2, if that shared memory.
    outside = [rank for rank, told in enumerate(reaches) if told is not None and not wanted <= {tuple(t) for t in told}]
    if outside:
        return (
            f"on ranks {outside} oneCCL began with a communicator without some of these ranks, and it reaches no others; "
            "build the communicator of all ranks first"
        )
    if any(told is None for told in reaches) and any(told is not None for told in reaches):
        late = [rank for rank, told in enumerate(reaches) if told is None]
        return f"oneCCL has begun on other ranks and not on {late}; build the communicator of all ranks first"
    return ""


def begin(members):
    """Remember these ranks as the process's reach, unless it has one. Call when `unfit` has nothing against them."""
    global _reach
    if _reach is None:
        _reach = frozenset(_identity(member) for member in members)


def _identity(member):
    return member.machine, member.pid, member.started
