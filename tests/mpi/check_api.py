"""The names, arguments and buffer specs are mpi4py's."""

import time

import numpy as np
from mpi4py import MPI
from support import Guarded, equal, make_comm, raises, rank_labels, run_checks, still_works

import hetccl

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.Get_size(), WORLD.Get_rank()


def ramp(rank, count=12, dtype=np.float32):
    """Values that differ by rank and index, whose sums are exact."""
    return (np.arange(count) * 3 + 100 * rank + 1).astype(dtype)


def total(count=12, dtype=np.float32):
    return sum(ramp(rank, count, np.float64) for rank in range(SIZE)).astype(dtype)


def check_rank_and_size(comm):
    assert (comm.Get_rank(), comm.Get_size()) == (RANK, SIZE)
    assert (comm.rank, comm.size) == (RANK, SIZE)


def check_islands(comm):
    labels = rank_labels()
    want = [tuple(rank for rank in range(SIZE) if labels[rank] == label) for label in dict.fromkeys(labels)]
    assert [tuple(island.ranks) for island in comm.islands] == want
    if len(want) > 1:
        assert [island.label for island in comm.islands] == list(dict.fromkeys(labels))
    assert all(isinstance(island.vendor, str) for island in comm.islands)


def check_either_in_place(comm):
    for in_place in (MPI.IN_PLACE, hetccl.IN_PLACE):
        data = ramp(RANK)
        comm.Allreduce(in_place, data)
        equal(data, total())
        data = ramp(RANK)
        comm.Reduce(*((in_place, data) if RANK == SIZE - 1 else (data, None)), root=SIZE - 1)
        equal(data, total() if RANK == SIZE - 1 else ramp(RANK))
        data = np.zeros((SIZE, 12), np.float32)
        data[RANK] = ramp(RANK)
        comm.Allgather(in_place, data)
        equal(data, np.stack([ramp(rank) for rank in range(SIZE)]))
        data = ramp(RANK, 5 * SIZE)
        comm.Reduce_scatter_block(in_place, data)
        equal(data[:5], total(5 * SIZE)[5 * RANK : 5 * RANK + 5])
        data = ramp(RANK, 5 * SIZE)
        comm.Alltoall(in_place, data)
        equal(data, np.concatenate([ramp(rank, 5 * SIZE)[5 * RANK : 5 * RANK + 5] for rank in range(SIZE)]))


def check_in_place_equals_out_of_place(comm):
    """Unlike a formula's small integers, these sums depend on the order: both forms must use the same one."""
    data = np.random.default_rng(RANK).standard_normal(1001).astype(np.float32)
    out = np.empty_like(data)
    comm.Allreduce(data, out)
    comm.Allreduce(MPI.IN_PLACE, data)
    equal(data, out)


def check_none_is_in_place(comm):
    """As in mpi4py, None for the send buffer is IN_PLACE."""
    data = ramp(RANK)
    comm.Allreduce(None, data)
    equal(data, total())


def check_ops_of_both_libraries(comm):
    for ours, theirs, fold in (
        (hetccl.SUM, MPI.SUM, np.add),
        (hetccl.PROD, MPI.PROD, np.multiply),
        (hetccl.MIN, MPI.MIN, np.minimum),
        (hetccl.MAX, MPI.MAX, np.maximum),
    ):
        parts = [ramp(rank, 6, np.float64) for rank in range(SIZE)]
        want = parts[0]
        for part in parts[1:]:
            want = fold(want, part)
        for op in (ours, theirs):
            out = np.zeros(6)
            comm.Allreduce(ramp(RANK, 6, np.float64), out, op)
            equal(out, want)
            comm.Allreduce(ramp(RANK, 6, np.float64), out, op=op)
            equal(out, want)


def check_sum_is_the_default(comm):
    out, block = np.zeros(12, np.float32), np.zeros(4, np.float32)
    comm.Allreduce(ramp(RANK), out)
    equal(out, total())
    comm.Reduce(ramp(RANK), out)
    comm.Reduce_scatter_block(ramp(RANK, 4 * SIZE), block)
    equal(block, total(4 * SIZE)[4 * RANK : 4 * RANK + 4])


