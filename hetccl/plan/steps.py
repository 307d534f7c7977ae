"""The data model of plans: what each rank does in one collective, as data.

Pure data, written by the generators (flat, hierarchical) and read by the executor, the verifier and the drawings.
No I/O, no other module of hetccl.

Buffers. IN, OUT and SCRATCH are rows of *units* of n elements each; n is known only at run time. The block
(buf, unit k, lo, hi) is the elements [k*n + floor(n*lo), k*n + floor(n*hi)), so blocks with the same lo and hi have the
same length for every n. Units of IN and OUT are listed by `units`.

Unequal units. A plan whose `uneven` is true also runs when units differ in length: a block is then measured by its own
unit's length instead of n. A unit of SCRATCH takes the length of the unit of IN that `Program.measures` names. Lengths
of units that meet in a message, a Reduce or a Copy agree if the callers' counts do, as MPI demands of them.

Messages. Each ordered pair of ranks is one FIFO lane: the i-th Send a -> b meets the i-th receive at b from a, receives
being Recv steps and the Peer sources of Reduce steps, in program order and in source order inside a Reduce. Empty
messages are skipped on both sides. A Send is complete when its block may be overwritten: at once, or only when the
receiver has consumed it; a plan is right under either.

Order. A step may start when the steps in `after` (indices into the same program) are complete. Nothing else orders two
steps of a rank, except that the sends and the receives of a lane keep program order.

In place. IN and OUT may be the same memory, as `in_place_alias` says. A Copy onto itself does nothing.

Scans take the ranks in rank order, whatever the islands, and mark no Reduce as final: their average has no meaning.
"""

from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from typing import NamedTuple

COLLECTIVES = (
    "allreduce", "reduce", "bcast", "allgather", "reduce_scatter_block", "alltoall", "gather", "scatter", "scan",
    "exscan", "barrier",
)  # fmt: skip
REDUCTIONS = frozenset(("allreduce", "reduce", "reduce_scatter_block", "scan", "exscan"))
SCANS = frozenset(("scan", "exscan"))
ROOTED = frozenset(("reduce", "bcast", "gather", "scatter"))
# Those whose units belong to ranks, so that MPI has a form with a count for each: Allgatherv and the like.
BY_UNIT = frozenset(("allgather", "reduce_scatter_block", "alltoall", "gather", "scatter"))


class Buf(IntEnum):
    """The three buffers of a plan; the numbers are the executor's indices."""

    IN = 0
    OUT = 1
    SCRATCH = 2


class Block(NamedTuple):
    """Elements [unit*n + floor(n*lo), unit*n + floor(n*hi)) of a buffer; 0 <= lo <= hi <= 1."""

    buf: Buf
    unit: int
    lo: Fraction
    hi: Fraction


