"""A communicator of a vendor's CCL: its life, its waits, and what became of it; layer L2.

The library makes a communicator on a thread of its own, so that the wait can end: by a time-out, Ctrl-C, the end of a
peer. A call that answers that it is in progress is waited for in the same way; one that stays in the library is ended
by the watch (include/hetccl/watch.h), which aborts the communicator, as when a peer dies. The GIL is released in each
call that may take long, and never taken under the watch's mutex.
"""

import atexit
import os
import time

cimport cython
from libc.stdlib cimport calloc, free

from hetccl._mutex cimport hetccl_mutex_lock_within, hetccl_mutex_open, hetccl_mutex_try, hetccl_mutex_unlock
from hetccl._runtime cimport HETCCL_MISSING
from hetccl._vendor cimport (
    hetccl_device_enter, hetccl_job_drop, hetccl_job_start, hetccl_job_t, hetccl_job_wait, hetccl_now_ns, hetccl_pause,
    hetccl_peer_t, hetccl_watch_abort, hetccl_watch_ask, hetccl_watch_close, hetccl_watch_ended, hetccl_watch_init,
    hetccl_watch_meet, HETCCL_WATCH_NOBODY, hetccl_watch_open, hetccl_watch_settle, hetccl_watch_t, hetccl_watch_take,
    hetccl_watch_unlink,
)

from hetccl.errors import CommClosed, CommTimeout, PeerError

cdef extern from "sched.h" nogil:
    int sched_yield()

cdef extern from "hetccl/ccl_birth.h" nogil:
    hetccl_birth_t* hetccl_birth_start(const hetccl_ccl_t* ccl, const hetccl_runtime_t* gpu, int device, int nranks,
                                       int rank, const void* id)
    int hetccl_birth_wait(hetccl_birth_t* birth, int64_t timeout_ns, int* code, void** comm)

cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1
    unsigned long PyThread_get_thread_ident() noexcept

cdef enum:
    # Between two looks at signals and the clock. Bounds the reaction to Ctrl-C.
    LOOK_NS = 50000000
    # A call that connects nobody is done within this; then the pauses grow, since connecting takes milliseconds.
    AWAKE_NS = 200000
    PAUSE_NS = 50000
    LONGEST_PAUSE_NS = 1000000
    # The kernel tells of a peer's end a little after the library has noticed that its connection broke.
    PEER_NEWS_NS = 300000000
    # The codes of NCCL and RCCL that a broken connection has.
    SYSTEM_ERROR = 2
    REMOTE_ERROR = 6
    # oneCCL's for a lost connection, and above it what it breaks off with (oneccl_thread.h).
    PLUGIN_EXCEPTION = 11

# Longer waits than this many seconds (285 years) do not fit into nanoseconds.
LONGEST_S = 9e9
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


