"""Layer L3: a mailbox, one step at a time: the unit tests' entry to _mailbox. Not used else.

The GIL serves as the executor's mutex.
"""

from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free

from hetccl._layout cimport Layout, layout_of
from hetccl._mailbox cimport Mailbox, Message, Probed, mailbox_new
from hetccl._program cimport Link
from hetccl._shm cimport HETCCL_MOVED, HETCCL_MSG_SYNC, POINT_TO_POINT, Segment, hetccl_shm_transport

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
        self.letters = set()
        self.links = <Link*>calloc(2 * nranks, sizeof(Link))
        for receive in range(2):
            for peer in range(nranks):
                self.links[receive * nranks + peer].ops = &hetccl_shm_transport
                self.links[receive * nranks + peer].state = segment.link(POINT_TO_POINT, receive, peer)
        self.mailbox = mailbox_new(nranks, self.links, self.links + nranks)
        if limit is not None:
            self.mailbox.limit_nbytes = limit

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
