"""Builds one rank's program and works out what each step must wait for. Used by the generators alone.

Generators say what is read and written; a step is put `after` every earlier step that touches the same memory when one
of the two writes it, with IN and OUT apart and in place. What already follows from other entries is left out.

A region is (buf, unit, lo, hi) with integer positions (layout.py).
"""

from fractions import Fraction

from .steps import Block, Buf, Copy, Peer, Program, Recv, Reduce, Send, Vendor


class Builder:
    """The program of one rank, step by step; every method returns the index of the step it added.

    whole   : int, the position of the end of a unit
    aliases : each way in which OUT may lie over IN: {unit of OUT: unit of IN} that are the same memory
    """

    def __init__(self, whole, aliases):
        self._whole = whole
        self._steps = []
        self._scratch = 0
        self._measures = {}
        self._blocks = {}
        self._behind = []  # per step: bit mask of the steps that are complete before it starts
        in_place = [{(Buf.OUT, out): (Buf.IN, unit) for out, unit in alias.items()} for alias in aliases]
        self._views = [({}, alias) for alias in ({}, *in_place)]

    def program(self):
        """Return the Program built so far."""
        return Program(tuple(self._steps), self._scratch, tuple(self._measures.get(k, 0) for k in range(self._scratch)))

    def measure(self, slot, unit):
        """Let a unit of SCRATCH be as long as a unit of IN, where units differ in length."""
        self._measures[slot] = unit

    def send(self, stage, region, peer, after=()):
        """Send a region to a peer; `after` adds steps to wait for to those that memory demands."""
        waits = self._waits([region], [], after)
        return self._add(Send(self._block(region), peer, stage, waits))

    def recv(self, stage, region, peer):
        """Receive a region from a peer."""
        return self._add(Recv(self._block(region), peer, stage, self._waits([], [region])))

    def reduce(self, stage, region, sources, final):
        """Reduce `sources` (regions and Peers) into a region."""
        waits = self._waits([source for source in sources if not isinstance(source, Peer)], [region])
        operands = tuple(source if isinstance(source, Peer) else self._block(source) for source in sources)
        return self._add(Reduce(self._block(region), operands, final, stage, waits))

    def copy(self, stage, region, source):
        """Copy a region to another."""
        waits = self._waits([source], [region], copy=True)
        return self._add(Copy(self._block(region), self._block(source), stage, waits))

    def vendor(self, stage, op, region, source, ranks, root=-1, final=False):
        """Let the vendor CCL of an island run `op`; region and source as in Vendor, None where not touched."""
        reads, writes = [source] if source else [], [region] if region else []
        if op in ("alltoall", "scatter"):
            reads = [(read[0], read[1] + rank, *read[2:]) for read in reads for rank in ranks]
        if op in ("alltoall", "gather"):
            writes = [(write[0], write[1] + rank, *write[2:]) for write in writes for rank in ranks]
        blocks = [self._block(where) if where else None for where in (region, source)]
        return self._add(Vendor(op, *blocks, tuple(ranks), root, final, stage, self._waits(reads, writes)))

    def _add(self, step):
        self._steps.append(step)
        return len(self._steps) - 1

    def _block(self, region):
        block = self._blocks.get(region)
        if block is None:
            buf, unit, lo, hi = region
            block = Block(buf, unit, Fraction(lo, self._whole), Fraction(hi, self._whole))
            self._blocks[region] = block
        return block

    def _waits(self, reads, writes, control=(), copy=False):
        """Record the accesses of the next step; return the least `after` that orders it behind its clashes."""
        step = len(self._steps)
        clashes = set(control)
        for table, alias in self._views:
            accesses = [(alias.get(r[:2], r[:2]), r[2], r[3], False) for r in reads]
            accesses += [(alias.get(w[:2], w[:2]), w[2], w[3], True) for w in writes]
            if copy and accesses[0][:3] == accesses[1][:3]:
                continue  # a Copy onto itself touches nothing
            for where, lo, hi, write in accesses:
                seen = table.setdefault(where, [])
                clashes.update(i for a, b, other, i in seen if (write or other) and a < hi and lo < b and i != step)
                seen.append((lo, hi, write, step))
        for buf, unit, _, _ in (*reads, *writes):
            if buf == Buf.SCRATCH:
                self._scratch = max(self._scratch, unit + 1)
        waits, behind = [], 0
        for i in sorted(clashes, reverse=True):
            if not behind >> i & 1:
                waits.append(i)
                behind |= self._behind[i] | 1 << i
        self._behind.append(behind)
        return tuple(reversed(waits))
