"""oneCCL for host buffers: the environment that it reads, who may share a communicator, and what doctor tells of it.

Nothing here runs unless HETCCL_HOST_CCL=oneccl asks for it.
"""

from pathlib import Path
from typing import NamedTuple

from hetccl import _oneccl
from hetccl._dl import Library
from hetccl.config import LOGGER, offer
from hetccl.errors import LibraryNotFound
from hetccl.libraries import wheel_folders

# The processes of this process's first communicator, as (machine, pid, start time); empty: it has had none.
_reach = set()


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


def prepare(members, rank, settings, gather):
    """Make ready for a communicator of oneCCL, or agree to do without. Collective.

    members  : sequence of topology.Member, one per rank
    settings : hetccl.config.Config
    gather   : function value -> list of every rank's, collective, with a time-out
    Returns  : bool, the same on all ranks; False: oneCCL cannot serve these ranks together, which is logged
    """
    problem = unfit(members, gather(frozenset(_reach)))
    if problem:
        if rank == 0:
            LOGGER.warning("host buffers of this communicator are served by hetccl itself, not by oneCCL: %s", problem)
        return False
    if not _reach:
        _reach.update(map(_identity, members))
        try:
            library = Library.open(_oneccl.SONAMES, override=settings.oneccl_lib, folders=wheel_folders())
        except LibraryNotFound:
            return True  # whoever opens it next tells all ranks
        offer(environment(Path(library.path).parent, rank, len(members)))
    return True


def environment(folder, rank, nranks):
    """The variables that oneCCL and its libfabric need for ranks of one host: {name: text}.

    folder : Path, where libccl.so.2 is; a libfabric there, or in libfabric below it, comes before the system's
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
    for place in (folder / "libfabric", folder):
        if (place / "libfabric.so.1").exists():
            wanted["CCL_OFI_LIBRARY_PATH"] = str(place / "libfabric.so.1")
            wanted["FI_PROVIDER_PATH"] = str(place)
            break
    return wanted


def unfit(members, reaches):
    """Why oneCCL cannot serve these ranks together; "" if it can. All ranks come to the same answer.

    members : sequence of Member, of the ranks
    reaches : of each rank, the processes of its first communicator, empty if it has had none
    """
    if len({member.machine for member in members}) > 1:
        return "the ranks are not all on one host"
    begun = [rank for rank, reach in enumerate(reaches) if reach]
    # oneCCL 2022.2 sets its shared memory up for the ranks of the first communicator; another rank in a later one
    # crashes it, and ranks of which some have begun and some not wait for ever.
    if any(not reaches[rank].issuperset(map(_identity, members)) for rank in begun) or 0 < len(begun) < len(members):
        return (
            f"ranks {begun} began it in a communicator without some of these ranks, and it reaches no others; with a "
            "communicator of all ranks built first, it reaches all"
        )
    return ""


def _identity(member):
    return member.machine, member.pid, member.started
