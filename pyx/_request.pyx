"""Layer L3: a call as an object. Every call of a communicator makes one; nonblocking and persistent ones hand it out.

It owns the C state that the engine works on, and holds the user's buffers until the engine is done with them. The GIL
is held but for the waits of the executor. A request that the user drops is kept by the executor's `inflight` meanwhile.
"""

from libc.stdlib cimport free
from libc.string cimport memset

from hetccl._agree cimport check_close, check_error
from hetccl._abi cimport HETCCL_MEM_HOST
from hetccl._buffer cimport span_release
from hetccl._crossing cimport Crossing
from hetccl._engine cimport has_failed, is_final
from hetccl._launch cimport launch_run
from hetccl._lists cimport is_mpi_request, status_clear
from hetccl._mailbox cimport ANY, MESSAGE_TOO_LONG
from hetccl._marks cimport mark_await, mark_end, mark_free, mark_is_reached
from hetccl._row cimport COLLECTIVE_DONE, COLLECTIVE_IDLE, COLLECTIVE_REFUSED
from hetccl._stream cimport stream_for
from hetccl._vendor cimport VendorComm

from hetccl._calls import CALLS
from hetccl.errors import CommClosed

cdef Request request_new(type kind, Executor executor, object membership, int call):
    # Named classes: Cython makes these without a look at the type's attributes.
    cdef Request request = Prequest.__new__(Prequest) if kind is Prequest else Request.__new__(Request)
    request.executor = executor
    request.membership = membership
    request.work.call = call
    request.persistent = kind is Prequest
    return request


# Requests that ended before the library was done with their buffers, and those buffers; see outlive().
cdef list abandoned = []


