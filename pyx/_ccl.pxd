"""Vendor CCLs behind one table (include/hetccl/ccl.h)."""

from libc.stddef cimport size_t

from hetccl._dl cimport Library

cdef extern from "hetccl/ccl.h" nogil:
    enum:
        HETCCL_ID_BYTES_MAX

    ctypedef struct hetccl_ccl_t:
        const char* name
        int version
        int in_progress
        size_t id_nbytes
        int (*all_reduce)(const void* send, void* recv, size_t count, int dtype, int op,
                          void* comm, void* stream) noexcept nogil
        int (*reduce)(const void* send, void* recv, size_t count, int dtype, int op, int root,
                      void* comm, void* stream) noexcept nogil
        int (*reduce_scatter)(const void* send, void* recv, size_t count, int dtype, int op,
                              void* comm, void* stream) noexcept nogil
        int (*broadcast)(const void* send, void* recv, size_t count, int dtype, int root,
                         void* comm, void* stream) noexcept nogil
        int (*all_gather)(const void* send, void* recv, size_t count, int dtype,
                          void* comm, void* stream) noexcept nogil
        int (*all_to_all)(const void* send, void* recv, size_t count, int dtype,
                          void* comm, void* stream) noexcept nogil
        int (*gather)(const void* send, void* recv, size_t count, int dtype, int root,
                      void* comm, void* stream) noexcept nogil
        int (*scatter)(const void* send, void* recv, size_t count, int dtype, int root,
                       void* comm, void* stream) noexcept nogil
        int (*send)(const void* send, size_t count, int dtype, int peer, void* comm, void* stream) noexcept nogil
        int (*recv)(void* recv, size_t count, int dtype, int peer, void* comm, void* stream) noexcept nogil
        int (*group_start)() noexcept nogil
        int (*group_end)() noexcept nogil
        int (*unique_id)(const hetccl_ccl_t* ccl, void* id) noexcept nogil
        int (*init)(const hetccl_ccl_t* ccl, void** comm, int nranks, const void* id, int rank) noexcept nogil
        int (*split)(const hetccl_ccl_t* ccl, void* comm, int color, int key, void** child) noexcept nogil
        int (*async_error)(void* comm, int* code) noexcept nogil
        int (*finalize)(void* comm) noexcept nogil
        int (*destroy)(void* comm) noexcept nogil
        int (*abort)(void* comm) noexcept nogil
        int (*count)(void* comm, int* nranks) noexcept nogil
        int (*user_rank)(void* comm, int* rank) noexcept nogil
        int (*op_create)(int* op, void* factor, int dtype, int residence, void* comm) noexcept nogil
        int (*op_destroy)(int op, void* comm) noexcept nogil
        int (*register_buffer)(void* comm, void* ptr, size_t nbytes, void** handle) noexcept nogil
        int (*deregister_buffer)(void* comm, void* handle) noexcept nogil
        const char* (*error_text)(int code) noexcept nogil
        const char* (*last_error)(void* comm) noexcept nogil
        void* raw[4]


cdef class Ccl:                          # one per library and process; its table lives as long as the process
    cdef hetccl_ccl_t* table             # owned, never freed: communicators and native threads keep using it
    cdef readonly Library library
    cdef readonly str name               # "NCCL", "RCCL", "oneCCL"
    cdef readonly str version            # "2.32.3"
    cdef object error                    # the class that its codes become
    cdef str advice                      # how to hear more from the library
    cdef dict symbols                    # of each slot: (the library's name for it, the release that brought it)

    # Raise for a code other than 0: NcclError, RcclError, OneCclError by library; SymbolNotFound for HETCCL_MISSING,
    # with the version that has the function. call: what the user called; function: the table's, "all_reduce".
    cdef int check(self, int code, str call, str function) except -1
    # The same error as an object. detail: the library's words, or None: what it said last.
    cdef str symbol(self, str function)   # the library's name for it
    cdef object error_of(self, int code, str call, str function, str detail)


# A Ccl whose table is filled from a library. rows: (slot, names that the library may know it by, the release that
# brought it); a slot without a name found, or without a row, answers HETCCL_MISSING.
cdef Ccl ccl_fill(Library library, str name, int version, str version_text, tuple rows, object error, str advice)

# Put an adapter of ours in front of a function of the library that was found: raw[index] gets the function.
cdef int ccl_adapt(Ccl ccl, str slot, int index, void* adapter) except -1
