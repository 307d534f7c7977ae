"""Algorithms that take all ranks as alike: for one island, or for host ranks that all reach each other.

Each generator writes one rank's program: (layout, builder) -> None, for two ranks or more, but for `alone` and
`nothing`. The direct and split algorithms are those of hierarchical.py with a single island.
"""

from .layout import after, cut
from .steps import Buf, Peer

IN, OUT, SCRATCH = Buf.IN, Buf.OUT, Buf.SCRATCH


def alone(layout, b):
    """One rank: the result is the data."""
    b.copy(0, (OUT, 0, *layout.whole), (IN, 0, *layout.whole))


def nothing(layout, b):
    """One rank that needs nothing done."""


def allreduce_direct(layout, b):
    """Everybody sends all to all and reduces island by island: one round, the least latency.

    The sends read a copy, so that the result may be written over IN while a peer still reads.
    """
    me, whole = layout.rank, layout.whole
    b.copy(0, (SCRATCH, 0, *whole), (IN, 0, *whole))
    for peer in after(range(layout.size), me):
        b.send(0, (SCRATCH, 0, *whole), peer)
    islands = layout.islands
    if all(len(island) == 1 for island in islands):
        islands = (tuple(range(layout.size)),)
    sums = []
    for island in islands:
        operands = [(IN, 0, *whole) if rank == me else Peer(rank) for rank in island]
        if len(islands) > 1 and len(island) > 1:
            total = (SCRATCH, 1 + len(sums), *whole)
            b.reduce(0, total, operands, final=False)
            operands = [total]
        sums += operands
    b.reduce(0, (OUT, 0, *whole), sums, final=True)


def allreduce_recursive_doubling(layout, b):
    """log2(p) exchanges of everything with partners at doubling distance.

    Beyond a power of two, the first ranks pair up: an odd one gives its data to the even one before it and gets the
    result at the end. The lower ranks' sum is always the left operand, so all ranks evaluate one expression.
    """
    me, whole = layout.rank, layout.whole
    rounds = layout.size.bit_length() - 1
    extra = layout.size - (1 << rounds)
    paired = me < 2 * extra
    current = (IN, 0, *whole)
    if paired and me % 2:
        b.send(0, current, me - 1)
        b.recv(0, (OUT, 0, *whole), me - 1)
        return
    if paired:
        current = (SCRATCH, 0, *whole)
        b.reduce(0, current, [(IN, 0, *whole), Peer(me + 1)], final=False)
    elif rounds == 1:  # the only exchange would read IN while it writes OUT
        current = (SCRATCH, 0, *whole)
        b.copy(0, current, (IN, 0, *whole))
    place = me // 2 if paired else me - extra
    for k in range(rounds):
        partner = place ^ 1 << k
        peer = 2 * partner if partner < extra else partner + extra
        last = k == rounds - 1
        target = (OUT, 0, *whole) if last else (SCRATCH, 1 if current[:2] == (SCRATCH, 0) else 0, *whole)
        b.send(0, current, peer)
        b.reduce(0, target, [current, Peer(peer)] if place < partner else [Peer(peer), current], final=last)
        current = target
    if paired:
        b.send(0, current, me + 1)


def allreduce_ring(layout, b):
    """Reduce-scatter and all-gather round a ring of the ranks: each sends 2(p-1)/p of the data, to one neighbour."""
    me, size = layout.rank, layout.size
    parts = cut(*layout.whole, size)
    _ring_reduce(layout, b, lambda c: (IN, 0, *parts[c]), lambda c, t: (OUT, 0, *parts[c]))
    for t in range(size - 1):
        b.send(2, (OUT, 0, *parts[(me - t) % size]), (me + 1) % size)
        b.recv(2, (OUT, 0, *parts[(me - 1 - t) % size]), (me - 1) % size)


def reduce_scatter_block_ring(layout, b):
    """Partial sums travel once round the ring and gain each rank's part; two scratch units alternate."""
    last = layout.size - 2
    _ring_reduce(
        layout,
        b,
        lambda c: (IN, c, *layout.whole),
        lambda c, t: (OUT, 0, *layout.whole) if t == last else (SCRATCH, t % 2, *layout.whole),
    )


def _ring_reduce(layout, b, source, target):
    """Part c starts at rank c+1 and is complete at rank c. source(part), target(part, step): regions."""
    me, size = layout.rank, layout.size
    outgoing = source((me - 1) % size)
    for t in range(size - 1):
        part = (me - 2 - t) % size
        b.send(0, outgoing, (me + 1) % size)
        outgoing = target(part, t)
        b.reduce(0, outgoing, [Peer((me - 1) % size), source(part)], final=t == size - 2)


def allgather_ring(layout, b):
    """Each rank passes on what it got last: p-1 rounds, neighbours only."""
    me, size, whole = layout.rank, layout.size, layout.whole
    b.copy(0, (OUT, me, *whole), (IN, 0, *whole))
    for t in range(size - 1):
        b.send(0, (OUT, (me - t) % size, *whole) if t else (IN, 0, *whole), (me + 1) % size)
        b.recv(0, (OUT, (me - 1 - t) % size, *whole), (me - 1) % size)


def allgather_bruck(layout, b):
    """Recursive doubling for any p: at distance d a rank gives the d units that start with its own."""
    me, size, whole = layout.rank, layout.size, layout.whole
    b.copy(0, (OUT, me, *whole), (IN, 0, *whole))
    distance = 1
    while distance < size:
        given = range(min(distance, size - distance))
        for k in given:
            b.send(0, (OUT, (me + k) % size, *whole) if k else (IN, 0, *whole), (me - distance) % size)
        for k in given:
            b.recv(0, (OUT, (me + distance + k) % size, *whole), (me + distance) % size)
        distance *= 2


def _tree(layout):
    """Binomial tree rooted at the root: (parent or None, children with the smallest subtree first)."""
    size, root = layout.size, layout.root
    place = (layout.rank - root) % size
    reach = place & -place if place else 1 << size.bit_length()
    steps = [1 << k for k in range(size.bit_length()) if 1 << k < reach and place + (1 << k) < size]
    parent = (root + (place & (place - 1))) % size if place else None
    return parent, [(root + place + step) % size for step in steps]


def bcast_binomial(layout, b):
    """A binomial tree, the child with the largest subtree first."""
    parent, children = _tree(layout)
    place = (IN if parent is None else OUT, 0, *layout.whole)
    if parent is not None:
        b.recv(0, place, parent)
    for child in reversed(children):
        b.send(0, place, child)


def reduce_binomial(layout, b):
    """A binomial tree; a node reduces its own data and its subtrees at once, in rank order from the root on."""
    parent, children = _tree(layout)
    whole = layout.whole
    total = (IN, 0, *whole)
    if children:
        total = (OUT if parent is None else SCRATCH, 0, *whole)
        b.reduce(0, total, [(IN, 0, *whole), *map(Peer, children)], final=parent is None)
    if parent is not None:
        b.send(0, total, parent)


def barrier_dissemination(layout, b):
    """log2(p) rounds of tokens to ranks at doubling distance.

    The token of distance d tells of the d ranks up to its sender, or as many as its receiver still misses; it waits for
    the rounds in which the sender hears of those.
    """
    me, size, whole = layout.rank, layout.size, layout.whole
    arrived, distance = [], 1
    while distance < size:
        rounds = (min(distance, size - distance) - 1).bit_length()
        b.send(0, (IN, 0, *whole), (me + distance) % size, arrived[:rounds])
        arrived.append(b.recv(0, (SCRATCH, len(arrived), *whole), (me - distance) % size))
        distance *= 2
