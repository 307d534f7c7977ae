"""Layer L3: messages in GPU memory in a communicator of several islands.

A message has a *berth*: a ring of pinned pieces of its own, from its start until the engine and the stream are done
with it, so that no message waits for another one's memory, nor a collective. The engine has it from the call on
(_ferry); its copies are queued when it is waited for, or another call comes, together with those of all messages that
the rank has started: portion by portion, so that, even in one queue of the hardware, no wait depends on what is
queued behind it. Hence their order by bytes: see precedes().

Locks as in _crossing.
"""

import time

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from hetccl._crossing cimport SMALLEST_PIECE, WORDS_BYTES, crossing_open, hetccl_pinned_alloc, hetccl_pinned_free
from hetccl._ferry cimport LONGEST_WHOLE
from hetccl._marks cimport mark_await
from hetccl._passage cimport (
    HETCCL_RING_PIECES, hetccl_piece_arrive, hetccl_ring_gate, hetccl_ring_piece_t, hetccl_ring_serial,
)
from hetccl._runtime cimport hetccl_runtime_t
from hetccl._shm cimport HETCCL_REASON_LEFT

from hetccl._calls import CALLS
from hetccl.errors import CommTimeout, HetcclError

cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1

cdef enum:
    # A message has about so many portions, if these are neither below nor above such lengths.
    PORTIONS = 32
    PORTION_BYTES = 8388608
    LONGEST_PORTION = 33554432
    PAGE_BYTES = 4096
    # From so many berths on, a blocking call waits for one.
    BERTHS = 64
    # With more pinned memory, berths that are not in use lose theirs.
    KEPT_BYTES = 536870912

# Between two looks for a free berth.
BERTH_S = 1e-4

cdef int CONNECT_CALL = len(CALLS) - 1


cdef MessageCrossing crossing_new(Executor executor, Runtime runtime, int device):
    cdef MessageCrossing crossing = MessageCrossing.__new__(MessageCrossing)
    crossing_open(crossing, executor, runtime, device)
    return crossing


