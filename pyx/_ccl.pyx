"""Vendor CCLs behind one table (include/hetccl/ccl.h); layer L1."""


cdef class Ccl:
    """A vendor's CCL that was opened."""

    cdef int check(self, int code, str call, str function) except -1:
        return 0
