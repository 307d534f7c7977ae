"""A lock that two Python threads may contend for while one of them waits for a peer."""

cdef extern from "pythread.h" nogil:
    ctypedef void* PyThread_type_lock


cdef class Lock:
    cdef PyThread_type_lock lock
    cdef unsigned long owner             # thread that holds it; 0: none

    cdef int acquire(self) except -1
    cdef void release(self) noexcept
