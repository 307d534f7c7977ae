"""Algorithms for islands: stage 0 inside the island, stage 1 across, stage 2 inside again.

Each generator writes one rank's program: (layout, builder, split) -> None, for two ranks or more. With `split` a unit
is cut into one share per rank of an island, so that every rank takes part in the cross traffic and each island sends
the least it can; without, one rank handles a unit whole: fewest messages and rounds, for small ones. A single island
has no stage 1; that is how the flat direct and split algorithms are made.

Inside an island the stages are sends and reduces of our own ("flat") or calls of the vendor CCL ("vendor"). Across,
reductions take the islands in order, so that all ranks get bitwise equal results.
"""

from itertools import count

from . import flat
from .islands import partial_sums, reduce_to_owners, spread_from_owners
from .layout import after, cut, pieces
from .steps import Buf, Peer

IN, OUT, SCRATCH = Buf.IN, Buf.OUT, Buf.SCRATCH


def allreduce(layout, b, split):
    """In-island reduce-scatter, exchange of each share with its owners in the other islands, in-island all-gather."""
    if not split:
        _allreduce_small(layout, b)
        return
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
    mine = [piece for piece in pieces(map(layout.shares, range(layout.count))) if layout.rank in piece[2]]
    if layout.count == 2:
        _exchange(layout, b, partial, mine)
    elif layout.count > 2:
        _reduce_across(layout, b, partial, mine)
    spread_from_owners(layout, b, 2, (OUT, 0), shares)


def _exchange(layout, b, partial, mine):
    """Two islands: the two owners of a piece send each other their sums; both reduce, in the order of the islands."""
    me = layout.rank
    for lo, hi, owners in mine:
        b.send(1, (*partial, lo, hi), owners[1 - layout.mine])
    for lo, hi, owners in mine:
        operands = [(*partial, lo, hi) if owner == me else Peer(owner) for owner in owners]
        b.reduce(1, (OUT, 0, lo, hi), operands, final=True)


def _reduce_across(layout, b, partial, mine):
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
        for i in reversed(layout.others()):
            b.recv(1, (OUT, 0, *parts[lo][i]), owners[i])


def _allreduce_small(layout, b):
    """Every rank reduces its island's data, then exchanges the sum with one rank of each other island: two rounds."""
    me, whole, total = layout.rank, layout.whole, (SCRATCH, 0, *layout.whole)
    if layout.count == 1 and layout.inner == "vendor":
        b.vendor(0, "allreduce", (OUT, 0, *whole), (IN, 0, *whole), layout.island, final=True)
        return
    if layout.count == 1:
        flat.allreduce_direct(layout, b)
        return
    if len(layout.island) == 1:
        b.copy(0, total, (IN, 0, *whole))
    elif layout.inner == "vendor":
        b.vendor(0, "allreduce", total, (IN, 0, *whole), layout.island)
    else:
        for peer in layout.mates():
            b.send(0, (IN, 0, *whole), peer)
        b.reduce(0, total, [(IN, 0, *whole) if rank == me else Peer(rank) for rank in layout.island], final=False)
    _serve_others(layout, b, total)
    operands = [total if i == layout.mine else Peer(_server(layout, i)) for i in range(layout.count)]
    b.reduce(1, (OUT, 0, *whole), operands, final=True)


def _serve_others(layout, b, region, arrived=()):
    """Send a region to the ranks of the other islands that count on this rank for its island's data."""
    for i in layout.others():
        for peer in layout.islands[i][layout.index[layout.rank] :: len(layout.island)]:
            b.send(1, region, peer, arrived)


def _server(layout, i):
    """Return the rank of island i that serves this rank."""
    return layout.islands[i][layout.index[layout.rank] % len(layout.islands[i])]


def reduce(layout, b, split):
    """Each island reduces to its owners; theirs meet at the owners in the root's island, which send to the root."""
    me, root, home = layout.rank, layout.root, layout.home[layout.root]
    shares = [layout.shares(i, None if split else root) for i in range(layout.count)]
    if not split:
        shares[home] = ((root, *layout.whole),)
    place = (OUT, 0) if me == root else (SCRATCH, 0)
    partial = partial_sums(layout, b, place, 0, shares[layout.mine], final=layout.count == 1)
    if layout.count > 1:
        for lo, hi, owners in pieces(shares):
            if me not in owners:
                continue
            if layout.mine != home:
                b.send(1, (*partial, lo, hi), owners[home])
                continue
            operands = [(*partial, lo, hi) if owner == me else Peer(owner) for owner in owners]
            b.reduce(1, (*place, lo, hi), operands, final=True)
    if split and layout.mine == home:
        _gather_to_root(layout, b, place, shares[home])


def _gather_to_root(layout, b, place, shares):
    """Bring the shares of the root's island together at the root."""
    me, root = layout.rank, layout.root
    if layout.inner == "vendor":
        spread_from_owners(layout, b, 2, place, shares)
        return
    for owner, lo, hi in shares:
        if owner == me != root:
            b.send(2, (*place, lo, hi), root)
        elif owner != me == root:
            b.recv(2, (*place, lo, hi), owner)


