"""What docs/semantics.md says of collectives: buffers, in place, overlap, specs, roots, zero counts.

Its rules about numbers are in check_semantics_ops.py, messages in _p2p, requests in _requests, communicators in _comms.
"""

import os

import numpy as np
from mpi4py import MPI
from support import Guarded, as_bytes, equal, make_comm, raises, run_checks, still_works

import hetccl

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.Get_size(), WORLD.Get_rank()
EVERY = range(SIZE)
# Three elements for rank 0, then more; so that blocks differ and none is empty.
COUNTS = [3 + rank for rank in EVERY]
STARTS = [sum(COUNTS[:rank]) for rank in EVERY]


def ramp(rank, count=12, dtype=np.float64):
    """Values that differ by rank and index, whose sums are exact."""
    return (np.arange(count) * 3 + 100 * rank + 1).astype(dtype)


def total(count=12, dtype=np.float64):
    return sum(ramp(rank, count) for rank in EVERY).astype(dtype)


def joined(make):
    """make(rank) of all ranks, one after another."""
    return np.concatenate([make(rank) for rank in EVERY])


def comm_with(name, value):
    """A communicator that is made with this environment variable."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        return make_comm()
    finally:
        os.environ.pop(name)
        os.environ.update({name: before} if before is not None else {})


def checked_comm():
    """A communicator that compares its calls across the ranks."""
    return comm_with("HETCCL_CHECK", "1")


class Device:
    """What a library of arrays in GPU memory hands out; the address is never read."""

    def __init__(self, count):
        self.__cuda_array_interface__ = {
            "shape": (count,), "typestr": "<f8", "data": (1 << 40, False), "version": 3,
        }  # fmt: skip


def check_buffers_are_free_on_return(comm):
    """What is written to a send buffer after the call does not reach the others; the result is there."""
    for count in (5, 200_003):
        for number in range(4):
            send, out = ramp(RANK, count) + number, np.zeros(count)
            comm.Allreduce(send, out)
            send[:] = -1
            equal(out, total(count) + SIZE * number)
            data = ramp(RANK, count) + number
            comm.Bcast(data, root=number % SIZE)
            got = data.copy()
            data[:] = -1
            equal(got, ramp(number % SIZE, count) + number)


def check_stream_is_for_devices(comm):
    data, out = ramp(RANK), np.zeros(12)
    for call in (
        lambda: comm.Allreduce(data, out, stream=1),
        lambda: comm.Bcast(data, stream=1),
        lambda: comm.Send(data, MPI.PROC_NULL, stream=1),
        lambda: comm.Irecv(data, MPI.PROC_NULL, stream=1),
    ):
        with raises(ValueError, names="stream"):
            call()
    still_works(comm)


def check_host_and_device_memory_in_one_call(comm):
    out = np.zeros(12)
    for call in (
        lambda: comm.Allreduce(Device(12), out),
        lambda: comm.Allreduce(ramp(RANK), Device(12)),
        lambda: comm.Allgather(ramp(RANK), Device(12 * SIZE)),
        lambda: comm.Sendrecv(Device(12), RANK, recvbuf=out, source=RANK),
    ):
        with raises(ValueError, names=("sendbuf", "recvbuf", "host memory")):
            call()
    equal(out, np.zeros(12))
    still_works(comm)


def check_gpu_buffers_where_no_library_serves_them(comm):
    """An error on each rank, and host buffers work on. In one island the ranks tell each other what they lack."""
    with comm_with("HETCCL_CUDA_LIB", "/nowhere/libcuda.so.1") as bare:
        for call in (lambda: bare.Allreduce(MPI.IN_PLACE, Device(12)), lambda: bare.Bcast(Device(12), 0)):
            named = () if len(comm.islands) > 1 else (f"rank {r}" for r in EVERY)
            with raises(hetccl.LibraryNotFound, names=("/nowhere/libcuda.so.1", *named)):
                call()
            still_works(bare)


def check_memory_orders_across_ranks(comm):
    """Elements travel in memory order; that ranks differ in it is found by HETCCL_CHECK alone."""
    data = np.zeros((3, 4), order="F" if RANK % 2 else "C")
    data.ravel("K")[:] = ramp(RANK)
    comm.Bcast(data)
    equal(data.ravel("K"), ramp(0))
    with checked_comm() as checked:
        if SIZE > 1:
            with raises(ValueError, names="memory order"):
                checked.Bcast(data)
        still_works(checked)


def check_strided_in_every_call(comm):
    """Views with gaps are refused before a byte moves, also where only one rank would send or receive them."""
    column, block = np.zeros((4, 3))[:, 1], np.zeros((4 * SIZE, 2))[:, 0]
    for call in (
        lambda: comm.Gather(column, np.zeros(4 * SIZE), root=RANK),
        lambda: comm.Scatter(block, np.zeros(4), root=RANK),
        lambda: comm.Allgatherv(column, np.zeros(4 * SIZE)),
        lambda: comm.Gatherv(np.zeros(4), block, root=RANK),
        lambda: comm.Scatterv(block, np.zeros(4), root=RANK),
        lambda: comm.Alltoallv(block, np.zeros(4 * SIZE)),
        lambda: comm.Reduce_scatter(block, np.zeros(4)),
        lambda: comm.Scan(column, np.zeros(4)),
        lambda: comm.Exscan(np.zeros(4), column),
        lambda: comm.Isend(column, RANK),
        lambda: comm.Irecv(column, RANK),
    ):
        with raises(BufferError, names="contiguous"):
            call()
    still_works(comm)


def check_transposed_in_gathers(comm):
    """A transposed matrix among blocks in C order would come out transposed."""
    matrix = ramp(RANK).reshape(4, 3).T
    with raises(BufferError, names="contiguous"):
        comm.Allgather(matrix, np.zeros((SIZE, 3, 4)))
    with raises(BufferError, names="contiguous"):
        comm.Gather(matrix, np.zeros((SIZE, 3, 4)), root=RANK)
    still_works(comm)


def check_raw_dtypes_move(comm):
    """Whatever has a fixed size moves as it is; nothing but numbers is reduced."""
    for dtype in ([("x", "f4"), ("y", "i8")], "M8[s]", "S3", "V7"):
        bits = [np.random.default_rng([rank, 7]).integers(0, 256, 5 * np.dtype(dtype).itemsize) for rank in EVERY]
        parts = [part.astype(np.uint8).view(dtype) for part in bits]
        data, every = parts[RANK].copy(), np.zeros((SIZE, 5), dtype)
        comm.Allgather(data, every)
        equal(as_bytes(every), np.concatenate([as_bytes(part) for part in parts]))
        comm.Bcast(data, root=SIZE - 1)
        equal(as_bytes(data), as_bytes(parts[SIZE - 1]))
        with raises(TypeError):
            comm.Allreduce(data, np.zeros_like(data))
    still_works(comm)


def check_objects_never_move(comm):
    for call in (lambda data: comm.Bcast(data), lambda data: comm.Send(data, MPI.PROC_NULL)):
        with raises(TypeError, names="buf"):
            call(np.array([object()]))
    still_works(comm)


def check_derived_datatypes_move(comm):
    """A column of a matrix is sent and received in place: what lies beside it stays as it is."""
    column = MPI.DOUBLE.Create_vector(4, 1, 3).Commit()
    matrix = ramp(RANK).reshape(4, 3)
    want = matrix.copy()
    want[:, 1] = ramp(0).reshape(4, 3)[:, 1]
    comm.Bcast([matrix.reshape(-1)[1:], 1, column])
    equal(matrix, want)
    every = np.zeros((SIZE, 4))
    comm.Gather([ramp(RANK)[2:], 1, column], [every, 4, MPI.DOUBLE] if RANK == 0 else None)
    if RANK == 0:
        equal(every, joined(lambda rank: ramp(rank).reshape(4, 3)[:, 2]))
    other = np.zeros((4, 3))
    source, dest = (RANK - 1) % SIZE, (RANK + 1) % SIZE
    comm.Sendrecv([ramp(RANK), 1, column], dest, 0, [other.reshape(-1)[2:], 1, column], source, 0)
    equal(other[:, 2], ramp(source).reshape(4, 3)[:, 0])
    assert not other[:, :2].any()
    column.Free()


def check_alltoallw_transposes(comm):
    """Each rank has rows of a matrix and gets columns of it: one call, no copies by the user."""
    rows, columns = np.zeros((2, 2 * SIZE)), np.zeros((2 * SIZE, 2))
    rows[:] = np.arange(4 * SIZE).reshape(2, 2 * SIZE) + 1000 * RANK
    tile = [MPI.DOUBLE.Create_subarray([2, 2 * SIZE], [2, 2], [0, 2 * rank]).Commit() for rank in EVERY]
    slab = [MPI.DOUBLE.Create_subarray([2 * SIZE, 2], [2, 2], [2 * rank, 0]).Commit() for rank in EVERY]
    comm.Alltoallw([rows, [1] * SIZE, [0] * SIZE, tile], [columns, [1] * SIZE, [0] * SIZE, slab])
    whole = joined(lambda rank: np.arange(4 * SIZE).reshape(2, 2 * SIZE) + 1000.0 * rank)
    equal(columns, whole[:, 2 * RANK : 2 * RANK + 2])
    for datatype in (*tile, *slab):
        datatype.Free()


def check_datatypes_in_reductions(comm):
    """A datatype that is a row of one type counts as its elements; one with gaps is refused."""
    triple, gaps = MPI.DOUBLE.Create_contiguous(3), MPI.DOUBLE.Create_vector(3, 1, 2)
    out = np.zeros(12)
    comm.Allreduce([ramp(RANK), 4, triple], [out, 4, triple])
    equal(out, total())
    with raises(TypeError):
        comm.Allreduce([ramp(RANK), 2, gaps], [out, 2, gaps])
    triple.Free()
    gaps.Free()
    still_works(comm)


def check_displacements_beyond_2_gib(comm):
    """Of the gigabytes only the touched pages exist."""
    far = (1 << 31) + 5
    every = np.zeros(far + 8 * SIZE, np.uint8)
    starts = [far + 8 * rank for rank in EVERY]
    comm.Allgatherv(ramp(RANK, 8, np.uint8), [every, ([8] * SIZE, starts), MPI.BYTE])
    equal(every[far:], joined(lambda rank: ramp(rank, 8, np.uint8)))
    every[far:][:8] = 7 if RANK == 0 else 0
    comm.Bcast([every, (8, far), MPI.BYTE])
    equal(every[far:][:8], np.full(8, 7, np.uint8))


def check_in_place_of_rooted_calls(comm):
    """Gather and Scatter at every root: the root's own block stays where it is."""
    for root in EVERY:
        here = root == RANK
        every, block, send = Guarded(np.zeros(4 * SIZE)), np.zeros(4), Guarded(ramp(root, 4 * SIZE))
        every.array[4 * RANK :][:4] = ramp(RANK, 4)
        comm.Gather(MPI.IN_PLACE if here else ramp(RANK, 4), every.array if here else None, root=root)
        comm.Scatter(send.array if here else None, MPI.IN_PLACE if here else block, root=root)
        if here:
            equal(every.array, joined(lambda rank: ramp(rank, 4)))
        else:
            equal(block, ramp(root, 4 * SIZE)[4 * RANK :][:4])
        equal(send.array, ramp(root, 4 * SIZE))
        assert every.overwritten() is None and send.overwritten() is None


