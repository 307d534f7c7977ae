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
        int (*all_reduce)(const void* send, void* recv, size_t count, int dtype, int op, void* comm, void* stream)
        int (*reduce)(const void* send, void* recv, size_t count, int dtype, int op, int root, void* comm, void* stream)
        int (*reduce_scatter)(const void* send, void* recv, size_t count, int dtype, int op, void* comm, void* stream)
        int (*broadcast)(const void* send, void* recv, size_t count, int dtype, int root, void* comm, void* stream)
        int (*all_gather)(const void* send, void* recv, size_t count, int dtype, void* comm, void* stream)
        int (*all_to_all)(const void* send, void* recv, size_t count, int dtype, void* comm, void* stream)
        int (*gather)(const void* send, void* recv, size_t count, int dtype, int root, void* comm, void* stream)
        int (*scatter)(const void* send, void* recv, size_t count, int dtype, int root, void* comm, void* stream)
        int (*send)(const void* send, size_t count, int dtype, int peer, void* comm, void* stream)
        int (*recv)(void* recv, size_t count, int dtype, int peer, void* comm, void* stream)
        int (*group_start)()
        int (*group_end)()
        int (*unique_id)(const hetccl_ccl_t* ccl, void* id)
        int (*init)(const hetccl_ccl_t* ccl, void** comm, int nranks, const void* id, int rank)
        int (*split)(const hetccl_ccl_t* ccl, void* comm, int color, int key, void** child)
        int (*async_error)(void* comm, int* code)
        int (*finalize)(void* comm)
        int (*destroy)(void* comm)
        int (*abort)(void* comm)
        int (*op_create)(int* op, void* factor, int dtype, int residence, void* comm)
        int (*op_destroy)(int op, void* comm)
        int (*register_buffer)(void* comm, void* ptr, size_t nbytes, void** handle)
        int (*deregister_buffer)(void* comm, void* handle)
        const char* (*error_text)(int code)
        const char* (*last_error)(void* comm)
        void* raw[4]


cdef class Ccl:                          # one per library and process; its table lives as long as the process
    cdef const hetccl_ccl_t* table
    cdef readonly Library library
    cdef readonly str name               # "NCCL", "RCCL", "oneCCL"

    # Raise for a code other than 0: NcclError, RcclError, OneCclError by library; SymbolNotFound for HETCCL_MISSING,
    # with the version that has the function. call: what the user called; function: the table's, "all_reduce".
    cdef int check(self, int code, str call, str function) except -1