def bcast(layout, b, split):
    """The root's island gets one share per rank, the shares cross, and each island puts them together."""
    home = layout.home[layout.root]
    place = (IN, 0) if layout.rank == layout.root else (OUT, 0)
    if not split:
        _bcast_small(layout, b, home, place)
        return
    shares = layout.shares(layout.mine)
    mine = [piece for piece in pieces(map(layout.shares, range(layout.count))) if layout.rank in piece[2]]
    if layout.mine != home:
        _bcast_arrive(layout, b, home, mine)
        spread_from_owners(layout, b, 2, place, shares)
        return
    if layout.inner == "vendor":
        spread_from_owners(layout, b, 0, place, ((layout.root, *layout.whole),))
    else:
        _scatter_from_root(layout, b, place, shares)
    for lo, hi, owners in mine if layout.count > 1 else ():
        for i, part in zip(layout.others(), cut(lo, hi, layout.count - 1)):
            b.send(1, (*place, *part), owners[i])
    if layout.inner == "flat":
        spread_from_owners(layout, b, 2, place, shares, served=layout.root)


def _scatter_from_root(layout, b, place, shares):
    """Give each rank of the root's island its share."""
    by_owner = {owner: (lo, hi) for owner, lo, hi in shares}
    if layout.rank != layout.root:
        b.recv(0, (*place, *by_owner[layout.rank]), layout.root)
        return
    for peer in layout.mates():
        b.send(0, (*place, *by_owner[peer]), peer)


def _bcast_arrive(layout, b, home, mine):
    """An island that is not the root's gets one part of each piece, and exchanges it with the others of its kind."""
    arriving = after(range(layout.count), home)  # as layout.others() at home
    parts = {lo: dict(zip(arriving, cut(lo, hi, layout.count - 1))) for lo, hi, _ in mine}
    fellows = [i for i in layout.others() if i != home]
    for lo, _, owners in mine:
        part = parts[lo][layout.mine]
        b.recv(1, (OUT, 0, *part), owners[home])
        for i in fellows:
            b.send(1, (OUT, 0, *part), owners[i])
    for lo, _, owners in mine:
        for i in reversed(fellows):
            b.recv(1, (OUT, 0, *parts[lo][i]), owners[i])


def _bcast_small(layout, b, home, place):
    """The root sends to its island and to one rank of each other island, which passes it on."""
    everything = (*place, *layout.whole)
    if layout.mine == home:
        spread_from_owners(layout, b, 0, place, ((layout.root, *layout.whole),))
        if layout.rank == layout.root:
            for i in layout.others():
                b.send(1, everything, layout.shares(i, layout.root)[0][0])
        return
    shares = layout.shares(layout.mine, layout.root)
    if layout.rank == shares[0][0]:
        b.recv(1, everything, layout.root)
    spread_from_owners(layout, b, 2, place, shares)


def allgather(layout, b, split):
    """Ranks send to their island and, in shares, once to every other island, which puts the shares together."""
    me, whole = layout.rank, layout.whole
    b.copy(0, (OUT, me, *whole), (IN, 0, *whole))
    if layout.inner == "vendor":
        for rank in layout.island if len(layout.island) > 1 else ():
            place = (IN, 0) if rank == me else (OUT, rank)
            spread_from_owners(layout, b, 0, place, ((rank, *whole),))
    else:
        for peer in layout.mates():
            b.send(0, (IN, 0, *whole), peer)
        for peer in reversed(layout.mates()):
            b.recv(0, (OUT, peer, *whole), peer)
    arriving = {rank: layout.shares(layout.mine, None if split else layout.index[rank]) for rank in layout.foreign()}
    for i in layout.others():
        for owner, lo, hi in layout.shares(i, None if split else layout.index[me]):
            b.send(1, (IN, 0, lo, hi), owner)
    for rank in reversed(layout.foreign()):
        for owner, lo, hi in arriving[rank]:
            if owner == me:
                b.recv(1, (OUT, rank, lo, hi), rank)
    for rank in sorted(arriving):
        spread_from_owners(layout, b, 2, (OUT, rank), arriving[rank])


def reduce_scatter_block(layout, b, split):
    """Each island reduces every rank's unit; the sums meet at that rank, in the order of the islands."""
    me, whole, alone = layout.rank, layout.whole, len(layout.island) == 1
    members = layout.island if layout.inner == "vendor" else [*layout.mates(), me]
    partial = {me: (IN, me) if alone else (SCRATCH, 0) if layout.count > 1 else (OUT, 0)}
    b.measure(0, me)
    for rank in () if alone else members:
        reduce_to_owners(layout, b, 0, partial[me], (IN, rank), ((rank, *whole),), final=layout.count == 1)
    if layout.count == 1:
        return
    slots = count(1)
    for rank in sorted(layout.foreign()):
        shares = layout.shares(layout.mine, None if split else layout.index[rank])
        owned = any(owner == me for owner, _, _ in shares)
        place = (SCRATCH, next(slots)) if owned and not alone else None
        if place:
            b.measure(place[1], rank)
        partial[rank] = partial_sums(layout, b, place, rank, shares)
    for rank in layout.foreign():
        for lo, hi, owners in _arrivals(layout, rank, split):
            if me in owners.values():
                b.send(1, (*partial[rank], lo, hi), rank)
    for lo, hi, owners in _arrivals(layout, me, split):
        operands = [(*partial[me], lo, hi) if i == layout.mine else Peer(owners[i]) for i in range(layout.count)]
        b.reduce(1, (OUT, 0, lo, hi), operands, final=True)


