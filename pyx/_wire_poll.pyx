"""Layer L2: what the engine polls for the peers that are reached over a network; the base of _wire.Wire.

The C state of each peer (wire_peer.h), the ports that are polled for all of them, and the watch that wakes sleepers. No
Python object is touched under the mutex.
"""

import os

from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc, free

from hetccl._mutex cimport hetccl_mutex_lock, hetccl_mutex_open, hetccl_mutex_unlock
from hetccl._rail cimport HETCCL_ENETWORK
from hetccl._shm cimport HETCCL_AGAIN, HETCCL_DONE, HETCCL_EPEER, HETCCL_MOVED
from hetccl._wire_peer cimport (
    HETCCL_WIRE_CELL_BYTES_MAX, HETCCL_WIRE_CELL_BYTES_MIN, HETCCL_WIRE_CELL_UNIT, HETCCL_WIRE_CELLS_MAX,
    HETCCL_WIRE_CELLS_MIN, HETCCL_WIRE_FAILED, HETCCL_WIRE_LOST, hetccl_wire_peer_close, hetccl_wire_peer_init,
    hetccl_wire_peer_is_idle, hetccl_wire_peer_poll, hetccl_wire_peer_quiet, hetccl_wire_shape_is_good,
    hetccl_wire_wake, hetccl_wire_want,
)

cdef extern from "<unistd.h>" nogil:
    int close(int fd)
    int getpid()

cdef enum:
    # Peers whose waiting writes one poll looks after: a poll costs the same however many are connected.
    PEERS_PER_POLL = 8
    # Landing and staging memory, of a peer and class.
    CHUNK_BYTES = 262144
    CHUNKS = 4
    MOST_CHUNKS = 16
    # A part shorter than this is not worth another rail.
    CUT_BYTES = 65536

# Which inboxes there can be, for messages.
SHAPES = (f"a power of two from {HETCCL_WIRE_CELLS_MIN} to {HETCCL_WIRE_CELLS_MAX}, and a multiple of "
          f"{HETCCL_WIRE_CELL_UNIT} from {HETCCL_WIRE_CELL_BYTES_MIN} to {HETCCL_WIRE_CELL_BYTES_MAX} are needed")


