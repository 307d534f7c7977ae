"""The cases of the comparison with mpi4py: plain data that pytest draws, sends to the ranks as JSON, and prints.

A *unit* is what counts count: one element of a datatype that packs `packed` numbers of `dtype`. A *part* is what one
buffer holds for one peer. Sender and receiver may describe the same units by different datatypes.
"""

import json
from dataclasses import MISSING, dataclass, field, fields
from typing import NamedTuple


class Shape(NamedTuple):
    """How a collective takes its buffers.

    send, recv : "one" part, "blocks" (a part of equal length per rank), "v" (counts and displacements), "w" (datatypes
                 too), or None
    counts     : "one" count for all, "each" rank its own, one for each "pair"
    """

    send: str | None
    recv: str | None
    counts: str
    reduces: bool = False
    rooted: bool = False
    # Whether IN_PLACE may stand for one of the buffers.
    in_place: bool = True


COLLECTIVES = {
    "Barrier": Shape(None, None, "one", in_place=False),
    "Bcast": Shape("one", None, "one", rooted=True, in_place=False),
    "Gather": Shape("one", "blocks", "one", rooted=True),
    "Gatherv": Shape("one", "v", "each", rooted=True),
    "Scatter": Shape("blocks", "one", "one", rooted=True),
    "Scatterv": Shape("v", "one", "each", rooted=True),
    "Allgather": Shape("one", "blocks", "one"),
    "Allgatherv": Shape("one", "v", "each"),
    "Alltoall": Shape("blocks", "blocks", "one"),
    "Alltoallv": Shape("v", "v", "pair"),
    "Alltoallw": Shape("w", "w", "pair"),
    "Reduce": Shape("one", "one", "one", reduces=True, rooted=True),
    "Allreduce": Shape("one", "one", "one", reduces=True),
    "Reduce_scatter_block": Shape("blocks", "one", "one", reduces=True),
    "Reduce_scatter": Shape("one", "one", "each", reduces=True),
    "Scan": Shape("one", "one", "one", reduces=True),
    "Exscan": Shape("one", "one", "one", reduces=True),
}

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "longlong", "ulonglong")
FLOATS = ("float32", "float64", "longdouble")
COMPLEX = ("complex64", "complex128", "clongdouble")
PAIRS = ("FLOAT_INT", "DOUBLE_INT", "LONG_INT", "INT_INT", "SHORT_INT", "LONG_DOUBLE_INT")
# What mpi4py moves: all that it reduces, and more.
MOVED = (*INTEGERS, *FLOATS, *COMPLEX, "bool", *PAIRS)
# Descriptions of datatypes, made in compare_types.
DATATYPES = (
    "base", "contiguous", "vector", "hvector", "indexed", "hindexed", "indexed_block", "hindexed_block", "struct",
    "subarray", "resized", "columns", "dup", "nested",
)  # fmt: skip
# A product of matrices, which does not commute, and a sum modulo a prime: functions of the user's.
USER_OPS = ("AFFINE", "MODULAR")
ARITHMETIC = ("SUM", "PROD", "MIN", "MAX")
LOGICAL, BITWISE = ("LAND", "LOR", "LXOR"), ("BAND", "BOR", "BXOR")


def ops_of(dtype):
    """The ops that MPI defines for a dtype (MPI 4.1, section 6.9.2), and the users' own."""
    if dtype in PAIRS:
        return ("MINLOC", "MAXLOC")
    if dtype in INTEGERS:
        return ARITHMETIC + LOGICAL + BITWISE + (USER_OPS if dtype == "uint64" else ())
    if dtype in FLOATS:
        return ARITHMETIC
    if dtype in COMPLEX:
        return ("SUM", "PROD")
    return LOGICAL if dtype == "bool" else ()


@dataclass(frozen=True)
class Side:
    """How one buffer of a call is given.

    spec   : the form of the argument; one that cannot say what must be said falls back to a form that can
    types  : descriptions of datatypes; rank r takes number (r + part) % len for each part of Alltoallw, else r % len
    gaps   : units left free before each part, rotated by rank
    order  : the parts' order in memory, rotated by rank; empty: by rank
    shift  : elements by which the array is moved from its aligned place
    slack  : elements after the last one used
    counts : "list", "array" or "single" (one number where all are equal)
    """

    spec: str = "plain"
    types: list = field(default_factory=lambda: [["base"]])
    gaps: list = field(default_factory=lambda: [0])
    order: list = field(default_factory=list)
    shift: int = 0
    slack: int = 0
    counts: str = "list"


