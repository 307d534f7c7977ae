"""Layer L3: the mailbox of a communicator: sends in the order of each destination, receives matched as MPI 4.1, section
3.5, says.

A message stays in its link until a receive takes it, unless a receive or a probe asks for a later one of the same link:
then it is set aside. What a sender does not keep itself takes memory here, up to a limit; beyond it the link waits.
No GIL, no lock of its own (the executor's mutex is held), and nothing here waits: the executor polls.
"""

from libc.stdlib cimport calloc, free, malloc

from hetccl._letters cimport append, first_of, hook, remove, unhook
from hetccl._outbox cimport outbox_open
from hetccl._passage cimport Transit
from hetccl._shm cimport HETCCL_AGAIN, HETCCL_DONE, HETCCL_MOVED, HETCCL_MSG_NEW, HETCCL_MSG_POSTED

cdef enum:
    NOBODY = -1
    # Messages taken from one link before the others are looked at.
    HEADS_PER_POLL = 32


cdef Mailbox mailbox_new(int nranks, Link* send_links, Link* recv_links):
    cdef Mailbox mailbox = Mailbox.__new__(Mailbox)
    outbox_open(mailbox, nranks, send_links, recv_links)
    return mailbox


cdef class Mailbox(Outbox):
    """Made by mailbox_new()."""

    cdef void post(self, Message* message) noexcept nogil:
        cdef Held* held = message.held
        cdef Probed probed
        message.state, message.status = MESSAGE_POSTED, 0
        message.msg.done, message.msg.cell_done = 0, 0
        message.msg.state, message.msg.slot, message.msg.error = HETCCL_MSG_NEW, 0, 0
        self.npending += 1
        self.ntransits += message.transit != NULL
        if message.sending and message.cut:
            self.depart(message)
            return
        if message.sending:
            self.post_send(message)
            return
        if held == NULL:
            held = self.find_held(message.peer, message.tag, &probed)
            if held == NULL:
                self.post_unmatched(message)
                return
            message.peer = probed.source
        message.tag = held.aside.tag
        if not self.fits(message, held.aside.nbytes):
            return
        if held.cut:
            self.take_in(message, held)
            return
        if message.held == NULL:
            self.bind(message, message.peer, held)
        message.msg.nbytes, message.msg.tag = held.aside.nbytes, held.aside.tag
        message.state = MESSAGE_MOVING
        append(&self.peers[message.peer].unloading, message)
        self.work(message.peer)

    cdef bint fits(self, Message* message, size_t nbytes) noexcept nogil:
        """Whether a message that has been matched may come; if not, the receive ends."""
        cdef Transit* transit = message.transit
        cdef bint is_exact = transit != NULL and not transit.open_length
        if nbytes <= message.capacity and (not is_exact or nbytes == transit.nbytes):
            return True
        message.refused_nbytes = nbytes
        if is_exact and self.misfit == NOBODY:
            self.misfit = message.peer
        self.finish(message, MESSAGE_TOO_LONG, 0)
        return False

    cdef void post_unmatched(self, Message* message) noexcept nogil:
        message.order = self.order
        self.order += 1
        if message.peer == ANY and self.status < 0:
            self.finish(message, MESSAGE_FAILED, self.status)
        elif message.peer == ANY:
            append(&self.anywhere, message)
        elif self.peers[message.peer].status < 0:
            self.refuse(message, message.peer)
        else:
            append(&self.peers[message.peer].receives, message)
            self.work(message.peer)

    cdef int poll(self) noexcept nogil:
        cdef bint moved = False
        cdef int i, first
        self.nlimited = 0
        if self.anywhere.first != NULL:
            first = self.turn
            for i in range(self.nranks):
                moved |= self.poll_peer((first + i) % self.nranks)
        else:
            i = self.nbusy
            while i > 0:
                i -= 1
                moved |= self.poll_peer(self.busy[i])
        return HETCCL_MOVED if moved else HETCCL_AGAIN

    cdef bint poll_peer(self, int rank) noexcept nogil:
        cdef Peer* peer = &self.peers[rank]
        cdef bint moved = False
        if peer.sent.first != NULL or peer.sends.first != NULL:
            moved = self.poll_sends(rank)
        moved |= self.poll_receives(rank)
        if peer.departing.first != NULL or peer.arriving.first != NULL:
            moved |= self.move_cut(rank)
        self.rest(rank)
        return moved

    cdef bint poll_receives(self, int rank) noexcept nogil:
        cdef Peer* peer = &self.peers[rank]
        cdef bint moved = self.poll_posted(rank, &peer.landing, &self.recv_links[rank], False)
        cdef int _
        moved |= self.unload(rank)
        for _ in range(HEADS_PER_POLL):
            if peer.current != NULL or peer.filling != NULL:
                moved |= self.advance_head(rank)
                if peer.current != NULL or peer.filling != NULL:
                    break
            elif peer.status < 0 or (peer.receives.first == NULL and self.anywhere.first == NULL
                                     and peer.departing.first == NULL and peer.arriving.first == NULL):
                break
            elif not self.begin_head(rank):
                break
            else:
                moved = True
        return moved

    cdef bint unload(self, int rank) noexcept nogil:
        """Move the messages set aside that are whole and have a receive, up to the first that moved and has more."""
        cdef Peer* peer = &self.peers[rank]
        cdef Link* link = &self.recv_links[rank]
        cdef Message* message = peer.unloading.first
        cdef Message* previous = NULL
        cdef Message* next
        cdef bint moved = False
        cdef int status
        while message != NULL:
            next = message.next
            status = message.held.status
            if status == 0 and message.held.whole:
                status = link.ops.recv_aside(link.state, &message.held.aside, &message.msg)
            moved |= status != HETCCL_AGAIN
            if status == HETCCL_DONE or status < 0:
                remove(&peer.unloading, previous, message)
                self.finish_aside(rank, message, status)
                if status < 0:
                    break
            elif status == HETCCL_MOVED and message.msg.state != HETCCL_MSG_POSTED:
                break
            else:
                previous = message
            message = next
        return moved

    cdef void finish_aside(self, int rank, Message* message, int status) noexcept nogil:
        self.drop(message.held)
        message.held = NULL
        if status == HETCCL_DONE:
            self.finish(message, MESSAGE_COMPLETE, 0)
        else:
            self.finish(message, MESSAGE_FAILED, status)
            self.fail(rank, status, message.msg.error)

    cdef bint begin_head(self, int rank) noexcept nogil:
        """Give the message at the head of a link to a receive, or set it aside; False if neither goes now."""
        cdef Peer* peer = &self.peers[rank]
        cdef Link* link = &self.recv_links[rank]
        cdef hetccl_header_t header
        cdef Message* message
        cdef int status = link.ops.peek(link.state, &header)
        if status < 0:
            self.fail(rank, status, 0)
        if status != HETCCL_DONE:
            return status < 0
        if is_special(header.tag):
            return self.begin_special(rank, &header)
        message = self.match_posted(rank, &header)
        if message == NULL:
            return self.hold(rank, &header, False)
        message.peer, message.tag = rank, header.tag
        if not self.fits(message, header.nbytes):
            return True
        message.msg.nbytes, message.msg.tag = header.nbytes, header.tag
        message.state = MESSAGE_MOVING
        peer.current = message
        return True

    cdef bint advance_head(self, int rank) noexcept nogil:
        cdef Peer* peer = &self.peers[rank]
        cdef Link* link = &self.recv_links[rank]
        cdef Message* message = peer.current
        cdef int status, error = 0
        if message != NULL:
            status = link.ops.recv(link.state, &message.msg)
            error = message.msg.error
            if status == HETCCL_DONE:
                peer.current = NULL
                self.finish(message, MESSAGE_COMPLETE, 0)
            elif status >= 0 and message.msg.state == HETCCL_MSG_POSTED:
                # The link has turned to the next message.
                peer.current = NULL
                append(&peer.landing, message)
                status = HETCCL_MOVED
        else:
            status = link.ops.set_aside(link.state, &peer.filling.aside)
            if status == HETCCL_DONE:
                peer.filling.whole = True
                peer.filling = NULL
        if status < 0:
            self.fail(rank, status, error)
        return status != HETCCL_AGAIN

    cdef Message* match_posted(self, int rank, hetccl_header_t* header) noexcept nogil:
        """Take the receive that was posted first of those that this message fits; NULL if there is none."""
        cdef Row* row = &self.peers[rank].receives
        cdef Message* before = NULL
        cdef Message* before_wild = NULL
        cdef Message* message = first_of(row, header.tag, &before)
        cdef Message* wild = first_of(&self.anywhere, header.tag, &before_wild)
        if wild != NULL and (message == NULL or wild.order < message.order):
            remove(&self.anywhere, before_wild, wild)
            self.turn = (rank + 1) % self.nranks
            self.work(rank)
            return wild
        if message != NULL:
            remove(row, before, message)
        return message

    cdef bint hold(self, int rank, hetccl_header_t* header, bint always) noexcept nogil:
        """Begin to set the message at the head of a link aside; False if it must stay, for want of memory."""
        cdef Peer* peer = &self.peers[rank]
        cdef size_t cost = sizeof(Held) + header.hold_nbytes
        cdef Held* held = NULL
        if always or cost <= self.limit_nbytes - min(self.held_nbytes, self.limit_nbytes):
            held = <Held*>calloc(1, sizeof(Held))
        if held != NULL and header.hold_nbytes > 0:
            held.aside.buffer = <uint8_t*>malloc(header.hold_nbytes)
            if held.aside.buffer == NULL:
                free(held)
                held = NULL
        if held == NULL:
            self.nlimited += 1
            return False
        held.aside.nbytes, held.aside.tag = header.nbytes, header.tag
        held.cost_nbytes = cost
        self.held_nbytes += cost
        hook(&peer.held, held)
        peer.filling = held
        self.work(rank)
        self.advance_head(rank)
        return True

    cdef bint probe(self, int source, int64_t tag, Probed* probed) noexcept nogil:
        cdef Held* held
        return self.find(source, tag, probed, &held)

    cdef bint take(self, int source, int64_t tag, Message* message) noexcept nogil:
        cdef Link* link
        cdef hetccl_header_t header
        cdef Probed probed
        cdef Held* held
        if not self.find(source, tag, &probed, &held):
            return False
        if held == NULL:
            link = &self.recv_links[probed.source]
            if link.ops.peek(link.state, &header) != HETCCL_DONE or not self.hold(probed.source, &header, True):
                return False
            held = self.peers[probed.source].held.last
        self.bind(message, probed.source, held)
        message.tag, message.msg.nbytes = probed.tag, probed.nbytes
        message.state = MESSAGE_IDLE
        return True

    cdef bint find(self, int source, int64_t tag, Probed* probed, Held** held_p) noexcept nogil:
        """The first message that fits: *held_p, or if that is NULL the one at the head of probed.source's link."""
        cdef int i, first = self.turn
        if source != ANY:
            return self.find_at(source, tag, probed, held_p)
        for i in range(self.nranks):
            if self.find_at((first + i) % self.nranks, tag, probed, held_p):
                self.turn = (probed.source + 1) % self.nranks
                return True
        return False

    cdef bint find_at(self, int rank, int64_t tag, Probed* probed, Held** held_p) noexcept nogil:
        cdef Peer* peer = &self.peers[rank]
        cdef Link* link = &self.recv_links[rank]
        cdef hetccl_header_t header
        # What comes first belongs to the receives that are posted.
        self.poll_receives(rank)
        held_p[0] = self.find_held(rank, tag, probed)
        if held_p[0] != NULL:
            return True
        while peer.status == 0 and peer.current == NULL and peer.filling == NULL:
            if link.ops.peek(link.state, &header) != HETCCL_DONE:
                break
            if is_special(header.tag):
                if not self.begin_special(rank, &header):
                    break
                held_p[0] = self.find_held(rank, tag, probed)
                if held_p[0] != NULL:
                    return True
            elif tag == ANY or tag == header.tag:
                probed.source, probed.tag, probed.nbytes = rank, header.tag, header.nbytes
                return True
            elif not self.hold(rank, &header, False):
                break
        return False

    cdef Held* find_held(self, int source, int64_t tag, Probed* probed) noexcept nogil:
        """The first message set aside that fits and that nobody has asked for yet; NULL if there is none."""
        cdef int i, rank, nranks = self.nranks if source == ANY else 1
        cdef Held* held
        for i in range(nranks):
            rank = (self.turn + i) % self.nranks if source == ANY else source
            held = self.peers[rank].held.first
            while held != NULL:
                if tag == ANY or tag == held.aside.tag:
                    probed.source, probed.tag, probed.nbytes = rank, held.aside.tag, held.aside.nbytes
                    return held
                held = held.next
        return NULL

    cdef void bind(self, Message* message, int rank, Held* held) noexcept nogil:
        unhook(&self.peers[rank].held, held)
        hook(&self.bound, held)
        message.peer, message.held = rank, held
