"""Layer L2: who is there: which ranks of a communicator live, where each is in its calls, and what broke it.

Ranks of one host read it in their shared segment. What a rank knows of those on other hosts it keeps here; whoever
holds the connections to them (hetccl.net) writes it, and tells them what happens on this host.
"""

from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc, free

from hetccl._shm cimport (
    HETCCL_FAULT, HETCCL_FAULT_CULPRIT, HETCCL_FAULT_REASON, HETCCL_FAULT_REPORTER, HETCCL_RANK_ALIVE, HETCCL_RANK_DEAD,
    HETCCL_RANK_FREED, HETCCL_REASON_DEAD, HETCCL_REASON_FREED, hetccl_bell_ring,
)


cdef extern from *:
    """
    #include <stdint.h>
    #include <sys/eventfd.h>
    static inline uint64_t board_load(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
    static inline void board_set_state(uint32_t *state, uint32_t value) {
        __atomic_store_n(state, value, __ATOMIC_RELEASE);
    }
    """
    uint64_t board_load(const uint64_t* word) noexcept nogil
    void board_set_state(uint32_t* state, uint32_t value) noexcept nogil
    int eventfd_write(int fd, uint64_t value) noexcept nogil


cdef class Board:
    """Public state of all ranks of one communicator.

    segment : _shm.Segment of the ranks of this host, connected
    rank    : this rank in the communicator of `nranks`
    near    : sequence of int, ranks of the segment, in its order
    """

    def __cinit__(self, Segment segment not None, int rank, int nranks, near):
        cdef int peer
        self.wake_fd = -1
        self.segment = segment
        self.rank, self.nranks = rank, nranks
        self.places = <int*>calloc(nranks, sizeof(int))
        self.far_blocks = <hetccl_rank_block_t*>calloc(nranks, sizeof(hetccl_rank_block_t))
        if self.places == NULL or self.far_blocks == NULL:
            raise MemoryError()
        for peer in range(nranks):
            self.places[peer] = FAR
            self.far_blocks[peer].state = HETCCL_RANK_ALIVE
        for place, peer in enumerate(near):
            self.places[peer] = place
        self.mine = self.block(rank)
        self.fault_word = &segment.header.fault

    def __dealloc__(self):
        free(self.places)
        free(self.far_blocks)

    cdef bint is_far(self, int peer) noexcept nogil:
        return self.places[peer] == FAR

    cdef hetccl_rank_block_t* block(self, int peer) noexcept nogil:
        if self.places[peer] == FAR:
            return &self.far_blocks[peer]
        return &self.segment.blocks[self.places[peer]]

    cdef bint is_closed(self) noexcept nogil:
        return self.fault_word == &self.last_fault

    cdef void raise_fault(self, int reason, int culprit) noexcept nogil:
        if self.is_closed():
            return
        self.segment.raise_fault(HETCCL_FAULT(reason, self.rank, culprit))
        if self.wake_fd >= 0:
            eventfd_write(self.wake_fd, 1)

    cdef int gone(self, int peer) noexcept nogil:
        cdef uint32_t state = self.block(peer).state
        if state == HETCCL_RANK_FREED:
            return HETCCL_REASON_FREED
        if state == HETCCL_RANK_DEAD or (not self.is_far(peer) and self.segment.is_gone(self.places[peer])):
            return HETCCL_REASON_DEAD
        return 0

    # For those who hold the connections to other hosts:

    def connect_far(self, int wake_fd, ask):
        """Tell where other hosts are spoken to.

        wake_fd : eventfd, written when the communicator breaks here
        ask     : callable, ranks -> {rank: (collectives it has entered, index of the last call)} of those who answer
        """
        self.wake_fd = wake_fd
        self.ask = ask

    def disconnect_far(self):
        """There is nobody left to tell; call it before the eventfd is closed."""
        self.wake_fd = -1
        self.ask = None

    def left(self, int peer):
        """Note that a rank of another host has freed the communicator."""
        self.note_end(peer, HETCCL_RANK_FREED)

    def died(self, int peer):
        """Note that a rank of another host has ended, unless it had left before."""
        self.note_end(peer, HETCCL_RANK_DEAD)

    def note_end(self, int peer, uint32_t state):
        if not self.is_far(peer):
            raise ValueError(f"peer: rank {peer} is on this host")
        if self.far_blocks[peer].state == HETCCL_RANK_ALIVE:
            board_set_state(&self.far_blocks[peer].state, state)
            hetccl_bell_ring(self.mine)

    def fault(self):
        """(reason, reporter, culprit) of the communicator's fault, numbers as in HETCCL_FAULT, or None."""
        cdef uint64_t fault = board_load(self.fault_word)
        if fault == 0:
            return None
        return HETCCL_FAULT_REASON(fault), HETCCL_FAULT_REPORTER(fault), HETCCL_FAULT_CULPRIT(fault)

    def break_off(self, int reason, int reporter, int culprit):
        """Take over a fault that another host has told of."""
        if not self.is_closed():
            self.segment.raise_fault(HETCCL_FAULT(reason, reporter, culprit))

    def entered(self):
        """(collectives that this rank has entered, index of the last call in CALLS)."""
        return board_load(&self.mine.entered), self.mine.call

    def note_far(self, peers):
        """Ask ranks of other hosts how far they are. Returns the set of those who did not answer."""
        cdef hetccl_rank_block_t* block
        far = {peer for peer in peers if self.is_far(peer)}
        answers = self.ask(tuple(sorted(far))) if far and self.ask is not None else {}
        for peer in far.intersection(answers):
            block = &self.far_blocks[peer]
            block.entered, block.call = answers[peer]
        return far.difference(answers)

    def broken(self):
        """Whether a rank has broken the communicator, or a process has ended."""
        cdef int peer
        for peer in range(self.nranks):
            if self.gone(peer) == HETCCL_REASON_DEAD:
                return True
        return board_load(self.fault_word) != 0

    def leave(self):
        """Tell the ranks of this host that this one will do nothing more: those that wait for it get PeerError."""
        self.segment.leave()

    def close(self):
        """Leave and give the segment back; idempotent.

        Who holds the connections to other hosts may ask on: the board goes on saying what it last said.
        """
        cdef int peer
        if not self.is_closed():
            self.last_fault = board_load(self.fault_word)
            self.far_blocks[self.rank] = self.mine[0]
            for peer in range(self.nranks):
                self.places[peer] = FAR
            self.mine, self.fault_word = &self.far_blocks[self.rank], &self.last_fault
        self.segment.close()
