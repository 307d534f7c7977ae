"""oneCCL's C API on host buffers; layer L1.

The library's own functions block, cannot be aborted and are for one thread at a time: include/hetccl/oneccl_thread.h
makes all calls on a thread of its own, so that waits here have a time-out as with NCCL. Source: oneapi/ccl.h of 2022.2.
"""

import os

from libc.stdint cimport uint64_t

from hetccl._ccl cimport Ccl, ccl_fill, hetccl_ccl_t
from hetccl._dl cimport Library

from hetccl._dl import Library as _Library
from hetccl.errors import LibraryNotFound, OneCclError

cdef extern from "hetccl/oneccl_thread.h" nogil:
    uint64_t hetccl_oneccl_ndone() noexcept
    void hetccl_oneccl_adapt(hetccl_ccl_t* table, void* set_terminate) noexcept

SONAMES = ("libccl.so.2",)
# What libccl.so.2 is only the front of: the CPU build's own library, and the plugin that joins the two. Loaded in this
# order by path, they are found again by their names, wherever they lie.
PARTS = ("libccl.so.1", "libccl_legacy_cpu.so")

# (slot, the library's name, the release that has it). What it has and is left out: split, whose keys must not be
# negative, as MPI's may be; messages, which are the engine's on host buffers; groups, which are open to all threads and
# leave events behind; PreMulSum, which the CPU plugin lacks; register, which it accepts and ignores; Count and
# UserRank, which it answers wrongly.
ROWS = (
    ("all_reduce", ("onecclAllReduce",), "2022.2"),
    ("reduce", ("onecclReduce",), "2022.2"),
    ("reduce_scatter", ("onecclReduceScatter",), "2022.2"),
    ("broadcast", ("onecclBroadcast",), "2022.2"),
    ("all_gather", ("onecclAllGather",), "2022.2"),
    ("all_to_all", ("onecclAllToAll",), "2022.2"),
    ("scatter", ("onecclScatter",), "2022.2"),
    ("unique_id", ("onecclGetUniqueId",), "2022.2"),
    ("init", ("onecclCommInitRank",), "2022.2"),
    ("finalize", ("onecclCommFinalize",), "2022.2"),
    ("destroy", ("onecclCommDestroy",), "2022.2"),
    ("last_error", ("onecclGetLastError",), "2022.2"),
)

cdef Ccl opened = None


def open(override=None, folders=()):
    """oneCCL, opened once per process.

    override : None | str, path or name of libccl.so.2; see Library.open. Its other parts come from the same folder.
    folders  : sequence of str
    Raises   : LibraryNotFound (a part is missing, or is the build for Intel's GPUs without what that needs)
    """
    global opened
    cdef Library library
    cdef Ccl ccl
    cdef int version
    if opened is not None:
        return opened
    library = _Library.open(SONAMES, override=override, folders=folders)
    for part in PARTS:
        open_part(library, part)
    version = version_of(library)
    text = version_text(version)
    ccl = ccl_fill(library, "oneCCL", version, text, ROWS, OneCclError, "CCL_LOG_LEVEL=info tells more")
    lacks = [symbols[0] for slot, symbols, _ in ROWS if not ccl.supports(slot)]
    if lacks:
        raise LibraryNotFound(f"oneCCL {text} ({library.path}) has no {', '.join(lacks)}: 2022.2 or newer needed")
    ccl.table.name = b"oneCCL"
    hetccl_oneccl_adapt(ccl.table, library.find(b"_ZSt13set_terminatePFvvE"))
    opened = ccl
    return opened


def ndone():
    """How many calls of the library have ended in this process, making and freeing communicators among them: int."""
    return hetccl_oneccl_ndone()


cdef int open_part(Library front, str part) except -1:
    path = os.path.join(os.path.dirname(front.path), part)
    try:
        _Library.open((path,))
    except LibraryNotFound as error:
        raise LibraryNotFound(f"oneCCL for the CPU needs {part} beside {front.path} (docs/oneccl.md says of which "
                              f"package): {error}") from None
    return 0


cdef int version_of(Library library) except -1:
    cdef int version = 0
    cdef int code = (<int (*)(int*) noexcept nogil>library.symbol(b"onecclGetVersion"))(&version)
    if code != 0:
        raise LibraryNotFound(f"oneCCL ({library.path}): onecclGetVersion answered {code}")
    return version


def version_text(int number):
    """20220200 -> "2022.2.0"."""
    return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"
