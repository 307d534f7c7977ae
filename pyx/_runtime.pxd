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
        int (*enter)(int device, void** saved) noexcept nogil
        int (*leave)(void* saved) noexcept nogil
        int (*device_count)(int* count) noexcept nogil
        int (*device_current)(int* device) noexcept nogil
        int (*device_active)(int device, int* active) noexcept nogil
        int (*device_pci)(int device, char* text) noexcept nogil
        int (*device_arch)(int device, char* text) noexcept nogil
        const char* (*error_text)(int code) noexcept nogil
        int (*alloc)(void** ptr, size_t nbytes) noexcept nogil
        int (*dealloc)(void* ptr) noexcept nogil
        int (*alloc_async)(void** ptr, size_t nbytes, void* stream) noexcept nogil
        int (*dealloc_async)(void* ptr, void* stream) noexcept nogil
        int (*host_alloc)(void** ptr, size_t nbytes) noexcept nogil
        int (*host_dealloc)(void* ptr) noexcept nogil
        int (*host_register)(void* ptr, size_t nbytes) noexcept nogil
        int (*host_unregister)(void* ptr) noexcept nogil
        int (*host_address)(void* ptr, void** on_device) noexcept nogil
        int (*pointer)(const void* ptr, hetccl_pointer_t* about) noexcept nogil
        int (*copy_async)(void* dst, const void* src, size_t nbytes, void* stream) noexcept nogil
        int (*fill_async)(void* dst, uint64_t value, size_t width, size_t count, void* stream) noexcept nogil
        int (*stream_create)(void** stream) noexcept nogil
        int (*stream_destroy)(void* stream) noexcept nogil
        int (*stream_query)(void* stream) noexcept nogil
        int (*stream_synchronize)(void* stream) noexcept nogil
        int (*stream_capturing)(void* stream, int* capturing) noexcept nogil
        int (*stream_wait_event)(void* stream, void* event) noexcept nogil
        int (*stream_write32)(void* stream, void* ptr, uint32_t value) noexcept nogil
        int (*stream_wait32)(void* stream, void* ptr, uint32_t value) noexcept nogil
        int (*host_function)(void* stream, void (*function)(void*) noexcept nogil, void* argument) noexcept nogil
        int (*event_create)(void** event) noexcept nogil
        int (*event_destroy)(void* event) noexcept nogil
        int (*event_record)(void* event, void* stream) noexcept nogil
        int (*event_query)(void* event) noexcept nogil
        int (*event_synchronize)(void* event) noexcept nogil
        int (*ipc_export)(void* ptr, void* handle) noexcept nogil
        int (*ipc_open)(const void* handle, void** ptr) noexcept nogil
        int (*ipc_close)(void* ptr) noexcept nogil
        int (*dmabuf_export)(void* ptr, size_t nbytes, int* fd, uint64_t* offset) noexcept nogil
        int (*rdma_ordering)(int device, int* scope, int* flushable) noexcept nogil
        int (*rdma_flush)(int scope) noexcept nogil
        int (*module_load)(void** module, const void* image) noexcept nogil
        int (*module_unload)(void* module) noexcept nogil
        int (*module_function)(void** function, void* module, const char* name) noexcept nogil
        int (*launch)(void* function, const unsigned* grid, const unsigned* block, unsigned shared_nbytes, void* stream,
                      void** arguments) noexcept nogil

cdef extern from "hetccl/symbol.h" nogil:
    ctypedef struct hetccl_symbol_t:
        const char* slot
        const char* name
        const char* older
        const char* release
        void* target
        void* absent
        int either
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

    # Raise GpuError for a code other than 0; SymbolNotFound for HETCCL_MISSING. call: the table's function,
    # "event_record".
    cdef int check(self, int code, str call) except -1

# Look each symbol up in the library, and put its address, or that of its `absent`, where the symbol says.
cdef int symbols_fill(Library library, hetccl_symbol_t* symbols, int nsymbols) except -1

# version and hints are Runtime's; the table and the symbols are kept, not copied.
cdef Runtime runtime_new(
    const hetccl_runtime_t* table, Library library, const hetccl_symbol_t* symbols, int nsymbols, str version,
    dict hints,
)
