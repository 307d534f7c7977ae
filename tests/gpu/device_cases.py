"""The cases of the device matrix: matrix.py's collectives on device arrays, each in the ways it can be called."""

import functools
from typing import NamedTuple

import matrix
from device_arrays import LIBRARIES

# How much is run: what `make test` affords on the fakes, all that a GPU is given, a sample for a second library.
QUICK, WIDE, BRIEF = "quick", "wide", "brief"

WAYS = ("call", "request", "persistent", "group")
REAL = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32", "float64")
MOVED = (*REAL, *matrix.FLOAT8, "bool", "int16", "uint16", *matrix.COMPLEX)
BRIEF_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int32", "uint8", "bool")
# The ops of each dtype that the vendors' libraries reduce; all others are refused (REFUSED).
OPS = {
    **dict.fromkeys(REAL, matrix.ARITHMETIC),
    **dict.fromkeys(matrix.FLOAT8, ("SUM", "PROD", "MIN", "MAX")),
    **dict.fromkeys(matrix.COMPLEX, ("SUM", "AVG")),
    "bool": ("SUM", "PROD", "MIN", "MAX", "LAND", "LOR"),
}
# What a device call must refuse with TypeError: no vendor's library reduces it.
REFUSED = (
    *((dtype, op) for dtype in ("int16", "uint16") for op in matrix.ARITHMETIC),
    *(("int32", op) for op in ("LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR")),
    *(("float32", op) for op in ("LAND", "BAND", "MINLOC", "MAXLOC")),
    *((dtype, op) for dtype in matrix.COMPLEX for op in ("PROD", "MIN", "MAX")),
    *((dtype, "AVG") for dtype in (*matrix.FLOAT8, "bool")),
    ("bool", "LXOR"),
    ("uint8", "BXOR"),
)  # fmt: skip
LARGE = {"int8": "MIN", "float32": "SUM", "bfloat16": "AVG", "int64": "MAX"}


class DeviceCase(NamedTuple):
    """A matrix.Case, and the way it is called."""

    collective: str
    dtype: str
    op: str
    count: int
    form: str
    root: int
    way: str

    @property
    def group(self):
        return f"{self.collective}-{self.dtype}-{self.op}"

    def __str__(self):
        return f"{self.group}-{self.count}-{self.form}-root{self.root}-{self.way}"


def cases(size, scope, library):
    """All cases for `size` ranks with the arrays of a library, in the same order on every rank."""
    for dtype in MOVED:
        if dtype not in LIBRARIES[library].carries or scope == BRIEF and dtype not in BRIEF_DTYPES:
            continue
        for op in (*OPS.get(dtype, ()), "move"):
            if op == "AVG" and dtype not in matrix.INTEGERS and size & (size - 1):
                continue  # the libraries divide before they add: exact for powers of two only
            yield from _calls(dtype, op, size, scope)


def _calls(dtype, op, size, scope):
    everything = matrix.MOVING if op == "move" else matrix.REDUCING
    for collective in everything:
        if op == "AVG" and collective in ("Scan", "Exscan"):
            continue
        rooted = collective in matrix.ROOTED
        for place, count in enumerate(counts_of(collective, dtype, op, scope)):
            roots = range(size) if rooted and dtype == "int32" else [(len(op) + place) % size if rooted else 0]
            for root in roots:
                for form in matrix.forms_of(collective):
                    for way in ways_of(collective, dtype, op, count):
                        yield DeviceCase(collective, dtype, op, count, form, root, way)


def counts_of(collective, dtype, op, scope):
    """Counts in elements; a quick run takes those that find faults, on two slow cores."""
    if scope == QUICK:
        often = dtype in ("int32", "float32") or op in ("SUM", "move")
        return (0, 1, 7, 1023) if often else (0, 7)
    medium = (*matrix.SMALL, matrix.MEDIUM)
    return (*medium, matrix.LARGE) if LARGE.get(dtype) == op or dtype == "uint8" and op == "move" else medium


def ways_of(collective, dtype, op, count):
    if dtype != "int32" or op not in ("SUM", "move") or count not in (0, 7, matrix.MEDIUM):
        return WAYS[:1]
    # MPI has no persistent Sendrecv.
    return [way for way in WAYS if (collective, way) != ("Sendrecv", "persistent")]


@functools.lru_cache(maxsize=None)
def groups(size, scope, library):
    """{group: [case, ...]} in the order of `cases`."""
    found = {}
    for case in cases(size, scope, library):
        found.setdefault(case.group, []).append(str(case))
    return found
