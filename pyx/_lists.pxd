"""Lists of requests, and what else a request needs of its kind."""


cdef class Task:                         # what a request does itself, on the user's thread, with the GIL
    cdef int before(self) except -1      # at each start
    cdef int after(self) except -1       # once the engine is done


cdef class Lists:
    cdef bint active                     # started, and its outcome not yet taken


# Messages in device memory that have been started and whose work on the GPU is not queued yet. On a stream each would
# wait for its peer's, so those that a rank starts together go as one group, when one of them is waited for or another
# call comes. The objects are Requests.
cdef class Deferred:
    cdef list requests

    cdef int post(self, Lists request) except -1  # start one
    cdef int run(self, Lists last, bint heeded) except -1  # a blocking one; heeded: its status will be asked for
    # See that one is queued, by whatever thread; False: it need not be yet, and the caller will not wait.
    cdef bint queue(self, Lists request, bint waits) except -1
    # Queue those that others may wait for. last: a message to go with them, or None; calls of a group
    cdef int flush(self, Lists last) except -1
    cdef int flush_with(self, list last) except -1


# Whether it is a request of mpi4py's.
cdef bint is_mpi_request(object other)
# Make an MPI.Status that of nothing; None is left alone.
cdef int status_clear(object status) except -1
