"""Layer L3: runs one communicator's collectives and messages to their end; all waits of hetccl on host data are here.

A wait spins for microseconds, then yields the core, then sleeps on this rank's bell. Twenty times a second it looks
around: has a rank broken the communicator, has a peer that holds the work up died, is there a signal for Python, is the
time over. The GIL is never held while waiting. Callers hold the communicator's lock for the class of traffic.
"""

import os

from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from hetccl._exchange cimport exchange_blockers, exchange_poll
from hetccl._program cimport FETCH_BYTES, NOBODY, Run, run_blockers, run_poll, run_reset
from hetccl._shm cimport (
    COLLECTIVE, HETCCL_AGAIN, HETCCL_DONE, HETCCL_ELENGTH, HETCCL_EPEER, HETCCL_FAULT_CULPRIT, HETCCL_FAULT_REASON,
    HETCCL_FAULT_REPORTER, HETCCL_MOVED, HETCCL_RANK_FREED, HETCCL_REASON_DEAD, HETCCL_REASON_FREED, HETCCL_REASON_LEFT,
    HETCCL_ETAG, HETCCL_REASON_TIMEOUT, POINT_TO_POINT, hetccl_bell_arm, hetccl_bell_disarm, hetccl_bell_sleep,
    hetccl_header_t, hetccl_now_ns, hetccl_rank_block_t, hetccl_shm_transport,
)

from hetccl.errors import CommTimeout, LibraryError, PeerError


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


# Names of the calls, for messages; a call is passed and published as its index.
CALLS = (
    "Allreduce", "Reduce", "Bcast", "Allgather", "Reduce_scatter_block", "Alltoall", "Barrier",
    "Send", "Recv", "Sendrecv",
)

cdef enum:
    # Between two looks at faults, signals and the clock; also the longest sleep. Bounds the reaction to Ctrl-C and to a
    # dead peer.
    LOOK_NS = 50000000
    # A collective's tag: its call in the low bits, above them its number.
    CALL_BITS = 4
    CALL_MASK = 15
    NUMBER_MASK = 0xfffffff
    # Polls before the first look at the clock: about a microsecond on a free core.
    POLLS_BEFORE_CLOCK = 64
    # Moves before a look at the clock: each may be a few MiB.
    MOVES_BEFORE_CLOCK = 8
    # Messages of ranks on cores of their own come within this; later, another program may want the core, and
    # sched_yield costs nothing if none does.
    SPIN_NS = 20000
    # Going to sleep and being woken costs 10 to 50 us; a rank that is a millisecond late is not worth a core.
    DEFAULT_AWAKE_US = 1000
    # A portion of a large reduction. Smaller ones synchronise the ranks more often, larger ones have left the cache
    # before the peers read them; measured on 2 to 8 ranks (docs/performance.md).
    PORTION_BYTES = 8388608

# Longer waits than this many seconds (285 years) do not fit into nanoseconds.
LONGEST_S = 9e9


