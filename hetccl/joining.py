"""How the ranks of a communicator connect: which of them share memory, which speak over a network, and what they need
to know of each other for it. Together, or none of them.

`gather` is the bootstrap's: it carries every rank's value to all, with a time-out.
"""

import os
from typing import NamedTuple

from hetccl import _board, _shm, config
from hetccl._version import VERSION
from hetccl.errors import HetcclError
from hetccl.net import network as networks
from hetccl.net import paths

log = config.LOGGER

# What keeps a rank from taking part; anything else is a fault of hetccl.
TROUBLES = (OSError, ValueError, MemoryError, HetcclError)
# A rank with another plan, or another idea of whether calls are compared first or of who reaches whom how, would take
# its peers' bytes for something else.
ALIKE = ("algorithm", "check", "host_ccl", "transport", "rails")


class _Card(NamedTuple):
    """What a rank tells the others first. trouble: text, or None; secret: the job's, of rank 0."""

    trouble: object
    version: str
    member: object
    secret: object
    settings: object


class _Offer(NamedTuple):
    """What it tells them next. path: of its segment, for those who share memory; network: its card, or None."""

    trouble: object
    path: object
    network: object


def join(gather, rank, settings, member, trouble):
    """Meet the other ranks and connect to them. Collective.

    gather   : callable, value -> list of every rank's, by rank
    settings : config.Config     member : topology.Member     (None, if trouble says what is wrong on this rank)
    Returns  : (tuple of Member, _board.Board, net.network.Network or None where all ranks share memory)
    Raises   : HetcclError, on all ranks: what is wrong, by rank; CommTimeout (gather)
    """
    secret = os.urandom(_shm.SECRET_BYTES) if rank == 0 else None
    cards = [_Card(*card) for card in gather((trouble, VERSION, member, secret, settings))]
    _raise_if_any(rank, [card.trouble for card in cards])
    _check_alike(cards)
    members, secret = tuple(card.member for card in cards), cards[0].secret
    near = tuple(peer for peer in range(len(cards)) if networks.shares_memory(settings, members, rank, peer))
    board, network = _connect(gather, rank, members, near, secret, settings)
    return members, board, network


def _connect(gather, rank, members, near, secret, settings):
    """near : tuple of int, the ranks that share memory with this one, itself among them."""
    fd = path = network = board = trouble = None
    try:
        try:
            if rank == near[0]:
                fd = _shm.create(len(near), secret, settings.ring_bytes)
                path = f"/proc/{os.getpid()}/fd/{fd}"
            if len(near) < len(members):
                network = networks.Network(rank, members, near, secret, settings)
        except TROUBLES as error:
            trouble = _text(error)
        offers = [_Offer(*offer) for offer in gather((trouble, path, network and network.card))]
        _raise_if_any(rank, [offer.trouble for offer in offers])
        segment = _attach(gather, rank, near, offers[near[0]].path, secret, settings.single_copy == "auto")
        board = _board.Board(segment, rank, len(members), near)
        if network is not None:
            _join_network(gather, rank, network, board, [offer.network for offer in offers])
    except BaseException:
        if network is not None:
            network.close(0.0)
        if board is not None:
            board.close()
        raise
    finally:
        if fd is not None:
            os.close(fd)
    return board, network


def _attach(gather, rank, near, path, secret, single_copy):
    """Map the segment on all ranks or on none."""
    segment, trouble = None, None
    if single_copy:
        _shm.allow_peers_to_read()
    try:
        segment = _shm.Segment(near.index(rank), len(near), path, secret)
    except TROUBLES as error:
        trouble = _text(error)
    try:
        _raise_if_any(rank, gather(trouble))
        refused = [near[place] for place in segment.probe_peers()]
        if refused:
            log.info("rank %d cannot read the memory of ranks %s: large messages take two copies", rank, refused)
        gather(None)
    except HetcclError:
        if segment is not None:
            segment.close()
        raise
    segment.connect(single_copy)
    return segment


def _join_network(gather, rank, network, board, cards):
    trouble, unreached = None, {}
    try:
        unreached = network.choose(cards)
        if not unreached:
            network.join(board)
    except TROUBLES as error:
        trouble = _text(error)
    found = gather((trouble, unreached))
    _raise_if_unreached(rank, [unreached for _, unreached in found])
    _raise_if_any(rank, [trouble for trouble, _ in found])


def _text(error):
    """An error as the other ranks shall read it; hetccl's own say who they are."""
    return str(error) if isinstance(error, HetcclError) else f"{type(error).__name__}: {error}"


def _raise_if_any(rank, troubles):
    named = [(peer, text) for peer, text in enumerate(troubles) if text]
    if named:
        raise HetcclError(
            "Comm: " + "; ".join(f"rank {peer}: {text}" for peer, text in named),
            call="Comm",
            rank=rank,
            peer=tuple(peer for peer, _ in named),
        )


def _raise_if_unreached(rank, everyone):
    ends = tuple(peer for peer, unreached in enumerate(everyone) if unreached)
    if ends:
        said = "\n".join(paths.unreached_lines(everyone))
        raise HetcclError(f"Comm: {said}", call="Comm", rank=rank, peer=ends)


def _check_alike(cards):
    versions = {}
    for rank, card in enumerate(cards):
        versions.setdefault(card.version, []).append(rank)
    if len(versions) > 1:
        raise HetcclError(f"Comm: ranks run different versions of hetccl: {versions}", call="Comm")
    for name in ALIKE:
        choices = {}
        for rank, card in enumerate(cards):
            choices.setdefault(getattr(card.settings, name), []).append(rank)
        if len(choices) > 1:
            ranks = ", ".join(f"{value} on ranks {who}" for value, who in choices.items())
            raise HetcclError(f"Comm: {config.PREFIX}{name.upper()} differs: {ranks}", call="Comm")
