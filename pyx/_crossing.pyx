"""Layer L3: calls on GPU buffers in a communicator of several islands.

The call queues all of the GPU's work at once and returns: copies of its input to pinned memory, portion by portion,
each followed by a host function that opens the portion's gate; and copies of its result, each behind a wait for the
word that the engine sets. The engine's thread moves the data between the ranks (_passage). It launches nothing.

One queue of the hardware may serve all streams (CUDA_DEVICE_MAX_CONNECTIONS=1), and a runtime may wait for each
command (CUDA_LAUNCH_BLOCKING=1): so the engine has the call before a stream waits for it, and no wait depends on what
is queued after it. Only one thread queues at a time, which holds the mutex of WatchedComm. The GIL is released for
the runtime. The engine's mutex is never held here.
"""

cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from hetccl._agree cimport check_error
from hetccl._layout cimport Part
from hetccl._marks cimport mark_await
from hetccl._passage cimport (
    HETCCL_RING_PIECES, NO_UNIT, Passage, hetccl_piece_arrive, hetccl_portion_begin, hetccl_portion_length,
    hetccl_portions, hetccl_ring_mute, hetccl_ring_piece, hetccl_ring_release, hetccl_ring_serial,
)
from hetccl._row cimport COLLECTIVE_IDLE, COLLECTIVE_REFUSED
from hetccl._shm cimport HETCCL_REASON_LEFT

from hetccl._calls import CALLS
from hetccl.errors import CommClosed, HetcclError

cdef enum:
    # The results of so many portions are queued behind their inputs: a piece's last use must be queued whole before its
    # next.
    DEPTH = HETCCL_RING_PIECES - 1
    # What a stream waits for has a cache line of its own.
    WORD_STRIDE = 64
    # The engine's own time-out comes before that of a wait for the GPU: it can say which ranks are missing.
    LATER_NS = 1000000000

cdef int CONNECT_CALL = len(CALLS) - 1


cdef int crossing_open(Crossing crossing, Executor executor, Runtime runtime, int device) except -1:
    crossing.executor = executor
    crossing.settle_on(runtime, device)
    crossing.timeout_ns = executor.timeout_ns + LATER_NS
    crossing.rank = executor.rank
    crossing.open()
    return 0


