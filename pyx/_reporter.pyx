"""Layer L3: what an engine says when its work cannot go on: which rank is at fault, and what was outstanding.

Each method here ends the communicator for all ranks, since the peers hold half of what is under way, and raises.
"""

import os

from libc.stdint cimport uint8_t, uint64_t

from hetccl._board cimport Board
from hetccl._calls cimport ANY_CALL, CALL_BITS, CALL_MASK, SENDRECV
from hetccl._engine cimport Work, failed_message
from hetccl._mailbox cimport Message
from hetccl._rail cimport HETCCL_ENETWORK, direct_text
from hetccl._shm cimport (
    COLLECTIVE, HETCCL_EBROKEN, HETCCL_EDIRECT, HETCCL_ELENGTH, HETCCL_ENOMEM, HETCCL_EPEER, HETCCL_ETAG,
    HETCCL_FAULT_CULPRIT, HETCCL_FAULT_REASON, HETCCL_FAULT_REPORTER, HETCCL_REASON_DEAD, HETCCL_REASON_FREED,
    HETCCL_REASON_LEFT, HETCCL_REASON_NETWORK, HETCCL_REASON_TIMEOUT, hetccl_header_t, hetccl_msg_t,
)

from hetccl._calls import CALLS
from hetccl.errors import CommTimeout, LibraryError, PeerError


cdef extern from *:
    """
    #include <stdint.h>
    #define reporter_load(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
    """
    uint64_t hetccl_load "reporter_load"(uint64_t* word) noexcept nogil

# Longer waits than this many seconds (285 years) do not fit into nanoseconds.
LONGEST_S = 9e9


