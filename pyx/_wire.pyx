"""Layer L2: the peers of one communicator that are reached over a network: the connector's side (hetccl.net).

The connector, on a thread of its own, connects peers and tells of their ends by the methods here, which may be called
from any thread. They take the mutex while the GIL is released, and touch no Python object under it.
"""

import os
import time
import weakref

cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uintptr_t

from hetccl._rail cimport HETCCL_RAILS, Port, Rail, direct_text, hetccl_rail_t
from hetccl._runtime cimport Runtime
from hetccl._shm cimport (
    HETCCL_AGAIN, HETCCL_DONE, HETCCL_ELENGTH, HETCCL_MOVED, HETCCL_MSG_ALL_DEVICES, hetccl_bell_ring,
)
from hetccl._wire_peer cimport (
    HETCCL_WIRE_CELL_BYTES_MAX, HETCCL_WIRE_CELL_BYTES_MIN, HETCCL_WIRE_CELL_UNIT, HETCCL_WIRE_CELLS_MAX,
    HETCCL_WIRE_CELLS_MIN, HETCCL_WIRE_CONNECTING, HETCCL_WIRE_CTS_MAX, HETCCL_WIRE_FAILED, HETCCL_WIRE_LOST,
    HETCCL_WIRE_NOWHERE, HETCCL_WIRE_READY, HETCCL_WIRE_UP, HETCCL_WIRE_WANTED, hetccl_wire_arrived_t,
    hetccl_wire_counters_t, hetccl_wire_direct, hetccl_wire_peer_address, hetccl_wire_peer_attach,
    hetccl_wire_peer_close, hetccl_wire_peer_close_rail, hetccl_wire_peer_end, hetccl_wire_peer_go,
    hetccl_wire_peer_open, hetccl_wire_peer_poll, hetccl_wire_peer_resume, hetccl_wire_peer_rkey,
)
from hetccl._wire_poll cimport HETCCL_WIRE_PORTS, hetccl_wire_watch_add, hetccl_wire_watch_forget
from hetccl._wire_record cimport Inbox, arrived_read, arrived_record, inbox_read

from hetccl._verbs_errors import memlock_advice
from hetccl._wire_poll import SHAPES
from hetccl.errors import LibraryError

cdef extern from "hetccl/wire.h" nogil:
    ctypedef struct hetccl_wire_cell_t:
        pass

cdef extern from "<unistd.h>" nogil:
    int getpid()

cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1

cdef enum:
    # Rounds in which what has come is taken in before a peer counts as lost; each takes what a port takes at once.
    LAST_POLLS = 1000
    # Of one class: a ring is told of at every half, and once more after a rail has failed.
    MOST_CREDITS = 4

# Between two looks of flush().
FLUSH_SECONDS = 2e-4
# Of an inbox: cells of a ring, bytes of a cell (a multiple of CELL_UNIT), and what of it is not payload.
LEAST_CELLS, MOST_CELLS = HETCCL_WIRE_CELLS_MIN, HETCCL_WIRE_CELLS_MAX
LEAST_CELL_BYTES, MOST_CELL_BYTES = HETCCL_WIRE_CELL_BYTES_MIN, HETCCL_WIRE_CELL_BYTES_MAX
CELL_UNIT = HETCCL_WIRE_CELL_UNIT
HEADER_BYTES = sizeof(hetccl_wire_cell_t)

# Whose epoll sets a child of this process must close.
_wires = weakref.WeakSet()


def _forget_all():
    for wire in _wires:
        wire.forget()


os.register_at_fork(after_in_child=_forget_all)


def most_immediates(int cells):
    """Immediate values that a peer may have sent over one rail and this rank has not taken in, of two classes: a ring's
    cells, CTS entries, each entry's FINs, credits. A rail must have room for them: a peer does not wait for it."""
    return 2 * (cells + HETCCL_WIRE_CTS_MAX * (1 + HETCCL_RAILS) + MOST_CREDITS)