@cython.final
cdef class VendorComm:
    """One rank's end of an island. Collective: all its ranks must make theirs.

    ccl, runtime : what serves the island
    device       : int, index of the runtime's; 0 for the host's
    nranks, rank : of the island
    unique_id    : bytes, ccl.unique_id() of one of the ranks
    timeout_s    : seconds that a wait may last
    peers        : sequence of (rank, pid): other ranks on this host, as errors shall name them
    float8       : what float8's bits mean on the devices: "ocp", "fnuz" or "mixed"
    waits        : bool; False: return as soon as the library lets go, and ask is_ready() before anything else
    Blocks       : until all ranks have come
    Raises       : CommTimeout, PeerError, NcclError and the like; what was half made has then been aborted
    """

    def __cinit__(self):
        self.place = NULL
        self.handle = NULL
        self.registered = set()
        if hetccl_mutex_open(&self.mutex) != 0:
            raise MemoryError("a communicator's mutex")

    def __init__(self, Ccl ccl not None, Runtime runtime not None, int device, int nranks, int rank, bytes unique_id,
                 double timeout_s, peers=(), str float8="ocp", bint waits=True):
        cdef const char* id_ = unique_id
        cdef void* saved = NULL
        if self.place != NULL:
            raise RuntimeError("VendorComm: it has been made already")
        if not 0 <= rank < nranks:
            raise ValueError(f"rank: {rank} is none of an island of {nranks}")
        if <size_t>len(unique_id) != ccl.table.id_nbytes:
            raise ValueError(f"unique_id: {len(unique_id)} bytes; {ccl.name}'s has {ccl.table.id_nbytes}")
        self.prepare(ccl, runtime, device)
        self.timeout_s = timeout_s
        self.rank, self.nranks, self.float8 = rank, nranks, float8
        self.enter("Comm", &saved)
        self.leave(saved)
        self.meet(peers)
        self.birth = hetccl_birth_start(self.functions, self.gpu, device, nranks, rank, id_)
        if self.birth == NULL:
            raise MemoryError("a thread that makes the communicator")
        if waits and not self.is_ready(timeout_s):
            raise CommTimeout(f"Comm: {ccl.name} has been connecting the ranks for {timeout_s:g} s (HETCCL_TIMEOUT): a "
                              "rank of the island has not come, or cannot be reached", call="Comm")

    cdef int prepare(self, Ccl ccl, Runtime runtime, int device) except -1:
        self.ccl, self.runtime, self.device = ccl, runtime, device
        self.functions, self.gpu = ccl.table, runtime.table
        self.generation = forks
        hetccl_watch_init(&self.watch, self.functions, self.gpu, device, &self.handle, &self.lost)
        self.place = <void**>calloc(1, sizeof(void*))
        if self.place == NULL:
            raise MemoryError("a communicator's handle")
        return 0

    cdef int meet(self, object peers) except -1:
        """Know whom to watch. peers: (rank, pid)s."""
        cdef int i, npeers = len(peers)
        cdef hetccl_peer_t* known = <hetccl_peer_t*>calloc(max(npeers, 1), sizeof(hetccl_peer_t))
        if known == NULL:
            raise MemoryError("the peers of a communicator")
        for i in range(npeers):
            known[i].rank, known[i].pid = peers[i]
        hetccl_watch_meet(&self.watch, known, npeers)
        return 0

    cdef int start(self) except -1:
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

    cdef int be_born(self, int code, str call, str function) except -1:
        """Wait until a new communicator is ready; one that does not get so is aborted."""
        try:
            if code != 0:
                self.conclude(code, call, function)
        except BaseException:
            self.abort()
            self.unwatch()
            raise
        return 0

    def is_ready(self, double seconds):
        """Wait for so long until a new communicator can be used; answers whether it can.

        Raises : PeerError, NcclError and the like; it has been aborted then
        """
        cdef int code, has_gone = 0
        cdef int64_t until = hetccl_now_ns() + <int64_t>(min(seconds, LONGEST_S) * 1e9)
        if self.birth != NULL:
            code = self.await_library(until)
            if self.birth != NULL:
                return False
            if code != self.functions.in_progress:
                self.be_born(code, "Comm", "init")
                return True
        try:
            with nogil:
                code = self.poll_on(&has_gone, until - hetccl_now_ns())
            if has_gone:
                self.raise_ended("Comm")
            if code == self.functions.in_progress:
                return False
        except BaseException:
            self.abort()
            raise
        self.be_born(code, "Comm", "init")
        return True

    cdef int await_library(self, int64_t until) except -1:
        """Wait until the library has answered, or the time is over; the birth is NULL then, or not. Its code."""
        cdef int code = 0, has_ended = 0, peer
        cdef int64_t lost_ns = 0
        while not has_ended and hetccl_now_ns() < until:
            with nogil:
                has_ended = hetccl_birth_wait(self.birth, min(until - hetccl_now_ns(), <int64_t>LOOK_NS), &code,
                                              &self.place[0])
            if has_ended:
                break
            PyErr_CheckSignals()
            peer = hetccl_watch_ended(&self.watch)
            if peer != HETCCL_WATCH_NOBODY and lost_ns == 0:
                lost_ns = hetccl_now_ns()
            elif peer != HETCCL_WATCH_NOBODY and hetccl_now_ns() - lost_ns > PEER_NEWS_NS:
                raise PeerError(f"Comm: rank {peer} has ended while {self.ccl.name} connected the ranks", call="Comm",
                                peer=peer)
        if has_ended:
            self.birth = NULL
            self.handle = self.place[0]
            self.start()
        return code

    def Split(self, int color, int key, peers=()):
        """A communicator of the ranks that give the same color, in order of their keys. Collective.

        color   : int from 0, or -1: in none
        peers   : as of the class, of the new communicator
        Returns : VendorComm, or None for color -1
        Raises  : SymbolNotFound (the library cannot: ccl.supports("split")), CommTimeout, PeerError, NcclError
        """
        cdef VendorComm child = VendorComm.__new__(VendorComm)
        cdef void* handle
        cdef void* saved = NULL
        cdef int code
        self.usable("Split")
        child.prepare(self.ccl, self.runtime, self.device)
        child.timeout_s, child.float8 = self.timeout_s, self.float8
        self.lock("Split")
        try:
            handle = self.enter("Split", &saved)
            try:
                with nogil:
                    code = self.functions.split(self.functions, handle, color, key, child.place)
            finally:
                self.leave(saved)
            if code != 0:
                self.conclude(code, "Split", "split")  # the child is nobody's: freed by the library, or still in work
        finally:
            self.unlock()
        child.handle = child.place[0]
        if child.handle == NULL:
            return None
        child.meet(peers)
        child.start()
        # The parent is done; the library may still be connecting the child.
        child.be_born(self.functions.in_progress, "Split", "split")
        self.ccl.check(self.functions.count(child.handle, &child.nranks), "Split", "count")
        self.ccl.check(self.functions.user_rank(child.handle, &child.rank), "Split", "user_rank")
        return child

    def register(self, size_t ptr, size_t nbytes):
        """Let the library prepare a buffer of the device for what will be sent from or received into it.

        Returns : int, for deregister
        Raises  : SymbolNotFound (the library cannot), NcclError
        """
        cdef void* saved = NULL
        cdef void* token = NULL
        cdef void* handle
        cdef int code
        self.usable("register")
        self.lock("register")
        try:
            handle = self.enter("register", &saved)
            try:
                with nogil:
                    code = self.functions.register_buffer(handle, <void*>ptr, nbytes, &token)
            finally:
                self.leave(saved)
            if code != 0:
                self.conclude(code, "register", "register_buffer")
        finally:
            self.unlock()
        self.registered.add(<size_t>token)
        return <size_t>token

    def deregister(self, size_t token):
        """Undo register. Raises ValueError (not of this communicator), NcclError."""
        cdef void* saved = NULL
        cdef void* handle
        cdef int code
        self.usable("deregister")
        if token not in self.registered:
            raise ValueError(f"token: {token} is of no buffer that is registered with this communicator")
        self.lock("deregister")
        try:
            handle = self.enter("deregister", &saved)
            try:
                with nogil:
                    code = self.functions.deregister_buffer(handle, <void*>token)
            finally:
                self.leave(saved)
            if code != 0:
                self.conclude(code, "deregister", "deregister_buffer")
        finally:
            self.unlock()
        self.registered.discard(token)

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
        self.timeout_ns = self.watch.timeout_ns = <int64_t>(min(seconds, LONGEST_S) * 1e9)

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

    def close(self):
        """Free the communicator, when its work is done; again: nothing. Collective where the library wants it so.

        Raises : CommTimeout, NcclError and the like; it has been aborted then
        """
        if self.place != NULL and self.generation == forks:
            self.await_others("Free")
            if self.handle != NULL:
                self.lock("Free")
                self.unlock()
        if self.closed or self.place == NULL or self.generation != forks:
            self.closed = True
            return
        self.closed = True
        try:
            self.finalize()
            self.destroy()
        finally:
            self.abort()
            self.unwatch()

    cdef int finalize(self) except -1:
        cdef void* saved = NULL
        cdef void* handle
        cdef int code
        if self.handle == NULL:
            return 0
        with nogil:
            hetccl_watch_settle(&self.watch)
        try:
            handle = self.enter("Free", &saved)
            try:
                for token in self.registered:
                    self.functions.deregister_buffer(handle, <void*><size_t>token)
                with nogil:
                    code = self.functions.finalize(handle)
            finally:
                self.leave(saved)
            if code != 0 and code != HETCCL_MISSING:
                self.conclude(code, "Free", "finalize")
        except (PeerError, CommClosed):
            pass  # the watch, or another thread, has ended it meanwhile
        return 0

    cdef int destroy(self) except -1:
        """Free what is finalized, on a thread of its own: the library may hang."""
        cdef void* comm = hetccl_watch_take(&self.watch)
        cdef hetccl_job_t* job
        cdef int code = 0, has_ended = 0
        cdef int64_t began = hetccl_now_ns()
        if comm == NULL:
            return 0
        job = hetccl_job_start(self.gpu, self.device, self.functions.destroy, comm)
        if job == NULL:
            raise MemoryError("a thread that frees the communicator")
        try:
            while not has_ended:
                with nogil:
                    has_ended = hetccl_job_wait(job, LOOK_NS, &code)
                PyErr_CheckSignals()
                if not has_ended and hetccl_now_ns() - began > self.timeout_ns:
                    raise CommTimeout(f"Free: {self.ccl.name} has been freeing the communicator for "
                                      f"{self.timeout_ns / 1e9:g} s (HETCCL_TIMEOUT)", call="Free")
        finally:
            hetccl_job_drop(job)
        if code != 0 and code != self.functions.in_progress:
            raise self.ccl.error_of(code, "Free", "destroy", None)
        return 0

    cdef void unwatch(self) noexcept:
        """End the watch; idempotent."""
        hetccl_watch_unlink(&watches, &self.watch)
        with nogil:
            hetccl_watch_close(&self.watch)

    cdef void* enter(self, str call, void** saved) except? NULL:
        """Keep the communicator from being freed, and make its device the thread's; answers the handle."""
        cdef int code
        cdef void* handle = vendor_hold(self)
        # Other threads may have run since usable().
        if handle == NULL and self.place[0] != NULL or self.closed and call != "Free":
            vendor_release(self)
            self.refuse(call)
        with nogil:
            code = hetccl_device_enter(self.gpu, self.device, saved)
        if code != 0:
            vendor_release(self)
            self.runtime.check(code, "enter")
        return handle

    cdef int leave(self, void* saved) except -1:
        vendor_release(self)
        return self.runtime.check(self.gpu.leave(saved), "leave")

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
        if self.generation != forks:
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