cdef class Request(Lists):
    """A nonblocking call under way. `Request()` is the null request, as a completed one is.

    Wait and Test report its outcome; what a blocking call would raise, they raise.
    """

    def __cinit__(self):
        self.receives = -1

    def __dealloc__(self):
        if self.event != NULL:
            mark_free(self.gpu, self.device, self.event)
        free(self.parts)
        free(self.passage.staged)
        check_close(&self.check)
        span_release(&self.send)
        span_release(&self.recv)

    cdef int post(self, bint sending, int peer, int64_t tag, Span* span, int flags) except -1:
        """Add a message to what the request starts. span: its memory, which the request must hold."""
        cdef Letter* letter = &self.letters[self.work.nmessages]
        letter.sending, letter.peer, letter.tag, letter.flags = sending, peer, tag, flags
        letter.ptr, letter.layout = <uint8_t*>span.ptr, span.layout
        letter.nbytes = <size_t>span.count * span.itemsize
        if not sending:
            self.receives = self.work.nmessages
        self.work.messages = &self.messages[0]
        self.work.nmessages += 1
        return 0

    cdef int add(self, Task task) except -1:
        if self.tasks is None:
            self.tasks = []
        self.tasks.append(task)
        return 0

    cdef bint begin(self, bint waits) except -1:
        """Start it; True if it is complete already."""
        if self.tasks is not None:
            for task in self.tasks:
                (<Task>task).before()
        if self.vendor is not None and (self.blocking or self.is_queued()):
            return self.begin_launch(waits)
        self.collective.state = COLLECTIVE_IDLE
        self.build_messages()
        self.active = True
        if self.work.collective == NULL and self.work.nmessages == 0:
            return True
        try:
            return self.executor.start(&self.work, waits)
        except BaseException:
            self.active = False
            raise

    cdef int queue_others(self) except -1:
        """Messages in device memory that this one's end may depend on."""
        if self.others is not None and self.others.requests:
            self.others.flush(None)
        return 0

    cdef void build_messages(self) noexcept:
        cdef Message* message
        cdef Letter* letter
        cdef int i
        for i in range(self.work.nmessages):
            letter, message = &self.letters[i], &self.messages[i]
            if not self.bound:
                memset(message, 0, sizeof(Message))
                message.sending, message.peer, message.tag = letter.sending, letter.peer, letter.tag
            message.cut = letter.cut
            message.msg.ptr, message.msg.layout, message.msg.flags = letter.ptr, letter.layout, letter.flags
            message.msg.tag = 0 if letter.tag == ANY else <unsigned int>letter.tag
            if letter.sending:
                message.msg.nbytes = letter.nbytes
            else:
                message.capacity = letter.nbytes
        self.bound = False

    cdef bint is_queued(self) noexcept:
        return self.vendor is not None and self.vendor.runtime.kind != HETCCL_MEM_HOST

    cdef bint begin_launch(self, bint waits) except -1:
        """Queue it on the stream; True if nobody waits for it, or it is done."""
        self.choose_stream()
        if self.crosses:
            (<Crossing>self.vendor).begin(&self.work, self.launch.stream)
            return self.note_queued(waits)
        self.compare()
        try:
            launch_run(<VendorComm>self.vendor, &self.launch)
        except BaseException:
            self.outlive()
            raise
        return self.note_queued(waits)

    cdef int outlive(self) except -1:
        """What was given up may go on: a call on host buffers inside the library, which cannot be stopped, and a stream
        behind a wait. Their buffers are kept for good."""
        if self.vendor is None or self.is_queued() and (self.event == NULL or self.library_holds):
            return 0
        if not self.is_queued() and self.vendor.handle != NULL:
            return 0
        abandoned.append(self)
        if self.send.owner != NULL:
            abandoned.append(<object>self.send.owner)
        if self.recv.owner != NULL:
            abandoned.append(<object>self.recv.owner)
        return 0

    cdef int choose_stream(self) except -1:
        """A persistent call goes to the stream that is current at its start."""
        if self.persistent:
            self.take_stream()
        return 0

    cdef int take_stream(self) except -1:
        """Find the call's stream, and let it wait for what produces the buffers."""
        cdef void* first = self.recv.owner if self.recv.owner != NULL else self.send.owner
        cdef object other = None if self.send.owner == NULL else <object>self.send.owner
        cdef bint holds = False
        self.launch.stream = stream_for(self.stream, <object>first, other, self.vendor.runtime, self.device, &holds)
        self.library_holds = holds
        return 0

    cdef bint note_queued(self, bint waits) except -1:
        """The library has the call. True if nothing is left to wait for."""
        self.active = True
        cdef bint is_held = waits and self.library_holds
        if not self.is_queued() or is_held and not self.crosses:
            return True
        if not is_held:
            self.event = mark_end(self.vendor, self.event, self.launch.stream)
        if waits:
            self.hold()
        return waits

    cdef int compare(self) except -1:
        """HETCCL_CHECK: the engine compares the ranks' calls, by a barrier."""
        if self.check.mine == NULL:
            return 0
        self.collective.state = COLLECTIVE_IDLE
        if not self.executor.start(&self.work, True):
            self.executor.wait(&self.work)
        return self.raise_refusal()

    cdef int hold(self) except -1:
        """Be kept, with the buffers, until the engine or the stream is done with them."""
        cdef dict inflight = self.executor.inflight
        inflight[id(self)] = self
        self.held = True
        # Requests that nobody waits for are let go when they have doubled, so that a look at each costs nothing.
        if len(inflight) > 2 * self.executor.nkept + 16:
            for key in [key for key, request in inflight.items() if (<Request>request).is_let_go(self.executor)]:
                del inflight[key]
            self.executor.nkept = len(inflight)
        return 0

    cdef bint is_let_go(self, Executor executor) except -1:
        if not self.is_queued():
            return executor.has_let_go(&self.work)
        if self.pending or self.crosses and not executor.has_let_go(&self.work):
            return False
        if self.event == NULL or self.vendor.handle == NULL:
            return True
        return mark_is_reached(self.vendor, self.event, self.work.call)

    cdef Request go(self):
        """Start it and leave it to the engine."""
        if self.deferred is not None:
            self.choose_stream()
            self.deferred.post(self)
            self.active = self.pending = True
            self.failure = None
            self.deferred.requests.append(self)
            self.hold()
        elif not self.begin(False):
            self.hold()
            if not self.is_queued():
                self.executor.detach()
        return self

    cdef int run(self, object status) except -1:
        """Start it and wait: a blocking call."""
        try:
            if self.deferred is not None:
                self.deferred.run(self, status is not None)
            elif not self.begin(True):
                self.queue_others()
                self.executor.wait(&self.work)
        except BaseException:
            self.active = False
            raise
        return self.settle(status)

    cdef bint is_engaged(self) except -1:
        """Whether the engine knows of the outcome. What was complete when the communicator was freed is so for good."""
        if self.is_queued() or self.blocking and self.vendor is not None:
            return False
        if self.work.collective == NULL and self.work.nmessages == 0:
            return False
        if not self.executor.closed:
            return True
        if is_final(&self.work) and not has_failed(&self.work):
            return False
        name = CALLS[self.work.call]
        raise CommClosed(f"{name}: the communicator was freed before the request was complete", call=name)

    cdef bint poll(self) except -1:
        """Whether it is complete."""
        if self.is_queued():
            if not self.queue_now(False):
                return False
            done = self.event == NULL or mark_is_reached(self.vendor, self.event, self.work.call)
            if done and self.heeds_engine(None):
                done = self.executor.poll_once(&self.work)
            return done and self.conclude() == 0
        self.queue_others()
        return not self.is_engaged() or self.executor.poll_once(&self.work)

    cdef int conclude(self) except -1:
        """The stream is past it; but that may be because the communicator has broken."""
        if self.crosses and not self.is_done_well():
            self.vendor.usable(CALLS[self.work.call])
        return 0

    cdef bint is_done_well(self) except -1:
        if not self.executor.has_let_go(&self.work):
            return False
        return self.collective.state == COLLECTIVE_DONE or self.work.collective == NULL and not has_failed(&self.work)

    cdef bint heeds_engine(self, object status) noexcept:
        """Whether the call ends with a message, not with what its stream does: what is received has its tag and length
        from there, and a synchronous send ends there."""
        if self.work.awaited == NULL or is_final(&self.work):
            return False
        return self.receives < 0 or not self.blocking or status is not None

    cdef bint queue_now(self, bint waits) except -1:
        """A message in device memory may still be deferred, or have failed with others. False: it is left so."""
        if self.pending and not self.deferred.queue(self, waits):
            return False
        if self.failure is not None:
            raise self.failure
        return True

    cdef int await_end(self, object status) except -1:
        cdef Executor executor = self.executor  # another thread's Free lets go of the request's
        if not self.active:
            return status_clear(status)
        try:
            if self.is_queued():
                self.queue_now(True)
                if self.heeds_engine(status):
                    executor.wait(&self.work)
                if self.event != NULL and not self.blocking:
                    mark_await(self.vendor, self.event, self.work.call)
                    self.conclude()
            elif self.is_engaged():
                self.queue_others()
                executor.wait(&self.work)
        except BaseException:
            self.outlive()
            self.drop()
            raise
        return self.settle(status)

    cdef int settle(self, object status) except -1:
        """Take the outcome of what is complete, unless another thread or a signal handler has."""
        if not self.active:
            return status_clear(status)
        self.active = False
        try:
            self.raise_refusal()
            if self.tasks is not None:
                for task in self.tasks:
                    (<Task>task).after()
            if status is not None:
                self.fill(status)
        finally:
            self.drop()
        return 0

    cdef int raise_refusal(self) except -1:
        """Raise what is the caller's fault, and has not broken the communicator."""
        cdef Message* message
        if self.work.collective != NULL and self.collective.state == COLLECTIVE_REFUSED:
            raise check_error(&self.check, self.executor.nranks, self.executor.rank)
        if self.receives >= 0:
            message = &self.messages[self.receives]
            if message.state == MESSAGE_TOO_LONG:
                raise self.executor.wrong_length(&self.work, message)
        return 0

    cdef int fill(self, object status) except -1:
        cdef Message* message
        if self.from_nobody:
            self.membership.fill_status(status, self.membership.proc_null, self.membership.any_tag, 0)
        elif self.receives < 0:
            status_clear(status)
        elif self.vendor is not None and not self.crosses:
            tag = self.letters[self.receives].tag
            self.membership.fill_status(status, self.launch.source_rank, self.membership.any_tag if tag == ANY else tag,
                                        self.launch.room)
        else:
            message = &self.messages[self.receives]
            self.membership.fill_status(status, message.peer, message.tag, message.msg.nbytes)
        return 0

    cdef int drop(self) except -1:
        """Be no longer active; a request that cannot be started again is the null request from now on."""
        cdef Executor executor = self.executor
        self.active = False
        if executor is None or self.blocking and self.held:
            return 0  # the stream may still be at work; hold() of a later call lets go
        if self.held and self.crosses and not executor.has_let_go(&self.work):
            return 0  # likewise: what was sent lies in pinned memory
        if self.held:
            self.held = False
            executor.inflight.pop(id(self), None)
            executor.nkept = min(executor.nkept, <int>len(executor.inflight))
        if not self.persistent:
            self.release()
        return 0

    cdef void release(self) noexcept:
        self.executor = None
        self.choices = None
        self.kept = None
        self.tasks = None
        self.stream = None
        span_release(&self.send)
        span_release(&self.recv)

    def Wait(self, status=None):
        """Wait until the call is complete.

        status  : MPI.Status to fill, or None. A receive tells source, tag and length; else as MPI's empty status
        Returns : True
        Raises  : what the blocking call would raise: ValueError (a message longer than the buffer; HETCCL_CHECK found
                  that the ranks differ), PeerError, CommTimeout; CommClosed if the communicator was freed meanwhile
        Source  : MPI 4.1, section 3.7.3
        """
        self.await_end(status)
        return True

    def Test(self, status=None):
        """Whether the call is complete; if so, the request is as after Wait.

        status, Raises : as Wait; CommTimeout when nothing has moved in HETCCL_TIMEOUT of testing
        Source  : MPI 4.1, section 3.7.3
        """
        if not self.active:
            status_clear(status)
            return True
        if not self.tried():
            return False
        self.settle(status)
        return True

    def Get_status(self, status=None):
        """Whether the call is complete; the request stays as it is.

        status, Raises : as Test
        Source  : MPI 4.1, section 3.7.6
        """
        if not self.active:
            status_clear(status)
            return True
        done = self.tried()
        if done and status is not None:
            self.fill(status)
        return done

    def Cancel(self):
        """Not possible: a message may be on its way.

        Raises : NotImplementedError
        """
        raise NotImplementedError("Cancel: hetccl cannot take a call back; receive the message, or free the "
                                  "communicator")

    def Free(self):
        """Let go of the request: the engine still completes the call, and nobody hears of it.

        Source : MPI 4.1, section 3.7.3
        """
        if self.pending:
            self.deferred.queue(self, True)
        self.persistent = self.active = False
        if self.held:
            self.executor = None
        else:
            self.release()

    def wait(self, status=None):
        """As Wait; returns None, the message of a call on buffers."""
        self.await_end(status)

    def test(self, status=None):
        """As Test; returns (flag, None)."""
        return self.Test(status), None

    get_status = Get_status
    cancel = Cancel

    def __bool__(self):
        return self.executor is not None and (self.active or self.persistent)

    def __eq__(self, other):
        if isinstance(other, Request) or is_mpi_request(other):
            return self is other or not (self or other)
        return NotImplemented

    def __hash__(self):
        return id(self)

    def __reduce__(self):
        raise ValueError("a Request cannot be pickled")

    def __repr__(self):
        state = f"of {CALLS[self.work.call]}" if self else "null"
        return f"<hetccl.{type(self).__name__} {state}>"

    cdef bint tried(self) except -1:
        """poll(), and inactive if that raises."""
        try:
            return self.poll()
        except BaseException:
            self.drop()
            raise


cdef class Prequest(Request):
    """A persistent call: what it was given is read once; Start runs it, Wait or Test ends a run."""

    def Start(self):
        """Start the call on what the buffers hold now. No argument is read again.

        Raises : ValueError (it is under way, or freed), CommClosed, and what starting the call raises
        Cost   : no allocation, no parsing
        Source : MPI 4.1, section 3.9
        """
        if self.executor is None:
            raise ValueError("Start: the request has been freed")
        if self.active:
            raise ValueError(f"Start: the {CALLS[self.work.call]} is under way; Wait for it first")
        if self.executor.closed:
            raise CommClosed("Start: the communicator has been freed", call="Start")
        self.go()

    @classmethod
    def Startall(cls, requests):
        """Start all, in order.

        requests : sequence of Prequest
        Raises : as Start
        Source : MPI 4.1, section 3.9
        """
        for request in requests:
            request.Start()
