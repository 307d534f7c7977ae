"""Shared libraries opened at run time, and their functions (layer L0).

Nothing of CUDA, ROCm, MPI or verbs is linked: upper layers open a Library and fill their tables of function pointers
from it. They call with the GIL, once per process and library. The GIL is released only while the loader runs, since it
reads files and runs constructors.
"""

from hetccl.errors import LibraryNotFound, SymbolNotFound

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <dlfcn.h>
    #include <link.h>
    """

cdef extern from "<link.h>" nogil:
    struct link_map:
        char* l_name

cdef extern from "<dlfcn.h>" nogil:
    enum:
        RTLD_NOW
        RTLD_LOCAL
        RTLD_NOLOAD
        RTLD_DI_LINKMAP
    void* dlopen(const char* path, int flags)
    void* dlsym(void* handle, const char* name)
    void* dlvsym(void* handle, const char* name, const char* version)
    char* dlerror()
    int dlinfo(void* handle, int request, void* info)


cdef class Library:
    """An open shared library; made by `Library.open`.

    Never closed: GPU runtimes and MPI do not survive being unloaded, and tables filled from it outlive the object.

    path   : str, the file the loader really used
    origin : "process" (something else had loaded it), "override", "wheel" or "system"
    """

    def __cinit__(self):
        self.handle = NULL

    def __init__(self):
        raise TypeError("use Library.open(sonames)")

    @staticmethod
    def open(sonames, override=None, folders=()):
        """Open the first library that loads.

        sonames  : sequence of str, the names it is known by, best first ("libcudart.so.13", "libcudart.so.12")
        override : None | str, a path or name from the user. Only a copy already in the process comes before it, because
                   two copies of one library in a process break each other; if it does not load, nothing else is tried.
        folders  : sequence of str, where wheels keep libraries; searched before the system
        Raises   : LibraryNotFound, naming each path tried with the loader's answer; TypeError (sonames is one str)
        Source   : dlopen(3)
        """
        if isinstance(sonames, str):
            raise TypeError(f"sonames: one str, {sonames!r}; a sequence of names is needed")
        cdef list tried = []
        cdef Library library
        for origin, path, flags in _candidates(sonames, override, folders):
            library = _load(path, origin, flags, tried)
            if library is not None:
                return library
        raise LibraryNotFound(f"{' or '.join(sonames)} not found; tried:\n  " + "\n  ".join(tried))

    cdef void* find(self, const char* name, const char* version=NULL) noexcept:
        """The address of a function, or NULL if the library lacks it."""
        return dlsym(self.handle, name) if version is NULL else dlvsym(self.handle, name, version)

    cdef void* symbol(self, const char* name, const char* version=NULL) except NULL:
        """The address of a function; SymbolNotFound if the library lacks it."""
        cdef void* address = self.find(name, version)
        if address is NULL:
            _raise_missing(self, name, version)
        return address

    def has(self, str name, str version=None):
        """True if the library has this function (of this symbol version, "IBVERBS_1.12")."""
        return self._address(name, version, False) != 0

    def address(self, str name, str version=None):
        """The address of a function, as int. Raises SymbolNotFound."""
        return self._address(name, version, True)

    def _address(self, str name, str version, bint required):
        cdef bytes name_ = name.encode()
        cdef bytes version_ = b"" if version is None else version.encode()
        cdef const char* wanted = NULL
        if version is not None:
            wanted = version_
        return <size_t>(self.symbol(name_, wanted) if required else self.find(name_, wanted))

    def __repr__(self):
        return f"<Library {self.path} ({self.origin})>"


def _candidates(sonames, override, folders):
    """(origin, path, extra flags) in the order of trial: the process, the user's choice, wheels, the system."""
    for soname in sonames:
        yield "process", soname, RTLD_NOLOAD
    if override is not None:
        yield "override", override, 0
        return
    for folder in folders:
        for soname in sonames:
            yield "wheel", f"{folder}/{soname}", 0
    for soname in sonames:
        yield "system", soname, 0


cdef Library _load(str path, str origin, int flags, list tried):
    cdef bytes path_ = path.encode()
    cdef const char* name = path_
    cdef const char* reason = NULL
    cdef void* handle
    # The loader keeps its message per thread, so it is fetched before another thread can use this one's.
    with nogil:
        dlerror()
        handle = dlopen(name, RTLD_NOW | RTLD_LOCAL | flags)
        if handle is NULL:
            reason = dlerror()
    if handle is NULL:
        # A failing RTLD_NOLOAD sets no message.
        answer = "not loaded yet" if reason is NULL else reason.decode(errors="replace")
        tried.append(f"{path} ({origin}): {answer}")
        return None
    cdef Library library = Library.__new__(Library)
    library.handle = handle
    library.origin = origin
    library.path = _path_of(handle) or path
    return library


cdef str _path_of(void* handle):
    cdef link_map* entry = NULL
    if dlinfo(handle, RTLD_DI_LINKMAP, &entry) != 0 or entry is NULL or entry.l_name is NULL:
        return ""
    return entry.l_name.decode(errors="surrogateescape")


cdef int _raise_missing(Library library, const char* name, const char* version) except -1:
    wanted = name.decode() if version is NULL else f"{name.decode()}@{version.decode()}"
    message = f"{library.path} has no {wanted}: a newer release of this library is needed"
    raise SymbolNotFound(message, call=name.decode())
