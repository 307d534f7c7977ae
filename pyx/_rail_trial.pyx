"""Layer L2: a rail, one operation at a time: the unit tests' and benchmarks' entry to rails. Not used else.

The GIL serves as the communicator's mutex.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from hetccl._rail cimport (
    HETCCL_MEM_OF_ENGINE, HETCCL_WRITE_IMM, HETCCL_WRITE_LAZY, Port, Rail, hetccl_mem_t, hetccl_write_t,
)
from hetccl._shm cimport HETCCL_DONE, HETCCL_MOVED

STATES = ("new", "up", "failed", "closed")

cdef struct Told:
    uint64_t count
    uint32_t* imms
    uint64_t capacity
    uint64_t beyond                      # told when there was no room in imms


cdef void on_imm(void* peer, int rail, uint32_t imm) noexcept nogil:
    told = <Told*>peer
    if told.count < told.capacity:
        told.imms[told.count] = imm
        told.count += 1
    else:
        told.beyond += 1


cdef class Memory:
    """Memory registered with a rail. memory : writable buffer, kept until dereg()."""

    cdef RailTrial trial
    cdef object owner
    cdef hetccl_mem_t mem
    cdef readonly uint64_t address
    cdef readonly size_t nbytes

    @property
    def rkey(self):
        return self.mem.rkey

    def dereg(self):
        self.trial.check()
        self.trial.rail.rail.ops.dereg(self.trial.rail.rail, &self.mem)


cdef class RailTrial:
    """A rail before it is connected: what it tells is kept from now on.

    capacity : immediate values that it keeps
    """

    cdef readonly Rail rail
    cdef Told told
    cdef list sources                    # of the writes, until the rail is closed

    def __init__(self, Rail rail, capacity=1 << 16):
        self.rail = rail
        self.sources = []
        self.told.capacity = capacity
        self.told.imms = <uint32_t*>malloc(capacity * sizeof(uint32_t))
        if self.told.imms == NULL:
            raise MemoryError
        rail.rail.on_imm = on_imm
        rail.rail.peer = &self.told

    def __dealloc__(self):
        if self.rail is not None and self.rail.rail != NULL:
            self.rail.rail.peer = NULL
        free(self.told.imms)

    cdef int check(self) except -1:
        if self.rail.rail == NULL:
            raise ValueError("the rail is closed")
        return 0

    def reg(self, uint8_t[::1] memory):
        """Memory, or None: the rail answered AGAIN."""
        cdef Memory registered = Memory()
        self.check()
        registered.trial, registered.owner = self, memory
        registered.address, registered.nbytes = <uintptr_t>&memory[0], memory.shape[0]
        if self.rail.rail.ops.reg(self.rail.rail, &memory[0], memory.shape[0], HETCCL_MEM_OF_ENGINE,
                                  &registered.mem) != HETCCL_DONE:
            return None
        return registered

    def write(self, pieces, uint64_t remote_addr, uint32_t rkey, *, imm=None, bint lazy=False, lkeys=(0, 0)):
        """Post a write of up to two buffers: the rail's answer, a number of transport.h."""
        cdef hetccl_write_t write
        cdef const uint8_t[::1] piece
        cdef int i, status
        self.check()
        memset(&write, 0, sizeof(write))
        for i in range(len(pieces)):
            piece = pieces[i]
            write.ptr[i] = &piece[0] if piece.shape[0] > 0 else NULL
            write.nbytes[i] = piece.shape[0]
            write.lkey[i] = lkeys[i]
        write.remote_addr, write.rkey = remote_addr, rkey
        if imm is not None:
            write.imm, write.flags = imm, HETCCL_WRITE_IMM
        if lazy:
            write.flags |= HETCCL_WRITE_LAZY
        status = self.rail.rail.ops.write(self.rail.rail, &write)
        if status == HETCCL_DONE:
            self.sources.append(pieces)
        return status

    def forget_sources(self):
        """Let the sources of completed writes go. Only when all are."""
        self.check()
        if self.rail.rail.completed != self.rail.rail.posted:
            raise ValueError("there are writes that are not completed")
        self.sources.clear()

    @property
    def told_imms(self):
        """The immediate values told so far, in their order."""
        if self.told.beyond:
            raise ValueError(f"{self.told.beyond} immediate values were not kept")
        return [self.told.imms[i] for i in range(self.told.count)]

    @property
    def ntold(self):
        """How many have been told."""
        return self.told.count + self.told.beyond

    @property
    def counts(self):
        """(writes posted, writes completed)"""
        self.check()
        return self.rail.rail.posted, self.rail.rail.completed

    @property
    def room(self):
        self.check()
        return self.rail.rail.ops.room(self.rail.rail)

    @property
    def max_write(self):
        self.check()
        return self.rail.rail.ops.max_write

    @property
    def state(self):
        return "closed" if self.rail.rail == NULL else STATES[self.rail.rail.state]

    @property
    def fault(self):
        """(kind, code)"""
        self.check()
        return self.rail.rail.fault.kind, self.rail.rail.fault.code


def poll(Port port):
    """Whether anything moved."""
    if port.port == NULL:
        raise ValueError("the port is closed")
    return port.port.poll(port.port) == HETCCL_MOVED


def arm(Port port):
    """Whether it is armed: nothing has come meanwhile."""
    if port.port == NULL:
        raise ValueError("the port is closed")
    return port.port.arm(port.port) == HETCCL_DONE


def descriptor(Port port):
    """What becomes readable when there is something to poll."""
    return port.port.fd
