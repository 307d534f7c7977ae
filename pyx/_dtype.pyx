"""Numbers of hetccl's dtypes (include/hetccl/abi.h) from the ways in which others name them, and back.

Layer L2, below _array and _buffer. The tables are filled once, at import, and register_datatypes adds MPI's.
"""

import sys

from hetccl._abi cimport (
    HETCCL_BFLOAT16, HETCCL_BOOL, HETCCL_COMPLEX64, HETCCL_COMPLEX128, HETCCL_FLOAT8_E4M3, HETCCL_FLOAT8_E5M2,
    HETCCL_FLOAT16, HETCCL_FLOAT32, HETCCL_FLOAT64, HETCCL_INT8, HETCCL_INT16, HETCCL_INT32, HETCCL_INT64,
    HETCCL_LONGDOUBLE, HETCCL_NDTYPES, HETCCL_UINT8, HETCCL_UINT16, HETCCL_UINT32, HETCCL_UINT64,
)

cdef char BYTEORDER_SWAPPED = b">" if sys.byteorder == "little" else b"<"
cdef size_t[HETCCL_NDTYPES] itemsizes
cdef size_t[HETCCL_NDTYPES] alignments
cdef dict names = {}          # HETCCL_<dtype> -> name
cdef dict named = {}          # name -> HETCCL_<dtype>
cdef dict typecodes = {}      # type string of mpi4py -> HETCCL_<dtype>
cdef dict mpi_datatypes = {}  # MPI datatype handle -> HETCCL_<dtype>
cdef object mpi_handle_of = None


cdef int code_of(char kind, size_t itemsize) noexcept nogil:
    if kind == b"f":
        if itemsize == 4: return HETCCL_FLOAT32
        if itemsize == 8: return HETCCL_FLOAT64
        if itemsize == 2: return HETCCL_FLOAT16
        if itemsize == sizeof(long double): return HETCCL_LONGDOUBLE
    elif kind == b"i":
        if itemsize == 8: return HETCCL_INT64
        if itemsize == 4: return HETCCL_INT32
        if itemsize == 2: return HETCCL_INT16
        if itemsize == 1: return HETCCL_INT8
    elif kind == b"u":
        if itemsize == 1: return HETCCL_UINT8
        if itemsize == 8: return HETCCL_UINT64
        if itemsize == 4: return HETCCL_UINT32
        if itemsize == 2: return HETCCL_UINT16
    elif kind == b"c":
        if itemsize == 8: return HETCCL_COMPLEX64
        if itemsize == 16: return HETCCL_COMPLEX128
    elif kind == b"b" and itemsize == 1:
        return HETCCL_BOOL
    return CODE_UNSUPPORTED


cdef char kind_of_letter(char letter) noexcept nogil:
    """NumPy's kind letter of a struct module (PEP 3118) letter, or 0."""
    if letter in b"fdeg": return b"f"
    if letter in b"bhilqn": return b"i"
    if letter in b"BHILQNPc": return b"u"
    if letter == b"?": return b"b"
    if letter in b"FD": return b"c"
    return 0


cdef int code_of_format(const char* text, size_t itemsize) noexcept nogil:
    cdef char order = b"@"
    if text == NULL:
        return HETCCL_UINT8
    if text[0] in b"@=<>!":
        order = b">" if text[0] == b"!" else text[0]
        text += 1
    if text[0] == b"O" and text[1] == 0:
        return CODE_OPAQUE
    cdef char kind = 0
    if text[0] == b"Z" and text[1] in b"fd" and text[2] == 0:
        kind = b"c"
    elif text[0] and text[1] == 0:
        kind = kind_of_letter(text[0])
    cdef int code = code_of(kind, itemsize)
    if code >= 0 and order == BYTEORDER_SWAPPED and itemsize > 1:
        return CODE_SWAPPED
    return code


cdef int code_of_name(object name) except? -1:
    return named.get(name, CODE_UNSUPPORTED)


