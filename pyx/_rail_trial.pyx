"""Layer L2: a rail of any kind, one call at a time: the tests' and benchmarks' entry to rails. Not used else.

One thread uses a port and its rails, in place of the communicator's mutex.
"""

import select

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memset

from hetccl._rail cimport (
    HETCCL_FAULT_NONE, HETCCL_MEM_OF_ENGINE, HETCCL_MEM_OF_USER, HETCCL_RAIL_UP, HETCCL_WRITE_IMM, HETCCL_WRITE_LAZY,
    Port, Rail, hetccl_mem_t, hetccl_port_t, hetccl_rail_t, hetccl_write_t,
)
from hetccl._shm cimport HETCCL_AGAIN, HETCCL_DONE, HETCCL_MOVED, hetccl_now_ns

STATES = ("new", "up", "failed", "closed")
ANSWERS = {HETCCL_DONE: "done", HETCCL_AGAIN: "again"}

cdef enum:
    # Immediate values that a trial keeps.
    KEPT = 1 << 16
    # Rounds of ping_pong() that are timed together.
    GROUP = 4


cdef struct Log:
    uint64_t came                        # immediate values that have come
    uint32_t[KEPT] imms                  # the last of them


cdef void keep(void* peer, int rail, uint32_t imm) noexcept nogil:
    cdef Log* log = <Log*>peer
    log.imms[log.came % KEPT] = imm
    log.came += 1


cdef void ignore(void* peer, int rail, uint32_t imm) noexcept nogil:
    """For a rail that outlives its trial."""


cdef class Memory:
    """Registered memory of the process, as one rail knows it; what it was made of is kept until it dies."""

    cdef hetccl_mem_t mem
    cdef readonly uint64_t address
    cdef Trial trial
    cdef object owner

    @property
    def lkey(self):
        return self.mem.lkey

    @property
    def rkey(self):
        return self.mem.rkey

    def dereg(self):
        self.trial.rail().ops.dereg(self.trial.rail(), &self.mem)