cdef class Polled:
    """The engine's side of a wire; see _wire.Wire, which has the ports and rails, and calls give_back() before they go.
    """

    def __cinit__(self, int rank, int nranks, int cells, int cell_bytes, hosts=(), *, int chunk_bytes=CHUNK_BYTES,
                  int chunks=CHUNKS, size_t cut_bytes=CUT_BYTES, uint32_t first=0):
        cdef int peer, error
        self.wake_fd = -1
        self.closed = True
        self.owner_pid = getpid()
        self.rank, self.nranks = rank, nranks
        self.shared.shape.ncells, self.shared.shape.cell_bytes = cells, cell_bytes
        if not hetccl_wire_shape_is_good(&self.shared.shape):
            raise ValueError(f"cells, cell_bytes: {cells}, {cell_bytes}; {SHAPES}")
        if chunk_bytes < 64 or chunk_bytes % 64 or not 1 <= chunks <= MOST_CHUNKS or cut_bytes < 1:
            raise ValueError(f"chunk_bytes, chunks, cut_bytes: {chunk_bytes}, {chunks}, {cut_bytes}; a multiple of 64, "
                             f"1 to {MOST_CHUNKS}, and 1 or more are needed")
        self.peers = <hetccl_wire_peer_t*>calloc(max(nranks, 1), sizeof(hetccl_wire_peer_t))
        self.live = <int*>calloc(max(nranks, 1), sizeof(int))
        if self.peers == NULL or self.live == NULL or hetccl_mutex_open(&self.own_mutex) != 0:
            raise MemoryError(f"the state of {nranks} peers")
        self.mutex, self.bell = &self.own_mutex, &self.own_bell
        error = hetccl_wire_watch_open(&self.watch)
        if error != 0:
            raise OSError(error, f"no epoll for the ports: {os.strerror(error)}")
        self.watch.bell = self.bell
        self.closed = False
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.shared.chunk_bytes, self.shared.nchunks = chunk_bytes, chunks
        self.shared.cut_bytes, self.shared.first, self.shared.wake_fd = cut_bytes, first, self.wake_fd
        for peer in range(nranks):
            hetccl_wire_peer_init(&self.peers[peer], &self.shared, peer)

    def __dealloc__(self):
        if self.wake_fd >= 0 and getpid() == self.owner_pid:
            close(self.wake_fd)
        free(self.peers)
        free(self.live)

    cdef void adopt(self, hetccl_mutex_t* mutex, hetccl_rank_block_t* bell) noexcept:
        with nogil:
            self.move_to(mutex, bell)

    cdef void disown(self) noexcept:
        with nogil:
            self.move_to(&self.own_mutex, &self.own_bell)

    cdef void move_to(self, hetccl_mutex_t* mutex, hetccl_rank_block_t* bell) noexcept nogil:
        """Those that wait for the old mutex see afterwards that it is no longer the one."""
        cdef hetccl_mutex_t* before
        self.lock()
        before = self.mutex
        hetccl_wire_watch_stop(&self.watch)
        self.mutex, self.bell, self.watch.bell = mutex, bell, bell
        hetccl_mutex_unlock(before)

    cdef void* link(self, int traffic, bint receive, int peer) noexcept nogil:
        return &self.peers[peer].links[traffic][receive]

    cdef int poll(self) noexcept nogil:
        cdef int _, moved
        if self.nlive == 0:
            return HETCCL_AGAIN
        moved = self.poll_ports()
        for _ in range(min(self.nlive, <int>PEERS_PER_POLL)):
            self.turn = self.turn + 1 if self.turn + 1 < self.nlive else 0
            moved |= hetccl_wire_peer_poll(&self.peers[self.live[self.turn]])
        return HETCCL_MOVED if moved else HETCCL_AGAIN

    cdef int poll_ports(self) noexcept nogil:
        cdef int i, moved = HETCCL_AGAIN
        for i in range(self.watch.nports):
            moved |= self.watch.ports[i].poll(self.watch.ports[i])
        return HETCCL_MOVED if moved else HETCCL_AGAIN

    cdef int arm(self) noexcept nogil:
        cdef int i, moved = HETCCL_AGAIN
        if self.nlive == 0:
            return HETCCL_DONE
        for i in range(self.nlive):
            moved |= hetccl_wire_peer_poll(&self.peers[self.live[i]])
        return HETCCL_MOVED if moved else hetccl_wire_watch_arm(&self.watch)

    cdef int status(self, int peer) noexcept nogil:
        if self.peers[peer].state == HETCCL_WIRE_LOST:
            return HETCCL_EPEER
        return HETCCL_ENETWORK if self.peers[peer].state == HETCCL_WIRE_FAILED else 0

    cdef bint is_busy(self) noexcept nogil:
        cdef int i
        for i in range(self.watch.nports):
            if self.watch.ports[i].unsent:
                return self.nlive > 0
        return False

    cdef void quiet(self) noexcept nogil:
        cdef int i
        for i in range(self.nlive):
            hetccl_wire_peer_quiet(&self.peers[self.live[i]])
        self.nlive = 0

    cdef void want(self, int peer) noexcept nogil:
        hetccl_wire_want(&self.peers[peer])

    cdef void wake(self) noexcept nogil:
        hetccl_wire_wake(&self.shared)

    cdef void lock(self) noexcept nogil:
        cdef hetccl_mutex_t* mutex
        while True:
            mutex = self.mutex
            hetccl_mutex_lock(mutex)
            if mutex == self.mutex:
                return
            hetccl_mutex_unlock(mutex)

    cdef void unlock(self) noexcept nogil:
        hetccl_mutex_unlock(self.mutex)

    cdef void add_live(self, int peer) noexcept nogil:
        self.live[self.nlive] = peer
        self.nlive += 1

    cdef void drop_live(self, int peer) noexcept nogil:
        cdef int i
        for i in range(self.nlive):
            if self.live[i] == peer:
                self.nlive -= 1
                self.live[i] = self.live[self.nlive]
                return

    cdef bint is_idle(self) noexcept nogil:
        cdef int i
        for i in range(self.nlive):
            if not hetccl_wire_peer_is_idle(&self.peers[self.live[i]]):
                return False
        return True

    cdef void give_back(self) noexcept nogil:
        """The thread, then the rails' registrations and the peers' memory. Nobody polls any more."""
        cdef int peer
        if self.closed:
            return
        self.closed = True
        hetccl_wire_watch_close(&self.watch)
        for peer in range(self.nranks):
            hetccl_wire_peer_close(&self.peers[peer])
        self.nlive = 0
        self.shared.wake_fd = -1


cdef int wire_listen(void* polled) noexcept nogil:
    return (<Polled>polled).arm()