cdef class MessageCrossing(Crossing):
    """Adds messages to a Crossing."""

    cdef int berth(self, Transit* transit, size_t nbytes, void* stream, int nsharing, bint waits, str call) except -1:
        cdef Berth* berth
        cdef void* saved = NULL
        cdef int i
        transit.nbytes = nbytes
        transit.portion = portion_of(nbytes, nsharing)
        transit.nportions = (nbytes + transit.portion - 1) // transit.portion
        transit.queued = transit.open_length = False
        transit.ring = NULL
        if waits:
            self.await_berth(call)
        self.lock(call)
        try:
            self.usable(call)
            self.runtime.check(self.gpu.enter(self.device, &saved), "enter")
            try:
                self.refuse_capture(stream, call)
                if nbytes == 0:
                    return 0
                berth = self.find(transit.portion)
                if berth == NULL:
                    berth = self.build()
                self.make_berth_room(berth, min(transit.nportions, <int64_t>HETCCL_RING_PIECES), transit.portion)
            finally:
                self.gpu.leave(saved)
            for i in range(HETCCL_RING_PIECES):
                transit.gates[i] = hetccl_ring_gate(&berth.ring, i)
            transit.ring, transit.first = &berth.ring, berth.ring.ntaken
            berth.ring.ntaken += (transit.nportions + HETCCL_RING_PIECES - 1) // HETCCL_RING_PIECES * HETCCL_RING_PIECES
            berth.pending = berth.ring.taken = True
        finally:
            self.unlock()
        return 0

    cdef void let_go(self, Transit* transit) noexcept:
        if transit.ring != NULL:
            (<Berth*>transit.ring).pending = False

    cdef int await_berth(self, str call) except -1:
        cdef Berth* berth
        cdef void* saved = NULL
        cdef double until = time.monotonic() + self.timeout_s
        while self.nberths >= BERTHS:
            self.usable(call)
            self.runtime.check(self.gpu.enter(self.device, &saved), "enter")
            berth = self.berths
            while berth != NULL and not self.is_free(berth):
                berth = berth.next
            self.gpu.leave(saved)
            if berth != NULL:
                return 0
            PyErr_CheckSignals()
            if time.monotonic() > until:
                raise CommTimeout(f"{call}: {self.nberths} messages in GPU memory are under way, and none of them has "
                                  f"ended in {self.timeout_s:g} s (HETCCL_TIMEOUT)", call=call, rank=self.rank)
            time.sleep(BERTH_S)
        return 0

    cdef bint is_free(self, Berth* berth) noexcept:
        return not berth.pending and not berth.ring.taken and self.gpu.event_query(berth.event) == 0

    cdef Berth* find(self, size_t nbytes) except? NULL:
        """A berth that is not in use: the smallest that has room, else any; NULL: there is none."""
        cdef Berth* berth = self.berths
        cdef Berth* found = NULL
        cdef size_t room, best = 0
        while berth != NULL:
            room = berth.ring.pieces[0].nbytes
            if (found == NULL or room >= nbytes and (best < nbytes or room < best)) and self.is_free(berth):
                found, best = berth, room
            berth = berth.next
        return found

    cdef Berth* build(self) except NULL:
        cdef Berth* berth = <Berth*>calloc(1, sizeof(Berth))
        cdef int code = 0
        if berth == NULL:
            raise MemoryError("a message's ring")
        try:
            berth.words = hetccl_pinned_alloc(self.gpu, WORDS_BYTES, &code)
            self.runtime.check(code, "host_register")
            self.open_ring(&berth.ring, berth.words)
            self.runtime.check(self.gpu.event_create(&berth.event), "event_create")
        except BaseException:
            hetccl_pinned_free(self.gpu, berth.words, WORDS_BYTES)
            free(berth)
            raise
        berth.next = self.berths
        self.berths = berth
        self.nberths += 1
        self.executor.serve_message(&berth.ring)
        return berth

    cdef int make_berth_room(self, Berth* berth, int npieces, size_t nbytes) except -1:
        cdef hetccl_ring_piece_t* piece
        cdef Berth* other = self.berths
        cdef size_t room = SMALLEST_PIECE
        cdef void* memory
        cdef int i, code = 0
        while room < nbytes:
            room *= 2
        while self.pinned_nbytes > KEPT_BYTES and other != NULL:
            if other != berth and self.is_free(other):
                self.empty(other)
            other = other.next
        for i in range(npieces):
            piece = &berth.ring.pieces[i]
            if piece.nbytes >= nbytes:
                continue
            with nogil:
                memory = hetccl_pinned_alloc(self.gpu, room, &code)
            self.runtime.check(code, "host_register")
            hetccl_pinned_free(self.gpu, piece.memory, piece.nbytes)
            self.pinned_nbytes += room - piece.nbytes
            piece.memory, piece.nbytes = <uint8_t*>memory, room
        return 0

    cdef void empty(self, Berth* berth) noexcept:
        cdef hetccl_ring_piece_t* piece
        cdef int i
        for i in range(HETCCL_RING_PIECES):
            piece = &berth.ring.pieces[i]
            hetccl_pinned_free(self.gpu, piece.memory, piece.nbytes)
            self.pinned_nbytes -= piece.nbytes
            piece.memory, piece.nbytes = NULL, 0

    cdef int queue_hauls(self, Haul* hauls, int nhauls, str call) except -1:
        cdef const char* step = NULL
        cdef void* saved = NULL
        cdef int code = 0, i
        self.lock(call)
        try:
            self.usable(call)
            self.runtime.check(self.gpu.enter(self.device, &saved), "enter")
            try:
                for i in range(nhauls):
                    hauls[i].transit.queued = True
                with nogil:
                    code = self.queue_all(hauls, nhauls, &step)
                for i in range(nhauls):
                    self.let_go(hauls[i].transit)
                if code != 0:
                    # The peers have been told of the message.
                    self.executor.give_up(HETCCL_REASON_LEFT, self.rank)
                    self.runtime.check(code, step.decode())
            finally:
                self.gpu.leave(saved)
        finally:
            self.unlock()
        return 0

    cdef int queue_all(self, Haul* hauls, int nhauls, const char** step) noexcept nogil:
        """Returns the runtime's code, and the function that answered it."""
        cdef Haul* next
        cdef int code = 0, i
        for i in range(nhauls):
            if code == 0:
                code = self.fork(&hauls[i], hauls[i - 1].stream if hauls[i].follows else NULL, step)
        while code == 0:
            next = NULL
            for i in range(nhauls):
                if hauls[i].nth < hauls[i].transit.nportions and (next == NULL or precedes(&hauls[i], next)):
                    next = &hauls[i]
            if next == NULL:
                return 0
            code = self.queue_next(next, step)
            next.nth += 1
            if code == 0 and next.nth == next.transit.nportions:
                code = self.join(next, step)
        return code

    cdef int fork(self, Haul* haul, void* stream, const char** step) noexcept nogil:
        """Choose the stream of the copies. One portion has nothing to overlap with."""
        cdef Berth* berth = <Berth*>haul.transit.ring
        cdef int code = 0
        haul.stream = haul.user
        if haul.transit.nportions <= 1:
            return 0
        if stream != NULL:
            haul.stream = stream
            return 0
        if berth.stream == NULL:
            step[0] = "stream_create"
            code = self.gpu.stream_create(&berth.stream)
        haul.stream = berth.stream
        if code == 0:
            step[0] = "event_record"
            code = self.gpu.event_record(berth.event, haul.user)
        if code == 0:
            step[0] = "stream_wait_event"
            code = self.gpu.stream_wait_event(haul.stream, berth.event)
        return code

    cdef int queue_next(self, Haul* haul, const char** step) noexcept nogil:
        cdef const hetccl_runtime_t* gpu = self.gpu
        cdef Transit* transit = haul.transit
        cdef size_t at = haul.nth * transit.portion, nbytes = min(transit.portion, transit.nbytes - at)
        cdef hetccl_ring_piece_t* piece = &transit.ring.pieces[haul.nth % HETCCL_RING_PIECES]
        cdef bint waits = not transit.sending or haul.nth >= HETCCL_RING_PIECES
        cdef uint32_t serial = hetccl_ring_serial(transit.first + haul.nth) - transit.sending
        cdef int code = 0
        if waits:
            # For what has come; or until the portion that was here has been taken.
            step[0] = "stream_wait32"
            code = gpu.stream_wait32(haul.stream, piece.word_on_device, serial)
        if code == 0:
            step[0] = "copy_async"
            if transit.sending:
                code = gpu.copy_async(piece.memory, haul.ptr + at, nbytes, haul.stream)
            else:
                code = gpu.copy_async(haul.ptr + at, piece.memory, nbytes, haul.stream)
        if code == 0 and (transit.sending or haul.nth + HETCCL_RING_PIECES < transit.nportions):
            step[0] = "host_function"
            code = gpu.host_function(haul.stream, hetccl_piece_arrive, piece)
        return code

    cdef int join(self, Haul* haul, const char** step) noexcept nogil:
        cdef Berth* berth = <Berth*>haul.transit.ring
        cdef int code
        step[0] = "event_record"
        code = self.gpu.event_record(berth.event, haul.stream)
        if code == 0 and haul.stream != haul.user:
            step[0] = "stream_wait_event"
            code = self.gpu.stream_wait_event(haul.user, berth.event)
        return code

    cdef int await_streams(self) except -1:
        cdef Berth* berth = self.berths
        Crossing.await_streams(self)
        while berth != NULL:
            try:
                if not self.lost:
                    mark_await(self, berth.event, CONNECT_CALL)
            except HetcclError:
                if not self.lost:
                    raise
            berth = berth.next
        return 0

    cdef bint is_idle(self) noexcept:
        cdef Berth* berth = self.berths
        cdef void* saved = NULL
        cdef bint idle = Crossing.is_idle(self)
        if not idle or self.gpu.enter(self.device, &saved) != 0:
            return False
        while berth != NULL:
            idle = idle and self.gpu.event_query(berth.event) == 0
            berth = berth.next
        self.gpu.leave(saved)
        return idle

    cdef void give_back(self) noexcept:
        cdef Berth* berth
        cdef void* saved = NULL
        if self.gpu.enter(self.device, &saved) != 0:
            return
        while self.berths != NULL:
            berth = self.berths
            self.berths = berth.next
            self.empty(berth)
            hetccl_pinned_free(self.gpu, berth.words, WORDS_BYTES)
            self.gpu.event_destroy(berth.event)
            if berth.stream != NULL:
                self.gpu.stream_destroy(berth.stream)
            free(berth)
        self.gpu.leave(saved)
        Crossing.give_back(self)


cdef size_t portion_of(size_t nbytes, int nsharing) noexcept nogil:
    """Bytes of a portion. Each end decides for itself. A message that comes whole has a portion that holds it."""
    cdef size_t portion = min(max(<size_t>PORTION_BYTES, nbytes // PORTIONS), <size_t>LONGEST_PORTION)
    portion = max(portion // nsharing, <size_t>LONGEST_WHOLE)
    portion = (portion + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES
    return max(<size_t>1, min(portion, nbytes))


cdef bint precedes(const Haul* one, const Haul* other) noexcept nogil:
    """Whether its next portion must be queued before the other's.

    A portion that is sent has the place of its first byte, one that is received that of its end and two portions more.
    What a copy waits for has a lower place on whatever rank: a received portion waits for its bytes to be sent; one
    that is sent waits until the fourth before it has been taken, and thus until all have been copied out that end four
    of the receiver's portions before that one's end. So there is no circle.
    """
    cdef uint64_t first = place_of(one), second = place_of(other)
    return first < second or first == second and one.transit.sending and not other.transit.sending


cdef inline uint64_t place_of(const Haul* haul) noexcept nogil:
    return (haul.nth + (0 if haul.transit.sending else 3)) * haul.transit.portion
