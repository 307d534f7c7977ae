"""GPU runtimes behind one table (include/hetccl/runtime.h); layer L1."""


cdef class Runtime:
    """A GPU runtime that was opened."""

    cdef int check(self, int code, str call) except -1:
        return 0
