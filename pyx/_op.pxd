"""Reduction ops as arguments of calls."""

from libc.stdint cimport int64_t

from hetccl._kernels cimport FACTOR_BYTES, hetccl_reduce_fn, hetccl_scale_fn

cdef enum:
    KIND_BUILTIN  # a loop of _kernels
    KIND_PREMUL   # every rank scales its own operand by its own factor, then the ranks sum
    KIND_USER     # a Python function on two buffers, or an MPI op; host memory only

# What a call needs to know of its op on its dtype: plain C, valid as long as the Op.
ctypedef struct OpChoice:
    int code                             # HETCCL_<op>, alike on all ranks whatever their factors and functions
    int kind
    hetccl_reduce_fn reduce              # KIND_PREMUL: the sum's; KIND_USER: NULL
    hetccl_scale_fn scale                # KIND_PREMUL, else NULL
    unsigned char[FACTOR_BYTES] factor   # of the dtype, for scale


cdef class Op:
    cdef readonly str name
    cdef readonly object factor          # of premul_sum, else None
    cdef object function                 # KIND_USER: called as function(in, inout, datatype)
    cdef object mpi_op                   # KIND_USER of MPI's: the MPI.Op, which may have a function
    cdef int code
    cdef int kind
    cdef bint commutes                   # else operands must be taken in rank order
    cdef bint freed


# The Op that op stands for, and the choice for a reduction on the dtype (HETCCL_RAW: user ops alone). datatype: the MPI
# datatype of the call's spec, or None. TypeError: not an op, or not defined for the dtype; ValueError: an op that
# reduces nothing, a freed one, a factor that the dtype cannot hold. Hold the Op until the call is over.
cdef Op op_of(object op, int dtype, OpChoice* choice, object datatype=*)

# KIND_USER: inout = in op inout, elementwise; in_ is of the lower ranks. Whatever the function raises comes out.
# itemsize: bytes per element; datatype: the MPI datatype of the call's spec, or None for the dtype's own.
cdef int op_apply(Op op, const void* in_, void* inout, int64_t count, size_t itemsize, int dtype,
                  object datatype) except -1

# Name of a code; None for a call without an op.
cdef str op_name(long code)
