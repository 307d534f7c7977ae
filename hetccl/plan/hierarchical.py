"""Algorithms for islands: stage 0 inside the island, stage 1 across, stage 2 inside again.

Each generator writes one rank's program: (layout, builder, split) -> None. With `split` a unit is cut into one share per
rank of an island, so that every rank takes part in the cross traffic and each island sends the least it can; without,
one rank handles a unit whole: fewest messages and rounds, for small ones. A single island is a flat algorithm: there is
no stage 1.

Inside an island the stages are sends and reduces of our own ("flat") or calls of the vendor CCL ("vendor").
Across, reductions take the islands in order, so that all ranks get bitwise equal results.
"""

from .layout import cut, pieces
from .steps import Buf, Peer

IN, OUT, SCRATCH = Buf.IN, Buf.OUT, Buf.SCRATCH


# Inside an island.


def reduce_to_owners(layout, b, stage, target, source, shares, final=False):
    """Reduce a unit of every member; each owner gets its share. target, source: (buf, unit)."""
    me = layout.rank
    if layout.inner == "vendor":
        mine = next(((lo, hi) for owner, lo, hi in shares if owner == me), None)
        op, root = ("reduce_scatter", -1) if len(shares) > 1 else ("reduce", shares[0][0])
        b.vendor(stage, op, (*target, *mine) if mine else None, (*source, *layout.whole), layout.island, root, final)
        return
    by_owner = {owner: (lo, hi) for owner, lo, hi in shares}
    for peer in layout.mates():
        if peer in by_owner:
            b.send(stage, (*source, *by_owner[peer]), peer)
    if me in by_owner:
        mine = by_owner[me]
        operands = [(*source, *mine) if rank == me else Peer(rank) for rank in layout.island]
        b.reduce(stage, (*target, *mine), operands, final)


def spread_from_owners(layout, b, stage, place, shares):
    """Give every member all shares of a unit. place: (buf, unit), holding the owner's share before, all after."""
    me = layout.rank
    if len(layout.island) == 1:
        return
    if layout.inner == "vendor":
        source = next(((*place, lo, hi) for owner, lo, hi in shares if owner == me), None)
        if len(shares) > 1:
            b.vendor(stage, "allgather", (*place, *layout.whole), source, layout.island)
        else:
            target = None if source else (*place, *layout.whole)
            b.vendor(stage, "broadcast", target, source, layout.island, shares[0][0])
        return
    for owner, lo, hi in shares:
        if owner == me:
            for peer in layout.mates():
                b.send(stage, (*place, lo, hi), peer)
    for owner, lo, hi in shares:
        if owner != me:
            b.recv(stage, (*place, lo, hi), owner)


# Across islands, and the whole collectives.


def allreduce(layout, b, split):
    """In-island reduce-scatter, exchange of each share with its owners in the other islands, in-island all-gather."""
    if not split:
        return allreduce_small(layout, b)
    shares = layout.shares(layout.mine)
    # In an exchange of two the partial sum is still being read while the result is written; with more islands, or
    # one, each part has a single owner, and the sum can stay in place.
    partial = (SCRATCH, 0) if layout.count == 2 else (OUT, 0)
    if len(layout.island) > 1:
        reduce_to_owners(layout, b, 0, partial, (IN, 0), shares, final=layout.count == 1)
    elif layout.count == 2:
        b.copy(0, (*partial, *layout.whole), (IN, 0, *layout.whole))
    else:
        partial = (IN, 0)
    mine = [piece for piece in pieces([layout.shares(i) for i in range(layout.count)]) if layout.rank in piece[2]]
    if layout.count == 2:
        exchange(layout, b, partial, mine)
    elif layout.count > 2:
        reduce_across(layout, b, partial, mine)
    spread_from_owners(layout, b, 2, (OUT, 0), shares)


def exchange(layout, b, partial, mine):
    """Two islands: the two owners of a piece send each other their sums; both reduce, in the order of the islands."""
    me = layout.rank
    for lo, hi, owners in mine:
        b.send(1, (*partial, lo, hi), owners[1 - layout.mine])
    for lo, hi, owners in mine:
        operands = [(*partial, lo, hi) if owner == me else Peer(owner) for owner in owners]
        b.reduce(1, (OUT, 0, lo, hi), operands, final=True)


def reduce_across(layout, b, partial, mine):
    """Three or more islands: a reduce-scatter and an all-gather of each piece among its owners."""
    me, parts = layout.rank, {lo: cut(lo, hi, layout.count) for lo, hi, _ in mine}
    for lo, _, owners in mine:
        for i in layout.others():
            b.send(1, (*partial, *parts[lo][i]), owners[i])
    for lo, _, owners in mine:
        part = parts[lo][layout.mine]
        operands = [(*partial, *part) if owner == me else Peer(owner) for owner in owners]
        b.reduce(1, (OUT, 0, *part), operands, final=True)
        for i in layout.others():
            b.send(1, (OUT, 0, *part), owners[i])
    for lo, _, owners in mine:
        for i in layout.others():
            b.recv(1, (OUT, 0, *parts[lo][i]), owners[i])


def allreduce_small(layout, b):
    """Every rank reduces its island's data, then exchanges the sum with one rank of each other island: two rounds."""
    me, whole, total = layout.rank, layout.whole, (SCRATCH, 0, *layout.whole)
    alone = len(layout.island) == 1
    if alone:
        b.copy(0, total, (IN, 0, *whole))
    elif layout.inner == "vendor":
        b.vendor(0, "allreduce", total, (IN, 0, *whole), layout.island)
    else:
        for peer in layout.mates():
            b.send(0, (IN, 0, *whole), peer)
        b.reduce(0, total, [(IN, 0, *whole) if rank == me else Peer(rank) for rank in layout.island], False)
    for i in layout.others():
        for peer in served(layout, i):
            b.send(1, total, peer)
    operands = [total if i == layout.mine else Peer(server(layout, i)) for i in range(layout.count)]
    b.reduce(1, (OUT, 0, *whole), operands, final=True)


def server(layout, i):
    """Return the rank of island i that sends its island's data to this rank."""
    return layout.islands[i][layout.index[layout.rank] % len(layout.islands[i])]


def served(layout, i):
    """Return the ranks of island i to which this rank sends its island's data."""
    return layout.islands[i][layout.index[layout.rank] :: len(layout.island)]


def bcast(layout, b, split):
    """The root's island gets one share per rank, the shares cross, and each island puts them together."""
    home = layout.home[layout.root]
    whole = layout.whole
    place = (IN, 0) if layout.rank == layout.root else (OUT, 0)
    if not split:
        return bcast_small(layout, b, home, place)
    raise NotImplementedError


def bcast_small(layout, b, home, place):
    """The root sends to its island and to one rank of each other island, which passes it on."""
    everything = (*place, *layout.whole)
    root_share = ((layout.root, *layout.whole),)
    if layout.mine == home:
        spread_from_owners(layout, b, 0, place, root_share)
        if layout.rank == layout.root:
            for i in layout.others():
                b.send(1, everything, layout.shares(i, layout.root)[0][0])
        return
    shares = layout.shares(layout.mine, layout.root)
    if layout.rank == shares[0][0]:
        b.recv(1, everything, layout.root)
    spread_from_owners(layout, b, 2, place, shares)