cdef class Executor:
    """Runs programs and exchanges over a segment's links.

    segment : _shm.Segment, connected
    timeout : seconds that a wait may last
    spin_us : microseconds that a wait stays awake before it sleeps, or None: DEFAULT_AWAKE_US
    crowded : more ranks than cores; spinning would take the core from the rank that is waited for, so the wait yields
              it at once
    """

    def __cinit__(self, Segment segment not None, double timeout, spin_us, bint crowded):
        cdef int traffic, receive, peer
        cdef Link* link
        self.segment = segment
        self.rank = segment.rank
        self.nranks = segment.nranks
        self.timeout_ns = <int64_t>(min(timeout, LONGEST_S) * 1e9)
        awake_us = DEFAULT_AWAKE_US if spin_us is None else spin_us
        self.awake_ns = <int64_t>(1000 * min(awake_us, <int64_t>(LONGEST_S * 1e6)))
        self.spin_ns = 0 if crowded else min(self.awake_ns, <int64_t>SPIN_NS)
        self.links = <Link*>calloc(4 * self.nranks, sizeof(Link))
        self.turns = <int*>calloc(2 * self.nranks, sizeof(int))
        if self.links == NULL or self.turns == NULL:
            raise MemoryError()
        for traffic in range(2):
            for receive in range(2):
                for peer in range(self.nranks):
                    link = &self.links[(traffic * 2 + receive) * self.nranks + peer]
                    link.ops = &hetccl_shm_transport
                    link.state = segment.link(traffic, receive, peer)

    def __dealloc__(self):
        free(self.links)
        free(self.turns)
        free(self.scratch)
        free(self.fetch_scratch)
        free(self.operands)

    cdef int enter(self, int call) except -1:
        """Publish that this rank has come to its next collective: a late wait names the ranks that have not."""
        cdef hetccl_rank_block_t* mine = &self.segment.blocks[self.rank]
        if hetccl_load(&self.segment.header.fault) != 0:
            self.raise_fault(call, NULL)
        self.sequence += 1
        mine.call = call
        mine.entered = self.sequence
        self.label(call)
        return 0

    cdef void label(self, int call) noexcept:
        """Mark the messages that follow, so that ranks in different collectives notice instead of mixing their data."""
        self.tag = <uint32_t>(self.sequence << CALL_BITS | call)

    cdef int run(self, Program program, int call, void* source, void* target, int64_t count, size_t itemsize,
                 hetccl_reduce_fn reduce, int divisor) except -1:
        """Run a program on units of `count` elements at source (IN) and target (OUT); divisor > 0 for AVG."""
        cdef int64_t portion = max(<int64_t>1, PORTION_BYTES // <int64_t>itemsize) if reduce != NULL else count
        cdef Run run
        cdef Wait wait
        portion = min(portion, count)
        try:
            self.reserve(program, <size_t>portion * itemsize)
        except MemoryError:
            # The peers are in this collective already, and would take this rank's next one for its part of it.
            self.segment.raise_fault(HETCCL_REASON_LEFT, self.rank)
            raise
        run.base[0], run.base[1], run.base[2] = <uint8_t*>source, <uint8_t*>target, self.scratch
        run.unit_stride[0], run.unit_stride[1], run.unit_stride[2] = count, count, portion
        run.skip[0], run.skip[1], run.skip[2] = 0, 0, 0
        run.sent, run.received = self.turns, self.turns + self.nranks
        run.send_links, run.recv_links = self.links, self.links + self.nranks
        run.itemsize, run.reduce, run.divisor, run.tag = itemsize, reduce, divisor, self.tag
        run.fetch_scratch, run.operands = self.fetch_scratch, self.operands
        memset(&wait, 0, sizeof(wait))
        wait.poll, wait.blockers, wait.work, wait.failure = run_poll, run_blockers, &run, &run.failure
        wait.call, wait.collective = call, True
        with nogil:
            while run.skip[0] < count:
                run.count = min(portion, count - run.skip[0])
                run_reset(&run, program, self.nranks)
                self.wait(&wait)
                run.skip[0] += run.count
                run.skip[1] += run.count
        return 0

    cdef int exchange(self, Exchange* exchange, int call) except -1:
        """Run a send, a receive or both; exchange.refusal is set if the message at hand was left where it is."""
        cdef Link* links = self.links + 2 * POINT_TO_POINT * self.nranks
        cdef Wait wait
        if hetccl_load(&self.segment.header.fault) != 0:
            self.raise_fault(call, NULL)
        exchange.send_links, exchange.recv_links, exchange.nranks = links, links + self.nranks, self.nranks
        memset(&wait, 0, sizeof(wait))
        wait.poll, wait.blockers, wait.work = exchange_poll, exchange_blockers, exchange
        wait.failure = &exchange.failure
        wait.call = call
        with nogil:
            self.wait(&wait)
        return 0

    cdef int reserve(self, Program program, size_t unit_nbytes) except -1:
        """Grow the scratch memory to what the program needs. It stays: a training step asks for the same again."""
        cdef size_t nbytes = <size_t>program.scratch_units * unit_nbytes
        if nbytes > self.scratch_nbytes:
            free(self.scratch)
            self.scratch_nbytes = 0
            self.scratch = <uint8_t*>malloc(nbytes)
            if self.scratch == NULL:
                raise MemoryError(f"{nbytes} bytes of scratch memory for the plan {program.plan.algorithm}")
            self.scratch_nbytes = nbytes
        if program.max_sources > self.nfetch:
            free(self.fetch_scratch)
            free(self.operands)
            self.nfetch = 0
            self.fetch_scratch = <uint8_t*>malloc(<size_t>program.max_sources * FETCH_BYTES)
            self.operands = <const void**>calloc(program.max_sources, sizeof(void*))
            if self.fetch_scratch == NULL or self.operands == NULL:
                raise MemoryError(f"scratch memory for {program.max_sources} operands")
            self.nfetch = program.max_sources
        return 0

    cdef int wait(self, Wait* wait) except -1 nogil:
        """Poll the work until it is complete.

        An error here breaks the communicator for all ranks: the peers hold half of the work.
        """
        cdef int status, polls = 0, moves = 0
        while True:
            status = wait.poll(wait.work)
            if status == HETCCL_AGAIN:
                polls += 1
                if polls < POLLS_BEFORE_CLOCK:
                    hetccl_relax()
                    continue
                status = self.rest(wait)
            if status == HETCCL_DONE:
                break
            if status == HETCCL_MOVED:
                polls = 0
                moves += 1
                wait.idle_ns = 0
                if moves % MOVES_BEFORE_CLOCK == 0:
                    self.look_around(wait, hetccl_now_ns())
            elif status < 0:
                self.raise_transport(wait, status)
        # A peer that gave up may have changed memory while it was read from it.
        if hetccl_load(&self.segment.header.fault) != 0:
            self.raise_fault(wait.call, wait)
        return 0

    cdef int rest(self, Wait* wait) except -100 nogil:
        """Let time pass after fruitless polls, the dearer the longer nothing moves. Returns a poll's status."""
        cdef hetccl_rank_block_t* mine = &self.segment.blocks[self.rank]
        cdef int64_t now = hetccl_now_ns()
        cdef int status = HETCCL_AGAIN
        cdef uint32_t bell
        if wait.idle_ns == 0:
            wait.idle_ns = now
        self.look_around(wait, now)
        if now - wait.idle_ns < self.spin_ns:
            hetccl_relax()
        elif now - wait.idle_ns < self.awake_ns:
            sched_yield()
        else:
            bell = hetccl_bell_arm(mine)
            status = wait.poll(wait.work)
            if status == HETCCL_AGAIN:
                hetccl_bell_sleep(mine, bell, LOOK_NS)
            hetccl_bell_disarm(mine)
        return status

    cdef int look_around(self, Wait* wait, int64_t now) except -1 nogil:
        """Twenty times a second: is the communicator broken, a blocking peer gone, a signal pending, the time over?"""
        cdef int peer
        if wait.looked_ns == 0:
            wait.looked_ns = now
        if now - wait.looked_ns < LOOK_NS:
            return 0
        wait.looked_ns = now
        if hetccl_load(&self.segment.header.fault) != 0:
            self.raise_fault(wait.call, wait)
        peer = self.lost_peer(wait)
        # What it sent before it ended may have come since the last poll.
        if peer >= 0 and wait.poll(wait.work) == HETCCL_AGAIN:
            self.raise_lost(wait, peer)
        with gil:
            if PyErr_CheckSignals() != 0:
                self.segment.raise_fault(HETCCL_REASON_LEFT, self.rank)
                return -1
        if wait.idle_ns != 0 and now - wait.idle_ns > self.timeout_ns:
            self.raise_late(wait)
        return 0

    cdef int lost_peer(self, Wait* wait) except -100 nogil:
        """A peer that holds the work up and has ended or freed the communicator; NOBODY if there is none."""
        cdef uint8_t* mask = <uint8_t*>calloc(self.nranks, 1)
        cdef int peer, lost = NOBODY, candidate = NOBODY
        cdef bint gone, waiting = False
        if mask == NULL:
            return NOBODY
        wait.blockers(wait.work, mask)
        for peer in range(self.nranks):
            if mask[peer] and peer != self.rank:
                gone = self.segment.blocks[peer].state == HETCCL_RANK_FREED or self.segment.is_gone(peer)
                if gone and mask[peer] == 1:
                    lost = peer
                elif gone:
                    candidate = peer
                else:
                    waiting = waiting or mask[peer] == 2
        free(mask)
        return candidate if lost == NOBODY and not waiting else lost

    cdef int raise_lost(self, Wait* wait, int peer) except -1 with gil:
        freed = self.segment.blocks[peer].state == HETCCL_RANK_FREED
        self.segment.raise_fault(HETCCL_REASON_FREED if freed else HETCCL_REASON_DEAD, peer)
        return self.raise_fault(wait.call, wait)

    cdef int raise_late(self, Wait* wait) except -1 with gil:
        """Raise CommTimeout with the ranks that have not come, or else those whose messages are missing."""
        cdef str call = CALLS[wait.call]
        peers, reason = self.outstanding(wait)
        self.segment.raise_fault(HETCCL_REASON_TIMEOUT, peers[0] if peers else self.rank)
        seconds = self.timeout_ns / 1e9
        raise CommTimeout(f"{call}: rank {self.rank} waited {seconds:g} s (HETCCL_TIMEOUT); {reason}",
                          call=call, rank=self.rank, peer=peers)

    cdef int raise_fault(self, int call, Wait* wait) except -1 with gil:
        """Raise what the communicator's fault word says. wait: the call that it ends; NULL for one not begun."""
        cdef uint64_t fault = hetccl_load(&self.segment.header.fault)
        reason, reporter = HETCCL_FAULT_REASON(fault), HETCCL_FAULT_REPORTER(fault)
        culprit = HETCCL_FAULT_CULPRIT(fault)
        name = CALLS[call]
        if reason == HETCCL_REASON_TIMEOUT:
            who = "this rank" if culprit == self.rank else f"rank {culprit}"
            message = (f"{name}: rank {reporter} gave up waiting for {who} (HETCCL_TIMEOUT); "
                       "the communicator cannot be used any more")
            peers = (culprit,)
            # The one that gave up first may have waited for a rank that waits in turn: say for whom.
            own, why = self.outstanding(wait) if wait != NULL else ((), "")
            if own:
                peers = own
                message = f"{message}. Rank {self.rank}: {why}"
            raise CommTimeout(message, call=name, rank=self.rank, peer=peers)
        what = {
            HETCCL_REASON_DEAD: f"has ended (noticed by rank {reporter})",
            HETCCL_REASON_FREED: f"has freed the communicator, or its program ends (noticed by rank {reporter})",
            HETCCL_REASON_LEFT: "left a call because of an error or an interrupt",
        }[reason]
        raise PeerError(f"{name}: rank {culprit} {what}; the communicator cannot be used any more",
                        call=name, rank=self.rank, peer=culprit)

    cdef int raise_transport(self, Wait* wait, int status) except -1 with gil:
        cdef hetccl_msg_t* message = wait.failure.message
        cdef int peer = wait.failure.peer
        cdef hetccl_header_t header
        call = CALLS[wait.call]
        if status == HETCCL_EPEER:
            return self.raise_lost(wait, peer)
        self.segment.raise_fault(HETCCL_REASON_LEFT, self.rank)
        if status == HETCCL_ELENGTH or status == HETCCL_ETAG:
            link = &self.links[(2 * COLLECTIVE + 1) * self.nranks + peer]
            link.ops.peek(link.state, &header)
            nbytes, tag = header.nbytes, header.tag
            theirs, ours = f"{nbytes} bytes", f"expects {message.nbytes}"
            if status == HETCCL_ETAG:
                name = CALLS[tag & CALL_MASK] if (tag & CALL_MASK) < len(CALLS) else "the comparison of a call"
                theirs = f"a message of {name}, number {tag >> CALL_BITS} of its collectives on the communicator,"
                ours = f"is in number {self.sequence & NUMBER_MASK}"
            raise PeerError(f"{call}: rank {peer} sent {theirs} where rank {self.rank} {ours}: the ranks' counts, "
                            "dtypes, roots, calls or their order differ (HETCCL_CHECK=1 tells which)",
                            call=call, rank=self.rank, peer=peer)
        raise LibraryError(f"{call}: reading {message.nbytes} bytes from rank {peer}'s memory: "
                           f"{os.strerror(message.error)} (HETCCL_SINGLE_COPY=off avoids process_vm_readv)",
                           call=call, code=message.error, rank=self.rank, peer=peer)

    cdef tuple outstanding(self, Wait* wait):
        """(ranks that a call waits for, the same in words)"""
        absent = self.absent() if wait.collective else ()
        if absent:
            return absent, "; ".join(self.describe(peer) for peer in absent)
        peers = self.blockers(wait)
        return peers, f"no answer from ranks {list(peers)}" if peers else "nothing moved"

    cdef tuple blockers(self, Wait* wait):
        mask = bytearray(self.nranks)
        wait.blockers(wait.work, <uint8_t*><char*>mask)
        return tuple(peer for peer in range(self.nranks) if mask[peer] and peer != self.rank)

    cdef tuple absent(self):
        cdef hetccl_rank_block_t* blocks = self.segment.blocks
        return tuple(peer for peer in range(self.nranks) if hetccl_load(&blocks[peer].entered) < self.sequence)

    cdef str describe(self, int peer):
        cdef uint64_t entered = hetccl_load(&self.segment.blocks[peer].entered)
        call = CALLS[self.segment.blocks[peer].call]
        last = f"its last was {call}, number {entered}" if entered else "it has called none"
        return f"rank {peer} has not called collective number {self.sequence} of the communicator ({last})"
