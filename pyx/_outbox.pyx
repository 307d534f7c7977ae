"""Layer L3: what a mailbox has under way with each other rank: how messages enter the links and end.

No GIL, no lock of its own: the executor's mutex is held.
"""

from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc, free

from hetccl._letters cimport (
    ANY, MESSAGE_COMPLETE, MESSAGE_FAILED, MESSAGE_MOVING, MESSAGE_POSTED, append, free_held, pop, remove, unhook,
)
from hetccl._passage cimport transit_complete
from hetccl._shm cimport HETCCL_AGAIN, HETCCL_DONE, HETCCL_MOVED, HETCCL_MSG_POSTED

cdef enum:
    NOT_BUSY = -1
    NOBODY = -1
    # Memory for messages set aside, of one communicator.
    LIMIT_NBYTES = 67108864


cdef int outbox_open(Outbox outbox, int nranks, Link* send_links, Link* recv_links) except -1:
    cdef int rank
    outbox.peers = <Peer*>calloc(max(nranks, 1), sizeof(Peer))
    outbox.busy = <int*>calloc(max(nranks, 1), sizeof(int))
    if outbox.peers == NULL or outbox.busy == NULL:
        raise MemoryError()
    outbox.nranks = nranks
    outbox.send_links, outbox.recv_links = send_links, recv_links
    for rank in range(nranks):
        outbox.peers[rank].place = NOT_BUSY
    outbox.limit_nbytes = LIMIT_NBYTES
    outbox.misfit = NOBODY
    return 0


