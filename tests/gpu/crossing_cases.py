"""The cases of collectives between islands on GPU buffers, as device_cases has those inside one."""

import functools

import matrix
from device_arrays import LIBRARIES
from device_cases import WAYS, DeviceCase

# Every dtype and op with small counts; or few of these with more counts, and with calls of several portions.
BROAD, DEEP = "broad", "deep"
BROAD_COUNTS = (0, 1, 1023)
# Calls with one unit, whatever the number of ranks. A portion of a call has at most so many bytes of all its units.
ONE_UNIT = ("Allreduce", "Reduce", "Scan", "Exscan", "Bcast")
PORTION_BYTES = 8388608
# More portions than the ring has pieces, the last of them not full.
PORTIONS = 5.3
MULTIPLE = {("int32", "SUM"), ("int32", "move")}


def cases(size, scope, place):
    """All cases for `size` ranks, in the same order on every rank.

    place : the library of the arrays in GPU memory
    """
    for dtype in matrix.DTYPES:
        if dtype not in LIBRARIES[place].carries:
            continue
        for op in (*matrix.ops_of(dtype), "move"):
            if scope == DEEP and (dtype, op) not in matrix.BRIEF_OPS:
                continue
            for collective in matrix.collectives_of(dtype, op, matrix.BRIEF if scope == DEEP else matrix.QUICK):
                yield from _calls(collective, dtype, op, size, scope)


def _calls(collective, dtype, op, size, scope):
    rooted = collective in matrix.ROOTED
    for place, count in enumerate(counts_of(collective, dtype, op, size, scope)):
        roots = range(size) if rooted and dtype == "int32" and place < 3 else [(len(op) + place) % size * rooted]
        for root in roots:
            for form in matrix.forms_of(collective):
                for way in WAYS if (dtype, op) in MULTIPLE and count in (0, 1, 1023) else WAYS[:1]:
                    if (collective, way) == ("Sendrecv", "persistent"):
                        continue  # MPI has none
                    yield DeviceCase(collective, dtype, op, count, form, root, way)


def counts_of(collective, dtype, op, size, scope):
    if scope == BROAD:
        return BROAD_COUNTS
    units = 1 if collective in ONE_UNIT else size
    large = (int(PORTIONS * PORTION_BYTES / units / 4) | 1,)
    return (*matrix.SMALL, matrix.MEDIUM) + large * ((dtype, op) in MULTIPLE)


@functools.lru_cache(maxsize=None)
def groups(size, scope, place):
    """{group: [case, ...]} in the order of `cases`."""
    found = {}
    for case in cases(size, scope, place):
        found.setdefault(case.group, []).append(str(case))
    return found
