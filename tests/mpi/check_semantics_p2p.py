"""What docs/semantics.md says of messages: matching, order, when a send is over, probes, sizes."""

import numpy as np
from mpi4py import MPI
from support import Guarded, equal, make_comm, raises, run_checks, still_works

import hetccl

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.Get_size(), WORLD.Get_rank()
LAST = SIZE - 1
# The longest message that may be sent before it is received.
EAGER_BYTES = 32 << 10


def message(tag, count=10):
    """Values that name their tag and place."""
    return np.arange(count, dtype=np.int64) + 1_000_000 * tag


def receive(comm, source, tag, count=10):
    buffer = Guarded(dtype=np.int64, count=count)
    comm.Recv(buffer.array, source, tag)
    assert buffer.overwritten() is None
    return buffer.array


def check_tags_out_of_order(comm):
    """A receive takes the message that it names; those before it wait for theirs."""
    for count in (10, 300_000):
        if RANK == 0:
            requests = [comm.Isend(message(tag, count), LAST, tag) for tag in (1, 2, 3)]
            hetccl.Request.Waitall(requests)
        if RANK == LAST:
            for tag in (3, 1, 2):
                equal(receive(comm, 0, tag, count), message(tag, count))


def check_order_within_a_tag(comm):
    """Messages that match the same receive come in the order in which they were sent, whatever their size."""
    counts, requests = (5, 100_000, 7, 20_000, 1), []
    if RANK == 0:
        for tag, count in enumerate(counts):
            requests.append(comm.Isend(message(tag, count), LAST, tag=4))
            requests.append(comm.Isend(message(99, 3), LAST, tag=5))
    if RANK == LAST:
        for tag, count in enumerate(counts):
            equal(receive(comm, 0, 4, count), message(tag, count))
        for _ in counts:
            equal(receive(comm, 0, 5, 3), message(99, 3))
    hetccl.Request.Waitall(requests)


def check_posted_receives_match_in_order(comm):
    """Of two receives that a message fits, the one that was posted first gets it."""
    if RANK == LAST:
        first, second = np.zeros(10, np.int64), np.zeros(10, np.int64)
        requests = [comm.Irecv(first, 0, MPI.ANY_TAG), comm.Irecv(second, 0, 7)]
        comm.Barrier()
        hetccl.Request.Waitall(requests)
        equal(first, message(1))
        equal(second, message(2))
    else:
        comm.Barrier()
    if RANK == 0 and SIZE > 1:
        comm.Send(message(1), LAST, 7)
        comm.Send(message(2), LAST, 7)


def check_any_source_starves_nobody(comm):
    """Twenty messages of each sender are on their way: two rounds of receives have heard everybody."""
    if RANK:
        sends = [comm.Isend(message(RANK), 0, tag=number) for number in range(20)]
        comm.Barrier()
        hetccl.Request.Waitall(sends)
        return
    comm.Barrier()
    status, sources = MPI.Status(), []
    for _ in range(20 * (SIZE - 1)):
        data = np.zeros(10, np.int64)
        comm.Recv(data, MPI.ANY_SOURCE, MPI.ANY_TAG, status)
        equal(data, message(status.Get_source()))
        assert status.Get_tag() == sources.count(status.Get_source())
        sources.append(status.Get_source())
    assert set(sources[: 2 * (SIZE - 1)]) == set(range(1, SIZE)), sources


