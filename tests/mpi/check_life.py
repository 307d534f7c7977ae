"""Threads, forks, garbage and many communicators: what a long-lived program does around its collectives."""

import errno
import gc
import multiprocessing
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI
from support import equal, make_comm, resident_bytes, run_checks, settled_counts, start_to_wait, still_works

import hetccl
from hetccl.net import connector, network

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.Get_size(), WORLD.Get_rank()
# So late is a rank that others wait for; a ticking thread wants a turn every TICK_S.
WAIT_S, TICK_S = 0.6, 0.01
# Turns of another thread that show that it runs in a wait: one that begins it and one that ends it would come anyway.
TICKS, TICKING_S = 8, 20


class Ticker:
    """Counts turns of a Python thread while the block runs; writes a file after enough of them."""

    def __init__(self, path):
        self.path = path

    def __enter__(self):
        self.ticks, self.stopped = 0, threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return self

    def run(self):
        while not self.stopped.wait(TICK_S):
            self.ticks += 1
            if self.ticks == TICKS:
                self.path.touch()

    def __exit__(self, *exc):
        self.stopped.set()
        self.thread.join()


def check_other_threads_run_while_a_rank_waits(comm):
    """The GIL is not held: the last rank comes when other threads of all who wait for it have had their turns."""
    out, big, others = np.zeros(4), np.zeros(1 << 19), range(SIZE - 1)
    waits = (
        (others, lambda: comm.Barrier()),
        (others, lambda: comm.Allreduce(np.ones(4), out)),
        (others, lambda: comm.Allreduce(np.ones(1 << 19), big)),
        (others, lambda: comm.Bcast(out, root=SIZE - 1)),
        (others, lambda: comm.Allgather(np.ones(1), np.zeros(SIZE))),
        ([0], lambda: comm.Sendrecv(out, (RANK + 1) % SIZE, 0, np.zeros(4), (RANK - 1) % SIZE, 0)),
        ([0], lambda: comm.Send(out, 0) if RANK == SIZE - 1 else comm.Recv(out, SIZE - 1) if RANK == 0 else None),
        (others, lambda: make_comm().Free()),
    )
    for number, (who, wait) in enumerate(waits):
        paths = {rank: Path(sys.argv[1], f"ticks.{number}.{rank}") for rank in who}
        comm.Barrier()
        if RANK in who:
            with Ticker(paths[RANK]) as ticker:
                wait()
            assert ticker.ticks >= TICKS, f"{ticker.ticks} turns while it waited"
            continue
        end = time.monotonic() + TICKING_S
        while RANK == SIZE - 1 and not all(path.exists() for path in paths.values()) and time.monotonic() < end:
            time.sleep(TICK_S)
        wait()


