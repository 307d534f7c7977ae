"""The public communicator (layer L4)."""

from libc.stdint cimport int64_t

from hetccl._buffer cimport Span
from hetccl._executor cimport Executor
from hetccl._exchange cimport Exchange
from hetccl._lock cimport Lock
from hetccl._program cimport Choice

cdef class Comm:
    cdef readonly object mpi
    cdef readonly int rank
    cdef readonly int size
    cdef readonly tuple islands
    cdef readonly tuple members
    cdef object membership
    cdef Executor executor
    cdef list choices                    # [plan * size + root] -> Choice, made when first needed
    cdef Lock collective_lock
    cdef Lock send_lock
    cdef Lock recv_lock
    cdef bint check
    cdef bint closed
    cdef int generation                  # number of forks between the process that built it and the first

    cdef int usable(self, int call) except -1
    cdef int rank_of(self, object value, str argument) except -1
    cdef Choice choose(self, int call, int root, bint in_place)
    cdef int collect(self, int call, int root, Span* send, Span* recv, int64_t count, Span* given, int op,
                     bint in_place=*) except -1
    cdef int fill_send(self, Exchange* exchange, Span* span, object dest, object tag, str tag_name) except -1
    cdef int fill_recv(self, Exchange* exchange, Span* span, object source, object tag, str tag_name) except -1
    cdef int talk(self, int call, Exchange* exchange, object status) except -1
