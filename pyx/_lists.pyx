"""Layer L3: waits for lists of requests, of mpi4py too. Base of Request; each look has the time-outs of Test."""

import time

from cpython.exc cimport PyErr_CheckSignals

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
    """Base of what a request does itself."""

    cdef int before(self) except -1:
        return 0

    cdef int after(self) except -1:
        return 0


cdef bint is_mpi_request(object other):
    return isinstance(other, mpi_request)


cdef int status_clear(object status) except -1:
    if status is not None:
        clear_status(status)
    return 0


cdef class Lists:
    """The class methods of Request that take lists."""

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


def checked(requests):
    requests = list(requests)
    for index, request in enumerate(requests):
        if not isinstance(request, (Lists, mpi_request)):
            raise TypeError(f"requests: item {index} is {type(request).__name__}, not a Request")
    return requests


def is_active(request):
    """Whether a wait for it would wait; persistent ones may be idle."""
    return (<Lists>request).active if isinstance(request, Lists) else bool(request)


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
    if not waiting:
        status_clear(status)
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
        # A signal that comes between two pauses interrupts none of them.
        PyErr_CheckSignals()
        if looks > LOOKS_BEFORE_PAUSE:
            time.sleep(pause)
            pause = min(2 * pause, longest)


def with_messages(indices):
    return (None, None) if indices is None else (indices, [None] * len(indices))


cdef class Deferred:
    """Base of Burst."""

    cdef int post(self, Lists request) except -1:
        raise NotImplementedError

    cdef int run(self, Lists last, bint heeded) except -1:
        raise NotImplementedError

    cdef bint queue(self, Lists request, bint waits) except -1:
        raise NotImplementedError

    cdef int flush(self, Lists last) except -1:
        return self.flush_with([] if last is None else [last])

    cdef int flush_with(self, list last) except -1:
        raise NotImplementedError
