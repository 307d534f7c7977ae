"""Layer L3: a call as an object. Every call of a communicator makes one; nonblocking and persistent ones hand it out.

It owns the C state that the engine works on, and holds the user's buffers until the engine is done with them. The GIL is
held but for the waits of the executor. A request that the user drops is kept by the executor's `inflight` meanwhile.
"""

import time

cimport cython
from libc.stdlib cimport free
from libc.string cimport memset

from hetccl._agree cimport check_close, check_error
from hetccl._buffer cimport span_release
from hetccl._calls cimport RECV, SENDRECV
from hetccl._engine cimport is_final
from hetccl._executor cimport has_failed
from hetccl._mailbox cimport ANY, MESSAGE_TOO_LONG
from hetccl._row cimport COLLECTIVE_IDLE, COLLECTIVE_REFUSED

from hetccl._calls import CALLS
from hetccl.errors import CommClosed

# First and longest pause between two looks at a list of requests, in seconds.
PAUSES_S = (1e-6, 1e-3)
# Looks before the first pause: about a microsecond each.
LOOKS_BEFORE_PAUSE = 200

# What bootstrap tells of mpi4py's requests.
cdef type mpi_request = type(None)
cdef object mpi_undefined = None
cdef object new_status = None
cdef object clear_status = None


def register_mpi_requests(request_type, undefined, status_type, status_clearer):
    """Tell the module what mpi4py has.

    request_type   : MPI.Request; lists of requests may hold them
    undefined      : MPI.UNDEFINED, the index of no request
    status_type    : MPI.Status
    status_clearer : callable, makes an MPI.Status that of nothing
    """
    global mpi_request, mpi_undefined, new_status, clear_status
    mpi_request = request_type
    mpi_undefined = undefined
    new_status = status_type
    clear_status = status_clearer


cdef class Task:
    """Base of what a request does itself, on the user's thread, with the GIL."""

    cdef int before(self) except -1:
        return 0

    cdef int after(self) except -1:
        return 0


cdef Request request_new(type kind, Executor executor, object membership, int call):
    # Named classes: Cython makes these without a look at the type's attributes.
    cdef Request request = Prequest.__new__(Prequest) if kind is Prequest else Request.__new__(Request)
    request.executor = executor
    request.membership = membership
    request.work.call = call
    request.persistent = kind is Prequest
    return request


