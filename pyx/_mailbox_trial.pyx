"""Layer L3: a mailbox, one step at a time: the unit tests' entry to _mailbox. Not used else.

The GIL serves as the executor's mutex.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from hetccl._layout cimport Layout, layout_of
from hetccl._letters cimport MESSAGE_MOVING
from hetccl._mailbox cimport Mailbox, Message, Probed, mailbox_new
from hetccl._program cimport Link
from hetccl._shm cimport (
    HETCCL_AGAIN, HETCCL_DONE, HETCCL_ELENGTH, HETCCL_MOVED, HETCCL_MSG_POSTED, HETCCL_MSG_SYNC, POINT_TO_POINT,
    Segment, hetccl_aside_t, hetccl_bell_arm, hetccl_bell_disarm, hetccl_bell_sleep, hetccl_header_t, hetccl_msg_t,
    hetccl_now_ns, hetccl_shm_transport, hetccl_transport_t,
)
from hetccl._wire cimport Wire
from hetccl._wire_peer cimport hetccl_wire_transport

cdef enum:
    SCRIPT_MESSAGES = 64                 # of a ScriptedLink

STATES = ("idle", "posted", "moving", "complete", "too long", "failed")


cdef class Letter:
    """A send or receive, and the memory that it uses."""

    cdef Message message
    cdef object owner

    def place(self, uint8_t[::1] memory, datatype):
        cdef Layout layout = None if datatype is None else layout_of(datatype, "datatype")
        self.owner = (memory, layout)
        self.message.msg.ptr = &memory[0] if memory.shape[0] > 0 else NULL
        self.message.msg.layout = NULL if layout is None else &layout.tree

    @property
    def state(self):
        return STATES[self.message.state]

    @property
    def matched(self):
        """(source, tag, bytes) of what a receive got; of a message that is too long, its bytes."""
        refused = self.message.refused_nbytes
        return self.message.peer, self.message.tag, refused or self.message.msg.nbytes

    @property
    def fault(self):
        """(transport's status, errno)"""
        return self.message.status, self.message.msg.error


cdef class Trial:
    """The mailbox of one rank.

    segment : _shm.Segment, connected     limit : bytes that it may set aside, or None: its own
    """

    cdef Segment segment
    cdef Mailbox mailbox
    cdef Link* links
    cdef set letters                     # posted: the mailbox has their addresses

    def __init__(self, Segment segment, limit=None):
        cdef int receive, peer
        cdef int nranks = segment.nranks
        self.segment = segment
        self.open(nranks, limit)
        for receive in range(2):
            for peer in range(nranks):
                self.links[receive * nranks + peer].ops = &hetccl_shm_transport
                self.links[receive * nranks + peer].state = segment.link(POINT_TO_POINT, receive, peer)

    cdef int open(self, int nranks, limit) except -1:
        self.letters = set()
        self.links = <Link*>calloc(2 * nranks, sizeof(Link))
        self.mailbox = mailbox_new(nranks, self.links, self.links + nranks)
        if limit is not None:
            self.mailbox.limit_nbytes = limit
        return 0

    def __dealloc__(self):
        free(self.links)

    def send(self, memory, int dest, int64_t tag, *, nbytes=None, datatype=None, bint sync=False):
        """Post a send of memory, or of the nbytes packed bytes that an MPI datatype picks of it."""
        cdef Letter letter = Letter()
        letter.place(memory, datatype)
        letter.message.sending, letter.message.peer, letter.message.tag = True, dest, tag
        letter.message.msg.nbytes = len(memory) if nbytes is None else nbytes
        letter.message.msg.flags = HETCCL_MSG_SYNC if sync else 0
        return self.post(letter)

    def receive(self, memory, int source, int64_t tag, *, capacity=None, datatype=None):
        """Post a receive into memory, of at most `capacity` packed bytes."""
        cdef Letter letter = Letter()
        letter.message.peer, letter.message.tag = source, tag
        return self.fill(letter, memory, capacity=capacity, datatype=datatype)

    def fill(self, Letter letter, memory, *, capacity=None, datatype=None):
        """Post the receive of what take() gave."""
        letter.place(memory, datatype)
        letter.message.capacity = len(memory) if capacity is None else capacity
        return self.post(letter)

    def post(self, Letter letter):
        self.letters.add(letter)
        self.mailbox.post(&letter.message)
        return letter

    def poll(self):
        """Whether anything moved."""
        moved = self.mailbox.poll() == HETCCL_MOVED
        self.letters = {letter for letter in self.letters if letter.state in STATES[:3]}
        return moved

    def probe(self, int source, int64_t tag):
        """(source, tag, bytes) or None"""
        cdef Probed probed
        if not self.mailbox.probe(source, tag, &probed):
            return None
        return probed.source, probed.tag, probed.nbytes

    def take(self, int source, int64_t tag):
        """A letter for fill(), or None."""
        cdef Letter letter = Letter()
        return letter if self.mailbox.take(source, tag, &letter.message) else None

    def blockers(self, Letter letter):
        """The mask of the peers that it waits for."""
        mask = bytearray(self.mailbox.nranks)
        self.mailbox.blockers(&letter.message, <uint8_t*><char*>mask)
        return tuple(mask)

    def end(self, int peer, int status):
        self.mailbox.end(peer, status)

    @property
    def counts(self):
        """(bytes held, links that wait because of the limit, messages pending, busy peers)"""
        mailbox = self.mailbox
        return mailbox.held_nbytes, mailbox.nlimited, mailbox.npending, mailbox.nbusy


@cython.no_gc_clear
cdef class WireTrial(Trial):
    """The mailbox of one rank whose links are a wire's, in the place of an engine; threads of its own may use the wire.

    wire : _wire.Wire
    """

    cdef Wire wire

    def __init__(self, Wire wire, limit=None):
        cdef int receive, peer
        self.wire = wire
        self.open(wire.nranks, limit)
        for receive in range(2):
            for peer in range(wire.nranks):
                self.links[receive * wire.nranks + peer].ops = &hetccl_wire_transport
                self.links[receive * wire.nranks + peer].state = wire.link(POINT_TO_POINT, receive, peer)

    def post(self, Letter letter):
        self.letters.add(letter)
        with nogil:
            self.wire.lock()
            self.mailbox.post(&letter.message)
            self.wire.unlock()
        return letter

    def poll(self):
        cdef bint moved
        with nogil:
            self.wire.lock()
            moved = self.poll_once()
            self.wire.unlock()
        self.letters = {letter for letter in self.letters if letter.state in STATES[:3]}
        return moved

    def quiet(self):
        """As an engine whose communicator breaks."""
        with nogil:
            self.wire.lock()
            self.wire.quiet()
            self.wire.unlock()

    def status(self, int peer):
        return self.wire.status(peer)

    def is_busy(self):
        return self.wire.is_busy()

    cdef bint poll_once(self) noexcept nogil:
        cdef bint moved = self.wire.poll() == HETCCL_MOVED
        return (self.mailbox.poll() == HETCCL_MOVED) | moved

    def wait(self, Letter letter, int64_t timeout_ns):
        """Sleep whenever nothing moves, at once and without looking around, until the letter is over.

        Returns : bool, whether it is; no: it is not, and no bell has rung for so long
        """
        cdef Message* message = &letter.message
        cdef bint slept = False
        with nogil:
            while message.state <= MESSAGE_MOVING and not slept:
                slept = self.sleep(message, timeout_ns)
        return message.state > MESSAGE_MOVING

    cdef bint sleep(self, Message* message, int64_t timeout_ns) noexcept nogil:
        """As the executor's rest(); whether the time is over."""
        cdef uint32_t bell = hetccl_bell_arm(self.wire.bell)
        cdef int64_t until = hetccl_now_ns() + timeout_ns
        cdef bint idle
        self.wire.lock()
        idle = self.wire.arm() == HETCCL_DONE and not self.poll_once() and message.state <= MESSAGE_MOVING
        self.wire.unlock()
        if idle:
            hetccl_bell_sleep(self.wire.bell, bell, timeout_ns)
        hetccl_bell_disarm(self.wire.bell)
        return idle and hetccl_now_ns() >= until

    def exchange(self, int peer, int rounds, bint begins, int64_t timeout_ns):
        """A ping-pong of 8 bytes with the peer, which does the same. Returns: rounds until one that no bell ended."""
        cdef Letter out = Letter(), back = Letter()
        cdef int64_t sent, got = 0
        cdef int i
        out.message.sending, out.message.msg.ptr, out.message.msg.nbytes = True, <uint8_t*>&sent, sizeof(sent)
        back.message.msg.ptr, back.message.capacity = <uint8_t*>&got, sizeof(got)
        out.message.peer = back.message.peer = peer
        for i in range(rounds):
            sent = i
            for letter in (out, back) if begins else (back, out):
                self.post(letter)
                if not self.wait(letter, timeout_ns):
                    return i
            if got != i:
                raise AssertionError(f"round {i} brought {got}")
        self.letters.clear()
        return rounds


ctypedef struct ScriptedMessage:
    size_t nbytes
    uint32_t tag
    uint8_t value                        # of all its bytes
    bint kept                            # by the sender until it is asked for
    bint asked
    bint written                         # where the receiver has asked for it


ctypedef struct ScriptedLink:            # from one peer, both directions
    ScriptedMessage messages[SCRIPT_MESSAGES]
    int count
    int head
    int most_asked                       # of the messages that are kept, so many may be asked for at once
    int fault                            # what every call answers; 0: none
    bint acknowledged                    # sends are DONE, else POSTED


cdef bint may_ask(ScriptedLink* link, int index) noexcept nogil:
    cdef int i, open = 0
    for i in range(link.count):
        open += link.messages[i].asked and not link.messages[i].written
    link.messages[index].asked |= open < link.most_asked
    return link.messages[index].asked


cdef int receive_kept(ScriptedLink* link, int index, hetccl_msg_t* msg) noexcept nogil:
    """What a network's link does: ask for the bytes, and be DONE once the peer has written them."""
    cdef ScriptedMessage* message = &link.messages[index]
    if msg.nbytes != message.nbytes:
        return HETCCL_ELENGTH
    if msg.state != HETCCL_MSG_POSTED and not may_ask(link, index):
        return HETCCL_AGAIN
    msg.state, msg.slot = HETCCL_MSG_POSTED, <int32_t>index + 1
    if not message.written:
        return HETCCL_AGAIN
    memset(msg.ptr, message.value, message.nbytes)
    msg.done = message.nbytes
    return HETCCL_DONE


cdef int scripted_send(void* state, hetccl_msg_t* msg) noexcept nogil:
    cdef ScriptedLink* link = <ScriptedLink*>state
    msg.state = HETCCL_MSG_POSTED
    return link.fault if link.fault else HETCCL_DONE if link.acknowledged else HETCCL_AGAIN


cdef int scripted_recv(void* state, hetccl_msg_t* msg) noexcept nogil:
    cdef ScriptedLink* link = <ScriptedLink*>state
    cdef ScriptedMessage* message = &link.messages[link.head]
    cdef int status
    if link.fault:
        return link.fault
    if msg.state == HETCCL_MSG_POSTED:
        return receive_kept(link, msg.slot - 1, msg)
    if message.kept:
        status = receive_kept(link, link.head, msg)
        link.head += msg.state == HETCCL_MSG_POSTED
        return status
    memset(msg.ptr, message.value, message.nbytes)
    link.head += 1
    return HETCCL_DONE


cdef int scripted_peek(void* state, hetccl_header_t* header_p) noexcept nogil:
    cdef ScriptedLink* link = <ScriptedLink*>state
    cdef ScriptedMessage* message = &link.messages[link.head]
    if link.fault or link.head == link.count:
        return link.fault
    header_p.nbytes, header_p.tag = message.nbytes, message.tag
    header_p.hold_nbytes = 0 if message.kept else message.nbytes
    return HETCCL_DONE


cdef int scripted_set_aside(void* state, hetccl_aside_t* aside) noexcept nogil:
    cdef ScriptedLink* link = <ScriptedLink*>state
    cdef ScriptedMessage* message = &link.messages[link.head]
    if link.fault:
        return link.fault
    link.head += 1
    aside.nbytes, aside.tag, aside.slot = message.nbytes, message.tag, link.head
    if not message.kept:
        memset(aside.buffer, message.value, message.nbytes)
    return HETCCL_DONE


cdef int scripted_recv_aside(void* state, hetccl_aside_t* aside, hetccl_msg_t* msg) noexcept nogil:
    cdef ScriptedLink* link = <ScriptedLink*>state
    cdef ScriptedMessage* message = &link.messages[aside.slot - 1]
    if link.fault:
        return link.fault
    if message.kept:
        return receive_kept(link, aside.slot - 1, msg)
    memset(msg.ptr, message.value, message.nbytes)
    return HETCCL_DONE


# Messages have no other readers here: nothing calls what stays NULL.
cdef hetccl_transport_t scripted_transport
scripted_transport.name = "scripted"
scripted_transport.send = scripted_send
scripted_transport.recv = scripted_recv
scripted_transport.peek = scripted_peek
scripted_transport.set_aside = scripted_set_aside
scripted_transport.recv_aside = scripted_recv_aside


cdef class ScriptedTrial(Trial):
    """The mailbox of one rank whose links the test plays: what its peers send, and when they write it.

    nranks : ranks     most_asked : messages that a link asks for at once
    """

    cdef ScriptedLink* scripts

    def __init__(self, int nranks, int most_asked):
        self.open(nranks, None)
        self.scripts = <ScriptedLink*>calloc(nranks, sizeof(ScriptedLink))
        for peer in range(nranks):
            self.scripts[peer].most_asked = most_asked
            for receive in range(2):
                self.links[receive * nranks + peer].ops = &scripted_transport
                self.links[receive * nranks + peer].state = &self.scripts[peer]

    def __dealloc__(self):
        free(self.scripts)

    def comes(self, int peer, uint32_t tag, size_t nbytes, uint8_t value, bint kept):
        """A message from peer; the index for writes()."""
        cdef ScriptedLink* link = &self.scripts[peer]
        assert link.count < SCRIPT_MESSAGES - 1
        link.messages[link.count].tag, link.messages[link.count].nbytes = tag, nbytes
        link.messages[link.count].value, link.messages[link.count].kept = value, kept
        link.count += 1
        return link.count - 1

    def writes(self, int peer, int index):
        """The peer answers what it was asked."""
        assert self.scripts[peer].messages[index].asked
        self.scripts[peer].messages[index].written = True

    def asked(self, int peer):
        """Indices of the messages that this rank has asked for."""
        return [i for i in range(self.scripts[peer].count) if self.scripts[peer].messages[i].asked]

    def acknowledges(self, int peer):
        self.scripts[peer].acknowledged = True

    def breaks(self, int peer, int fault):
        self.scripts[peer].fault = fault
