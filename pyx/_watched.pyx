"""A communicator of a vendor's CCL as its calls see it: is it usable, the wait for one, what ended it; layer L2.

A call that answers that it is in progress is waited for, and the wait can end: by a time-out, Ctrl-C, the end of a
peer. One that stays in the library is ended by the watch (include/hetccl/watch.h), which aborts the communicator, as
when a peer dies. The GIL is released in each call that may take long, and never taken under the watch's mutex.
"""

import atexit
import os
import time

from libc.stdlib cimport calloc, free

from hetccl._mutex cimport hetccl_mutex_lock_within, hetccl_mutex_open, hetccl_mutex_try, hetccl_mutex_unlock

from hetccl.errors import CommClosed, CommTimeout, PeerError

cdef extern from "sched.h" nogil:
    int sched_yield()

cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1
    unsigned long PyThread_get_thread_ident() noexcept

cdef enum:
    # A call that connects nobody is done within this; then the pauses grow, since connecting takes milliseconds.
    AWAKE_NS = 200000
    PAUSE_NS = 50000
    LONGEST_PAUSE_NS = 1000000
    # The codes of NCCL and RCCL that a broken connection has.
    SYSTEM_ERROR = 2
    REMOTE_ERROR = 6
    # oneCCL's for a lost connection, and above it what it breaks off with (oneccl_thread.h).
    PLUGIN_EXCEPTION = 11

# Between two looks of a call at whether another thread's has ended.
OTHERS_S = 1e-3

# How often this process has come out of a fork; a communicator works only in the process that built it.
cdef int forks = 0
# Of the communicators that are watched, linked.
cdef hetccl_watch_t* watches = NULL


def leave_parent():
    """The child of a fork has none of its parent's threads."""
    global forks, watches
    forks += 1
    watches = NULL


def end_watches():
    """No native thread may be inside a library when the process takes that down."""
    global watches
    while watches != NULL:
        hetccl_watch_close(watches)
        watches = watches.next


os.register_at_fork(after_in_child=leave_parent)
atexit.register(end_watches)


