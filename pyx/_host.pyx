"""Host memory as a runtime (include/hetccl/runtime_host.h); layer L1. It needs no library."""

from hetccl._runtime cimport Runtime, hetccl_runtime_t, hetccl_symbol_t, runtime_new

cdef extern from "hetccl/runtime_host.h" nogil:
    const hetccl_runtime_t hetccl_host
    const hetccl_symbol_t* hetccl_host_symbols
    enum:
        HETCCL_HOST_NSYMBOLS

cdef Runtime opened = runtime_new(&hetccl_host, None, hetccl_host_symbols, HETCCL_HOST_NSYMBOLS, "", {})


def open():
    """The host's Runtime; the same each time. Its work is done when the call that queues it returns."""
    return opened
