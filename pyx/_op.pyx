"""Layer L2: the reduction ops that calls take, ours and MPI's. The GIL is held.

An op is one of the loops of _kernels, or one by composition: premul_sum, and functions of the user. This module does
not import mpi4py: bootstrap tells it what MPI's ops and datatypes are.
"""

import numbers
import struct
import sys

from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.number cimport PyIndex_Check
from libc.math cimport isfinite, isinf
from libc.stdint cimport int64_t, uint8_t, uint16_t
from libc.string cimport memcpy

from hetccl._abi cimport (
    HETCCL_AVG, HETCCL_BAND, HETCCL_BFLOAT16, HETCCL_BOR, HETCCL_BXOR, HETCCL_CLONGDOUBLE, HETCCL_COMPLEX64,
    HETCCL_COMPLEX128, HETCCL_FLOAT8_E4M3, HETCCL_FLOAT8_E5M2, HETCCL_FLOAT16, HETCCL_FLOAT32, HETCCL_FLOAT64,
    HETCCL_LAND, HETCCL_LONGDOUBLE, HETCCL_LOR, HETCCL_LXOR, HETCCL_MAX, HETCCL_MAXLOC, HETCCL_MIN, HETCCL_MINLOC,
    HETCCL_PREMUL_SUM, HETCCL_PROD, HETCCL_SUM, HETCCL_USER,
)
from hetccl._buffer cimport dtype_itemsize, dtype_name
from hetccl._dtype cimport code_of_name, type_name
from hetccl._kernels cimport reduce_for, scale_for

cdef extern from "hetccl/reduce_ops.h" nogil:
    uint16_t hetccl_f32_to_bf16(float x)
    float hetccl_bf16_to_f32(uint16_t x)
    uint8_t hetccl_f32_to_e4m3(float x)
    float hetccl_e4m3_to_f32(uint8_t x)
    uint8_t hetccl_f32_to_e5m2(float x)
    float hetccl_e5m2_to_f32(uint8_t x)
    float hetccl_f64_to_f32_odd(double x)

# struct's letters of the dtypes that it can round to. Without the "=" it makes infinity of what is too large.
cdef dict FORMATS = {HETCCL_FLOAT16: "=e", HETCCL_FLOAT32: "=f", HETCCL_FLOAT64: "=d", HETCCL_COMPLEX64: "=ff",
                     HETCCL_COMPLEX128: "=dd"}
cdef tuple COMPLEX = (HETCCL_COMPLEX64, HETCCL_COMPLEX128, HETCCL_CLONGDOUBLE)


cdef class Op:
    """A reduction: SUM and its like, premul_sum(factor), or a function of the user's (Op.Create).

    MPI's own ops, predefined or made by MPI.Op.Create, are accepted in its place.
    """

    def __init__(self):
        raise TypeError("Op: not made by calling it; take hetccl.SUM and its like, premul_sum or Op.Create")

    @classmethod
    def Create(cls, function, commute=False):
        """Make an op of a function, for host buffers.

        function : called as function(inbuf, inoutbuf, datatype); sets inoutbuf[i] = inbuf[i] op inoutbuf[i], where
                   inbuf holds the lower ranks' part. inbuf is a read-only and inoutbuf a writable memoryview of bytes,
                   both valid during the call alone; datatype is the MPI datatype of their elements, or None where MPI
                   has none for them (bfloat16, say). What it raises comes out of the collective. It must be
                   associative, and alike on all ranks.
        commute  : whether operands may also be taken in another order than that of the ranks
        Returns  : Op
        Source   : MPI 4.1, section 6.9.5
        """
        if not callable(function):
            raise TypeError(f"function: expected a callable, got {type_name(function)}")
        cdef Op op = op_new("USER", HETCCL_USER, KIND_USER)
        op.function = function
        op.commutes = bool(commute)
        return op

    def Free(self):
        """Refuse this op in later calls; those that have begun are not disturbed."""
        if self.kind != KIND_USER:
            raise ValueError(f"op: {self!r} is predefined and cannot be freed")
        self.freed = True

    def Is_commutative(self):
        """Whether operands may be taken in any order."""
        return bool(self.commutes)

    @property
    def is_commutative(self):
        """Whether operands may be taken in any order."""
        return bool(self.commutes)

    @property
    def is_predefined(self):
        """Whether this is no function of the user's."""
        return self.kind != KIND_USER

    def __repr__(self):
        if self.kind == KIND_PREMUL:
            return f"hetccl.premul_sum({self.factor!r})"
        if self.kind == KIND_USER:
            return f"hetccl.Op.Create({self.function!r}, commute={bool(self.commutes)})"
        return f"hetccl.{self.name}"

    def __reduce__(self):
        if self.kind == KIND_PREMUL:
            return premul_sum, (self.factor,)
        if self.kind == KIND_USER:
            return Op.Create, (self.function, bool(self.commutes))
        return self.name


