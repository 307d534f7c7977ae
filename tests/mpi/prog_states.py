"""A process ends, or stops, in a given state of the protocol between two ranks that share no memory.

Arguments are <report folder> <layout> <state> <log2 of a large message's elements>. Rank 0 is the victim, rank 1
survives and writes: {"took": messages that it got whole before the error}, and how its wait ended, as in prog_fail.py.
"""

import os
import signal
import sys
import threading
import time

import numpy as np
from mpi4py import MPI
from prog_fail import FOLDER, end, mark_event
from support import Report, equal, make_comm

import hetccl
from hetccl import bootstrap

WORLD = MPI.COMM_WORLD
RANK = WORLD.Get_rank()
VICTIM, SURVIVOR = 0, 1
TAG = 7
SMALL, LARGE = 5, 1 << int(sys.argv[4])
MESSAGES, LARGE_MESSAGES = 10, 8
LIMIT_S = 120
# So long both sides may work on what is possible in a state.
SETTLE_S = 0.3
NEVER = 3600


def values(seed, count):
    """What the sender of message `seed` sends."""
    return np.arange(count, dtype=np.int64) * 3 + 1000 * seed + 1


def wire():
    """The wire of this process's communicator."""
    (network,) = [joined for joined in list(bootstrap._joined) if hasattr(joined, "wire")]
    return network.wire


def traffic(what):
    """One of the wire's counters of the other rank; "bytes" is what has been posted on its rails."""
    found = wire().counters().get(1 - RANK)
    if found is None:
        return 0
    return sum(nbytes for _, nbytes in found["rails"]) if what == "bytes" else found[what]


def until(condition):
    """Wait for it; it must come."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"the state was not reached: {wire().counters()}"
        time.sleep(0.001)


def die():
    mark_event()
    os.kill(os.getpid(), signal.SIGKILL)


def meet(comm):
    """Connected, and one message each way."""
    out = np.zeros(3, np.int64)
    comm.Sendrecv(values(RANK, 3), 1 - RANK, 0, out, 1 - RANK, 0)
    equal(out, values(1 - RANK, 3))
    WORLD.Barrier()


class Survivor:
    """What rank 1 does: calls that end by the victim's end, the last of them certainly."""

    def __init__(self, report, comm):
        self.report, self.comm = report, comm
        self.took = 0

    def kill(self, stopped=False):
        """The victim stops, and ends after a while."""
        if not stopped:
            self.stop()
            time.sleep(SETTLE_S)
        mark_event()
        os.kill(VICTIM_PID, signal.SIGKILL)

    def stop(self):
        os.kill(VICTIM_PID, signal.SIGSTOP)

    def send(self, count):
        return self.comm.Isend(values(99, count), VICTIM, TAG)

    def receive(self, seed, count):
        """A message of the victim is right and nothing but it is written, or this raises."""
        whole = np.full(count + 16, -1, np.int64)
        out = whole[8:-8]
        try:
            self.comm.Recv(out, VICTIM, TAG)
        finally:
            assert (whole[:8] == -1).all() and (whole[-8:] == -1).all(), "written beside the buffer"
        equal(out, values(seed, count))
        self.took += 1

    def run(self, deed):
        """Do it, then receive what never comes."""
        error = None
        try:
            deed(self)
            self.receive(-1, SMALL)
        except hetccl.HetcclError as caught:
            error = caught
        self.report.write(took=self.took)
        end(self.report, self.comm, [SURVIVOR], error)


def before_connect(comm):
    """Nobody has said anything to anybody; the survivor begins."""
    if RANK == VICTIM:
        die()
    time.sleep(SETTLE_S)
    return lambda me: me.send(SMALL).Wait()


def idle(comm):
    meet(comm)
    if RANK == VICTIM:
        die()
    time.sleep(SETTLE_S)
    return lambda me: None


def waited_for(comm):
    """The survivor sleeps in a receive."""
    meet(comm)
    if RANK == VICTIM:
        time.sleep(1)
        die()
    return lambda me: None


def eager_arrived(comm):
    """What is in the survivor's memory counts, though its sender is gone before it is looked at."""
    meet(comm)
    if RANK == VICTIM:
        for seed in range(MESSAGES):
            comm.Send(values(seed, SMALL), SURVIVOR, TAG)
        comm.Send(values(0, SMALL), SURVIVOR, TAG + 1)
        WORLD.Barrier()
        die()
    comm.Probe(VICTIM, TAG + 1)
    WORLD.Barrier()
    time.sleep(SETTLE_S)
    return lambda me: [me.receive(seed, SMALL) for seed in range(MESSAGES)]


def eager_under_way(comm):
    """The same, though the survivor has not looked at all since it was sent."""
    meet(comm)
    if RANK == VICTIM:
        for seed in range(MESSAGES):
            comm.Send(values(seed, SMALL), SURVIVOR, TAG)
        time.sleep(SETTLE_S)
        WORLD.Barrier()
        die()
    WORLD.Barrier()
    time.sleep(SETTLE_S)
    return lambda me: [me.receive(seed, SMALL) for seed in range(MESSAGES)]


