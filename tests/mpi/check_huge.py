"""Messages and buffers beyond 2 GiB, where 32 bits do not hold a count or a place. Run by tests/long alone."""

import numpy as np
from mpi4py import MPI
from support import run_checks

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.Get_size(), WORLD.Get_rank()
PERIOD = 65521  # a prime: no block or portion is a multiple of it
BEYOND = 2**31 + 7
PIECE = 1 << 26


def pattern(rank, dtype=np.int8):
    """One period of what a rank sends, small enough that the sum over two ranks does not wrap."""
    return ((np.arange(PERIOD) * (2 * rank + 3) + 5 * rank) % 61).astype(dtype)


def fill(array, period):
    for start in range(0, array.size, PIECE):
        part = array[start : start + PIECE]
        part[:] = np.resize(np.roll(period, -(start % PERIOD)), part.size)
    return array


def same(array, period, first=0):
    """Raise AssertionError unless the array is the endless repetition of `period` from `first` on."""
    for start in range(0, array.size, PIECE):
        part = array[start : start + PIECE]
        want = np.resize(np.roll(period, -((first + start) % PERIOD)), part.size)
        assert np.array_equal(part, want), f"rank {RANK}: first wrong {start + int(np.flatnonzero(part != want)[0])}"


def total(dtype=np.int8):
    return sum(pattern(rank, dtype) for rank in range(SIZE)).astype(dtype)


def check_allreduce(comm):
    out = np.full(BEYOND + 64, 99, np.int8)
    comm.Allreduce(fill(np.empty(BEYOND, np.int8), pattern(RANK)), out[:BEYOND])
    same(out[:BEYOND], total())
    assert (out[BEYOND:] == 99).all()


def check_allreduce_in_place(comm):
    out = fill(np.empty(BEYOND, np.int8), pattern(RANK))
    comm.Iallreduce(MPI.IN_PLACE, out).Wait()
    same(out, total())


def check_bcast(comm):
    root = SIZE - 1
    data = fill(np.empty(BEYOND, np.uint8), pattern(RANK, np.uint8))
    comm.Bcast(data, root=root)
    same(data, pattern(root, np.uint8))


def check_send_and_receive(comm):
    data, status = np.empty(BEYOND, np.int8), MPI.Status()
    if RANK == 0:
        comm.Send(fill(data, pattern(0)), SIZE - 1, 3)
    elif RANK == SIZE - 1:
        comm.Recv(data, MPI.ANY_SOURCE, MPI.ANY_TAG, status)
        same(data, pattern(0))
        assert (status.Get_source(), status.Get_tag(), status.Get_elements(MPI.BYTE)) == (0, 3, BEYOND)


def check_reduce_scatter(comm):
    counts = [BEYOND, 11]
    out = np.empty(counts[RANK], np.int8)
    comm.Reduce_scatter(fill(np.empty(sum(counts), np.int8), pattern(RANK)), out, counts)
    same(out, total(), RANK * BEYOND)


def check_scan(comm):
    out = fill(np.empty(BEYOND, np.int8), pattern(RANK))
    comm.Scan(MPI.IN_PLACE, out)
    same(out, sum(pattern(rank) for rank in range(RANK + 1)).astype(np.int8))


def check_allgatherv(comm):
    """One part is beyond 2 GiB, and the next begins beyond it."""
    counts, displs = [BEYOND, 5], [3, BEYOND + 9]
    out = np.full(BEYOND + 20, 99, np.int8)
    comm.Allgatherv(fill(np.empty(counts[RANK], np.int8), pattern(RANK)), [out, counts, displs, MPI.INT8_T])
    for rank, (count, displ) in enumerate(zip(counts, displs)):
        same(out[displ : displ + count], pattern(rank))
    assert (out[[0, 1, 2, BEYOND + 3, BEYOND + 8, BEYOND + 14]] == 99).all()


def check_gatherv_and_scatterv(comm):
    """Displacements in elements of eight bytes: their bytes need 33 bits. The memory between is never touched."""
    displs, count = [2**29 + 3, 2**28 + 1], 1000
    whole = np.zeros(displs[0] + count, np.int64)
    comm.Gatherv(fill(np.empty(count, np.int64), pattern(RANK, np.int64)), [whole, [count] * 2, displs, MPI.INT64_T], 1)
    if RANK == 1:
        for rank, displ in enumerate(displs):
            same(whole[displ : displ + count], pattern(rank, np.int64))
    back = np.empty(count, np.int64)
    comm.Scatterv([whole, [count] * 2, displs, MPI.INT64_T], back, 1)
    same(back, pattern(RANK, np.int64))


def check_alltoallv(comm):
    """All parts lie beyond 2 GiB, and one is longer."""
    counts = [[17, BEYOND], [1, 19]]
    send_displs, places = [BEYOND + 50, 30], [2**31 + 100, 2**31 + 1]
    send, recv = np.zeros(BEYOND + 100, np.int8), np.zeros(2**32 + 200, np.int8)
    for dest, displ in enumerate(send_displs):
        fill(send[displ : displ + counts[RANK][dest]], pattern(2 * RANK + dest))
    mine = [row[RANK] for row in counts]
    comm.Alltoallv([send, counts[RANK], send_displs, MPI.INT8_T], [recv, mine, places, MPI.INT8_T])
    for source, (count, displ) in enumerate(zip(mine, places)):
        same(recv[displ : displ + count], pattern(2 * source + RANK))
    between = recv[places[1] + mine[1] : places[0]]
    assert not recv[: places[1]][-100:].any() and not between.any(), "bytes between the parts changed"


def check_alltoallw(comm):
    """Columns of a matrix of more than 2 GiB, by vectors of bytes that span all of it."""
    rows, columns = 2**20 + 3, 2**11
    matrix = np.zeros((rows, columns), np.int8)
    column = MPI.INT8_T.Create_vector(rows, 1, columns).Create_resized(0, 1).Commit()
    sent = [fill(np.empty(rows, np.int8), pattern(2 * RANK + dest)) for dest in range(SIZE)]
    packed = np.concatenate(sent)
    places = [0, columns - 1]
    comm.Alltoallw(
        [packed, ([rows] * SIZE, [rows * dest for dest in range(SIZE)]), [MPI.INT8_T] * SIZE],
        [matrix, ([1] * SIZE, places), [column] * SIZE],
    )
    for source, place in enumerate(places):
        same(np.ascontiguousarray(matrix[:, place]), pattern(2 * source + RANK))
    assert not matrix[:, 1].any() and not matrix[:, -2].any()
    column.Free()


if __name__ == "__main__":
    run_checks(globals())
