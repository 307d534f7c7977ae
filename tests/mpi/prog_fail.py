"""One failure under mpirun: arguments are <report folder> <layout> <scenario> <scenario's arguments>.

Each rank writes how its wait ended: {"outcome": "error" or "done", the error's class and peers, "seconds" since the
scenario's `event`}. The ranks stay until all have written, then leave by _exit: MPI's finalize would wait for the dead.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI
from support import (
    Report,
    equal,
    make_comm,
    say_error,
    signal_in_wait,
    signal_later,
    wait_for_reports,
)

import hetccl

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.Get_size(), WORLD.Get_rank()
FOLDER, LAYOUT, SCENARIO, *ARGUMENTS = sys.argv[1:]
VICTIM = SIZE - 2
NEVER = 3600


def call_of(comm, collective, count):
    """Function that runs one collective of `count` float64 per block."""
    own, other = np.ones(count), np.zeros(count)
    send, receive = np.ones(count * SIZE), np.zeros(count * SIZE)
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE

    def along_the_line():
        if RANK > 0:
            comm.Recv(other, RANK - 1)
        if RANK < SIZE - 1:
            comm.Send(own, RANK + 1)

    return {
        "Allreduce": lambda: comm.Allreduce(own, other),
        "Reduce": lambda: comm.Reduce(own, other, root=0),
        "Bcast": lambda: comm.Bcast(own, root=0),
        "Allgather": lambda: comm.Allgather(own, receive),
        "Reduce_scatter_block": lambda: comm.Reduce_scatter_block(send, other),
        "Alltoall": lambda: comm.Alltoall(send, receive),
        "Barrier": lambda: comm.Barrier(),
        "Sendrecv": lambda: comm.Sendrecv(own, after, 0, other, before, 0),
        "Send": along_the_line,
        "Iallreduce": lambda: comm.Iallreduce(own, other).Wait(),
        "Send_requests": lambda: hetccl.Request.Waitall([comm.Irecv(other, before), comm.Isend(own, after)]),
        "Alltoallv": lambda: comm.Alltoallv([send, [count] * SIZE], [receive, [count] * SIZE]),
    }[collective]


def event_file():
    return Path(FOLDER, "event")


def mark_event():
    """Note when the fault happens; the clock is the machine's own, so other ranks may read it."""
    # In one step: several ranks write it, and some may be reading.
    own = Path(FOLDER, f"event.{RANK}")
    own.write_text(str(time.monotonic()))
    own.rename(event_file())


def since_event():
    """Seconds since the fault, or None when there was none."""
    return time.monotonic() - float(event_file().read_text()) if event_file().exists() else None


def end(report, comm, ranks, error=None):
    """Write how the wait ended, see that the communicator refuses more, wait for the others, leave."""
    fields = {"outcome": "done"} if error is None else {"outcome": "error", **say_error(error)}
    report.write(seconds=since_event(), **fields)
    if comm is not None and error is not None:
        again = None
        try:
            comm.Allreduce(np.ones(2), np.zeros(2))
        except (hetccl.HetcclError, KeyboardInterrupt) as second:
            again = type(second).__name__
        start = time.monotonic()
        comm.Free()
        report.write(again=again, free_seconds=time.monotonic() - start)
    report.write(ended=True)
    wait_for_reports(FOLDER, ranks, "ended")
    os._exit(0)


def built():
    """The communicator, of ranks that come at once: the time-out of some is shorter than what starting up may take."""
    WORLD.Barrier()
    return make_comm()


def attempt(report, comm, ranks, call):
    """Run `call` and write how it ended; KeyboardInterrupt is one of the ends."""
    try:
        call()
    except (hetccl.HetcclError, BufferError, TypeError, ValueError, KeyboardInterrupt) as error:
        end(report, comm, ranks, error)
    end(report, comm, ranks)


def forever(call):
    """The loop that only a fault ends."""

    def loop():
        while True:
            call()

    return loop


def kill(report, collective, count):
    """A rank is killed in the middle of a loop of collectives."""
    comm = make_comm()
    call = call_of(comm, collective, int(count))
    for _ in range(3):
        call()
    survivors = [rank for rank in range(SIZE) if rank != VICTIM]
    if RANK == VICTIM:

        def die():
            mark_event()
            os.kill(os.getpid(), signal.SIGKILL)

        threading.Timer(0.3, die).start()
    attempt(report, comm, survivors, forever(call))


def kill_idle(report, collective, count):
    """A rank is killed while no rank is in a call; the others call afterwards."""
    comm = make_comm()
    call = call_of(comm, collective, int(count))
    call()
    WORLD.Barrier()
    survivors = [rank for rank in range(SIZE) if rank != VICTIM]
    if RANK == VICTIM:
        mark_event()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1)
    attempt(report, comm, survivors, call)


