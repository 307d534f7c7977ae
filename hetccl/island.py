"""How the ranks of an island make their vendor's communicator: together, or none of them.

Whatever is wrong on one rank is told to all before any of them waits in the vendor's library, which would not say what
it waits for.
"""

import operator
import time
from typing import NamedTuple

from hetccl import _vendor, config, vendors
from hetccl.errors import CommTimeout, HetcclError, PeerError

log = config.LOGGER

# Between two rounds in which the ranks tell each other how far the library is: how late they hear that one has failed.
ROUND_S = 1.0
# What may go wrong with libraries, devices and what they are asked for; anything else is a fault of hetccl.
TROUBLES = (HetcclError, OSError, TypeError, ValueError, MemoryError)


class Card(NamedTuple):
    """What a rank tells the others of itself. trouble: the exception that keeps it from taking part, or None."""

    trouble: object = None
    vendor: str = ""
    machine: str = ""
    device: int = 0
    pci: str = ""
    arch: str = ""
    runtime: str = ""
    ccl: str = ""
    version: str = ""


def open_island(vendor, device, rank, size, members, settings, gather, call, ranks=None):
    """Make the vendor's communicator of an island. Collective over its ranks.

    vendor   : "nvidia" | "amd" | "host"
    device   : whole number, as the user gave it: index of this rank's device in the vendor's runtime
    rank     : int, of the island, of `size`
    members  : sequence of topology.Member, one per rank of the island
    settings : config.Config
    gather   : function value -> list of every rank's, collective over the island, with a time-out
    call     : str, what the user called, for errors
    ranks    : sequence of int, how errors shall name the island's ranks; None: as they are
    Returns  : _vendor.VendorComm
    Blocks   : until all ranks have come
    Raises   : the same on all ranks: TypeError, ValueError (device), LibraryNotFound, GpuError, HetcclError (the ranks
               do not fit together), NcclError and the like, CommTimeout, PeerError; `.peer`: the ranks in trouble
    """
    names = range(size) if ranks is None else ranks
    runtime, ccl, card = _describe(vendor, device, members[rank], settings)
    cards = gather(card)
    _raise_any([card.trouble for card in cards], names, call)
    _check_vendors(cards, names, call)
    _check_devices(cards, names, call)
    _check_versions(cards, names, call)
    unique_id = _agree_on_id(ccl, rank, gather, names, call)
    peers = [
        (names[other], member.pid)
        for other, member in enumerate(members)
        if other != rank and member.shares_memory(members[rank])
    ]
    meaning = float8([card.arch for card in cards])

    def make():
        return _vendor.VendorComm(
            ccl, runtime, card.device, size, rank, unique_id, settings.timeout, peers, meaning, waits=False
        )

    comm = _init(make, settings.timeout, gather, names, call)
    log.info(
        "%s: %s %s, rank %d of %d on device %d (%s)", call, card.ccl, card.version, rank, size, card.device, card.arch
    )
    return comm


def float8(archs):
    """What float8's bits mean on devices: "ocp", "fnuz" (no infinities, no negative zero), or "mixed".

    archs  : sequence of str, "sm_90", "gfx942"
    Source : rccl.h: FNUZ on every architecture but gfx950 and gfx12
    """
    meanings = {
        "fnuz" if arch.startswith("gfx") and not arch.startswith(("gfx950", "gfx12")) else "ocp" for arch in archs
    }
    return meanings.pop() if len(meanings) == 1 else "mixed"


def _describe(vendor, device, member, settings):
    """(runtime, CCL, Card of this rank)."""
    try:
        if not hasattr(device, "__index__"):
            raise TypeError(f"device: expected a whole number, got {type(device).__name__}")
        device = operator.index(device)
        runtime = vendors.open_runtime(vendor, settings)
        ccl = vendors.open_ccl(vendor, settings)
        pci, arch = "", ""
        if vendor != "host":
            count = runtime.device_count()
            if not 0 <= device < count:
                raise ValueError(f"device: {device} is none of the {count} that this process can see")
            pci, arch = runtime.device_pci(device), runtime.device_arch(device)
    except TROUBLES as error:
        return None, None, Card(error, vendor)
    card = Card(None, vendor, member.machine, device, pci, arch, runtime.version, ccl.name, ccl.version)
    return runtime, ccl, card


