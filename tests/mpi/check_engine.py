"""What long-lived and careless programs do to the engine: requests after Free, in forked children, in several threads
and in signal handlers; faults that show at once; time-outs that count waiting alone."""

import contextlib
import functools
import gc
import os
import signal
import threading
import time

import numpy as np
from mpi4py import MPI
from support import equal, make_comm, process_counts, raises, resident_bytes, run_checks, still_works

import hetccl

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.Get_size(), WORLD.Get_rank()
LAST = SIZE - 1
# So late is a rank that others wait for, and so long is the time-out of checks that run into one, and of those that
# must not.
LATE_S, TIMEOUT_S, PATIENCE_S = 0.3, 1.5, 3.0


@contextlib.contextmanager
def comm_with(timeout_s):
    """A communicator with a time-out of its own."""
    before = os.environ.get("HETCCL_TIMEOUT")
    os.environ["HETCCL_TIMEOUT"] = str(timeout_s)
    WORLD.Barrier()
    try:
        comm = make_comm()
    finally:
        os.environ.pop("HETCCL_TIMEOUT")
        os.environ.update({"HETCCL_TIMEOUT": before} if before is not None else {})
    with comm:
        yield comm


def in_threads(*works):
    """Run the functions at once; what they raised."""
    errors = []

    def run(work):
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def loop_of_tests(request):
    while not request.Test():
        pass


def check_counts_differ_and_all_is_there(comm):
    """The last rank finds the others' messages when it calls: an error all the same, on every rank."""
    with make_comm() as mine:
        out = np.zeros(9)
        count = 9 if RANK == LAST else 8
        if RANK == LAST:
            time.sleep(LATE_S)
        with raises(hetccl.PeerError):
            mine.Allreduce(np.ones(count), out[:count])
        WORLD.Barrier()


def check_free_inside_a_group(comm):
    mine = make_comm()
    with raises(hetccl.CommClosed, names="Send"):
        with mine.group():
            mine.Send(np.ones(3), RANK)
            mine.Free()


def check_complete_before_free(comm):
    """What was complete when the communicator was freed has its outcome; what was not ends with CommClosed."""
    mine = make_comm()
    out, more, status = np.zeros(3), np.zeros(3), MPI.Status()
    sent = mine.Isend(np.arange(3.0) + RANK, (RANK + 1) % SIZE)
    got, pending, started = mine.Irecv(out), mine.Irecv(more, tag=9), mine.Recv_init(more, tag=8)
    started.Start()
    while not got.Get_status():
        pass
    WORLD.Barrier()
    mine.Free()
    assert sent.Wait() and got.Wait(status)
    equal(out, np.arange(3.0) + (RANK - 1) % SIZE)
    assert status.Get_source() == (RANK - 1) % SIZE
    for request in (pending, started):
        with raises(hetccl.CommClosed, names="before the request was complete"):
            request.Wait()
    with raises(hetccl.CommClosed):
        started.Start()
    assert pending.Test() and not pending


def check_free_while_another_thread_tests(comm):
    """The memory stays mapped until the other threads are out; then they are told. They cannot keep Free waiting,
    though one of them is always inside."""
    for _ in range(10):
        mine = make_comm()
        loops = [functools.partial(loop_of_tests, mine.Irecv(np.zeros(1), tag=tag)) for tag in range(6)]
        errors = in_threads(*loops, mine.Free)
        assert len(errors) == len(loops) and all(isinstance(e, hetccl.HetcclError) for e in errors), errors


def check_requests_in_a_forked_child(comm):
    """They belong to the parent: the child moves none of its data."""
    out = np.zeros(3)
    request, other = comm.Irecv(out, LAST), comm.Irecv(np.zeros(3), LAST, 6)
    again = comm.Recv_init(np.zeros(3), LAST, 7)
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (request.Test, other.Wait, again.Start):
            try:
                call()
            except hetccl.CommClosed:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    WORLD.Barrier()
    if RANK == LAST:
        for peer in range(SIZE):
            comm.Send(np.arange(3.0), peer)
            comm.Send(np.arange(3.0), peer, 6)
    hetccl.Request.Waitall([request, other])
    equal(out, np.arange(3.0))
    still_works(comm)


def check_several_threads_wait_for_one_request(comm):
    out = np.zeros(3)
    request = comm.Irecv(out, LAST)
    if RANK == LAST:
        time.sleep(LATE_S)
    sends = [comm.Isend(np.arange(3.0), peer) for peer in range(SIZE)] if RANK == LAST else []
    assert in_threads(*[request.Wait] * 4) == []
    equal(out, np.arange(3.0))
    hetccl.Request.Waitall(sends)
    still_works(comm)


def check_signal_handler_waits_for_the_same_request(comm):
    out, handled = np.zeros(3), []
    if RANK == 0:
        request = comm.Irecv(out, LAST)
        before = signal.signal(signal.SIGALRM, lambda *_: handled.append(request.Wait()))
        signal.setitimer(signal.ITIMER_REAL, LATE_S)
        request.Wait()
        signal.signal(signal.SIGALRM, before)
        equal(out, np.arange(3.0))
        assert handled == [True], handled
    elif RANK == LAST:
        time.sleep(3 * LATE_S)
        comm.Send(np.arange(3.0), 0)
    still_works(comm)


