"""What every method of a communicator starts from."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t

from hetccl._buffer cimport Span
from hetccl._executor cimport Executor
from hetccl._kernels cimport hetccl_reduce_fn
from hetccl._layout cimport Part
from hetccl._lists cimport Deferred
from hetccl._program cimport Choice, Program
from hetccl._request cimport Request


cdef enum:
    # A portion of a large reduction, and between islands of every large collective. Smaller ones synchronise the ranks
    # more often, larger ones have left the cache before the peers read them; measured on 2 to 8 ranks
    # (docs/performance.md).
    PORTION_BYTES = 8388608

cdef bint has_ended                      # no call is possible any more in this process


cdef class Batch:                        # the calls inside `with comm.group():`
    cdef object endpoint
    cdef unsigned long thread
    cdef int depth
    cdef list calls                      # (Request, status)

    cdef int run(self, list calls) except -1


cdef class Endpoint:
    cdef readonly object mpi             # the MPI communicator underneath
    cdef readonly int rank
    cdef readonly int size
    cdef readonly tuple islands
    cdef readonly tuple members
    cdef object membership
    cdef Executor executor
    cdef list choices                    # Choice by call (or in-place variant) and root; None until needed
    cdef Deferred deferred
    cdef Batch batch                     # open in some thread, or None
    cdef bint crosses                    # there are several islands
    cdef bint check                      # HETCCL_CHECK
    cdef bint closed

    cdef int usable(self, int call) except -1
    cdef int rank_of(self, object value, str argument) except -1
    cdef Request request(self, type kind, int call, object stream)
    cdef bint is_in_batch(self) noexcept
    # A blocking call: run it, or record it if this thread is in a group.
    cdef int finish(self, Request request, object status) except -1
    cdef Choice choose(self, int call, int root, bint in_place)
    # Room for parts of IN and of OUT; they are the request's.
    cdef Part* parts_for(self, Request request, int nin, int nout) except NULL
    # Set a request up to run a collective on units alike of `count` elements ...
    cdef int aim(self, Request request, int plan, int root, void* source, void* target, int64_t count, size_t itemsize,
                 bint in_place) except -1
    # ... or on its parts, of which OUT's begin after nin. nin, nout: 0 where this rank has no such buffer.
    cdef int aim_parts(self, Request request, int plan, int root, int nin, int nout, size_t itemsize,
                       bint in_place) except -1
    cdef int64_t portion_of(self, int plan, size_t itemsize) noexcept
    # HETCCL_CHECK: what this rank says of the call. nbytes sent to and expected from ranks come by expect().
    cdef int declare(self, Request request, int root, int64_t op, Span* given, int64_t count) except -1
    cdef int expect(self, Request request, int peer, int64_t sends, int64_t expects) except -1
    # Every rank's value, in rank order; a collective of that name, and a wait.
    cdef list tell(self, int call, int64_t value)
