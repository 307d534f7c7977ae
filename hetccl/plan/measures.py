"""Proves that a plan is right for units of unequal length: what meets in a step or a message is measured alike.

A block is measured by its unit's length, and these lengths are named after the ranks whose data they are: rank r's unit
in an Allgatherv has one name on all ranks, what r sends to s in an Alltoallv another. Equal names are equal lengths, as
MPI demands of the callers. Used by verify alone.
"""

from .steps import Buf, Peer, Recv, Send, Vendor
from .strict import fault

# collective -> name of the length of a unit: (rank, whether it is of OUT, unit) -> name
_NAMES = {
    "allgather": lambda rank, out, unit: unit if out else rank,
    "gather": lambda rank, out, unit: unit if out else rank,
    "scatter": lambda rank, out, unit: rank if out else unit,
    "reduce_scatter_block": lambda rank, out, unit: rank if out else unit,
    "alltoall": lambda rank, out, unit: (unit, rank) if out else (rank, unit),
}


def check_measures(plan, programs, order):
    """Raise PlanError unless lengths agree in every step, every message and every vendor call.

    order : the strict Run, for who sends to whom
    """
    _Measures(plan, programs, order).check()


class _Measures:
    def __init__(self, plan, programs, order):
        self.plan, self.programs, self.order = plan, programs, order

    def check(self):
        for rank, program in enumerate(self.programs):
            for i, step in enumerate(program.steps):
                if isinstance(step, Vendor):
                    self.check_vendor(rank, i)
                    continue
                own = self.name(rank, i, step.block)
                sources = () if isinstance(step, (Send, Recv)) else getattr(step, "sources", None) or (step.source,)
                for source in sources:
                    if not isinstance(source, Peer):
                        self.compare(rank, i, own, self.name(rank, i, source), "an operand")
                for sender, k in self.order.senders.get((rank, i), ()):
                    sent = self.name(sender, k, self.programs[sender].steps[k].block)
                    self.compare(rank, i, own, sent, f"the message from rank {sender} (its step {k})")

    def name(self, rank, i, block, unit=0):
        """Return the name of the length of a block's unit; `unit` is added to its unit."""
        buf, unit = block.buf, block.unit + unit
        if buf == Buf.SCRATCH:
            measures = self.programs[rank].measures
            if unit >= len(measures):
                raise fault(self.programs, rank, i, f"SCRATCH[{unit}] has no measure")
            unit = measures[unit]
        return _NAMES[self.plan.collective](rank, buf == Buf.OUT, unit)

    def compare(self, rank, i, own, other, what):
        if own != other:
            raise fault(self.programs, rank, i, f"is as long as unit {own}, but {what} as unit {other}")

    def check_vendor(self, rank, i):
        """Compare what this member gets with what the members give."""
        step = self.programs[rank].steps[i]
        if step.block is None:
            return
        for number, (member, k) in enumerate(self.order.groups[rank, i]):
            other = self.programs[member].steps[k]
            if other.source is None:
                continue
            apart = step.ranks[number] if step.op in ("alltoall", "gather") else 0
            given = rank if step.op in ("alltoall", "scatter") else 0
            own, sent = self.name(rank, i, step.block, apart), self.name(member, k, other.source, given)
            self.compare(rank, i, own, sent, f"what rank {member} gives")
