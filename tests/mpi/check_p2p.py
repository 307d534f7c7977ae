"""Send, Recv and Sendrecv: tags, status, wildcards, lengths, large and many messages."""

import numpy as np
from mpi4py import MPI
from support import Guarded, equal, raises, run_checks, still_works

import hetccl

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.Get_size(), WORLD.Get_rank()
NEXT, PREVIOUS = (RANK + 1) % SIZE, (RANK - 1) % SIZE
LAST = SIZE - 1


def message(source, count=10, tag=0):
    """Values that name their sender, tag and place."""
    return np.arange(count, dtype=np.int64) + 1_000_000 * source + 10_000_000 * tag


def check_every_pair(comm):
    for source in range(SIZE):
        for dest in range(SIZE):
            if source == dest:
                continue
            if source == RANK:
                comm.Send(message(source, 10 + dest), dest, tag=dest)
            if dest == RANK:
                receive = Guarded(dtype=np.int64, count=10 + dest)
                comm.Recv(receive.array, source, tag=dest)
                equal(receive.array, message(source, 10 + dest))
                assert receive.overwritten() is None


def check_status(comm):
    """Source, tag and length of what came, also when the buffer had room for more."""
    status = MPI.Status()
    if RANK == 0:
        comm.Send(message(0, 7), LAST, tag=31)
    if RANK == LAST:
        receive = np.full(12, -1, np.int64)
        comm.Recv(receive, 0, 31, status)
        equal(receive, np.concatenate([message(0, 7), np.full(5, -1)]))
        assert (status.Get_source(), status.Get_tag()) == (0, 31)
        assert status.Get_count(MPI.INT64_T) == 7
        assert status.Get_count(MPI.BYTE) == 56
        assert not status.Is_cancelled()


def check_keywords_and_defaults(comm):
    """Recv's source and tag default to any, Send's tag to 0."""
    if RANK == 0:
        comm.Send(buf=message(0), dest=LAST)
        comm.Send(message(0, 3), dest=LAST, tag=0)
    if RANK == LAST:
        receive = np.zeros(10, np.int64)
        comm.Recv(receive)
        equal(receive, message(0))
        comm.Recv(buf=receive, source=0, tag=0, status=None)
        equal(receive[:3], message(0, 3))


def check_any_source(comm):
    """One message from each of the others, in whatever order they come; the status tells whose it is."""
    if RANK == 0:
        seen = {}
        for _ in range(SIZE - 1):
            status, receive = MPI.Status(), np.zeros(20, np.int64)
            comm.Recv(receive, MPI.ANY_SOURCE, MPI.ANY_TAG, status)
            source = status.Get_source()
            count = status.Get_count(MPI.INT64_T)
            assert (count, status.Get_tag()) == (10 + source, 100 + source)
            equal(receive[:count], message(source, 10 + source))
            seen[source] = True
        assert sorted(seen) == list(range(1, SIZE))
    else:
        comm.Send(message(RANK, 10 + RANK), 0, tag=100 + RANK)


def check_any_source_large(comm):
    count = 300_000
    if RANK == 0:
        for _ in range(SIZE - 1):
            status, receive = MPI.Status(), np.zeros(count, np.int64)
            comm.Recv(receive, status=status)
            equal(receive, message(status.Get_source(), count))
    else:
        comm.Send(message(RANK, count), 0)


def check_tags(comm):
    """A receive takes the first message with its tag, whatever came before it; the others wait in their order."""
    if RANK == 0:
        for number, tag in enumerate((1, 2, 3, 2)):
            comm.Send(message(0, 10, number), LAST, tag=tag)
    if RANK == LAST:
        receive = Guarded(dtype=np.int64, count=10)
        for tag, number in ((2, 1), (3, 2), (MPI.ANY_TAG, 0), (2, 3)):
            comm.Recv(receive.array, 0, tag)
            equal(receive.array, message(0, 10, number))
            assert receive.overwritten() is None


def check_proc_null(comm):
    receive = message(RANK)
    status = MPI.Status()
    comm.Send(message(RANK), MPI.PROC_NULL)
    comm.Recv(receive, MPI.PROC_NULL, status=status)
    assert (status.Get_source(), status.Get_tag(), status.Get_count(MPI.BYTE)) == (MPI.PROC_NULL, MPI.ANY_TAG, 0)
    comm.Sendrecv(message(RANK), MPI.PROC_NULL, 0, receive, MPI.PROC_NULL, 0, status)
    assert status.Get_source() == MPI.PROC_NULL
    equal(receive, message(RANK))
    # A line instead of a ring: the ends talk to nobody.
    right = RANK + 1 if RANK < LAST else MPI.PROC_NULL
    left = RANK - 1 if RANK > 0 else MPI.PROC_NULL
    comm.Sendrecv(message(RANK), right, 0, receive, left, 0)
    equal(receive, message(RANK - 1 if RANK > 0 else RANK))


def check_truncation_keeps_the_message(comm):
    """Too short a receive buffer: an error that harms nothing; the message waits for a longer one."""
    for count in (10, 200_000):
        if RANK == 0:
            comm.Send(message(0, count), LAST, tag=4)
        if RANK == LAST:
            short = Guarded(dtype=np.int64, count=count - 1)
            with raises(ValueError, names="buf"):
                comm.Recv(short.array, 0, 4)
            assert short.overwritten() is None
            receive = np.zeros(count, np.int64)
            comm.Recv(receive, 0, 4)
            equal(receive, message(0, count))
        still_works(comm)


