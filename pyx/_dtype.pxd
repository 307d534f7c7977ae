"""Numbers of hetccl's dtypes from the ways in which others name them, and back. Layer L2."""

# Elements that hetccl does not carry. A spec's datatype may yet move UNSUPPORTED ones as raw memory, SWAPPED as bytes.
cdef enum:
    CODE_UNSUPPORTED = -1
    CODE_SWAPPED = -2  # not this machine's byte order
    CODE_OPAQUE = -3   # Python objects, or several elements in a byte
    CODE_UNASKED = -4  # not looked at yet

cdef char BYTEORDER_SWAPPED  # b">" or b"<", whichever is not this machine's

# HETCCL_<dtype> of NumPy's kind letter (b i u f c) and size in bytes, or CODE_UNSUPPORTED.
cdef int code_of(char kind, size_t itemsize) noexcept nogil
# HETCCL_<dtype> or CODE_* of a buffer protocol format. Its sizes are not trusted (ctypes' are wrong), itemsize is.
cdef int code_of_format(const char* text, size_t itemsize) noexcept nogil
# HETCCL_<dtype> of a dtype's name as NumPy, ml_dtypes and torch spell it, or CODE_UNSUPPORTED.
cdef int code_of_name(object name) except? -1

# MPI datatype or type string -> HETCCL_<dtype>; CODE_UNSUPPORTED for an MPI datatype that has no number: derived, say.
# TypeError naming arg for a string without a dtype and for what is no datatype.
cdef int dtype_code(object datatype, object arg) except? CODE_UNSUPPORTED
cdef object datatype_handle(object datatype, object arg)  # of an MPI datatype; TypeError naming arg for anything else
cdef int datatype_code(object handle) except -1           # of an MPI datatype's handle: HETCCL_<dtype> or HETCCL_RAW
# Add MPI's datatypes: {handle: name}, and the callable that gives an MPI.Datatype's handle (or a TypeError).
cdef int datatypes_add(object datatypes, object handle_of) except -1
cdef size_t dtype_itemsize(int dtype) noexcept nogil
cdef size_t dtype_alignment(int dtype) noexcept nogil  # bytes that an element's address is a multiple of
cdef object dtype_name(int dtype)
cdef object dtype_names()  # all of them, for messages

cdef object type_name(object obj)  # of an object's type, with its module
