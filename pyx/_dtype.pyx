"""Numbers of hetccl's dtypes (include/hetccl/abi.h) from the ways in which others name them, and back.

Layer L2, below _array and _buffer. The tables are filled once, at import, and datatypes_add adds MPI's.
"""

import sys

from hetccl._abi cimport (
    HETCCL_BFLOAT16, HETCCL_BOOL, HETCCL_CLONGDOUBLE, HETCCL_COMPLEX64, HETCCL_COMPLEX128, HETCCL_DOUBLE_INT,
    HETCCL_FLOAT8_E4M3, HETCCL_FLOAT8_E5M2, HETCCL_FLOAT16, HETCCL_FLOAT32, HETCCL_FLOAT64, HETCCL_FLOAT_INT, HETCCL_INT8, HETCCL_INT16,
    HETCCL_INT32, HETCCL_INT64, HETCCL_INT_INT, HETCCL_LONGDOUBLE, HETCCL_LONGDOUBLE_INT, HETCCL_LONG_INT,
    HETCCL_RAW, HETCCL_SHORT_INT, HETCCL_UINT8, HETCCL_UINT16, HETCCL_UINT32, HETCCL_UINT64, hetccl_double_int_t,
    hetccl_float_int_t, hetccl_int_int_t, hetccl_long_int_t, hetccl_longdouble_int_t, hetccl_short_int_t,
)

cdef enum:
    ITEMSIZE_MAX = 32  # bytes, of clongdouble

cdef char BYTEORDER_SWAPPED = b">" if sys.byteorder == "little" else b"<"
cdef size_t[HETCCL_RAW + 1] itemsizes
cdef size_t[HETCCL_RAW + 1] alignments
cdef int[128][ITEMSIZE_MAX + 1] codes  # [NumPy's kind letter][bytes] -> HETCCL_<dtype> or CODE_UNSUPPORTED
cdef char[128] kinds                   # struct module (PEP 3118) letter -> NumPy's kind letter, or 0
cdef dict names = {}          # HETCCL_<dtype> -> name
cdef dict named = {}          # name -> HETCCL_<dtype>
cdef dict typecodes = {}      # type string of mpi4py -> HETCCL_<dtype>
cdef dict mpi_datatypes = {}  # MPI datatype handle -> HETCCL_<dtype>
cdef object mpi_handle_of = None


cdef int code_of(char kind, size_t itemsize) noexcept nogil:
    return codes[<int> kind][itemsize] if kind >= 0 and itemsize <= ITEMSIZE_MAX else CODE_UNSUPPORTED


cdef bint format_has_pointers(const char* text) noexcept nogil:
    """Whether a format has Python objects or addresses in it, which mean nothing to another process."""
    cdef bint in_name = False
    while text[0]:
        if text[0] == b":":  # names of fields stand between colons
            in_name = not in_name
        elif not in_name and text[0] in b"O&X":
            return True
        text += 1
    return False


cdef int code_of_format(const char* text, size_t itemsize) noexcept nogil:
    cdef char order = b"@"
    if text == NULL:
        return HETCCL_UINT8
    if text[0] in b"@=<>!":
        order = b">" if text[0] == b"!" else text[0]
        text += 1
    if format_has_pointers(text):
        return CODE_OPAQUE
    cdef char kind = 0
    if text[0] == b"Z" and text[1] in b"fdg" and text[2] == 0:
        kind = b"c"
    elif text[0] and text[1] == 0:
        kind = kinds[<int> text[0]] if text[0] > 0 else 0
    cdef int code = code_of(kind, itemsize)
    if code >= 0 and order == BYTEORDER_SWAPPED and itemsize > 1:
        return CODE_SWAPPED
    return code


cdef int code_of_name(object name) except? -1:
    return named.get(name, CODE_UNSUPPORTED)


cdef object not_a_datatype(object datatype, object arg):
    return TypeError(f"{arg}: a datatype is a type string or an MPI.Datatype, got {type_name(datatype)}; a list is a "
                     "buffer spec such as [data, count, datatype], it cannot hold the numbers themselves")


cdef int dtype_code(object datatype, object arg) except? CODE_UNSUPPORTED:
    if not isinstance(datatype, str):
        return mpi_datatypes.get(datatype_handle(datatype, arg), CODE_UNSUPPORTED)
    code = typecodes.get(datatype)
    if code is None:
        raise TypeError(f"{arg}: no dtype has the type string {datatype!r}; known are {', '.join(typecodes)}")
    return code


cdef object datatype_handle(object datatype, object arg):
    if mpi_handle_of is None:
        raise not_a_datatype(datatype, arg)
    try:
        return mpi_handle_of(datatype)
    except TypeError as error:
        raise not_a_datatype(datatype, arg) from error


cdef int datatype_code(object handle) except -1:
    return mpi_datatypes.get(handle, HETCCL_RAW)


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