cdef Op op_new(str name, int code, int kind):
    cdef Op op = Op.__new__(Op)
    op.name = name
    op.code = code
    op.kind = kind
    op.commutes = True
    return op


SUM = op_new("SUM", HETCCL_SUM, KIND_BUILTIN)
PROD = op_new("PROD", HETCCL_PROD, KIND_BUILTIN)
MIN = op_new("MIN", HETCCL_MIN, KIND_BUILTIN)
MAX = op_new("MAX", HETCCL_MAX, KIND_BUILTIN)
AVG = op_new("AVG", HETCCL_AVG, KIND_BUILTIN)
LAND = op_new("LAND", HETCCL_LAND, KIND_BUILTIN)
LOR = op_new("LOR", HETCCL_LOR, KIND_BUILTIN)
LXOR = op_new("LXOR", HETCCL_LXOR, KIND_BUILTIN)
BAND = op_new("BAND", HETCCL_BAND, KIND_BUILTIN)
BOR = op_new("BOR", HETCCL_BOR, KIND_BUILTIN)
BXOR = op_new("BXOR", HETCCL_BXOR, KIND_BUILTIN)
MINLOC = op_new("MINLOC", HETCCL_MINLOC, KIND_BUILTIN)
MAXLOC = op_new("MAXLOC", HETCCL_MAXLOC, KIND_BUILTIN)

cdef tuple BUILTINS = (SUM, PROD, MIN, MAX, AVG, LAND, LOR, LXOR, BAND, BOR, BXOR, MINLOC, MAXLOC)
OPS = {op.name: op for op in BUILTINS}
cdef dict CODE_NAMES = {(<Op>op).code: op.name for op in BUILTINS}
CODE_NAMES.update({HETCCL_PREMUL_SUM: "PREMUL_SUM", HETCCL_USER: "USER"})

cdef type mpi_type = type(None)
cdef dict mpi_ops = {}                   # handle -> name
cdef dict mpi_datatypes = {}             # name of a dtype -> MPI.Datatype
cdef object mpi_handle_of = None
cdef object mpi_function_of = None
cdef object mpi_buffer_of = None


def premul_sum(factor):
    """An op that multiplies each rank's operand by that rank's own factor, and sums over the ranks.

    factor  : number; float, int or complex, Python's or NumPy's. Ranks may have different ones. It is rounded to the
              dtype of the call, and so is each product, before the sum
    Returns : Op
    Raises  : TypeError (not a number); in the call: TypeError (complex factor of a real dtype), ValueError (a dtype
              that cannot hold the factor: out of range, or a fraction and integers)
    Source  : ncclRedOpCreatePreMulSum
    """
    if not (PyIndex_Check(factor) or hasattr(factor, "__float__") or hasattr(factor, "__complex__")) \
            or getattr(factor, "shape", ()) != ():
        raise TypeError(f"factor: expected a number, got {type_name(factor)}")
    cdef Op op = op_new("PREMUL_SUM", HETCCL_PREMUL_SUM, KIND_PREMUL)
    op.factor = factor
    return op


