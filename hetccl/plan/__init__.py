"""Plans: what each rank does in a collective, as data. Pure Python, no I/O, standard library only.

`build` makes a plan; the executor runs it, `verify` proves it for all ranks together, `render` draws it.
"""

from .build import algorithms, applicable, build, uneven
from .steps import Block, Buf, Copy, Peer, Plan, Program, Recv, Reduce, Send, Vendor
from .verify import PlanError, verify

__all__ = [
    "Block", "Buf", "Copy", "Peer", "Plan", "PlanError", "Program", "Recv", "Reduce", "Send", "Vendor",
    "algorithms", "applicable", "build", "uneven", "verify",
]  # fmt: skip
