"""Algorithms for one island, or for host ranks that reach each other anyway: every rank is alike.

Each generator writes one rank's program: (layout, builder) -> None. The direct and split algorithms are those of
hierarchical.py with a single island.
"""

from .layout import after
from .steps import Buf, Peer

IN, OUT, SCRATCH = Buf.IN, Buf.OUT, Buf.SCRATCH


def alone(layout, b):
    """One rank: move the data, if they are not there already."""
    b.copy(0, (OUT, 0, *layout.whole), (IN, 0, *layout.whole))


def nothing(layout, b):
    """One rank that has nothing to do."""


def allreduce_direct(layout, b):
    """Everybody sends all to all and reduces island by island: one round, the least latency.

    The sends read a copy, so that the result may be written over IN while a peer still reads.
    """
    everyone, me, whole = range(layout.size), layout.rank, layout.whole
    b.copy(0, (SCRATCH, 0, *whole), (IN, 0, *whole))
    for peer in after(everyone, me):
        b.send(0, (SCRATCH, 0, *whole), peer)
    islands = layout.islands
    if all(len(island) == 1 for island in islands):
        islands = (tuple(everyone),)
    sums = []
    for i, island in enumerate(islands):
        operands = [(IN, 0, *whole) if rank == me else Peer(rank) for rank in island]
        if len(islands) == 1:
            sums = operands
        elif len(operands) == 1:
            sums += operands
        else:
            b.reduce(0, (SCRATCH, 1 + i, *whole), operands, final=False)
            sums.append((SCRATCH, 1 + i, *whole))
    b.reduce(0, (OUT, 0, *whole), sums, final=True)
