"""Typemaps by the definitions of MPI 4.1, section 5.1: the independent reference for layouts.

A `Made` stands for an MPI datatype: `typemap` lists (displacement, bytes) of its basic elements in order, and
`description` is what the bootstrap would decode an MPI datatype to.
"""

import itertools
import random
import sys
from contextlib import contextmanager
from dataclasses import dataclass

from hetccl._buffer import register_mpi
from hetccl._layout import register_decoder

HANDLES = itertools.count(-1, -1)  # no MPI has negative ones


@dataclass(eq=False)
class Made:
    typemap: list
    lb: int
    ub: int
    description: tuple
    handle: int

    @property
    def extent(self):
        return self.ub - self.lb

    @property
    def size(self):
        return sum(n for _, n in self.typemap)

    def positions(self, count):
        """Byte offsets of the packed stream of `count` elements, in order."""
        return [i * self.extent + at + k for i in range(count) for at, n in self.typemap for k in range(n)]


def handle_of(datatype):
    if not isinstance(datatype, Made):
        raise TypeError("no datatype")
    return datatype.handle


@contextmanager
def registered():
    """The buffer parser takes `Made`s for MPI's datatypes meanwhile."""
    register_mpi({}, handle_of, None, None)
    register_decoder(lambda datatype: datatype.description)
    yield
    register_decoder(None)
    bootstrap = sys.modules.get("hetccl.bootstrap")
    if bootstrap is not None:
        register_mpis_own(bootstrap)


def register_mpis_own(bootstrap):
    mpi = bootstrap.MPI
    register_mpi(bootstrap._handles, mpi._handleof, mpi.IN_PLACE, mpi.BOTTOM)
    register_decoder(bootstrap._decode)


def named(nbytes):
    handle = next(HANDLES)
    return Made([(0, nbytes)], 0, nbytes, ("NAMED", nbytes, {"handle": handle}, ()), handle)


def made(combiner, params, children, blocks, bounds=None):
    """blocks: (child, how many, displacement in bytes). bounds: (lb, ub), else those of the blocks."""
    typemap, lows, highs = [], [], []
    for child, count, displ in blocks:
        for i in range(count):
            at = displ + i * child.extent
            typemap += [(at + offset, n) for offset, n in child.typemap]
            lows.append(at + child.lb)
            highs.append(at + child.ub)
    lb, ub = bounds or (min(lows, default=0), max(highs, default=0))
    description = combiner, ub - lb, params, [child.description for child in children]
    return Made(typemap, lb, ub, description, next(HANDLES))


def contiguous(child, count):
    return made("CONTIGUOUS", {"count": count}, [child], [(child, count, 0)])


def vector(child, count, length, stride):
    params = {"count": count, "blocklength": length, "stride": stride}
    return made("VECTOR", params, [child], [(child, length, i * stride * child.extent) for i in range(count)])


def hvector(child, count, length, stride):
    params = {"count": count, "blocklength": length, "stride": stride}
    return made("HVECTOR", params, [child], [(child, length, i * stride) for i in range(count)])


def indexed(child, lengths, displs):
    params = {"blocklengths": lengths, "displacements": displs}
    blocks = [(child, n, at * child.extent) for n, at in zip(lengths, displs)]
    return made("INDEXED", params, [child], blocks)


def hindexed(child, lengths, displs):
    params = {"blocklengths": lengths, "displacements": displs}
    return made("HINDEXED", params, [child], [(child, n, at) for n, at in zip(lengths, displs)])


def indexed_block(child, length, displs):
    params = {"blocklength": length, "displacements": displs}
    return made("INDEXED_BLOCK", params, [child], [(child, length, at * child.extent) for at in displs])


def hindexed_block(child, length, displs):
    params = {"blocklength": length, "displacements": displs}
    return made("HINDEXED_BLOCK", params, [child], [(child, length, at) for at in displs])


def struct(children, lengths, displs):
    params = {"blocklengths": lengths, "displacements": displs}
    return made("STRUCT", params, children, list(zip(children, lengths, displs)))


def subarray(child, sizes, subsizes, starts, order):
    params = {"sizes": sizes, "subsizes": subsizes, "starts": starts, "order": order}
    dims = list(range(len(sizes)))
    slowest_first = dims if order == "C" else dims[::-1]
    steps, step = {}, 1
    for dim in reversed(slowest_first):
        steps[dim] = step
        step *= sizes[dim]
    blocks = []
    for index in itertools.product(*[range(subsizes[dim]) for dim in slowest_first]):
        at = sum((starts[dim] + i) * steps[dim] for dim, i in zip(slowest_first, index))
        blocks.append((child, 1, at * child.extent))
    return made("SUBARRAY", params, [child], blocks, (0, step * child.extent))


def resized(child, lb, extent):
    return made("RESIZED", {"lb": lb, "extent": extent}, [child], [(child, 1, 0)], (lb, lb + extent))


def dup(child):
    return made("DUP", {}, [child], [(child, 1, 0)], (child.lb, child.ub))


def rising(rng, count, unit):
    """Displacements that usually rise, now and then without a gap."""
    displs, at = [], 0
    for _ in range(count):
        at += rng.randint(0, 3)
        displs.append(at * unit)
        at += rng.randint(1, 3)
    if rng.random() < 0.2:
        rng.shuffle(displs)
    return displs


def wild(rng: random.Random, depth):
    """A random datatype, up to `depth` constructors deep: also negative strides, overlaps, empty and odd parts."""
    if depth == 0 or rng.random() < 0.1:
        return named(rng.choice([1, 2, 4, 8, 16]))
    child = wild(rng, depth - 1)
    count, length = rng.randint(0, 4), rng.randint(0, 3)
    kind = rng.randrange(10)
    if kind == 0:
        return contiguous(child, count)
    if kind == 1:
        return vector(child, count, length, rng.randint(-3, 5))
    if kind == 2:
        return hvector(child, count, length, rng.randint(-40, 60))
    if kind == 3:
        return indexed(child, [rng.randint(0, 3) for _ in range(count)], rising(rng, count, 1))
    if kind == 4:
        return hindexed(child, [rng.randint(0, 3) for _ in range(count)], rising(rng, count, rng.randint(-9, 9)))
    if kind == 5:
        return rng.choice([indexed_block(child, length, rising(rng, count, 1)), dup(child)])
    if kind == 6:
        return hindexed_block(child, length, rising(rng, count, rng.randint(1, 9)))
    if kind == 7:
        children = [child, *(wild(rng, depth - 1) for _ in range(rng.randint(0, 2)))]
        return struct(children, [rng.randint(0, 2) for _ in children], rising(rng, len(children), 16))
    if kind == 8:
        sizes = [rng.randint(1, 5) for _ in range(rng.randint(1, 3))]
        subsizes = [rng.randint(1, size) for size in sizes]
        starts = [rng.randint(0, size - subsize) for size, subsize in zip(sizes, subsizes)]
        return subarray(child, sizes, subsizes, starts, rng.choice("CF"))
    return resized(child, child.lb - rng.choice([0, 0, 4]), child.extent + rng.choice([-4, 0, 4, 8]))
