"""HETCCL_CHECK: do all ranks mean the same call?"""

from libc.stdint cimport int64_t


# Words of what a rank says of its call. After these come the bytes that it sends to each rank, and those that it
# expects from each; zeros where the count says it all.
cdef enum:
    CHECK_CALL = 0                       # index into CALLS
    CHECK_ROOT = 1
    CHECK_OP = 2
    CHECK_DTYPE = 3
    CHECK_COUNT = 4                      # elements of a unit
    CHECK_FORTRAN = 5
    CHECK_MEMORY = 6                     # HETCCL_MEM_*
    CHECK_WORDS = 7


ctypedef struct Check:
    void* program                        # Program of the all-gather that brings the words together
    int64_t nwords                       # of a rank
    int64_t* mine
    int64_t* everyone                    # nranks * nwords


cdef int check_open(Check* check, int nranks) except -1
cdef void check_close(Check* check) noexcept nogil
cdef bint check_holds(const Check* check, int nranks) noexcept nogil
# The ValueError that every rank gets when a check did not hold.
cdef object check_error(const Check* check, int nranks, int rank)