@dataclass(frozen=True)
class Collective:
    """One collective call.

    form    : "blocking", "nonblocking" or "persistent" on hetccl's side; mpi4py's is always the blocking call
    finish  : "wait" or "test", of requests       starts : how often a persistent request is started
    counts  : units: [[n]], [[n of rank 0, ...]] or [[n from 0 to 0, n from 0 to 1, ...], ...]
    data    : "whole" numbers, for which every order of a sum is exact, or "random" ones, compared within a bound
    whose   : "hetccl" or "mpi": whose constants (ops, IN_PLACE) hetccl gets
    unused  : what stands where a rank's buffer does not count: "none", "text" or "array"
    fault   : "" or what is wrong with the call on all ranks: both must refuse it, and no byte may move
    comm    : "world", or the communicator that "dup" or "reversed" made of it by Dup and Split
    """

    call: str
    form: str = "blocking"
    finish: str = "wait"
    starts: int = 1
    dtype: str = "int32"
    packed: int = 1
    op: str = ""
    root: int = 0
    in_place: bool = False
    counts: list = field(default_factory=lambda: [[1]])
    data: str = "whole"
    send: Side = Side()
    recv: Side = Side()
    whose: str = "mpi"
    unused: str = "none"
    fault: str = ""
    comm: str = "world"


@dataclass(frozen=True)
class Together:
    """Several nonblocking collectives, started one after another and completed in another order."""

    cases: list
    order: list


@dataclass(frozen=True)
class Messages:
    """Messages between the ranks, and the receives that match them.

    messages : [source, destination, tag, units] in the order of sending; -1 is PROC_NULL
    order    : indices of the messages in the order in which their receives are posted
    wild     : per message: 0 its receive names source and tag, 1 ANY_TAG, 2 ANY_SOURCE
    room     : per message: units by which the receive buffer is longer
    pattern  : "nonblocking", "late" (sends first), "blocking_sends", "blocking_receives", "probe", "iprobe", "mprobe",
               "improbe", "turns" (one message after another, both calls blocking), "persistent" or "group"
    mode     : "", "s" (synchronous), "b" (buffered) or "r" (ready)
    finish   : how requests are completed: "wait", "waitall", "waitany", "waitsome" and the same with "test"
    """

    messages: list
    order: list
    wild: list
    room: list
    pattern: str = "nonblocking"
    mode: str = ""
    finish: str = "waitall"
    starts: int = 1
    dtype: str = "int32"
    packed: int = 1
    send: Side = Side()
    recv: Side = Side()
    comm: str = "world"


@dataclass(frozen=True)
class Shift:
    """Every rank sends to rank + distance and receives from rank - distance, by one of the Sendrecv calls.

    wrap : whether the ranks form a ring; else those without a neighbour have PROC_NULL
    """

    call: str
    distance: int = 1
    wrap: bool = True
    tag: int = 0
    any_tag: bool = False
    count: int = 1
    dtype: str = "int32"
    packed: int = 1
    send: Side = Side()
    recv: Side = Side()
    comm: str = "world"


@dataclass(frozen=True)
class Refused:
    """A point-to-point call that is wrong on every rank."""

    call: str
    fault: str


KINDS = {kind.__name__: kind for kind in (Collective, Together, Messages, Shift, Refused)}


def dump(case):
    """A case as one line of JSON, which `load` reads; what is as usual is left out."""
    return json.dumps({"kind": type(case).__name__, **_changed(case)})


def _changed(case):
    plain = {}
    for known in fields(case):
        value = getattr(case, known.name)
        usual = known.default if known.default_factory is MISSING else known.default_factory()
        if known.name == "cases":
            plain["cases"] = [_changed(one) for one in value]
        elif value != usual:
            plain[known.name] = _changed(value) if isinstance(value, Side) else value
    return plain


