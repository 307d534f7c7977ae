"""Layer L3: what the communicator's methods ask of their arguments, before a byte moves. The GIL is held."""

from operator import index

from cpython.number cimport PyIndex_Check
from libc.limits cimport INT_MAX

from hetccl._abi cimport HETCCL_MEM_HOST
from hetccl._buffer cimport dtype_name, span_check_overlap, span_of


cdef object whole(object value, str argument):
    if not PyIndex_Check(value):
        raise TypeError(f"{argument}: expected a whole number, got {type(value).__name__}")
    return index(value)


cdef int64_t tag_of(object value, str argument) except -2:
    number = whole(value, argument)
    if not 0 <= number <= INT_MAX:
        raise ValueError(f"{argument}: {number} is outside 0..{INT_MAX}")
    return number


cdef int refuse_stream(object stream) except -1:
    if stream is not None:
        raise ValueError("stream: is for device buffers; host buffers are done on return")
    return 0


cdef int host_span(object obj, Span* span, str argument, bint writable, int64_t blocks) except -1:
    span_of(obj, span, argument, writable, blocks)
    if span.kind != HETCCL_MEM_HOST:
        raise NotImplementedError(f"{argument}: is device memory; this version's collectives run on host buffers")
    if span.layout != NULL:
        raise NotImplementedError(f"{argument}: has a datatype with gaps, which is not moved yet")
    return 0


cdef int match(Span* send, Span* recv, int64_t count) except -1:
    if send.dtype != recv.dtype:
        theirs = dtype_name(recv.dtype)
        raise TypeError(f"sendbuf: is {dtype_name(send.dtype)}, recvbuf {theirs}; they must be the same")
    if send.itemsize != recv.itemsize:  # of raw elements
        raise TypeError(f"sendbuf: has elements of {send.itemsize} bytes, recvbuf of {recv.itemsize}")
    if send.count != count:
        raise ValueError(f"sendbuf: has {send.count} elements where recvbuf's {recv.count} ask for {count}")
    if send.fortran != recv.fortran:
        raise BufferError(f"sendbuf: is {'F' if send.fortran else 'C'}-contiguous, recvbuf is not: elements travel in "
                          "memory order, so they would come out transposed; use numpy.ascontiguousarray")
    span_check_overlap(send, recv, "sendbuf", "recvbuf")
    return 0