cdef int dtype_add(str name, int code, str kind, size_t itemsize, size_t alignment) except -1:
    """One row of the table of dtypes. kind: NumPy's letter, or "" for those that kind and size do not tell."""
    names[code] = name
    named[name] = code
    itemsizes[code] = itemsize
    alignments[code] = alignment
    typecodes[name] = code
    if kind:
        codes[<unsigned char> ord(kind)][itemsize] = code
        typecodes[f"{kind}{itemsize}"] = code
    return 0


cdef int letters_add(str kind, dict letters) except -1:
    """letters: struct module letter -> bytes in C, which is how mpi4py reads them as type strings."""
    for letter, itemsize in letters.items():
        kinds[<unsigned char> ord(letter)] = <char> ord(kind)
        typecodes[letter] = code_of(<char> ord(kind), itemsize)
    return 0


cdef int datatypes_add(object datatypes, object handle_of) except -1:
    global mpi_handle_of
    mpi_datatypes.update({handle: named[name] for handle, name in datatypes.items()})
    mpi_handle_of = handle_of
    return 0


for _letter in range(128):
    for _itemsize in range(ITEMSIZE_MAX + 1):
        codes[<int> _letter][<int> _itemsize] = CODE_UNSUPPORTED

dtype_add("int8", HETCCL_INT8, "i", 1, 1)
dtype_add("uint8", HETCCL_UINT8, "u", 1, 1)
dtype_add("int16", HETCCL_INT16, "i", 2, 2)
dtype_add("uint16", HETCCL_UINT16, "u", 2, 2)
dtype_add("int32", HETCCL_INT32, "i", 4, 4)
dtype_add("uint32", HETCCL_UINT32, "u", 4, 4)
dtype_add("int64", HETCCL_INT64, "i", 8, 8)
dtype_add("uint64", HETCCL_UINT64, "u", 8, 8)
dtype_add("bool", HETCCL_BOOL, "b", 1, 1)
dtype_add("float16", HETCCL_FLOAT16, "f", 2, 2)
if sizeof(long double) > sizeof(double):  # else it is float64 by another name
    dtype_add("longdouble", HETCCL_LONGDOUBLE, "f", sizeof(long double), sizeof(long double))
    dtype_add("clongdouble", HETCCL_CLONGDOUBLE, "c", 2 * sizeof(long double), sizeof(long double))
dtype_add("float32", HETCCL_FLOAT32, "f", 4, 4)
dtype_add("float64", HETCCL_FLOAT64, "f", 8, 8)
dtype_add("complex64", HETCCL_COMPLEX64, "c", 8, 4)
dtype_add("complex128", HETCCL_COMPLEX128, "c", 16, 8)
dtype_add("bfloat16", HETCCL_BFLOAT16, "", 2, 2)
dtype_add("float8_e4m3fn", HETCCL_FLOAT8_E4M3, "", 1, 1)
dtype_add("float8_e5m2", HETCCL_FLOAT8_E5M2, "", 1, 1)
# MPI's pairs of a value and an int, for MINLOC and MAXLOC: by name or MPI datatype, as no NumPy dtype is theirs alone.
dtype_add("float_int", HETCCL_FLOAT_INT, "", sizeof(hetccl_float_int_t), sizeof(float))
dtype_add("double_int", HETCCL_DOUBLE_INT, "", sizeof(hetccl_double_int_t), sizeof(double))
dtype_add("long_int", HETCCL_LONG_INT, "", sizeof(hetccl_long_int_t), sizeof(long))
dtype_add("int_int", HETCCL_INT_INT, "", sizeof(hetccl_int_int_t), sizeof(int))
dtype_add("short_int", HETCCL_SHORT_INT, "", sizeof(hetccl_short_int_t), sizeof(int))
dtype_add("longdouble_int", HETCCL_LONGDOUBLE_INT, "", sizeof(hetccl_longdouble_int_t), sizeof(long double))
names[HETCCL_RAW] = "raw"  # no type string: what may be moved as raw memory is told by the buffer
itemsizes[HETCCL_RAW] = alignments[HETCCL_RAW] = 1

letters_add("i", {
    "b": sizeof(char), "h": sizeof(short), "i": sizeof(int), "l": sizeof(long), "q": sizeof(long long),
    "n": sizeof(size_t), "p": sizeof(void*),
})
letters_add("u", {
    "B": sizeof(char), "H": sizeof(short), "I": sizeof(int), "L": sizeof(long), "Q": sizeof(long long),
    "N": sizeof(size_t), "P": sizeof(void*), "c": sizeof(char),
})
letters_add("b", {"?": 1})
letters_add("f", {"e": 2, "f": sizeof(float), "d": sizeof(double), "g": sizeof(long double)})
letters_add("c", {"F": 2 * sizeof(float), "D": 2 * sizeof(double), "G": 2 * sizeof(long double)})
typecodes.update(Zf=typecodes["F"], Zd=typecodes["D"], Zg=typecodes["G"])  # PEP 3118's spelling
