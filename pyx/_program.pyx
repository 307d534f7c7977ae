"""Layer L3: a plan compiled for one rank, and the state machine that runs it.

run_poll() makes what progress it can and returns; it never waits, so that a caller's thread or a progress thread can
drive it. A step starts when the steps in its `after` are complete; messages enter and leave each link in the order of
the program, which is what matches them with the peer's. No GIL, no lock: one thread at a time.
"""

from libc.stdint cimport INT64_MAX
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from hetccl._layout cimport hetccl_layout_copy, hetccl_layout_copy_past
from hetccl._shm cimport (
    HETCCL_AGAIN, HETCCL_DONE, HETCCL_EPEER, HETCCL_ESYSTEM, HETCCL_MOVED, HETCCL_MSG_PAST_CACHE, HETCCL_MSG_POSTED,
)


cdef extern from *:
    """
    #include <errno.h>
    #include <stdint.h>
    /* floor(count * num / den), exact for every 64-bit count. */
    static inline int64_t hetccl_part(int64_t count, int64_t num, int64_t den) {
        if (num == 0) return 0;
        if (num == den) return count;
        if ((uint64_t)count < (uint64_t)1 << 32 && (uint64_t)num < (uint64_t)1 << 31) return count * num / den;
        return (int64_t)((__int128)count * num / den);
    }
    """
    int64_t hetccl_part(int64_t count, int64_t num, int64_t den) noexcept nogil
    int ESRCH


cdef enum:
    SEND = 0
    RECV = 1
    REDUCE = 2
    COPY = 3

cdef enum:
    WAITING = 0
    STARTED = 1
    COMPLETE = 2

# A Reduce returns to the other steps after so many chunks of FETCH_BYTES: about 1 ms.
cdef enum:
    CHUNKS_PER_POLL = 64

# Places in Run.base (hetccl.plan.Buf).
cdef enum:
    IN = 0
    OUT = 1
    SCRATCH = 2

KINDS = {"Send": SEND, "Recv": RECV, "Reduce": REDUCE, "Copy": COPY}


cdef class Program:
    """One rank's steps of a plan, as C structs.

    plan : hetccl.plan.Plan     rank : whose part
    Raises: ValueError for a step that the engine cannot run (a vendor's)
    """

    def __cinit__(self, plan, int rank):
        self.plan = plan
        program = plan.program(rank)
        self.nsteps = len(program.steps)
        self.scratch_units = program.scratch
        self.steps = <Step*>calloc(max(self.nsteps, 1), sizeof(Step))
        self.states = <uint8_t*>calloc(max(self.nsteps, 1), 1)
        if self.steps == NULL or self.states == NULL:
            raise MemoryError()
        turns = {}
        for index, step in enumerate(program.steps):
            self.compile_step(&self.steps[index], step, turns, program.measures)
        self.messages = <hetccl_msg_t*>calloc(max(self.nmessages, 1), sizeof(hetccl_msg_t))
        if self.messages == NULL:
            raise MemoryError()

    def __dealloc__(self):
        cdef int i
        if self.steps != NULL:
            for i in range(self.nsteps):
                free(self.steps[i].sources)
                free(self.steps[i].after)
        free(self.steps)
        free(self.states)
        free(self.messages)

    cdef int compile_step(self, Step* out, step, dict turns, tuple measures) except -1:
        kind = type(step).__name__
        if kind not in KINDS:
            raise ValueError(f"the engine runs {', '.join(KINDS)}; the plan {self.plan.algorithm} has a {kind} step")
        out.kind = KINDS[kind]
        out.message = self.nmessages
        out.block = place_of(step.block, measures)
        out.nafter = len(step.after)
        out.after = <int*>calloc(max(out.nafter, 1), sizeof(int))
        if out.after == NULL:
            raise MemoryError()
        for i, earlier in enumerate(step.after):
            out.after[i] = earlier
        if out.kind == COPY:
            out.source = place_of(step.source, measures)
        elif out.kind == REDUCE:
            self.compile_sources(out, step, turns, measures)
        else:
            out.peer = step.peer
            out.turn = next_turn(turns, out.kind == SEND, out.peer)
            self.nmessages += 1
        return 0

    cdef int compile_sources(self, Step* out, step, dict turns, tuple measures) except -1:
        out.final = step.final
        out.nsources = len(step.sources)
        out.sources = <Source*>calloc(out.nsources, sizeof(Source))
        if out.sources == NULL:
            raise MemoryError()
        peers = [source for source in step.sources if type(source).__name__ == "Peer"]
        if len(set(peers)) < len(peers):
            raise ValueError(f"the plan {self.plan.algorithm} reduces two messages of one peer in one step")
        self.max_sources = max(self.max_sources, out.nsources)
        self.nmessages += out.nsources
        for i, source in enumerate(step.sources):
            if type(source).__name__ == "Peer":
                out.sources[i].peer = source.rank
                out.sources[i].turn = next_turn(turns, False, source.rank)
            else:
                out.sources[i].peer = NOBODY
                out.sources[i].place = place_of(source, measures)
        return 0


