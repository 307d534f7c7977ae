"""Layer L4: what every method of a communicator starts from: is the call possible, which programs does it run, and who
waits for it. The methods themselves are in _reductions, _movements, _messages and _comm.

Threads may share a communicator. The order in which collectives enter, over all threads, must be the same on all ranks,
as in MPI. The GIL is held but for waits.
"""

from libc.stdint cimport INT64_MAX, int64_t
from libc.stdlib cimport calloc

from hetccl._abi cimport HETCCL_MEM_HOST
from hetccl._agree cimport (
    CHECK_CALL, CHECK_COUNT, CHECK_DTYPE, CHECK_FORTRAN, CHECK_MEMORY, CHECK_OP, CHECK_ROOT, CHECK_WORDS, check_open,
)
from hetccl._arguments cimport whole
from hetccl._burst cimport Burst
from hetccl._calls cimport (
    ALLGATHER, ALLGATHERV, ALLREDUCE, ALLTOALL, ALLTOALLV, ALLTOALLW, BARRIER, BCAST, EXSCAN, GATHERV, NCOLLECTIVES,
    REDUCE, REDUCE_SCATTER, SCAN, SCATTERV,
)
from hetccl._request cimport request_new

from hetccl._calls import CALLS, PLANS
from hetccl.errors import CommClosed

cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident() noexcept

cdef enum:
    # The all-to-alls in place have plans of their own: they must save a block before they overwrite it.
    ALLTOALL_IN_PLACE = NCOLLECTIVES
    ALLTOALLV_IN_PLACE = NCOLLECTIVES + 1
    NCHOICES = NCOLLECTIVES + 2

# From so much received by one call, results are stored past the cache. An all-to-all on 4 ranks and a pass that reads
# what was received take then, in processor time, 0.68 of what they do otherwise for runs of 512 bytes, 0.94 for such
# runs on the sending side alone, 1.08 for long ones; with 32 MiB 0.68, 0.90 and 0.80; with less than 8 MiB more than
# before (2 cores with 2 MiB of L2 each and a large L3, Xeon, Linux 6.18).
cdef enum:
    PAST_CACHE_BYTES = 16777216

# Calls that have one unit, whatever the number of ranks.
cdef tuple ONE_UNIT = (ALLREDUCE, REDUCE, BCAST, BARRIER, SCAN, EXSCAN)
# Calls whose units may differ in length.
UNEVEN = frozenset((GATHERV, SCATTERV, ALLGATHERV, REDUCE_SCATTER, ALLTOALLV, ALLTOALLW))

# Why no call is possible any more in this process, or None.
cdef str ended = None


def end(reason):
    """From now on every call is refused: this process has left all its communicators."""
    global ended, has_ended
    ended = reason
    has_ended = True


def ended_because():
    """Why no call is possible any more, or None."""
    return ended


cdef class Batch:
    """See Comm.group."""

    def __enter__(self):
        cdef Endpoint endpoint = self.endpoint
        cdef unsigned long me = PyThread_get_thread_ident()
        if endpoint.batch is not None and endpoint.batch is not self:
            if endpoint.batch.thread != me:
                raise RuntimeError("group: another thread has a group open on this communicator")
            raise RuntimeError("group: this thread has a group open on this communicator already")
        self.thread = me
        self.depth += 1
        endpoint.batch = self
        return self

    def __exit__(self, kind, value, traceback):
        cdef Endpoint endpoint = self.endpoint
        self.depth -= 1
        if self.depth:
            return
        endpoint.batch = None
        calls, self.calls = self.calls, []
        if kind is None:
            self.run(calls)

    cdef int run(self, list calls) except -1:
        """Start all, wait for all; raise the first error once the others have ended."""
        cdef Request request
        cdef Endpoint endpoint = self.endpoint
        first = None
        try:
            # A receive that is deferred would block the stream on which this group's sends come.
            endpoint.deferred.flush_with([request for request, _ in calls if is_for_library(request)])
        except Exception as error:  # noqa: BLE001 - host calls are in no group of the library's
            first = error
        for request, _ in calls:
            try:
                if not is_for_library(request):
                    request.go()
            except Exception as error:  # noqa: BLE001 - the calls before it have begun
                first = first or error
        try:
            # Those between islands, which have been started in the order of the calls.
            endpoint.deferred.flush_with([request for request, _ in calls if is_deferred(request)])
        except Exception as error:  # noqa: BLE001
            first = first or error
        for request, status in calls:
            try:
                request.await_end(status)
            except Exception as error:  # noqa: BLE001 - a user's function may raise anything
                first = first or error
        if first is not None:
            raise first
        return 0


