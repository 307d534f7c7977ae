"""HETCCL_CHECK: do all ranks mean the same call?"""

from libc.stdint cimport int64_t

from hetccl._executor cimport Executor
from hetccl._program cimport Choice


ctypedef struct Signature:               # what all ranks must agree on
    int64_t call                         # index into _executor.CALLS
    int64_t root
    int64_t count                        # elements of a unit
    int64_t dtype
    int64_t op
    int64_t fortran


# Gather every rank's signature with the programs of an all-gather; ValueError on all ranks if they differ. No byte of
# the user's has moved yet, and the communicator stays usable.
cdef int agree(Executor executor, Choice allgather, Signature* mine) except -1
