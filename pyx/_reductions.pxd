"""The reductions of a communicator."""

from libc.stdint cimport int64_t

from hetccl._buffer cimport Span
from hetccl._compose cimport Fold
from hetccl._op cimport Op, OpChoice
from hetccl._placement cimport Placement
from hetccl._request cimport Request


cdef class Reductions(Placement):
    cdef Request allreduce(self, type kind, object sendbuf, object recvbuf, object op, object stream)
    cdef Request reduce(self, type kind, object sendbuf, object recvbuf, object op, object root, object stream)
    cdef Request scatter_block(self, type kind, object sendbuf, object recvbuf, object op, object stream)
    cdef Request scatter_uneven(self, type kind, object sendbuf, object recvbuf, object recvcounts, object op,
                                object stream)
    cdef Request scan(self, type kind, int call, object sendbuf, object recvbuf, object op, object stream)

    cdef void* read_both(self, Request request, object sendbuf, object recvbuf) except? NULL
    cdef Op op_for(self, object op, Span* span, str argument, OpChoice* choice, object datatype)
    cdef list counts_for(self, object recvcounts, int64_t received, int64_t given, bint in_place)
    cdef int declare_parts(self, Request request, int64_t op) except -1
    cdef Request reduction(self, Request request, Op op, OpChoice* choice, int root, void* source, int64_t operand,
                           int64_t count, Span* given, object datatype)
    cdef int use(self, Request request, OpChoice* choice) except -1
    cdef void* scaled(self, Request request, OpChoice* choice, void* source, int64_t operand,
                      size_t itemsize) except? NULL
    cdef int folded(self, Request request, Op op, int root, void* source, int64_t count, Span* given,
                    object datatype) except -1
    cdef Request folded_uneven(self, Request request, Op op, OpChoice* choice, object datatype)
    cdef Fold fold_of(self, Request request, Op op, int64_t count, Span* given, object datatype)