# A blocking call's request lives for a microsecond.
@cython.freelist(8)
cdef class Request:
    """A nonblocking call under way. `Request()` is the null request, as a completed one is.

    Wait and Test report its outcome; what a blocking call would raise, they raise.
    """

    def __cinit__(self):
        self.receives = -1

    def __dealloc__(self):
        free(self.parts)
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
        cdef Message* message
        cdef Letter* letter
        cdef int i
        if self.tasks is not None:
            for task in self.tasks:
                (<Task>task).before()
        self.collective.state = COLLECTIVE_IDLE
        for i in range(self.work.nmessages):
            letter, message = &self.letters[i], &self.messages[i]
            if not self.bound:
                memset(message, 0, sizeof(Message))
                message.sending, message.peer, message.tag = letter.sending, letter.peer, letter.tag
            message.msg.ptr, message.msg.layout, message.msg.flags = letter.ptr, letter.layout, letter.flags
            message.msg.tag = 0 if letter.tag == ANY else <unsigned int>letter.tag
            if letter.sending:
                message.msg.nbytes = letter.nbytes
            else:
                message.capacity = letter.nbytes
        self.bound = False
        self.active = True
        if self.work.collective == NULL and self.work.nmessages == 0:
            return True
        try:
            return self.executor.start(&self.work, waits)
        except BaseException:
            self.active = False
            raise

    cdef Request go(self):
        """Start it and leave it to the engine."""
        cdef Executor executor = self.executor
        if not self.begin(False):
            inflight = executor.inflight
            inflight[id(self)] = self
            self.held = True
            # Requests that nobody waits for are let go when they have doubled, so that a look at each costs nothing.
            if len(inflight) > 2 * executor.nkept + 16:
                for key in [key for key, request in inflight.items() if executor.has_let_go(&(<Request>request).work)]:
                    del inflight[key]
                executor.nkept = len(inflight)
            executor.detach()
        return self

    cdef int run(self, object status) except -1:
        """Start it and wait: a blocking call."""
        try:
            if not self.begin(True):
                self.executor.wait(&self.work)
        except BaseException:
            self.active = False
            raise
        return self.settle(status)

    cdef bint is_engaged(self) except -1:
        """Whether the engine knows of the outcome. What was complete when the communicator was freed, is so for good."""
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
        return not self.is_engaged() or self.executor.poll_once(&self.work)

    cdef int await_end(self, object status) except -1:
        cdef Executor executor = self.executor  # another thread's Free lets go of the request's
        if not self.active:
            return self.fill_empty(status)
        try:
            if self.is_engaged():
                executor.wait(&self.work)
        except BaseException:
            self.drop()
            raise
        return self.settle(status)

    cdef int settle(self, object status) except -1:
        """Take the outcome of what is complete, unless another thread or a signal handler has."""
        if not self.active:
            return self.fill_empty(status)
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
                prefix = "recv" if self.work.call == SENDRECV else ""
                raise ValueError(f"{CALLS[self.work.call]}: {prefix}buf: the message from rank {message.peer} has "
                                 f"{message.refused_nbytes} bytes, the buffer {message.capacity}. It was left there")
        return 0

    cdef int fill(self, object status) except -1:
        cdef Message* message
        if self.from_nobody:
            self.membership.fill_status(status, self.membership.proc_null, self.membership.any_tag, 0)
        elif self.receives < 0:
            clear_status(status)
        else:
            message = &self.messages[self.receives]
            self.membership.fill_status(status, message.peer, message.tag, message.msg.nbytes)
        return 0

    cdef int drop(self) except -1:
        """Be no longer active; a request that cannot be started again is the null request from now on."""
        cdef Executor executor = self.executor
        self.active = False
        if executor is None:
            return 0
        if self.held:
            self.held = False
            executor.inflight.pop(id(self), None)
            executor.nkept = min(executor.nkept, <int>len(executor.inflight))
        if not self.persistent:
            self.release()
        return 0

    cdef void release(self) noexcept:
        self.executor = None
        self.kept = None
        self.tasks = None
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
            self.fill_empty(status)
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
            self.fill_empty(status)
            return True
        done = self.tried()
        if done and status is not None:
            self.fill(status)
        return done

    def Cancel(self):
        """Not possible: a message may be on its way.

        Raises : NotImplementedError
        """
        raise NotImplementedError("Cancel: hetccl cannot take a call back; receive the message, or free the communicator")

    def Free(self):
        """Let go of the request: the engine still completes the call, and nobody hears of it.

        Source : MPI 4.1, section 3.7.3
        """
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

    @classmethod
    def Waitall(cls, requests, statuses=None):
        """Wait for all; requests of mpi4py may be among them.

        requests : sequence of Request
        statuses : list of MPI.Status to fill, made longer if need be, or None
        Returns  : True
        Raises   : as Wait, for the first that fails; the others stay as they are
        Source   : MPI 4.1, section 3.7.5
        """
        requests = checked(requests)
        for request, status in zip(requests, statuses_for(requests, statuses)):
            request.Wait(status)
        return True

    @classmethod
    def Waitany(cls, requests, status=None):
        """Wait for one.

        requests : as Waitall
        status   : of the one that is complete, as Wait
        Returns  : its index; MPI.UNDEFINED if none is active
        Raises   : as Wait
        Source   : MPI 4.1, section 3.7.5
        """
        return look_until(requests, lambda requests: cls.Testany(requests, status))[0]

    @classmethod
    def Waitsome(cls, requests, statuses=None):
        """Wait for one or more.

        requests : as Waitall
        statuses : as Waitall, of those that are complete
        Returns  : list of indices, or None if none is active
        Raises   : as Wait
        Source   : MPI 4.1, section 3.7.5
        """
        return look_until(requests, lambda requests: some(requests, statuses, "Wait"))

    @classmethod
    def Testall(cls, requests, statuses=None):
        """Whether all are complete; if so, they are as after Wait, else none is changed.

        requests, statuses : as Waitall
        Raises : as Test
        Source : MPI 4.1, section 3.7.5
        """
        requests = checked(requests)
        if not all([request.Get_status() for request in requests]):
            return False
        return cls.Waitall(requests, statuses)

    @classmethod
    def Testany(cls, requests, status=None):
        """Whether one is complete.

        requests, status : as Waitany
        Returns : (its index, True); (MPI.UNDEFINED, True) if none is active; (MPI.UNDEFINED, False)
        Raises  : as Test
        Source  : MPI 4.1, section 3.7.5
        """
        return first(requests, status, "Test")

    @classmethod
    def Testsome(cls, requests, statuses=None):
        """Those that are complete.

        requests, statuses : as Waitsome
        Returns : list of indices, perhaps empty; None if none is active
        Raises  : as Test
        Source  : MPI 4.1, section 3.7.5
        """
        return some(checked(requests), statuses, "Wait")

    @classmethod
    def Get_status_all(cls, requests, statuses=None):
        """As Testall, but the requests stay as they are.

        requests, statuses : as Waitall
        Raises : as Test
        Source : MPI 4.1, section 3.7.6
        """
        requests = checked(requests)
        return all([request.Get_status(status) for request, status in zip(requests, statuses_for(requests, statuses))])

    @classmethod
    def Get_status_any(cls, requests, status=None):
        """As Testany, but the request stays as it is.

        requests, status : as Testany
        Returns : as Testany
        Raises : as Test
        Source : MPI 4.1, section 3.7.6
        """
        return first(requests, status, "Get_status")

    @classmethod
    def Get_status_some(cls, requests, statuses=None):
        """As Testsome, but the requests stay as they are.

        requests, statuses : as Waitsome
        Returns : as Testsome
        Raises : as Test
        Source : MPI 4.1, section 3.7.6
        """
        return some(checked(requests), statuses, "Get_status")

    get_status_all = Get_status_all
    get_status_any = Get_status_any
    get_status_some = Get_status_some

    @classmethod
    def waitall(cls, requests, statuses=None):
        """As Waitall; returns a list of None."""
        requests = checked(requests)
        cls.Waitall(requests, statuses)
        return [None] * len(requests)

    @classmethod
    def waitany(cls, requests, status=None):
        """As Waitany; returns (index, None)."""
        return cls.Waitany(requests, status), None

    @classmethod
    def waitsome(cls, requests, statuses=None):
        """As Waitsome; returns (indices, list of None), or (None, None)."""
        return with_messages(cls.Waitsome(requests, statuses))

    @classmethod
    def testall(cls, requests, statuses=None):
        """As Testall; returns (flag, list of None), or (False, None)."""
        requests = checked(requests)
        done = cls.Testall(requests, statuses)
        return done, [None] * len(requests) if done else None

    @classmethod
    def testany(cls, requests, status=None):
        """As Testany; returns (index, flag, None)."""
        return *cls.Testany(requests, status), None

    @classmethod
    def testsome(cls, requests, statuses=None):
        """As Testsome; returns (indices, list of None), or (None, None)."""
        return with_messages(cls.Testsome(requests, statuses))

    def __bool__(self):
        return self.executor is not None and (self.active or self.persistent)

    def __eq__(self, other):
        if isinstance(other, (Request, mpi_request)):
            return self is other or not (self or other)
        return NotImplemented

    def __hash__(self):
        return id(self)

    def __reduce__(self):
        raise ValueError("a Request cannot be pickled")

    def __repr__(self):
        state = f"of {CALLS[self.work.call]}" if self else "null"
        return f"<hetccl.{type(self).__name__} {state}>"

    cdef int fill_empty(self, object status) except -1:
        if status is not None:
            clear_status(status)
        return 0

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


