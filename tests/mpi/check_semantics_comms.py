"""What docs/semantics.md says of communicators and threads: who makes, owns and frees them, and who may call."""

import threading

import numpy as np
from mpi4py import MPI
from support import equal, make_comm, raises, run_checks, still_works

import hetccl

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.Get_size(), WORLD.Get_rank()
LAST = SIZE - 1
NEXT, PREVIOUS = (RANK + 1) % SIZE, (RANK - 1) % SIZE


def in_threads(*works):
    """Run functions at once, one thread each; raise the first error."""
    errors = []

    def run(work):
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def check_split(comm):
    """The parts are hetccl communicators, with the ranks in the order of the keys."""
    part = comm.Split(RANK % 2, -RANK)
    assert isinstance(part, hetccl.Comm)
    members = sorted((rank for rank in range(SIZE) if rank % 2 == RANK % 2), reverse=True)
    assert (part.rank, part.size) == (members.index(RANK), len(members))
    every = np.zeros(part.size, np.int64)
    part.Allgather(np.array([RANK]), every)
    assert every.tolist() == members
    part.Free()
    still_works(comm)


def check_split_of_undefined(comm):
    """A rank that has no colour gets COMM_NULL; the others get theirs."""
    part = comm.Split(MPI.UNDEFINED if RANK == 0 else 3)
    if RANK == 0:
        assert part == MPI.COMM_NULL
    else:
        every = np.zeros(part.size, np.int64)
        part.Allgather(np.array([RANK]), every)
        assert every.tolist() == list(range(1, SIZE))
        part.Free()
    still_works(comm)


def check_split_type(comm):
    part = comm.Split_type(MPI.COMM_TYPE_SHARED)
    assert isinstance(part, hetccl.Comm) and part.size == SIZE
    still_works(part)
    part.Free()


def check_copies(comm):
    """Dup and Clone give communicators of their own: a message in one is not received in another."""
    for copy in (comm.Dup(), comm.Clone()):
        assert isinstance(copy, hetccl.Comm) and (copy.rank, copy.size) == (RANK, SIZE)
        assert copy.mpi != comm.mpi
        comm.Send(np.full(3, 1.0), NEXT)
        copy.Send(np.full(3, 2.0), NEXT)
        data = np.zeros(3)
        copy.Recv(data, PREVIOUS)
        equal(data, np.full(3, 2.0))
        comm.Recv(data, PREVIOUS)
        equal(data, np.full(3, 1.0))
        copy.Free()
    still_works(comm)


def check_create(comm):
    """Of a group of ranks; those outside get COMM_NULL from Create, and take no part in Create_group."""
    group = WORLD.Get_group().Incl(range(LAST, -1, -2))
    inside = group.Get_rank() != MPI.UNDEFINED
    made = [comm.Create(group)]
    assert inside or made[0] == MPI.COMM_NULL
    if inside:
        made.append(comm.Create_group(group))
        for part in made:
            assert isinstance(part, hetccl.Comm)
            assert (part.rank, part.size) == (group.Get_rank(), group.Get_size())
            every = np.zeros(part.size, np.int64)
            part.Allgather(np.array([RANK]), every)
            assert every.tolist() == list(range(LAST, -1, -2))
            part.Free()
    still_works(comm)


def check_ownership(comm):
    """Free gives back the MPI communicator that Split or Dup made, and leaves alone one that the program brought."""
    copy = comm.Dup()
    beneath = copy.mpi
    copy.Free()
    assert beneath == MPI.COMM_NULL
    mine = WORLD.Dup()
    hetccl.Comm(mine).Free()
    assert mine != MPI.COMM_NULL
    mine.Free()


def check_communicator_of_a_communicator(comm):
    """A part outlives what it was split from."""
    copy = comm.Dup()
    part = copy.Split(0)
    copy.Free()
    still_works(part)
    part.Free()


def check_cartesian(comm):
    """Wrapped, a Cartesian communicator keeps its own methods."""
    cart = WORLD.Create_cart([SIZE], periods=[True])
    with hetccl.Comm(cart) as ring:
        source, dest = ring.Shift(0, 1)
        data = np.zeros(5)
        ring.Sendrecv(np.full(5, float(ring.rank)), dest, 0, data, source, 0)
        equal(data, np.full(5, float(source)))
        assert ring.Get_coords(ring.rank) == [ring.rank]
    cart.Free()


def check_many_parts(comm):
    """Made and freed in a loop: nothing runs out."""
    for number in range(100):
        part = comm.Split(MPI.UNDEFINED if number % (SIZE + 1) == RANK else RANK % 2)
        if part != MPI.COMM_NULL:
            if number % 20 == 0:
                still_works_on(part)
            part.Free()
    still_works(comm)


def still_works_on(part):
    out = np.zeros(1)
    part.Allreduce(np.ones(1), out)
    assert out[0] == part.size


def check_messages_and_collectives_in_two_threads(comm):
    """One thread waits for messages while another makes collective calls on the same communicator."""

    def messages():
        data = np.zeros(100)
        for number in range(50):
            comm.Send(np.full(100, float(number)), NEXT, 1)
            comm.Recv(data, PREVIOUS, 1)
            equal(data, np.full(100, float(number)))

    def collectives():
        out = np.zeros(100)
        for number in range(50):
            comm.Allreduce(np.full(100, float(number)), out)
            equal(out, np.full(100, float(SIZE * number)))

    in_threads(messages, collectives)


def check_a_waiting_receive_stops_nobody(comm):
    """A receive that waits in one thread leaves sends, receives and collectives to the others."""
    data, done = np.zeros(3), threading.Event()

    def wait():
        comm.Recv(data, PREVIOUS, 1)
        done.set()

    def work():
        other = np.zeros(3)
        comm.Sendrecv(np.full(3, 2.0), NEXT, 2, other, PREVIOUS, 2)
        equal(other, np.full(3, 2.0))
        still_works(comm)
        assert not done.is_set()
        comm.Barrier()
        comm.Send(np.full(3, 1.0), NEXT, 1)

    in_threads(wait, work)
    equal(data, np.full(3, 1.0))


def check_receives_in_many_threads(comm):
    """Each gets the messages of its tag."""

    def receive(tag):
        data = np.zeros(10)
        for number in range(20):
            comm.Recv(data, PREVIOUS, tag)
            equal(data, np.full(10, tag + number / 100))

    def send():
        for number in range(20):
            for tag in (1, 2, 3):
                comm.Send(np.full(10, tag + number / 100), NEXT, tag)

    in_threads(*(lambda tag=tag: receive(tag) for tag in (1, 2, 3)), send)


def check_requests_in_another_thread(comm):
    """A request may be waited for in another thread than the one that started it."""
    out, data = np.zeros(10), np.zeros(10)
    requests = [comm.Iallreduce(np.ones(10), out), comm.Irecv(data, PREVIOUS), comm.Isend(np.ones(10), NEXT)]
    in_threads(*(request.Wait for request in requests))
    equal(out, np.full(10, float(SIZE)))
    equal(data, np.ones(10))


def check_freed_is_closed(comm):
    """Every call of a communicator that was freed is CommClosed, also of one that MPI would answer."""
    other = make_comm()
    other.Free()
    data = np.zeros(3)
    for call in (
        lambda: other.Iallreduce(data, np.zeros(3)),
        lambda: other.Gatherv(data, None),
        lambda: other.Irecv(data),
        lambda: other.Scan(data, np.zeros(3)),
        lambda: other.Split(0),
        lambda: other.bcast(1),
    ):
        with raises(hetccl.CommClosed):
            call()
    still_works(comm)


if __name__ == "__main__":
    run_checks(globals())