cdef class Choice:
    """Compiled plans of one collective and root.

    plans : [(largest message in bytes, or None, hetccl.plan.Plan)], ascending
    """

    def __cinit__(self, plans, int rank):
        if len(plans) > MAX_CHOICES:
            raise ValueError(f"{len(plans)} algorithms for one collective; at most {MAX_CHOICES}")
        self.programs = [Program(plan, rank) for _, plan in plans]
        for i, (limit, _) in enumerate(plans):
            self.limit[i] = INT64_MAX if limit is None else limit

    cdef Program pick(self, int64_t nbytes):
        cdef int i = 0
        while nbytes > self.limit[i]:
            i += 1
        return <Program>self.programs[i]


cdef int next_turn(dict turns, bint sends, int peer) except -1:
    turn = turns.get((sends, peer), 0)
    turns[sends, peer] = turn + 1
    return turn


cdef Place place_of(block, tuple measures) except *:
    cdef Place place
    place.buf = block.buf
    place.unit = block.unit
    place.measure = measures[block.unit] if block.buf == SCRATCH else 0
    place.lo_num, place.lo_den = block.lo.numerator, block.lo.denominator
    place.hi_num, place.hi_den = block.hi.numerator, block.hi.denominator
    return place


cdef inline const Part* place_part(Run* run, Place* place) noexcept nogil:
    """The part that a place lies in, or for SCRATCH the one that it is measured by; NULL where units are alike."""
    if place.buf == SCRATCH:
        return run.parts[IN] + place.measure if run.parts[IN] != NULL else NULL
    return run.parts[place.buf] + place.unit if run.parts[place.buf] != NULL else NULL


