"""For the programs: the buffers of a case with guards round them, their contents, and the arguments made of them."""

import numpy as np
from compare_case import COMPLEX, PAIRS
from compare_types import numpy_dtype, unit_of
from mpi4py import MPI

GUARD_BYTES = 128
# Forms that say where a part begins, and forms that leave the count to the buffer's length.
PLACED = ("tuple", "pair_only", "full")
INFERRED = ("plain", "typed", "string")


def random_bytes(seed, nbytes):
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def numbers(dtype, op, data, seed, count):
    """What is reduced: whole numbers whose result is exact in any order, or with data="random" any floats."""
    draw = np.random.default_rng(seed)
    if dtype in PAIRS:
        pairs = np.zeros(count, numpy_dtype(dtype))
        # Few values: ties are what MINLOC and MAXLOC must settle.
        pairs["value"], pairs["index"] = draw.integers(-2, 3, count), draw.integers(0, 9, count)
        return pairs
    kind = numpy_dtype(dtype)
    if kind.kind == "b":
        return draw.integers(0, 2, count).astype(bool)
    if kind.kind in "iu":
        if op == "SUM" and kind.itemsize < 4:
            # Open MPI's sums of 8 and 16 bits stop at the largest number where C wraps.
            return draw.integers(-9 * (kind.kind == "i"), 9, count).astype(kind)
        bits = draw.integers(0, 256, count * kind.itemsize, np.uint8).view(kind)
        return np.where(draw.integers(0, 2, count), bits, kind.type(0)) if op.startswith("L") else bits
    if data == "random":
        values = draw.standard_normal(count)
        return (values + 1j * draw.standard_normal(count) if dtype in COMPLEX else values).astype(kind)
    if op == "PROD":
        # No part is zero: zeros of either sign would depend on the order.
        factors = draw.choice([-2, -1, 1, 2], count)
        return (factors * (1 + 1j) if dtype in COMPLEX else factors).astype(kind)
    whole = draw.integers(-(2**20), 2**20, 2 * count)
    return (whole[:count] + 1j * whole[count:] if dtype in COMPLEX else whole[:count]).astype(kind)


def padding(dtype):
    """Mask of an element's bytes that mean nothing: in a struct, and in long doubles, of which ten count (x87)."""
    mask = np.zeros(dtype.itemsize, bool)
    if dtype.names:
        mask[:] = True
        for field, offset in (dtype.fields[name][:2] for name in dtype.names):
            mask[offset : offset + field.itemsize] = padding(field)
    elif dtype.char in "gG":
        mask.reshape(-1, np.dtype("g").itemsize)[:, 10:] = True
    return mask


