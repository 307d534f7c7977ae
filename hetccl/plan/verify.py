"""Proves a plan for all ranks together, for every count at once.

All units are cut at every border that occurs in the plan; each interval of each buffer holds a symbolic value: nothing, one
rank's data, or a reduce over values in an order. The steps run over these values in the order of strict.py. What
holds for the intervals holds for every n, since floor(n*x) keeps the order of the borders.
"""

from .steps import REDUCTIONS, Buf, Copy, Peer, Recv, Reduce, Send, Vendor, in_place_alias, units
from .strict import PlanError, Run, fault

__all__ = ["PlanError", "verify"]

VENDOR_OPS = frozenset(("allreduce", "reduce", "broadcast", "reduce_scatter", "allgather", "alltoall"))


def verify(plan, in_place=None):
    """Return if the plan is right; raise PlanError, with the rank, the step and the reason, if it is not.

    in_place : False, True, or None: each way that the plan must stand (both, but for alltoall only its own)

    Proved: outputs hold what MPI says, each contribution exactly once, by the same reduce order on all ranks; `final` is on
    the last reduce of each output and nowhere else; messages match; no deadlock when a Send completes only once it is
    consumed; nothing undefined is read, IN is not written, SCRATCH is not overrun; any two steps of a rank that touch
    the same memory, one of them writing, are ordered by `after`.
    """
    programs = [plan.program(rank) for rank in range(plan.size)]
    check = _Check(plan, programs)
    modes = (in_place,)
    if in_place is None:
        modes = (plan.in_place,) if plan.collective == "alltoall" else (False, True)
    for mode in modes:
        check.run(mode)


