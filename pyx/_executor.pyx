"""Layer L3: the engine of one communicator; all waits of hetccl on host data are here.

Row (collectives) and mailbox (messages) are polled under one mutex, by whoever waits, or by the progress thread. A wait
spins for microseconds, then yields the core, then sleeps on this rank's bell. Twenty times a second it looks around:
has a rank broken the communicator, has a peer that holds the work up died, is there a signal for Python, is the time
over. The GIL is never held while waiting, and never taken under the mutex.
"""

import os
import time

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from hetccl._board cimport Board
from hetccl._calls cimport PROBE
from hetccl._engine cimport has_failed
from hetccl._mailbox cimport MESSAGE_POSTED
from hetccl._mutex cimport hetccl_mutex_give_way, hetccl_mutex_lock, hetccl_mutex_unlock
from hetccl._progress cimport progress_enter, progress_leave, progress_listen, progress_needed, progress_stop
from hetccl._shm cimport (
    HETCCL_AGAIN, HETCCL_MOVED, HETCCL_REASON_LEFT, hetccl_bell_arm, hetccl_bell_disarm, hetccl_bell_ring,
    hetccl_bell_sleep, hetccl_now_ns, hetccl_rank_block_t,
)

from hetccl._calls import CALLS
from hetccl._reporter import LONGEST_S
from hetccl.errors import CommClosed, CommTimeout


cdef extern from *:
    """
    #include <sched.h>
    #include <stdint.h>
    #if defined(__x86_64__) || defined(__i386__)
    #define hetccl_relax() __builtin_ia32_pause()
    #elif defined(__aarch64__)
    #define hetccl_relax() __asm__ __volatile__("yield")
    #else
    #define hetccl_relax() ((void)0)
    #endif
    #define hetccl_load(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
    """
    void hetccl_relax() noexcept nogil
    uint64_t hetccl_load(uint64_t* word) noexcept nogil
    int sched_yield() noexcept nogil

cdef extern from "Python.h":
    int PyErr_CheckSignals() noexcept
    unsigned long PyThread_get_thread_ident() noexcept


cdef enum:
    NOBODY = -1
    # Between two looks at faults, signals and the clock; also the longest sleep. Bounds the reaction to Ctrl-C and to a
    # dead peer.
    LOOK_NS = 50000000
    # Polls before the first look at the clock: about a microsecond on a free core.
    POLLS_BEFORE_CLOCK = 64
    # Moves before a look at the clock: each may be a few MiB.
    MOVES_BEFORE_CLOCK = 8
    # What lies between two Tests counts as waiting up to this: the rest of the time the caller did something else.
    TESTING_NS = 1000000000
    # Messages of ranks on cores of their own come within this; later, another program may want the core, and
    # sched_yield costs nothing if none does.
    SPIN_NS = 20000
    # Going to sleep and being woken costs 10 to 50 us; a rank that is a millisecond late is not worth a core.
    DEFAULT_AWAKE_US = 1000

# Between two looks of stop() at whether other threads have left.
LEAVING_S = 1e-3
# How long Free waits for bytes on their way to other hosts.
FLUSH_S = 5.0

# How often this process has come out of a fork; a communicator works only in the process that built it.
cdef int forks = 0


def count_fork():
    global forks
    forks += 1


os.register_at_fork(after_in_child=count_fork)