def check_signal_in_a_test_loop_breaks_nothing(comm):
    """A handler that raises ends the loop between two Tests; the request is still good."""

    class Enough(Exception):
        pass

    def enough(*_):
        raise Enough

    out = np.zeros(3)
    request = comm.Irecv(out, LAST)
    if RANK == 0:
        before = signal.signal(signal.SIGALRM, enough)
        for _ in range(5):
            with raises(Enough):
                signal.setitimer(signal.ITIMER_REAL, 0.07)
                while not request.Test():
                    pass
        signal.signal(signal.SIGALRM, before)
    WORLD.Barrier()
    sends = [comm.Isend(np.arange(3.0), peer) for peer in range(SIZE)] if RANK == LAST else []
    request.Wait()
    equal(out, np.arange(3.0))
    hetccl.Request.Waitall(sends)
    still_works(comm)


def check_freed_persistent_request_does_not_start(comm):
    """Free while it is under way: the call still completes, once."""
    out = np.zeros(3)
    request = comm.Allreduce_init(np.full(3, RANK + 1.0), out)
    if RANK == LAST:
        time.sleep(LATE_S)
    request.Start()
    request.Free()
    with raises(ValueError, names="freed"):
        request.Start()
    assert not request and request.Wait()
    comm.Barrier()
    equal(out, np.full(3, SIZE * (SIZE + 1) / 2))


def check_only_waiting_counts(comm):
    """Test, compute for longer than the time-out, and go on."""
    with comm_with(PATIENCE_S) as mine:
        out = np.zeros(3)
        request, other = mine.Irecv(out, LAST), mine.Irecv(out, LAST, 5)
        request.Test()
        other.Test()
        time.sleep(1.2 * PATIENCE_S)
        assert not request.Test() or RANK == LAST
        if RANK == LAST:
            time.sleep(LATE_S)
            for peer in range(SIZE):
                mine.Isend(np.arange(3.0), peer).Wait()
                mine.Isend(np.arange(3.0), peer, 5).Wait()
        request.Wait()
        other.Wait()
        equal(out, np.arange(3.0))
        still_works(mine)


def check_waiting_for_any_while_others_come(comm):
    """A request that stays pending for longer than the time-out, in a list of which others complete all the time."""
    with comm_with(PATIENCE_S) as mine:
        end, out = np.zeros(1), np.zeros(3)
        if RANK == 0:
            ending, served = mine.Irecv(end, LAST, 9), 0
            while hetccl.Request.Waitany([mine.Irecv(out, LAST, 1), ending]) == 0:
                served += 1
            assert served >= 10, served
        elif RANK == LAST:
            begin, sent = time.monotonic(), 0
            while time.monotonic() - begin < 1.3 * PATIENCE_S or sent < 10:
                mine.Send(np.ones(3), 0, 1)
                sent += 1
                time.sleep(0.05)
            mine.Send(end, 0, 9)
        WORLD.Barrier()


def check_every_look_has_a_time_out(comm):
    """Loops over Test, waits for any of several, and matched probes end."""
    for look in (
        lambda mine, request: all(iter(lambda: not request.Test(), False)),
        lambda mine, request: hetccl.Request.Waitany([request, mine.Irecv(np.zeros(1), tag=8)]),
        lambda mine, request: mine.Mprobe(LAST, 5),
        lambda mine, request: mine.Probe(),
    ):
        with comm_with(TIMEOUT_S) as mine:
            with raises(hetccl.CommTimeout):
                look(mine, mine.Irecv(np.zeros(1), LAST, 7))
            WORLD.Barrier()


def check_group_whose_function_raises(comm):
    """An error of the user's own function is raised when the group's other calls have ended."""

    def fails(operand, result, datatype):
        raise ZeroDivisionError

    out, reduced = np.zeros(3), np.zeros(3)
    op = hetccl.Op.Create(fails)
    if RANK == LAST:
        time.sleep(LATE_S)
    with raises(ZeroDivisionError):
        with comm.group():
            comm.Allreduce(np.ones(3), reduced, op)
            comm.Recv(out, (RANK - 1) % SIZE)
            comm.Send(np.arange(3.0), (RANK + 1) % SIZE)
    equal(out, np.arange(3.0))
    still_works(comm)


def check_message_of_a_rank_that_has_freed(comm):
    """A large message that was not received when its sender freed the communicator is lost, and no other bytes pass for
    it."""
    count = 1 << 20
    mine = make_comm()
    if RANK == 0:
        mine.Isend(np.full(count, 7.0), LAST)
        mine.Free()
        WORLD.Barrier()
    else:
        WORLD.Barrier()
        if RANK == LAST:
            with raises(hetccl.PeerError) as caught:
                mine.Recv(np.zeros(count), 0)
            assert caught[0].peer == 0
        mine.Free()