cdef int dtype_code(object datatype, object arg) except -1:
    if isinstance(datatype, str):
        code = typecodes.get(datatype)
        if code is None:
            raise TypeError(f"{arg}: no dtype has the type string {datatype!r}; known are {', '.join(typecodes)}")
        return code
    if mpi_handle_of is None:
        raise TypeError(f"{arg}: a datatype is a type string or an MPI.Datatype, got {type_name(datatype)}")
    try:
        handle = mpi_handle_of(datatype)
    except TypeError as error:
        raise TypeError(f"{arg}: a datatype is a type string or an MPI.Datatype, got {type_name(datatype)}") from error
    code = mpi_datatypes.get(handle)
    if code is None:
        label = getattr(datatype, "name", "") or "derived"
        raise TypeError(f"{arg}: MPI datatype {label} has no equal here; use a predefined one of {dtype_names()}")
    return code


cdef size_t dtype_itemsize(int dtype) noexcept nogil:
    return itemsizes[dtype]


cdef size_t dtype_alignment(int dtype) noexcept nogil:
    return alignments[dtype]


cdef object dtype_name(int dtype):
    return names[dtype]


cdef object dtype_names():
    return ", ".join(named)


cdef object type_name(object obj):
    cls = type(obj)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


cdef int dtype_add(str name, int code, size_t itemsize, size_t alignment) except -1:
    names[code] = name
    named[name] = code
    itemsizes[code] = itemsize
    alignments[code] = alignment
    typecodes[name] = code
    return 0


cdef int typecodes_fill() except -1:
    """The strings that mpi4py maps to MPI datatypes: struct and NumPy letters with C's sizes, NumPy's type strings."""
    for letters, size in (("bBc", sizeof(char)), ("hH", sizeof(short)), ("iI", sizeof(int)), ("lL", sizeof(long)),
                          ("qQ", sizeof(long long)), ("nN", sizeof(size_t)), ("pP", sizeof(void*)), ("?", 1), ("e", 2),
                          ("f", sizeof(float)), ("d", sizeof(double)), ("g", sizeof(long double)),
                          ("F", 2 * sizeof(float)), ("D", 2 * sizeof(double))):
        for letter in letters:
            kind = b"i" if letter == "p" else chr(kind_of_letter(ord(letter))).encode()
            typecodes[letter] = code_of(ord(kind), size)
    typecodes["Zf"] = HETCCL_COMPLEX64
    typecodes["Zd"] = HETCCL_COMPLEX128
    for kind in "biufc":
        for size in (1, 2, 4, 8, 16):
            code = code_of(ord(kind), size)
            if code >= 0:
                typecodes[f"{kind}{size}"] = code
    return 0


def register_datatypes(datatypes, handle_of):
    """Add MPI's datatypes. datatypes : dict, handle (int) -> NumPy's name; handle_of : callable, MPI.Datatype -> handle."""
    global mpi_handle_of
    mpi_datatypes.update({handle: named[name] for handle, name in datatypes.items()})
    mpi_handle_of = handle_of


dtype_add("int8", HETCCL_INT8, 1, 1)
dtype_add("uint8", HETCCL_UINT8, 1, 1)
dtype_add("int16", HETCCL_INT16, 2, 2)
dtype_add("uint16", HETCCL_UINT16, 2, 2)
dtype_add("int32", HETCCL_INT32, 4, 4)
dtype_add("uint32", HETCCL_UINT32, 4, 4)
dtype_add("int64", HETCCL_INT64, 8, 8)
dtype_add("uint64", HETCCL_UINT64, 8, 8)
dtype_add("bool", HETCCL_BOOL, 1, 1)
dtype_add("float16", HETCCL_FLOAT16, 2, 2)
dtype_add("float32", HETCCL_FLOAT32, 4, 4)
dtype_add("float64", HETCCL_FLOAT64, 8, 8)
dtype_add("longdouble", HETCCL_LONGDOUBLE, sizeof(long double), sizeof(long double))
dtype_add("complex64", HETCCL_COMPLEX64, 8, 4)
dtype_add("complex128", HETCCL_COMPLEX128, 16, 8)
dtype_add("bfloat16", HETCCL_BFLOAT16, 2, 2)
dtype_add("float8_e4m3fn", HETCCL_FLOAT8_E4M3, 1, 1)
dtype_add("float8_e5m2", HETCCL_FLOAT8_E5M2, 1, 1)
typecodes_fill()