def checked(requests):
    requests = list(requests)
    for index, request in enumerate(requests):
        if not isinstance(request, (Request, mpi_request)):
            raise TypeError(f"requests: item {index} is {type(request).__name__}, not a Request")
    return requests


def is_active(request):
    """Whether a wait for it would wait; persistent ones may be idle."""
    return (<Request>request).active if isinstance(request, Request) else bool(request)


def statuses_for(requests, statuses):
    """A status, or None, per request. A list is made longer, as mpi4py does."""
    if statuses is None:
        return [None] * len(requests)
    if isinstance(statuses, list):
        statuses += [new_status() for _ in range(len(requests) - len(statuses))]
    return list(statuses) + [None] * (len(requests) - len(statuses))


def first(requests, status, look):
    """(index, True) of the first that is complete, as Testany. look: the method that says so."""
    waiting = False
    for index, request in enumerate(checked(requests)):
        if is_active(request):
            if getattr(request, look)(status):
                return index, True
            waiting = True
    if not waiting and status is not None:
        clear_status(status)
    return mpi_undefined, not waiting


def some(requests, statuses, outcome):
    """Indices of those that are complete; None if none is active. outcome: the method that fills a status."""
    active = [index for index, request in enumerate(requests) if is_active(request)]
    if not active:
        return None
    done = [index for index in active if requests[index].Get_status()]
    for index, status in zip(done, statuses_for(done, statuses)):
        getattr(requests[index], outcome)(status)
    return done


def look_until(requests, look):
    """Look at requests until one is complete or none is active, with pauses; each look has the time-outs of Test."""
    requests = checked(requests)
    looks, (pause, longest) = 0, PAUSES_S
    while True:
        found = look(requests)
        if found not in ([], (mpi_undefined, False)):
            return found
        looks += 1
        if looks > LOOKS_BEFORE_PAUSE:
            time.sleep(pause)
            pause = min(2 * pause, longest)


def with_messages(indices):
    return (None, None) if indices is None else (indices, [None] * len(indices))
