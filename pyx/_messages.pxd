"""The point-to-point calls of a communicator."""

from libc.stdint cimport int64_t

from hetccl._mailbox cimport Message as Bound
from hetccl._mailbox cimport Probed
from hetccl._movements cimport Movements
from hetccl._request cimport Request


cdef class Messages(Movements)


cdef class Message:                      # a message that a matched probe took: only its receiver can get it
    cdef Messages endpoint               # None: the null message
    cdef Bound bound
    cdef bint from_nobody
    cdef Probed probed

    cdef Request receive(self, object buf)


cdef class Messages(Movements):
    cdef Request send(self, type kind, object buf, object dest, object tag, int flags, object stream)
    cdef Request recv(self, type kind, object buf, object source, object tag, object stream)
    cdef Request sendrecv(self, object sendbuf, object dest, object sendtag, object recvbuf, object source,
                          object recvtag, object stream)
    cdef Request replace(self, object buf, object dest, object sendtag, object source, object recvtag, object stream)
    cdef Request buffered(self, type kind, object buf, object dest, object tag, object stream)

    cdef int post_send(self, Request request, object dest, object tag, str tag_name, int flags) except -1
    cdef int post_recv(self, Request request, object source, object tag, str tag_name) except -1
    cdef bint is_nobody(self, object peer) except -1
    cdef int source_of(self, object source) except -100
    cdef int64_t tag_or_any(self, object tag, str tag_name) except -2
    cdef bint look(self, object source, object tag, Probed* probed, Bound* bound, bint wait) except -1
    cdef Message taken(self, Message message)
    cdef int tell_probed(self, object status, bint found, Probed* probed) except -1