def kill_waited_for(report, collective, count):
    """A rank is killed after the others have begun to wait for it, and sleep."""
    comm = make_comm()
    call = call_of(comm, collective, int(count))
    call()
    survivors = [rank for rank in range(SIZE) if rank != VICTIM]
    if RANK == VICTIM:
        time.sleep(2)
        mark_event()
        os.kill(os.getpid(), signal.SIGKILL)
    attempt(report, comm, survivors, call)


def kill_before_building(report):
    """A rank is killed while the others build the communicator."""
    survivors = [rank for rank in range(SIZE) if rank != VICTIM]
    if RANK == VICTIM:
        time.sleep(0.5)
        mark_event()
        os.kill(os.getpid(), signal.SIGKILL)
    attempt(report, None, survivors, make_comm)


def never_builds(report):
    """A rank never constructs its communicator."""
    mark_event()
    others = [rank for rank in range(SIZE) if rank != VICTIM]
    if RANK == VICTIM:
        wait_for_reports(FOLDER, others, "ended")
        os._exit(0)
    attempt(report, None, others, make_comm)


def never_calls(report, collective, count):
    """A rank has its communicator but does not come to the collective."""
    comm = built()
    call = call_of(comm, collective, int(count))
    call()
    mark_event()
    others = [rank for rank in range(SIZE) if rank != VICTIM]
    if RANK == VICTIM:
        wait_for_reports(FOLDER, others, "ended")
        os._exit(0)
    attempt(report, comm, others, forever(call))


def mismatch(report, what):
    """The victim calls with something else than its peers."""
    comm = built()
    odd = RANK == VICTIM
    calls = {
        "count": lambda: comm.Allreduce(np.ones(101 if odd else 100), np.zeros(101 if odd else 100)),
        "large_count": lambda: comm.Allreduce(np.ones(n := 409_598 if odd else 409_600), np.zeros(n)),
        "gather_count": lambda: comm.Allgather(np.ones(n := 8 if odd else 9), np.zeros(SIZE * n)),
        "scatter_count": lambda: comm.Reduce_scatter_block(np.ones(SIZE * (n := 8 if odd else 9)), np.zeros(n)),
        "total_count": lambda: comm.Alltoall(np.ones(SIZE * (n := 8 if odd else 9)), np.zeros(SIZE * n)),
        "vector_count": lambda: comm.Allgatherv(np.ones(n := 8 if odd else 9), [np.zeros(SIZE * n), [n] * SIZE]),
        "pair_count": lambda: comm.Alltoallv(
            [np.ones(9 * SIZE), [8 if odd and to == 0 else 9 for to in range(SIZE)]],
            [np.zeros(9 * SIZE), [9] * SIZE],
        ),
        "request_count": lambda: comm.Iallreduce(np.ones(n := 101 if odd else 100), np.zeros(n)).Wait(),
        "bcast_count": lambda: comm.Bcast(np.ones(80 if odd else 90), root=0),
        "dtype": lambda: comm.Allreduce(*(np.zeros(64, "f4" if odd else "f8") for _ in range(2))),
        "same_size_dtype": lambda: comm.Allreduce(*(np.zeros(64, "i4" if odd else "f4") for _ in range(2))),
        "op": lambda: comm.Allreduce(np.ones(64), np.zeros(64), op=hetccl.MAX if odd else hetccl.SUM),
        "root": lambda: comm.Bcast(np.ones(64), root=1 if odd else 0),
        "collective": lambda: (
            comm.Allgather(np.ones(64), np.zeros(64 * SIZE)) if odd else comm.Allreduce(np.ones(64), np.zeros(64))
        ),
        "barrier": lambda: comm.Barrier() if odd else comm.Allreduce(np.ones(64), np.zeros(64)),
    }

    def twice():
        # Without checking, one rank may get through the first call on what its peers have sent already.
        calls[what]()
        comm.Barrier()

    attempt(report, comm, range(SIZE), twice)


def checked_and_right(report):
    """With HETCCL_CHECK=1 calls that agree work, on every collective."""
    comm = make_comm()
    for collective in ("Allreduce", "Reduce", "Bcast", "Allgather", "Reduce_scatter_block", "Alltoall", "Barrier"):
        for count in (0, 3, 100_000):
            call_of(comm, collective, count)()
    out = np.zeros(5)
    comm.Allreduce(np.full(5, RANK + 1.0), out)
    equal(out, np.full(5, SIZE * (SIZE + 1) / 2))
    end(report, comm, range(SIZE))