def check_two_communicators_in_two_threads(comm):
    """Each thread has its own communicator: neither needs the other's progress."""
    errors = []

    def work(own, factor):
        try:
            out = np.zeros(1000)
            for number in range(200):
                own.Allreduce(np.full(1000, float(factor * (RANK + number))), out)
                equal(out, np.full(1000, float(factor * (SIZE * (SIZE - 1) // 2 + SIZE * number))))
        except BaseException as error:
            errors.append(error)

    with make_comm() as other:
        threads = [threading.Thread(target=work, args=pair) for pair in ((comm, 1), (other, 3))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors, errors


def check_two_threads_on_one_communicator(comm):
    """Calls are serialised: whichever thread comes first on a rank, equal calls meet equal calls."""
    errors = []

    def work():
        try:
            out = np.zeros(5000)
            for _ in range(200):
                comm.Allreduce(np.full(5000, RANK + 1.0), out)
                equal(out, np.full(5000, SIZE * (SIZE + 1) / 2))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    still_works(comm)


def in_child(work):
    """Exit code of a forked child that runs work() and returns True for success; 9 when it raised."""
    child = os.fork()
    if child == 0:
        code = 9
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def check_fork(comm):
    """The communicator belongs to the parent: the child's use is CommClosed and does nothing to the parent's."""

    def use():
        refused = 0
        for call in (
            lambda: comm.Allreduce(np.ones(3), np.zeros(3)),
            lambda: comm.Barrier(),
            lambda: comm.Send(np.ones(3), 0),
        ):
            try:
                call()
            except hetccl.CommClosed:
                refused += 1
        return refused == 3

    assert in_child(use) == 0
    still_works(comm)


def check_fork_and_free(comm):
    """A child that frees or collects its copy leaves the parent's alone."""
    holder = [make_comm()]

    def free():
        holder[0].Free()
        return True

    def drop():
        holder.clear()
        gc.collect()
        return True

    assert in_child(free) == 0
    still_works(holder[0])
    assert in_child(drop) == 0
    still_works(holder[0])
    holder[0].Free()


def check_fork_in_the_middle(comm):
    """Children come and go while collectives run."""
    for number in range(5):
        child = os.fork()
        if child == 0:
            time.sleep(0.02 * number)
            os._exit(0)
        still_works(comm)
        os.waitpid(child, 0)
    still_works(comm)


def square(number):
    return number * number


def check_multiprocessing_and_subprocess(comm):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(square, range(5)) == [0, 1, 4, 9, 16]
    still_works(comm)
    done = subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True, timeout=60)
    assert done.stdout == "42\n"
    still_works(comm)


def check_dropped_communicators(comm):
    """Communicators that nobody freed are collected at different times on different ranks: no rank waits for that."""
    for number in range(4):
        dropped = make_comm()
        still_works(dropped)
        if (RANK + number) % 2:
            gc.collect()
        del dropped
        still_works(comm)
    gc.collect()
    still_works(comm)


def check_dropped_on_the_connectors_thread(comm):
    """The collector takes a communicator on whatever thread it runs, the one that serves all communicators included."""
    still_works(comm)
    gc.disable()
    try:
        dropped = make_comm()
        still_works(dropped)
        cycle = [dropped]
        cycle.append(cycle)
        del dropped, cycle
        collected = threading.Event()

        def collect():
            gc.collect()
            collected.set()

        process = connector._process
        if process is not None:
            process._loop.soon(collect)
        else:
            threading.Thread(target=collect).start()
        assert collected.wait(60)
    finally:
        gc.enable()
    for _ in range(5):
        with make_comm() as other:
            still_works(other)


def check_dropped_by_many_threads(comm):
    """Communicators of several threads, made and dropped with messages under way; nobody else is held up."""
    bases = [WORLD.Dup() for _ in range(4)]
    faults = []

    def use(base, number):
        try:
            for turn in range(6):
                mine = hetccl.Comm(base)
                out, into = np.full(30000 + number, RANK + turn), np.zeros(30000 + number, int)
                requests = [mine.Irecv(into, (RANK - 1) % SIZE), mine.Isend(out, (RANK + 1) % SIZE)]
                still_works(mine)
                for request in requests:
                    request.Wait()
                equal(into, np.full(30000 + number, (RANK - 1) % SIZE + turn))
                cycle = [mine, requests]
                cycle.append(cycle)
                del mine, cycle, requests
        except Exception as fault:
            faults.append(fault)

    threads = [threading.Thread(target=use, args=pair) for pair in zip(bases, range(4))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults
    gc.collect()
    still_works(comm)
    for base in bases:
        base.Free()


def check_buffers_are_released(comm):
    """A call holds its buffers until it returns and no longer: array.array can grow, reference counts are as before."""
    import array

    data, out = array.array("d", [1.0] * 10), np.zeros(10)
    before = sys.getrefcount(data), sys.getrefcount(out)
    for _ in range(10):
        comm.Allreduce(data, out)
        comm.Bcast(data)
        try:
            comm.Allreduce(data, out[::2])
        except BufferError:
            pass
    assert (sys.getrefcount(data), sys.getrefcount(out)) == before
    data.append(2.0)


def check_thousand_communicators(comm):
    """Built and freed: open files, threads and mappings are as before, memory does not grow."""
    still_works(comm)  # connected before anything is counted: a rank that is done uses it while others count
    measured = {}
    for number in range(1, 1001):
        with make_comm() as other:
            if number % 100 == 0:
                still_works(other)
        if number in (200, 1000):
            gc.collect()
            measured[number] = (settled_counts(), resident_bytes())
    (counts, memory), (counts_after, memory_after) = measured[200], measured[1000]
    assert counts_after[:2] == counts[:2], f"files, threads: {counts} -> {counts_after}"
    # The allocator may map an arena or two of its own, and one for each thread that connects ranks over a network.
    far = "HETCCL_TRANSPORT" in os.environ
    assert counts_after[2] <= counts[2] + (16 if far else 4), f"mappings: {counts} -> {counts_after}"
    assert memory_after - memory < (16 if far else 4) << 20, (
        f"{memory_after - memory} bytes more after 800 communicators"
    )
    still_works(comm)


def check_many_small_allreduces(comm):
    """Memory does not grow per call, not even by the smallest block; up to 60,000 calls, fewer on a slow machine."""
    send, out, more = np.ones(2), np.zeros(2), np.zeros(1, np.int32)
    start, memory = time.monotonic(), None
    for batch in range(12):
        for _ in range(5000):
            comm.Allreduce(send, out)
        if batch == 2:
            memory = resident_bytes()
        more[0] = time.monotonic() - start < 15 or batch < 5
        comm.Bcast(more, root=0)
        if not more[0]:
            break
    grown = resident_bytes() - memory
    assert grown < 1 << 20, f"{grown} bytes more after {(batch - 2) * 5000} calls"
    equal(out, np.full(2, float(SIZE)))


def check_free_waits_for_other_threads(comm):
    """Free in one thread while another receives: the memory stays mapped until that call is over."""
    mine = make_comm()
    out = np.zeros(3)
    if RANK == 0:
        receiver = threading.Thread(target=mine.Recv, args=(out, SIZE - 1))
        start_to_wait(receiver)
        mine.Free()
        receiver.join()
        equal(out, np.arange(3.0))
    elif RANK == SIZE - 1:
        time.sleep(WAIT_S)
        mine.Send(np.arange(3.0), 0)
    comm.Barrier()
    mine.Free()


def check_no_descriptor_left(comm):
    """A process that can open no file any more does not take its peers for dead."""
    comm.Barrier()  # connections over a network take descriptors
    opened = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if RANK == 0:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, soft), hard))
        try:
            while True:
                opened.append(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            assert error.errno == errno.EMFILE and opened, error
    if RANK == SIZE - 1:
        time.sleep(WAIT_S)
    try:
        comm.Barrier()
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    still_works(comm)


def build_fails(text):
    """Whether a communicator cannot be built, and the reason has this text."""
    try:
        make_comm().Free()
    except hetccl.HetcclError as error:
        return not isinstance(error, TimeoutError) and text in str(error)
    return False


def check_a_rank_that_cannot_join_the_network(comm):
    """All ranks are told of it, and go on; nothing is left. (In shared memory there is no network to join.)"""
    join = network.Network.join

    def fail(self, board):
        raise OSError(errno.EMFILE, "no descriptor is left")

    still_works(comm)
    far = "HETCCL_TRANSPORT" in os.environ
    for _ in range(3):
        if RANK == SIZE - 1:
            network.Network.join = fail
        try:
            assert build_fails(f"rank {SIZE - 1}: OSError: [Errno {errno.EMFILE}] no descriptor is left") is far
        finally:
            network.Network.join = join
        still_works(comm)
    if far:
        assert connector._process._promised == 0
    with make_comm() as other:
        still_works(other)


def check_settings_that_differ(comm):
    """Ranks that would run another plan, or compare calls where others do not, are told when they meet."""
    other = str(1 - int(os.environ.get("HETCCL_CHECK", "0")))
    for name, value in (("HETCCL_ALGORITHM", "ring"), ("HETCCL_CHECK", other)):
        before = os.environ.get(name)
        if RANK == 0:
            os.environ[name] = value
        try:
            assert build_fails(f"{name} differs"), name
        finally:
            if RANK == 0:
                os.environ.pop(name)
                os.environ.update({name: before} if before is not None else {})
    still_works(comm)


def check_time_out_of_centuries(comm):
    """HETCCL_TIMEOUT beyond what nanoseconds can count is a long time, not none."""
    before = os.environ.get("HETCCL_TIMEOUT")
    os.environ["HETCCL_TIMEOUT"] = "1e10"
    try:
        mine = make_comm()
    finally:
        os.environ.pop("HETCCL_TIMEOUT")
        os.environ.update({"HETCCL_TIMEOUT": before} if before is not None else {})
    if RANK == SIZE - 1:
        time.sleep(WAIT_S)
    still_works(mine)
    mine.Free()


def check_no_memory_for_the_segment(comm):
    """The first rank cannot make the segment: all hear of it at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if RANK == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        assert build_fails("rank 0: OSError")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    still_works(comm)


def check_receive_from_anybody_send_to_nobody(comm):
    """A Sendrecv whose receiver has left ends, though any other rank might still send."""
    if SIZE > 2:
        mine = make_comm()
        if RANK == 1:
            mine.Free()
        elif RANK == 0:
            try:
                mine.Sendrecv(np.ones(1 << 19), 1, 0, np.ones(1), MPI.ANY_SOURCE)
                raise AssertionError("nobody took the message")
            except hetccl.PeerError as error:
                assert error.peer == 1, error
        comm.Barrier()
        mine.Free()


if __name__ == "__main__":
    run_checks(globals())
