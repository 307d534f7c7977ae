"""Island lists and plans that the tests of hetccl.plan go through."""

import ctypes
import signal
from random import Random

from hetccl.plan import applicable, build, verify
from hetccl.plan.steps import ROOTED, SCANS


def set_partitions(size):
    """Return all ways to split ranks 0..size-1 into islands, interleaved ones included, ordered by lowest rank."""
    lists = [[]]
    for rank in range(size):
        lists = [
            [*islands[:i], (*islands[i], rank), *islands[i + 1 :]] if i < len(islands) else [*islands, (rank,)]
            for islands in lists
            for i in range(len(islands) + 1)
        ]
    return [tuple(islands) for islands in lists]


def size_partitions(total, largest=None):
    """Return all lists of island sizes with this sum, largest first."""
    if total == 0:
        return [()]
    return [
        (size, *rest)
        for size in range(min(total, largest or total), 0, -1)
        for rest in size_partitions(total - size, size)
    ]


def contiguous(sizes):
    """Return islands of these sizes over consecutive ranks."""
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return tuple(tuple(range(end - size, end)) for size, end in zip(sizes, ends))


def interleaved(sizes, seed):
    """Return islands of these sizes over shuffled ranks, ordered by lowest rank."""
    ranks = list(range(sum(sizes)))
    Random(seed).shuffle(ranks)
    return tuple(sorted(tuple(sorted(ranks[i] for i in island)) for island in contiguous(sizes)))


def plans(collective, islands, roots):
    """Yield every plan of a collective that goes by the islands; flat ones too where there is one island.

    Scans, which never go by the islands, come for all.
    """
    one = len(islands) == 1
    alone = all(len(island) == 1 for island in islands)
    every = one or collective in SCANS
    flat = set() if every else set(applicable(collective, islands)) - {"hier_direct", "hierarchical"}
    flat -= {"direct"} if collective == "allreduce" else set()
    for inner in ("flat",) if alone else ("flat", "vendor"):
        for algorithm in applicable(collective, islands, inner):
            if algorithm in flat:
                continue
            for root in roots if collective in ROOTED else (0,):
                for in_place in (False, True) if collective == "alltoall" else (False,):
                    yield build(collective, islands, root, algorithm, inner, in_place)


PR_SET_PDEATHSIG = 1


def end_with_parent():
    """Have this process killed when the one that started it ends, however that one does."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def few_ranks(collective, size):
    """Verify the plans of a collective for all lists of islands of so many ranks; returns how many there were."""
    return _verify(collective, ((islands, range(size)) for islands in set_partitions(size)))


def many_ranks(collective, size):
    """The same for all lists of sizes, of islands one behind the other."""
    return _verify(collective, ((contiguous(sizes), (size // 2,)) for sizes in size_partitions(size)))


def many_interleaved(collective, size):
    """The same for some lists of sizes, over ranks in any order."""
    chosen = enumerate(size_partitions(size))
    return _verify(collective, ((interleaved(sizes, seed), (seed % size,)) for seed, sizes in chosen if seed % 5 == 0))


def _verify(collective, lists):
    count = 0
    for islands, roots in lists:
        for plan in plans(collective, islands, roots):
            verify(plan)
            count += 1
    return count