cdef class Trial:
    """A rail of a port, and the immediate values that have come over it."""

    cdef Port port_
    cdef Rail rail_
    cdef Log log
    cdef uint64_t taken                  # immediate values, by take()
    cdef list sources                    # buffers of write()

    def __init__(self, Port port not None, Rail rail not None):
        self.port_, self.rail_, self.sources = port, rail, []
        self.rail().on_imm, self.rail().peer = keep, &self.log

    def __dealloc__(self):
        if self.rail_ is not None and self.rail_.rail is not NULL:
            self.rail_.rail.on_imm = ignore

    cdef hetccl_rail_t* rail(self) except NULL:
        if self.rail_.rail is NULL:
            raise ValueError("the rail is closed")
        return self.rail_.rail

    cdef hetccl_port_t* port(self) except NULL:
        if self.port_.port is NULL:
            raise ValueError("the port is closed")
        return self.port_.port

    def reg(self, buffer, *, bint users=False):
        """Register a writable buffer: a Memory, or None: it cannot be."""
        cdef uint8_t[::1] view = buffer
        cdef Memory memory = self.reg_at(<uintptr_t>&view[0], len(view), users=users)
        if memory is not None:
            memory.owner = view
        return memory

    def reg_at(self, uint64_t address, size_t nbytes, *, bint users=False):
        cdef Memory memory = Memory.__new__(Memory)
        cdef hetccl_rail_t* rail = self.rail()
        cdef int whose = HETCCL_MEM_OF_USER if users else HETCCL_MEM_OF_ENGINE
        memory.trial, memory.address = self, address
        if rail.ops.reg(rail, <void*><uintptr_t>address, nbytes, whose, &memory.mem) != HETCCL_DONE:
            return None
        return memory

    def write(self, pieces, uint64_t remote_addr=0, uint32_t rkey=0, imm=None, *, bint lazy=False):
        """Post one write. Returns "done", "again" or the status, a number of transport.h or rail.h.

        pieces : up to two, each (address, bytes, lkey); or, over tcp, a buffer, kept until forget_sources()
        """
        cdef hetccl_write_t write
        cdef hetccl_rail_t* rail = self.rail()
        cdef const uint8_t[::1] view
        memset(&write, 0, sizeof(write))
        for i, piece in enumerate(pieces):
            if type(piece) is tuple:
                address, nbytes, lkey = piece
            else:
                view = piece
                address, nbytes, lkey = <uintptr_t>&view[0] if len(view) else 0, len(view), 0
            write.ptr[i], write.nbytes[i], write.lkey[i] = <void*><uintptr_t>address, nbytes, lkey
        write.remote_addr, write.rkey = remote_addr, rkey
        if imm is not None:
            write.imm, write.flags = imm, HETCCL_WRITE_IMM
        if lazy:
            write.flags |= HETCCL_WRITE_LAZY
        status = rail.ops.write(rail, &write)
        if status == HETCCL_DONE:
            self.sources.append(pieces)
        return ANSWERS.get(status, status)

    def forget_sources(self):
        """Let the buffers of completed writes go. Only when all are completed."""
        posted, completed = self.counts
        if posted != completed:
            raise ValueError(f"{posted - completed} writes are not completed")
        self.sources.clear()

    def poll(self):
        """Whether anything moved."""
        cdef hetccl_port_t* port = self.port()
        return port.poll(port) == HETCCL_MOVED

    def arm(self):
        """Whether the port is armed; else it must be polled first."""
        cdef hetccl_port_t* port = self.port()
        return port.arm(port) == HETCCL_DONE

    def told(self):
        """All immediate values that have come."""
        return self.imms_from(0)

    def take(self):
        """The immediate values that have come since the last time."""
        found = self.imms_from(self.taken)
        self.taken = self.log.came
        return found

    cdef list imms_from(self, uint64_t first):
        if self.log.came - first > KEPT:
            raise OverflowError(f"{self.log.came - first} immediate values; {KEPT} are kept")
        return [self.log.imms[i % KEPT] for i in range(first, self.log.came)]

    def wait(self, double seconds, uint64_t completed=0, uint64_t came=0):
        """Poll until so many writes are complete and so many values have come; False: not within the time."""
        cdef hetccl_rail_t* rail = self.rail()
        cdef hetccl_port_t* port = self.port()
        cdef int64_t deadline = hetccl_now_ns() + <int64_t>(seconds * 1e9)
        cdef bint done = False
        with nogil:
            while not done and rail.state == HETCCL_RAIL_UP and hetccl_now_ns() < deadline:
                port.poll(port)
                done = rail.completed >= completed and self.log.came >= came
        return rail.completed >= completed and self.log.came >= came

    def wait_failed(self, double seconds):
        """Poll until the rail has failed; False: not within the time."""
        cdef hetccl_rail_t* rail = self.rail()
        cdef hetccl_port_t* port = self.port()
        cdef int64_t deadline = hetccl_now_ns() + <int64_t>(seconds * 1e9)
        with nogil:
            while rail.state == HETCCL_RAIL_UP and hetccl_now_ns() < deadline:
                port.poll(port)
        return rail.state != HETCCL_RAIL_UP

    def sleep(self, double seconds):
        """Sleep on the armed port's descriptor; whether it has become readable."""
        poller = select.poll()
        poller.register(self.port().fd, select.POLLIN)
        return bool(poller.poll(seconds * 1000))

    def stream(self, Memory source not None, size_t nbytes, uint64_t count, uint64_t remote_addr, uint32_t rkey,
               double seconds):
        """Write the same bytes count times, as fast as the rail takes them; nanoseconds until all are complete."""
        cdef hetccl_write_t write
        cdef hetccl_rail_t* rail = self.rail()
        cdef hetccl_port_t* port = self.port()
        cdef unsigned polls = 0
        cdef int64_t start = hetccl_now_ns(), deadline = start + <int64_t>(seconds * 1e9)
        cdef uint64_t goal = rail.posted + count
        memset(&write, 0, sizeof(write))
        write.ptr[0], write.nbytes[0], write.lkey[0] = <void*><uintptr_t>source.address, nbytes, source.mem.lkey
        write.remote_addr, write.rkey = remote_addr, rkey
        with nogil:
            while rail.completed < goal and rail.state == HETCCL_RAIL_UP:
                polls += 1
                if polls % 1024 == 0 and hetccl_now_ns() > deadline:
                    break
                while rail.posted < goal and rail.ops.write(rail, &write) == HETCCL_DONE:
                    pass
                port.poll(port)
        if rail.completed < goal:
            raise TimeoutError(f"{goal - rail.completed} of {count} writes are not complete: {self.rail_.fault()}")
        return hetccl_now_ns() - start

    def ping_pong(self, Memory source not None, size_t nbytes, int rounds, uint64_t remote_addr, uint32_t rkey,
                  bint first, int64_t[::1] times, double seconds):
        """Answer writes with an immediate value each, the first side beginning.

        times : nanoseconds of each GROUP of rounds; reading the clock may cost as much as a part of a round
        """
        cdef hetccl_write_t write
        cdef hetccl_rail_t* rail = self.rail()
        cdef hetccl_port_t* port = self.port()
        cdef int64_t now, before, deadline = hetccl_now_ns() + <int64_t>(seconds * 1e9)
        cdef uint64_t base = self.log.came
        cdef int i
        memset(&write, 0, sizeof(write))
        write.ptr[0], write.nbytes[0], write.lkey[0] = <void*><uintptr_t>source.address, nbytes, source.mem.lkey
        write.remote_addr, write.rkey, write.flags = remote_addr, rkey, HETCCL_WRITE_IMM
        with nogil:
            before = hetccl_now_ns()
            for i in range(rounds):
                if not first and not self.spin(rail, port, base + i + 1, deadline):
                    break
                while rail.ops.write(rail, &write) == HETCCL_AGAIN and rail.state == HETCCL_RAIL_UP:
                    port.poll(port)
                if first and not self.spin(rail, port, base + i + 1, deadline):
                    break
                if i % GROUP == GROUP - 1:
                    now = hetccl_now_ns()
                    times[i // GROUP] = now - before
                    before = now
        if self.log.came < base + rounds:
            raise TimeoutError(f"{self.log.came - base} of {rounds} rounds: {self.rail_.fault()}")

    cdef bint spin(self, hetccl_rail_t* rail, hetccl_port_t* port, uint64_t came, int64_t deadline) noexcept nogil:
        cdef unsigned idle = 0
        while self.log.came < came:
            if port.poll(port) == HETCCL_MOVED:
                continue
            idle += 1
            if rail.state != HETCCL_RAIL_UP or idle % 1024 == 0 and hetccl_now_ns() > deadline:
                return False
        return True

    @property
    def state(self):
        return "closed" if self.rail_.rail is NULL else STATES[self.rail_.rail.state]

    @property
    def counts(self):
        """(writes posted, writes completed)"""
        return self.rail().posted, self.rail().completed

    @property
    def came(self):
        """Immediate values that have come."""
        return self.log.came

    @property
    def room(self):
        """Writes that the rail would take now, at least."""
        return self.rail().ops.room(self.rail())

    @property
    def max_write(self):
        """Bytes of the largest write."""
        return self.rail().ops.max_write

    @property
    def fd(self):
        """What becomes readable when there is something to poll."""
        return self.port().fd

    @property
    def fault(self):
        """(kind, code), or None"""
        fault = self.rail().fault
        return None if fault.kind == HETCCL_FAULT_NONE else (fault.kind, fault.code)
