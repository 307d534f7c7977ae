"""Makes plans: picks the generator, after checking what the caller gave."""

from functools import partial

from . import flat, hierarchical, scans, select
from .builder import Builder
from .layout import Layout
from .steps import BY_UNIT, COLLECTIVES, ROOTED, Plan, in_place_alias

# collective -> algorithm -> generator. The flat ones take all ranks as one island; the others go by the islands.
_FLAT = {
    "allreduce": {
        "recursive_doubling": flat.allreduce_recursive_doubling,
        "direct_split": partial(hierarchical.allreduce, split=True),
        "ring": flat.allreduce_ring,
    },
    "reduce": {
        "direct": partial(hierarchical.reduce, split=False),
        "binomial": flat.reduce_binomial,
        "split": partial(hierarchical.reduce, split=True),
    },
    "bcast": {
        "direct": partial(hierarchical.bcast, split=False),
        "binomial": flat.bcast_binomial,
        "split": partial(hierarchical.bcast, split=True),
    },
    "allgather": {
        "direct": partial(hierarchical.allgather, split=True),
        "bruck": flat.allgather_bruck,
        "ring": flat.allgather_ring,
    },
    "reduce_scatter_block": {
        "direct": partial(hierarchical.reduce_scatter_block, split=True),
        "ring": flat.reduce_scatter_block_ring,
    },
    "alltoall": {"pairwise": hierarchical.alltoall},
    "gather": {"direct": hierarchical.gather},
    "scatter": {"direct": hierarchical.scatter},
    "scan": {
        "direct": scans.scan_direct,
        "recursive_doubling": scans.scan_recursive_doubling,
        "chain": scans.scan_chain,
    },
    "exscan": {
        "direct": scans.exscan_direct,
        "recursive_doubling": scans.exscan_recursive_doubling,
        "chain": scans.exscan_chain,
    },
    "barrier": {"direct": hierarchical.barrier, "dissemination": flat.barrier_dissemination},
}
_BY_ISLAND = {
    "allreduce": {
        "direct": flat.allreduce_direct,
        "hier_direct": partial(hierarchical.allreduce, split=False),
        "hierarchical": partial(hierarchical.allreduce, split=True),
    },
    "alltoall": {"hierarchical": hierarchical.alltoall},
    "gather": {"hierarchical": hierarchical.gather},
    "scatter": {"hierarchical": hierarchical.scatter},
    "scan": {},
    "exscan": {},
    "barrier": {"hierarchical": hierarchical.barrier},
}
# A block of the ring's scratch is part of one unit now, of another later.
_EVEN_ONLY = {"reduce_scatter_block": ("ring",)}
for _name in ("reduce", "bcast", "allgather", "reduce_scatter_block"):
    _generate = getattr(hierarchical, _name)
    _BY_ISLAND[_name] = {
        "hier_direct": partial(_generate, split=False),
        "hierarchical": partial(_generate, split=True),
    }


def algorithms(collective):
    """Return the names of all algorithms of a collective."""
    _check("collective", collective, COLLECTIVES)
    return tuple({**_FLAT[collective], **_BY_ISLAND[collective]})


def applicable(collective, islands, inner="flat"):
    """Return the names of the algorithms that build takes for these islands.

    With a vendor CCL inside, ranks of an island do not send to each other, so the flat ones need islands of one rank.
    Scans have flat algorithms alone: ranks of an island need not follow one another.
    """
    _check("collective", collective, COLLECTIVES)
    if inner == "flat" or all(len(island) == 1 for island in islands):
        return algorithms(collective)
    return tuple(name for name in _BY_ISLAND[collective] if name.startswith("hier"))


def uneven(collective, islands, inner="flat"):
    """Return the names of the applicable algorithms that are right for units of unequal length; none for most others.

    That is what Allgatherv, Alltoallv, Alltoallw, Gatherv, Scatterv and Reduce_scatter need.
    """
    names = applicable(collective, islands, inner) if collective in BY_UNIT else ()
    return tuple(name for name in names if name not in _EVEN_ONLY.get(collective, ()))


def build(collective, islands, root=0, algorithm="auto", inner="flat", in_place=False):
    """Make the plan of a collective.

    collective : one of steps.COLLECTIVES
    islands    : sequences of ranks that together are 0..p-1, each once; reductions, but scans, take them in this order
    root       : rank, for reduce, bcast, gather and scatter; ignored otherwise
    algorithm  : one of algorithms(collective), or "auto": the one for large messages
    inner      : what runs inside an island, "flat" (sends and reduces) or "vendor" (calls of the vendor CCL)
    in_place   : IN and OUT are the same memory. Matters to alltoall alone; all other plans are right both ways.
    Raises     : ValueError
    """
    _check("collective", collective, COLLECTIVES)
    _check("inner", inner, ("flat", "vendor"))
    islands = tuple(map(tuple, islands))
    size = sum(map(len, islands))
    if not all(islands) or size == 0 or sorted(rank for island in islands for rank in island) != list(range(size)):
        raise ValueError(f"islands must hold the ranks 0..p-1, each once, and none may be empty; given {islands}")
    root = root if collective in ROOTED else 0
    if not 0 <= root < size:
        raise ValueError(f"root must be a rank from 0 to {size - 1}; given {root}")
    fitting = applicable(collective, islands, inner)
    if not fitting:
        raise ValueError(f"{collective} needs inner='flat' for islands of several ranks; given {inner!r}")
    if algorithm == "auto":
        algorithm = select.table(collective, islands, inner)[-1][1]
    _check("algorithm", algorithm, algorithms(collective))
    if algorithm not in fitting:
        names = ", ".join(fitting)
        raise ValueError(f"algorithm {algorithm!r} needs inner='flat'; with inner={inner!r} there are: {names}")

    if algorithm in _BY_ISLAND[collective]:
        seen, make = islands, _BY_ISLAND[collective][algorithm]
    else:
        seen, make, inner = (tuple(range(size)),), _FLAT[collective][algorithm], "flat"
    if collective == "alltoall":
        make = partial(make, in_place=in_place)
    if size == 1:
        make = flat.nothing if collective in ("bcast", "exscan", "barrier") else flat.alone
    for_all = algorithm in uneven(collective, islands, inner)

    def generate(rank):
        layout = Layout(seen, rank, root, inner)
        modes = (False, True) if for_all else (False,)
        apart = collective == "alltoall" and not in_place
        aliases = [] if apart else [in_place_alias(collective, size, rank, root, mode) for mode in modes]
        builder = Builder(layout.whole[1], [alias for k, alias in enumerate(aliases) if alias not in aliases[:k]])
        make(layout, builder)
        return builder.program()

    return Plan(collective, islands, root, algorithm, inner, in_place, generate, for_all)


def _check(argument, given, right):
    if given not in right:
        raise ValueError(f"{argument} must be one of {', '.join(right)}; given {given!r}")