@cython.no_gc_clear
cdef class Executor(Reporter):
    """Runs collectives and messages.

    board   : _board.Board
    network : owner of the connections to ranks of other hosts, or None; see Engine
    timeout : seconds that a wait may last
    spin_us : microseconds that a wait stays awake before it sleeps, or None: DEFAULT_AWAKE_US
    crowded : more ranks than cores; spinning would take the core from the rank that is waited for, so the wait yields
              it at once
    """

    def __cinit__(self, Board board not None, network, double timeout, spin_us, bint crowded):
        self.inflight = {}
        self.generation = forks
        awake_us = DEFAULT_AWAKE_US if spin_us is None else spin_us
        self.awake_ns = <int64_t>(1000 * min(awake_us, <int64_t>(LONGEST_S * 1e6)))
        self.spin_ns = 0 if crowded else min(self.awake_ns, <int64_t>SPIN_NS)

    cdef bint is_own_process(self) noexcept:
        return self.generation == forks

    cdef int usable(self, int call) except -1:
        if self.closed:
            raise CommClosed(f"{CALLS[call]}: the communicator has been freed", call=CALLS[call])
        if self.generation != forks:
            raise CommClosed(f"{CALLS[call]}: the communicator belongs to the parent of this forked process",
                             call=CALLS[call])
        return 0

    cdef void enter(self, Visit* visit) noexcept:
        """Note that this thread is inside; the segment stays mapped until it leaves."""
        visit.thread = PyThread_get_thread_ident()
        visit.next = self.visits
        self.visits = visit

    cdef void leave(self, Visit* visit) noexcept:
        cdef Visit** place = &self.visits
        while place[0] != visit:
            place = &place[0].next
        place[0] = visit.next

    cdef int stop(self) except -1:
        """Let nobody in, wait until other threads have left, end the progress thread. What is unfinished stays so."""
        cdef Visit* visit = self.visits
        cdef unsigned long me = PyThread_get_thread_ident()
        cdef int64_t began = hetccl_now_ns()
        while visit != NULL:
            if visit.thread == me:
                raise RuntimeError("Free: this thread is inside a call of the communicator (called from a signal "
                                   "handler?)")
            visit = visit.next
        # Nobody may come in any more: of threads that call in a loop one would always be inside.
        self.closed = True
        try:
            while self.visits != NULL:
                if hetccl_now_ns() - began > self.timeout_ns:
                    raise CommTimeout(f"Free: another thread has been in a call of the communicator for "
                                      f"{self.timeout_ns / 1e9:g} s (HETCCL_TIMEOUT)", call="Free", rank=self.rank)
                time.sleep(LEAVING_S)
        except BaseException:
            self.closed = False
            raise
        with nogil:
            progress_stop(&self.progress)
            hetccl_mutex_lock(&self.progress.mutex)
            self.broken = True
            hetccl_mutex_unlock(&self.progress.mutex)
        # Peers that read what these requests hold, or write there, see that this rank has left before the memory goes.
        self.board.leave()
        if self.network is not None:
            self.network.close(0.0 if hetccl_load(self.board.fault_word) else min(self.timeout_ns / 1e9, FLUSH_S))
        self.inflight.clear()
        return 0

    cdef bint start(self, Work* work, bint waits) except -1:
        """Hand work to the engine and poll once; True if it is complete already. waits: a wait follows."""
        cdef bint done = False
        # Since the call was found possible, other threads may have run.
        self.usable(work.call)
        if hetccl_load(self.board.fault_word) != 0:
            self.raise_fault(work.call, NULL)
        # A poll may copy megabytes, but it ends; the GIL is the outermost lock.
        self.submit(work)
        # A collective of several ranks is not complete before the peers have answered: the wait's own polls will do.
        if waits and work.collective != NULL and self.nranks > 1:
            return False
        self.poll_in_passing(work, &done)
        if done:
            self.conclude(work)
            self.await_flow()
        return done

    cdef int detach(self) except -1:
        progress_needed(&self.progress)
        return 0

    cdef bint poll_once(self, Work* work) except -1:
        """Whether the work is complete; raises what a wait would raise."""
        cdef Visit visit
        cdef bint done = False
        self.usable(work.call)
        self.enter(&visit)
        try:
            with nogil:
                self.poll_once_nogil(work, &done)
        finally:
            self.leave(&visit)
        return done

    cdef int poll_once_nogil(self, Work* work, bint* done) except -1 nogil:
        cdef int64_t now
        self.poll_in_passing(work, done)
        if done[0]:
            return self.conclude(work)
        now = hetccl_now_ns()
        if work.tried_ns != 0 and now - work.tried_ns > TESTING_NS:
            work.idle_ns += now - work.tried_ns - TESTING_NS
        work.tried_ns = now
        self.note_idle(work, now)
        return self.look_around(work, now, False)

    cdef int wait(self, Work* work) except -1:
        cdef Visit visit
        self.usable(work.call)
        self.enter(&visit)
        progress_enter(&self.progress)
        try:
            with nogil:
                self.wait_nogil(work)
        finally:
            progress_leave(&self.progress, self.has_work())
            self.leave(&visit)
        return self.await_flow()

    cdef int await_flow(self) except -1:
        """Let the thread see to it that what has been sent leaves this host, if it has not."""
        return progress_needed(&self.progress) if self.wire is not None and self.wire.is_busy() else 0

    cdef bint probe(self, int source, int64_t tag, Probed* probed, Message* taken) except -1:
        """Look for a message; taken: bind it to this receive, or NULL."""
        cdef bint found, has_room = True
        cdef int status
        if hetccl_load(self.board.fault_word) != 0:
            self.raise_fault(PROBE, NULL)
        hetccl_mutex_lock(&self.progress.mutex)
        status = self.poll_locked()
        found = self.mailbox.probe(source, tag, probed)
        if found and taken != NULL:
            has_room = self.mailbox.take(probed.source, probed.tag, taken)
        hetccl_mutex_unlock(&self.progress.mutex)
        if not has_room:
            raise MemoryError(f"Mprobe: no memory to hold the message of {probed.nbytes} bytes; receive it instead")
        if status == HETCCL_MOVED:
            hetccl_bell_ring(self.mine)
        return found

    cdef int await_message(self, int source, int64_t tag, Probed* probed, Message* taken) except -1:
        """Wait until there is a message."""
        cdef Message wanted
        cdef Work work
        memset(&work, 0, sizeof(work))
        memset(&wanted, 0, sizeof(wanted))
        # Never posted: it says whom the wait is for.
        wanted.peer, wanted.tag, wanted.state = source, tag, MESSAGE_POSTED
        work.call, work.messages, work.nmessages, work.probed = PROBE, &wanted, 1, probed
        # Another thread may have received it after the wait.
        while not self.probe(source, tag, probed, taken):
            self.wait(&work)
        return 0

    cdef int wait_nogil(self, Work* work) except -1 nogil:
        """Poll until the work is complete.

        An error here breaks the communicator for all ranks: the peers hold half of the work.
        """
        cdef int status, polls = 0, moves = 0
        cdef bint done = False
        work.idle_ns = 0  # what came before was no wait
        while not done:
            status = self.poll_on(work, &done, &polls, &moves)
            if done:
                break
            if status == HETCCL_AGAIN:
                status = self.rest(work, &done)
            if status == HETCCL_MOVED:
                polls = 0
                work.idle_ns = 0
                self.look_around(work, hetccl_now_ns(), True)
        return self.conclude(work)

    cdef int poll_on(self, Work* work, bint* done, int* polls, int* moves) noexcept nogil:
        """Poll until the work is complete (done), much has moved (MOVED), or nothing has for long (AGAIN).

        The mutex is kept meanwhile: taking it for each poll would cost as much as the poll.
        """
        cdef int status = HETCCL_AGAIN
        hetccl_mutex_lock(&self.progress.mutex)
        while True:
            status = self.poll_locked()
            if status == HETCCL_MOVED and self.progress.drivers > 1:
                # It may be what another thread sleeps for.
                hetccl_bell_ring(self.mine)
            done[0] = self.has_ended(work)
            if done[0]:
                break
            if status == HETCCL_MOVED:
                polls[0] = 0
                work.idle_ns = 0
                moves[0] += 1
                if moves[0] % MOVES_BEFORE_CLOCK == 0:
                    break
            else:
                polls[0] += 1
                if polls[0] >= POLLS_BEFORE_CLOCK:
                    break
                hetccl_relax()
            hetccl_mutex_give_way(&self.progress.mutex)
        hetccl_mutex_unlock(&self.progress.mutex)
        return status

    cdef int conclude(self, Work* work) except -1 nogil:
        """Raise what went wrong with work that is final."""
        if has_failed(work):
            return self.raise_failed(work)
        # A peer that gave up may have changed memory while it was read from it.
        if hetccl_load(self.board.fault_word) != 0:
            return self.raise_fault(work.call, work)
        return 0

    cdef int rest(self, Work* work, bint* done) except -100 nogil:
        """Let time pass after fruitless polls, the dearer the longer nothing moves. Returns a poll's status."""
        cdef hetccl_rank_block_t* mine = self.mine
        cdef int64_t now = hetccl_now_ns()
        cdef int status = HETCCL_AGAIN
        cdef uint32_t bell
        self.note_idle(work, now)
        self.look_around(work, now, True)
        if now - work.idle_ns < self.spin_ns:
            hetccl_relax()
        elif now - work.idle_ns < self.awake_ns:
            sched_yield()
        else:
            bell = hetccl_bell_arm(mine)
            if progress_listen(&self.progress):
                status = self.poll(work, done)
                if status == HETCCL_AGAIN and not done[0]:
                    hetccl_bell_sleep(mine, bell, LOOK_NS)
            hetccl_bell_disarm(mine)
        return status

    cdef void note_idle(self, Work* work, int64_t now) noexcept nogil:
        """Nothing has moved in the last poll; but somebody else's may have moved something."""
        cdef uint64_t moves = hetccl_load(&self.moves)
        if work.idle_ns == 0 or work.moves != moves:
            work.idle_ns, work.moves = now, moves

    cdef int look_around(self, Work* work, int64_t now, bint waits) except -1 nogil:
        """Twenty times a second: is the communicator broken, a blocking peer gone, a signal pending, the time over?

        waits : the call does not return to Python, which would hear of signals
        """
        cdef int peer
        cdef bint done = False
        if work.looked_ns == 0:
            work.looked_ns = now
        if now - work.looked_ns < LOOK_NS:
            return 0
        work.looked_ns = now
        if hetccl_load(self.board.fault_word) != 0:
            return self.raise_fault(work.call, work)
        peer = self.lost_peer(work)
        # What it sent before it ended may have come since the last poll.
        if peer >= 0 and self.poll(work, &done) == HETCCL_AGAIN and not done:
            return self.raise_lost(work, peer)
        if waits:
            with gil:
                if PyErr_CheckSignals() != 0:
                    self.give_up(HETCCL_REASON_LEFT, self.rank)
                    return -1
        if work.idle_ns != 0 and now - work.idle_ns > self.timeout_ns:
            return self.raise_late(work)
        return 0

    cdef int lost_peer(self, Work* work) noexcept nogil:
        """A peer that holds the work up and has ended or freed the communicator; NOBODY if there is none."""
        cdef uint8_t* mask = <uint8_t*>calloc(self.nranks, 1)
        cdef int peer, lost = NOBODY, candidate = NOBODY
        cdef bint gone, waiting = False
        if mask == NULL:
            return NOBODY
        self.mark_blockers(work, mask)
        self.reach(mask)
        for peer in range(self.nranks):
            if mask[peer] and peer != self.rank:
                gone = self.board.gone(peer) != 0
                if gone and mask[peer] == 1:
                    lost = peer
                elif gone:
                    candidate = peer
                else:
                    waiting = waiting or mask[peer] == 2
        free(mask)
        return candidate if lost == NOBODY and not waiting else lost

    cdef void reach(self, uint8_t* mask) noexcept nogil:
        """Connect the peers that are waited for, if nothing has yet: only a connection tells of their end."""
        cdef int peer
        if self.wire is None:
            return
        hetccl_mutex_lock(&self.progress.mutex)
        for peer in range(self.nranks):
            if mask[peer] == 1 and self.board.is_far(peer):
                self.wire.want(peer)
        hetccl_mutex_unlock(&self.progress.mutex)