def _arrivals(layout, rank, split):
    """Return [(lo, hi, {island: owner})]: the pieces in which the other islands' sums of a rank's unit reach it."""
    islands = [i for i in range(layout.count) if i != layout.home[rank]]
    cuts = pieces([layout.shares(i, None if split else layout.index[rank]) for i in islands])
    return [(lo, hi, dict(zip(islands, owners))) for lo, hi, owners in cuts]


def alltoall(layout, b, in_place):
    """Every pair exchanges its units at once; the vendor CCL, if used, takes the pairs inside the island."""
    me, whole, slots = layout.rank, layout.whole, count()
    if layout.inner == "vendor" and len(layout.island) > 1:
        source = IN
        if in_place:
            source, slots = SCRATCH, count(max(layout.island) + 1)
            for rank in layout.island:
                b.measure(rank, rank)
                b.copy(0, (SCRATCH, rank, *whole), (IN, rank, *whole))
        b.vendor(0, "alltoall", (OUT, 0, *whole), (source, 0, *whole), layout.island)
    else:
        if not in_place:
            b.copy(0, (OUT, me, *whole), (IN, me, *whole))
        _pairs(layout, b, 0, layout.mates(), in_place, slots)
    _pairs(layout, b, 1, layout.foreign(), in_place, slots)


def _pairs(layout, b, stage, peers, in_place, slots):
    """Exchange units with peers. In place, one rank of each pair sends a copy, so that the other can receive."""
    me, whole = layout.rank, layout.whole
    for peer in peers:
        source = (IN, peer, *whole)
        # Which of the two copies alternates, so that each rank copies for about half of its peers.
        if in_place and (me < peer) == bool(me + peer & 1):
            slot = next(slots)
            source = (SCRATCH, slot, *whole)
            b.measure(slot, peer)
            b.copy(stage, source, (IN, peer, *whole))
        b.send(stage, source, peer)
    for peer in reversed(peers):
        b.recv(stage, (OUT, peer, *whole), peer)


def gather(layout, b):
    """Every rank sends to the root; the vendor CCL, if used, takes those of the root's island."""
    me, root, whole = layout.rank, layout.root, layout.whole
    inside = _is_served_by_vendor(layout)
    if inside:
        b.vendor(0, "gather", (OUT, 0, *whole) if me == root else None, (IN, 0, *whole), layout.island, root)
    elif me == root:
        b.copy(0, (OUT, me, *whole), (IN, 0, *whole))
    for stage, peer in _to_root(layout, inside):
        if me == root:
            b.recv(stage, (OUT, peer, *whole), peer)
        else:
            b.send(stage, (IN, 0, *whole), root)


def scatter(layout, b):
    """The root sends to every rank; the vendor CCL, if used, takes those of the root's island."""
    me, root, whole = layout.rank, layout.root, layout.whole
    inside = _is_served_by_vendor(layout)
    if inside:
        b.vendor(0, "scatter", (OUT, 0, *whole), (IN, 0, *whole) if me == root else None, layout.island, root)
    elif me == root:
        b.copy(0, (OUT, 0, *whole), (IN, me, *whole))
    for stage, peer in _to_root(layout, inside):
        if me == root:
            b.send(stage, (IN, peer, *whole), peer)
        else:
            b.recv(stage, (OUT, 0, *whole), root)


def _is_served_by_vendor(layout):
    """Return whether the root reaches this rank, and this rank the root, by the vendor CCL."""
    return layout.inner == "vendor" and len(layout.island) > 1 and layout.root in layout.island


def _to_root(layout, inside):
    """Return [(stage, peer)] of this rank's pairs with the root, without those that the vendor CCL takes."""
    home = layout.home[layout.root]
    peers = after(range(layout.size), layout.root) if layout.rank == layout.root else [layout.rank]
    pairs = [(int(layout.home[peer] != home), peer) for peer in peers]
    return [(stage, peer) for stage, peer in pairs if stage or not inside]


def barrier(layout, b):
    """Tokens inside the island, then to the ranks of other islands that count on this one: two rounds.

    Each token gets a place of its own, so that none waits for another to be taken.
    """
    token, slots, arrived = (IN, 0, *layout.whole), count(), []
    if len(layout.island) > 1 and layout.inner == "vendor":
        arrived.append(b.vendor(0, "allreduce", (OUT, 0, *layout.whole), token, layout.island))
    else:
        for peer in layout.mates():
            b.send(0, token, peer)
        for peer in reversed(layout.mates()):
            arrived.append(b.recv(0, (SCRATCH, next(slots), *layout.whole), peer))
    _serve_others(layout, b, token, arrived)
    for i in layout.others():
        b.recv(1, (SCRATCH, next(slots), *layout.whole), _server(layout, i))
