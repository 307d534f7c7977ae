"""Layer L2: the shared-memory segment of one communicator.

Rank 0 creates an anonymous file (memfd); the others open it through /proc/<pid>/fd, so that there is no name in
/dev/shm to leave behind and nobody without the user's own rights can open it. All functions hold the GIL unless marked
nogil; bootstrap calls them in the order create, Segment(), probe_peers(), connect(), with an agreement of all ranks
between any two.
"""

import fcntl
import os

from libc.errno cimport errno
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

from hetccl.errors import LibraryError


cdef extern from *:
    """
    #include <fcntl.h>
    #include <sys/mman.h>
    #include <sys/prctl.h>
    #include <sys/stat.h>
    #include <unistd.h>
    """
    void* mmap(void* address, size_t nbytes, int protection, int flags, int fd, long offset) nogil
    int munmap(void* address, size_t nbytes) nogil
    int getpid() nogil
    int PROT_READ
    int PROT_WRITE
    int MAP_SHARED
    void* MAP_FAILED
    int prctl(int option, unsigned long argument) nogil
    int PR_SET_PTRACER
    unsigned long PR_SET_PTRACER_ANY


cdef extern from *:
    """
    #include <stdint.h>
    static inline void fault_install(uint64_t *word, uint64_t *healthy, uint64_t fault) {
        __atomic_compare_exchange_n(word, healthy, fault, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    }
    """
    void fault_install(uint64_t* word, uint64_t* healthy, uint64_t fault) noexcept nogil


# Cells of a ring. Eight keep a stream moving while either side works on one of them.
cdef enum:
    CELLS_PER_RING = 8

# (most ranks, bytes of a cell): the rings of all ordered pairs together stay below 300 MiB of address space up to 64
# ranks. Memory is taken page by page as cells are first used. A rank has about 1 MiB under way before it must wait for
# the others: with rings of 256 KiB an all-to-all of streams on a busy machine, where each wait may cost a turn on the
# core, took 1.4 times as long on 4 ranks, 2.5 times on 2. The odd line keeps the cells' headers in different sets of
# the caches.
CELL_BYTES = ((2, 131072 + 64), (4, 65536 + 64), (8, 32768), (16, 16384), (32, 8192), (None, 4096))

# Above this a message goes by address. One system call and a page walk cost about what copying this much twice does.
EAGER_MAX_BYTES = 32768


# All rings of a segment together: the sums of its layout stay far below 2^63.
MOST_RING_BYTES = 1 << 60

# A job's secret has so many bytes.
SECRET_BYTES = HETCCL_SHM_SECRET_BYTES


def cell_bytes_for(int nranks, ring_bytes=None):
    """Bytes of one cell: a share of the ring size asked for, in whole cache lines, or by the number of ranks."""
    if ring_bytes is None:
        return next(nbytes for most, nbytes in CELL_BYTES if most is None or nranks <= most)
    return max(2 * HETCCL_CACHE_LINE, ring_bytes // CELLS_PER_RING // HETCCL_CACHE_LINE * HETCCL_CACHE_LINE)


def allow_peers_to_read():
    """Let the user's other processes read this one's memory where yama allows only its parents (Ubuntu's default).

    Without yama's ptrace_scope = 1 that is so anyway, and nothing is changed; 2 and 3 cannot be lifted by a process.
    Source : prctl(2), PR_SET_PTRACER; the kernel's Documentation/admin-guide/LSM/Yama.rst
    """
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope") as scope:
            restricted = scope.read().strip() == "1"
    except OSError:
        return
    if restricted:
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY)


def create(int nranks, bytes secret not None, ring_bytes=None):
    """Make the segment's file and write its header.

    nranks     : ranks that will map it
    secret     : 16 bytes that all of them know
    ring_bytes : size of the ring of each ordered pair, or None: chosen by nranks
    Returns: file descriptor, to be closed once every rank has mapped the file
    Raises : OSError, ValueError (ring_bytes)
    Source : memfd_create(2); the seals keep a peer from truncating the file under the others
    """
    if ring_bytes is not None and 2 * nranks * nranks * ring_bytes > MOST_RING_BYTES:
        raise ValueError(f"HETCCL_RING_BYTES: {ring_bytes} bytes for each pair of {nranks} ranks are more than a "
                         "file can have")
    cdef size_t cell_bytes = cell_bytes_for(nranks, ring_bytes)
    cdef size_t nbytes = hetccl_shm_total(nranks, CELLS_PER_RING, cell_bytes)
    cdef hetccl_shm_header_t header
    memset(&header, 0, sizeof(header))
    header.magic = HETCCL_SHM_MAGIC
    memcpy(header.secret, <const char*>secret, HETCCL_SHM_SECRET_BYTES)
    header.nranks = nranks
    header.ncells = CELLS_PER_RING
    header.cell_bytes = cell_bytes
    header.total_bytes = nbytes
    fd = os.memfd_create("hetccl", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, nbytes)
        os.pwrite(fd, (<uint8_t*>&header)[:sizeof(header)], 0)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError:
        os.close(fd)
        raise
    return fd