def interrupt(report, where):
    """Ctrl-C reaches a rank that waits for the others, who are late; later they come and find it gone."""
    comm = None if where == "building" else built()
    big = np.ones(1 << 20)
    waits = {
        "Allreduce": lambda: comm.Allreduce(np.ones(4), np.zeros(4)),
        "large": lambda: comm.Allreduce(big, np.zeros(1 << 20)),
        "Barrier": lambda: comm.Barrier(),
        "Bcast": lambda: comm.Bcast(big, root=0),
        "Recv": lambda: comm.Recv(big, 0),
        "Send": lambda: comm.Send(big, 0),
        "Iallreduce": lambda: comm.Iallreduce(big, np.zeros(1 << 20)).Wait(),
        "Waitany": lambda: hetccl.Request.Waitany([comm.Irecv(big, 0), comm.Irecv(np.zeros(3), 2)]),
        "Probe": lambda: comm.Probe(),
        "building": lambda: make_comm(),
    }
    if RANK == VICTIM:
        attempt(report, comm, range(SIZE), lambda: (signal_in_wait(signal.SIGINT, before=mark_event), waits[where]()))
    wait_for_reports(FOLDER, [VICTIM], "outcome")
    if where == "building":
        end(report, None, range(SIZE))
    attempt(report, comm, range(SIZE), lambda: comm.Allreduce(np.ones(4), np.zeros(4)))


def stop_and_continue(report):
    """A rank that is stopped for a while delays its peers and harms nothing."""
    comm = make_comm()
    if RANK == VICTIM:
        signal_later(os.getpid(), (0.3, "STOP"), (1.5, "CONT"))
    start, number, out, more = time.monotonic(), 0, np.zeros(40_000), np.ones(1, np.int32)
    while more[0]:
        comm.Allreduce(np.full(40_000, RANK + number, float), out)
        equal(out, np.full(40_000, SIZE * (SIZE - 1) // 2 + SIZE * number, float))
        number += 1
        more[0] = time.monotonic() - start < 3
        comm.Bcast(more, root=0)
    end(report, comm, range(SIZE))


def other_signals(report):
    """Python's signal handlers run while their rank waits, and the wait goes on: the others come after that."""
    comm = make_comm()
    signal.signal(signal.SIGUSR1, lambda number, frame: report.write(handled=number))
    signal.signal(signal.SIGUSR2, lambda number, frame: report.write(both=number))
    out = np.zeros(3)
    if RANK == VICTIM:
        signal_in_wait(signal.SIGUSR1, signal.SIGUSR2)
    else:
        wait_for_reports(FOLDER, [VICTIM], "both")
    comm.Allreduce(np.full(3, RANK, float), out)
    equal(out, np.full(3, SIZE * (SIZE - 1) / 2))
    end(report, comm, range(SIZE))


def raise_in_one(report):
    """A rank leaves by an exception, its communicator alive; the others end as programs do that catch the error."""
    comm = build_and_report_files(report)
    if RANK == VICTIM:
        mark_event()
        raise RuntimeError("a fault of the user's own")
    try:
        forever(call_of(comm, "Allreduce", 1000))()
    except hetccl.HetcclError as error:
        report.write(seconds=since_event(), outcome="error", **say_error(error))
        comm.Free()


def shared_memory_files():
    """Files in /dev/shm that this process has mapped or open, also those without a name any more."""
    names = {line.split(None, 5)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines()}
    for number in os.listdir("/proc/self/fd"):
        try:
            names.add(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            continue
    return {name.removesuffix(" (deleted)") for name in names if name.startswith("/dev/shm/")}


def build_and_report_files(report):
    """A communicator that has been used; reports the files that came with it. MPI makes its own before."""
    WORLD.allgather(bytes(1 << 20))
    WORLD.Ibarrier().Wait()
    before = shared_memory_files()
    comm = make_comm()
    for count in (10, 1_000_000):
        call_of(comm, "Allreduce", count)()
    report.write(shared=sorted(shared_memory_files() - before))
    return comm


def leaves_files(report, how):
    """One way to end with a communicator that has shared memory."""
    comm = build_and_report_files(report)
    if how == "kill":
        if RANK == VICTIM:
            os.kill(os.getpid(), signal.SIGKILL)
        attempt(report, comm, [r for r in range(SIZE) if r != VICTIM], forever(call_of(comm, "Allreduce", 1000)))
    if how == "kill_all":
        comm.Barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    end(report, comm, range(SIZE))


if __name__ == "__main__":
    globals()[SCENARIO](Report(FOLDER), *ARGUMENTS)