def _agree_on_id(ccl, rank, gather, names, call):
    """The id that the first rank makes. When this returns, all ranks have it, and none is in the library yet."""
    unique_id, trouble = b"", None
    if rank == 0:
        try:
            unique_id = ccl.unique_id()
        except TROUBLES as error:
            trouble = error
    answers = gather((trouble, unique_id))
    _raise_any([answer[0] for answer in answers], names, call)
    gather(None)
    return answers[0][1]


def _init(make, timeout_s, gather, names, call):
    """Let the library connect the ranks, until all are ready or one has failed: then none keeps a communicator."""
    deadline = time.monotonic() + timeout_s
    comm, trouble, is_ready = None, None, False
    try:
        while True:
            try:
                comm = comm or make()
                is_ready = is_ready or comm.is_ready(ROUND_S)
                if not is_ready and time.monotonic() > deadline:
                    raise CommTimeout(
                        f"{comm.ccl.name} has been connecting the ranks for {timeout_s:g} s (HETCCL_TIMEOUT)"
                    )
            except TROUBLES as error:
                trouble = error
            outcomes = gather((trouble, is_ready))
            _raise_any([outcome[0] for outcome in outcomes], names, call)
            if all(outcome[1] for outcome in outcomes):
                return comm
    except BaseException:
        if comm is not None:
            comm.abort()
            comm.close()
        raise


def _raise_any(troubles, names, call):
    """Raise what ranks have met, of the class of the first, with all of them named."""
    met = [(name, error) for name, error in zip(names, troubles) if error is not None]
    if not met:
        return
    peers = tuple(name for name, _ in met)
    texts = [f"rank {name}: {str(error).removeprefix('Comm: ')}" for name, error in met]
    message = f"{call}: {'; '.join(texts)}"
    first = met[0][1]
    if isinstance(first, HetcclError):
        at_fault = first.peer if isinstance(first, PeerError) else peers
        raise type(first)(message, call=call, code=first.code, peer=at_fault)
    for kind in (TypeError, ValueError):
        if isinstance(first, kind):
            raise kind(message)
    raise HetcclError(message, call=call, peer=peers)


def _group(cards, names, key):
    """{key of a card: the ranks that have it}."""
    groups = {}
    for name, card in zip(names, cards):
        groups.setdefault(key(card), []).append(name)
    return groups


def _listed(groups):
    return ", ".join(f"{what} on ranks {who}" for what, who in groups.items())


def _check_vendors(cards, names, call):
    groups = _group(cards, names, lambda card: card.vendor)
    if len(groups) > 1:
        raise HetcclError(
            f"{call}: one island has devices of several vendors, which no vendor's library joins: {_listed(groups)}",
            call=call,
            peer=tuple(names),
        )


def _check_devices(cards, names, call):
    groups = _group(cards, names, lambda card: (card.machine, card.pci))
    shared = {pci: who for (_, pci), who in groups.items() if pci and len(who) > 1}
    if shared:
        where = "; ".join(f"ranks {who} use the GPU at {pci}" for pci, who in shared.items())
        raise HetcclError(
            f"{call}: {where}. {cards[0].ccl} needs one GPU per rank: let each rank see or choose its own "
            "(CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES by its local rank, or device=)",
            call=call,
            peer=tuple(name for who in shared.values() for name in who),
        )


def _check_versions(cards, names, call):
    groups = _group(cards, names, lambda card: ".".join(card.version.split(".")[:2]))
    if len(groups) > 1:
        exact = _group(cards, names, lambda card: f"{card.ccl} {card.version}")
        raise HetcclError(
            f"{call}: the ranks of one island need one release of {cards[0].ccl}: {_listed(exact)}",
            call=call,
            peer=tuple(names),
        )
