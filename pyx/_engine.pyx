"""Layer L3: what moves a communicator's data: the row of its collectives, its mailbox, and the thread for both.

Everything here is polled under one mutex, by a call that waits (_executor) or by the progress thread. Nothing waits for
a peer, and nothing takes the GIL under the mutex. A fault ends all: the peers hold half of what is under way.
"""

cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from hetccl._board cimport Board
from hetccl._ferry cimport ferry_new
from hetccl._mailbox cimport ANY, MESSAGE_COMPLETE, MESSAGE_FAILED, MESSAGE_POSTED, Message
from hetccl._mutex cimport hetccl_mutex_lock, hetccl_mutex_unlock
from hetccl._progress cimport progress_close, progress_open, progress_stop
from hetccl._passage cimport hetccl_ring_release
from hetccl._rail cimport HETCCL_DIRECT_SHM, HETCCL_ENETWORK, direct_text
from hetccl._row cimport (
    COLLECTIVE_CHECKING, COLLECTIVE_DONE, COLLECTIVE_FAILED, COLLECTIVE_GATED, row_blockers, row_close, row_open,
    row_poll, row_push,
)
from hetccl._runtime cimport Runtime
from hetccl._shm cimport (
    COLLECTIVE, HETCCL_AGAIN, HETCCL_DONE, HETCCL_EBROKEN, HETCCL_EPEER, HETCCL_FAULT_CULPRIT, HETCCL_FAULT_REASON,
    HETCCL_MOVED, HETCCL_REASON_DEAD, HETCCL_REASON_LEFT, HETCCL_REASON_NETWORK, HETCCL_REASON_TIMEOUT, POINT_TO_POINT,
    hetccl_bell_ring, hetccl_now_ns, hetccl_shm_transport,
)
from hetccl._wire_peer cimport hetccl_wire_transport
from hetccl._wire_poll cimport wire_listen

cdef extern from "<unistd.h>":
    int getpid() noexcept nogil

cdef extern from *:
    """
    #include <stdint.h>
    #define engine_load(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
    """
    uint64_t hetccl_load "engine_load"(uint64_t* word) noexcept nogil

cdef enum:
    NOBODY = -1
    # Between two looks of the thread at the ranks for which streams wait; as often as a call that waits looks.
    WATCH_NS = 50000000


