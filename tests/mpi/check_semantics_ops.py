"""What docs/semantics.md says of numbers: zeros, ties, order of operands, user functions, the same bits everywhere."""

import threading
from functools import reduce

import numpy as np
from mpi4py import MPI
from support import equal, make_comm, raises, run_checks, still_works

import hetccl

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.Get_size(), WORLD.Get_rank()
EVERY = range(SIZE)
FLOATS = (np.float16, np.float32, np.float64)
# Permutations of three things by number, and what one after another gives: associative, but order matters.
PERMUTATIONS = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
AFTER = np.array([[PERMUTATIONS.index(tuple(p[i] for i in q)) for q in PERMUTATIONS] for p in PERMUTATIONS])


def noise(rank, count, dtype=np.float32):
    """Random values whose sums depend on the order; the same for a rank in every run."""
    return np.random.default_rng([rank, count]).standard_normal(count).astype(dtype)


def permutations(rank, count=1000):
    return (np.arange(count) * (rank + 2) + rank) % 6


def compose(inbuf, inoutbuf, datatype):
    """inout = in after inout, as MPI calls a user function: `in` comes from the lower ranks."""
    out = np.frombuffer(inoutbuf, np.int64)
    out[:] = AFTER[np.frombuffer(inbuf, np.int64), out]


def allreduce(comm, data, op):
    out = np.empty_like(data)
    comm.Allreduce(data, out, op=op)
    return out


def check_signed_zeros(comm):
    """MIN and MAX order -0 below +0, whichever rank holds which."""
    for dtype in FLOATS:
        for holder in EVERY:
            for own, other, op in ((-0.0, 0.0, hetccl.MIN), (0.0, -0.0, hetccl.MAX)):
                out = allreduce(comm, np.full(9, own if holder == RANK else other, dtype), op)
                equal(out, np.full(9, own, dtype))


def check_forms_have_the_same_bits(comm):
    """Blocking, nonblocking and persistent calls add up in the same order."""
    for count in (7, 40_003):
        want = allreduce(comm, noise(RANK, count), hetccl.SUM)
        out = np.zeros_like(want)
        comm.Iallreduce(noise(RANK, count), out).Wait()
        equal(out, want)
        out[:] = 0
        request = comm.Allreduce_init(noise(RANK, count), out)
        for _ in range(2):
            out[:] = 0
            request.Start()
            request.Wait()
            equal(out, want)
        request.Free()


def check_all_ranks_have_the_same_bits(comm):
    for call in (comm.Allreduce, lambda data, out: comm.Iallreduce(data, out).Wait()):
        out, every = np.zeros(5001, np.float32), np.zeros((SIZE, 5001), np.float32)
        call(noise(RANK, 5001), out)
        comm.Allgather(out, every)
        for other in every:
            equal(other, out)


def check_scan_adds_in_rank_order(comm):
    """The sum of ranks 0 to r, from the left: no other grouping has these bits."""
    for count in (1, 11, 70_001):
        parts = [noise(rank, count) for rank in EVERY]
        out = np.zeros(count, np.float32)
        comm.Scan(parts[RANK], out)
        equal(out, reduce(np.add, parts[: RANK + 1]))
        out[:] = -1
        comm.Exscan(parts[RANK], out)
        equal(out, reduce(np.add, parts[:RANK]) if RANK else np.full(count, -1, np.float32))


def check_average_of_a_scan_is_refused(comm):
    for call in (comm.Scan, comm.Exscan):
        with raises(TypeError, names="op"):
            call(np.ones(3), np.zeros(3), op=hetccl.AVG)
    still_works(comm)


def check_places_of_extremes(comm):
    """MINLOC and MAXLOC: the lowest index of those that are equal; NaN counts as the extreme, as in MIN and MAX."""
    pair = np.dtype([("value", "f8"), ("place", "i4")], align=True)
    data, out = np.zeros(4, pair), np.zeros(4, pair)
    data["value"] = [RANK, -RANK, 5, np.nan if RANK == SIZE - 1 else RANK]
    data["place"] = [RANK, RANK, SIZE - RANK, RANK]
    for op, value, place in (
        (hetccl.MINLOC, [0, 1 - SIZE, 5, np.nan], [0, SIZE - 1, 1, SIZE - 1]),
        (hetccl.MAXLOC, [SIZE - 1, 0, 5, np.nan], [SIZE - 1, 0, 1, SIZE - 1]),
    ):
        comm.Allreduce([data, 4, MPI.DOUBLE_INT], [out, 4, MPI.DOUBLE_INT], op=op)
        assert np.array_equal(out["value"], np.array(value, float), equal_nan=True), out
        equal(out["place"].copy(), np.array(place, "i4"))