class Peer(NamedTuple):
    """An operand of a Reduce: the next message from `rank`, reduced as it arrives."""

    rank: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send `block` to rank `peer`."""

    block: Block
    peer: int
    stage: int = 0
    after: tuple = ()


@dataclass(frozen=True, slots=True)
class Recv:
    """Receive the next message from rank `peer` into `block`."""

    block: Block
    peer: int
    stage: int = 0
    after: tuple = ()


@dataclass(frozen=True, slots=True)
class Reduce:
    """block = op over `sources` (Block | Peer) in that order.

    `block` may be one of the sources. `final` marks the reduce that completes an output block: AVG divides there, once.
    """

    block: Block
    sources: tuple
    final: bool = False
    stage: int = 0
    after: tuple = ()


@dataclass(frozen=True, slots=True)
class Copy:
    """block = source."""

    block: Block
    source: Block
    stage: int = 0
    after: tuple = ()


@dataclass(frozen=True, slots=True)
class Vendor:
    """One call of the vendor CCL by all of `ranks` (an island, in rank order); the j-th of its s ranks has j.

    op              block                                    source
    allreduce       op over the ranks' sources               what this rank gives
    reduce          as allreduce, at `root`; None elsewhere  what this rank gives
    broadcast       the root's source; None = leave it       at `root`; None elsewhere
    reduce_scatter  part j of op over the ranks' sources     what this rank gives
    allgather       all parts                                part j of the block
    alltoall        unit block.unit+r: what rank r sent      unit source.unit+r: what goes to rank r, for r in ranks
    gather          at `root`: unit block.unit+r: rank r's   what this rank gives
    scatter         what this rank gets                      at `root`: unit source.unit+r: what goes to rank r

    Part j of [lo, hi) is [lo + (hi-lo)*j/s, lo + (hi-lo)*(j+1)/s). Where n does not cut evenly the parts differ in
    length, and the executor makes one grouped reduce or broadcast per part. `root` is a rank of the communicator, -1
    where the op has none. `final` as in Reduce. Vendor steps of a rank run in program order, one after another.
    """

    op: str
    block: Block | None
    source: Block | None
    ranks: tuple
    root: int = -1
    final: bool = False
    stage: int = 0
    after: tuple = ()


class Program(NamedTuple):
    """One rank's part: steps in program order, and the units of SCRATCH they use.

    measures : per unit of SCRATCH, the unit of IN that is as long; matters to plans with units of unequal length
    """

    steps: tuple
    scratch: int
    measures: tuple = ()


def describe(item):
    """Return a step, Block or Peer as short text: "Send SCRATCH[0] 1/3..1/2 -> 4"."""
    if item is None:
        return "-"
    if isinstance(item, Block):
        part = "" if (item.lo, item.hi) == (0, 1) else f" {item.lo}..{item.hi}"
        return f"{Buf(item.buf).name}[{item.unit}]{part}"
    if isinstance(item, Peer):
        return f"from {item.rank}"
    if isinstance(item, Send):
        return f"Send {describe(item.block)} -> {item.peer}"
    if isinstance(item, Recv):
        return f"Recv {describe(item.block)} <- {item.peer}"
    if isinstance(item, Reduce):
        final = ", final" if item.final else ""
        return f"Reduce {describe(item.block)} = {' + '.join(map(describe, item.sources))}{final}"
    if isinstance(item, Copy):
        return f"Copy {describe(item.block)} = {describe(item.source)}"
    root = f", root {item.root}" if item.root >= 0 else ""
    final = ", final" if item.final else ""
    return f"Vendor {item.op} {describe(item.block)} = {describe(item.source)}{root}{final}"


def units(collective, size, rank, root):
    """Return (units of IN, units of OUT) of a rank; a buffer of 0 units must not be touched."""
    at_root = int(rank == root)
    return {
        "allreduce": (1, 1),
        "reduce": (1, at_root),
        "bcast": (at_root, 1 - at_root),
        "allgather": (1, size),
        "reduce_scatter_block": (size, 1),
        "alltoall": (size, size),
        "gather": (1, size * at_root),
        "scatter": (size * at_root, 1),
        "scan": (1, 1),
        "exscan": (1, int(rank > 0)),
        "barrier": (1, 1),
    }[collective]


def in_place_alias(collective, size, rank, root, uneven=False):
    """Return {unit of OUT: unit of IN} that are the same memory in place (MPI 4.1, 6.2: "in place" option).

    uneven : units of unequal length. OUT of a reduce-scatter would overlap several units of IN if it began where IN
             does: it lies over the rank's own unit, and the executor moves it to the start of the buffer at the end.
    """
    if collective == "reduce_scatter_block":
        return {0: rank if uneven else 0}
    if collective in ("allreduce", "scan") or (collective == "exscan" and rank > 0):
        return {0: 0}
    if rank == root and collective in ("reduce", "gather", "scatter"):
        return {"reduce": {0: 0}, "gather": {root: 0}, "scatter": {0: root}}[collective]
    if collective == "allgather":
        return {rank: 0}
    if collective == "alltoall":
        return {unit: unit for unit in range(size)}
    return {}


class Plan:
    """What every rank does in one collective, whatever the count.

    collective : one of COLLECTIVES
    islands    : tuple of tuples of ranks
    root       : rank (0 where the collective has none)
    algorithm  : the generator's name
    inner      : "flat" or "vendor", what runs inside an island
    in_place   : whether it was made for IN and OUT in the same memory (matters to alltoall alone)
    uneven     : whether it is right also for units of unequal length
    size       : number of ranks
    """

    def __init__(self, collective, islands, root, algorithm, inner, in_place, generate, uneven=False):
        self.collective = collective
        self.islands = islands
        self.root = root
        self.algorithm = algorithm
        self.inner = inner
        self.in_place = in_place
        self.uneven = uneven
        self.size = sum(map(len, islands))
        self._generate = generate
        self._programs = {}

    def program(self, rank):
        """Return the Program of one rank, made on first use without making the others'."""
        if rank not in self._programs:
            self._programs[rank] = self._generate(rank)
        return self._programs[rank]

    def __repr__(self):
        islands = "|".join(",".join(map(str, island)) for island in self.islands)
        mode = " in place" if self.in_place else ""
        return f"<Plan {self.collective} {self.algorithm}/{self.inner} islands {islands} root {self.root}{mode}>"
