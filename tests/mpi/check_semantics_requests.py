"""What docs/semantics.md says of calls that do not wait: progress, buffers, order, persistent calls, groups."""

import gc

import numpy as np
from mpi4py import MPI
from support import equal, make_comm, raises, run_checks, still_works

import hetccl

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.Get_size(), WORLD.Get_rank()
EVERY = range(SIZE)
LAST = SIZE - 1
NEXT, PREVIOUS = (RANK + 1) % SIZE, (RANK - 1) % SIZE
# Longer than what is sent without its receiver.
LARGE = 1 << 18


def ramp(rank, count=12):
    """Values that differ by rank and index, whose sums are exact."""
    return np.arange(count) * 3.0 + 100 * rank + 1


def total(count=12):
    return sum(ramp(rank, count) for rank in EVERY)


def check_starting_does_not_wait(comm):
    """A nonblocking collective returns although another rank comes to it only later, told by this one."""
    for count in (12, LARGE):
        out = np.zeros(count)
        if RANK == LAST and SIZE > 1:
            WORLD.recv(source=0)
        request = comm.Iallreduce(ramp(RANK, count), out)
        if RANK == 0 and SIZE > 1:
            WORLD.send("now", LAST)
        request.Wait()
        equal(out, total(count))


def check_progress_without_calls(comm):
    """What was started goes on while its rank makes no call of hetccl: here each waits inside MPI."""
    for count in (12, LARGE):
        out, data = np.zeros(count), np.zeros(count)
        requests = [comm.Iallreduce(ramp(RANK, count), out), comm.Isend(ramp(RANK, count), NEXT)]
        if RANK == LAST:
            requests[0].Wait()
        comm.Recv(data, PREVIOUS)
        WORLD.Barrier()
        hetccl.Request.Waitall(requests)
        equal(out, total(count))
        equal(data, ramp(PREVIOUS, count))
    if SIZE > 1:
        if RANK == 0:
            request = comm.Isend(ramp(0, LARGE), LAST, 1)
            assert WORLD.recv(source=LAST) == "received"
            request.Wait()
        if RANK == LAST:
            data = np.zeros(LARGE)
            comm.Recv(data, 0, 1)
            WORLD.send("received", 0)
            equal(data, ramp(0, LARGE))


def check_requests_keep_their_buffers(comm):
    """Arrays that the program has let go of are held until the call is over."""
    requests, outs = [], [np.zeros(LARGE) for _ in range(4)]
    for number, out in enumerate(outs):
        requests += [comm.Isend(ramp(RANK, LARGE) + number, NEXT, number), comm.Irecv(out, PREVIOUS, number)]
    gc.collect()
    np.full(8 * LARGE, -1.0)
    hetccl.Request.Waitall(requests)
    for number, out in enumerate(outs):
        equal(out, ramp(PREVIOUS, LARGE) + number)


def check_dropped_requests(comm):
    """A request that nobody keeps goes on to its end, with its buffer."""
    for count in (12, LARGE):
        comm.Isend(ramp(RANK, count), NEXT)
        comm.Isend(ramp(RANK, count) + 1, NEXT).Free()
        gc.collect()
        data = np.zeros(count)
        for number in range(2):
            comm.Recv(data, PREVIOUS)
            equal(data, ramp(PREVIOUS, count) + number)
    # What has not been received when its sender frees the communicator is lost.
    comm.Barrier()


def check_collectives_run_in_order(comm):
    """Started in the same order on all ranks, waited for in any, with blocking ones between."""
    outs = [np.zeros(count) for count in (LARGE, 5, 1000)]
    requests = [comm.Iallreduce(ramp(RANK, out.size) + number, out) for number, out in enumerate(outs)]
    still_works(comm)
    data = ramp(RANK)
    requests.append(comm.Ibcast(data, root=LAST))
    for request in reversed(requests) if RANK % 2 else requests:
        request.Wait()
    for number, out in enumerate(outs):
        equal(out, total(out.size) + SIZE * number)
    equal(data, ramp(LAST))


def check_any_number_of_requests(comm):
    """Twenty thousand calls are started before the first is waited for."""
    out, requests = np.zeros((10_000, 3)), []
    data = np.zeros((10_000, 3))
    for number in range(10_000):
        requests.append(comm.Iallreduce(np.full(3, float(number)), out[number]))
        requests.append(comm.Irecv(data[number], PREVIOUS))
    sends = [comm.Isend(np.full(3, float(number)), NEXT) for number in range(10_000)]
    hetccl.Request.Waitall(requests)
    hetccl.Request.Waitall(sends)
    equal(out, np.repeat(np.arange(10_000.0) * SIZE, 3))
    equal(data, np.repeat(np.arange(10_000.0), 3))


def check_wait_and_test(comm):
    """Test says whether it is over and does not wait; both tell the status, and may be called again."""
    status, data = MPI.Status(), np.zeros(12)
    request = comm.Irecv(data, PREVIOUS, 6)
    WORLD.Barrier()
    assert request.Test() is False
    WORLD.Barrier()
    comm.Send(ramp(RANK, 9), NEXT, 6)
    while not request.Test(status):
        pass
    assert (status.Get_source(), status.Get_tag(), status.Get_count(MPI.DOUBLE)) == (PREVIOUS, 6, 9)
    assert request.Test() is True and request.Wait() is True
    equal(data, np.concatenate([ramp(PREVIOUS, 9), np.zeros(3)]))


