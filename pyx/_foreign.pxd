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

# An instance of torch.Tensor, whose layout must be known: it has no part in autograd, and is neither conjugated nor
# negated on paper. False: it may be; its attributes tell.
cdef bint torch_is_plain(object tensor) noexcept
