"""The collectives of a communicator that move data."""

from libc.stdint cimport int64_t

from hetccl._buffer cimport Span
from hetccl._layout cimport Part
from hetccl._reductions cimport Reductions
from hetccl._request cimport Request


cdef class Movements(Reductions):
    cdef Request bcast(self, type kind, object buf, object root, object stream)
    cdef Request gather(self, type kind, int call, object sendbuf, object recvbuf, object root, object stream)
    cdef Request scatter(self, type kind, int call, object sendbuf, object recvbuf, object root, object stream)
    cdef Request allgather(self, type kind, object sendbuf, object recvbuf, object stream)
    cdef Request allgatherv(self, type kind, object sendbuf, object recvbuf, object stream)
    cdef Request alltoall(self, type kind, object sendbuf, object recvbuf, object stream)
    cdef Request alltoallv(self, type kind, int call, object sendbuf, object recvbuf, object stream)
    cdef Request barrier(self, type kind, int call)

    # Set a request up to move: spans' units are equal parts, of unit_nbytes each.
    cdef Request movement(self, Request request, int root, int nin, int nout, int64_t unit_nbytes, bint in_place)
    cdef int packed(self, Request request, void** source, void** target, bint in_place) except -1
    cdef int parts_of_units(self, Request request, int nin, int nout, bint in_place) except -1
    cdef int read_parts(self, Request request, int call, object spec, Span* span, str argument, Part* parts) except -1
    cdef int match_own(self, Request request, const Part* given, const Part* wanted) except -1
