"""For the programs: the faults of compare_case.FAULTS and DIFFERENCES, put into the arguments of a collective."""

import numpy as np
from compare_case import COLLECTIVES, target
from compare_types import base_type
from mpi4py import MPI


def spoil(call, size):
    """Put the fault of a call's case into its arguments.

    call : compare_run.Call; its arguments are changed
    """
    fault, side = call.case.fault, target(call.case.call)
    if fault in _WHOLE:
        call.arguments.update(_WHOLE[fault](call, size))
        return
    kind, buffer = getattr(COLLECTIVES[call.case.call], side), getattr(call, side)
    call.arguments[side] = _BUFFER[fault](buffer, kind, size)


def _elements(buffer, count):
    """A new array; the buffer's own must not change in length."""
    return np.zeros(count, buffer.dtype)


def _spec(array, kind, size, counts, displs, type_of):
    """A complete spec of any kind."""
    if kind == "w":
        return [array, counts, [d * array.itemsize for d in displs], [type_of] * len(counts)]
    if kind == "v":
        return [array, counts, displs, type_of]
    return [array, counts[0], displs[0], type_of]


def _full(buffer, kind, size, counts=None, displs=None, room=0):
    counts = [1] * size if counts is None else counts
    displs = list(range(size)) if displs is None else displs
    return _spec(_elements(buffer, size + room), kind, size, counts, displs, base_type(buffer.case.dtype))


def _strided(buffer, kind, size):
    holes = np.zeros(8 * size, buffer.dtype)[::2]
    if kind == "w":
        return [holes, [1] * size, [0] * size, [base_type(buffer.case.dtype)] * size]
    return [holes, base_type(buffer.case.dtype)]


def _readonly(buffer, kind, size):
    spec = _full(buffer, kind, size)
    spec[0].flags.writeable = False
    return spec


_BUFFER = {
    "strided": _strided,
    "readonly": _readonly,
    "objects": lambda buffer, kind, size: np.array([None] * size),
    "number": lambda buffer, kind, size: 3,
    "words": lambda buffer, kind, size: "buffer",
    "long_spec": lambda buffer, kind, size: [*_full(buffer, kind, size), None],
    "bad_string": lambda buffer, kind, size: [_elements(buffer, size), "nothing"],
    "float_count": lambda buffer, kind, size: _full(buffer, kind, size, counts=[1.5]),
    "negative_count": lambda buffer, kind, size: _full(buffer, kind, size, counts=[-1]),
    "negative_displ": lambda buffer, kind, size: _full(buffer, kind, size, displs=[-1]),
    "short_counts": lambda buffer, kind, size: _full(buffer, kind, size, counts=[1] * (size - 1)),
    "long_counts": lambda buffer, kind, size: _full(buffer, kind, size, counts=[1] * (size + 1)),
    "uneven": lambda buffer, kind, size: [_elements(buffer, size + 1), base_type(buffer.case.dtype)],
    "beyond": lambda buffer, kind, size: _full(buffer, kind, size, counts=[size + 1], displs=[0]),
    "part_beyond": lambda buffer, kind, size: _full(buffer, kind, size, displs=[*range(size - 1), size]),
    "overlap": lambda buffer, kind, size: _full(buffer, kind, size, displs=[0, 0, *range(2, size)]),
}


def _pair(call, size, other, send_type=None):
    """Both buffers, as plain specs that fit each other: a part per rank where the collective has parts."""
    shape = COLLECTIVES[call.case.call]
    buffer = call.recv
    named = base_type(call.case.dtype)
    recv = _spec(_elements(buffer, size), shape.recv, size, [1] * size, list(range(size)), named)
    counts = [1] * size
    if call.case.call == "Reduce_scatter":
        counts = [size]
    send = _spec(_elements(buffer, 2 * size), shape.send, size, counts, list(range(size)), send_type or named)
    changed = {"send": send, "recv": recv}
    if call.case.call == "Reduce_scatter":
        changed["recvcounts"] = [1] * size
    return other(changed, size)


def _other_count(changed, size):
    changed["send"][1] += 1
    return changed


def _aliased(changed, size):
    changed["send"][0] = changed["recv"][0] = np.zeros(2 * size, changed["recv"][0].dtype)
    return changed


def _same(changed, size):
    return changed


def _undefined_op(call, size):
    floating = call.case.dtype in ("float32", "float64", "longdouble", "complex64", "complex128")
    return {"op": MPI.BAND if floating else MPI.MINLOC}


_WHOLE = {
    "other_count": lambda call, size: _pair(call, size, _other_count),
    "other_type": lambda call, size: _pair(call, size, _same, _stranger(call)),
    "mixed_types": lambda call, size: _pair(call, size, _same, _stranger(call)),
    "aliased": lambda call, size: _pair(call, size, _aliased),
    "no_op": lambda call, size: {"op": "SUM"},
    "undefined_op": _undefined_op,
    "root_beyond": lambda call, size: {"root": size},
    "float_rank": lambda call, size: {"root": 0.5},
}


def _stranger(call):
    """A type of the same size that means something else."""
    return MPI.FLOAT if call.case.dtype == "int32" else MPI.INT