def load(text):
    """The case of a line of `dump`."""
    plain = json.loads(text)
    kind = KINDS[plain.pop("kind")]
    if kind is Together:
        return Together([_made(Collective, one) for one in plain["cases"]], plain["order"])
    return _made(kind, plain)


def _made(kind, plain):
    sides = {name: Side(**plain[name]) for name in ("send", "recv") if name in plain}
    return kind(**{**plain, **sides})


# The side of a rooted call that counts at the root alone.
_AT_ROOT = {"Gather": "recv", "Gatherv": "recv", "Reduce": "recv", "Scatter": "send", "Scatterv": "send"}


def units(case, side, rank, size):
    """Units of each part of a rank's buffer; None where the rank's buffer does not count.

    side : "send" or "recv"
    """
    shape, counts, first = COLLECTIVES[case.call], case.counts, case.counts[0]
    if getattr(shape, side) is None:
        return None
    if _AT_ROOT.get(case.call) == side and rank != case.root:
        return None
    kind = getattr(shape, side)
    if case.call == "Reduce_scatter":
        return [sum(first)] if side == "send" or case.in_place else [first[rank]]
    if case.call == "Reduce_scatter_block" and case.in_place:
        return first * size
    if shape.counts == "one":
        return first * size if kind == "blocks" else list(first)
    if shape.counts == "each":
        return [first[rank]] if kind == "one" else list(first)
    return list(counts[rank]) if side == "send" else [row[rank] for row in counts]


# What may be wrong with a collective on all ranks, for mpi4py too.
FAULTS = {
    "strided": "memory with holes",
    "readonly": "a receive buffer that may not be written",
    "objects": "an array of Python objects",
    "number": "a number in place of a buffer",
    "words": "text in place of a buffer",
    "long_spec": "a list of five items",
    "bad_string": "a type string that means nothing",
    "float_count": "a count that is no whole number",
    "negative_count": "a count below zero",
    "negative_displ": "a displacement below zero",
    "short_counts": "a count too few",
    "long_counts": "a count too many",
    "uneven": "elements that do not divide among the ranks",
    "other_count": "send and receive counts of a reduction that differ",
    "other_type": "send and receive types of a reduction that differ",
    "no_op": "text in place of an op",
    "undefined_op": "an op that the type does not have",
    "root_beyond": "a root that is no rank",
}

# What hetccl refuses and mpi4py does not: docs/semantics.md has the list. mpi4py is not asked: it would read or write
# memory that is not the buffer's, leave the result undefined, or go on.
DIFFERENCES = {
    "beyond": "a count that reaches beyond the end of the buffer is a ValueError",
    "part_beyond": "a part that reaches beyond the end of the buffer is a ValueError",
    "overlap": "parts of a receive buffer that overlap are a ValueError",
    "aliased": "send and receive buffers that overlap are a ValueError",
    "float_rank": "a rank or tag that is no whole number is a TypeError; mpi4py cuts it off",
    "mixed_types": "sending as one dtype and receiving as another of the same size is a ValueError",
}


def target(call):
    """The side whose buffer counts on every rank."""
    return "send" if call in ("Bcast", "Gather", "Gatherv", "Reduce") else "recv"


def faults_of(call, size):
    """The faults that a collective may have; in each, every rank notices by itself."""
    shape, kind = COLLECTIVES[call], getattr(COLLECTIVES[call], target(call))
    if call == "Barrier":
        return []
    names = ["strided", "number", "words"]
    if kind != "w":
        names += ["objects", "long_spec", "bad_string"]
    if target(call) == "recv":
        names += ["readonly"]
    names += ["short_counts", "long_counts"] if kind in "vw" else ["float_count", "negative_count", "negative_displ"]
    names += ["uneven"] if kind == "blocks" and size > 1 else []
    names += ["root_beyond", "float_rank"] if shape.rooted else []
    if shape.reduces:
        names += ["no_op", "undefined_op"] + ([] if shape.rooted else ["other_count", "other_type"])
    if kind in ("one", "blocks"):
        names += ["beyond"]
    elif size > 1:
        names += ["part_beyond", "overlap"]
    if not shape.rooted and kind != "w":
        names += ["aliased"] + ([] if shape.reduces else ["mixed_types"])
    return names