def check_many_requests(comm):
    """Waitall, Waitany, Waitsome, Testall, Testany and Testsome: mpi4py's arguments and results."""
    Request = hetccl.Request
    outs = [np.zeros(12) for _ in range(6)]
    requests = [comm.Irecv(out, PREVIOUS, tag) for tag, out in enumerate(outs)]
    WORLD.Barrier()
    assert Request.Testall(requests) is False
    assert Request.Testany(requests) == (MPI.UNDEFINED, False)
    assert Request.Testsome(requests) == []
    WORLD.Barrier()
    sends = [comm.Isend(ramp(RANK) + tag, NEXT, tag) for tag in range(6)]
    status = MPI.Status()
    done = {Request.Waitany(requests, status)}
    assert status.Get_tag() in done and status.Get_source() == PREVIOUS
    while len(done) < 5:
        some = Request.Waitsome(requests)
        assert some and not done & set(some)
        done |= set(some)
    statuses = [MPI.Status() for _ in range(6)]
    assert Request.Waitall(requests, statuses) is True
    assert Request.Waitall(sends) is True
    assert Request.Testall(requests) is True
    assert Request.Waitany(requests) == MPI.UNDEFINED
    assert Request.Waitsome(requests) is None and Request.Testsome(requests) is None
    for tag, out in enumerate(outs):
        equal(out, ramp(PREVIOUS) + tag)


def check_requests_of_both_libraries(comm):
    """Lists may hold mpi4py's requests, of the calls that go through MPI."""
    data = np.zeros(12)
    requests = [comm.isend("text", NEXT, 5), comm.Irecv(data, PREVIOUS), comm.Isend(ramp(RANK), NEXT)]
    assert comm.recv(source=PREVIOUS, tag=5) == "text"
    assert hetccl.Request.Waitall(requests) is True
    equal(data, ramp(PREVIOUS))
    assert hetccl.Request.Testall(requests) is True
    with raises(TypeError, names="requests"):
        hetccl.Request.Waitall([None])


def check_statuses_of_many(comm):
    outs = [np.zeros(12) for _ in range(3)]
    requests = [comm.Irecv(out, PREVIOUS, tag) for tag, out in enumerate(outs)]
    for tag in (2, 0, 1):
        comm.Send(ramp(RANK, 3 + tag), NEXT, tag)
    statuses = [MPI.Status() for _ in requests]
    hetccl.Request.Waitall(requests, statuses)
    found = [(status.Get_source(), status.Get_tag(), status.Get_count(MPI.DOUBLE)) for status in statuses]
    assert found == [(PREVIOUS, tag, 3 + tag) for tag in range(3)], found


def check_faults_are_found_at_the_start(comm):
    """What is wrong with the arguments is an error of the starting call, and nothing is started."""
    for call in (
        lambda: comm.Iallreduce(np.zeros(3), np.zeros(4)),
        lambda: comm.Isend(np.zeros(3), SIZE),
        lambda: comm.Irecv(np.zeros(3), 0, -5),
        lambda: comm.Ibcast(np.zeros(3), root=SIZE),
        lambda: comm.Allreduce_init(np.zeros(3), np.zeros(4)),
    ):
        with raises(ValueError):
            call()
    with raises(BufferError):
        comm.Iallreduce(np.zeros(6)[::2], np.zeros(3))
    still_works(comm)


def check_cancel_is_refused(comm):
    request = comm.Irecv(np.zeros(3), RANK, 5)
    with raises(NotImplementedError):
        request.Cancel()
    comm.Send(np.zeros(3), RANK, 5)
    request.Wait()


def check_free_with_requests_pending(comm):
    """They end with CommClosed; nobody waits for them."""
    mine = make_comm()
    data = np.full(12, 7.0)
    requests = [mine.Irecv(data, PREVIOUS, 9), mine.Irecv(data, MPI.ANY_SOURCE, 8)]
    WORLD.Barrier()
    mine.Free()
    for request in requests:
        with raises(hetccl.CommClosed):
            request.Wait()
    equal(data, np.full(12, 7.0))
    still_works(comm)


def check_persistent(comm):
    """Made once, started many times; each start takes what the send buffer holds then."""
    send, out, data = np.zeros(12), np.zeros(12), np.zeros(12)
    requests = [comm.Allreduce_init(send, out), comm.Send_init(send, NEXT, 3), comm.Recv_init(data, PREVIOUS, 3)]
    assert all(isinstance(request, hetccl.Prequest) for request in requests)
    for number in range(5):
        send[:] = ramp(RANK) + number
        hetccl.Prequest.Startall(requests)
        hetccl.Request.Waitall(requests)
        equal(out, total() + SIZE * number)
        equal(data, ramp(PREVIOUS) + number)
    for request in requests:
        request.Free()
    still_works(comm)