def check_in_place_of_vector_calls(comm):
    whole = joined(lambda rank: ramp(rank, COUNTS[rank]))
    every = np.zeros(sum(COUNTS))
    every[STARTS[RANK] :][: COUNTS[RANK]] = ramp(RANK, COUNTS[RANK])
    comm.Allgatherv(MPI.IN_PLACE, [every, COUNTS])
    equal(every, whole)
    for root in EVERY:
        here = root == RANK
        every = np.zeros(sum(COUNTS))
        every[STARTS[RANK] :][: COUNTS[RANK]] = ramp(RANK, COUNTS[RANK])
        comm.Gatherv(MPI.IN_PLACE if here else ramp(RANK, COUNTS[RANK]), [every, COUNTS] if here else None, root=root)
        assert not here or (every == whole).all()
        block = np.zeros(COUNTS[RANK])
        comm.Scatterv([whole.copy(), COUNTS] if here else None, MPI.IN_PLACE if here else block, root=root)
        assert here or (block == ramp(RANK, COUNTS[RANK])).all()
    data = ramp(RANK, sum(COUNTS))
    comm.Reduce_scatter(MPI.IN_PLACE, data, COUNTS)
    equal(data[: COUNTS[RANK]], total(sum(COUNTS))[STARTS[RANK] :][: COUNTS[RANK]])
    # Rank r and rank s exchange r + s + 1 elements, which is the same both ways.
    counts = [RANK + rank + 1 for rank in EVERY]
    data = ramp(RANK, sum(counts))
    comm.Alltoallv(MPI.IN_PLACE, [data, counts])
    places = [sum(rank + other + 1 for other in range(RANK)) for rank in EVERY]
    equal(data, joined(lambda rank: ramp(rank, SIZE * 100)[places[rank] :][: rank + RANK + 1]))