# Its parts point at each other: cleared in the wrong order by the collector of cycles, the thread would lose its
# memory.
@cython.no_gc_clear
cdef class Engine:
    """The data movers of one communicator.

    board   : _board.Board
    network : owner of the connections to ranks of other hosts, with the attribute `wire` (_wire.Wire), or None
    """

    def __cinit__(self, Board board not None, network, *settings):
        cdef int traffic, receive, peer
        self.board, self.mine = board, board.mine
        self.rank, self.nranks = board.rank, board.nranks
        self.owner_pid = getpid()
        self.network = network
        self.wire = None if network is None else network.wire
        self.links = <Link*>calloc(4 * self.nranks, sizeof(Link))
        self.mask = <uint8_t*>calloc(self.nranks, 1)
        if self.links == NULL or self.mask == NULL:
            raise MemoryError()
        for traffic in range(2):
            for receive in range(2):
                for peer in range(self.nranks):
                    self.open_link(traffic, receive, peer)
        row_open(&self.row, self.nranks, self.link(COLLECTIVE, False), self.link(COLLECTIVE, True))
        self.mailbox = ferry_new(self.nranks, self.link(POINT_TO_POINT, False), self.link(POINT_TO_POINT, True))
        progress_open(&self.progress, poll_for_thread, <void*>self, self.mine)
        if self.wire is not None:
            self.wire.adopt(&self.progress.mutex, self.mine)
            self.progress.listen, self.progress.network = wire_listen, <void*>self.wire

    def __del__(self):
        # Before the collector of cycles takes requests apart that the thread still works on.
        if self.progress.poll != NULL and getpid() == self.owner_pid:
            progress_stop(&self.progress)
            if self.ring != NULL:
                hetccl_ring_release(self.ring)
            # Nor may a peer take for a message what lies in their memory afterwards, or write there.
            self.board.leave()
            if self.network is not None:
                self.network.drop(self)

    def __dealloc__(self):
        if self.progress.poll != NULL and getpid() == self.owner_pid:
            progress_stop(&self.progress)
            if self.wire is not None:
                self.wire.disown()
            progress_close(&self.progress)
        row_close(&self.row)
        free(self.links)
        free(self.mask)

    def direct(self, int peer, Runtime runtime not None, uintptr_t address, size_t nbytes, *, bint all_devices=False):
        """Whether a GPU's memory can go to a peer, and be received from it, without a copy: as Wire.direct()."""
        if not self.board.is_far(peer):
            return False, direct_text(HETCCL_DIRECT_SHM, "")
        return self.wire.direct(peer, runtime, address, nbytes, all_devices=all_devices)

    cdef void open_link(self, int traffic, bint receive, int peer) noexcept:
        cdef Link* link = self.link(traffic, receive) + peer
        if self.board.is_far(peer):
            link.ops, link.state = &hetccl_wire_transport, self.wire.link(traffic, receive, peer)
        else:
            link.ops = &hetccl_shm_transport
            link.state = self.board.segment.link(traffic, receive, self.board.places[peer])

    cdef Link* link(self, int traffic, bint receive) noexcept nogil:
        return self.links + (2 * traffic + receive) * self.nranks

    cdef void submit(self, Work* work) noexcept nogil:
        """Take the work over. A collective's place in the order is fixed here, and published to late peers."""
        cdef int i
        work.idle_ns = work.looked_ns = work.tried_ns = 0
        hetccl_mutex_lock(&self.progress.mutex)
        if work.collective != NULL:
            row_push(&self.row, work.collective)
            self.mine.call = work.call
            self.mine.entered = self.row.number
        for i in range(work.nmessages):
            self.mailbox.post(&work.messages[i])
        hetccl_mutex_unlock(&self.progress.mutex)

    cdef int poll_locked(self) noexcept nogil:
        """Move what can be moved; called under the mutex."""
        cdef int status = self.poll_parts()
        self.moves += status == HETCCL_MOVED
        return status

    cdef int poll_parts(self) noexcept nogil:
        cdef int status = HETCCL_AGAIN, of_messages, arrived = HETCCL_AGAIN, peer
        if self.broken:
            return HETCCL_AGAIN
        if self.wire is not None:
            arrived = self.wire.poll()
        if self.row.head != NULL:
            status = row_poll(&self.row)
        if status < 0:
            peer = self.row.failed.failure.peer
            if status == HETCCL_EPEER or status == HETCCL_ENETWORK:
                self.break_off(self.reason_of(status, peer), peer)
            else:
                self.break_off(HETCCL_REASON_LEFT, self.rank)
            return HETCCL_MOVED
        if self.mailbox.npending > 0 or self.mailbox.nbusy > 0:
            of_messages = self.mailbox.poll()
            status = of_messages if status == HETCCL_AGAIN else status
        if self.mailbox.misfit != NOBODY:
            # A stream would put into the user's memory what has not come.
            self.break_off(HETCCL_REASON_LEFT, self.rank)
            return HETCCL_MOVED
        return arrived if status == HETCCL_AGAIN else status

    cdef int reason_of(self, int status, int peer) noexcept nogil:
        cdef int reason = self.board.gone(peer)
        if reason != 0:
            return reason
        return HETCCL_REASON_NETWORK if status == HETCCL_ENETWORK else HETCCL_REASON_DEAD

    cdef void break_off(self, int reason, int culprit) noexcept nogil:
        """Break the communicator for all ranks: the peers hold half of what is under way. Under the mutex."""
        self.broken = True
        # Their owners, and the memory that the peers write to, may go away from now on.
        if self.wire is not None:
            self.wire.quiet()
        self.row.head = NULL
        self.mailbox.end(ANY, HETCCL_EBROKEN)
        self.board.raise_fault(reason, culprit)
        # Whoever sees a stream go on finds the reason.
        if self.ring != NULL:
            hetccl_ring_release(self.ring)

    cdef int poll(self, Work* work, bint* done) noexcept nogil:
        cdef int status
        hetccl_mutex_lock(&self.progress.mutex)
        status = self.poll_locked()
        done[0] = self.has_ended(work)
        hetccl_mutex_unlock(&self.progress.mutex)
        # What moved may have been what another thread sleeps for.
        if status == HETCCL_MOVED and self.progress.drivers > 1:
            hetccl_bell_ring(self.mine)
        return status

    cdef int poll_in_passing(self, Work* work, bint* done) noexcept nogil:
        cdef int status = self.poll(work, done)
        # Another call that sleeps for it, or if there may be more to move, the thread.
        if status == HETCCL_MOVED and (self.progress.drivers == 1 or not done[0]):
            hetccl_bell_ring(self.mine)
        return status

    cdef bint has_ended(self, Work* work) noexcept nogil:
        if work.compared_only and work.collective.state > COLLECTIVE_CHECKING:
            return True
        if work.awaited != NULL and work.awaited.state > MESSAGE_POSTED:
            if work.matched_only or is_over(work.awaited.state):
                return True
        if work.probed != NULL:
            return self.mailbox.probe(work.messages.peer, work.messages.tag, work.probed)
        # What has failed in part ends at once: a receive from anybody, say, may never come.
        return is_final(work) or has_failed(work)

    cdef bint has_let_go(self, Work* work) noexcept nogil:
        """Whether the work is final and the engine knows it no more: its memory may go."""
        cdef bint over
        hetccl_mutex_lock(&self.progress.mutex)
        over = is_final(work)
        hetccl_mutex_unlock(&self.progress.mutex)
        return over

    cdef void give_up(self, int reason, int culprit) noexcept nogil:
        hetccl_mutex_lock(&self.progress.mutex)
        self.break_off(reason, culprit)
        hetccl_mutex_unlock(&self.progress.mutex)

    cdef void mark_blockers(self, Work* work, uint8_t* mask) noexcept nogil:
        """Mark the peers that the work waits for: 1, or 2 where any one of those will do."""
        cdef int i
        hetccl_mutex_lock(&self.progress.mutex)
        if work.collective != NULL:
            row_blockers(&self.row, mask)
        for i in range(work.nmessages):
            if not is_over(work.messages[i].state):
                self.mailbox.blockers(&work.messages[i], mask)
        hetccl_mutex_unlock(&self.progress.mutex)

    cdef int poll_in_thread(self) noexcept nogil:
        cdef int status
        if not self.has_work() or self.broken:
            return HETCCL_DONE
        status = self.poll_locked()
        if self.ring != NULL:
            self.watch_over()
        # A call that began to wait while this poll ran may sleep for what it has moved.
        if status == HETCCL_MOVED and self.progress.drivers > 0:
            hetccl_bell_ring(self.mine)
        return status

    cdef void serve(self, hetccl_ring_t* ring, int64_t patience_ns) noexcept nogil:
        """Complete calls of a ring from now on; of none, for NULL."""
        hetccl_mutex_lock(&self.progress.mutex)
        if self.broken and ring != NULL:
            hetccl_ring_release(ring)
        self.ring, self.patience_ns = ring, patience_ns
        hetccl_mutex_unlock(&self.progress.mutex)

    cdef void serve_message(self, hetccl_ring_t* ring) noexcept nogil:
        """Complete messages of one more ring."""
        hetccl_mutex_lock(&self.progress.mutex)
        ring.next = self.ring.next
        self.ring.next = ring
        if self.broken:
            hetccl_ring_release(self.ring)
        hetccl_mutex_unlock(&self.progress.mutex)

    cdef void watch_over(self) noexcept nogil:
        cdef int64_t now = hetccl_now_ns()
        cdef int reason, culprit = self.rank
        if now - self.watched_ns < WATCH_NS or self.broken:
            return
        if self.row.head == NULL and self.mailbox.ntransits == 0:
            return
        if now - self.watched_ns > 20 * WATCH_NS:
            # Nothing waited meanwhile, or a call of the user's did, which looks for itself.
            self.stuck_ns = now
        self.watched_ns = now
        reason = self.hopeless(now, &culprit)
        if reason != 0 and not self.broken:
            self.break_off(reason, culprit)

    cdef int hopeless(self, int64_t now, int* culprit) noexcept nogil:
        """Why nothing will ever come of what streams wait for, for the fault word; 0: there is hope."""
        cdef uint64_t fault = hetccl_load(self.board.fault_word)
        cdef int peer, lost = NOBODY, candidate = NOBODY
        cdef bint stalled, waiting = False
        if fault != 0:
            culprit[0] = HETCCL_FAULT_CULPRIT(fault)
            return HETCCL_FAULT_REASON(fault)
        memset(self.mask, 0, self.nranks)
        row_blockers(&self.row, self.mask)
        stalled = self.mailbox.mark_transits(self.mask)
        for peer in range(self.nranks):
            if not self.mask[peer] or peer == self.rank:
                continue
            culprit[0] = peer
            # Only a connection tells of the end of a rank on another host.
            if self.board.is_far(peer):
                self.wire.want(peer)
            if self.board.gone(peer) == 0:
                waiting = waiting or self.mask[peer] == 2
            elif self.mask[peer] == 1:
                lost = peer
            else:
                candidate = peer
        if lost == NOBODY and not waiting:
            lost = candidate
        # What it sent before it ended may have come since the last poll.
        if lost != NOBODY and self.poll_locked() == HETCCL_AGAIN:
            culprit[0] = lost
            return self.reason_of(HETCCL_EPEER, lost)
        stalled = stalled or self.row.head != NULL and self.row.head.state != COLLECTIVE_GATED
        if self.moves != self.stuck_moves or not stalled:
            self.stuck_moves, self.stuck_ns = self.moves, now
        return HETCCL_REASON_TIMEOUT if now - self.stuck_ns > self.patience_ns else 0

    cdef bint has_work(self) noexcept nogil:
        if self.row.head != NULL or self.mailbox.npending > 0 or self.mailbox.nbusy > 0:
            return True
        return self.wire is not None and self.wire.is_busy()


cdef int poll_for_thread(void* context) noexcept nogil:
    """The progress thread's poll, under the mutex."""
    return (<Engine>context).poll_in_thread()


cdef inline bint is_over(int state) noexcept nogil:
    return state >= MESSAGE_COMPLETE


cdef bint is_final(Work* work) noexcept nogil:
    cdef int i
    if work.collective != NULL and work.collective.state < COLLECTIVE_DONE:
        return False
    for i in range(work.nmessages):
        if not is_over(work.messages[i].state):
            return False
    return True


cdef bint has_failed(Work* work) noexcept nogil:
    return failed_message(work) != NULL or (work.collective != NULL and work.collective.state == COLLECTIVE_FAILED)


cdef Message* failed_message(Work* work) noexcept nogil:
    cdef int i
    for i in range(work.nmessages):
        if work.messages[i].state == MESSAGE_FAILED:
            return &work.messages[i]
    return NULL