cdef class Outbox:
    """Base of Mailbox."""

    def __dealloc__(self):
        cdef int rank
        if self.peers != NULL:
            for rank in range(self.nranks):
                free_held(&self.peers[rank].held)
        free_held(&self.bound)
        free(self.peers)
        free(self.busy)

    cdef void post_send(self, Message* message) noexcept nogil:
        cdef Peer* peer = &self.peers[message.peer]
        cdef int status = HETCCL_AGAIN
        message.msg.tag = <uint32_t>message.tag
        if peer.status < 0:
            self.refuse(message, message.peer)
            return
        if peer.sends.first == NULL:
            status = self.enter(message.peer, message)
        if status == HETCCL_AGAIN or status == HETCCL_MOVED:
            append(&peer.sends, message)
            self.work(message.peer)
        elif status < 0:
            self.fail(message.peer, status, message.msg.error)
            self.refuse(message, message.peer)

    cdef int enter(self, int rank, Message* message) noexcept nogil:
        """Move the first message of a row into its link; DONE: the next may follow."""
        cdef Link* link = &self.send_links[rank]
        cdef int status = link.ops.send(link.state, &message.msg)
        message.state = MESSAGE_MOVING
        if status == HETCCL_DONE:
            self.finish(message, MESSAGE_COMPLETE, 0)
        elif status >= 0 and message.msg.state == HETCCL_MSG_POSTED:
            append(&self.peers[rank].sent, message)
            self.work(rank)
            status = HETCCL_DONE
        return status

    cdef bint poll_sends(self, int rank) noexcept nogil:
        cdef Peer* peer = &self.peers[rank]
        cdef Message* message
        cdef Message* next
        cdef bint moved = self.poll_posted(rank, &peer.sent, &self.send_links[rank], True)
        cdef int status
        while peer.sends.first != NULL:
            message = peer.sends.first
            next = message.next
            status = self.enter(rank, message)
            if status < 0:
                self.fail(rank, status, message.msg.error)
                return True
            moved |= status != HETCCL_AGAIN
            if status != HETCCL_DONE:
                break
            peer.sends.first = next
        return moved

    cdef bint poll_posted(self, int rank, Row* row, Link* link, bint sending) noexcept nogil:
        """Ask a link after the messages in its hands. A fault ends the row."""
        cdef Message* message = row.first
        cdef Message* previous = NULL
        cdef Message* next
        cdef bint moved = False
        cdef int status
        while message != NULL:
            next = message.next
            if sending:
                status = link.ops.send(link.state, &message.msg)
            else:
                status = link.ops.recv(link.state, &message.msg)
            if status < 0:
                self.fail(rank, status, message.msg.error)
                return True
            moved |= status != HETCCL_AGAIN
            if status == HETCCL_DONE:
                remove(row, previous, message)
                self.finish(message, MESSAGE_COMPLETE, 0)
            else:
                previous = message
            message = next
        return moved

    cdef void blockers(self, Message* message, uint8_t* mask) noexcept nogil:
        cdef int rank
        if message.state != MESSAGE_POSTED and message.state != MESSAGE_MOVING:
            return
        if message.peer != ANY:
            mask[message.peer] = 1
            return
        for rank in range(self.nranks):
            if self.peers[rank].status == 0 and mask[rank] == 0:
                mask[rank] = 2

    cdef void end(self, int peer, int status) noexcept nogil:
        cdef int rank
        if peer != ANY:
            self.fail(peer, status, 0)
            return
        self.status = status
        for rank in range(self.nranks):
            self.fail(rank, status, 0)
        while self.anywhere.first != NULL:
            self.finish(pop(&self.anywhere), MESSAGE_FAILED, status)

    cdef void fail(self, int rank, int status, int error) noexcept nogil:
        """End the traffic with one peer: the first fault stands."""
        cdef Peer* peer = &self.peers[rank]
        cdef Message* message
        if peer.status == 0:
            peer.status, peer.error = status, error
        while peer.sends.first != NULL:
            self.refuse(pop(&peer.sends), rank)
        while peer.sent.first != NULL:
            self.refuse(pop(&peer.sent), rank)
        while peer.receives.first != NULL:
            self.refuse(pop(&peer.receives), rank)
        while peer.landing.first != NULL:
            self.refuse(pop(&peer.landing), rank)
        while peer.unloading.first != NULL:
            message = pop(&peer.unloading)
            self.drop(message.held)
            message.held = NULL
            self.refuse(message, rank)
        if peer.current != NULL:
            self.refuse(peer.current, rank)
        peer.current = NULL
        if peer.filling != NULL:
            peer.filling.status = status
        peer.filling = NULL

    cdef void refuse(self, Message* message, int rank) noexcept nogil:
        message.msg.error = self.peers[rank].error
        self.finish(message, MESSAGE_FAILED, self.peers[rank].status)

    cdef void drop(self, Held* held) noexcept nogil:
        """Free a bound message."""
        unhook(&self.bound, held)
        self.held_nbytes -= held.cost_nbytes
        free(held.aside.buffer)
        free(held)

    cdef void finish(self, Message* message, int state, int status) noexcept nogil:
        self.npending -= 1
        if message.transit != NULL:
            self.ntransits -= 1
            if state == MESSAGE_COMPLETE and not message.cut and message.transit.nportions > 0:
                transit_complete(message.transit, 0)
            if message.transit.ring != NULL:
                message.transit.ring.taken = False
        message.state, message.status = state, status
        if message.is_note and state == MESSAGE_COMPLETE:
            self.read_note(message.peer)

    cdef void depart(self, Message* message) noexcept nogil:
        pass

    cdef void take_in(self, Message* message, Held* held) noexcept nogil:
        pass

    cdef bint begin_special(self, int rank, hetccl_header_t* header) noexcept nogil:
        return False

    cdef bint move_cut(self, int rank) noexcept nogil:
        return False

    cdef void read_note(self, int rank) noexcept nogil:
        pass

    cdef void work(self, int rank) noexcept nogil:
        """Put a peer among those that poll() looks at."""
        if self.peers[rank].place == NOT_BUSY:
            self.peers[rank].place = self.nbusy
            self.busy[self.nbusy] = rank
            self.nbusy += 1

    cdef void rest(self, int rank) noexcept nogil:
        """Take a peer that has nothing to do out of them; the last one gets its place."""
        cdef Peer* peer = &self.peers[rank]
        cdef int last
        if (peer.place == NOT_BUSY or peer.current != NULL or peer.filling != NULL or peer.receives.first != NULL
                or peer.landing.first != NULL or peer.unloading.first != NULL or peer.sends.first != NULL
                or peer.sent.first != NULL or peer.departing.first != NULL or peer.arriving.first != NULL):
            return
        self.nbusy -= 1
        last = self.busy[self.nbusy]
        self.busy[peer.place] = last
        self.peers[last].place = peer.place
        peer.place = NOT_BUSY
