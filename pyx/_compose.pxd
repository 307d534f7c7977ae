"""What a request does itself before or after the engine's part."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t

from hetccl._layout cimport hetccl_layout_t
from hetccl._kernels cimport FACTOR_BYTES, hetccl_scale_fn
from hetccl._op cimport Op
from hetccl._executor cimport Executor
from hetccl._lists cimport Task
from hetccl._request cimport Letter, Request


# Uninitialised memory that lives as long as the request's buffers.
cdef uint8_t* temporary(Request request, size_t nbytes) except NULL


cdef class Scale(Task):                  # operands times this rank's own factor, to where the engine reads them
    cdef hetccl_scale_fn scale
    cdef uint8_t[FACTOR_BYTES] factor
    cdef void* target
    cdef const void* source
    cdef int64_t count


cdef class Fold(Task):                   # the ranks' operands, one after another, by a function of the user's
    cdef Op op
    cdef uint8_t* operands               # of ranks 0, 1, ..., noperands-1; overwritten
    cdef int noperands
    cdef void* target
    cdef int64_t count                   # elements of an operand
    cdef size_t itemsize
    cdef int dtype
    cdef object datatype


cdef class Unpack(Task):                # for a library that knows no layouts
    cdef void* target
    cdef const hetccl_layout_t* layout   # of target
    cdef const uint8_t* source
    cdef size_t nbytes


cdef class Move(Task):                   # memory that lies in the way of the engine: before it packs, after it copies
    cdef void* target
    cdef const void* source
    cdef const hetccl_layout_t* layout   # of source; NULL: contiguous
    cdef size_t nbytes
    cdef bint first

    cdef int move(self) except -1


cdef class Deliver(Task):                # a copy of a message, sent on its own
    cdef Executor executor
    cdef object membership
    cdef Letter letter
