"""Layer L3: messages that go in segments. A GPU's memory passes through pieces of pinned memory (_passage), so that
neither end need have room for the whole, and the data may come long after the message has taken its place in the order.

Three kinds of messages do it, on the links of all others, with tags of their own: the *head*, with length and tag, is
sent at once and is matched as if it were the message; *asks* of the receiver are for as much as it has room for; and
*segments*, which answer them and so are taken at once. A head and an ask are notes of two words. As long as something
is cut, messages that no receive has asked for are set aside, since a note may lie behind them.
No GIL; the executor's mutex is held.
"""

from libc.stdlib cimport calloc, free
from libc.string cimport memset

from hetccl._letters cimport MESSAGE_COMPLETE, MESSAGE_FAILED, MESSAGE_MOVING, append, hook, pop, remove, unhook
from hetccl._outbox cimport Peer, outbox_open
from hetccl._passage cimport HETCCL_RING_PIECES, Transit, transit_complete, transit_is_open, transit_place
from hetccl._shm cimport HETCCL_AGAIN, HETCCL_DONE, HETCCL_ENOMEM, HETCCL_EPEER, HETCCL_MOVED

cdef enum:
    # The upper bits of the tags, and how many belong to the message's number.
    HEAD = 4
    ASK = 5
    SEGMENT = 6
    NUMBER_BITS = 29
    NUMBER_MASK = 0x1FFFFFFF


cdef Ferry ferry_new(int nranks, Link* send_links, Link* recv_links):
    cdef Ferry ferry = Ferry.__new__(Ferry)
    outbox_open(ferry, nranks, send_links, recv_links)
    return ferry