cdef inline int64_t place_count(Run* run, const Part* part) noexcept nogil:
    """Elements of a place's unit in this portion."""
    if part == NULL:
        return run.count
    return max(<int64_t>0, min(run.count, part.nbytes // <int64_t>run.itemsize - run.skip[IN]))


cdef inline void place_resolve(Run* run, Place* place, hetccl_msg_t* memory) noexcept nogil:
    """Fill a message's ptr, nbytes, layout and skip with a place's."""
    cdef const Part* part = place_part(run, place)
    cdef int64_t count = place_count(run, part)
    cdef int64_t lo = hetccl_part(count, place.lo_num, place.lo_den)
    cdef int64_t first = run.skip[place.buf] + lo
    memory.nbytes = <size_t>(hetccl_part(count, place.hi_num, place.hi_den) - lo) * run.itemsize
    memory.layout = NULL
    if part == NULL or place.buf == SCRATCH:
        memory.ptr = run.base[place.buf] + (place.unit * run.unit_stride[place.buf] + first) * <int64_t>run.itemsize
    elif part.layout == NULL:
        memory.ptr = part.ptr + first * <int64_t>run.itemsize
    else:
        memory.ptr, memory.layout, memory.skip = part.ptr, part.layout, <size_t>first * run.itemsize


cdef void run_reset(Run* run, Program program, int nranks) noexcept nogil:
    """Point the run at the program's first step. The caller has set everything else."""
    run.steps = program.steps
    run.states = program.states
    run.messages = program.messages
    run.nsteps = program.nsteps
    run.first = 0
    memset(program.states, WAITING, program.nsteps)
    memset(program.messages, 0, program.nmessages * sizeof(hetccl_msg_t))
    memset(run.sent, 0, nranks * sizeof(int))
    memset(run.received, 0, nranks * sizeof(int))


cdef int run_poll(void* work) noexcept nogil:
    """Advance every step that can move. HETCCL_DONE: all are complete; a negative value: `failure` says where."""
    cdef Run* run = <Run*>work
    cdef Step* step
    cdef bint moved = False
    cdef int i, status
    for i in range(run.first, run.nsteps):
        if run.states[i] == COMPLETE:
            run.first += run.first == i
            continue
        step = &run.steps[i]
        if run.states[i] == WAITING:
            if not is_free(run, step):
                continue
            start(run, step)
            run.states[i] = STARTED
        status = advance(run, step)
        if status == HETCCL_DONE:
            run.states[i] = COMPLETE
            run.first += run.first == i
            moved = True
        elif status == HETCCL_MOVED:
            moved = True
        elif status < 0:
            return status
    if run.first == run.nsteps:
        return HETCCL_DONE
    return HETCCL_MOVED if moved else HETCCL_AGAIN


cdef inline bint is_free(Run* run, Step* step) noexcept nogil:
    cdef int i
    for i in range(step.nafter):
        if run.states[step.after[i]] != COMPLETE:
            return False
    return True


cdef inline void start(Run* run, Step* step) noexcept nogil:
    cdef hetccl_msg_t* message = &run.messages[step.message]
    cdef hetccl_msg_t block
    cdef int i
    if step.kind == SEND or step.kind == RECV:
        place_resolve(run, &step.block, message)
        message.tag = run.tag
        if step.kind == RECV and step.block.buf == OUT and run.past_cache:
            message.flags = HETCCL_MSG_PAST_CACHE
    elif step.kind == REDUCE:
        place_resolve(run, &step.block, &block)
        for i in range(step.nsources):
            if step.sources[i].peer == NOBODY:
                place_resolve(run, &step.sources[i].place, &message[i])
            message[i].nbytes = block.nbytes
            message[i].tag = run.tag


cdef inline int advance(Run* run, Step* step) noexcept nogil:
    if step.kind == SEND:
        return advance_send(run, step)
    if step.kind == RECV:
        return advance_recv(run, step)
    if step.kind == REDUCE:
        return advance_reduce(run, step)
    return advance_copy(run, step)


cdef inline int advance_copy(Run* run, Step* step) noexcept nogil:
    cdef hetccl_msg_t block, source
    block.skip = source.skip = 0
    place_resolve(run, &step.block, &block)
    place_resolve(run, &step.source, &source)
    if source.ptr == block.ptr and source.layout == block.layout:
        return HETCCL_DONE
    if step.block.buf == OUT and run.past_cache:
        hetccl_layout_copy_past(block.layout, block.ptr, block.skip, source.layout, source.ptr, source.skip,
                                block.nbytes)
    else:
        hetccl_layout_copy(block.layout, block.ptr, block.skip, source.layout, source.ptr, source.skip, block.nbytes)
    return HETCCL_DONE


cdef inline int fail(Run* run, int peer, hetccl_msg_t* message, int status) noexcept nogil:
    run.failure.peer = peer
    run.failure.message = message
    return status


cdef inline int advance_send(Run* run, Step* step) noexcept nogil:
    cdef hetccl_msg_t* message = &run.messages[step.message]
    cdef Link* link = &run.send_links[step.peer]
    cdef bint posted = message.state == HETCCL_MSG_POSTED
    cdef int status = HETCCL_DONE
    if not posted and run.sent[step.peer] != step.turn:
        return HETCCL_AGAIN
    if message.nbytes > 0:
        status = link.ops.send(link.state, message)
        if status < 0:
            return fail(run, step.peer, message, status)
    # A posted message is in the link's hands: the next one may follow it while this step waits for its consumption.
    if not posted and (status == HETCCL_DONE or message.state == HETCCL_MSG_POSTED):
        run.sent[step.peer] += 1
    return status


cdef inline int advance_recv(Run* run, Step* step) noexcept nogil:
    cdef hetccl_msg_t* message = &run.messages[step.message]
    cdef Link* link = &run.recv_links[step.peer]
    cdef bint posted = message.state == HETCCL_MSG_POSTED
    cdef int status = HETCCL_DONE
    if not posted and run.received[step.peer] != step.turn:
        return HETCCL_AGAIN
    if message.nbytes > 0:
        status = link.ops.recv(link.state, message)
        if status < 0:
            return fail(run, step.peer, message, status)
    # As with a send: the link has turned to the next message.
    if not posted and (status == HETCCL_DONE or message.state == HETCCL_MSG_POSTED):
        run.received[step.peer] += 1
    return status


cdef int advance_reduce(Run* run, Step* step) noexcept nogil:
    """Fold as many chunks as have come from every peer, in the order of the sources."""
    cdef hetccl_msg_t* messages = &run.messages[step.message]
    cdef hetccl_msg_t block
    cdef size_t done, piece = 0, nbytes = messages[0].nbytes
    cdef int i, status, chunks = 0
    place_resolve(run, &step.block, &block)
    for i in range(step.nsources):
        if step.sources[i].peer != NOBODY and run.received[step.sources[i].peer] != step.sources[i].turn:
            return HETCCL_AGAIN
    while messages[0].done < nbytes:
        done = messages[0].done
        status = next_piece(run, step, messages, &piece)
        if status != HETCCL_DONE:
            return HETCCL_MOVED if status == HETCCL_AGAIN and chunks > 0 else status
        status = fetch_operands(run, step, messages, piece)
        if status != HETCCL_DONE:
            return status
        run.reduce(block.ptr + done, run.operands, step.nsources, piece // run.itemsize,
                   run.divisor if step.final else 0)
        consume_operands(run, step, messages, piece)
        chunks += 1
        if chunks == CHUNKS_PER_POLL and messages[0].done < nbytes:
            return HETCCL_MOVED
    for i in range(step.nsources):
        if step.sources[i].peer != NOBODY:
            run.received[step.sources[i].peer] += 1
    return HETCCL_DONE


cdef inline int next_piece(Run* run, Step* step, hetccl_msg_t* messages, size_t* piece_p) noexcept nogil:
    """Bytes that every source can give now: whole elements, as a cell's payload is a multiple of 16 bytes."""
    cdef size_t piece = min(<size_t>FETCH_BYTES, messages[0].nbytes - messages[0].done)
    cdef int64_t available
    cdef Link* link
    cdef bint missing = False
    cdef int i
    for i in range(step.nsources):
        if step.sources[i].peer != NOBODY:
            link = &run.recv_links[step.sources[i].peer]
            available = link.ops.available(link.state, &messages[i])
            if available < 0:
                return fail(run, step.sources[i].peer, &messages[i], <int>available)
            # Go on: a link may ask its peer for the bytes only when it is asked.
            missing |= available == HETCCL_AGAIN
            piece = min(piece, <size_t>available)
    piece_p[0] = piece
    return HETCCL_AGAIN if missing else HETCCL_DONE


cdef inline int fetch_operands(Run* run, Step* step, hetccl_msg_t* messages, size_t piece) noexcept nogil:
    cdef Link* link
    cdef int i, status
    for i in range(step.nsources):
        if step.sources[i].peer == NOBODY:
            run.operands[i] = messages[i].ptr + messages[i].done
            continue
        link = &run.recv_links[step.sources[i].peer]
        run.operands[i] = link.ops.fetch(link.state, &messages[i], piece, run.fetch_scratch + <size_t>i * FETCH_BYTES)
        if run.operands[i] == NULL:
            status = HETCCL_EPEER if messages[i].error == ESRCH else HETCCL_ESYSTEM
            return fail(run, step.sources[i].peer, &messages[i], status)
    return HETCCL_DONE


cdef inline void consume_operands(Run* run, Step* step, hetccl_msg_t* messages, size_t piece) noexcept nogil:
    cdef Link* link
    cdef int i
    for i in range(step.nsources):
        if step.sources[i].peer == NOBODY:
            messages[i].done += piece
        else:
            link = &run.recv_links[step.sources[i].peer]
            link.ops.consume(link.state, &messages[i], piece)


cdef void run_blockers(void* work, uint8_t* mask) noexcept nogil:
    """Mark the peers whose part is missing for a started step to go on.

    A message that waits for its turn on a link waits for no peer: the sender may have ended, its part all in the ring.
    """
    cdef Run* run = <Run*>work
    cdef hetccl_msg_t* messages
    cdef Link* link
    cdef Step* step
    cdef int i, j
    for i in range(run.first, run.nsteps):
        step = &run.steps[i]
        messages = &run.messages[step.message]
        if run.states[i] != STARTED:
            continue
        if step.kind == SEND:
            mask[step.peer] |= messages.state == HETCCL_MSG_POSTED or run.sent[step.peer] == step.turn
        elif step.kind == RECV:
            mask[step.peer] |= messages.state == HETCCL_MSG_POSTED or run.received[step.peer] == step.turn
        elif step.kind == REDUCE:
            for j in range(step.nsources):
                if step.sources[j].peer != NOBODY and run.received[step.sources[j].peer] == step.sources[j].turn:
                    link = &run.recv_links[step.sources[j].peer]
                    if link.ops.available(link.state, &messages[j]) == HETCCL_AGAIN:
                        mask[step.sources[j].peer] = 1
