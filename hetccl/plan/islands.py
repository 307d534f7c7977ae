"""What happens inside an island: sends and reduces of our own, or the vendor CCL. Used by hierarchical.py.

shares: ((owner, lo, hi), ...), one per rank of the island or a single one. A place is (buf, unit).
"""

from .steps import Buf, Peer


def reduce_to_owners(layout, b, stage, target, source, shares, final=False):
    """Reduce the unit `source` of every member; each owner gets its share in `target`."""
    me = layout.rank
    by_owner = {owner: (lo, hi) for owner, lo, hi in shares}
    if layout.inner == "vendor":
        op, root = ("reduce_scatter", -1) if len(shares) > 1 else ("reduce", shares[0][0])
        region = (*target, *by_owner[me]) if me in by_owner else None
        b.vendor(stage, op, region, (*source, *layout.whole), layout.island, root, final and region is not None)
        return
    for peer in layout.mates():
        if peer in by_owner:
            b.send(stage, (*source, *by_owner[peer]), peer)
    if me in by_owner:
        operands = [(*source, *by_owner[me]) if rank == me else Peer(rank) for rank in layout.island]
        b.reduce(stage, (*target, *by_owner[me]), operands, final)


def partial_sums(layout, b, place, unit, shares, final=False):
    """Reduce a unit of IN over the island in stage 0; return the place of this rank's share: IN, if it is alone."""
    if len(layout.island) == 1:
        return (Buf.IN, unit)
    reduce_to_owners(layout, b, 0, place, (Buf.IN, unit), shares, final)
    return place


def spread_from_owners(layout, b, stage, place, shares, served=None):
    """Give every member all shares of a unit; `place` holds the owner's share before, all shares after.

    served : a rank that has everything already (flat only)
    """
    me = layout.rank
    if len(layout.island) == 1:
        return
    by_owner = {owner: (*place, lo, hi) for owner, lo, hi in shares}
    if layout.inner == "vendor":
        everything = (*place, *layout.whole)
        if len(shares) > 1:
            b.vendor(stage, "allgather", everything, by_owner[me], layout.island)
        else:
            target = None if me in by_owner else everything
            b.vendor(stage, "broadcast", target, by_owner.get(me), layout.island, shares[0][0])
        return
    if me in by_owner:
        for peer in layout.mates():
            if peer != served:
                b.send(stage, by_owner[me], peer)
    for peer in reversed(layout.mates()):
        if peer in by_owner and me != served:
            b.recv(stage, by_owner[peer], peer)
