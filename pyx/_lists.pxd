"""Lists of requests."""


cdef class Lists:
    cdef bint active                     # started, and its outcome not yet taken


# Whether it is a request of mpi4py's.
cdef bint is_mpi_request(object other)
# Make an MPI.Status that of nothing; None is left alone.
cdef int status_clear(object status) except -1
