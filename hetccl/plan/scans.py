"""Algorithms of scans: rank r gets the reduction over ranks 0 to r, or below r in an exclusive scan.

All ranks count as one island, in rank order. Each generator writes one rank's program: (layout, builder) -> None, for
two ranks or more. What a rank sends covers a run of ranks, and the run of lower ranks is the left operand.
"""

from .steps import Buf, Peer

IN, OUT, SCRATCH = Buf.IN, Buf.OUT, Buf.SCRATCH


def scan_direct(layout, b):
    """Every rank sends to all above it; each reduces all at once, in one round."""
    me, whole = layout.rank, layout.whole
    _send_upwards(layout, b)
    if me == 0:
        b.copy(0, (OUT, 0, *whole), (IN, 0, *whole))
    else:
        b.reduce(0, (OUT, 0, *whole), [*map(Peer, range(me)), (IN, 0, *whole)], final=False)


def exscan_direct(layout, b):
    """As scan_direct, without the rank's own data."""
    me, out = layout.rank, (OUT, 0, *layout.whole)
    _send_upwards(layout, b)
    if me == 1:
        b.recv(0, out, 0)
    elif me > 1:
        b.reduce(0, out, list(map(Peer, range(me))), final=False)


def _send_upwards(layout, b):
    """Send to all higher ranks: a copy, so that the result may be written over IN while a peer still reads."""
    me, whole, given = layout.rank, layout.whole, (IN, 0, *layout.whole)
    if 0 < me < layout.size - 1:
        given = (SCRATCH, 0, *whole)
        b.copy(0, given, (IN, 0, *whole))
    for peer in range(me + 1, layout.size):
        b.send(0, given, peer)


def scan_chain(layout, b):
    """Each rank adds its own data to what comes from below and passes it on: the fewest bytes.

    The ranks work at once on different portions of a large message.
    """
    me, own, out = layout.rank, (IN, 0, *layout.whole), (OUT, 0, *layout.whole)
    if me == 0:
        b.copy(0, out, own)
    else:
        b.reduce(0, out, [Peer(me - 1), own], final=False)
    if me < layout.size - 1:
        b.send(0, out if me else own, me + 1)


def exscan_chain(layout, b):
    """As scan_chain; what comes from below is a rank's result, and it passes on the sum with its own data."""
    me, own, out = layout.rank, (IN, 0, *layout.whole), (OUT, 0, *layout.whole)
    above = me < layout.size - 1
    total = own if me == 0 else (SCRATCH, 0, *layout.whole)
    if me and above:
        b.copy(0, total, own)  # the result may come to lie over IN
    if me:
        b.recv(0, out, me - 1)
    if me and above:
        b.reduce(0, total, [out, total], final=False)
    if above:
        b.send(0, total, me + 1)


def scan_recursive_doubling(layout, b):
    """log2(p) rounds: at distance d a rank passes on the sum of the d ranks up to itself, or of all there are."""
    me, out = layout.rank, (OUT, 0, *layout.whole)
    total = own = (IN, 0, *layout.whole)
    if me == 0:
        b.copy(0, out, own)
    elif me == 1 and layout.size > 2:  # it gets its result while rank 2 may still read IN
        total = (SCRATCH, 0, *layout.whole)
        b.copy(0, total, own)
    for k, distance in enumerate(_distances(layout)):
        if me + distance < layout.size:
            b.send(0, total, me + distance)
        if me >= distance:
            target = out if me < 2 * distance else (SCRATCH, k, *layout.whole)
            b.reduce(0, target, [Peer(me - distance), total], final=False)
            total = target


def exscan_recursive_doubling(layout, b):
    """As scan_recursive_doubling; a second sum, of what came alone, is the result."""
    me, whole, slots = layout.rank, layout.whole, 0
    total, below = (IN, 0, *whole), None
    for distance in _distances(layout):
        if me + distance < layout.size:
            b.send(0, total, me + distance)
        if me < distance:
            continue
        last = me < 2 * distance
        came, sum_below, sum_all = ((SCRATCH, slots + k, *whole) for k in range(3))
        slots += 3
        b.recv(0, came, me - distance)
        if me + 2 * distance < layout.size:
            b.reduce(0, sum_all, [came, total], final=False)
            total = sum_all
        if below is None and last:
            b.copy(0, (OUT, 0, *whole), came)
        elif below is None:
            below = came
        else:
            target = (OUT, 0, *whole) if last else sum_below
            b.reduce(0, target, [came, below], final=False)
            below = target


def _distances(layout):
    """Return the powers of two below the number of ranks."""
    return [1 << k for k in range((layout.size - 1).bit_length())]
