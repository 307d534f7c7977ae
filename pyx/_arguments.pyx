"""Layer L3: what the communicator's methods ask of their arguments, before a byte moves. The GIL is held."""

from operator import index

from cpython.number cimport PyIndex_Check
from libc.limits cimport INT_MAX
from libc.stdint cimport uint8_t

from hetccl._buffer cimport dtype_name, span_check_overlap
from hetccl._overlap cimport parts_shared_across


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


cdef int refuse_function() except -1:
    raise TypeError("op: a function of the user's runs on host memory, and the buffers are in GPU memory")


cdef int reducible(Span* span, str argument) except -1:
    if span.layout != NULL:
        raise TypeError(f"{argument}: a reduction takes elements that lie one after another; this datatype leaves "
                        "gaps. Copy them first")
    return 0


cdef object datatype_in(object spec):
    if not isinstance(spec, (list, tuple)) or len(spec) < 2:
        return None
    last = spec[len(spec) - 1]
    return None if last is None or isinstance(last, (str, list, tuple)) or PyIndex_Check(last) else last


cdef int64_t span_bytes(const Span* span) noexcept:
    return span.count * <int64_t>span.itemsize


cdef void span_cut(const Span* span, int nparts, Part* parts) noexcept:
    cdef int64_t count = span.count // nparts
    cdef int64_t step = count * (<int64_t>span.itemsize if span.layout == NULL else span.layout.extent)
    cdef int i
    for i in range(nparts):
        parts[i].ptr = <uint8_t*>span.ptr + i * step
        parts[i].nbytes = count * <int64_t>span.itemsize
        parts[i].layout = span.layout


cdef int match_kinds(Span* send, Span* recv) except -1:
    if send.dtype != recv.dtype:
        theirs = dtype_name(recv.dtype)
        raise ValueError(f"sendbuf: is {dtype_name(send.dtype)}, recvbuf {theirs}; they must be the same")
    if send.fortran != recv.fortran and send.layout == NULL and recv.layout == NULL:
        raise BufferError(f"sendbuf: is {'F' if send.fortran else 'C'}-contiguous, recvbuf is not: elements travel in "
                          "memory order, so they would come out transposed; use numpy.ascontiguousarray")
    return 0


cdef int match(Span* send, Span* recv, int64_t nbytes) except -1:
    match_kinds(send, recv)
    if span_bytes(send) != nbytes:
        if send.itemsize == recv.itemsize:
            raise ValueError(f"sendbuf: has {send.count} elements where recvbuf's {recv.count} ask for "
                             f"{nbytes // <int64_t>recv.itemsize}")
        raise ValueError(f"sendbuf: has {span_bytes(send)} bytes where recvbuf's {span_bytes(recv)} ask for {nbytes}")
    return span_check_overlap(send, recv, "sendbuf", "recvbuf")


cdef int parts_check_apart(const Part* send, int nsend, const Part* recv, int nrecv) except -1:
    cdef int i, j
    cdef int64_t shared = parts_shared_across(send, nsend, recv, nrecv, &i, &j)
    if shared:
        raise ValueError(f"sendbuf (part {i}) and recvbuf (part {j}) share {shared} bytes; they must be apart (pass "
                         "IN_PLACE as sendbuf to work in place)")
    return 0