cdef class Segment:
    """This process's mapping of the segment.

    rank, nranks : this rank's place among those of its host that share it, and their number
    path         : the file, usually /proc/<pid of rank 0>/fd/<fd>
    secret       : 16 bytes; another secret in the file is refused
    Raises       : OSError (cannot open or map), LibraryError (not the segment that was announced)
    """

    def __cinit__(self, int rank, int nranks, path, bytes secret not None):
        self.rank = rank
        self.nranks = nranks
        self.base = NULL
        self.links = NULL
        self.owner_pid = os.getpid()
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self.nbytes = os.fstat(fd).st_size
            if self.nbytes < hetccl_shm_cells_at(nranks):
                raise LibraryError(f"{path} has {self.nbytes} bytes, too few for {nranks} ranks: not hetccl's segment")
            base = mmap(NULL, self.nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
            if base == MAP_FAILED:
                raise OSError(errno, f"mmap of {self.nbytes} bytes of shared memory: {os.strerror(errno)}")
        finally:
            os.close(fd)
        self.header = <hetccl_shm_header_t*>base
        if (self.header.magic != HETCCL_SHM_MAGIC
                or memcmp(self.header.secret, <const char*>secret, HETCCL_SHM_SECRET_BYTES) != 0
                or self.header.nranks != <uint32_t>nranks or self.header.total_bytes != self.nbytes):
            munmap(base, self.nbytes)
            raise LibraryError(f"{path} is not the segment that rank 0 announced")
        self.base = <uint8_t*>base  # only now: what is not ours must not be told that this rank has left
        self.blocks = <hetccl_rank_block_t*>(self.base + hetccl_shm_blocks_at())
        self.links = <hetccl_shm_link_t*>calloc(4 * nranks, sizeof(hetccl_shm_link_t))
        if self.links == NULL:
            raise MemoryError()
        memcpy(&self.probe_word, <const char*>secret, sizeof(self.probe_word))
        cdef hetccl_rank_block_t* mine = &self.blocks[rank]
        mine.pid = self.owner_pid
        mine.start_ticks = hetccl_process_start_ticks(self.owner_pid)
        mine.probe_address = <uint64_t>&self.probe_word
        mine.state = HETCCL_RANK_ALIVE

    def probe_peers(self):
        """Try to read every peer's memory with process_vm_readv; call it when all ranks have mapped the segment.

        Returns: tuple of the peers that cannot be read (another user, yama's ptrace_scope, a seccomp filter)
        """
        cdef uint8_t* readable = self.base + hetccl_shm_readable_at(self.nranks) + self.rank * self.nranks
        cdef hetccl_shm_link_t link
        cdef hetccl_msg_t msg
        cdef uint64_t word
        memset(&link, 0, sizeof(link))
        memset(&msg, 0, sizeof(msg))
        refused = []
        for peer in range(self.nranks):
            word = 0
            link.peer_block = &self.blocks[peer]
            link.peer_pid = self.blocks[peer].pid
            status = hetccl_shm_read_peer(&link, &msg, &word, self.blocks[peer].probe_address, sizeof(word))
            readable[peer] = status == HETCCL_DONE and word == self.probe_word
            if not readable[peer]:
                refused.append(peer)
        return tuple(refused)

    def connect(self, bint single_copy):
        """Set up the links; call it when all ranks have probed.

        single_copy : whether large messages may go by address where the receiver can read the sender
        """
        cdef size_t n = self.nranks
        cdef uint8_t* readable = self.base + hetccl_shm_readable_at(n)
        cdef hetccl_shm_link_t* link
        cdef size_t ring, sender, receiver
        cdef int peer, traffic, receive
        for traffic in range(2):
            for receive in range(2):
                for peer in range(self.nranks):
                    sender, receiver = (peer, self.rank) if receive else (self.rank, peer)
                    ring = (traffic * n + sender) * n + receiver
                    link = self.link(traffic, receive, peer)
                    link.cell_bytes = self.header.cell_bytes
                    link.ncells = self.header.ncells
                    link.cells = self.base + hetccl_shm_cells_at(n) + ring * link.ncells * link.cell_bytes
                    link.tail = <uint64_t*>(self.base + hetccl_shm_tails_at(n) + ring * HETCCL_CACHE_LINE)
                    link.acks = <uint64_t*>(self.base + hetccl_shm_acks_at(n) + ring * HETCCL_CACHE_LINE)
                    link.peer_block = &self.blocks[peer]
                    link.peer_pid = self.blocks[peer].pid
                    link.own_pid = self.owner_pid
                    link.eager_max = EAGER_MAX_BYTES if single_copy and readable[receiver * n + sender] else <size_t>-1

    def single_copy_peers(self):
        """Ranks to which this rank's large messages go by address."""
        return tuple(peer for peer in range(self.nranks)
                     if self.link(COLLECTIVE, False, peer).eager_max != <size_t>-1)

    def leave(self):
        """Tell the peers that this rank will do nothing more here: those that wait for it get PeerError."""
        if self.base != NULL and os.getpid() == self.owner_pid:
            self.blocks[self.rank].state = HETCCL_RANK_FREED

    def close(self):
        """Leave and unmap the segment; idempotent."""
        self.leave()
        base = self.base
        self.base = NULL
        if base != NULL:
            munmap(base, self.nbytes)

    def __dealloc__(self):
        free(self.links)
        if self.base != NULL:
            if self.blocks != NULL and getpid() == self.owner_pid:
                self.blocks[self.rank].state = HETCCL_RANK_FREED
            munmap(self.base, self.nbytes)

    cdef hetccl_shm_link_t* link(self, int traffic, bint receive, int peer) noexcept nogil:
        return &self.links[(traffic * 2 + receive) * self.nranks + peer]

    cdef void raise_fault(self, uint64_t fault) noexcept nogil:
        """Tell all ranks of this host why the communicator is broken; the first reason stands."""
        cdef uint64_t healthy = 0
        cdef int peer
        fault_install(&self.header.fault, &healthy, fault)
        for peer in range(self.nranks):
            hetccl_bell_ring(&self.blocks[peer])

    cdef bint is_gone(self, int peer) noexcept nogil:
        """Whether the peer's process has ended. One read of /proc: for the slow part of a wait."""
        cdef uint64_t ticks = hetccl_process_start_ticks(self.blocks[peer].pid)
        return ticks != HETCCL_TICKS_UNKNOWN and ticks != self.blocks[peer].start_ticks
