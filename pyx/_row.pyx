"""Layer L3: the row of a communicator's collectives, run one after another in the order in which they were called.

MPI asks for that order to be the same on all ranks, so that one row for each rank is enough: whoever is at the head
waits for nobody but the peers' heads. Polled, never waits; no GIL; the caller holds the executor's lock.
"""

from libc.stdlib cimport calloc, free, malloc

from hetccl._agree cimport check_holds
from hetccl._calls cimport ANY_CALL, CALL_BITS
from hetccl._passage cimport (
    hetccl_portion_length, hetccl_portions, passage_complete, passage_enter, passage_is_open,
)
from hetccl._program cimport FETCH_BYTES, Program, run_blockers, run_poll, run_reset
from hetccl._shm cimport HETCCL_AGAIN, HETCCL_DONE, HETCCL_ENOMEM, HETCCL_MOVED


cdef int row_open(Row* row, int nranks, Link* send_links, Link* recv_links) except -1:
    row.nranks = nranks
    row.send_links, row.recv_links = send_links, recv_links
    row.turns = <int*>calloc(2 * nranks, sizeof(int))
    if row.turns == NULL:
        raise MemoryError()
    return 0


cdef void row_close(Row* row) noexcept nogil:
    free(row.turns)
    free(row.scratch)
    free(row.fetch_scratch)
    free(row.operands)


cdef void row_push(Row* row, Collective* collective) noexcept nogil:
    """Add a call at the end. It gets its number here, so that threads which call at once agree on the order."""
    row.number += 1
    collective.number = row.number
    collective.tag = <uint32_t>(row.number << CALL_BITS | collective.call)
    collective.state = COLLECTIVE_QUEUED
    collective.next = NULL
    if row.head == NULL:
        row.head = collective
    else:
        row.tail.next = collective
    row.tail = collective


cdef int row_poll(Row* row) noexcept nogil:
    """Advance the head, and the next one when it is complete. A negative status: the head has failed."""
    cdef Collective* head
    cdef bint moved = False
    cdef int status
    while row.head != NULL:
        head = row.head
        status = advance(row, head)
        if status == HETCCL_MOVED:
            return HETCCL_MOVED
        if status == HETCCL_AGAIN:
            break
        moved = True
        if status == HETCCL_DONE:
            status = next_part(row, head)
        if status == HETCCL_MOVED:
            continue
        row.head = head.next
        if status < 0:
            head.status, head.failure = status, row.run.failure
            head.state = COLLECTIVE_FAILED
            row.failed = head
            return status
        if head.passage != NULL and head.state == COLLECTIVE_DONE and head.count > 0:
            # What the stream sees now may end the call's owner.
            passage_complete(head.passage, head.passage.nportions - 1)
    return HETCCL_MOVED if moved else HETCCL_AGAIN


cdef inline int advance(Row* row, Collective* head) noexcept nogil:
    """Move the head's data. DONE: what it has begun is complete."""
    if head.state == COLLECTIVE_QUEUED:
        return HETCCL_DONE
    if head.state == COLLECTIVE_GATED:
        if not passage_is_open(head.passage, row.nth):
            return HETCCL_AGAIN
        passage_enter(head.passage, &row.run, row.nth, length_of(head, row.nth))
        run_reset(&row.run, <Program>head.program, row.nranks)
        head.state = COLLECTIVE_RUNNING
    return run_poll(&row.run)


cdef int next_part(Row* row, Collective* head) noexcept nogil:
    """Set up what the head runs next: the comparison, then portion by portion. DONE: there is nothing left."""
    cdef Run* run = &row.run
    if head.state == COLLECTIVE_QUEUED and head.check != NULL:
        head.state = COLLECTIVE_CHECKING
        return begin_check(row, head)
    if head.state == COLLECTIVE_CHECKING and not check_holds(head.check, row.nranks):
        head.state = COLLECTIVE_REFUSED
        return HETCCL_DONE
    if head.state == COLLECTIVE_RUNNING:
        if head.passage != NULL and run.skip[0] + run.count < head.count:
            passage_complete(head.passage, row.nth)
        row.nth += 1
        run.skip[0] += run.count
        run.skip[1] += run.count
    else:
        head.state = COLLECTIVE_RUNNING
        if begin(row, head) < 0:
            return HETCCL_ENOMEM
    if run.skip[0] >= head.count:
        head.state = COLLECTIVE_DONE
        return HETCCL_DONE
    run.count = min(length_of(head, row.nth), head.count - run.skip[0])
    if head.passage != NULL:
        head.state = COLLECTIVE_GATED
        return HETCCL_MOVED
    run_reset(run, <Program>head.program, row.nranks)
    return HETCCL_MOVED


