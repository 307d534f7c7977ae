"""Symbolic values: what each interval of each buffer holds while a plan runs. The second half of verify.py.

A value is a number: 0 for nothing, then one per rank and unit of IN, then one per reduce, made when it first occurs;
the same operands in the same order give the same number.
"""

from .steps import REDUCTIONS, SCANS, Copy, Peer, Recv, Reduce, Send
from .strict import PlanError, fault


class Values:
    """The memory of all ranks in one mode.

    check : the verifier's view of the plan (programs, borders, places, order)
    """

    def __init__(self, check):
        self.check, self.plan, self.programs = check, check.plan, check.programs
        self.size = self.plan.size
        self.reducing = self.plan.collective in REDUCTIONS
        self.scanning = self.plan.collective in SCANS
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
        """Return the number of a reduce over values, equal for equal operands in equal order.

        Two operands may be swapped, but not in a scan: it takes its ranks in order, whether or not the op commutes.
        """
        if len(operands) == 1 and not final:
            return operands[0]
        key = (tuple(sorted(operands)) if len(operands) == 2 and not self.scanning else operands, final)
        if key in self.made:
            return self.made[key]
        held = 0
        for value in operands:
            if self.reducing and held & self.held[value]:
                raise fault(self.programs, rank, i, f"counts {self.whose(held & self.held[value])} twice")
            if self.finished[value]:
                raise fault(self.programs, rank, i, "reduces on from a final reduce")
            if self.scanning and held and self.lowest(self.held[value]) != held.bit_length():
                reason = f"takes {self.whose(self.held[value])} right after {self.whose(held)}"
                raise fault(self.programs, rank, i, reason)
            held |= self.held[value]
        if self.scanning and final:
            raise fault(self.programs, rank, i, "is final in a scan")
        if self.reducing and not self.scanning and final != self.complete(held):
            missing = self.whose(self.full(held) & ~held)
            reason = f"is final, but {missing} is missing" if final else "completes an output, but is not final"
            raise fault(self.programs, rank, i, reason)
        self.held.append(held)
        self.finished.append(final)
        self.made[key] = len(self.held) - 1
        return self.made[key]

    def lowest(self, held):
        """Return the number of the first contribution held."""
        return (held & -held).bit_length() - 1

    def full(self, held):
        """Return all contributions to the unit of the first one held."""
        unit = self.lowest(held) // self.size
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
        wide = op in ("alltoall", "scatter")
        sources = [
            [self.read(*node, step.source, unit) for unit in (ranks if wide else (0,))] if step.source else None
            for node, step in zip(group, steps)
        ]
        if op in ("alltoall", "gather", "scatter"):
            self.vendor_moves(group, steps, sources)
            return
        for (rank, i), step in zip(group, steps):
            if step.block is not None:
                self.write(rank, step.block, self.vendor_result(rank, i, step, steps, sources))

    def vendor_moves(self, group, steps, sources):
        """Run a vendor call whose units go from member to member."""
        op, ranks, root = steps[0].op, steps[0].ranks, steps[0].root
        borders = {block[2:] for step in steps for block in (step.block, step.source) if block}
        if len(borders) > 1:
            raise fault(self.programs, *group[0], "the members give blocks with different borders")
        for j, ((rank, _), step) in enumerate(zip(group, steps)):
            if op == "scatter":
                self.write(rank, step.block, sources[ranks.index(root)][j])
            elif step.block is not None:
                for k, unit in enumerate(ranks):
                    self.write(rank, step.block, sources[k][j if op == "alltoall" else 0], unit)

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
        if self.plan.collective == "barrier":
            self.look_barrier()
            return
        for rank in range(self.size):
            for unit in range(self.check.sizes[rank][1]):
                base = self.check.bases[rank][1, unit]
                for where in range(base, base + self.check.width):
                    value = self.memory[rank][where]
                    if self.reducing:
                        self.look_reduced(rank, where, value)
                    elif value != self.expected(rank, unit):
                        wanted, held = (self.whose(self.held[v]) for v in (self.expected(rank, unit), value))
                        name = self.check.name(rank, where)
                        raise PlanError(f"rank {rank}: {name} must hold {wanted}; it holds {held}", rank=rank)
        if self.plan.collective == "allreduce":
            self.look_equal()

    def expected(self, rank, unit):
        """Return the value that belongs in a unit of OUT when nothing is reduced."""
        sender, given = {
            "bcast": (self.plan.root, 0),
            "allgather": (unit, 0),
            "alltoall": (unit, rank),
            "gather": (unit, 0),
            "scatter": (self.plan.root, rank),
        }[self.plan.collective]
        return self.leaf(sender, given)

    def look_reduced(self, rank, where, value):
        """One interval of a reduced output: complete, and from a final reduce unless a scan or one rank alone."""
        unit = rank if self.plan.collective == "reduce_scatter_block" else 0
        givers = {"scan": rank + 1, "exscan": rank}.get(self.plan.collective, self.size)
        wanted = ((1 << givers) - 1) << unit * self.size
        held = self.held[value]
        if held != wanted:
            lack, surplus = self.whose(wanted & ~held), self.whose(held & ~wanted)
            name = self.check.name(rank, where)
            raise PlanError(f"rank {rank}: {name} lacks {lack} and has {surplus} too much", rank=rank)
        if self.size > 1 and not self.scanning and not self.finished[value]:
            raise PlanError(f"rank {rank}: {self.check.name(rank, where)} is not from a final reduce", rank=rank)

    def look_equal(self):
        """All ranks must have reduced each interval by the same expression: bitwise equal results."""
        width = self.check.width
        starts = [self.check.bases[rank][1, 0] for rank in range(self.size)]
        rows = [cells[start : start + width] for cells, start in zip(self.memory, starts)]
        for rank, row in enumerate(rows):
            if row != rows[0]:
                k = next(k for k in range(width) if row[k] != rows[0][k])
                name = self.check.name(rank, starts[rank] + k)
                raise PlanError(f"rank {rank} reduces {name} in another order than rank 0", rank=rank)

    def look_barrier(self):
        """Every rank must follow every rank's arrival."""
        for rank, program in enumerate(self.programs):
            heard = 1 << rank
            for i in range(len(program.steps)):
                heard |= self.heard[rank, i]
            missing = [peer for peer in range(self.size) if not heard >> peer & 1]
            if missing:
                raise PlanError(f"rank {rank} can leave the barrier before ranks {missing} have arrived", rank=rank)