def even(total, parts):
    """mpi4py's rule for a vector whose counts are not given: the first parts take what is left over."""
    return [total // parts + (total % parts > part) for part in range(parts)]


def rotated(items, by):
    return items[by % len(items) :] + items[: by % len(items)]


class Buffer:
    """One rank's buffer for one side of a call.

    case, side : the case, and its Side for this buffer
    kind       : "one", "blocks", "v" or "w"
    units      : list, units of each part
    rank, seed : what the contents depend on
    reduced    : the op when the contents are reduced, else ""

    argument : what the call gets      raw : uint8, every byte, guards included
    start, stop : offsets of the array in raw      first : offset of its first part, unless the kind is "w"
    """

    def __init__(self, case, side, kind, units, rank, seed, reduced=""):
        self.case, self.side, self.kind, self.rank = case, side, kind, rank
        self.seed, self.reduced = seed, reduced
        self.dtype = numpy_dtype(case.dtype)
        self.made = []
        self.start = self.first = GUARD_BYTES + side.shift * self.dtype.itemsize
        nbytes, place = self._lay_out(list(units))
        self.stop = self.start + nbytes
        self.raw = random_bytes([*seed, 0], self.stop + GUARD_BYTES)
        self.array = self.raw[self.start : self.stop].view(self.dtype)
        self.fill(0)
        self.argument = place()

    def fill(self, salt):
        """New contents between the guards, as `seed` and `salt` say."""
        seed = [*self.seed, salt]
        if self.reduced:
            self.array[:] = numbers(self.case.dtype, self.reduced, self.case.data, seed, self.array.size)
        else:
            self.raw[self.start : self.stop] = random_bytes(seed, self.stop - self.start)

    def free(self):
        for datatype in self.made:
            datatype.Free()

    def meaningless(self):
        """Mask of the bytes of `raw` that are padding inside numbers, which MPI need not move."""
        mask = np.zeros(self.raw.size, bool)
        mask[self.start : self.stop] = np.resize(padding(self.dtype), self.stop - self.start)
        return mask

    def _unit(self, part, width):
        types = self.side.types
        number = self.rank + part if self.kind == "w" else self.rank
        unit = unit_of(types[number % len(types)], self.case.dtype, self.case.packed, width)
        if unit.own:
            self.made.append(unit.datatype)
        return unit

    def _lay_out(self, units):
        """(bytes of the array, function that makes the argument once the array is there)"""
        if self.kind == "w":
            return self._lay_out_w(units)
        places = self._places(units)
        unit = self._unit(0, max((place + count for place, count in zip(places, units)), default=0))
        counts = [count * unit.elements for count in units]
        displs = [place * unit.elements for place in places]
        # What the form would infer from an array of the very length.
        inferred = sum(counts) * unit.extent
        end = max((unit.end(displ, count) for displ, count in zip(displs, counts)), default=0)
        fits = end <= inferred and places == self._in_rank_order(units)
        if self.kind == "v":
            fits = fits and counts == even(sum(counts), len(counts))
        if self.kind != "v":
            # mpi4py wants the first part's place inside the buffer also when nothing lies there.
            end = max(end, displs[0] * unit.extent)
        self.first = self.start + displs[0] * unit.extent
        spec = self.side.spec
        if spec in INFERRED and not fits or spec in ("plain", "string") and unit.own:
            spec = "typed" if fits else "full"
        size = inferred if spec in INFERRED else self._rounded(end) + self.side.slack * self.dtype.itemsize
        return size, lambda: self._spell(spec, unit, counts, displs)

    def _rounded(self, nbytes):
        return -(-nbytes // self.dtype.itemsize) * self.dtype.itemsize

    def _in_rank_order(self, units):
        return [sum(units[:part]) for part in range(len(units))]

    def _places(self, units):
        """Each part's place, in units after the buffer's start."""
        side = self.side
        if side.spec not in PLACED:
            return self._in_rank_order(units)
        if self.kind != "v":
            return [side.gaps[0] + place for place in self._in_rank_order(units)]
        gaps, places, position = rotated(side.gaps, self.rank), [0] * len(units), 0
        for part in self._memory_order(len(units)):
            position += gaps[part % len(gaps)]
            places[part] = position
            position += units[part]
        return places

    def _memory_order(self, parts):
        known = [part for part in self.side.order if part < parts]
        known += [part for part in range(parts) if part not in known]
        return rotated(known, self.rank) if known else known

    def _listed(self, values):
        """Counts or displacements in the form that the case asks for."""
        if self.side.counts == "array":
            return np.array(values, np.int64 if self.rank % 2 else np.intc)
        return values

    def _spell(self, spec, unit, counts, displs):
        """The argument; a form that cannot say it becomes one that can."""
        named, array, basic = unit.datatype, self.array, not unit.own and self.case.dtype not in PAIRS
        if self.kind == "v":
            count, displ = self._listed(counts), self._listed(displs)
            if self.side.counts == "single" and len(set(counts)) == 1:
                count = counts[0]
                step = displs[1] if len(displs) > 1 else 0
                displ = step if displs == [step * part for part in range(len(displs))] else displs
        else:
            count, displ = (counts or [0])[0], (displs or [0])[0]
        if self.case.dtype == "clongdouble" and spec == "string":
            # hetccl knows type strings of numbers that it can reduce.
            spec = "typed"
        if not basic:
            spec = {"plain": "typed", "string": "typed", "count_only": "counted", "pair_only": "tuple"}.get(spec, spec)
        return {
            "plain": lambda: array,
            "typed": lambda: [array, named],
            "string": lambda: [array, self.dtype.char],
            "count_only": lambda: [array, count],
            "counted": lambda: (array, count, named),
            "none": lambda: [array, (count, None), named],
            "pair_only": lambda: [array, (count, displ)],
            "tuple": lambda: [array, (count, displ), named],
            "full": lambda: [array, count, displ, named],
        }[spec]()

    def _lay_out_w(self, units):
        """Alltoallw: every part has a datatype and a place in bytes of its own."""
        each = [self._unit(part, count) for part, count in enumerate(units)]
        counts = [count * unit.elements for count, unit in zip(units, each)]
        gaps, places, position = rotated(self.side.gaps, self.rank), [0] * len(units), 0
        for part in self._memory_order(len(units)):
            position += gaps[part % len(gaps)] * self.dtype.itemsize
            places[part] = position
            position += self._rounded(each[part].end(0, counts[part]))
        types = [unit.datatype for unit in each]
        return position + self.side.slack * self.dtype.itemsize, lambda: self._spell_w(counts, places, types)

    def _spell_w(self, counts, places, types):
        if self.side.spec == "typed":
            # One element per part, which says itself where it lies.
            whole = [MPI.Datatype.Create_struct([n], [place], [t]) for n, place, t in zip(counts, places, types)]
            for datatype in whole:
                datatype.Commit()
            self.made += whole
            return [self.array, whole]
        count, place = self._listed(counts), self._listed(places)
        return [self.array, (count, place), types] if self.side.spec == "tuple" else [self.array, count, place, types]