cdef class Reporter(Engine):
    """An engine that can say what went wrong.

    timeout : seconds that a wait may last
    """

    def __cinit__(self, Board board not None, network, double timeout, *settings):
        self.timeout_ns = <int64_t>(min(timeout, LONGEST_S) * 1e9)

    cdef int raise_lost(self, Work* work, int peer) except -1 with gil:
        self.give_up(self.reason_of(HETCCL_EPEER, peer), peer)
        return self.raise_fault(work.call, work)

    cdef int raise_late(self, Work* work) except -1 with gil:
        """Raise CommTimeout with the ranks that have not come, or else those whose messages are missing."""
        cdef str call = CALLS[work.call]
        peers, reason = self.outstanding(work)
        if self.mailbox.nlimited > 0:
            reason = (f"{reason}; {self.mailbox.held_nbytes} bytes of messages that no receive has asked for are held, "
                      "and more wait behind them: receive in about the order in which the peers send")
        self.give_up(HETCCL_REASON_TIMEOUT, peers[0] if peers else self.rank)
        seconds = self.timeout_ns / 1e9
        raise CommTimeout(f"{call}: rank {self.rank} waited {seconds:g} s (HETCCL_TIMEOUT); {reason}",
                          call=call, rank=self.rank, peer=peers)

    cdef int raise_fault(self, int call, Work* work) except -1 with gil:
        """Raise what the communicator's fault word says. work: what it ends; NULL for a call not begun."""
        cdef uint64_t fault = hetccl_load(self.board.fault_word)
        reason, reporter = HETCCL_FAULT_REASON(fault), HETCCL_FAULT_REPORTER(fault)
        culprit = HETCCL_FAULT_CULPRIT(fault)
        name = CALLS[call]
        # The peers' fault ends this rank's part too: nothing may be read from or written to the user's memory any more.
        self.give_up(reason, culprit)
        if reason == HETCCL_REASON_TIMEOUT:
            who = "this rank" if culprit == self.rank else f"rank {culprit}"
            message = (f"{name}: rank {reporter} gave up waiting for {who} (HETCCL_TIMEOUT); "
                       "the communicator cannot be used any more")
            peers = (culprit,)
            # The one that gave up first may have waited for a rank that waits in turn: say for whom.
            own, why = self.outstanding(work) if work != NULL else ((), "")
            if own:
                peers = own
                message = f"{message}. Rank {self.rank}: {why}"
            raise CommTimeout(message, call=name, rank=self.rank, peer=peers)
        if reason == HETCCL_REASON_LEFT and culprit == self.rank and self.mailbox.misfit >= 0:
            raise PeerError(f"{name}: rank {self.mailbox.misfit} sent a message of another length than the receive "
                            "into GPU memory that was queued for it: receive as many bytes, or give Recv a status; the "
                            "communicator cannot be used any more", call=name, rank=self.rank, peer=self.mailbox.misfit)
        what = {
            HETCCL_REASON_DEAD: f"has ended (noticed by rank {reporter})",
            HETCCL_REASON_FREED: f"has freed the communicator, or its program ends (noticed by rank {reporter})",
            HETCCL_REASON_LEFT: "left a call because of an error or an interrupt",
            HETCCL_REASON_NETWORK: f"cannot be reached any more by rank {reporter}",
        }[reason]
        why = self.wire.describe(culprit) if self.wire is not None and self.board.is_far(culprit) else ""
        raise PeerError(f"{name}: rank {culprit} {what}{': ' if why else ''}{why}; the communicator cannot be used any "
                        "more", call=name, rank=self.rank, peer=culprit)

    cdef int raise_failed(self, Work* work) except -1 with gil:
        """Raise why the transport could not move the work's data."""
        cdef Message* message = failed_message(work)
        cdef hetccl_msg_t* msg
        cdef int status, peer
        if message != NULL:
            status, peer, msg = message.status, message.peer, &message.msg
        else:
            status, peer, msg = work.collective.status, work.collective.failure.peer, work.collective.failure.message
        call = CALLS[work.call]
        if status == HETCCL_EBROKEN:
            return self.raise_fault(work.call, work)
        if status == HETCCL_EPEER:
            return self.raise_lost(work, peer)
        if status == HETCCL_ENETWORK:
            self.give_up(self.reason_of(status, peer), peer)
            return self.raise_fault(work.call, work)
        self.give_up(HETCCL_REASON_LEFT, self.rank)
        if status == HETCCL_EDIRECT:
            raise LibraryError(f"{call}: memory of a GPU could not be exchanged with rank {peer}: "
                               f"{direct_text(msg.error, '')}; the communicator cannot be used any more",
                               call=call, rank=self.rank, peer=peer)
        if status == HETCCL_ENOMEM:
            raise MemoryError(f"{call}: scratch memory for the plan; the communicator cannot be used any more")
        if status == HETCCL_ELENGTH or status == HETCCL_ETAG:
            theirs, ours = self.describe_head(work, status, peer, msg)
            raise PeerError(f"{call}: rank {peer} sent {theirs} where rank {self.rank} {ours}: the ranks' counts, "
                            "dtypes, roots, calls or their order differ (HETCCL_CHECK=1 tells which)",
                            call=call, rank=self.rank, peer=peer)
        raise LibraryError(f"{call}: reading {msg.nbytes} bytes from rank {peer}'s memory: {os.strerror(msg.error)} "
                           "(HETCCL_SINGLE_COPY=off avoids process_vm_readv)",
                           call=call, code=msg.error, rank=self.rank, peer=peer)

    cdef object wrong_length(self, Work* work, const Message* message):
        if message.transit != NULL and not message.transit.open_length:
            self.give_up(HETCCL_REASON_LEFT, self.rank)
            self.raise_fault(work.call, work)
        what = "recvbuf" if work.call == SENDRECV else "buf"
        text = (f"{CALLS[work.call]}: {what}: the message from rank {message.peer} has {message.refused_nbytes} bytes, "
                f"the buffer {message.capacity}. It was left there")
        return ValueError(text)

    cdef tuple describe_head(self, Work* work, int status, int peer, hetccl_msg_t* msg):
        """(what a peer's link brings, what this rank expects), for a collective whose messages do not fit."""
        cdef hetccl_header_t header
        link = self.link(COLLECTIVE, True) + peer
        link.ops.peek(link.state, &header)
        if status == HETCCL_ELENGTH:
            return f"{header.nbytes} bytes", f"expects {msg.nbytes}"
        number, theirs = header.tag >> CALL_BITS, header.tag & CALL_MASK
        name = "the comparison of a call" if theirs == ANY_CALL else CALLS[theirs]
        return (f"a message of {name}, number {number} of its collectives on the communicator,",
                f"is in number {work.collective.tag >> CALL_BITS}")

    cdef tuple outstanding(self, Work* work):
        """(ranks that a call waits for, the same in words)"""
        silent = self.board.note_far(range(self.nranks))
        absent = ()
        if work.collective != NULL and work.collective.number > 0:
            absent = tuple(peer for peer in range(self.nranks) if peer not in silent
                           and hetccl_load(&self.board.block(peer).entered) < work.collective.number)
        if absent:
            return absent, "; ".join(self.describe(peer, work) for peer in absent)
        peers = self.blockers(work)
        return peers, f"no answer from ranks {list(peers)}" if peers else "nothing moved"

    cdef tuple blockers(self, Work* work):
        mask = bytearray(self.nranks)
        self.mark_blockers(work, <uint8_t*><char*>mask)
        return tuple(peer for peer in range(self.nranks) if mask[peer] and peer != self.rank)

    cdef str describe(self, int peer, Work* work):
        cdef uint64_t entered = hetccl_load(&self.board.block(peer).entered)
        call = CALLS[self.board.block(peer).call]
        last = f"its last was {call}, number {entered}" if entered else "it has called none"
        return f"rank {peer} has not called collective number {work.collective.number} of the communicator ({last})"