cdef class WatchedComm:
    """The library's communicator and the thread that watches it; VendorComm makes and frees them."""

    def __cinit__(self):
        self.place = NULL
        self.handle = NULL
        if hetccl_mutex_open(&self.mutex) != 0:
            raise MemoryError("a communicator's mutex")

    cdef int prepare(self, Ccl ccl, Runtime runtime, int device) except -1:
        self.ccl, self.functions = ccl, ccl.table
        self.settle_on(runtime, device)
        hetccl_watch_init(&self.watch, self.functions, self.gpu, device, &self.handle, &self.lost)
        self.place = <void**>calloc(1, sizeof(void*))
        if self.place == NULL:
            raise MemoryError("a communicator's handle")
        return 0

    cdef void settle_on(self, Runtime runtime, int device) noexcept:
        self.runtime, self.gpu, self.device = runtime, runtime.table, device
        self.generation = forks

    cdef int watch_over(self) except -1:
        """Let the watch begin."""
        global watches
        cdef int error
        if self.handle == NULL:
            return 0
        error = hetccl_watch_open(&self.watch)
        if error != 0:
            self.abort()
            raise OSError(error, "the watch over a communicator cannot be started (limit of threads or open files?)")
        self.watch.next = watches
        watches = &self.watch
        return 0

    def check(self, str call):
        """Raise what a call would raise because of the communicator: CommClosed, PeerError, NcclError and the like."""
        self.usable(call)

    def wait(self, int code, str call, str function):
        """Conclude a call of one of the library's functions by its code: wait, or raise.

        function : its slot's name, "all_reduce"
        """
        if code != 0:
            self.conclude(code, call, function)

    @property
    def timeout_s(self):
        """Seconds that a wait may last."""
        return self.timeout_ns / 1e9

    @timeout_s.setter
    def timeout_s(self, double seconds):
        self.timeout_ns = self.watch.timeout_ns = time_ns(seconds)

    @property
    def address(self):
        """The library's communicator, such as an ncclComm_t, as int; 0 when it has ended."""
        return <size_t>self.handle

    def abort(self):
        """End the communicator without the other ranks, from any thread; calls that wait in it end. At most 5 s.

        Returns : whether the library has ended it in time
        """
        cdef void* comm
        cdef int code = 0
        if self.place == NULL or self.generation != forks:
            return True
        comm = hetccl_watch_take(&self.watch)
        if comm != NULL:
            self.aborted = True
            with nogil:
                code = hetccl_watch_abort(&self.watch, comm)
        return code == 0

    cdef void unwatch(self) noexcept:
        """End the watch; idempotent."""
        hetccl_watch_unlink(&watches, &self.watch)
        with nogil:
            hetccl_watch_close(&self.watch)

    cdef void* enter(self, str call, void** saved) except? NULL:
        """Keep the communicator from being freed, and make its device the thread's; answers the handle."""
        cdef int code
        cdef void* handle = hetccl_watch_hold(&self.watch)
        # Other threads may have run since usable().
        if handle == NULL and self.place[0] != NULL or self.closed and call != "Free":
            hetccl_watch_release(&self.watch)
            self.refuse(call)
        with nogil:
            code = hetccl_device_enter(self.gpu, self.device, saved)
        if code != 0:
            hetccl_watch_release(&self.watch)
            self.runtime.check(code, "enter")
        return handle

    cdef int leave(self, void* saved) except -1:
        hetccl_watch_release(&self.watch)
        return self.runtime.check(self.gpu.leave(saved), "leave")

    cdef bint is_inherited(self) noexcept:
        return self.generation != forks

    cdef bint is_usable(self) noexcept:
        return self.handle != NULL and self.waits == 0 and not self.closed and self.generation == forks

    cdef int usable(self, str call) except -1:
        return 0 if self.is_usable() else self.refuse(call)

    cdef int refuse(self, str call) except -1:
        if self.generation != forks:
            raise CommClosed(f"{call}: the communicator belongs to the parent of this forked process", call=call)
        if self.closed or self.handle == NULL:
            return self.raise_ended(call)
        self.await_others(call)
        return self.raise_ended(call) if self.closed or self.handle == NULL else 0

    cdef int await_others(self, str call) except -1:
        """Wait until no other thread waits in the communicator: the library takes no call while one is in progress."""
        cdef int64_t began = hetccl_now_ns()
        while self.waits > 0:
            if self.waiter == PyThread_get_thread_ident():
                raise RuntimeError(f"{call}: this thread waits in the communicator (called from a signal handler?)")
            if hetccl_now_ns() - began > self.timeout_ns:
                raise CommTimeout(f"{call}: another thread has been in a call of the communicator for "
                                  f"{self.timeout_ns / 1e9:g} s (HETCCL_TIMEOUT)", call=call)
            time.sleep(OTHERS_S)
        return 0

    cdef int lock(self, str call) except -1:
        if self.is_inherited():
            return self.refuse(call)
        if hetccl_mutex_try(&self.mutex) != 0:
            self.await_owner(call)
        self.owner = PyThread_get_thread_ident()
        return 0

    cdef void unlock(self) noexcept:
        self.owner = 0
        hetccl_mutex_unlock(&self.mutex)

    cdef int await_owner(self, str call) except -1:
        cdef int64_t began = hetccl_now_ns()
        cdef int busy = 1
        if self.owner == PyThread_get_thread_ident():
            raise RuntimeError(f"{call}: this thread is inside a call of the communicator (called from a signal "
                               "handler?)")
        while True:
            with nogil:
                busy = hetccl_mutex_lock_within(&self.mutex, LOOK_NS)
            if busy == 0:
                return 0
            PyErr_CheckSignals()
            if hetccl_now_ns() - began > self.timeout_ns:
                raise CommTimeout(f"{call}: another thread has been in a call of the communicator for "
                                  f"{self.timeout_ns / 1e9:g} s (HETCCL_TIMEOUT)", call=call)

    cdef int raise_ended(self, str call) except -1:
        """Raise why the communicator has ended."""
        cdef int peer = self.watch.lost_rank
        if self.lost and peer != HETCCL_WATCH_NOBODY:
            raise PeerError(f"{call}: rank {peer} has ended; {self.ccl.name}'s communicator was aborted and cannot be "
                            "used any more", call=call, peer=peer)
        if self.watch.timed_out:
            raise CommTimeout(f"{call}: a call was inside {self.ccl.name} for {self.timeout_ns / 1e9:g} s "
                              "(HETCCL_TIMEOUT): a rank of the island has not come to the same call, or cannot be "
                              "reached; the communicator was aborted", call=call)
        if self.lost:
            detail = (<bytes>(<char*>self.watch.text)).decode(errors="replace").strip()
            raise self.ccl.error_of(self.watch.error, call, "async_error", detail)
        what = "aborted" if self.aborted else "freed"
        raise CommClosed(f"{call}: the communicator has been {what}", call=call)

    cdef int conclude(self, int code, str call, str function) except -1:
        if code == self.functions.in_progress:
            code = self.await_end(call, function)
        return 0 if code == 0 else self.raise_code(code, call, function)

    cdef int await_end(self, str call, str function) except -1:
        """Wait until what is in progress has ended; answers its code. A wait that is given up ends the communicator."""
        cdef int code, has_gone = 0
        self.waits += 1
        self.waiter = PyThread_get_thread_ident()
        try:
            with nogil:
                code = self.poll_on(&has_gone, self.timeout_ns)
            if code == self.functions.in_progress and not has_gone:
                self.raise_late(call, function)
        except BaseException:
            self.abort()
            raise
        finally:
            self.waits -= 1
        return self.raise_ended(call) if has_gone else code

    cdef int poll_on(self, int* has_gone, int64_t limit_ns) except? -1 nogil:
        """Poll until nothing is in progress, the handle has gone, or the time is over; answers the state."""
        cdef int64_t began = hetccl_now_ns(), now = began, looked = began
        cdef int state = hetccl_watch_ask(&self.watch, has_gone)
        while state == self.functions.in_progress and not has_gone[0] and now - began < limit_ns:
            now = hetccl_now_ns()
            if now - looked > LOOK_NS:
                looked = now
                with gil:
                    PyErr_CheckSignals()
            if now - began < AWAKE_NS:
                sched_yield()
            else:
                hetccl_pause(min(PAUSE_NS + (now - began) // 100, <int64_t>LONGEST_PAUSE_NS))
            state = hetccl_watch_ask(&self.watch, has_gone)
        return state

    cdef int raise_late(self, str call, str function) except -1:
        raise CommTimeout(f"{call}: {self.ccl.name}'s {self.ccl.symbol(function)} has been in progress for "
                          f"{self.timeout_ns / 1e9:g} s (HETCCL_TIMEOUT): a rank of the island has not come to the "
                          "same call, or cannot be reached", call=call)

    cdef int raise_code(self, int code, str call, str function) except -1:
        """Raise what a code means; a peer's end, where there is one behind it."""
        cdef int peer = HETCCL_WATCH_NOBODY
        cdef int64_t until = hetccl_now_ns() + PEER_NEWS_NS
        error = self.ccl.error_of(code, call, function, None)
        if code == SYSTEM_ERROR or code == REMOTE_ERROR or code >= PLUGIN_EXCEPTION:
            with nogil:
                peer = hetccl_watch_ended(&self.watch)
                while peer == HETCCL_WATCH_NOBODY and self.watch.npeers > 0 and hetccl_now_ns() < until:
                    hetccl_pause(LONGEST_PAUSE_NS)
                    peer = hetccl_watch_ended(&self.watch)
        if peer != HETCCL_WATCH_NOBODY:
            raise PeerError(f"{call}: rank {peer} has ended", call=call, code=code, peer=peer) from error
        if self.lost or self.aborted or self.closed and function != "finalize":
            self.raise_ended(call)
        raise error

    def __dealloc__(self):
        # The library's communicator is left to the end of the process: freeing it may wait for the other ranks.
        if self.place != NULL and self.generation == forks:
            self.unwatch()
            if not self.aborted and not self.lost:
                free(self.place)
