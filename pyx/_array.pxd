"""An array of any library -> where and how its elements lie. Layer L2, below _buffer."""

from cpython.buffer cimport Py_buffer
from libc.stdint cimport int64_t

cdef enum:
    ARRAY_MAX_NDIM = 64        # NumPy's limit
    DEVICE_UNKNOWN = -1        # __cuda_array_interface__ does not say; only the runtime can tell

# What keeps the memory exported, and must be given back once.
cdef enum:
    HELD_NOTHING = 0
    HELD_VIEW
    HELD_DLPACK_0  # hetccl_dlmanaged_t
    HELD_DLPACK_1  # hetccl_dlversioned_t

ctypedef struct Export:
    int held
    Py_buffer view  # of HELD_VIEW
    void* managed   # of HELD_DLPACK_*: ours, its deleter not yet called

ctypedef struct Memory:
    void* ptr
    int64_t itemsize             # bytes
    int code                     # HETCCL_<dtype> or CODE_*
    int kind                     # HETCCL_MEM_*
    int device                   # index among devices of its kind, or DEVICE_UNKNOWN
    int order                    # HETCCL_NPY_C | HETCCL_NPY_F bits; 0 is strided
    bint readonly
    int ndim
    const int64_t* shape         # owned by the object or its export, or `store`
    const int64_t* strides       # in units of stride_unit; NULL is C order
    int64_t stride_unit          # bytes
    int64_t[2 * ARRAY_MAX_NDIM] store

# Describe obj's memory; no byte of it is touched, and no stream is waited for. arg: the argument's name, for errors.
# writable: the caller will write, so a copy by the exporter is refused. After an error, too, export must be released.
cdef int array_read(object obj, Export* export, Memory* memory, object arg, bint writable) except -1
cdef void export_release(Export* export) noexcept
