"""For the programs: MPI datatypes from the short descriptions in cases, and what they occupy in memory.

A description is [name, a, b]: two small numbers choose among the shapes of that name, so that any numbers are right.
"""

from typing import NamedTuple

import numpy as np
from compare_case import PAIRS
from mpi4py import MPI

# The C structs behind MPI's pair types, as NumPy aligns them.
_VALUES = {"FLOAT": "f4", "DOUBLE": "f8", "LONG": "i8", "INT": "i4", "SHORT": "i2", "LONG_DOUBLE": "g"}


def numpy_dtype(name):
    """The NumPy dtype of a case's dtype."""
    if name in PAIRS:
        value = _VALUES[name.removesuffix("_INT")]
        return np.dtype({"names": ["value", "index"], "formats": [value, "i4"]}, align=True)
    return np.dtype(name)


def base_type(name):
    """The MPI datatype of a case's dtype."""
    return getattr(MPI, name) if name in PAIRS else MPI.Datatype.fromcode(np.dtype(name).char)


class Unit(NamedTuple):
    """What one unit is in a spec: `elements` of `datatype`; `low` and `high` bound the bytes that one element touches.

    extent : bytes from one element to the next
    own    : the datatype was made here, and is to be freed
    """

    datatype: MPI.Datatype
    elements: int
    extent: int
    low: int
    high: int
    own: bool

    def end(self, displ, count):
        """The first byte after `count` elements that begin `displ` elements after the buffer's start."""
        return (displ + count - 1) * self.extent + self.high if count else 0


def unit_of(description, name, packed, width):
    """The Unit of a description.

    name   : the case's dtype
    packed : numbers that a unit packs
    width  : units in the whole buffer: the columns of a matrix, where units are columns
    """
    base = base_type(name)
    kind, first, second = (*description, 0, 0)[:3]
    if kind == "base":
        extent = base.Get_extent()[1]
        return Unit(base, packed, extent, 0, extent, False)
    datatype = _MAKERS[kind](base, packed, first, second, width)
    datatype.Commit()
    low, length = datatype.Get_true_extent()
    return Unit(datatype, 1, datatype.Get_extent()[1], low, low + length, True)


def _divisor(number, choice):
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    return divisors[choice % len(divisors)]


def _vector(base, packed, first, second, width):
    length = _divisor(packed, first)
    return base.Create_vector(packed // length, length, length + second % 4)


def _hvector(base, packed, first, second, width):
    length = _divisor(packed, first)
    return base.Create_hvector(packed // length, length, (length + second % 4) * base.Get_extent()[1])


def _blocks(packed, first, second):
    """Lengths that sum to `packed`, and displacements with gaps between them; for odd `second` in falling order."""
    lengths = [first % packed + 1] if packed else []
    while sum(lengths) < packed:
        lengths.append(min(packed - sum(lengths), (first + len(lengths)) % 3 + 1))
    places, position = [], second % 3
    for length in lengths:
        places.append(position)
        position += length + (second + len(places)) % 3
    return (lengths[::-1], places[::-1]) if second % 2 else (lengths, places)


def _indexed(base, packed, first, second, width):
    return base.Create_indexed(*_blocks(packed, first, second))


def _hindexed(base, packed, first, second, width):
    lengths, places = _blocks(packed, first, second)
    return base.Create_hindexed(lengths, [place * base.Get_extent()[1] for place in places])


def _struct(base, packed, first, second, width):
    lengths, places = _blocks(packed, first, second)
    places = [place * base.Get_extent()[1] for place in places]
    return MPI.Datatype.Create_struct(lengths, places, [base] * len(lengths))


def _even_blocks(packed, first, second):
    length = _divisor(packed, first)
    places = [place * (length + second % 3) for place in range(packed // length)]
    return length, places[::-1] if second % 2 else places


def _indexed_block(base, packed, first, second, width):
    return base.Create_indexed_block(*_even_blocks(packed, first, second))


def _hindexed_block(base, packed, first, second, width):
    length, places = _even_blocks(packed, first, second)
    return base.Create_hindexed_block(length, [place * base.Get_extent()[1] for place in places])


def _subarray(base, packed, first, second, width):
    inner = _divisor(packed, first)
    shape = [packed // inner, inner]
    starts = [second % 2, second // 2 % 3]
    sizes = [length + start + (second + axis) % 2 for axis, (length, start) in enumerate(zip(shape, starts))]
    return base.Create_subarray(sizes, shape, starts, MPI.ORDER_C if first % 2 else MPI.ORDER_FORTRAN)


def _resized(base, packed, first, second, width):
    inner = _vector(base, packed, first, second, width)
    wide = inner.Create_resized(0, inner.Get_extent()[1] + first % 3 * base.Get_extent()[1])
    inner.Free()
    return wide


def _columns(base, packed, first, second, width):
    column = base.Create_vector(packed, 1, max(width, 1))
    narrow = column.Create_resized(0, base.Get_extent()[1])
    column.Free()
    return narrow


def _dup(base, packed, first, second, width):
    inner = _indexed(base, packed, first, second, width)
    copy = inner.Dup()
    inner.Free()
    return copy


def _nested(base, packed, first, second, width):
    times = _divisor(packed, first)
    inner = _vector(base, packed // times, second, second // 3, width)
    outer = inner.Create_contiguous(times) if second % 2 else inner.Create_vector(times, 1, 1 + second % 3)
    inner.Free()
    return outer


_MAKERS = {
    "contiguous": lambda base, packed, first, second, width: base.Create_contiguous(packed),
    "vector": _vector,
    "hvector": _hvector,
    "indexed": _indexed,
    "hindexed": _hindexed,
    "indexed_block": _indexed_block,
    "hindexed_block": _hindexed_block,
    "struct": _struct,
    "subarray": _subarray,
    "resized": _resized,
    "columns": _columns,
    "dup": _dup,
    "nested": _nested,
}
