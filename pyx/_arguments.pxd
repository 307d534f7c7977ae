"""Checks of a call's arguments."""

from libc.stdint cimport int64_t

from hetccl._buffer cimport Span
from hetccl._layout cimport Part

# A whole number; TypeError if it is none.
cdef object whole(object value, str argument)

# A tag that MPI allows.
cdef int64_t tag_of(object value, str argument) except -2

# stream is for device buffers.
cdef int refuse_stream(object stream) except -1

# A reduction's buffers: elements one after another.
cdef int refuse_function() except -1
cdef int reducible(Span* span, str argument) except -1

# The MPI datatype that a spec names, or None.
cdef object datatype_in(object spec)

# Packed bytes of a span.
cdef int64_t span_bytes(const Span* span) noexcept

# Cut a span into equal parts, in order.
cdef void span_cut(const Span* span, int nparts, Part* parts) noexcept

# Both sides of one call: the same dtype and memory order, apart, and send of as many bytes as wanted.
cdef int match(Span* send, Span* recv, int64_t nbytes) except -1
# The same but for the number of bytes.
cdef int match_kinds(Span* send, Span* recv) except -1
# Parts that are sent and parts that receive share no byte.
cdef int parts_check_apart(const Part* send, int nsend, const Part* recv, int nrecv) except -1
