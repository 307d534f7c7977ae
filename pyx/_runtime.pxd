"""GPU runtimes behind one table (include/hetccl/runtime.h)."""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

from hetccl._dl cimport Library

cdef extern from "hetccl/runtime.h" nogil:
    enum:
        HETCCL_MISSING
        HETCCL_PCI_CHARS
        HETCCL_ARCH_CHARS
        HETCCL_IPC_BYTES

    ctypedef struct hetccl_pointer_t:
        int kind
        int device
        int registered
        int managed
        uint64_t buffer_id
        void* base
        size_t nbytes

    ctypedef struct hetccl_runtime_t:
        const char* name
        int kind
        int version
        int not_ready
        int (*enter)(int device, void** saved)
        int (*leave)(void* saved)
        int (*device_count)(int* count)
        int (*device_current)(int* device)
        int (*device_active)(int device, int* active)
        int (*device_pci)(int device, char* text)
        int (*device_arch)(int device, char* text)
        const char* (*error_text)(int code)
        int (*alloc)(void** ptr, size_t nbytes)
        int (*dealloc)(void* ptr)
        int (*alloc_async)(void** ptr, size_t nbytes, void* stream)
        int (*dealloc_async)(void* ptr, void* stream)
        int (*host_alloc)(void** ptr, size_t nbytes)
        int (*host_dealloc)(void* ptr)
        int (*host_register)(void* ptr, size_t nbytes)
        int (*host_unregister)(void* ptr)
        int (*host_address)(void* ptr, void** on_device)
        int (*pointer)(const void* ptr, hetccl_pointer_t* about)
        int (*copy_async)(void* dst, const void* src, size_t nbytes, void* stream)
        int (*fill_async)(void* dst, uint64_t value, size_t width, size_t count, void* stream)
        int (*stream_create)(void** stream)
        int (*stream_destroy)(void* stream)
        int (*stream_query)(void* stream)
        int (*stream_synchronize)(void* stream)
        int (*stream_capturing)(void* stream, int* capturing)
        int (*stream_wait_event)(void* stream, void* event)
        int (*stream_write32)(void* stream, void* ptr, uint32_t value)
        int (*stream_wait32)(void* stream, void* ptr, uint32_t value)
        int (*host_function)(void* stream, void (*function)(void*) noexcept nogil, void* argument)
        int (*event_create)(void** event)
        int (*event_destroy)(void* event)
        int (*event_record)(void* event, void* stream)
        int (*event_query)(void* event)
        int (*event_synchronize)(void* event)
        int (*ipc_export)(void* ptr, void* handle)
        int (*ipc_open)(const void* handle, void** ptr)
        int (*ipc_close)(void* ptr)
        int (*dmabuf_export)(void* ptr, size_t nbytes, int* fd, uint64_t* offset)
        int (*module_load)(void** module, const void* image)
        int (*module_unload)(void* module)
        int (*module_function)(void** function, void* module, const char* name)
        int (*launch)(void* function, const unsigned* grid, const unsigned* block, unsigned shared_nbytes, void* stream,
                      void** arguments)

cdef extern from "hetccl/symbol.h" nogil:
    ctypedef struct hetccl_symbol_t:
        const char* slot
        const char* name
        const char* older
        const char* release
        void* target
        void* absent
        int optional
        const char* found

cdef class Runtime:                      # one per vendor and process; its table lives as long as the process
    cdef const hetccl_runtime_t* table
    cdef readonly Library library        # None: the host's
    cdef readonly str name               # "cuda", "hip", "host"
    cdef readonly int kind               # HETCCL_MEM_*
    cdef readonly str version            # as people write it, "13.0"; "" for the host
    cdef const hetccl_symbol_t* rows     # what the table was filled from
    cdef int nrows
    cdef dict hints                      # error code -> what to do

    # Raise GpuError for a code other than 0; SymbolNotFound for HETCCL_MISSING. call: the table's function, "event_record".
    cdef int check(self, int code, str call) except -1

# Look each symbol up in the library, and put its address, or that of its `absent`, where the symbol says.
cdef int symbols_fill(Library library, hetccl_symbol_t* symbols, int nsymbols) except -1

# version and hints are Runtime's; the table and the symbols are kept, not copied.
cdef Runtime runtime_new(
    const hetccl_runtime_t* table, Library library, const hetccl_symbol_t* symbols, int nsymbols, str version, dict hints,
)