def register_mpi_ops(op_type, ops, datatypes, handle_of, function_of, buffer_of):
    """Tell the module what the bootstrap learnt from mpi4py.

    op_type     : MPI.Op
    ops         : dict, handle (int) of each predefined MPI op -> its name
    datatypes   : dict, name of a dtype here -> MPI.Datatype, which functions of the user are given
    handle_of   : callable, MPI.Op -> handle
    function_of : callable, MPI.Op of the user -> its Python function, or None if it has none
    buffer_of   : callable, (memoryview, whether it is read-only) -> what mpi4py gives such a function
    """
    global mpi_type, mpi_handle_of, mpi_function_of, mpi_buffer_of
    mpi_type = op_type
    mpi_ops.update(ops)
    mpi_datatypes.update(datatypes)
    mpi_handle_of = handle_of
    mpi_function_of = function_of
    mpi_buffer_of = buffer_of


cdef Op op_of(object op, int dtype, OpChoice* choice, object datatype=None):
    cdef Op found
    if type(op) is Op:
        found = op
    elif isinstance(op, mpi_type):
        found = op_from_mpi(op)
    else:
        raise TypeError(f"op: expected hetccl.{', '.join(OPS)}, premul_sum, Op.Create, or MPI's, got {type_name(op)}")
    choice.code = found.code
    choice.kind = found.kind
    choice.scale = NULL
    choice.reduce = NULL
    if found.kind == KIND_USER:
        if found.freed:
            raise ValueError(f"op: {found!r} has been freed")
        if found.function is None and datatype_of(dtype, datatype) is None:
            raise TypeError(f"op: MPI has no datatype for {dtype_name(dtype)}, which an op made in C needs; name one "
                            "in the buffer spec")
        return found
    choice.reduce = reduce_for(dtype, HETCCL_SUM if found.kind == KIND_PREMUL else found.code)
    if found.kind == KIND_PREMUL:
        choice.scale = scale_for(dtype)
    if choice.reduce == NULL or (found.kind == KIND_PREMUL and choice.scale == NULL):
        hint = "; it takes pairs, as in [buf, MPI.DOUBLE_INT]" if found.code in (HETCCL_MINLOC, HETCCL_MAXLOC) else ""
        raise TypeError(f"op: {found.name} is not defined for {dtype_name(dtype)}{hint}")
    if found.kind == KIND_PREMUL:
        factor_write(found.factor, dtype, choice.factor)
    return found


cdef Op op_from_mpi(object op):
    name = mpi_ops.get(mpi_handle_of(op))
    if name in OPS:
        return OPS[name]
    if name is not None:
        raise ValueError(f"op: MPI.{name} reduces nothing; pass {', '.join(OPS)} or an op of your own")
    cdef Op found = op_new("USER", HETCCL_USER, KIND_USER)
    found.function = mpi_function_of(op)
    found.mpi_op = op
    found.commutes = op.Is_commutative()
    return found


cdef object datatype_of(int dtype, object datatype):
    """The MPI datatype that a user's function is given: the spec's, else the dtype's own if MPI has one."""
    return mpi_datatypes.get(dtype_name(dtype)) if datatype is None else datatype


cdef int op_apply(Op op, const void* in_, void* inout, int64_t count, size_t itemsize, int dtype,
                  object datatype) except -1:
    cdef Py_ssize_t nbytes = count * <Py_ssize_t> itemsize
    if count == 0:
        return 0
    left = PyMemoryView_FromMemory(<char*> in_, nbytes, PyBUF_READ)
    right = PyMemoryView_FromMemory(<char*> inout, nbytes, PyBUF_WRITE)
    datatype = datatype_of(dtype, datatype)
    if op.mpi_op is not None and op.function is not None:
        op.function(mpi_buffer_of(left, True), mpi_buffer_of(right, False), datatype)
    elif op.function is not None:
        op.function(left, right, datatype)
    else:
        op.mpi_op.Reduce_local([left, datatype], [right, datatype])
    return 0


cdef str op_name(long code):
    return CODE_NAMES.get(code)


