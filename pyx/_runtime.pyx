"""GPU runtimes behind one table (include/hetccl/runtime.h); layer L1.

_cuda, _hip and _host fill a table each and make the Runtime; everything above reaches GPUs through it alone. Calls of
the table need no GIL and take no lock of ours; opening and the methods here need the GIL.
"""

from libc.stdint cimport uintptr_t
from libc.string cimport memcpy

from hetccl.errors import GpuError, SymbolNotFound

from hetccl._abi cimport HETCCL_MEM_CUDA, HETCCL_MEM_HIP, HETCCL_MEM_HOST
from hetccl._dl cimport Library

cdef extern from "hetccl/symbol.h" nogil:
    struct hetccl_slot:
        const char* name
        size_t offset
    const hetccl_slot* hetccl_runtime_slots
    enum:
        HETCCL_NSLOTS

cdef dict KINDS = {HETCCL_MEM_HOST: "host", HETCCL_MEM_CUDA: "cuda", HETCCL_MEM_HIP: "hip"}


cdef class Runtime:
    """A GPU runtime that was opened: `hetccl._cuda.open`, `_hip.open`, `_host.open`.

    name    : "cuda", "hip" or "host"
    kind    : int, the kind of its device memory (include/hetccl/abi.h)
    version : str, "13.0"; "" for the host's
    library : None (the host's) | hetccl._dl.Library
    """

    def __init__(self):
        raise TypeError("runtimes are opened, not made: hetccl._cuda.open() or its like")

    def __repr__(self):
        return f"<Runtime {self.name} {self.version}>".replace(" >", ">")

    def device_count(self):
        """How many devices the process can see."""
        cdef int count = 0
        self.check(self.table.device_count(&count), "device_count")
        return count

    def device_current(self):
        """The device of the calling thread; -1: it has none yet."""
        cdef int device = -1
        self.check(self.table.device_current(&device), "device_current")
        return device

    def device_pci(self, int device):
        """The PCI address, "0000:3b:00.0", of a device given by its index."""
        cdef char[HETCCL_PCI_CHARS] text
        text[0] = 0
        self.check(self.table.device_pci(device, text), "device_pci")
        return (<bytes> text).decode()

    def device_arch(self, int device):
        """The architecture, "sm_90" or "gfx942", of a device given by its index."""
        cdef char[HETCCL_ARCH_CHARS] text
        text[0] = 0
        self.check(self.table.device_arch(device, text), "device_arch")
        return (<bytes> text).decode()

    def pointer(self, uintptr_t address):
        """What the runtime knows of an address: dict.

        kind      : "host", "cuda" or "hip"; memory that the runtime does not know is the host's
        device    : index, -1: of no device
        registered, managed : bool
        buffer_id : int that no later allocation gets; 0: the runtime has none
        base, nbytes : of the whole allocation; 0: not known
        """
        cdef hetccl_pointer_t about
        self.check(self.table.pointer(<const void*> address, &about), "pointer")
        return {
            "kind": KINDS[about.kind],
            "device": about.device,
            "registered": bool(about.registered),
            "managed": bool(about.managed),
            "buffer_id": about.buffer_id,
            "base": <uintptr_t> about.base,
            "nbytes": about.nbytes,
        }

    def supports(self, str name):
        """True if the library has all that this function of the table ("alloc_async") needs."""
        slot_address(self.table, name)
        return self._lacks(name) is None

    def missing(self):
        """The functions of the table that the library lacks: tuple of str."""
        names = [hetccl_runtime_slots[i].name.decode() for i in range(HETCCL_NSLOTS)]
        return tuple(name for name in names if self._lacks(name) is not None)

    def address(self, str name):
        """The address of a function of the table, as int."""
        return <uintptr_t> slot_address(self.table, name)

    def check_code(self, int code, str name):
        """Raise for what a function of the table answered, unless it is 0: GpuError; SymbolNotFound if missing."""
        slot_address(self.table, name)
        self.check(code, name)

    def symbols(self):
        """What the table was filled from: list of (function of the table, symbol, name found or "")."""
        return [(slot, symbol, found) for slot, symbol, found, _, _ in self._rows()]

    def _rows(self):
        cdef int i
        rows = []
        for i in range(self.nrows):
            row = &self.rows[i]
            found = "" if row.found is NULL else row.found.decode()
            rows.append((row.slot.decode(), row.name.decode(), found, row.release.decode(), row.either))
        return rows

    def _lacks(self, str name):
        """A symbol that a function needs and the library lacks: (name, release), or None."""
        choice, chosen = None, False
        for slot, symbol, found, release, either in self._rows():
            if slot != name:
                continue
            if either:
                choice, chosen = choice or (symbol, release), chosen or bool(found)
            elif not found:
                return symbol, release
        return None if chosen else choice

    def _symbol(self, str name):
        """What people call a function of the table: the library's name for it, "cuEventRecord"."""
        return next((found for slot, _, found, _, _ in self._rows() if found and slot == name), name)

    cdef int check(self, int code, str call) except -1:
        if code == 0:
            return 0
        if code == HETCCL_MISSING:
            raise_missing(self, call)
        text = self.table.error_text(code).decode(errors="replace")
        hint = self.hints.get(code)
        raise GpuError(
            f"{self._symbol(call)} failed: {text} (code {code}){f'. {hint}' if hint else ''}", call=call, code=code,
        )


cdef int raise_missing(Runtime runtime, str call) except -1:
    lacks = runtime._lacks(call)
    if runtime.library is None or lacks is None:
        raise SymbolNotFound(f"{call} is not possible with {runtime.name} memory", call=call)
    name, release = lacks
    raise SymbolNotFound(
        f"{runtime.library.path} has no {name} ({call}): {runtime.name.upper()} {release} or newer is needed, this is "
        f"{runtime.version}", call=call,
    )


cdef void* slot_address(const hetccl_runtime_t* table, str name) except NULL:
    cdef int i
    for i in range(HETCCL_NSLOTS):
        if hetccl_runtime_slots[i].name.decode() == name:
            return (<void**> (<char*> table + hetccl_runtime_slots[i].offset))[0]
    raise ValueError(f"name: {name!r} is no function of hetccl_runtime_t")


cdef int symbols_fill(Library library, hetccl_symbol_t* symbols, int nsymbols) except -1:
    cdef hetccl_symbol_t* symbol
    cdef void* address
    cdef int i
    for i in range(nsymbols):
        symbol = &symbols[i]
        symbol.found = symbol.name
        address = library.find(symbol.name)
        if address is NULL and symbol.older is not NULL:
            symbol.found = symbol.older
            address = library.find(symbol.older)
        if address is NULL:
            symbol.found = NULL
            address = symbol.absent
        # The target's type is some function pointer; no type of ours aliases them all.
        memcpy(symbol.target, &address, sizeof(address))
    return 0


cdef Runtime runtime_new(
    const hetccl_runtime_t* table, Library library, const hetccl_symbol_t* symbols, int nsymbols, str version,
    dict hints,
):
    cdef Runtime runtime = Runtime.__new__(Runtime)
    runtime.table = table
    runtime.library = library
    runtime.name = table.name.decode()
    runtime.kind = table.kind
    runtime.version = version
    runtime.rows = symbols
    runtime.nrows = nsymbols
    runtime.hints = hints
    return runtime
