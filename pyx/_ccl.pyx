"""Vendor CCLs behind one table (include/hetccl/ccl.h); layer L1.

A library's own module has the names of its functions and opens it (_nccl, _oneccl); here the table is filled from
those, and codes become errors. Called with the GIL; the table is read without it.
"""

from libc.stdlib cimport calloc
from libc.string cimport strcmp

from hetccl._runtime cimport HETCCL_MISSING

from hetccl.errors import SymbolNotFound

cdef extern from "hetccl/ccl_slots.h" nogil:
    enum:
        HETCCL_CCL_SLOTS
    ctypedef struct hetccl_ccl_slot_t:
        const char* name
        void* missing
    const hetccl_ccl_slot_t* hetccl_ccl_slots
    void** hetccl_ccl_place(hetccl_ccl_t* table, int index)


cdef class Ccl:
    """A vendor's CCL that was opened.

    name    : "NCCL" | "RCCL" | "oneCCL"
    version : str, "2.32.3"
    library : _dl.Library
    """

    def __cinit__(self):
        self.table = NULL

    def __init__(self):
        raise TypeError("use hetccl.vendors: it opens the library")

    def supports(self, str function):
        """Whether the library has a function; `function` is a slot's name, "all_to_all"."""
        cdef int index = slot_index(function)
        return hetccl_ccl_place(self.table, index)[0] != hetccl_ccl_slots[index].missing

    def missing(self):
        """The slots that the library leaves empty: tuple of str."""
        return tuple(slot for slot in slot_names() if not self.supports(slot))

    def unique_id(self):
        """A new id, by which the ranks of one communicator find each other: bytes. Raises the library's error."""
        cdef bytearray room = bytearray(self.table.id_nbytes)
        cdef void* place = <char*>room
        cdef int code
        with nogil:
            code = self.table.unique_id(self.table, place)
        self.check(code, "Comm", "unique_id")
        return bytes(room)

    def __repr__(self):
        return f"<{self.name} {self.version} {self.library.path}>"

    cdef int check(self, int code, str call, str function) except -1:
        if code != 0:
            raise self.error_of(code, call, function, None)
        return 0

    cdef str symbol(self, str function):
        return self.symbols.get(function, (function, None))[0]

    cdef object error_of(self, int code, str call, str function, str detail):
        symbol, since = self.symbols.get(function, (function, None))
        library = f"{self.name} {self.version} ({self.library.path})"
        if code == HETCCL_MISSING:
            wanted = f"{since} or newer needed" if since else f"no release of {self.name} has it"
            return SymbolNotFound(f"{call}: {library} has no {symbol}: {wanted}", call=call)
        text = self.table.error_text(code).decode(errors="replace")
        if detail is None:
            detail = self.table.last_error(NULL).decode(errors="replace").strip()
        told = f"{text}: {detail}" if detail else text
        message = f"{call}: {symbol} of {library} answered {code}, {told} ({self.advice})"
        return self.error(message, call=call, code=code)


cdef int slot_index(str function) except -1:
    cdef bytes name = function.encode()
    cdef const char* wanted = name
    cdef int index
    for index in range(HETCCL_CCL_SLOTS):
        if strcmp(hetccl_ccl_slots[index].name, wanted) == 0:
            return index
    raise ValueError(f"function: {function!r} is none of {', '.join(slot_names())}")


def slot_names():
    """The names of the table's slots: tuple of str."""
    return tuple([hetccl_ccl_slots[index].name.decode() for index in range(HETCCL_CCL_SLOTS)])


cdef Ccl ccl_fill(Library library, str name, int version, str version_text, tuple rows, object error, str advice):
    cdef Ccl ccl = Ccl.__new__(Ccl)
    cdef int index
    cdef bytes symbol_
    cdef void* address
    ccl.table = <hetccl_ccl_t*>calloc(1, sizeof(hetccl_ccl_t))
    if ccl.table == NULL:
        raise MemoryError(f"the table of {name}")
    ccl.library, ccl.name, ccl.version, ccl.error, ccl.advice = library, name, version_text, error, advice
    ccl.table.version = version
    ccl.symbols = {slot: (names[0], since) for slot, names, since in rows}
    for index in range(HETCCL_CCL_SLOTS):
        hetccl_ccl_place(ccl.table, index)[0] = hetccl_ccl_slots[index].missing
    for slot, names, since in rows:
        for symbol in names:
            symbol_ = symbol.encode()
            address = library.find(symbol_)
            if address != NULL:
                hetccl_ccl_place(ccl.table, slot_index(slot))[0] = address
                ccl.symbols[slot] = (symbol, since)
                break
    return ccl


cdef int ccl_adapt(Ccl ccl, str slot, int index, void* adapter) except -1:
    if ccl.supports(slot):
        ccl.table.raw[index] = hetccl_ccl_place(ccl.table, slot_index(slot))[0]
        hetccl_ccl_place(ccl.table, slot_index(slot))[0] = adapter
    return 0
