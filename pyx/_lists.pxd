"""Lists of requests, and what else a request needs of its kind."""


cdef class Task:                         # what a request does itself, on the user's thread, with the GIL
    cdef int before(self) except -1      # at each start
    cdef int after(self) except -1       # once the engine is done


cdef class Lists:
    cdef bint active                     # started, and its outcome not yet taken


# Whether it is a request of mpi4py's.
cdef bint is_mpi_request(object other)
# Make an MPI.Status that of nothing; None is left alone.
cdef int status_clear(object status) except -1