def check_in_place_of_scans(comm):
    data = ramp(RANK)
    comm.Scan(MPI.IN_PLACE, data)
    equal(data, sum(ramp(rank) for rank in range(RANK + 1)))
    data = ramp(RANK)
    comm.Exscan(MPI.IN_PLACE, data)
    equal(data, sum(ramp(rank) for rank in range(RANK)) if RANK else ramp(0))


def check_in_place_elsewhere_is_refused(comm):
    """IN_PLACE means something at the root alone."""
    for root in EVERY:
        if root != RANK:
            for call, argument in (
                (lambda root=root: comm.Reduce(MPI.IN_PLACE, ramp(RANK), root=root), "sendbuf"),
                (lambda root=root: comm.Gather(MPI.IN_PLACE, None, root=root), "sendbuf"),
                (lambda root=root: comm.Gatherv(MPI.IN_PLACE, None, root=root), "sendbuf"),
                (lambda root=root: comm.Scatter(None, MPI.IN_PLACE, root=root), "recvbuf"),
                (lambda root=root: comm.Scatterv(None, MPI.IN_PLACE, root=root), "recvbuf"),
            ):
                with raises(ValueError, names=argument):
                    call()
    still_works(comm)


def check_overlap_of_rooted_calls(comm):
    """Send and receive memory at the root must be apart, as everywhere."""
    base = np.zeros(8 * SIZE)
    with make_comm() as other:
        if RANK == 0:
            with raises(ValueError, names="IN_PLACE"):
                other.Gather(base[:4], base[: 4 * SIZE])
            with raises(ValueError, names="IN_PLACE"):
                other.Scatter(base[: 4 * SIZE], base[3:7])
    still_works(comm)


