"""A communicator of a vendor's CCL: one rank's end of an island; layer L2."""


cdef class VendorComm:
    """One rank's end of an island."""

    cdef int usable(self, str call) except -1:
        return 0

    cdef int conclude(self, int code, str call, str function) except -1:
        return 0