def check_specs(comm):
    """[data, datatype], [data, count], [data, count, datatype]; elements beyond the count stay as they are."""
    for send_spec, recv_spec in (
        (lambda a: [a, MPI.FLOAT], lambda a: (a, MPI.FLOAT)),
        (lambda a: a, lambda a: [a, None]),
        (lambda a: [a, 12], lambda a: [a, 12]),
        (lambda a: [a, 12, MPI.FLOAT], lambda a: [a, 12, MPI.FLOAT]),
        (lambda a: (a, 12, "f"), lambda a: (a, 12, "f")),
    ):
        receive = Guarded(dtype=np.float32, count=12)
        comm.Allreduce(send_spec(ramp(RANK)), recv_spec(receive.array))
        equal(receive.array, total())
        assert receive.overwritten() is None

    receive = np.full(12, -1, np.float32)
    comm.Allreduce([ramp(RANK), 7, MPI.FLOAT], [receive, 7, MPI.FLOAT], op=MPI.SUM)
    equal(receive, np.concatenate([total()[:7], np.full(5, -1, np.float32)]))
    data = ramp(RANK)
    comm.Bcast([data, 7, MPI.FLOAT], root=SIZE - 1)
    equal(data, np.concatenate([ramp(SIZE - 1)[:7], ramp(RANK)[7:]]))


def check_untyped_bytes(comm):
    """A bytearray is numbers of the datatype that the spec names, and bytes without one."""
    receive = bytearray(48)
    comm.Allreduce([ramp(RANK).tobytes(), MPI.FLOAT], [receive, MPI.FLOAT])
    equal(np.frombuffer(receive, np.float32), total())
    message = bytearray(b"from the root" if RANK == 0 else 13)
    comm.Bcast(message, root=0)
    assert bytes(message) == b"from the root"


def check_shapes(comm):
    """Any contiguous shape counts as its elements in memory order."""
    for shape, order in (((3, 4), "C"), ((3, 4), "F"), ((2, 1, 6), "C"), ((12, 1), "F")):
        send = np.empty(shape, np.float32, order)
        send.ravel("K")[:] = ramp(RANK)
        receive = np.zeros_like(send)
        comm.Allreduce(send, receive)
        equal(receive.ravel("K"), total())
    scalar = np.zeros((), np.int32)
    comm.Allreduce(np.array(RANK + 1, np.int32), scalar)
    assert scalar == SIZE * (SIZE + 1) // 2


def check_read_only_send(comm):
    send, receive = ramp(RANK), np.zeros(12, np.float32)
    send.flags.writeable = False
    comm.Allreduce(send, receive)
    equal(receive, total())
    data = ramp(RANK)
    data.flags.writeable = RANK != 0
    comm.Bcast(data, root=0)
    equal(data, ramp(0))


def check_reduce_every_root(comm):
    """The receive buffer means something at the root alone: elsewhere it may be None or anything."""
    for root in range(SIZE):
        for elsewhere in (None, np.zeros(1, np.int8)):
            receive = np.zeros(12, np.float32) if root == RANK else elsewhere
            comm.Reduce(ramp(RANK), receive, op=MPI.SUM, root=root)
            if root == RANK:
                equal(receive, total())
        assert elsewhere == 0


def check_bcast_every_root(comm):
    for root in range(SIZE):
        data = ramp(RANK) if root == RANK else np.zeros(12, np.float32)
        comm.Bcast(data, root=root)
        equal(data, ramp(root))
    data = ramp(RANK)
    comm.Bcast(data)
    equal(data, ramp(0))


def check_zero_counts(comm):
    empty = np.empty((0, 3), np.float32)
    out = np.empty((0, 3), np.float32)
    for _ in range(3):
        comm.Allreduce(empty, out)
        comm.Allreduce(MPI.IN_PLACE, out)
        comm.Reduce(empty, out if RANK == 0 else None)
        comm.Bcast(out)
        comm.Allgather(empty, out)
        comm.Reduce_scatter_block(empty, out)
        comm.Alltoall(empty, out)
        comm.Sendrecv(empty, (RANK + 1) % SIZE, 0, out, (RANK - 1) % SIZE, 0)
        still_works(comm)
    untouched = np.full(4, 7, np.float32)
    comm.Allreduce([ramp(RANK), 0, MPI.FLOAT], [untouched, 0, MPI.FLOAT])
    equal(untouched, np.full(4, 7, np.float32))


def check_gathered_shapes(comm):
    """Receive buffers of size * n elements in any shape; blocks in rank order whatever the islands."""
    receive = np.zeros((SIZE, 3, 4), np.int64)
    comm.Allgather(ramp(RANK, 12, np.int64).reshape(3, 4), receive)
    for rank in range(SIZE):
        equal(receive[rank], ramp(rank, 12, np.int64))
    receive = np.zeros((SIZE, 2), np.int64)
    comm.Alltoall(np.arange(2 * SIZE, dtype=np.int64) + 1000 * RANK, receive)
    equal(receive, np.stack([np.array([2 * RANK, 2 * RANK + 1]) + 1000 * rank for rank in range(SIZE)]))


