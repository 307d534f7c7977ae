"""Makes plans: picks the generator and checks what the caller gave."""

from functools import partial

from . import flat, hierarchical
from .builder import Builder
from .layout import Layout
from .steps import COLLECTIVES, Plan, in_place_alias

# What runs where. "flat": all ranks are one island, whatever the islands; "islands": inside and across.
_SPLIT, _WHOLE = {"split": True}, {"split": False}
_GENERATORS = {
    "allreduce": {
        "direct": ("any", flat.allreduce_direct, {}),
        "direct_split": ("flat", hierarchical.allreduce, _SPLIT),
        "hier_direct": ("islands", hierarchical.allreduce, _WHOLE),
        "hierarchical": ("islands", hierarchical.allreduce, _SPLIT),
    },
    "bcast": {
        "direct": ("flat", hierarchical.bcast, _WHOLE),
        "hier_direct": ("islands", hierarchical.bcast, _WHOLE),
    },
}


def algorithms(collective):
    """Return the names of all algorithms of a collective."""
    return tuple(_GENERATORS[collective])


def build(collective, islands, root=0, algorithm="auto", inner="flat", in_place=False):
    """early version"""
    islands = tuple(tuple(i) for i in islands)
    size = sum(map(len, islands))
    if algorithm == "auto":
        algorithm = "direct" if collective == "bcast" else ("direct_split" if len(islands) == 1 else "hierarchical")
    kind, make, options = _GENERATORS[collective][algorithm]
    one = (tuple(range(size)),)
    seen = one if kind == "flat" else islands

    def generate(rank):
        layout = Layout(seen, rank, root, inner)
        builder = Builder(layout.whole[1], in_place_alias(collective, size, rank, root))
        if size == 1:
            (flat.nothing if collective == "bcast" else flat.alone)(layout, builder)
        else:
            make(layout, builder, **options)
        return builder.program()

    return Plan(collective, islands, root, algorithm, inner, in_place, generate)
