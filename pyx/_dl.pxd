"""Shared libraries opened at run time, and their functions (layer L0)."""

cdef class Library:
    cdef void* handle  # owned for the life of the process, never closed
    cdef readonly str path
    cdef readonly str origin

    cdef void* find(self, const char* name, const char* version=*) noexcept
    cdef void* symbol(self, const char* name, const char* version=*) except NULL