# The cycle executor - requests - crossing is for the executor to break, which ends what the ring is used by.
@cython.no_gc_clear
cdef class Crossing(WatchedComm):
    """This rank's GPU in a communicator of several islands, its streams there, and its ring of pinned memory."""

    def __dealloc__(self):
        if self.ring == NULL or self.is_inherited():
            return
        self.executor.serve(NULL, 0)
        hetccl_ring_release(self.ring)
        hetccl_ring_mute(self.ring)
        if self.is_idle():
            self.give_back()

    cdef int open(self) except -1:
        """Make streams, events and words; all else is made when a call needs it."""
        cdef const hetccl_runtime_t* gpu = self.gpu
        cdef hetccl_ring_piece_t* piece
        cdef void* saved = NULL
        cdef int code = 0, i
        self.ring = <hetccl_ring_t*>calloc(1, sizeof(hetccl_ring_t))
        if self.ring == NULL:
            raise MemoryError("the ring of a communicator's GPU")
        self.runtime.check(gpu.enter(self.device, &saved), "enter")
        try:
            for place in range(3):
                self.runtime.check(gpu.stream_create((&self.own.in_) + <int>place), "stream_create")
            self.runtime.check(gpu.event_create(&self.begun), "event_create")
            self.runtime.check(gpu.event_create(&self.ended), "event_create")
            self.words = hetccl_pinned_alloc(gpu, WORDS_BYTES, &code)
            self.runtime.check(code, "host_register")
            self.open_ring(self.ring, self.words)
            for i in range(HETCCL_RING_PIECES):
                piece = &self.ring.pieces[i]
                self.runtime.check(gpu.event_create(&piece.arrived), "event_create")
                self.runtime.check(gpu.event_create(&piece.gone), "event_create")
            # A runtime or a device without waits says so here, where nothing is under way.
            self.runtime.check(gpu.stream_wait32(self.own.out, self.ring.pieces[0].word_on_device, 0), "stream_wait32")
        finally:
            gpu.leave(saved)
        self.handle = <void*>self.ring
        self.executor.serve(self.ring, self.executor.timeout_ns)
        return 0

    cdef int open_ring(self, hetccl_ring_t* ring, void* words) except -1:
        """words : pinned memory for those of the ring's pieces, WORDS_BYTES"""
        cdef hetccl_ring_piece_t* piece
        cdef int i
        ring.lost, ring.bell = &self.lost, self.executor.mine
        for i in range(HETCCL_RING_PIECES):
            piece = &ring.pieces[i]
            piece.ring = ring
            piece.word = <uint32_t*>(<uint8_t*>words + i * WORD_STRIDE)
            self.runtime.check(self.gpu.host_address(piece.word, &piece.word_on_device), "host_address")
        return 0

    cdef int usable(self, str call) except -1:
        if self.lost or self.handle == NULL:
            if self.executor.board.fault() is not None:
                self.executor.raise_fault(CALLS.index(call) if call in CALLS else CONNECT_CALL, NULL)
            raise CommClosed(f"{call}: the communicator has been freed", call=call)
        return WatchedComm.usable(self, call)

    cdef int begin(self, Work* work, void* stream) except -1:
        cdef Collective* collective = work.collective
        cdef Passage* passage = collective.passage
        cdef const char* step = NULL
        cdef void* saved = NULL
        cdef int code = 0
        name = CALLS[work.call]
        self.lock(name)
        try:
            self.usable(name)
            self.runtime.check(self.gpu.enter(self.device, &saved), "enter")
            try:
                self.refuse_capture(stream, name)
                passage.nportions = hetccl_portions(collective.count, collective.portion)
                self.make_room(collective)
                passage.first = self.ring.ntaken
                self.submit(work)
                self.ring.ntaken += passage.nportions
                with nogil:
                    code = self.queue(collective, stream, &step)
                if code != 0:
                    # The peers have been told of the call.
                    self.executor.give_up(HETCCL_REASON_LEFT, self.rank)
                    self.runtime.check(code, step.decode())
            finally:
                self.gpu.leave(saved)
        finally:
            self.unlock()
        return 0

    cdef int refuse_capture(self, void* stream, str call) except -1:
        cdef int capturing = 0
        if self.gpu.stream_capturing(stream, &capturing) == 0 and capturing:
            raise ValueError(f"stream: it is being captured into a graph, and {call} between islands is the engine's "
                             "work, which a replay would not repeat; call it outside the graph")
        return 0

    cdef int submit(self, Work* work) except -1:
        """Give the call to the engine, and see that its thread is there."""
        work.collective.state = COLLECTIVE_IDLE
        self.executor.start(work, True)
        try:
            self.executor.detach()
        except BaseException:
            self.executor.give_up(HETCCL_REASON_LEFT, self.rank)
            raise
        return self.compare(work) if work.collective.check != NULL else 0

    cdef int compare(self, Work* work) except -1:
        """HETCCL_CHECK: wait until the ranks' calls have been compared, before a stream waits for anything."""
        work.compared_only = True
        try:
            self.executor.wait(work)
        finally:
            work.compared_only = False
        if work.collective.state == COLLECTIVE_REFUSED:
            raise check_error(work.collective.check, self.executor.nranks, self.rank)
        return 0

    cdef int make_room(self, Collective* collective) except -1:
        """Let the pieces that the call will use be large enough."""
        cdef Passage* passage = collective.passage
        cdef int nunits = max(passage.nin, passage.nout) if passage.alias else passage.nin + passage.nout
        cdef size_t nbytes = SMALLEST_PIECE
        cdef hetccl_ring_piece_t* piece
        cdef int64_t i
        cdef int64_t longest = collective.portion * hetccl_portion_length(passage.nportions - 1)
        while nbytes < <size_t>(nunits * min(longest, collective.count)) * collective.itemsize:
            nbytes *= 2
        for i in range(min(passage.nportions, <int64_t>HETCCL_RING_PIECES)):
            piece = hetccl_ring_piece(self.ring, self.ring.ntaken + i)
            if piece.nbytes < nbytes:
                self.enlarge(piece, nbytes)
        return 0

    cdef int enlarge(self, hetccl_ring_piece_t* piece, size_t nbytes) except -1:
        cdef Outgrown* outgrown = <Outgrown*>calloc(1, sizeof(Outgrown))
        cdef void* memory
        cdef int code = 0
        if outgrown == NULL:
            raise MemoryError("a piece of pinned memory")
        with nogil:
            memory = hetccl_pinned_alloc(self.gpu, nbytes, &code)
        if code != 0:
            free(outgrown)
            self.runtime.check(code, "host_register")
        outgrown.next, outgrown.memory, outgrown.nbytes = self.outgrown, piece.memory, piece.nbytes
        self.outgrown = outgrown
        piece.memory, piece.nbytes = <uint8_t*>memory, nbytes
        return 0

    cdef int queue(self, Collective* collective, void* stream, const char** step) noexcept nogil:
        """Queue the copies of all portions. Returns the runtime's code, and the function that answered it."""
        cdef const hetccl_runtime_t* gpu = self.gpu
        cdef Passage* passage = collective.passage
        cdef int64_t n = passage.nportions, i
        cdef Lanes lanes = self.own
        cdef int code = 0
        lanes.user = stream
        if n == 1:
            # One portion has nothing to overlap with; but one that only receives need not wait for the caller's stream.
            lanes.out = stream
            if passage.nin:
                lanes.in_ = stream
            lanes.bell = lanes.in_
        elif n > 1:
            step[0] = "event_record"
            code = gpu.event_record(self.begun, stream)
            if code == 0:
                step[0] = "stream_wait_event"
                code = gpu.stream_wait_event(lanes.out, self.begun)
            if code == 0 and passage.nin:
                code = gpu.stream_wait_event(lanes.in_, self.begun)
        for i in range(n + DEPTH if n > 0 else 0):
            if code == 0 and i < n:
                code = self.queue_in(collective, i, &lanes, step)
            if code == 0 and DEPTH <= i < n + DEPTH:
                code = self.queue_out(collective, i - DEPTH, &lanes, step)
        if code == 0 and n > 1:
            step[0] = "event_record"
            code = gpu.event_record(self.ended, lanes.out)
            if code == 0:
                step[0] = "stream_wait_event"
                code = gpu.stream_wait_event(stream, self.ended)
        return code

    cdef int queue_in(self, Collective* collective, int64_t portion, const Lanes* lanes,
                      const char** step) noexcept nogil:
        cdef const hetccl_runtime_t* gpu = self.gpu
        cdef Passage* passage = collective.passage
        cdef hetccl_ring_piece_t* piece = hetccl_ring_piece(self.ring, passage.first + portion)
        cdef int code = 0
        if hetccl_ring_serial(passage.first + portion) > 1:
            step[0] = "stream_wait_event"
            code = gpu.stream_wait_event(lanes.in_, piece.gone)
        if code == 0:
            step[0] = "copy_async"
            code = copy_units(gpu, collective, portion, True, piece.memory, lanes.in_)
        if code == 0 and lanes.bell != lanes.in_:
            step[0] = "event_record"
            code = gpu.event_record(piece.arrived, lanes.in_)
            if code == 0:
                step[0] = "stream_wait_event"
                code = gpu.stream_wait_event(lanes.bell, piece.arrived)
        if code == 0:
            step[0] = "host_function"
            code = gpu.host_function(lanes.bell, hetccl_piece_arrive, piece)
        return code

    cdef int queue_out(self, Collective* collective, int64_t portion, const Lanes* lanes,
                       const char** step) noexcept nogil:
        cdef const hetccl_runtime_t* gpu = self.gpu
        cdef Passage* passage = collective.passage
        cdef hetccl_ring_piece_t* piece = hetccl_ring_piece(self.ring, passage.first + portion)
        cdef int64_t nin = 0 if passage.alias else passage.nin
        cdef int code
        step[0] = "stream_wait32"
        code = gpu.stream_wait32(lanes.out, piece.word_on_device, hetccl_ring_serial(passage.first + portion))
        if code == 0 and passage.returns:
            step[0] = "copy_async"
            code = copy_units(gpu, collective, portion, False,
                              piece.memory + nin * portion_bytes(collective, portion), lanes.out)
        if code == 0:
            step[0] = "event_record"
            code = gpu.event_record(piece.gone, lanes.out)
        return code

    cdef int await_streams(self) except -1:
        """Wait until the streams are past all calls, with the time-out; those of a broken communicator are soon."""
        cdef int i
        for i in range(HETCCL_RING_PIECES):
            try:
                if self.ring != NULL and self.ring.ntaken > <uint64_t>i and not self.lost:
                    mark_await(self, self.ring.pieces[i].gone, CONNECT_CALL)
            except HetcclError:
                if not self.lost:
                    raise
        return 0

    def close(self):
        """End all use of the ring; idempotent. The engine has stopped."""
        if self.ring == NULL or self.handle == NULL:
            return
        self.handle = NULL
        self.executor.serve(NULL, 0)
        hetccl_ring_release(self.ring)
        with nogil:
            hetccl_ring_mute(self.ring)
        if self.is_idle():
            self.give_back()

    cdef bint is_idle(self) noexcept:
        """Whether no stream has anything left to do with the ring."""
        cdef void* saved = NULL
        cdef bint idle = True
        cdef int i
        if self.gpu.enter(self.device, &saved) != 0:
            return False
        for i in range(HETCCL_RING_PIECES):
            if self.ring.ntaken > <uint64_t>i and self.gpu.event_query(self.ring.pieces[i].gone) != 0:
                idle = False
        self.gpu.leave(saved)
        return idle

    cdef void give_back(self) noexcept:
        """Free all that the ring has."""
        cdef const hetccl_runtime_t* gpu = self.gpu
        cdef hetccl_ring_piece_t* piece
        cdef Outgrown* outgrown
        cdef void* saved = NULL
        cdef int i
        if gpu.enter(self.device, &saved) != 0:
            return
        while self.outgrown != NULL:
            outgrown = self.outgrown
            self.outgrown = outgrown.next
            hetccl_pinned_free(gpu, outgrown.memory, outgrown.nbytes)
            free(outgrown)
        for i in range(HETCCL_RING_PIECES):
            piece = &self.ring.pieces[i]
            hetccl_pinned_free(gpu, piece.memory, piece.nbytes)
            destroy_event(gpu, piece.arrived)
            destroy_event(gpu, piece.gone)
        hetccl_pinned_free(gpu, self.words, WORDS_BYTES)
        for i in range(3):
            if (&self.own.in_)[i] != NULL:
                gpu.stream_destroy((&self.own.in_)[i])
        destroy_event(gpu, self.begun)
        destroy_event(gpu, self.ended)
        gpu.leave(saved)
        free(self.ring)
        self.ring = NULL