def eager_not_taken(comm):
    """The victim stops before it takes in small messages, more of them than it has room for."""
    meet(comm)
    if RANK == VICTIM:
        time.sleep(LIMIT_S)

    def deed(me):
        me.stop()
        requests = [me.send(SMALL) for _ in range(100 * MESSAGES)]
        time.sleep(SETTLE_S)
        me.kill(stopped=True)
        hetccl.Request.Waitall(requests)

    return deed


def rts_sent(comm):
    """The survivor has announced a large message that is not received."""
    meet(comm)
    if RANK == VICTIM:
        time.sleep(LIMIT_S)

    def deed(me):
        request = me.send(LARGE)
        until(lambda: traffic("rts") > 0)
        time.sleep(SETTLE_S)
        me.kill()
        request.Wait()

    return deed


def rts_come(comm):
    """A large message has been announced to the survivor, who asks for it when its sender is gone."""
    meet(comm)
    if RANK == VICTIM:
        request = comm.Isend(values(0, LARGE), SURVIVOR, TAG)
        until(lambda: traffic("rts") > 0)
        WORLD.Barrier()
        die()
        request.Wait()
    comm.Probe(VICTIM, TAG)
    WORLD.Barrier()
    time.sleep(SETTLE_S)
    return lambda me: me.receive(0, LARGE)


def cts_sent(comm):
    """The survivor has asked for a large message, whose sender has stopped."""
    meet(comm)
    if RANK == VICTIM:
        request = comm.Isend(values(0, LARGE), SURVIVOR, TAG)
        until(lambda: traffic("rts") > 0)
        WORLD.Barrier()
        time.sleep(LIMIT_S)
        request.Wait()
    comm.Probe(VICTIM, TAG)
    WORLD.Barrier()

    def deed(me):
        me.stop()
        threading.Thread(target=kill_asked, args=(me,)).start()
        me.receive(0, LARGE)

    return deed


def kill_asked(me):
    until(lambda: traffic("cts") > 0)
    time.sleep(SETTLE_S)
    me.kill(stopped=True)


def go_on(requests, condition, deed):
    """Complete requests, and do the deed once the condition holds. On one thread: another one may come too late."""
    done = False
    while not hetccl.Request.Testall(requests):
        if not done and condition():
            done = True
            deed()


def writes(part):
    """The victim sends messages one after another, and ends when it has posted this part of them."""

    def state(comm):
        meet(comm)
        before = traffic("bytes")
        if RANK == VICTIM:
            enough = part * LARGE_MESSAGES * 8 * LARGE
            for seed in range(LARGE_MESSAGES):
                request = comm.Isend(values(seed, LARGE), SURVIVOR, TAG)
                go_on([request], lambda: traffic("bytes") - before >= enough, die)
            die()
        return lambda me: [me.receive(seed, LARGE) for seed in range(LARGE_MESSAGES)]

    return state


def written(comm):
    """The victim receives a large message, and ends when its first part has been posted."""
    meet(comm)
    before = traffic("bytes")
    if RANK == VICTIM:
        comm.Recv(np.empty(LARGE, np.int64), SURVIVOR, TAG)
        time.sleep(LIMIT_S)

    def deed(me):
        go_on([me.send(LARGE)], lambda: traffic("bytes") - before >= 1 << 12, me.kill)

    return deed


def both_ways(comm):
    """Large messages in both directions, several at once."""
    meet(comm)
    before = traffic("bytes")

    def exchange(me=None):
        outs = [np.empty(LARGE // 4, np.int64) for _ in range(4)]
        requests = [comm.Irecv(out, 1 - RANK, TAG) for out in outs]
        requests += [comm.Isend(values(seed, LARGE // 4), 1 - RANK, TAG) for seed in range(4)]
        go_on(requests, lambda: RANK == VICTIM and traffic("bytes") - before >= LARGE, die)

    if RANK == VICTIM:
        exchange()
        die()
    return exchange


def stopped(comm):
    """It does not end at all: the time-out ends the wait."""
    return stop_and(comm, lambda me: None)


def stopped_and_sent_to(comm):
    return stop_and(comm, lambda me: me.send(LARGE).Wait())


def stop_and(comm, wait):
    meet(comm)
    if RANK == VICTIM:
        time.sleep(NEVER)

    def deed(me):
        mark_event()
        me.stop()
        try:
            wait(me)
            me.receive(-1, SMALL)
        finally:
            # It would hold up the job.
            os.kill(VICTIM_PID, signal.SIGKILL)

    return deed


STATES = {
    **{
        state.__name__: state
        for state in (
            before_connect, idle, waited_for, eager_arrived, eager_under_way, eager_not_taken, rts_sent, rts_come,
            cts_sent, written, both_ways, stopped, stopped_and_sent_to,
        )
    },
    "writes_begun": writes(0.01),
    "writes_half": writes(0.5),
    "writes_the_last": writes(0.95),
}  # fmt: skip

if __name__ == "__main__":
    VICTIM_PID = WORLD.bcast(os.getpid(), root=VICTIM)
    report, comm = Report(FOLDER), make_comm()
    WORLD.Barrier()
    deed = STATES[sys.argv[3]](comm)
    Survivor(report, comm).run(deed)
