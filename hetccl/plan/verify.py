"""Proves a plan for all ranks together, for every count at once.

All units are cut at every border that occurs in the plan; each interval of each buffer holds a symbolic value: nothing,
one rank's data, or a reduce over values in an order. The steps run over these values in the order of strict.py. What
holds for the intervals holds for every n, since floor(n*x) keeps the order of the borders.
"""

from .measures import check_measures
from .steps import Buf, Copy, Peer, Recv, Reduce, Send, Vendor, in_place_alias, units
from .strict import PlanError, Run, fault
from .values import Values

__all__ = ["PlanError", "verify"]

VENDOR_OPS = frozenset(
    ("allreduce", "reduce", "broadcast", "reduce_scatter", "allgather", "alltoall", "gather", "scatter")
)
VENDOR_ROOTED = frozenset(("reduce", "broadcast", "gather", "scatter"))
# Those that write, or read, a unit for each rank of the island.
VENDOR_WIDE_BLOCK = frozenset(("alltoall", "gather"))
VENDOR_WIDE_SOURCE = frozenset(("alltoall", "scatter"))


def verify(plan, in_place=None):
    """Return if the plan is right; raise PlanError, with the rank, the step and the reason, if it is not.

    in_place : False, True, or None: each way that the plan must stand (both, but for alltoall only its own)

    Proved: outputs hold what MPI says, each contribution exactly once, reduced in the same order on all ranks, in rank
    order in a scan; `final` is on the last reduce of each output and nowhere else, in a scan nowhere; messages match;
    no deadlock when a Send completes only once it is consumed; nothing undefined is read, IN is not written, SCRATCH is
    not overrun; any two steps of a rank that touch the same memory, one of them writing, are ordered by `after`; where
    the plan is `uneven`, the lengths of unequal units agree in every step and message.
    """
    programs = [plan.program(rank) for rank in range(plan.size)]
    check = _Check(plan, programs)
    modes = (in_place,)
    if in_place is None:
        modes = (plan.in_place,) if plan.collective == "alltoall" else (False, True)
    if plan.uneven:
        check_measures(plan, programs, check.order)
    for mode in modes:
        check.run([check.alias(rank, mode) for rank in range(plan.size)])
    if plan.uneven and in_place is not False:
        apart = [check.alias(rank, True, uneven=True) for rank in range(plan.size)]
        if apart != [check.alias(rank, True) for rank in range(plan.size)]:
            check.run(apart)