def check_overlapping_parts(comm):
    """Two parts of a receive buffer may not share memory; parts of a send buffer may."""
    if SIZE > 1:
        with raises(ValueError, names="recvbuf"):
            comm.Allgatherv(ramp(RANK, 4), [np.zeros(4 * SIZE), ([4] * SIZE, [3 * rank for rank in EVERY])])
    block = np.zeros(4)
    comm.Scatterv([ramp(0, 4), ([4] * SIZE, [0] * SIZE)] if RANK == 0 else None, block)
    equal(block, ramp(0, 4))


def check_interleaved_columns_do_not_overlap(comm):
    """Columns of one matrix share no byte, though their ranges do: the halo exchange of every stencil code."""
    column = MPI.DOUBLE.Create_vector(4, 1, 3).Commit()
    matrix = ramp(RANK).reshape(4, 3)
    flat, source, dest = matrix.reshape(-1), (RANK - 1) % SIZE, (RANK + 1) % SIZE
    comm.Sendrecv([flat[1:], 1, column], dest, 0, [flat, 1, column], source, 0)
    equal(matrix[:, 0], ramp(source).reshape(4, 3)[:, 1])
    equal(matrix[:, 1:], ramp(RANK).reshape(4, 3)[:, 1:])
    column.Free()


def check_zero_counts_of_vector_calls(comm):
    """Ranks that give nothing, and pairs that exchange nothing."""
    counts = [0 if rank % 2 else 5 for rank in EVERY]
    every = np.full(sum(counts) + 1, -1.0)
    comm.Allgatherv(ramp(RANK, counts[RANK]), [every, counts])
    equal(every[:-1], joined(lambda rank: ramp(rank, counts[rank])))
    block = np.full(counts[RANK] + 1, -1.0)
    comm.Reduce_scatter(ramp(RANK, sum(counts)), block[: counts[RANK]], counts)
    equal(block[:-1], total(sum(counts))[sum(counts[:RANK]) :][: counts[RANK]])
    # Rank 0 sends nothing at all; nobody sends to itself.
    amount = [[0 if source in (0, dest) else source + dest for dest in EVERY] for source in EVERY]
    sending, receiving = amount[RANK], [amount[source][RANK] for source in EVERY]
    out = np.full(sum(receiving) + 1, -1.0)
    comm.Alltoallv([ramp(RANK, sum(sending)), sending], [out, receiving])
    begin = [sum(amount[source][:RANK]) for source in EVERY]
    equal(out[:-1], joined(lambda source: ramp(source, 99)[begin[source] :][: receiving[source]]))
    assert every[-1] == block[-1] == out[-1] == -1
    comm.Alltoallv([None, [0] * SIZE, None, MPI.DOUBLE], [None, [0] * SIZE, None, MPI.DOUBLE])
    still_works(comm)