cdef class Ferry(Mailbox):
    """Made by ferry_new()."""

    def __dealloc__(self):
        cdef Cargo* cargo
        # Whoever owns the messages may have gone.
        while self.cargos != NULL:
            cargo = self.cargos
            self.cargos = cargo.next
            free(cargo)

    cdef Cargo* load(self, Message* message) noexcept nogil:
        cdef Cargo* cargo = <Cargo*>calloc(1, sizeof(Cargo))
        message.cargo = cargo
        if cargo == NULL:
            self.finish(message, MESSAGE_FAILED, HETCCL_ENOMEM)
            return NULL
        cargo.next = self.cargos
        if cargo.next != NULL:
            cargo.next.previous = cargo
        self.cargos = cargo
        return cargo

    cdef void unload_cargo(self, Message* message) noexcept nogil:
        cdef Cargo* cargo = <Cargo*>message.cargo
        message.cargo = NULL
        if cargo.next != NULL:
            cargo.next.previous = cargo.previous
        if cargo.previous != NULL:
            cargo.previous.next = cargo.next
        else:
            self.cargos = cargo.next
        free(cargo)

    cdef void depart(self, Message* message) noexcept nogil:
        """Start a send that is cut: its place in the order is the head's."""
        cdef Peer* peer = &self.peers[message.peer]
        cdef Cargo* cargo
        if peer.status < 0:
            self.refuse(message, message.peer)
            return
        cargo = self.load(message)
        if cargo == NULL:
            return
        message.number = peer.ndeparted & NUMBER_MASK
        peer.ndeparted += 1
        append(&peer.departing, message)
        self.work(message.peer)
        cargo.moving = cargo.heading = True
        cargo.words[0], cargo.words[1] = message.msg.nbytes, <uint64_t>message.tag
        self.send(message.peer, &cargo.part, tag_of(HEAD, message.number), <uint8_t*>cargo.words, NULL, 0,
                  sizeof(cargo.words))

    cdef void send(self, int rank, Message* part, uint32_t tag, uint8_t* ptr, const hetccl_layout_t* layout,
                   size_t skip, size_t nbytes) noexcept nogil:
        """Post a part of a message. If that fails, its cargo has gone."""
        memset(part, 0, sizeof(Message))
        part.sending, part.peer, part.tag = True, rank, tag
        part.msg.ptr, part.msg.layout, part.msg.skip, part.msg.nbytes = ptr, layout, skip, nbytes
        self.post(part)

    cdef bint move_cut(self, int rank) noexcept nogil:
        cdef bint moved = self.move_row(rank, &self.peers[rank].departing)
        return self.move_row(rank, &self.peers[rank].arriving) or moved

    cdef bint move_row(self, int rank, Row* row) noexcept nogil:
        cdef Peer* peer = &self.peers[rank]
        cdef Message* message = row.first
        cdef Message* previous = NULL
        cdef Message* next
        cdef bint moved = False
        cdef int status
        while message != NULL and peer.status == 0:
            next = message.next
            status = self.advance_departure(rank, message) if message.sending else self.advance_arrival(rank, message)
            moved |= status != HETCCL_AGAIN
            if peer.status == 0 and status == HETCCL_DONE:
                remove(row, previous, message)
                self.unload_cargo(message)
                self.finish(message, MESSAGE_COMPLETE, 0)
            else:
                previous = message
            message = next
        return moved

    cdef int advance_departure(self, int rank, Message* message) noexcept nogil:
        """Send the next segment, if it is asked for and has come from the GPU. DONE: the receiver has all."""
        cdef Cargo* cargo = <Cargo*>message.cargo
        cdef Transit* transit = message.transit
        cdef int status = settle(message, cargo)
        cdef size_t at = cargo.across, stop
        if cargo.moving or not cargo.wanted:
            return status
        if at == message.msg.nbytes:
            return HETCCL_DONE
        stop = min(cargo.asked, (at // cargo.step + 1) * cargo.step)
        if transit != NULL:
            stop = min(stop, (at // transit.portion + 1) * transit.portion)
        if stop <= at or transit != NULL and not transit_is_open(transit, at):
            return status
        message.state = MESSAGE_MOVING
        cargo.moving = True
        self.send(rank, &cargo.part, tag_of(SEGMENT, message.number), place_of(message, at), message.msg.layout,
                  0 if message.msg.layout == NULL else at, stop - at)
        return HETCCL_MOVED

    cdef int advance_arrival(self, int rank, Message* message) noexcept nogil:
        """Ask for what there is room for. DONE: all is there."""
        cdef Cargo* cargo = <Cargo*>message.cargo
        cdef Transit* transit = message.transit
        cdef int status = settle(message, cargo)
        cdef size_t nbytes = message.msg.nbytes, asked = nbytes
        if cargo.asking and cargo.ask.state == MESSAGE_COMPLETE:
            cargo.asking, status = False, HETCCL_MOVED
        if cargo.asking:
            return status
        if cargo.wanted and cargo.across == nbytes:
            return HETCCL_DONE
        if transit != NULL and nbytes > 0:
            asked = cargo.asked
            while asked < nbytes and transit_is_open(transit, asked) and (
                    asked // transit.portion < cargo.across // transit.portion + HETCCL_RING_PIECES):
                asked = min(nbytes, (asked // transit.portion + 1) * transit.portion)
        if cargo.wanted and asked == cargo.asked:
            return status
        cargo.wanted = cargo.asking = True
        cargo.asked = asked
        cargo.words[0], cargo.words[1] = asked, max(<size_t>1, nbytes if transit == NULL else transit.portion)
        self.send(rank, &cargo.ask, tag_of(ASK, message.number), <uint8_t*>cargo.words, NULL, 0, sizeof(cargo.words))
        return HETCCL_MOVED

    cdef bint begin_special(self, int rank, hetccl_header_t* header) noexcept nogil:
        cdef Peer* peer = &self.peers[rank]
        cdef Message* note = &peer.note
        if header.tag >> NUMBER_BITS == SEGMENT:
            return self.begin_segment(rank, header)
        if header.nbytes != sizeof(peer.words):
            self.fail(rank, HETCCL_EPEER, 0)
            return True
        if note.state == MESSAGE_MOVING:
            return False
        memset(note, 0, sizeof(Message))
        note.msg.ptr, note.msg.nbytes, note.msg.tag = <uint8_t*>peer.words, header.nbytes, header.tag
        note.peer, note.tag, note.state, note.is_note = rank, header.tag, MESSAGE_MOVING, True
        self.npending += 1
        peer.current = note
        self.work(rank)
        self.advance_head(rank)
        return True

    cdef bint begin_segment(self, int rank, hetccl_header_t* header) noexcept nogil:
        """Let the segment at the head of a link land where it belongs; False while the one before it does."""
        cdef Peer* peer = &self.peers[rank]
        cdef Message* message = find(&peer.arriving, header.tag & NUMBER_MASK)
        cdef Cargo* cargo
        cdef Message* part
        cdef size_t at
        if message != NULL:
            cargo = <Cargo*>message.cargo
            settle(message, cargo)
            if cargo.moving:
                return False
        if message == NULL or header.nbytes == 0 or header.nbytes > cargo.asked - cargo.across:
            self.fail(rank, HETCCL_EPEER, 0)
            return True
        part, at = &cargo.part, cargo.across
        memset(part, 0, sizeof(Message))
        part.peer, part.tag, part.state = rank, header.tag, MESSAGE_MOVING
        part.msg.ptr, part.msg.layout = place_of(message, at), message.msg.layout
        part.msg.skip = 0 if message.msg.layout == NULL else at
        part.msg.nbytes, part.msg.tag, part.msg.flags = header.nbytes, header.tag, message.msg.flags
        cargo.moving = True
        self.npending += 1
        peer.current = part
        return True

    cdef void read_note(self, int rank) noexcept nogil:
        cdef Peer* peer = &self.peers[rank]
        cdef uint32_t number = <uint32_t>peer.note.tag & NUMBER_MASK
        cdef Message* message
        cdef Cargo* cargo
        if <uint32_t>peer.note.tag >> NUMBER_BITS == HEAD:
            self.announce(rank, number)
            return
        message = find(&peer.departing, number)
        if message != NULL:
            cargo = <Cargo*>message.cargo
            cargo.asked, cargo.step = min(<size_t>peer.words[0], message.msg.nbytes), max(<size_t>1, peer.words[1])
            cargo.wanted = True
            message.state = MESSAGE_MOVING

    cdef void announce(self, int rank, uint32_t number) noexcept nogil:
        """A head has come: it is matched as the message would be."""
        cdef Peer* peer = &self.peers[rank]
        cdef Held* held = <Held*>calloc(1, sizeof(Held))
        cdef hetccl_header_t header
        cdef Message* message
        if held == NULL:
            self.fail(rank, HETCCL_ENOMEM, 0)
            return
        memset(&header, 0, sizeof(header))
        header.nbytes, header.tag = peer.words[0], <uint32_t>peer.words[1]
        held.aside.nbytes, held.aside.tag, held.cost_nbytes = header.nbytes, header.tag, sizeof(Held)
        held.cut = held.whole = True
        held.number = number
        self.held_nbytes += held.cost_nbytes
        hook(&peer.held, held)
        message = self.match_posted(rank, &header)
        if message != NULL:
            message.peer, message.tag = rank, header.tag
            if self.fits(message, header.nbytes):
                self.take_in(message, held)

    cdef void take_in(self, Message* message, Held* held) noexcept nogil:
        """Give a message that has been announced to a receive."""
        cdef Peer* peer = &self.peers[message.peer]
        if self.load(message) == NULL:
            return
        unhook(&peer.held if message.held == NULL else &self.bound, held)
        message.msg.nbytes, message.msg.tag = held.aside.nbytes, held.aside.tag
        message.number, message.cut, message.held, message.state = held.number, True, NULL, MESSAGE_MOVING
        self.held_nbytes -= held.cost_nbytes
        free(held)
        append(&peer.arriving, message)
        self.work(message.peer)

    cdef void fail(self, int rank, int status, int error) noexcept nogil:
        cdef Peer* peer = &self.peers[rank]
        cdef Message* message
        Mailbox.fail(self, rank, status, error)
        while peer.departing.first != NULL or peer.arriving.first != NULL:
            message = pop(&peer.departing if peer.departing.first != NULL else &peer.arriving)
            self.unload_cargo(message)
            self.refuse(message, rank)

    cdef bint mark_transits(self, uint8_t* mask) noexcept nogil:
        cdef Message* message = self.anywhere.first
        cdef Peer* peer
        cdef bint stalled = False, waits
        cdef int rank
        while message != NULL:
            if message.transit != NULL and message.transit.queued:
                self.blockers(message, mask)
                stalled = True
            message = message.next
        for rank in range(self.nranks):
            peer = &self.peers[rank]
            waits = stalls(peer.receives.first) or stalls(peer.landing.first) or stalls(peer.unloading.first) or (
                stalls(peer.arriving.first))
            stalled = stalled or waits or stalls(peer.departing.first)
            if waits or has_transit(peer.departing.first):
                mask[rank] = 1
        return stalled


cdef inline uint32_t tag_of(int kind, uint32_t number) noexcept nogil:
    return <uint32_t>kind << NUMBER_BITS | number


cdef inline uint8_t* place_of(const Message* message, size_t at) noexcept nogil:
    """Where the bytes of a message from `at` on lie; the message's own beginning if it has a layout."""
    if message.transit != NULL:
        return transit_place(message.transit, at)
    return message.msg.ptr if message.msg.layout != NULL else message.msg.ptr + at


cdef int settle(Message* message, Cargo* cargo) noexcept nogil:
    """Take note of a part that is complete."""
    cdef Transit* transit = message.transit
    cdef size_t at = cargo.across
    if not cargo.moving or cargo.part.state != MESSAGE_COMPLETE:
        return HETCCL_AGAIN
    cargo.moving = False
    if cargo.heading:
        cargo.heading = False
        return HETCCL_MOVED
    cargo.across += cargo.part.msg.nbytes
    if transit != NULL and (cargo.across % transit.portion == 0 or cargo.across == message.msg.nbytes):
        transit_complete(transit, at)
    return HETCCL_MOVED


cdef Message* find(Row* row, uint32_t number) noexcept nogil:
    cdef Message* message = row.first
    while message != NULL and message.number != number:
        message = message.next
    return message


cdef bint has_transit(Message* message) noexcept nogil:
    while message != NULL and message.transit == NULL:
        message = message.next
    return message != NULL


cdef bint stalls(Message* message) noexcept nogil:
    """Whether a stream waits for one of a row's messages, and the peer is to act."""
    cdef Transit* transit
    cdef Cargo* cargo
    while message != NULL:
        transit, cargo = message.transit, <Cargo*>message.cargo
        if transit != NULL and transit.queued:
            if not message.sending and (cargo == NULL or cargo.asked != cargo.across or not cargo.wanted):
                return True
            if message.sending and transit.nportions > HETCCL_RING_PIECES and transit_is_open(transit, cargo.across):
                return True
        message = message.next
    return False
