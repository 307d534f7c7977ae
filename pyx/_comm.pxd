"""The communicator."""

from hetccl._messages cimport Messages
from hetccl._vendor cimport VendorComm


cdef class Comm(Messages):
    cdef bint owns_mpi                   # the MPI communicator was made for this one, and goes with it
    cdef object group_                   # what `group` answers; made when first asked for

    cdef object derived(self, object mpi, VendorComm vendor=*)
    cdef int gather_all(self, int call) except -1