cdef int begin_check(Row* row, Collective* head) noexcept nogil:
    cdef Run* run = &row.run
    cdef int64_t nbytes = head.check.nwords * sizeof(int64_t)
    if prepare(row, <Program>head.check.program, nbytes) < 0:
        return HETCCL_ENOMEM
    run.base[0], run.base[1] = <uint8_t*>head.check.mine, <uint8_t*>head.check.everyone
    run.parts[0] = run.parts[1] = NULL
    run.unit_stride[0] = run.unit_stride[1] = run.unit_stride[2] = run.count = nbytes
    run.itemsize, run.reduce, run.divisor, run.past_cache = 1, NULL, 0, False
    # Ranks in different collectives meet here.
    run.tag = head.tag | ANY_CALL
    run_reset(run, <Program>head.check.program, row.nranks)
    return HETCCL_MOVED


cdef inline int64_t length_of(Collective* head, int64_t nth) noexcept nogil:
    """Elements of a unit in a portion, the last of which may be shorter."""
    return head.portion * hetccl_portion_length(nth) if head.grows else head.portion


cdef int begin(Row* row, Collective* head) noexcept nogil:
    cdef Run* run = &row.run
    cdef int64_t longest = head.portion
    if head.grows and head.count > 0:
        longest = min(head.count, length_of(head, hetccl_portions(head.count, head.portion) - 1))
    if prepare(row, <Program>head.program, <size_t>longest * head.itemsize) < 0:
        return -1
    row.nth = 0
    run.base[0], run.base[1] = head.source, head.target
    run.parts[0], run.parts[1] = head.in_parts, head.out_parts
    run.unit_stride[0], run.unit_stride[1], run.unit_stride[2] = head.count, head.count, longest
    run.itemsize, run.reduce, run.divisor = head.itemsize, head.reduce, head.divisor
    run.past_cache = head.past_cache
    run.tag = head.tag
    return 0


cdef int prepare(Row* row, Program program, size_t unit_nbytes) noexcept nogil:
    """What all programs need of a run. Scratch memory stays: a training step asks for the same again."""
    cdef Run* run = &row.run
    cdef size_t nbytes = <size_t>program.scratch_units * unit_nbytes
    if nbytes > row.scratch_nbytes:
        free(row.scratch)
        row.scratch_nbytes = 0
        row.scratch = <uint8_t*>malloc(nbytes)
        if row.scratch == NULL:
            return -1
        row.scratch_nbytes = nbytes
    if program.max_sources > row.nfetch:
        free(row.fetch_scratch)
        free(row.operands)
        row.nfetch = 0
        row.fetch_scratch = <uint8_t*>malloc(<size_t>program.max_sources * FETCH_BYTES)
        row.operands = <const void**>calloc(program.max_sources, sizeof(void*))
        if row.fetch_scratch == NULL or row.operands == NULL:
            return -1
        row.nfetch = program.max_sources
    run.base[2] = row.scratch
    run.skip[0] = run.skip[1] = run.skip[2] = 0
    run.send_links, run.recv_links = row.send_links, row.recv_links
    run.sent, run.received = row.turns, row.turns + row.nranks
    run.fetch_scratch, run.operands = row.fetch_scratch, row.operands
    return 0


cdef void row_blockers(Row* row, uint8_t* mask) noexcept nogil:
    """Mark the peers that the head waits for."""
    if row.head != NULL and row.head.state != COLLECTIVE_QUEUED and row.head.state != COLLECTIVE_GATED:
        run_blockers(&row.run, mask)