def check_ring(comm):
    """Everybody sends to the next and receives from the one before, at all lengths."""
    for count in (0, 1, 7, 1023, 65537, 1_000_003):
        receive, status = Guarded(dtype=np.int64, count=count), MPI.Status()
        comm.Sendrecv(message(RANK, count), NEXT, 9, receive.array, PREVIOUS, 9, status)
        equal(receive.array, message(PREVIOUS, count))
        assert receive.overwritten() is None
        assert (status.Get_source(), status.Get_tag()) == (PREVIOUS, 9)
        assert status.Get_count(MPI.INT64_T) == count


def check_ring_with_different_lengths(comm):
    """What a rank sends need not be as long as what it receives."""
    receive = np.full(50_000, -1, np.int64)
    count, coming = 10 ** (RANK % 5), 10 ** (PREVIOUS % 5)
    comm.Sendrecv(message(RANK, count), NEXT, recvbuf=receive, source=PREVIOUS)
    equal(receive[:coming], message(PREVIOUS, coming))
    assert (receive[coming:] == -1).all()


def check_to_itself(comm):
    for count in (3, 100_000):
        receive = np.zeros(count, np.int64)
        comm.Sendrecv(message(RANK, count), RANK, 1, receive, RANK, 1)
        equal(receive, message(RANK, count))


def check_64_mib(comm):
    data = np.random.default_rng(3).integers(0, 256, 64 << 20, dtype=np.uint8)
    if RANK == 0:
        comm.Send(data, LAST)
    if RANK == LAST:
        receive = Guarded(dtype=np.uint8, count=data.size)
        comm.Recv(receive.array, 0)
        equal(receive.array, data)
        assert receive.overwritten() is None


def check_sender_runs_ahead(comm):
    """Thousands of messages before the first is received: back-pressure, in order, nothing lost."""
    rounds = 3000
    if RANK == 0:
        for number in range(rounds):
            comm.Send(message(number, 1 + number % 50), LAST, tag=number % 7)
    if RANK == LAST:
        receive, status = np.zeros(50, np.int64), MPI.Status()
        for number in range(rounds):
            comm.Recv(receive, 0, MPI.ANY_TAG, status)
            assert status.Get_tag() == number % 7
            assert status.Get_count(MPI.INT64_T) == 1 + number % 50
            equal(receive[: 1 + number % 50], message(number, 1 + number % 50))


def check_small_and_large_keep_their_order(comm):
    counts = (1, 300_000, 2, 40_000, 3, 5000, 4)
    if RANK == 0:
        for count in counts:
            comm.Send(message(count, count), LAST)
    if RANK == LAST:
        for count in counts:
            receive = np.zeros(count, np.int64)
            comm.Recv(receive, 0)
            equal(receive, message(count, count))


def check_apart_from_collectives(comm):
    """A message sent before a collective is received after it, and neither takes the other's data."""
    out = np.zeros(5, np.int64)
    for number in range(10):
        if RANK == 0:
            comm.Send(message(number), LAST, tag=1)
        comm.Allreduce(np.full(5, RANK + number), out)
        equal(out, np.full(5, SIZE * (SIZE - 1) // 2 + SIZE * number))
        if RANK == LAST:
            receive = np.zeros(10, np.int64)
            comm.Recv(receive, 0, 1)
            equal(receive, message(number))


def check_bad_ranks_and_tags(comm):
    data = np.zeros(3)
    for rank in (SIZE, -7, SIZE + 100):
        with raises(ValueError, names="dest"):
            comm.Send(data, rank)
        with raises(ValueError, names="source"):
            comm.Recv(data, rank)
    with raises(ValueError, names="tag"):
        comm.Send(data, 0, tag=-5)
    with raises(ValueError, names="tag"):
        comm.Recv(data, 0, tag=-5)
    with raises(ValueError, names="tag"):
        comm.Send(data, 0, tag=2**70)
    with raises(TypeError, names="dest"):
        comm.Send(data, "0")
    with raises(TypeError, names="root"):
        comm.Bcast(data, root=None)
    still_works(comm)


def check_bad_buffers(comm):
    frozen = np.zeros(4)
    frozen.flags.writeable = False
    with raises(BufferError, names="buf"):
        comm.Send(np.zeros(8)[::2], NEXT)
    with raises(BufferError, names="buf"):
        comm.Recv(np.zeros((4, 4)).T[1:3], PREVIOUS)
    with raises(BufferError, names="buf"):
        comm.Recv(frozen, PREVIOUS)
    with raises(TypeError, names="buf"):
        comm.Send(np.array([object()]), NEXT)
    with raises(BufferError, names="recvbuf"):
        comm.Sendrecv(np.zeros(4), NEXT, 0, frozen, PREVIOUS, 0)
    still_works(comm)


def check_freed_while_a_message_waits(comm):
    """A message that nobody received goes with its communicator."""
    with hetccl.Comm(WORLD) as other:
        if RANK == 0:
            other.Send(message(0), LAST)
        WORLD.Barrier()
    still_works(comm)


if __name__ == "__main__":
    run_checks(globals())
