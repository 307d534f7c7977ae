"""The cases of the exactness matrix. Read by the program under mpirun (runs them) and by pytest (expects them)."""

import functools
from typing import NamedTuple

# One letter per rank names its island: every list of islands that this version promises, for 1 to 6 ranks.
LAYOUTS = (
    "A", "AA", "AB", "AAA", "AAB", "ABC", "AAAA", "AAAB", "ABBB", "AABB", "ABAB", "ABBA",
    "AAAAA", "AABBB", "AAAAAA", "AAABBC",
)  # fmt: skip

REDUCING = ("Allreduce", "Reduce", "Reduce_scatter_block", "Reduce_scatter", "Scan", "Exscan")
MOVING = (
    "Bcast", "Allgather", "Alltoall", "Sendrecv", "Gather", "Scatter", "Gatherv", "Scatterv", "Allgatherv", "Alltoallv",
)  # fmt: skip
ROOTED = ("Reduce", "Bcast", "Gather", "Scatter", "Gatherv", "Scatterv")
# Those that share the plans and the path of others run with fewer dtypes, ops and counts.
FEWER = ("Reduce_scatter", "Scan", "Exscan", "Gather", "Scatter", "Gatherv", "Scatterv", "Allgatherv", "Alltoallv")
FEWER_DTYPES = ("uint8", "bfloat16", "int32", "float32", "float64", "longdouble", "complex128", "bool")
ARITHMETIC = ("SUM", "PROD", "MIN", "MAX", "AVG")
BITS = ("LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR")
OPS = ARITHMETIC + BITS
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64", "longdouble")
COMPLEX = ("complex64", "complex128")
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
DTYPES = INTEGERS + FLOATS + COMPLEX + FLOAT8 + ("bool",)

SMALL = (0, 1, 7, 1023)
MEDIUM = 65537
LARGE = 1_000_003
COUNTS = (*SMALL, MEDIUM, LARGE)

# How much is run: what `make test` affords on every layout, the whole product, or a sample for other ways through the
# code.
QUICK, FULL, BRIEF = "quick", "full", "brief"
BRIEF_OPS = {("int32", "SUM"), ("int32", "move"), ("float32", "AVG"), ("bfloat16", "MAX")}


class Case(NamedTuple):
    """One call: `count` is in elements per block (see `lengths`); `form` is "out" or "inplace"."""

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
    if dtype in COMPLEX:
        return ("SUM", "AVG")  # zeros of a product have signs that depend on the order
    if dtype in FLOATS + FLOAT8:
        return ARITHMETIC
    return OPS if dtype in INTEGERS else ARITHMETIC[:4] + BITS


def collectives_of(dtype, op, scope):
    """The collectives that a dtype and op are run with."""
    if scope == FULL or scope == BRIEF and op in ("SUM", "move"):
        everything = MOVING if op == "move" else REDUCING
    elif op == "move":
        everything = MOVING if dtype in FEWER_DTYPES else MOVING[:4]
    elif op in BITS:
        everything = ("Allreduce", "Scan")
    else:
        everything = REDUCING if op == "SUM" or dtype in ("int32", "float32") else REDUCING[:3]
    # The average of a prefix is no collective of anyone's.
    return [name for name in everything if op != "AVG" or name not in ("Scan", "Exscan")]


def forms_of(collective):
    return ("out",) if collective in ("Bcast", "Sendrecv") else ("out", "inplace")


def counts_of(collective, dtype, op, scope):
    """The counts a collective, dtype and op are run with.

    Small counts go with every dtype and op. Time on two slow cores allows the middle one for each dtype with one op
    and for every op with two dtypes, and the large one for dtypes of 1, 2, 4 and 8 bytes with one op each. FULL runs
    the whole product.
    """
    if scope == FULL:
        return COUNTS
    if scope == BRIEF:
        return (*SMALL, MEDIUM)
    if op in BITS:
        return (*SMALL[1:], MEDIUM) if dtype in ("int32", "uint8") else SMALL[2:]
    if collective in FEWER:
        return (*SMALL, MEDIUM) if dtype == "float32" else SMALL
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
            for collective in collectives_of(dtype, op, scope):
                yield from _calls(collective, dtype, op, size, scope)


def _calls(collective, dtype, op, size, scope):
    rooted = collective in ROOTED
    every_root = rooted and (scope == FULL or dtype == "int32")
    number = DTYPES.index(dtype) + (*OPS, "move").index(op)
    counts = list(counts_of(collective, dtype, op, scope))
    if dtype == "int32" and op in ("SUM", "move") and collective not in FEWER:
        # Counts below and just above the number of ranks: blocks that are empty or uneven on some ranks.
        counts += [count for count in range(2, 2 * size + 2) if count not in counts]
    for place, count in enumerate(counts):
        roots = range(size) if every_root else [(number + place) % size if rooted else 0]
        for root in roots:
            for form in forms_of(collective):
                yield Case(collective, dtype, op, count, form, root)


def lengths(count, size):
    """Elements per rank where ranks have their own: some have none, the others differ."""
    return [0 if rank % 3 == 1 else count + rank for rank in range(size)]


@functools.lru_cache(maxsize=None)
def groups(size, scope=QUICK):
    """{group: [case, ...]} in the order of `cases`."""
    found = {}
    for case in cases(size, scope):
        found.setdefault(case.group, []).append(str(case))
    return found
