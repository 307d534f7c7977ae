"""Calls on device memory that must be queued together."""

from hetccl._crossing_messages cimport Haul, MessageCrossing
from hetccl._lists cimport Deferred, Lists
from hetccl._request cimport Request


cdef class Burst(Deferred):
    pass


cdef bint is_patient(Request request) noexcept
# Give a request's messages to the engine ...
cdef int post_across(Request request, int nsharing, bint heeded) except -1
cdef int address(Request request, int i, bint heeded) except -1
# ... and queue their copies, with those of others.
cdef int queue_across(list requests) except -1
cdef int list_hauls(Request request, MessageCrossing crossing, Haul* hauls) except -1
# Queue calls on device memory as one group of the library, but for those that are several steps.
cdef int queue_together(list requests) except -1
