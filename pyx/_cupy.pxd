"""CuPy's arrays, read from their memory: what costs a microsecond through attributes costs a few nanoseconds here."""

from libc.stdint cimport int64_t

ctypedef struct CupyArray:
    void* ptr      # first element; owned by the array
    int64_t count  # elements
    int device     # index
    int order      # HETCCL_NPY_C | HETCCL_NPY_F bits; 0: strided, or not known
    void* dtype    # PyObject of NumPy's dtype, borrowed from the array

# Learn where this CuPy keeps its fields; asked once, then remembered. False: it could not be told without doubt.
cdef bint cupy_layout_known(object cupy) except -1

# Read an instance of cupy.ndarray, whose layout must be known. False: it was never initialised.
cdef bint cupy_read(object array, CupyArray* out) noexcept