def check_persistent_is_not_started(comm):
    """Before Start there is nothing to wait for; a second Start before the end is refused."""
    data = np.zeros(12)
    receive, send = comm.Recv_init(data, PREVIOUS, 3), comm.Send_init(ramp(RANK), NEXT, 3)
    assert receive.Wait() is True and receive.Test() is True
    receive.Start()
    with raises(ValueError):
        receive.Start()
    send.Start()
    hetccl.Request.Waitall([receive, send])
    equal(data, ramp(PREVIOUS))


def check_info_is_ignored(comm):
    out = np.zeros(12)
    request = comm.Allreduce_init(ramp(RANK), out, info=MPI.INFO_NULL)
    request.Start()
    request.Wait()
    equal(out, total())
    comm.Barrier_init(info=MPI.INFO_NULL).Free()


def check_group(comm):
    """Calls that would wait for each other, one by one, are started together: large messages round a ring."""
    data, back, out = np.zeros(LARGE), np.zeros(LARGE), np.zeros(12)
    with comm.group():
        comm.Send(ramp(RANK, LARGE), NEXT, 1)
        comm.Send(ramp(RANK, LARGE), PREVIOUS, 2)
        comm.Recv(data, PREVIOUS, 1)
        comm.Recv(back, NEXT, 2)
        comm.Allreduce(ramp(RANK), out)
        assert not data.any() and not back.any() and not out.any()
    equal(data, ramp(PREVIOUS, LARGE))
    equal(back, ramp(NEXT, LARGE))
    equal(out, total())
    still_works(comm)


def check_group_is_dropped_by_an_exception(comm):
    """Nothing has moved, and nothing will."""
    data = np.zeros(12)
    with raises(ZeroDivisionError):
        with comm.group():
            comm.Recv(data, PREVIOUS, 1)
            comm.Send(ramp(RANK), NEXT, 1)
            raise ZeroDivisionError
    WORLD.Barrier()
    assert not comm.Iprobe(PREVIOUS, 1) and not data.any()
    WORLD.Barrier()
    comm.Sendrecv(ramp(RANK) + 1, NEXT, 1, data, PREVIOUS, 1)
    equal(data, ramp(PREVIOUS) + 1)


def check_fault_inside_a_group(comm):
    """A wrong argument is an error of its own call, and drops the group."""
    data = np.zeros(12)
    with raises(ValueError, names="dest"):
        with comm.group():
            comm.Recv(data, PREVIOUS, 1)
            comm.Send(ramp(RANK), SIZE + 3, 1)
    still_works(comm)
    assert not data.any()


def check_error_at_the_end_of_a_group(comm):
    """It is raised once the other calls have ended."""
    short, data = np.full(3, 7.0), np.zeros(12)
    with raises(ValueError, names="buf"):
        with comm.group():
            comm.Recv(short, PREVIOUS, 1)
            comm.Recv(data, PREVIOUS, 2)
            comm.Send(ramp(RANK), NEXT, 1)
            comm.Send(ramp(RANK) + 1, NEXT, 2)
    equal(data, ramp(PREVIOUS) + 1)
    equal(short, np.full(3, 7.0))
    comm.Recv(data, PREVIOUS, 1)
    equal(data, ramp(PREVIOUS))


def check_group_is_the_group_of_mpi(comm):
    assert isinstance(comm.group, MPI.Group)
    assert (comm.group.size, comm.group.rank) == (SIZE, RANK)
    assert MPI.Group.Compare(comm.group, WORLD.Get_group()) == MPI.IDENT


def check_groups_inside_each_other(comm):
    data = np.zeros(12)
    with raises(RuntimeError, names="group"):
        with comm.group():
            comm.Recv(data, PREVIOUS, 1)
            with comm.group():
                pass
    with make_comm() as other, comm.group(), other.group():
        comm.Recv(data, PREVIOUS, 1)
        comm.Send(ramp(RANK), NEXT, 1)
        other.Send(ramp(RANK) + 1, NEXT, 1)
    equal(data, ramp(PREVIOUS))


def check_nonblocking_inside_a_group(comm):
    """It is no part of the group: it starts at once, and may be waited for inside."""
    data, out = np.zeros(12), np.zeros(12)
    with comm.group():
        comm.Recv(data, PREVIOUS, 1)
        comm.Iallreduce(ramp(RANK), out).Wait()
        equal(out, total())
        comm.Send(ramp(RANK), NEXT, 1)
    equal(data, ramp(PREVIOUS))


def check_error_in_one_of_many(comm):
    """Waitall raises the first error; the other requests are over too."""
    short, data = np.zeros(3), np.zeros(12)
    requests = [comm.Irecv(short, PREVIOUS, 1), comm.Irecv(data, PREVIOUS, 2)]
    sends = [comm.Isend(ramp(RANK), NEXT, tag) for tag in (1, 2)]
    with raises(ValueError, names="buf"):
        hetccl.Request.Waitall(requests)
    requests[1].Wait()
    equal(data, ramp(PREVIOUS))
    comm.Recv(data, PREVIOUS, 1)
    hetccl.Request.Waitall(sends)
    still_works(comm)


if __name__ == "__main__":
    run_checks(globals())