# The C structs of its rails are used until its __dealloc__.
@cython.no_gc_clear
cdef class Wire(Polled):
    """The network side of one communicator.

    rank, nranks : place and number of ranks
    cells        : cells of each ring, a power of two from 2 to 1024
    cell_bytes   : bytes of a cell, a multiple of 64 from 128 to 1 MiB
    hosts        : str per rank, host names for messages, or nothing
    chunk_bytes, chunks : landing memory of a link; cut_bytes : no shorter part of a piece has a rail of its own;
    first        : number of the first message; as they are but in tests
    Raises       : ValueError, MemoryError, OSError (no descriptor or no thread left)
    """

    def __cinit__(self, int rank, int nranks, int cells, int cell_bytes, hosts=(), **settings):
        self.hosts = tuple(hosts)
        self.ports, self.rails, self.kept, self.texts = [], {}, (), {}
        _wires.add(self)

    def __dealloc__(self):
        # A child of a fork has neither the thread nor the mappings.
        if getpid() == self.owner_pid:
            self.give_back()

    cdef hetccl_wire_peer_t* peer_of(self, int peer) except NULL:
        if self.closed:
            raise ValueError("the wire is closed")
        if not 0 <= peer < self.nranks or peer == self.rank:
            raise ValueError(f"peer: {peer}; another rank of {self.nranks} is needed")
        return &self.peers[peer]

    def add_port(self, Port port not None):
        """Poll this port too; it is closed with the wire. Raises: ValueError (too many), OSError."""
        cdef int error
        if self.closed or self.watch.nports == HETCCL_WIRE_PORTS:
            raise ValueError(f"port: the wire is closed, or has {HETCCL_WIRE_PORTS} ports already")
        with nogil:
            self.lock()
            error = hetccl_wire_watch_add(&self.watch, port.port)
            self.unlock()
        if error != 0:
            raise OSError(error, f"a port cannot be watched: {os.strerror(error)}")
        self.ports.append(port)

    def wanted(self):
        """Ranks that traffic waits for and that nobody has begun to connect; the caller does now.

        Call it after wake_fd has been read: who is wanted later writes it again.
        """
        cdef int peer
        found = bytearray(self.nranks)
        cdef unsigned char* marks = found
        if self.closed:
            return []
        with nogil:
            self.lock()
            for peer in range(self.nranks):
                if self.peers[peer].state == HETCCL_WIRE_WANTED:
                    self.peers[peer].state = HETCCL_WIRE_CONNECTING
                    marks[peer] = 1
            self.unlock()
        return [peer for peer in range(self.nranks) if found[peer]]

    def reach(self, peers):
        """Ask for connections to peers that have none. peers: ranks of other hosts."""
        cdef int peer
        for peer in peers:
            with nogil:
                self.lock()
                self.want(peer)
                self.unlock()

    def prepare(self, int peer, rails):
        """Take the memory for a peer that is being connected.

        rails   : sequence of Rail, not connected; the wire's from now on, but after an error
        Returns : {"address", "cells", "cell_bytes", "rkeys": [int per rail]}, what the peer must know of the inbox
        Raises  : ValueError (it is connected, or lost), LibraryError (a rail cannot register memory), MemoryError
        """
        cdef hetccl_wire_peer_t* state = self.peer_of(peer)
        cdef hetccl_rail_t* c_rails[HETCCL_RAILS]
        cdef int i, nrails = len(rails), at = HETCCL_WIRE_NOWHERE, status = HETCCL_ELENGTH
        if not 1 <= nrails <= HETCCL_RAILS:
            raise ValueError(f"rails: {nrails}; 1 to {HETCCL_RAILS} are needed")
        for i in range(nrails):
            c_rails[i] = (<Rail?>rails[i]).rail
        with nogil:
            self.lock()
            if not self.closed and state.state <= HETCCL_WIRE_CONNECTING and state.nrails == 0:
                status = hetccl_wire_peer_open(state, c_rails, nrails, &at)
            self.unlock()
        if status == HETCCL_DONE:
            self.rails[peer] = list(rails)
            self.kept += tuple(rails)
            return {
                "address": hetccl_wire_peer_address(state), "cells": self.shared.shape.ncells,
                "cell_bytes": self.shared.shape.cell_bytes,
                "rkeys": [hetccl_wire_peer_rkey(state, i) for i in range(nrails)],
            }
        if status == HETCCL_ELENGTH:
            raise ValueError(f"peer: {self.describe(peer)}")
        raise memory_error(peer, rails, at)

    def attach(self, int peer, inbox):
        """The rails are connected: take in what the peer writes.

        inbox  : dict, what the peer's prepare() said; comes from the network
        Raises : ValueError (not such a dict, or the peer is not being connected), LibraryError, MemoryError
        """
        cdef hetccl_wire_peer_t* state = self.peer_of(peer)
        cdef Inbox it
        cdef uint32_t rkeys[HETCCL_RAILS]
        cdef int at = HETCCL_WIRE_NOWHERE, status = HETCCL_AGAIN
        rails = self.rails.get(peer, [])
        inbox_read(inbox, &it, rkeys, len(rails))
        with nogil:
            self.lock()
            if state.state == HETCCL_WIRE_CONNECTING and state.nrails > 0:
                status = hetccl_wire_peer_attach(state, it.address, &it.shape, rkeys, &at)
                if status == HETCCL_DONE:
                    self.add_live(peer)
                    hetccl_bell_ring(self.bell)
            self.unlock()
        if status == HETCCL_AGAIN:
            raise ValueError(f"peer: {self.describe(peer)}")
        if status == HETCCL_ELENGTH:
            raise ValueError(f"inbox: {it.shape.ncells} cells of {it.shape.cell_bytes} bytes; {SHAPES}")
        if status != HETCCL_DONE:
            raise memory_error(peer, rails, at)

    def go(self, int peer):
        """The peer takes in what comes: traffic to it may begin."""
        cdef hetccl_wire_peer_t* state = self.peer_of(peer)
        with nogil:
            self.lock()
            if state.state == HETCCL_WIRE_READY:
                hetccl_wire_peer_go(state)
                hetccl_bell_ring(self.bell)
            self.unlock()

    def retry(self, int peer):
        """The attempt to connect has failed: forget it. Traffic that waits makes the peer wanted again."""
        cdef hetccl_wire_peer_t* state
        cdef bint is_over
        if self.closed:
            return
        state = self.peer_of(peer)
        rails = self.rails.get(peer, [])
        with nogil:
            self.lock()
            is_over = self.closed or state.state >= HETCCL_WIRE_LOST
            if not is_over:
                self.drop_live(peer)
                hetccl_wire_peer_close(state)
                hetccl_bell_ring(self.bell)
            self.unlock()
        if is_over or not rails:
            return
        del self.rails[peer]
        self.kept = tuple(rail for rail in self.kept if rail not in rails)
        for rail in rails:
            rail.close()

    def refuse(self, int peer, str text not None):
        """The peer cannot be connected: its traffic fails, and describe() says this."""
        self.finish(peer, HETCCL_WIRE_FAILED, text)

    def lost(self, int peer, str text not None):
        """The peer has ended: after what has arrived, its traffic fails, and describe() says this."""
        self.finish(peer, HETCCL_WIRE_LOST, text)

    cdef int finish(self, int peer, int state, str text) except -1:
        cdef hetccl_wire_peer_t* peer_state
        cdef int polls = 0
        if self.closed:
            return 0
        peer_state = self.peer_of(peer)
        self.texts.setdefault(peer, text)
        with nogil:
            self.lock()
            while self.nlive > 0 and polls < LAST_POLLS and self.poll_ports() == HETCCL_MOVED:
                polls += 1
            self.drop_live(peer)
            hetccl_wire_peer_end(peer_state, state)
            hetccl_bell_ring(self.bell)
            self.unlock()
        return 0

    def failures(self):
        """[(peer, index of a rail, why)] of the rails that have failed since the last call."""
        cdef int peer, index
        found = bytearray(self.nranks)
        cdef unsigned char* marks = found
        if self.closed:
            return []
        with nogil:
            self.lock()
            for peer in range(self.nranks):
                marks[peer] = <unsigned char>self.peers[peer].untold
                self.peers[peer].untold = 0
            self.unlock()
        return [(peer, index, rail_text(rail))
                for peer in range(self.nranks) if found[peer]
                for index, rail in enumerate(self.rails.get(peer, [])) if found[peer] >> index & 1]

    def close_rail(self, int peer, int index):
        """End a rail of a peer, failed or not. Returns what has arrived, for the peer's resume(); JSON can carry it.

        Raises : ValueError (the peer has no such rail)
        """
        cdef hetccl_wire_peer_t* state = self.peer_of(peer)
        cdef hetccl_wire_arrived_t arrived
        cdef bint is_there = False
        with nogil:
            self.lock()
            is_there = state.state >= HETCCL_WIRE_READY and 0 <= index < state.nrails
            if is_there:
                hetccl_wire_peer_close_rail(state, index, &arrived)
            self.unlock()
        if not is_there:
            raise ValueError(f"index: rank {peer} has no rail {index}")
        return arrived_record(&arrived)

    def resume(self, int peer, int index, got, str text not None=""):
        """Both sides have closed the rail: repeat over the others what the peer has not got.

        got    : dict, what the peer's close_rail() said; comes from the network
        text   : why the peer has closed it, for describe()
        Raises : ValueError (no such dict, no such rail). If no rail is left, the peer's traffic fails.
        """
        cdef hetccl_wire_peer_t* state = self.peer_of(peer)
        cdef hetccl_wire_arrived_t arrived
        cdef bint is_there = False
        arrived_read(got, &arrived)
        # Before the traffic can fail: whoever waits for it asks at once.
        self.texts[peer, index] = text
        with nogil:
            self.lock()
            is_there = state.state >= HETCCL_WIRE_READY and 0 <= index < state.nrails
            if is_there:
                hetccl_wire_peer_resume(state, index, &arrived)
                hetccl_wire_peer_poll(state)
                hetccl_bell_ring(self.bell)
            self.unlock()
        if not is_there:
            raise ValueError(f"index: rank {peer} has no rail {index}")

    def describe(self, int peer):
        """What there is of a connection, or what became of it, in words, with the fault of each rail."""
        cdef int state = self.peers[peer].state
        who = f"rank {peer} on {self.hosts[peer]}" if self.hosts else f"rank {peer}"
        rails = self.rails.get(peer, [])
        if state == HETCCL_WIRE_FAILED and not rails:
            return f"{who} cannot be reached: {self.texts[peer]}"
        if state >= HETCCL_WIRE_LOST:
            reasons = [self.texts[peer]] if peer in self.texts else []
            reasons += [rail_text(rail) if rail.fault() else self.texts.get((peer, index), "")
                        for index, rail in enumerate(rails)]
            return f"the connection to {who} was lost: {'; '.join(filter(None, reasons))}"
        if state < HETCCL_WIRE_READY:
            return f"{who} is not connected"
        return f"{who} is connected: {'; '.join(map(rail_text, rails))}"

    def connected(self):
        """Ranks of the peers that are connected."""
        return [peer for peer in range(self.nranks) if HETCCL_WIRE_READY <= self.peers[peer].state <= HETCCL_WIRE_UP]

    def direct(self, int peer, Runtime runtime not None, uintptr_t address, size_t nbytes, *, bint all_devices=False):
        """Whether a GPU's memory can go to a peer, and be received from it, without a copy.

        runtime     : _runtime.Runtime, whose memory it is    address, nbytes : of it
        all_devices : what is received may be read by other GPUs than its owner
        Returns     : (bool, str), why not; "" if it can. The answer holds as long as the allocation and the rails.
        Cost        : the first time for an allocation, its registration with each device; for a peer, a queue pair each
        """
        cdef hetccl_wire_peer_t* state = self.peer_of(peer)
        cdef int why, at = HETCCL_WIRE_NOWHERE
        cdef uint32_t flags = HETCCL_MSG_ALL_DEVICES if all_devices else 0
        rails = self.rails.get(peer, [])
        try:
            loops = [rail.loop() for rail in rails if rail.fault() == ""]
        except LibraryError as error:
            return False, f"the device has no queue pair to itself: {error}"
        self.kept += tuple({loop for loop in loops if loop is not None and loop not in self.kept})
        with nogil:
            self.lock()
            why = hetccl_wire_direct(state, runtime.table, address, nbytes, flags, &at)
            self.unlock()
        where = rails[at].describe() if at != HETCCL_WIRE_NOWHERE else ""
        return why == 0, direct_text(why, where) if why else ""

    def counters(self):
        """{peer: {what: writes or bytes}}, for tests; "rails": [(writes, bytes) of each]."""
        cdef hetccl_wire_counters_t c
        cdef int peer, i, nrails
        found = {}
        for peer in tuple(self.rails):
            with nogil:
                self.lock()
                nrails = self.peers[peer].nrails
                if nrails > 0:
                    c = self.peers[peer].tables.counters
                self.unlock()
            if nrails > 0:
                found[peer] = {
                    "eager": c.eager, "rts": c.rts, "cts": c.cts, "credits": c.credits, "direct_out": c.direct_out,
                    "staged_out": c.staged_out, "direct_in": c.direct_in, "landed_in": c.landed_in,
                    "gathered_out": c.gathered_out, "carried_in": c.carried_in, "flushes": c.flushes,
                    "read_backs": c.read_backs,
                    "rails": [(c.writes[i], c.bytes[i]) for i in range(nrails)],
                }
        return found

    def flush(self, double seconds):
        """Wait until all that was sent is in the peers' memory.

        Blocks  : at most so long
        Returns : bool, whether it is
        Raises  : what a signal's handler raises
        """
        cdef bint idle
        until = time.monotonic() + seconds
        while not self.closed:
            with nogil:
                self.lock()
                self.poll()
                idle = self.is_idle()
                self.unlock()
            if idle or time.monotonic() >= until:
                return idle
            PyErr_CheckSignals()
            time.sleep(FLUSH_SECONDS)
        return True

    def close(self):
        """End all connections, then give back memory, rails, ports and descriptors; idempotent.

        Nobody may poll any more. In the child of a fork it does nothing.
        """
        if self.closed or getpid() != self.owner_pid:
            return
        self.disown()
        with nogil:
            self.lock()
            self.give_back()
            self.unlock()
        for rail in self.kept:
            rail.close()
        for port in self.ports:
            port.close()
        self.rails, self.kept, self.ports = {}, (), []
        fd, self.wake_fd = self.wake_fd, -1
        os.close(fd)

    def forget(self):
        """In the child of a fork: close the descriptors that would keep the parent's ports alive."""
        hetccl_wire_watch_forget(&self.watch)
        self.closed = True
        for end in (*self.kept, *self.ports):
            end.forget()


cdef str rail_text(Rail rail):
    where, fault = rail.describe(), rail.fault()
    return f"{where}: {fault}" if fault else where


cdef memory_error(int peer, rails, int at):
    """The error for memory that cannot be had (at: NOWHERE), or that a rail cannot register."""
    if at == HETCCL_WIRE_NOWHERE:
        return MemoryError(f"memory for the connection to rank {peer}")
    return LibraryError(f"memory for the connection to rank {peer} cannot be registered: {rail_text(rails[at])}. "
                        f"{memlock_advice()}", peer=peer)