def check_barrier(comm):
    """Nobody leaves before the last has come."""
    for late in range(SIZE):
        if late == RANK:
            time.sleep(0.1)
        entered = time.monotonic()
        comm.Barrier()
        left = time.monotonic()
        everyone = np.zeros(SIZE)
        comm.Allgather(np.array([entered]), everyone)
        assert left >= everyone.max()


def check_other_methods_pass_to_mpi(comm):
    assert comm.bcast({"from": RANK}, root=SIZE - 1) == {"from": SIZE - 1}
    assert comm.allreduce(RANK) == SIZE * (SIZE - 1) // 2
    assert comm.allgather(RANK) == list(range(SIZE))
    assert comm.gather(RANK, root=0) == (list(range(SIZE)) if RANK == 0 else None)
    assert comm.Get_group().Get_size() == SIZE
    assert isinstance(comm.Get_name(), str)
    assert not comm.Is_inter()
    receive = np.zeros(SIZE, np.int32)
    comm.Allgatherv(np.array([RANK], np.int32), [receive, [1] * SIZE])
    equal(receive, np.arange(SIZE, dtype=np.int32))
    with raises(AttributeError, names="no_such_method"):
        comm.no_such_method()


def check_context_manager(comm):
    with make_comm() as inner:
        still_works(inner)
    with raises(hetccl.CommClosed):
        inner.Barrier()
    still_works(comm)


def check_freed(comm):
    """Free may be called again; every use afterwards is CommClosed."""
    other = make_comm()
    still_works(other)
    other.Free()
    other.Free()
    send, receive = np.ones(SIZE, np.float32), np.zeros(SIZE, np.float32)
    for use in (
        lambda: other.Allreduce(send, receive),
        lambda: other.Reduce(send, receive),
        lambda: other.Bcast(receive),
        lambda: other.Allgather(send[:1], receive),
        lambda: other.Reduce_scatter_block(send, receive[:1]),
        lambda: other.Alltoall(send, receive),
        lambda: other.Barrier(),
        lambda: other.Send(send, 0),
        lambda: other.Recv(receive, 0),
        lambda: other.Sendrecv(send, 0, 0, receive, 0, 0),
    ):
        with raises(hetccl.CommClosed):
            use()
    still_works(comm)


def check_world_survives_free(comm):
    """Free frees what hetccl made, not the communicator it was given."""
    mpi_comm = WORLD.Dup()
    hetccl.Comm(mpi_comm).Free()
    assert mpi_comm.allreduce(1) == SIZE
    mpi_comm.Free()


def check_sub_communicators(comm):
    """All parts of a split at once, of different sizes, also in reversed rank order."""
    part = WORLD.Split(color=RANK * 2 // SIZE, key=-RANK)
    with make_comm(part) as inner:
        assert (inner.Get_rank(), inner.Get_size()) == (part.Get_rank(), part.Get_size())
        assert sorted(rank for island in inner.islands for rank in island.ranks) == list(range(part.Get_size()))
        still_works(inner)
        receive = np.zeros(part.Get_size(), np.int64)
        inner.Allgather(np.array([RANK], np.int64), receive)
        assert receive.tolist() == part.allgather(RANK)
    part.Free()
    alone = WORLD.Split(color=RANK)
    with make_comm(alone) as inner:
        still_works(inner)
    alone.Free()


def check_communicators_do_not_mix(comm):
    """Two communicators over the same ranks, used in opposite order where that is legal."""
    with make_comm() as other:
        first, second = np.full(5, RANK, np.int32), np.full(5, 10 * RANK, np.int32)
        outs = np.zeros(5, np.int32), np.zeros(5, np.int32)
        for _ in range(20):
            comm.Allreduce(first, outs[0], op=hetccl.MAX)
            other.Allreduce(second, outs[1], op=hetccl.MAX)
            equal(outs[0], np.full(5, SIZE - 1, np.int32))
            equal(outs[1], np.full(5, 10 * (SIZE - 1), np.int32))


def check_buffers_of_other_kinds(comm):
    """array.array and memoryview on either side."""
    import array

    receive = array.array("d", [0.0] * 6)
    comm.Allreduce(memoryview(ramp(RANK, 6, np.float64)), receive)
    equal(np.array(receive), total(6, np.float64))


if __name__ == "__main__":
    run_checks(globals())
