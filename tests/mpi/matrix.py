"""The cases of the exactness matrix. Read by the program under mpirun (runs them) and by pytest (expects them)."""

import functools
from typing import NamedTuple

# One letter per rank names its island: every list of islands that this version promises, for 1 to 6 ranks.
LAYOUTS = (
    "A", "AA", "AB", "AAA", "AAB", "ABC", "AAAA", "AAAB", "ABBB", "AABB", "ABAB", "ABBA",
    "AAAAA", "AABBB", "AAAAAA", "AAABBC",
)  # fmt: skip

REDUCING = ("Allreduce", "Reduce", "Reduce_scatter_block")
MOVING = ("Bcast", "Allgather", "Alltoall", "Sendrecv")
OPS = ("SUM", "PROD", "MIN", "MAX", "AVG")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64", "longdouble")
COMPLEX = ("complex64", "complex128")
MOVED_ONLY = ("float8_e4m3fn", "float8_e5m2")
DTYPES = INTEGERS + FLOATS + COMPLEX + MOVED_ONLY + ("bool",)

SMALL = (0, 1, 7, 1023)
MEDIUM = 65537
LARGE = 1_000_003
COUNTS = (*SMALL, MEDIUM, LARGE)

# How much is run: what `make test` affords on every layout, the whole product, or a sample for other ways through the
# code.
QUICK, FULL, BRIEF = "quick", "full", "brief"
BRIEF_OPS = {("int32", "SUM"), ("int32", "move"), ("float32", "AVG"), ("bfloat16", "MAX")}


class Case(NamedTuple):
    """One call: `count` is in elements per block; `form` is "out" or "inplace"."""

    collective: str
    dtype: str
    op: str
    count: int
    form: str
    root: int

    @property
    def group(self):
        """What one pytest item covers: all counts, forms and roots of a collective, dtype and op."""
        return f"{self.collective}-{self.dtype}-{self.op}"

    def __str__(self):
        return f"{self.group}-{self.count}-{self.form}-root{self.root}"


def ops_of(dtype):
    """The ops that are defined for a dtype."""
    if dtype in MOVED_ONLY:
        return ()
    if dtype in COMPLEX:
        return ("SUM", "AVG")
    return OPS[:4] if dtype == "bool" else OPS


def forms_of(collective):
    return ("out",) if collective in ("Bcast", "Sendrecv") else ("out", "inplace")


def counts_of(dtype, op, scope):
    """The counts a dtype and op are run with.

    Small counts go with every dtype and op. Time on two slow cores allows the middle one for each dtype with one op
    and for every op with two dtypes, and the large one for dtypes of 1, 2, 4 and 8 bytes with one op each. FULL runs
    the whole product.
    """
    if scope == FULL:
        return COUNTS
    if scope == BRIEF:
        return (*SMALL, MEDIUM)
    medium = op in ("SUM", "move") or dtype in ("float32", "bfloat16")
    large = (dtype, op) in {
        ("int8", "MIN"), ("bfloat16", "AVG"), ("float32", "SUM"), ("float64", "MAX"), ("float32", "move"),
        ("uint8", "move"),
    }  # fmt: skip
    return SMALL + (MEDIUM,) * medium + (LARGE,) * large


def cases(size, scope=QUICK):
    """All cases for `size` ranks, in the same order on every rank; those of one dtype and op follow each other."""
    for dtype in DTYPES:
        for op in (*ops_of(dtype), "move"):
            if scope == BRIEF and (dtype, op) not in BRIEF_OPS:
                continue
            for collective in MOVING if op == "move" else REDUCING:
                yield from _calls(collective, dtype, op, size, scope)


def _calls(collective, dtype, op, size, scope):
    rooted = collective in ("Reduce", "Bcast")
    every_root = rooted and (scope == FULL or dtype == "int32")
    number = DTYPES.index(dtype) + (*OPS, "move").index(op)
    counts = list(counts_of(dtype, op, scope))
    if dtype == "int32" and op in ("SUM", "move"):
        # Counts below and just above the number of ranks: blocks that are empty or uneven on some ranks.
        counts += [count for count in range(2, 2 * size + 2) if count not in counts]
    for place, count in enumerate(counts):
        roots = range(size) if every_root else [(number + place) % size if rooted else 0]
        for root in roots:
            for form in forms_of(collective):
                yield Case(collective, dtype, op, count, form, root)


@functools.lru_cache(maxsize=None)
def groups(size, scope=QUICK):
    """{group: [case, ...]} in the order of `cases`."""
    found = {}
    for case in cases(size, scope):
        found.setdefault(case.group, []).append(str(case))
    return found
