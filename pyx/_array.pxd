"""An array of any library -> where and how its elements lie. Layer L2, below _buffer."""

from cpython.buffer cimport Py_buffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "hetccl/arrays.h" nogil:
    ctypedef struct hetccl_dldevice_t:
        int32_t type
        int32_t id

    ctypedef struct hetccl_dldtype_t:
        uint8_t code
        uint8_t bits
        uint16_t lanes

    ctypedef struct hetccl_dltensor_t:
        void* data
        hetccl_dldevice_t device
        int32_t ndim
        hetccl_dldtype_t dtype
        int64_t* shape
        int64_t* strides
        uint64_t byte_offset

    ctypedef struct hetccl_dlmanaged_t:
        hetccl_dltensor_t tensor
        void (*deleter)(hetccl_dlmanaged_t*) noexcept

    ctypedef struct hetccl_dlversioned_t:
        uint32_t major
        uint64_t flags
        hetccl_dltensor_t tensor
        void (*deleter)(hetccl_dlversioned_t*) noexcept

    ctypedef struct hetccl_dlexchange_t:
        uint32_t major
        hetccl_dlexchange_t* previous
        int (*managed_from_object)(void* obj, hetccl_dlversioned_t** out) except -1
        int (*tensor_from_object)(void* obj, hetccl_dltensor_t* out) except -1
        int (*current_stream)(int32_t device_type, int32_t device, void** stream) except -1

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

# The type's DLPack exchange table of our major version, or NULL.
cdef hetccl_dlexchange_t* exchange_of(object cls) except? NULL
# Have obj's library let `stream`, a number as its __dlpack__ takes it, wait for what produces obj.
cdef int dlpack_await(object obj, object stream) except -1
# Whether cls is, or descends from, this class of a library that the program has imported; "cupy", "ndarray".
cdef bint is_of(object cls, str library, str name) except -1
