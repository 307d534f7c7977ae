"""A communicator of a vendor's CCL: how it is made, split and freed, and its registered buffers; layer L2.

The library makes a communicator on a thread of its own, so that the wait can end: by a time-out, Ctrl-C, the end of a
peer; and frees it on another. The GIL is released in each call that may take long.
"""

cimport cython
from libc.stdlib cimport calloc

from hetccl._runtime cimport HETCCL_MISSING
from hetccl._watched cimport (
    hetccl_job_drop, hetccl_job_start, hetccl_job_t, hetccl_job_wait, hetccl_now_ns, hetccl_peer_t,
    hetccl_watch_ended, hetccl_watch_meet, HETCCL_WATCH_NOBODY, hetccl_watch_settle, hetccl_watch_take, LOOK_NS,
    PEER_NEWS_NS, time_ns,
)

from hetccl.errors import CommClosed, CommTimeout, PeerError

cdef extern from "hetccl/ccl_birth.h" nogil:
    hetccl_birth_t* hetccl_birth_start(const hetccl_ccl_t* ccl, const hetccl_runtime_t* gpu, int device, int nranks,
                                       int rank, const void* id)
    int hetccl_birth_wait(hetccl_birth_t* birth, int64_t timeout_ns, int* code, void** comm)

cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1


@cython.final
cdef class VendorComm(WatchedComm):
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
        self.registered = set()

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
        cdef int64_t until = hetccl_now_ns() + time_ns(seconds)
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
            self.watch_over()
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
        child.watch_over()
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

    def close(self):
        """Free the communicator, when its work is done; again: nothing. Collective where the library wants it so.

        Raises : CommTimeout, NcclError and the like; it has been aborted then
        """
        if self.place != NULL and not self.is_inherited():
            self.await_others("Free")
            if self.handle != NULL:
                self.lock("Free")
                self.unlock()
        if self.closed or self.place == NULL or self.is_inherited():
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