class _Check:
    """One plan: the borders, the masks of every step, the order; then a run per mode."""

    def __init__(self, plan, programs):
        self.plan = plan
        self.programs = programs
        self.sizes = [
            (*units(plan.collective, plan.size, rank, plan.root), program.scratch)
            for rank, program in enumerate(programs)
        ]
        self._spans = {}  # id(block) -> (first interval, last + 1); the programs keep the blocks alive
        for rank, program in enumerate(programs):
            for i, step in enumerate(program.steps):
                self._check_step(rank, i, step)
        self._cut()
        self.order = Run(programs)
        self._check_messages()

    def _check_step(self, rank, i, step):
        def wrong(reason):
            return fault(self.programs, rank, i, reason)

        operands = step.sources if isinstance(step, Reduce) else (getattr(step, "source", None),)
        peers = [source.rank for source in operands if isinstance(source, Peer)]
        peers += [step.peer] if isinstance(step, (Send, Recv)) else []
        for peer in peers:
            if not 0 <= peer < self.plan.size or peer == rank:
                raise wrong(f"{peer} is not another rank")
        blocks = [block for block in (step.block, *operands) if block is not None and not isinstance(block, Peer)]
        for block in blocks:
            if not 0 <= block.lo <= block.hi <= 1:
                raise wrong("a block must lie in 0..1")
            limit = self.sizes[rank][block.buf]
            if not 0 <= block.unit < limit:
                raise wrong(f"{Buf(block.buf).name} has {limit} units here")
        if not isinstance(step, Send) and step.block is not None and step.block.buf == Buf.IN:
            raise wrong("IN must not be written")
        if isinstance(step, Vendor):
            self._check_vendor(rank, step, wrong)
        elif any(block[2:] != step.block[2:] for block in blocks):
            raise wrong("all blocks of a step must have the same borders")
        if isinstance(step, Reduce) and not step.sources:
            raise wrong("nothing to reduce")

    def _check_vendor(self, rank, step, wrong):
        if step.op not in VENDOR_OPS:
            raise wrong(f"unknown op; there are {', '.join(sorted(VENDOR_OPS))}")
        if step.ranks not in self.plan.islands:
            raise wrong(f"ranks {step.ranks} are not an island")
        if (step.op in VENDOR_ROOTED) != (step.root in step.ranks):
            raise wrong(f"root {step.root} does not fit")
        at_root = rank == step.root
        needs_block = step.op not in ("reduce", "gather") or at_root
        may_skip_block = step.op == "broadcast" and at_root
        needs_source = step.op not in ("broadcast", "scatter") or at_root
        if (step.block is None) == needs_block and not (may_skip_block and step.block is None):
            raise wrong("block is missing or too much")
        if (step.source is None) == needs_source:
            raise wrong("source is missing or too much")
        if step.block and step.source and step.op in ("reduce_scatter", "allgather"):
            whole, part = (step.source, step.block) if step.op == "reduce_scatter" else (step.block, step.source)
            j, s = step.ranks.index(rank), len(step.ranks)
            length = whole.hi - whole.lo
            if (part.lo, part.hi) != (whole.lo + length * j / s, whole.lo + length * (j + 1) / s):
                raise wrong(f"the part must be number {j} of {s}")
        elif step.block and step.source and step.block[2:] != step.source[2:]:
            raise wrong("all blocks of a step must have the same borders")
        wide = [step.block] if step.op in VENDOR_WIDE_BLOCK else []
        wide += [step.source] if step.op in VENDOR_WIDE_SOURCE else []
        for block in wide:
            if block is not None and block.unit + max(step.ranks) >= self.sizes[rank][block.buf]:
                raise wrong(f"{Buf(block.buf).name} has {self.sizes[rank][block.buf]} units here")

    def _cut(self):
        blocks, borders = {}, {(0, 1): 0, (1, 1): 1}
        for program in self.programs:
            for step in program.steps:
                sources = step.sources if isinstance(step, Reduce) else (getattr(step, "source", None),)
                for block in (step.block, *sources):
                    if block is not None and not isinstance(block, Peer) and id(block) not in blocks:
                        ends = [(end.numerator, end.denominator) for end in block[2:]]
                        blocks[id(block)] = ends
                        borders.update(zip(ends, block[2:]))
        self.borders = sorted(borders.values())
        number = {pair: k for k, (pair, _) in enumerate(sorted(borders.items(), key=lambda item: item[1]))}
        self.width = len(self.borders) - 1
        self._spans = {key: (number[lo], number[hi]) for key, (lo, hi) in blocks.items()}

    def _check_messages(self):
        for (rank, i), senders in self.order.senders.items():
            block = self.programs[rank].steps[i].block
            for sender, k in senders:
                sent = self.programs[sender].steps[k].block
                if self._spans[id(sent)] != self._spans[id(block)]:
                    reason = f"the message from rank {sender} (its step {k}) is {sent.lo}..{sent.hi}"
                    raise fault(self.programs, rank, i, reason)

    def alias(self, rank, in_place, uneven=False):
        """Return the units of OUT that lie over units of IN in a mode."""
        plan = self.plan
        return in_place_alias(plan.collective, plan.size, rank, plan.root, uneven) if in_place else {}

    def run(self, aliases):
        """Check one mode: per rank, what lies over what."""
        self.bases = [self._base(rank, alias) for rank, alias in enumerate(aliases)]
        for rank in range(self.plan.size):
            self._check_races(rank)
        Values(self).run()

    def _base(self, rank, alias):
        """Return {(buf, unit): number of its first interval in the rank's memory}."""
        base = {(0, unit): unit * self.width for unit in range(self.sizes[rank][0])}
        for buf in (1, 2):
            for unit in range(self.sizes[rank][buf]):
                shared = buf == 1 and unit in alias
                base[buf, unit] = base[0, alias[unit]] if shared else len(base) * self.width
        return base

    def place(self, rank, block, unit=0):
        """Return the range of a block in the rank's memory; `unit` is added to its unit."""
        base = self.bases[rank][block.buf, block.unit + unit]
        lo, hi = self._spans[id(block)]
        return base + lo, base + hi

    def _touched(self, rank, step):
        """Return bit masks over the rank's memory: (read, written)."""
        read = written = 0
        if isinstance(step, Send):
            return self._mask(rank, step.block), 0
        if isinstance(step, Reduce):
            for source in step.sources:
                if not isinstance(source, Peer):
                    read |= self._mask(rank, source)
            return read, self._mask(rank, step.block)
        if isinstance(step, Recv):
            return 0, self._mask(rank, step.block)
        if isinstance(step, Copy):
            read, written = self._mask(rank, step.source), self._mask(rank, step.block)
            return (0, 0) if read == written else (read, written)
        for unit in step.ranks if step.op in VENDOR_WIDE_SOURCE else (0,):
            read |= self._mask(rank, step.source, unit) if step.source else 0
        for unit in step.ranks if step.op in VENDOR_WIDE_BLOCK else (0,):
            written |= self._mask(rank, step.block, unit) if step.block else 0
        return read, written

    def _mask(self, rank, block, unit=0):
        lo, hi = self.place(rank, block, unit)
        return (1 << hi) - (1 << lo)

    def _check_races(self, rank):
        reads, writes, behind = [], [], []
        any_read = any_written = 0
        for j, step in enumerate(self.programs[rank].steps):
            read, written = self._touched(rank, step)
            done = 0
            for i in step.after:
                done |= behind[i] | 1 << i
            if written & (any_read | any_written) or read & any_written:
                for i in range(j):
                    clash = writes[i] & (read | written) | reads[i] & written
                    if clash and not done >> i & 1:
                        raise fault(self.programs, rank, j, self._race(rank, i, clash))
            any_read |= read
            any_written |= written
            reads.append(read)
            writes.append(written)
            behind.append(done)

    def _race(self, rank, i, clash):
        where = (clash & -clash).bit_length() - 1
        return f"does not wait for step {i}, which touches the same memory ({self.name(rank, where)})"

    def name(self, rank, where):
        """Return a place in the rank's memory as text."""
        base, k = where - where % self.width, where % self.width
        names = [f"{Buf(buf).name}[{unit}]" for (buf, unit), first in self.bases[rank].items() if first == base]
        return f"{'='.join(names)} {self.borders[k]}..{self.borders[k + 1]}"