cdef bint is_deferred(Request request) noexcept:
    return request.pending and request.crosses


cdef bint is_for_library(Request request) noexcept:
    return request.is_queued() and not request.crosses


cdef class Endpoint:
    """One rank's end of a communicator.

    membership : bootstrap.Membership
    """

    def __cinit__(self, membership):
        self.membership = membership
        self.mpi = membership.mpi
        self.rank = membership.rank
        self.size = membership.size
        self.islands = membership.islands
        self.members = membership.members
        settings = membership.settings
        self.executor = Executor(membership.board, membership.network, settings.timeout, settings.spin_us,
                                 membership.crowded)
        self.choices = [None] * (NCHOICES * self.size)
        self.check = settings.check
        self.deferred = Burst.__new__(Burst)
        self.crosses = len(self.islands) > 1

    cdef int usable(self, int call) except -1:
        if self.closed:
            raise CommClosed(f"{CALLS[call]}: the communicator has been freed", call=CALLS[call])
        if ended is not None:
            raise CommClosed(f"{CALLS[call]}: {ended}", call=CALLS[call])
        return self.executor.usable(call)

    cdef int rank_of(self, object value, str argument) except -1:
        rank = whole(value, argument)
        if not 0 <= rank < self.size:
            raise ValueError(f"{argument}: {rank} is not a rank of this communicator (0..{self.size - 1})")
        return rank

    cdef Request request(self, type kind, int call, object stream):
        cdef Request request
        self.usable(call)
        if call < NCOLLECTIVES and self.deferred.requests and not self.is_in_batch():
            self.deferred.flush(None)
        request = request_new(kind, self.executor, self.membership, call)
        request.stream = stream
        if self.crosses:
            request.others = self.deferred
        return request

    cdef bint is_in_batch(self) noexcept:
        """Whether this thread has a group open."""
        return self.batch is not None and self.batch.thread == PyThread_get_thread_ident()

    cdef int finish(self, Request request, object status) except -1:
        request.blocking = True
        if self.is_in_batch():
            self.batch.calls.append((request, status))
            return 0
        if self.deferred.requests and request.deferred is None:
            self.deferred.flush(None)
        return request.run(status)

    cdef Choice choose(self, int call, int root, bint in_place):
        """The programs for one collective and root; made when first needed and kept."""
        cdef int variant = call
        if in_place:
            variant = ALLTOALL_IN_PLACE if call == ALLTOALL else ALLTOALLV_IN_PLACE
        elif call == ALLTOALLW:
            variant = ALLTOALLV
        cdef int slot = variant * self.size + root
        cdef Choice choice = self.choices[slot]
        if choice is None:
            choice = Choice(self.membership.plans(PLANS[call], root, in_place, call in UNEVEN), self.rank)
            self.choices[slot] = choice
        return choice

    cdef Part* parts_for(self, Request request, int nin, int nout) except NULL:
        request.parts = <Part*>calloc(nin + nout, sizeof(Part))
        if request.parts == NULL:
            raise MemoryError()
        return request.parts

    cdef int aim(self, Request request, int plan, int root, void* source, void* target, int64_t count, size_t itemsize,
                 bint in_place) except -1:
        cdef Program program = self.choose(plan, root, in_place).pick(count * itemsize)
        # The program outlives a communicator that the user drops meanwhile.
        request.choices = self.choices
        request.work.collective = &request.collective
        request.collective.call = request.work.call
        request.collective.program = <void*>program
        request.collective.source = <unsigned char*>source
        request.collective.target = <unsigned char*>target
        request.collective.count = count
        request.collective.portion = min(count, self.portion_of(plan, itemsize))
        request.collective.grows = self.crosses
        request.collective.itemsize = itemsize
        return 0

    cdef int aim_parts(self, Request request, int plan, int root, int nin, int nout, size_t itemsize,
                       bint in_place) except -1:
        cdef Part* parts = request.parts
        cdef int64_t longest = 0, total = 0, received = 0, nbytes
        cdef int i, counted = max(nin, nout)
        for i in range(nin + nout):
            longest = max(longest, parts[i].nbytes)
        # Where the choice depends on the size, the side with more units is that which all ranks know alike.
        for i in range(counted):
            nbytes = parts[i if nin >= nout else nin + i].nbytes
            total += nbytes
        self.aim(request, plan, root, NULL, NULL, total // counted // <int64_t>itemsize, itemsize, in_place)
        for i in range(nout):
            received += parts[nin + i].nbytes
        request.collective.past_cache = received >= PAST_CACHE_BYTES
        request.collective.in_parts = parts if nin else NULL
        request.collective.out_parts = parts + nin if nout else NULL
        request.collective.count = longest // <int64_t>itemsize
        request.collective.portion = min(request.collective.count, self.portion_of(plan, itemsize))
        return 0

    cdef int64_t portion_of(self, int plan, size_t itemsize) noexcept:
        """Elements of a unit in the first portion: of several islands the same on all ranks, whichever have GPU
        buffers, whose portions overlap with the copies to and from pinned memory."""
        cdef int64_t nunits = 1 if plan in ONE_UNIT else self.size
        if not self.crosses:
            return INT64_MAX
        return max(<int64_t>1, PORTION_BYTES // nunits // <int64_t>itemsize)

    cdef int declare(self, Request request, int root, int64_t op, Span* given, int64_t count) except -1:
        cdef Program program
        if not self.check or request.check.mine != NULL:
            return 0
        check_open(&request.check, self.size)
        program = self.choose(ALLGATHER, 0, False).pick(request.check.nwords * sizeof(int64_t))
        request.check.program = <void*>program
        request.check.mine[CHECK_CALL] = request.work.call
        request.check.mine[CHECK_ROOT] = root
        request.check.mine[CHECK_OP] = op
        request.check.mine[CHECK_DTYPE] = -1 if given == NULL else given.dtype
        request.check.mine[CHECK_COUNT] = count
        request.check.mine[CHECK_MEMORY] = HETCCL_MEM_HOST if given == NULL or request.crosses else given.kind
        request.check.mine[CHECK_FORTRAN] = given != NULL and given.fortran
        request.collective.check = &request.check
        return 0

    cdef int expect(self, Request request, int peer, int64_t sends, int64_t expects) except -1:
        if request.check.mine != NULL:
            request.check.mine[CHECK_WORDS + peer] = sends
            request.check.mine[CHECK_WORDS + self.size + peer] = expects
        return 0

    cdef list tell(self, int call, int64_t value):
        """Every rank's value, in rank order."""
        cdef Request request = self.request(Request, call, None)
        everyone = bytearray(self.size * sizeof(int64_t))
        cdef int64_t* values = <int64_t*><char*>everyone
        cdef int64_t mine = value
        cdef int r
        Endpoint.aim(self, request, ALLGATHER, 0, &mine, values, sizeof(int64_t), 1, False)
        request.run(None)
        return [values[r] for r in range(self.size)]
