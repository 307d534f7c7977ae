"""Layer L2: both sides of a wire in one process, one step at a time: the unit tests' entry to include/hetccl/wire_*.h.
Not used else.

The rails are queues of writes, which the test delivers one by one in whatever order over the rails, tells to be
complete, or loses. They hold both sides to the rules of include/hetccl/rail.h: see Pair.broken. The GIL serves as the
communicator's mutex.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from hetccl._layout cimport Layout, layout_of
from hetccl._rail cimport (
    HETCCL_ENETWORK, HETCCL_FAULT_POST, HETCCL_MEM_OF_USER, HETCCL_RAIL_CLOSED, HETCCL_RAIL_FAILED, HETCCL_RAIL_UP,
    HETCCL_RAILS, HETCCL_WRITE_IMM, hetccl_mem_t, hetccl_rail_ops_t, hetccl_rail_t, hetccl_write_t,
)
from hetccl._shm cimport (
    HETCCL_AGAIN, HETCCL_DONE, HETCCL_MSG_PAST_CACHE, HETCCL_MSG_POSTED, HETCCL_MSG_SYNC, hetccl_aside_t,
    hetccl_header_t, hetccl_msg_t,
)
from hetccl._wire_peer cimport (
    HETCCL_WIRE_CTS_MAX, HETCCL_WIRE_LOST, hetccl_wire_arrived_t, hetccl_wire_inbox_bytes, hetccl_wire_peer_address,
    hetccl_wire_peer_attach, hetccl_wire_peer_close, hetccl_wire_peer_close_rail, hetccl_wire_peer_end,
    hetccl_wire_peer_go, hetccl_wire_peer_init, hetccl_wire_peer_is_idle, hetccl_wire_peer_open,
    hetccl_wire_peer_poll, hetccl_wire_peer_quiet, hetccl_wire_peer_resume, hetccl_wire_peer_rkey,
    hetccl_wire_peer_t, hetccl_wire_t, hetccl_wire_transport,
)

cdef enum:
    DEPTH_MAX = 256
    REGIONS_MAX = 65536

STATES = ("unconnected", "wanted", "connecting", "ready", "up", "lost", "failed")
RAIL_STATES = ("new", "up", "failed", "closed")

cdef struct Region:
    uint8_t* base
    size_t nbytes
    int whose
    bint live


cdef struct Posted:
    hetccl_write_t write
    uint64_t mark                        # of the bytes of its source


cdef struct MemoryRail:
    hetccl_rail_t rail                   # first: the rail's functions are given a pointer to it
    hetccl_rail_ops_t ops
    MemoryRail* far
    int depth
    Posted queue[DEPTH_MAX]              # number n is at (n - 1) % DEPTH_MAX
    uint64_t delivered
    bint refuse_user
    bint refuse_engine
    Region* regions                      # a key is an index from 1, and never used again
    int nregions
    uint32_t broken                      # bits, see Pair.broken


cdef uint64_t mark_of(const hetccl_write_t* write) noexcept nogil:
    """FNV-1a of the bytes."""
    cdef uint64_t mark = 14695981039346656037ULL
    cdef const uint8_t* bytes = <const uint8_t*>write.ptr[0]
    cdef size_t i
    for i in range(write.nbytes[0]):
        mark = (mark ^ bytes[i]) * 1099511628211ULL
    return mark


cdef bint is_inside(MemoryRail* rail, uint32_t key, uint64_t address, size_t nbytes) noexcept nogil:
    cdef Region* region
    if key == 0 or key > <uint32_t>rail.nregions:
        return False
    region = &rail.regions[key - 1]
    return (region.live and address >= <uint64_t>region.base and nbytes <= region.nbytes
            and address - <uint64_t>region.base <= region.nbytes - nbytes)


cdef int rail_write(hetccl_rail_t* base, const hetccl_write_t* write) noexcept nogil:
    cdef MemoryRail* rail = <MemoryRail*>base
    cdef Posted* posted = &rail.queue[base.posted % DEPTH_MAX]
    if base.state != HETCCL_RAIL_UP:
        return HETCCL_ENETWORK
    if rail_room(base) < 1:
        return HETCCL_AGAIN
    posted.write = write[0]
    posted.mark = mark_of(write)
    base.posted += 1
    return HETCCL_DONE


cdef int rail_room(hetccl_rail_t* base) noexcept nogil:
    cdef MemoryRail* rail = <MemoryRail*>base
    return rail.depth - <int>(base.posted - base.completed) if base.state == HETCCL_RAIL_UP else 0


cdef int rail_reg(hetccl_rail_t* base, void* ptr, size_t nbytes, int whose, hetccl_mem_t* mem) noexcept nogil:
    cdef MemoryRail* rail = <MemoryRail*>base
    cdef Region* region
    if (rail.refuse_user if whose == HETCCL_MEM_OF_USER else rail.refuse_engine) or rail.nregions == REGIONS_MAX:
        return HETCCL_AGAIN
    region = &rail.regions[rail.nregions]
    rail.nregions += 1
    region.base, region.nbytes, region.whose, region.live = <uint8_t*>ptr, nbytes, whose, True
    mem.lkey = mem.rkey = <uint32_t>rail.nregions
    mem.handle = region
    return HETCCL_DONE


cdef void rail_dereg(hetccl_rail_t* base, hetccl_mem_t* mem) noexcept nogil:
    cdef MemoryRail* rail = <MemoryRail*>base
    cdef Region* region = <Region*>mem.handle
    if region == NULL or not region.live:
        rail.broken |= 1
        return
    region.live = False


cdef void rail_stop(hetccl_rail_t* base) noexcept nogil:
    base.state = HETCCL_RAIL_CLOSED


cdef bint deliver_next(MemoryRail* rail) noexcept nogil:
    """The oldest write that is under way takes effect. False: there is none."""
    cdef MemoryRail* far = rail.far
    cdef Posted* posted = &rail.queue[rail.delivered % DEPTH_MAX]
    cdef hetccl_write_t* write = &posted.write
    if rail.rail.state != HETCCL_RAIL_UP or rail.delivered == rail.rail.posted:
        return False
    if far.rail.state == HETCCL_RAIL_CLOSED:
        rail.rail.state = HETCCL_RAIL_FAILED
        rail.rail.fault.kind = HETCCL_FAULT_POST
        return True
    rail.delivered += 1
    if write.nbytes[0] > 0:
        if not is_inside(rail, write.lkey[0], <uint64_t>write.ptr[0], write.nbytes[0]):
            rail.broken |= 2
        if not is_inside(far, write.rkey, write.remote_addr, write.nbytes[0]):
            rail.broken |= 4
            return True
        if mark_of(write) != posted.mark:
            rail.broken |= 8
        memcpy(<void*>write.remote_addr, write.ptr[0], write.nbytes[0])
    if write.flags & HETCCL_WRITE_IMM:
        far.rail.on_imm(far.rail.peer, far.rail.index, write.imm)
    return True


cdef class Message:
    """A message to send or to receive, and the memory that it uses."""

    cdef hetccl_msg_t msg
    cdef object owner
    cdef void* link

    def send(self):
        return hetccl_wire_transport.send(self.link, &self.msg)

    def recv(self):
        return hetccl_wire_transport.recv(self.link, &self.msg)

    def available(self):
        return hetccl_wire_transport.available(self.link, &self.msg)

    def fetch(self, size_t nbytes):
        """A copy of the next nbytes, which are available."""
        cdef const uint8_t* bytes = <const uint8_t*>hetccl_wire_transport.fetch(self.link, &self.msg, nbytes, NULL)
        return bytes[:nbytes]

    def consume(self, size_t nbytes):
        hetccl_wire_transport.consume(self.link, &self.msg, nbytes)

    @property
    def done(self):
        return self.msg.done

    @property
    def posted(self):
        return self.msg.state == HETCCL_MSG_POSTED


cdef class Aside:
    """A message taken out of its link."""

    cdef hetccl_aside_t aside
    cdef object owner
    cdef void* link

    def recv(self, Message message):
        return hetccl_wire_transport.recv_aside(self.link, &self.aside, &message.msg)

    @property
    def held(self):
        """(bytes, tag, buffer or None)"""
        return self.aside.nbytes, self.aside.tag, self.owner


cdef class Pair:
    """Two peers, sides 0 and 1, of each other.

    shapes      : (ncells, cell_bytes) of each side's inbox
    nrails      : rails between them           depth     : writes that a rail takes before any is complete
    chunk_bytes, nchunks, cut_bytes, first : of hetccl_wire_t, both sides alike
    max_write   : bytes of one write           zero_copy : of each side, whether the user's memory can be registered
    """

    cdef hetccl_wire_t wires[2]
    cdef hetccl_wire_peer_t peers[2]
    cdef MemoryRail* rails[2][4]         # [side][HETCCL_RAILS]
    cdef int nrails

    def __cinit__(self, shapes=((4, 256), (4, 256)), int nrails=1, int depth=16, chunk_bytes=256, nchunks=4,
                  cut_bytes=128, first=0, max_write=1 << 20, zero_copy=(True, True)):
        cdef int side, i
        if not 1 <= nrails <= HETCCL_RAILS or depth > DEPTH_MAX:
            raise ValueError("nrails, depth")
        self.nrails = nrails
        for side in range(2):
            self.wires[side].shape.ncells, self.wires[side].shape.cell_bytes = shapes[side]
            self.wires[side].chunk_bytes, self.wires[side].nchunks = chunk_bytes, nchunks
            self.wires[side].cut_bytes, self.wires[side].first, self.wires[side].wake_fd = cut_bytes, first, -1
            hetccl_wire_peer_init(&self.peers[side], &self.wires[side], 1 - side)
            for i in range(nrails):
                self.rails[side][i] = self.new_rail(depth, max_write, zero_copy[side])
        for i in range(nrails):
            self.rails[0][i].far, self.rails[1][i].far = self.rails[1][i], self.rails[0][i]

    cdef MemoryRail* new_rail(self, int depth, size_t max_write, bint zero_copy) except NULL:
        cdef MemoryRail* rail = <MemoryRail*>calloc(1, sizeof(MemoryRail))
        if rail == NULL:
            raise MemoryError
        rail.regions = <Region*>calloc(REGIONS_MAX, sizeof(Region))
        rail.ops.name, rail.ops.max_write = "memory", max_write
        rail.ops.write, rail.ops.room, rail.ops.stop = rail_write, rail_room, rail_stop
        rail.ops.reg, rail.ops.dereg = rail_reg, rail_dereg
        rail.rail.ops = &rail.ops
        rail.depth = depth
        rail.refuse_user = not zero_copy
        return rail

    def __dealloc__(self):
        cdef int side, i
        for side in range(2):
            if self.wires[side].shape.ncells > 0:
                hetccl_wire_peer_close(&self.peers[side])
        for side in range(2):
            for i in range(HETCCL_RAILS):
                if self.rails[side][i] != NULL:
                    free(self.rails[side][i].regions)
                free(self.rails[side][i])

    def open(self, int side):
        """(status, rail that cannot register)"""
        cdef hetccl_rail_t* rails[4]
        cdef int i, refused
        for i in range(self.nrails):
            rails[i] = &self.rails[side][i].rail
        status = hetccl_wire_peer_open(&self.peers[side], rails, self.nrails, &refused)
        return status, refused

    def attach(self, int side, shape=None):
        """The other side is open. (status, rail that cannot register)"""
        cdef hetccl_wire_peer_t* far = &self.peers[1 - side]
        cdef hetccl_wire_t other = self.wires[1 - side]
        cdef uint32_t rkeys[4]
        cdef int i, refused
        if shape is not None:
            other.shape.ncells, other.shape.cell_bytes = shape
        for i in range(self.nrails):
            rkeys[i] = hetccl_wire_peer_rkey(far, i)
            self.rails[side][i].rail.state = HETCCL_RAIL_UP
        status = hetccl_wire_peer_attach(&self.peers[side], hetccl_wire_peer_address(far), &other.shape, rkeys,
                                         &refused)
        return status, refused

    def go(self, int side):
        hetccl_wire_peer_go(&self.peers[side])

    def close(self, int side):
        hetccl_wire_peer_close(&self.peers[side])

    def message(self, int side, bint receive, int cls, memory, uint32_t tag, *, nbytes=None, datatype=None, skip=0,
                bint sync=False, bint past_cache=False):
        """memory: writable buffer, or None where it is read by fetch()."""
        cdef Message message = Message()
        cdef uint8_t[::1] view
        cdef Layout layout = None if datatype is None else layout_of(datatype, "datatype")
        if memory is not None:
            view = memory
            message.msg.ptr = &view[0] if view.shape[0] > 0 else NULL
        message.owner = (memory, layout)
        message.msg.layout = NULL if layout is None else &layout.tree
        message.msg.nbytes = len(memory) if nbytes is None else nbytes
        message.msg.tag, message.msg.skip = tag, skip
        message.msg.flags = (HETCCL_MSG_SYNC if sync else 0) | (HETCCL_MSG_PAST_CACHE if past_cache else 0)
        message.link = &self.peers[side].links[cls][receive]
        return message

    def peek(self, int side, int cls):
        """(bytes, bytes that set_aside() needs, tag), or the status."""
        cdef hetccl_header_t header
        status = hetccl_wire_transport.peek(&self.peers[side].links[cls][1], &header)
        if status != HETCCL_DONE:
            return status
        return header.nbytes, header.hold_nbytes, header.tag

    def set_aside(self, int side, int cls):
        """An Aside, or the status."""
        cdef Aside aside = Aside()
        cdef uint8_t[::1] view
        aside.link = &self.peers[side].links[cls][1]
        header = self.peek(side, cls)
        if isinstance(header, tuple) and header[1] > 0:
            aside.owner = bytearray(header[1])
            view = aside.owner
            aside.aside.buffer = &view[0]
        status = hetccl_wire_transport.set_aside(aside.link, &aside.aside)
        if status != HETCCL_DONE:
            return status
        return aside

    def poll(self, int side):
        return hetccl_wire_peer_poll(&self.peers[side])

    def is_idle(self, int side):
        return hetccl_wire_peer_is_idle(&self.peers[side])

    def under_way(self, int side, int rail):
        """Writes that this side has posted on a rail and that have not taken effect."""
        cdef MemoryRail* it = self.rails[side][rail]
        return it.rail.posted - it.delivered if it.rail.state == HETCCL_RAIL_UP else 0

    def deliver(self, int side, int rail):
        """This side's next write takes effect. False: there is none."""
        return deliver_next(self.rails[side][rail])

    def complete(self, int side, int rail):
        """This side is told that what has taken effect is complete. Whether that is news."""
        cdef MemoryRail* it = self.rails[side][rail]
        cdef Posted* posted
        if it.rail.state != HETCCL_RAIL_UP or it.rail.completed == it.delivered:
            return False
        while it.rail.completed < it.delivered:
            posted = &it.queue[it.rail.completed % DEPTH_MAX]
            if mark_of(&posted.write) != posted.mark:
                it.broken |= 16
            it.rail.completed += 1
        return True

    def fail(self, int side, int rail):
        """This side's rail fails; what is under way is lost."""
        self.rails[side][rail].rail.state = HETCCL_RAIL_FAILED
        self.rails[side][rail].rail.fault.kind = HETCCL_FAULT_POST

    def close_rail(self, int side, int rail):
        """What has arrived at this side."""
        cdef hetccl_wire_arrived_t arrived
        cdef uint32_t i
        hetccl_wire_peer_close_rail(&self.peers[side], rail, &arrived)
        return {
            "cells": list(arrived.cells), "cts": list(arrived.cts),
            "open": [[(arrived.open[cls][i].position, arrived.open[cls][i].parts, arrived.open[cls][i].mask)
                      for i in range(arrived.nopen[cls])] for cls in range(2)],
        }

    def resume(self, int side, int rail, got):
        """got: the other side's close_rail()."""
        cdef hetccl_wire_arrived_t arrived
        memset(&arrived, 0, sizeof(arrived))
        for cls in range(2):
            arrived.cells[cls], arrived.cts[cls] = got["cells"][cls], got["cts"][cls]
            arrived.nopen[cls] = len(got["open"][cls])
            for i, (position, parts, mask) in enumerate(got["open"][cls][:HETCCL_WIRE_CTS_MAX]):
                arrived.open[cls][i].position, arrived.open[cls][i].parts = position, parts
                arrived.open[cls][i].mask = mask
        return hetccl_wire_peer_resume(&self.peers[side], rail, &arrived)

    def end(self, int side, int state=HETCCL_WIRE_LOST):
        hetccl_wire_peer_end(&self.peers[side], state)

    def quiet(self, int side):
        hetccl_wire_peer_quiet(&self.peers[side])

    def inject(self, int side, int rail, uint32_t imm):
        """The peer of this side sends an immediate value."""
        cdef hetccl_rail_t* it = &self.rails[side][rail].rail
        it.on_imm(it.peer, it.index, imm)

    def inbox(self, int side):
        """This side's inbox, as its peer may write to it; None while there is none."""
        cdef hetccl_wire_peer_t* peer = &self.peers[side]
        if peer.own == NULL:
            return None
        return <uint8_t[:hetccl_wire_inbox_bytes(&self.wires[side].shape)]>peer.own

    def refuse(self, int side, int rail, *, bint user=False, bint engine=False):
        """What the rail cannot register from now on."""
        self.rails[side][rail].refuse_user, self.rails[side][rail].refuse_engine = user, engine

    def state(self, int side):
        return STATES[self.peers[side].state]

    def rail_state(self, int side, int rail):
        """(state, kind of its fault, code)"""
        cdef hetccl_rail_t* it = &self.rails[side][rail].rail
        return RAIL_STATES[it.state], it.fault.kind, it.fault.code

    def pending(self, int side):
        """(bits of rails that are not resumed, bits of those the connector has not heard of)"""
        return self.peers[side].failed, self.peers[side].untold

    def counters(self, int side):
        counters = self.peers[side].tables.counters
        return {
            "eager": counters.eager, "rts": counters.rts, "cts": counters.cts, "credits": counters.credits,
            "direct_out": counters.direct_out, "staged_out": counters.staged_out,
            "direct_in": counters.direct_in, "landed_in": counters.landed_in,
            "writes": [counters.writes[i] for i in range(HETCCL_RAILS)],
            "bytes": [counters.bytes[i] for i in range(HETCCL_RAILS)],
        }

    def registrations(self, int side):
        """(the user's, the engine's) that are alive, over all rails"""
        cdef int64_t alive[2]
        cdef int i, j
        alive[0] = alive[1] = 0
        for i in range(self.nrails):
            for j in range(self.rails[side][i].nregions):
                alive[self.rails[side][i].regions[j].whose != HETCCL_MEM_OF_USER] += self.rails[side][i].regions[j].live
        return alive[0], alive[1]

    @property
    def broken(self):
        """Rules of rail.h that a side has broken."""
        rules = ("dereg() of what is not registered", "a source that is not registered",
                 "a write to memory that is not registered", "a source changed before the write took effect",
                 "a source changed before the write was complete")
        bits = 0
        for side in range(2):
            for i in range(self.nrails):
                bits |= self.rails[side][i].broken
        return [rule for i, rule in enumerate(rules) if bits >> i & 1]
