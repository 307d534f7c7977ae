"""Checks of arguments; `argument` is the name that an error gives."""

from libc.stdint cimport int64_t

from hetccl._buffer cimport Span

# A whole number as a Python int; TypeError for anything else.
cdef object whole(object value, str argument)

# A message's tag; ValueError outside 0..2^31-1.
cdef int64_t tag_of(object value, str argument) except -2

# stream= has no meaning for host buffers.
cdef int refuse_stream(object stream) except -1

# span_of for host memory; NotImplementedError for a device's.
cdef int host_span(object obj, Span* span, str argument, bint writable, int64_t blocks) except -1

# Refuse a send buffer that does not go with the receive buffer: dtype, order, overlap. count: elements it must have.
cdef int match(Span* send, Span* recv, int64_t count) except -1
