"""Which algorithm for which message: a table per collective, looked up at the call.

A message's size is that of one unit (steps.units): what an all-reduce reduces, what a rank gives to an all-gather,
what a rank gets of a reduce-scatter, what a pair exchanges in an all-to-all.
"""

# To this many ranks everybody can send to everybody: beyond, p-1 messages cost more than log2(p) rounds. Estimate.
DIRECT_MAX_RANKS = 16
# Unit size in bytes up to which the number of rounds counts, and beyond which the bytes do. Estimate for shared memory.
SMALL_MAX_NBYTES = 16 * 1024

# By rank order, whatever the islands.
_SCANS = dict.fromkeys(("scan", "exscan"), ("direct", "recursive_doubling", "chain", "chain"))
# collective -> (small, few ranks), (small, many ranks), (large, few ranks), (large, many ranks)
_ONE_ISLAND = {
    "allreduce": ("direct", "recursive_doubling", "direct_split", "direct_split"),
    "reduce": ("direct", "binomial", "split", "split"),
    "bcast": ("direct", "binomial", "split", "split"),
    "allgather": ("direct", "bruck", "direct", "ring"),
    "reduce_scatter_block": ("direct", "direct", "direct", "ring"),
    "alltoall": ("pairwise",) * 4,
    "gather": ("direct",) * 4,
    "scatter": ("direct",) * 4,
    **_SCANS,
    "barrier": ("direct", "dissemination", "direct", "dissemination"),
}
_ISLANDS = {
    "allreduce": ("direct", "hier_direct", "hierarchical", "hierarchical"),
    "reduce": ("hier_direct", "hier_direct", "hierarchical", "hierarchical"),
    "bcast": ("hier_direct", "hier_direct", "hierarchical", "hierarchical"),
    "allgather": ("hier_direct", "hier_direct", "hierarchical", "hierarchical"),
    "reduce_scatter_block": ("hier_direct", "hier_direct", "hierarchical", "hierarchical"),
    "alltoall": ("hierarchical",) * 4,
    "gather": ("hierarchical",) * 4,
    "scatter": ("hierarchical",) * 4,
    **_SCANS,
    "barrier": ("hierarchical",) * 4,
}
# A vendor CCL takes part as a whole, so nobody sends to the members of its island one by one.
_VENDOR = {**_ISLANDS, "allreduce": ("hier_direct", "hier_direct", "hierarchical", "hierarchical")}
# Its own island needs one call.
_VENDOR_ALONE = {**_ISLANDS, **dict.fromkeys(("allreduce", "reduce", "bcast"), ("hier_direct",) * 4)}


# In place of what is right for equal units alone.
_UNEVEN = {("reduce_scatter_block", "ring"): "direct"}


def table(collective, islands, inner="flat", uneven=False):
    """Return ((max_nbytes, algorithm), ...) by size, the last with None: no limit.

    collective, islands, inner : as for build
    uneven : units of unequal length. Where there is more than one row, all ranks know all lengths, and must go by the
             same size: their mean.
    """
    size = sum(map(len, islands))
    if all(len(island) == 1 for island in islands) or (len(islands) == 1 and inner == "flat"):
        rows = _ONE_ISLAND
    elif inner == "vendor":
        rows = _VENDOR if len(islands) > 1 else _VENDOR_ALONE
    else:
        rows = _ISLANDS
    small, large = rows[collective][size > DIRECT_MAX_RANKS :: 2]
    if uneven:
        small, large = (_UNEVEN.get((collective, name), name) for name in (small, large))
    return ((None, large),) if small == large else ((SMALL_MAX_NBYTES, small), (None, large))


def choose(collective, islands, nbytes, inner="flat"):
    """Return the algorithm for a unit of nbytes."""
    return next(name for limit, name in table(collective, islands, inner) if limit is None or nbytes <= limit)