def check_cycle_of_garbage_with_pending_requests(comm):
    """The collector takes the communicator, its thread and its requests away together."""
    gc.collect()
    threads = process_counts()[1]
    for _ in range(5):
        mine = make_comm()
        everything = [mine, mine.Irecv(np.zeros(1 << 18), RANK, 1), mine.Isend(np.ones(1 << 18), RANK, 2)]
        everything += [mine.Iallreduce(np.ones(3), np.zeros(3)), mine.Recv_init(np.zeros(3), RANK, 3)]
        everything[-1].Start()
        everything.append(everything)
        WORLD.Barrier()
        del mine, everything
        gc.collect()
    # Threads that speak to other ranks for a moment end by themselves.
    deadline = time.monotonic() + 60
    while process_counts()[1] > threads and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process_counts()[1] <= threads


def check_dropped_requests(comm):
    """Memory stays flat over requests that nobody waits for."""
    # What peers over a network cost, they cost from here on.
    still_works(comm)
    out, memory = np.zeros(64), None
    for number in range(20000):
        comm.Irecv(out, RANK)
        comm.Isend(np.ones(64), RANK)
        if number == 5000:
            memory = resident_bytes()
    grown = resident_bytes() - memory
    assert grown < 1 << 20, f"{grown} bytes more after 15,000 pairs"
    still_works(comm)


def check_persistent_request_many_times(comm):
    """Memory stays flat over restarts."""
    send, out, memory = np.ones(2), np.zeros(2), None
    requests = [comm.Allreduce_init(send, out), comm.Send_init(send, RANK), comm.Recv_init(np.zeros(2), RANK)]
    for number in range(10000):
        hetccl.Prequest.Startall(requests)
        hetccl.Request.Waitall(requests)
        if number == 2000:
            memory = resident_bytes()
    grown = resident_bytes() - memory
    assert grown < 1 << 20, f"{grown} bytes more after 8000 restarts"
    equal(out, np.full(2, float(SIZE)))


def check_ten_thousand_outstanding(comm):
    count, peer, source = 10000, (RANK + 1) % SIZE, (RANK - 1) % SIZE
    sends = np.arange(2.0 * count).reshape(count, 2) + RANK
    receives = np.zeros((count, 2))
    requests = [comm.Irecv(receives[number], source, number % 7) for number in range(count)]
    requests += [comm.Isend(sends[number], peer, number % 7) for number in range(count)]
    hetccl.Request.Waitall(requests)
    equal(receives, np.arange(2.0 * count).reshape(count, 2) + source)
    still_works(comm)


def check_eight_threads(comm):
    """Messages by blocking calls, by Test and by Waitany, and collectives in one of the threads."""
    peer, source = (RANK + 1) % SIZE, (RANK - 1) % SIZE

    def messages(tag, complete):
        def work():
            out = np.zeros(100)
            for number in range(100):
                mine = np.full(100, 1000.0 * tag + number + RANK)
                requests = [comm.Irecv(out, source, tag), comm.Isend(mine, peer, tag)]
                complete(requests)
                equal(out, np.full(100, 1000.0 * tag + number + source))

        return work

    def by_test(requests):
        while not hetccl.Request.Testall(requests):
            pass

    def by_any(requests):
        while hetccl.Request.Waitany(requests) != MPI.UNDEFINED:
            pass

    def collectives():
        out = np.zeros(100)
        for number in range(100):
            comm.Allreduce(np.full(100, float(number)), out)
            equal(out, np.full(100, float(SIZE * number)))

    ways = (hetccl.Request.Waitall, by_test, by_any)
    errors = in_threads(collectives, *[messages(tag, ways[tag % 3]) for tag in range(7)])
    assert not errors, errors


def other_is_through(peer, tag):
    """Tell the other rank by MPI, and wait for its word, without a call of hetccl."""
    WORLD.Send(np.zeros(0), peer, tag)
    deadline = time.monotonic() + 100
    while not WORLD.Iprobe(peer, tag):
        assert time.monotonic() < deadline, f"rank {peer} waits for what this rank holds"
        time.sleep(1e-3)
    WORLD.Recv(np.zeros(0), peer, tag)


def check_a_send_completes_while_its_receiver_computes(comm):
    """Its receive is posted, and then the receiver calls hetccl no more."""
    data = np.arange(1 << 20) + 1.0
    if RANK == 0:
        comm.Send(data, LAST, 1)
        other_is_through(LAST, 1)
    elif RANK == LAST:
        out = np.zeros(1 << 20)
        request = comm.Irecv(out, 0, 1)
        other_is_through(0, 1)
        request.Wait()
        equal(out, data)


def check_sends_that_are_complete_arrive(comm):
    """However little the receiver took in meanwhile, and though the sender calls hetccl no more."""
    if RANK == 0:
        for number in range(14):
            comm.Send(np.full(1500, float(number)), LAST, 2)
        other_is_through(LAST, 2)
    elif RANK == LAST:
        time.sleep(LATE_S)
        out = np.zeros(1500)
        for number in range(14):
            comm.Recv(out, 0, 2)
            equal(out, np.full(1500, float(number)))
        other_is_through(0, 2)


if __name__ == "__main__":
    run_checks(globals())