def check_logical_and_bitwise_ops(comm):
    """As NumPy's; of two operands or more the logical ones give 0 or 1, of one the operand."""
    parts = [(np.arange(12) % 4 * (rank + 1) % 7).astype(np.int32) for rank in EVERY]
    for op, fold in (
        (hetccl.LAND, lambda a, b: (a != 0) & (b != 0)),
        (hetccl.LOR, lambda a, b: (a != 0) | (b != 0)),
        (hetccl.LXOR, lambda a, b: (a != 0) ^ (b != 0)),
        (hetccl.BAND, np.bitwise_and),
        (hetccl.BOR, np.bitwise_or),
        (hetccl.BXOR, np.bitwise_xor),
    ):
        want = reduce(fold, parts)
        equal(allreduce(comm, parts[RANK], op), np.asarray(want).astype(np.int32))


def check_premultiplied_sum(comm):
    """Each rank's own factor: the product is rounded in the dtype, then summed."""
    out = allreduce(comm, np.arange(9.0) + RANK, hetccl.premul_sum(0.5 * (RANK + 1)))
    equal(out, sum((np.arange(9.0) + rank) * (0.5 * (rank + 1)) for rank in EVERY))
    with raises(ValueError, names="factor"):
        allreduce(comm, np.arange(3), hetccl.premul_sum(0.5))
    still_works(comm)


def check_user_functions_keep_rank_order(comm):
    """A function that does not commute gets the ranks' operands from the left to the right."""
    want = reduce(lambda a, b: AFTER[a, b], [permutations(rank) for rank in EVERY])
    theirs = MPI.Op.Create(compose, commute=False)
    for op in (hetccl.Op.Create(compose, commute=False), theirs):
        equal(allreduce(comm, permutations(RANK), op), want)
        out = np.zeros(1000, np.int64)
        comm.Reduce(permutations(RANK), out, op, root=SIZE - 1)
        equal(out, want if RANK == SIZE - 1 else np.zeros(1000, np.int64))
        comm.Scan(permutations(RANK), out, op)
        equal(out, reduce(lambda a, b: AFTER[a, b], [permutations(rank) for rank in range(RANK + 1)]))
    theirs.Free()


def check_user_functions_run_in_the_caller(comm):
    """They need Python, so that a nonblocking call runs them in the thread that waits."""
    callers = set()

    def add(inbuf, inoutbuf, datatype):
        callers.add(threading.get_ident())
        out = np.frombuffer(inoutbuf, np.float64)
        out += np.frombuffer(inbuf, np.float64)

    out = np.zeros(7)
    comm.Iallreduce(np.arange(7.0), out, hetccl.Op.Create(add, commute=True)).Wait()
    equal(out, SIZE * np.arange(7.0))
    assert callers <= {threading.get_ident()}


def check_error_in_a_user_function(comm):
    """It reaches the caller; nobody hangs."""

    def fail(inbuf, inoutbuf, datatype):
        raise ZeroDivisionError("of the user's own")

    caught = None
    with make_comm() as other:
        try:
            other.Allreduce(np.ones(5), np.zeros(5), hetccl.Op.Create(fail))
        except (ZeroDivisionError, hetccl.HetcclError) as error:
            caught = type(error).__name__
    everyone = WORLD.allgather(caught)
    assert SIZE == 1 or "ZeroDivisionError" in everyone, everyone
    still_works(comm)


def check_uneven_reduce_scatter(comm):
    """73 elements over the ranks, as equal as can be."""
    counts = [73 // SIZE + (rank < 73 % SIZE) for rank in EVERY]
    start = sum(counts[:RANK])
    out = np.zeros(counts[RANK], np.int64)
    comm.Reduce_scatter(np.arange(73) * (RANK + 1), out, counts)
    equal(out, np.arange(73)[start : start + counts[RANK]] * (SIZE * (SIZE + 1) // 2))


if __name__ == "__main__":
    run_checks(globals())