cdef int factor_write(object factor, int dtype, unsigned char* out) except -1:
    """Write the factor as one element of the dtype."""
    name = dtype_name(dtype)
    if dtype not in COMPLEX and isinstance(factor, numbers.Complex) and not isinstance(factor, numbers.Real):
        raise TypeError(f"factor: {factor!r} is complex, and the dtype is {name}")
    try:
        if dtype == HETCCL_CLONGDOUBLE:
            number = factor if isinstance(factor, numbers.Complex) else complex(factor)
            longdouble_write(number.real, out)
            longdouble_write(number.imag, out + sizeof(long double))
        elif dtype in COMPLEX:
            number = complex(factor)
            bytes_write(struct.pack(FORMATS[dtype], number.real, number.imag), out)
        elif dtype in FORMATS:
            bytes_write(struct.pack(FORMATS[dtype], float(factor)), out)
        elif dtype == HETCCL_LONGDOUBLE:
            longdouble_write(factor, out)
        elif dtype in (HETCCL_BFLOAT16, HETCCL_FLOAT8_E4M3, HETCCL_FLOAT8_E5M2):
            narrow_write(factor, dtype, out)
        else:
            whole = int(factor) if factor == factor else None
            if whole != factor:
                raise ValueError(f"factor: {factor!r} is no whole number, and the dtype is {name}")
            bytes_write(whole.to_bytes(dtype_itemsize(dtype), sys.byteorder, signed=name.startswith("int")), out)
    except OverflowError as error:
        raise ValueError(f"factor: {factor!r} is out of {name}'s range") from error
    return 0


cdef int bytes_write(bytes data, unsigned char* out) except -1:
    memcpy(out, <const char*> data, len(data))
    return 0


cdef int longdouble_write(object factor, unsigned char* out) except -1:
    """Two doubles hold all bits of a long double: the nearest one, and what it leaves."""
    cdef double high = factor, low = 0
    cdef long double value
    if isinf(high) and factor != high:
        raise OverflowError
    if isfinite(high) and isinstance(factor, numbers.Real):
        low = factor - (int(high) if PyIndex_Check(factor) else high)
    value = high
    if low != 0:  # else -0 would become +0
        value += low
    memcpy(out, &value, sizeof(value))
    return 0


cdef int narrow_write(double factor, int dtype, unsigned char* out) except -1:
    """Round once, from double to a float that struct does not know."""
    cdef float wide = hetccl_f64_to_f32_odd(factor), back
    cdef uint16_t half
    if dtype == HETCCL_BFLOAT16:
        half = hetccl_f32_to_bf16(wide)
        back = hetccl_bf16_to_f32(half)
        memcpy(out, &half, sizeof(half))
    elif dtype == HETCCL_FLOAT8_E4M3:
        out[0] = hetccl_f32_to_e4m3(wide)
        back = hetccl_e4m3_to_f32(out[0])
    else:
        out[0] = hetccl_f32_to_e5m2(wide)
        back = hetccl_e5m2_to_f32(out[0])
    if isfinite(factor) and not isfinite(back):
        raise OverflowError
    return 0


def describe(op, str dtype, datatype=None):
    """What a reduction on the dtype would take op for: an entry for tests.

    dtype    : name of the dtype
    datatype : MPI datatype of the call's spec, or None
    Returns  : dict: op (Op), name, kind ("builtin", "premul", "user"), factor (bytes of one element, or None)
    Raises   : as a reduction does
    """
    cdef OpChoice choice
    cdef int code = code_of_name(dtype)
    found = op_of(op, code, &choice, datatype)
    premul = choice.kind == KIND_PREMUL
    return {
        "op": found,
        "name": op_name(choice.code),
        "kind": {KIND_BUILTIN: "builtin", KIND_PREMUL: "premul", KIND_USER: "user"}[choice.kind],
        "factor": (<char*> choice.factor)[:dtype_itemsize(code)] if premul else None,
    }


def apply(op, str dtype, inbuf, inoutbuf, datatype=None):
    """Run a user's op once, inoutbuf = inbuf op inoutbuf: an entry for tests.

    inbuf, inoutbuf : contiguous buffers of bytes, of one length; inoutbuf is writable
    """
    cdef OpChoice choice
    cdef int code = code_of_name(dtype)
    cdef const unsigned char[::1] left = inbuf
    cdef unsigned char[::1] right = inoutbuf
    cdef size_t itemsize = dtype_itemsize(code)
    cdef Op found = op_of(op, code, &choice, datatype)
    op_apply(found, <const void*> &left[0], <void*> &right[0], right.shape[0] // itemsize, itemsize, code, datatype)
