"""Other libraries' objects, read from their memory where attributes would cost a call's whole budget."""

from libc.stdint cimport int64_t

ctypedef struct CupyArray:
    void* ptr      # first element; owned by the array
    int64_t count  # elements
    int device     # index
    int order      # HETCCL_NPY_C | HETCCL_NPY_F bits; 0: strided
    void* dtype    # PyObject of NumPy's dtype, borrowed from the array

# Learn where this CuPy keeps its fields; asked once, then remembered. False: it could not be told without doubt.
cdef bint cupy_layout_known(object cupy) except -1

# Read an instance of cupy.ndarray, whose layout must be known. False: it was never initialised.
cdef bint cupy_read(object array, CupyArray* out) noexcept

# The same for torch, as to whether a tensor's memory is all there is to it.
cdef bint torch_layout_known(object torch) except -1

cdef enum:
    TENSOR_PLAIN = 0  # its memory is all there is to it
    TENSOR_TRACKED    # the same, but autograd may follow it: requires_grad tells
    TENSOR_UNKNOWN    # it may be conjugated or negated on paper, too

# What an instance of torch.Tensor is, whose layout must be known.
cdef int torch_state(object tensor) noexcept