def check_zero_counts_of_the_rest(comm):
    nothing = np.empty(0)
    for _ in range(2):
        comm.Gather(nothing, nothing)
        comm.Scatter(nothing, nothing)
        comm.Scan(nothing, nothing)
        comm.Exscan(nothing, nothing)
        comm.Gatherv(nothing, [nothing, [0] * SIZE])
        comm.Scatterv([nothing, [0] * SIZE], nothing)
        comm.Iallreduce(nothing, np.empty(0)).Wait()
        still_works(comm)


def check_roots_of_gather_and_scatter(comm):
    """At every root; the other side's buffer means nothing elsewhere, and may be None or anything."""
    for root in EVERY:
        for elsewhere in (None, np.zeros(1, np.int8)):
            every = np.zeros((SIZE, 3)) if root == RANK else elsewhere
            comm.Gather(ramp(RANK, 3), every, root=root)
            assert root != RANK or (every.reshape(-1) == joined(lambda rank: ramp(rank, 3))).all()
            block = np.zeros(3)
            comm.Scatter(ramp(root, 3 * SIZE) if root == RANK else elsewhere, block, root=root)
            equal(block, ramp(root, 3 * SIZE)[3 * RANK : 3 * RANK + 3])
    for root in (SIZE, -1):
        for call in (comm.Gather, comm.Scatter, comm.Gatherv, comm.Scatterv):
            with raises(ValueError, names="root"):
                call(np.zeros(3), np.zeros(3 * SIZE), root=root)
    still_works(comm)


def check_vector_specs(comm):
    """Parts in any order, with gaps, which stay as they are; without displacements they lie one after another."""
    places = [7 * (SIZE - 1 - rank) + 2 for rank in EVERY]
    counts = [1 + rank for rank in EVERY]
    mine = ramp(RANK, counts[RANK])
    want = np.full(7 * SIZE + SIZE, -1.0)
    for rank in EVERY:
        want[places[rank] :][: counts[rank]] = ramp(rank, counts[rank])
    for spec in (
        lambda data: [data, (counts, places)],
        lambda data: [data, counts, places, MPI.DOUBLE],
        lambda data: (data, (np.array(counts), tuple(places)), "d"),
    ):
        every = Guarded(np.full(want.size, -1.0))
        comm.Allgatherv(mine, spec(every.array))
        equal(every.array, want)
        assert every.overwritten() is None
    packed = np.zeros(sum(counts))
    comm.Allgatherv(mine, [packed, counts])
    equal(packed, joined(lambda rank: ramp(rank, counts[rank])))


def check_bad_vector_specs(comm):
    mine, every = ramp(RANK, 2), np.zeros(2 * SIZE)
    good = [2] * SIZE
    for spec in (
        [every, [2] * (SIZE + 1)],
        [every, ([2] * (SIZE - 1) + [-2], None)],
        [every, (good, [-1] + [0] * (SIZE - 1))],
        [every, (good, [2 * rank + 1 for rank in EVERY])],
        [every, ([2] * (SIZE - 1) + [3], None)],
    ):
        with raises(ValueError, names="recvbuf"):
            comm.Allgatherv(mine, spec)
    with raises(TypeError, names="recvbuf"):
        comm.Allgatherv(mine, [every, [2.5] * SIZE])
    with raises(ValueError, names="sendbuf"):
        comm.Allgatherv(ramp(RANK, 3), [every, good])
    assert not every.any()
    still_works(comm)


def check_settings_of_a_checked_communicator(comm):
    """With HETCCL_CHECK=1 every collective works as without, also where ranks name different datatypes for the same."""
    with checked_comm() as checked:
        still_works(checked)
        check_derived_datatypes_move(checked)
        every = np.zeros(sum(COUNTS))
        checked.Allgatherv(ramp(RANK, COUNTS[RANK]), [every, COUNTS])
        equal(every, joined(lambda rank: ramp(rank, COUNTS[rank])))
        out = np.zeros(12)
        checked.Iallreduce(ramp(RANK), out).Wait()
        equal(out, total())
        checked.Scan(ramp(RANK), out)
        equal(out, sum(ramp(rank) for rank in range(RANK + 1)))


if __name__ == "__main__":
    run_checks(globals())