class _Check:
    """One plan: the borders, the masks of every step, the order; then a run per mode."""

    def __init__(self, plan, programs):
        self.plan = plan
        self.programs = programs
        self.sizes = [
            (*units(plan.collective, plan.size, rank, plan.root), program.scratch) for rank, program in enumerate(programs)
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
        if (step.op in ("reduce", "broadcast")) != (step.root in step.ranks):
            raise wrong(f"root {step.root} does not fit")
        at_root = rank == step.root
        needs_block = step.op != "reduce" or at_root
        may_skip_block = step.op == "broadcast" and at_root
        needs_source = step.op != "broadcast" or at_root
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
        if step.op == "alltoall":
            for block in (step.block, step.source):
                if block.unit + max(step.ranks) >= self.sizes[rank][block.buf]:
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

    def run(self, in_place):
        """Check one mode."""
        self.bases = [self._base(rank, in_place) for rank in range(self.plan.size)]
        for rank in range(self.plan.size):
            self._check_races(rank)
        _Values(self).run()

    def _base(self, rank, in_place):
        """Return {(buf, unit): number of its first interval in the rank's memory}."""
        plan = self.plan
        alias = in_place_alias(plan.collective, plan.size, rank, plan.root) if in_place else {}
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
        for unit in step.ranks if step.op == "alltoall" else (0,):
            read |= self._mask(rank, step.source, unit) if step.source else 0
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
        names = [f"{Buf(buf).name}[{unit}]" for (buf, unit), base in self.bases[rank].items() if base <= where < base + self.width]
        k = where % self.width
        return f"{'='.join(names)} {self.borders[k]}..{self.borders[k + 1]}"


class _Values:
    """Symbolic values, by number: 0 nothing, then one per rank and unit of IN, then reduces as they are made."""

    def __init__(self, check):
        self.check, self.plan, self.programs = check, check.plan, check.programs
        self.size = self.plan.size
        self.reducing = self.plan.collective in REDUCTIONS
        inputs = max(size[0] for size in check.sizes)
        # Contributions of a value: bit unit * size + rank.
        self.held = [0] + [1 << k for k in range(inputs * self.size)]
        self.finished = [False] * len(self.held)
        self.made = {}
        self.memory = []
        for rank in range(self.size):
            base = check.bases[rank]
            cells = [0] * (max(base.values(), default=0) + check.width)
            for unit in range(check.sizes[rank][0]):
                start = base[0, unit]
                cells[start : start + check.width] = [self.leaf(rank, unit)] * check.width
            self.memory.append(cells)
        self.messages = {}
        self.heard = {}  # node -> ranks whose arrival it follows (barrier)

    def leaf(self, rank, unit):
        """Return the number of one rank's unit of IN."""
        return 1 + unit * self.size + rank

    def run(self):
        """Run all steps, then look at the outputs."""
        for rank, i in self.check.order.order:
            step = self.programs[rank].steps[i]
            if isinstance(step, Send):
                self.messages[rank, i] = self.read(rank, i, step.block)
            elif isinstance(step, Recv):
                (sender,) = self.check.order.senders[rank, i]
                self.write(rank, step.block, self.messages[sender])
            elif isinstance(step, Reduce):
                incoming = iter(self.check.order.senders[rank, i])
                rows = [
                    self.messages[next(incoming)] if isinstance(source, Peer) else self.read(rank, i, source)
                    for source in step.sources
                ]
                self.write(rank, step.block, self.reduce(rank, i, rows, step.final))
            elif isinstance(step, Copy):
                self.write(rank, step.block, self.read(rank, i, step.source))
            else:
                self.vendor(self.check.order.groups[rank, i])
            if self.plan.collective == "barrier":
                self.hear(rank, i)
        self.look()

    def read(self, rank, i, block, unit=0):
        """Return the values of a block."""
        lo, hi = self.check.place(rank, block, unit)
        row = self.memory[rank][lo:hi]
        if 0 in row:
            where = self.check.name(rank, lo + row.index(0))
            raise fault(self.programs, rank, i, f"reads {where}, which holds nothing yet")
        return row

    def write(self, rank, block, row, unit=0):
        """Set the values of a block."""
        lo, hi = self.check.place(rank, block, unit)
        self.memory[rank][lo:hi] = row

    def reduce(self, rank, i, rows, final):
        """Return the values of a reduce over rows of values."""
        return [self.combine(rank, i, operands, final) for operands in zip(*rows)]

    def combine(self, rank, i, operands, final):
        """Return the number of a reduce over values, equal for equal operands in equal order (two may be swapped)."""
        if len(operands) == 1 and not final:
            return operands[0]
        key = (tuple(sorted(operands)) if len(operands) == 2 else operands, final)
        if key in self.made:
            return self.made[key]
        held = 0
        for value in operands:
            if self.reducing and held & self.held[value]:
                raise fault(self.programs, rank, i, f"counts {self.whose(held & self.held[value])} twice")
            if self.finished[value]:
                raise fault(self.programs, rank, i, "reduces on from a final reduce")
            held |= self.held[value]
        if self.reducing and final != self.complete(held):
            missing = self.whose(self.full(held) & ~held)
            reason = f"is final, but {missing} is missing" if final else "completes an output, but is not final"
            raise fault(self.programs, rank, i, reason)
        self.held.append(held)
        self.finished.append(final)
        self.made[key] = len(self.held) - 1
        return self.made[key]

    def full(self, held):
        """Return all contributions to the unit of the first one held."""
        unit = ((held & -held).bit_length() - 1) // self.size
        return ((1 << self.size) - 1) << unit * self.size

    def complete(self, held):
        """Return whether these are all contributions to one unit."""
        return held == self.full(held)

    def whose(self, held):
        """Return contributions as text."""
        owners = [divmod(k, self.size) for k in range(held.bit_length()) if held >> k & 1]
        return ", ".join(f"rank {rank}'s IN[{unit}]" for unit, rank in owners) or "nothing"

    def vendor(self, group):
        """Run one vendor call for all members of an island."""
        steps = [self.programs[rank].steps[i] for rank, i in group]
        op, ranks = steps[0].op, steps[0].ranks
        sources = [
            [self.read(*node, step.source, unit) for unit in (ranks if op == "alltoall" else (0,))] if step.source else None
            for node, step in zip(group, steps)
        ]
        for j, ((rank, i), step) in enumerate(zip(group, steps)):
            if step.block is None:
                continue
            if op == "alltoall":
                for k, unit in enumerate(ranks):
                    self.write(rank, step.block, sources[k][j], unit)
                continue
            self.write(rank, step.block, self.vendor_result(rank, i, step, steps, sources))

    def vendor_result(self, rank, i, step, steps, sources):
        """Return the values that one member gets."""
        check, borders = self.check, {other.source[2:] for other in steps if other.source}
        if step.op != "allgather" and len(borders) > 1:
            raise fault(self.programs, rank, i, "the members give blocks with different borders")
        if step.op == "allgather":
            row = [value for (part,) in sources for value in part]
            if [other.block[2:] for other in steps] != [step.block[2:]] * len(steps):
                raise fault(self.programs, rank, i, "the members gather blocks with different borders")
            return row
        if step.op == "broadcast":
            root = step.ranks.index(step.root)
            if step.block[2:] != steps[root].source[2:]:
                raise fault(self.programs, rank, i, "the root sends a block with other borders")
            return sources[root][0]
        lo, hi = (where - check.bases[rank][step.block.buf, step.block.unit] for where in check.place(rank, step.block))
        first = check.place(rank, step.source)[0] - check.bases[rank][step.source.buf, step.source.unit]
        return self.reduce(rank, i, [row[lo - first : hi - first] for (row,) in sources], step.final)

    def hear(self, rank, i):
        """Note whose arrival a step follows, by its own rank's order and by its messages."""
        for member, k in self.check.order.groups.get((rank, i), [(rank, i)]):
            self.heard[member, k] = 1 << member
            for earlier in self.programs[member].steps[k].after:
                self.heard[member, k] |= self.heard[member, earlier]
            for sender in self.check.order.senders.get((member, k), ()):
                self.heard[member, k] |= self.heard[sender]
        group = self.check.order.groups.get((rank, i), ())
        together = 0
        for node in group:
            together |= self.heard[node]
        self.heard.update(dict.fromkeys(group, together))

    def look(self):
        """Compare the outputs of all ranks with what the collective says."""
        collective, size = self.plan.collective, self.size
        if collective == "barrier":
            self.look_barrier()
            return
        first = {}
        for rank in range(size):
            for unit in range(self.check.sizes[rank][1]):
                base = self.check.bases[rank][1, unit]
                for k in range(self.check.width):
                    value, where = self.memory[rank][base + k], self.check.name(rank, base + k)
                    if self.reducing:
                        self.look_reduced(rank, where, value, rank if collective == "reduce_scatter_block" else 0)
                        if collective == "allreduce" and first.setdefault(k, value) != value:
                            raise PlanError(f"rank {rank} reduces {where} in another order than rank 0", rank=rank)
                        continue
                    source = {"bcast": (self.plan.root, 0), "allgather": (unit, 0), "alltoall": (unit, rank)}[collective]
                    if value != self.leaf(*source):
                        held = self.whose(self.held[value])
                        raise PlanError(f"rank {rank}: {where} must hold {self.whose(self.held[self.leaf(*source)])}; it holds {held}", rank=rank)

    def look_reduced(self, rank, where, value, unit):
        """One interval of a reduced output: complete, and divided unless there is one rank alone."""
        wanted = ((1 << self.size) - 1) << unit * self.size
        held = self.held[value]
        if held != wanted:
            raise PlanError(f"rank {rank}: {where} lacks {self.whose(wanted & ~held)} and has {self.whose(held & ~wanted)} too much", rank=rank)
        if self.size > 1 and not self.finished[value]:
            raise PlanError(f"rank {rank}: {where} comes from a reduce that is not final", rank=rank)

    def look_barrier(self):
        """Every rank must follow every rank's arrival."""
        for rank, program in enumerate(self.programs):
            heard = 1 << rank
            for i in range(len(program.steps)):
                heard |= self.heard[rank, i]
            missing = [peer for peer in range(self.size) if not heard >> peer & 1]
            if missing:
                raise PlanError(f"rank {rank} can leave the barrier before ranks {missing} have arrived", rank=rank)
