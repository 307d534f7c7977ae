"""Who owns which part of a unit: the cuts that the sizes of the islands make. Used by the generators alone.

Positions in a unit are integers from 0 to `Layout.whole[1]`, a common multiple of all cuts, so that generators compare
and cut without rounding; the builder turns them into the fractions of a Block.
"""

from bisect import bisect_right
from math import lcm


class Layout:
    """The islands of a communicator, seen by one rank.

    islands : tuple of tuples of ranks
    rank    : the rank whose program is made
    root    : root of the collective
    inner   : "flat" or "vendor"
    """

    def __init__(self, islands, rank, root, inner):
        self.islands = islands
        self.rank = rank
        self.root = root
        self.inner = inner
        self.count = len(islands)
        self.size = sum(map(len, islands))
        self.home = {member: i for i, island in enumerate(islands) for member in island}
        self.index = {member: j for island in islands for j, member in enumerate(island)}
        self.mine = self.home[rank]
        self.island = islands[self.mine]
        # A piece of the union of the islands' cuts can be cut again into one part per island, or per other island.
        whole = lcm(*map(len, islands)) * self.count * max(1, self.count - 1)
        self.whole = (0, whole)

    def shares(self, i, key=None):
        """Return ((owner, lo, hi), ...) of a unit in island i: equal parts, or all of it to member number `key`."""
        island = self.islands[i]
        if key is not None:
            return ((island[key % len(island)], *self.whole),)
        step = self.whole[1] // len(island)
        return tuple((owner, j * step, (j + 1) * step) for j, owner in enumerate(island))

    def mates(self):
        """Return the other ranks of this rank's island, the next one first: not all start with the same peer."""
        return after(self.island, self.index[self.rank])

    def others(self):
        """Return the numbers of the other islands, the next one first."""
        return after(range(self.count), self.mine)

    def foreign(self):
        """Return the ranks of other islands, the next in rank order first."""
        everyone = after(range(self.size), self.rank)
        return [peer for peer in everyone if self.home[peer] != self.mine]


def after(ring, position):
    """Return the items of `ring` other than the one at `position`, cyclically from the next one."""
    return [*ring[position + 1 :], *ring[:position]]


def pieces(share_lists):
    """Cut a unit at every border of every list of shares.

    Return [(lo, hi, owners), ...], owners[k] being the owner of the piece in share_lists[k].
    """
    share_lists = list(share_lists)
    borders = sorted({lo for shares in share_lists for _, lo, _ in shares} | {share_lists[0][-1][2]})
    starts = [[lo for _, lo, _ in shares] for shares in share_lists]
    return [
        (lo, hi, tuple(shares[bisect_right(start, lo) - 1][0] for shares, start in zip(share_lists, starts)))
        for lo, hi in zip(borders, borders[1:])
    ]


def cut(lo, hi, parts):
    """Cut [lo, hi) into equal parts; the layout's multiple makes them whole."""
    step = (hi - lo) // parts
    return [(lo + k * step, lo + (k + 1) * step) for k in range(parts)]