def check_any_source_of_one_tag(comm):
    """ANY_SOURCE with a tag passes over the messages of other tags."""
    if RANK:
        comm.Send(message(100 + RANK), 0, tag=1)
        comm.Send(message(RANK), 0, tag=2)
    else:
        for tag, offset in ((2, 0), (1, 100)):
            got = sorted(int(receive(comm, MPI.ANY_SOURCE, tag)[0]) // 1_000_000 for _ in range(SIZE - 1))
            assert got == [offset + rank for rank in range(1, SIZE)]


def check_small_send_needs_no_receiver(comm):
    """Up to 32 KiB a send is over before its receiver has come, also to the rank itself."""
    count = EAGER_BYTES // 8
    for dest in dict.fromkeys((LAST, 0)):
        if RANK == 0:
            comm.Send(message(3, count), dest, 3)
        comm.Barrier()
        if dest == RANK:
            equal(receive(comm, 0, 3, count), message(3, count))


def check_large_send_waits(comm):
    """A larger one is over only when it has been received."""
    count = 1 << 20
    if RANK == 0:
        request = comm.Isend(message(3, count), LAST, 3)
        assert not request.Test()
    comm.Barrier()
    if RANK == 0 and LAST > 0:
        assert not request.Test()
    WORLD.Barrier()
    if RANK == LAST:
        equal(receive(comm, 0, 3, count), message(3, count))
    if RANK == 0:
        assert request.Wait()


def check_synchronous_send(comm):
    """Ssend is over only when a receive has taken the message, however small."""
    if RANK == 0:
        request = comm.Issend(message(3), LAST, 3)
    comm.Barrier()
    if RANK == 0:
        assert not request.Test()
    WORLD.Barrier()
    if RANK == LAST:
        equal(receive(comm, 0, 3), message(3))
    if RANK == 0:
        request.Wait()
        if LAST > 0:
            comm.Ssend(message(4), LAST, 4)
    elif RANK == LAST:
        equal(receive(comm, 0, 4), message(4))


def check_buffered_send(comm):
    """Bsend copies: it waits for nobody, whatever the length, and the buffer may be changed at once."""
    count = 1 << 20
    if RANK == 0:
        data = message(3, count)
        comm.Bsend(data, LAST, 3)
        data[:] = -1
        request = comm.Ibsend(message(4, count), LAST, 4)
        assert request.Test()
    comm.Barrier()
    if RANK == LAST:
        for tag in (4, 3):
            equal(receive(comm, 0, tag, count), message(tag, count))
    # What was not received when its sender frees the communicator is lost.
    comm.Barrier()


def check_sender_that_has_left(comm):
    """Its small messages can be received; a large one is an error, not what its memory holds by then."""
    mine = make_comm()
    if RANK == 0:
        mine.Send(message(1), LAST, 1)
        mine.Bsend(message(2, 1 << 20), LAST, 2)
        mine.Isend(message(3, 1 << 20), LAST, 3)
        mine.Free()
    WORLD.Barrier()
    if RANK == LAST and LAST > 0:
        equal(receive(mine, 0, 1), message(1))
        with raises(hetccl.PeerError):
            receive(mine, 0, 3, 1 << 20)
    WORLD.Barrier()
    mine.Free()
    still_works(comm)


def check_modes(comm):
    """Every way to send delivers the same message."""
    sends = (comm.Send, comm.Ssend, comm.Bsend, comm.Rsend)
    starts = (comm.Isend, comm.Issend, comm.Ibsend, comm.Irsend)
    kept = (comm.Send_init, comm.Ssend_init, comm.Bsend_init, comm.Rsend_init)
    if RANK == LAST:
        data = [np.zeros(10, np.int64) for _ in range(12)]
        requests = [comm.Irecv(into, 0, tag) for tag, into in enumerate(data)]
    comm.Barrier()
    if RANK == 0:
        for tag, send in enumerate(sends):
            send(message(tag), LAST, tag)
        for tag, start in enumerate(starts):
            start(message(4 + tag), LAST, 4 + tag).Wait()
        for tag, make in enumerate(kept):
            request = make(message(8 + tag), LAST, 8 + tag)
            request.Start()
            request.Wait()
            request.Free()
    if RANK == LAST:
        hetccl.Request.Waitall(requests)
        for tag, into in enumerate(data):
            equal(into, message(tag))


def check_too_long_for_a_posted_receive(comm):
    """The receive fails where it is waited for, writes nothing, and the message stays for the next one."""
    for count in (10, 200_000):
        if RANK == 0:
            sending = comm.Isend(message(2, count), LAST, 2)
        if RANK == LAST:
            short = Guarded(dtype=np.int64, count=count - 1)
            request = comm.Irecv(short.array, 0, 2)
            with raises(ValueError, names="buf"):
                request.Wait()
            assert short.overwritten() is None
            equal(receive(comm, 0, 2, count), message(2, count))
        if RANK == 0:
            sending.Wait()
    still_works(comm)


def check_messages_to_oneself(comm):
    for count in (3, 100_000):
        request = comm.Isend(message(RANK, count), RANK, 8)
        equal(receive(comm, RANK, 8, count), message(RANK, count))
        request.Wait()


def check_probe(comm):
    """Probe tells source, tag and length, and leaves the message where it is."""
    status = MPI.Status()
    assert comm.Iprobe(RANK, 77) is False
    if RANK == 0:
        comm.Send(message(5, 6), LAST, 5)
    if RANK == LAST:
        for _ in range(2):
            assert comm.Probe(MPI.ANY_SOURCE, MPI.ANY_TAG, status) is True
            assert (status.Get_source(), status.Get_tag(), status.Get_count(MPI.INT64_T)) == (0, 5, 6)
        assert comm.Iprobe(0, 5) is True and comm.Iprobe(0, 6) is False
        equal(receive(comm, 0, 5, 6), message(5, 6))
        assert comm.Iprobe(0, 5) is False


def check_matched_probe(comm):
    """A message that Mprobe has found is received through it alone."""
    if RANK == 0:
        for number in (1, 2, 3):
            comm.Send(message(number), LAST, 5)
    if RANK == LAST:
        found = comm.Mprobe(0, 5)
        assert isinstance(found, hetccl.Message)
        equal(receive(comm, 0, 5), message(2))
        data, status = np.zeros(10, np.int64), MPI.Status()
        found.Recv(data, status)
        equal(data, message(1))
        assert (status.Get_source(), status.Get_tag()) == (0, 5)
        while (found := comm.Improbe(0, 5)) is None:
            pass
        found.Irecv(data).Wait()
        equal(data, message(3))
        assert comm.Improbe(0, 5) is None


def check_lower_case_is_apart(comm):
    """comm.send goes through MPI: it meets comm.recv and no other receive, though ranks and tags are the same."""
    if RANK == 0:
        comm.Send(message(1), LAST, 5)
        comm.send("text", LAST, 5)
    if RANK == LAST:
        assert comm.recv(source=0, tag=5) == "text"
        equal(receive(comm, 0, 5), message(1))


def check_bytes_are_what_counts(comm):
    """Sender and receiver may name different datatypes; the length is compared in bytes."""
    if RANK == 0:
        comm.Send(np.arange(4.0), LAST)
    if RANK == LAST:
        data, status = bytearray(40), MPI.Status()
        comm.Recv(data, 0, status=status)
        equal(np.frombuffer(data[:32], float), np.arange(4.0))
        assert (status.Get_count(MPI.DOUBLE), status.Get_count(MPI.BYTE)) == (4, 32)
        assert not any(data[32:])


def check_replace(comm):
    """Sendrecv_replace: one buffer, sent and received into."""
    for count in (10, 100_000):
        dest, source = (RANK + 1) % SIZE, (RANK - 1) % SIZE
        data, status = message(RANK, count), MPI.Status()
        comm.Sendrecv_replace(data, dest, 3, source, 3, status)
        equal(data, message(source, count))
        assert status.Get_source() == source
        comm.Isendrecv_replace(data, dest, 3, source, 3).Wait()
        equal(data, message((RANK - 2) % SIZE, count))
        other = np.zeros_like(data)
        comm.Isendrecv(data, dest, 4, other, source, 4).Wait(status)
        equal(other, message((RANK - 3) % SIZE, count))


def check_nobody(comm):
    """PROC_NULL is over at once and moves nothing, in every form."""
    data, status = message(1), MPI.Status()
    for request in (comm.Isend(data, MPI.PROC_NULL), comm.Irecv(data, MPI.PROC_NULL)):
        assert request.Test()
    comm.Irecv(data, MPI.PROC_NULL).Wait(status)
    assert (status.Get_source(), status.Get_tag(), status.Get_count(MPI.BYTE)) == (MPI.PROC_NULL, MPI.ANY_TAG, 0)
    assert comm.Probe(MPI.PROC_NULL, 3, status) and status.Get_source() == MPI.PROC_NULL
    equal(data, message(1))


def check_many_unexpected_messages(comm):
    """Eight MiB of small messages that nobody has asked for yet do not keep a later one from its receive."""
    rounds, count = 2000, 512
    if RANK == 0:
        requests = [comm.Isend(message(number, count), LAST, 1) for number in range(rounds)]
        requests.append(comm.Isend(message(7), LAST, 2))
        hetccl.Request.Waitall(requests)
    if RANK == LAST:
        equal(receive(comm, 0, 2), message(7))
        for number in range(rounds):
            equal(receive(comm, 0, 1, count), message(number, count))


if __name__ == "__main__":
    run_checks(globals())
