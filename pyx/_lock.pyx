"""Layer L0: the lock of one class of traffic of a communicator.

Taken with the GIL held; the GIL is released while waiting.
"""

cdef extern from "pythread.h" nogil:
    PyThread_type_lock PyThread_allocate_lock()
    void PyThread_free_lock(PyThread_type_lock lock)
    int PyThread_acquire_lock(PyThread_type_lock lock, int wait)
    int PyThread_acquire_lock_timed(PyThread_type_lock lock, long long microseconds, int interruptible)
    void PyThread_release_lock(PyThread_type_lock lock)
    unsigned long PyThread_get_thread_ident()

cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1

cdef enum:
    NOWAIT = 0
    # Between two looks at signals; the holder's own wait has the time-out.
    LOOK_US = 50000


cdef class Lock:
    """A lock without a name; see acquire()."""

    def __cinit__(self):
        self.lock = PyThread_allocate_lock()
        if self.lock == NULL:
            raise MemoryError()

    def __dealloc__(self):
        if self.lock != NULL:
            PyThread_free_lock(self.lock)

    cdef int acquire(self) except -1:
        """Take the lock. RuntimeError if this thread has it: a signal handler called into a communicator that waits."""
        cdef unsigned long me = PyThread_get_thread_ident()
        cdef int taken = PyThread_acquire_lock(self.lock, NOWAIT)
        if not taken and self.owner == me:
            raise RuntimeError("this thread is inside a call of the same communicator (called from a signal handler?)")
        while not taken:
            with nogil:
                taken = PyThread_acquire_lock_timed(self.lock, LOOK_US, 0)
            if not taken:
                PyErr_CheckSignals()
        self.owner = me
        return 0

    cdef void release(self) noexcept:
        self.owner = 0
        PyThread_release_lock(self.lock)
