"""Reduction ops as arguments of calls."""

cdef class Op:
    cdef readonly str name
    cdef int code                        # HETCCL_<op>


# Code of an op of ours or MPI's for a reduction on the dtype. TypeError: not an op, or not defined for the dtype;
# ValueError: an op of MPI's that hetccl does not have.
cdef int op_code(object op, int dtype) except -1

# Name of a code; None for a call without an op.
cdef str op_name(long code)