cdef void destroy_event(const hetccl_runtime_t* gpu, void* event) noexcept nogil:
    if event != NULL:
        gpu.event_destroy(event)


cdef inline int64_t portion_bytes(Collective* collective, int64_t portion) noexcept nogil:
    """Of a unit in a piece."""
    return hetccl_portion_length(portion) * collective.portion * <int64_t>collective.itemsize


cdef int copy_units(const hetccl_runtime_t* gpu, Collective* collective, int64_t portion, bint inward, uint8_t* place,
                    void* stream) noexcept nogil:
    """Copy a portion's units of IN to a piece, where they lie one after another at `place`, or those of OUT back."""
    cdef Passage* passage = collective.passage
    cdef const Part* parts = collective.in_parts if inward else collective.out_parts
    cdef uint8_t* base = collective.source if inward else collective.target
    cdef int64_t itemsize = collective.itemsize
    cdef int64_t before = hetccl_portion_begin(portion) * collective.portion * itemsize
    cdef int64_t stride = portion_bytes(collective, portion), nbytes
    cdef int nunits = passage.nin if inward else passage.nout
    cdef uint8_t* there
    cdef int code = 0, i
    if parts == NULL and passage.nportions == 1 and (inward or passage.own == NO_UNIT):
        # Units that are alike and whole lie one after another on both sides.
        return copy(gpu, base, place, nunits * stride, inward, stream)
    for i in range(nunits):
        if parts != NULL:
            there, nbytes = parts[i].ptr + before, parts[i].nbytes - before
        else:
            there, nbytes = base + i * collective.count * itemsize + before, collective.count * itemsize - before
        if code == 0 and (inward or i != passage.own):
            code = copy(gpu, there, place + i * stride, min(nbytes, stride), inward, stream)
    return code


cdef inline int copy(const hetccl_runtime_t* gpu, uint8_t* there, uint8_t* here, int64_t nbytes, bint inward,
                     void* stream) noexcept nogil:
    if nbytes <= 0:
        return 0
    if inward:
        return gpu.copy_async(here, there, nbytes, stream)
    return gpu.copy_async(there, here, nbytes, stream)
