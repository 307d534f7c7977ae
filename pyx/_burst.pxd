"""Calls on device memory that must be queued together."""

from hetccl._request cimport Deferred, Request


cdef class Burst(Deferred):
    pass


# Queue calls on device memory as one group of the library, but for those that are several steps.
cdef int queue_together(list requests) except -1
