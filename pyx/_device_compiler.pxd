"""Compilers of device code that run in the process (include/hetccl/device_compiler.h); layer L1."""

from hetccl._dl cimport Library

cdef extern from "hetccl/device_compiler.h" nogil:
    ctypedef struct hetccl_compiler_t:
        int (*version)(int* major, int* minor) noexcept nogil
        const char* (*error_text)(int code) noexcept nogil
        int (*create)(void** program, const char* source, const char* name, int nheaders, const char* const* headers,
                      const char* const* names) noexcept nogil
        int (*compile)(void* program, int noptions, const char* const* options) noexcept nogil
        int (*destroy)(void** program) noexcept nogil
        int (*log_size)(void* program, size_t* nbytes) noexcept nogil
        int (*log)(void* program, char* text) noexcept nogil
        int (*code_size)(void* program, size_t* nbytes) noexcept nogil
        int (*code)(void* program, char* bytes) noexcept nogil
        int (*ptx_size)(void* program, size_t* nbytes) noexcept nogil
        int (*ptx)(void* program, char* bytes) noexcept nogil
        int (*arch_count)(int* count) noexcept nogil
        int (*archs)(int* numbers) noexcept nogil

cdef class Compiler:
    cdef hetccl_compiler_t table
    cdef readonly Library library
    cdef readonly str name       # "NVRTC", "hipRTC"
    cdef str prefix              # of its functions: "nvrtc"

    cdef int check(self, int code, str function, log=*) except -1
