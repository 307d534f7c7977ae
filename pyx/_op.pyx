"""Layer L2: the reduction ops that calls take, ours and MPI's. The GIL is held.

This module does not import mpi4py: bootstrap tells it what MPI's are.
"""

from hetccl._abi cimport HETCCL_AVG, HETCCL_BOOL, HETCCL_MAX, HETCCL_MIN, HETCCL_PROD, HETCCL_SUM
from hetccl._buffer cimport dtype_name
from hetccl._kernels cimport reduce_for


cdef class Op:
    """A reduction. MPI's own ops of the same names are accepted in its place."""

    def __cinit__(self, str name, int code):
        self.name = name
        self.code = code

    def __repr__(self):
        return f"hetccl.{self.name}"

    def __reduce__(self):
        return self.name


SUM = Op("SUM", HETCCL_SUM)
PROD = Op("PROD", HETCCL_PROD)
MIN = Op("MIN", HETCCL_MIN)
MAX = Op("MAX", HETCCL_MAX)
AVG = Op("AVG", HETCCL_AVG)

OPS = {op.name: op for op in (SUM, PROD, MIN, MAX, AVG)}
# MPI's logical ops are these on bool; on numbers they are other functions, which hetccl does not have yet.
OPS_OF_BOOL = {"LOR": SUM, "LAND": PROD}

cdef type mpi_type = type(None)
cdef dict mpi_ops = {}                   # handle -> Op
cdef dict mpi_ops_of_bool = {}           # handle -> Op
cdef object mpi_handle_of = None


def register_mpi_ops(op_type, handles, handle_of):
    """Tell the module MPI's ops.

    op_type   : MPI.Op
    handles   : dict, MPI op handle (int) -> name of the op here
    handle_of : callable, MPI.Op -> handle
    """
    global mpi_type, mpi_handle_of
    mpi_type = op_type
    mpi_ops.update({handle: OPS[name] for handle, name in handles.items() if name in OPS})
    mpi_ops_of_bool.update({handle: OPS_OF_BOOL[name] for handle, name in handles.items() if name in OPS_OF_BOOL})
    mpi_handle_of = handle_of


cdef int op_code(object op, int dtype) except -1:
    if type(op) is not Op:
        if not isinstance(op, mpi_type):
            raise TypeError(f"op: expected hetccl.{', '.join(OPS)}, or MPI's, got {type(op).__name__}")
        op = from_mpi(mpi_handle_of(op), dtype)
    if reduce_for(dtype, (<Op>op).code) == NULL:
        raise TypeError(f"op: {(<Op>op).name} is not defined for {dtype_name(dtype)}")
    return (<Op>op).code


cdef Op from_mpi(object handle, int dtype):
    if handle in mpi_ops:
        return mpi_ops[handle]
    if handle not in mpi_ops_of_bool:
        ours, of_bool = ", ".join(OPS), ", ".join(OPS_OF_BOOL)
        raise ValueError(f"op: this op of MPI's is not supported; {ours} are, and {of_bool} of bool")
    if dtype != HETCCL_BOOL:
        raise TypeError(f"op: MPI's logical ops are supported on bool alone, not on {dtype_name(dtype)}")
    return mpi_ops_of_bool[handle]


cdef str op_name(long code):
    for op in OPS.values():
        if (<Op>op).code == code:
            return op.name
    return None
