"""NCCL and RCCL, which share one ABI; layer L1.

Source: nccl.h of 2.18 to 2.32, rccl.h of ROCm 5.7 to 10.
"""

from hetccl._ccl cimport Ccl, ccl_adapt, ccl_fill
from hetccl._dl cimport Library

from hetccl._dl import Library as _Library
from hetccl.errors import LibraryNotFound, NcclError, RcclError

cdef extern from "hetccl/nccl.h" nogil:
    enum:
        HETCCL_NCCL_ID_BYTES
        HETCCL_NCCL_IN_PROGRESS
        HETCCL_NCCL_INIT
        HETCCL_NCCL_SPLIT
        HETCCL_NCCL_UNIQUE_ID
    void* hetccl_nccl_init
    void* hetccl_nccl_split
    void* hetccl_nccl_unique_id

NCCL_SONAMES = ("libnccl.so.2",)
RCCL_SONAMES = ("librccl.so.1",)

# Older releases have no configuration of a communicator that we know, and no split.
OLDEST = 21800
OLDEST_TEXT = "2.18"

# (slot, the names that a library may have it by, best first, the release that brought it). RCCL's releases count as
# NCCL's.
ROWS = (
    ("all_reduce", ("ncclAllReduce",), "2.0"),
    ("reduce", ("ncclReduce",), "2.0"),
    ("reduce_scatter", ("ncclReduceScatter",), "2.0"),
    ("broadcast", ("ncclBroadcast",), "2.2"),
    ("all_gather", ("ncclAllGather",), "2.0"),
    ("all_to_all", ("ncclAlltoAll", "ncclAllToAll"), "2.28"),
    ("gather", ("ncclGather",), "2.28"),
    ("scatter", ("ncclScatter",), "2.28"),
    ("send", ("ncclSend",), "2.7"),
    ("recv", ("ncclRecv",), "2.7"),
    ("group_start", ("ncclGroupStart",), "2.0"),
    ("group_end", ("ncclGroupEnd",), "2.0"),
    ("unique_id", ("ncclGetUniqueId",), "2.0"),
    ("init", ("ncclCommInitRankConfig",), "2.14"),
    ("split", ("ncclCommSplit",), "2.18"),
    ("async_error", ("ncclCommGetAsyncError",), "2.4"),
    ("finalize", ("ncclCommFinalize",), "2.14"),
    ("destroy", ("ncclCommDestroy",), "2.0"),
    ("abort", ("ncclCommAbort",), "2.4"),
    ("count", ("ncclCommCount",), "2.0"),
    ("user_rank", ("ncclCommUserRank",), "2.0"),
    ("op_create", ("ncclRedOpCreatePreMulSum",), "2.11"),
    ("op_destroy", ("ncclRedOpDestroy",), "2.11"),
    ("register_buffer", ("ncclCommRegister",), "2.19"),
    ("deregister_buffer", ("ncclCommDeregister",), "2.19"),
    ("error_text", ("ncclGetErrorString",), "2.0"),
    ("last_error", ("ncclGetLastError",), "2.13"),
)

cdef dict opened = {}


def open_nccl(override=None, folders=()):
    """NCCL, opened once per process.

    override, folders : see Library.open
    Raises : LibraryNotFound (not found, or older than 2.18)
    """
    return open_once("NCCL", NCCL_SONAMES, override, folders, NcclError)


def open_rccl(override=None, folders=()):
    """RCCL, as open_nccl."""
    return open_once("RCCL", RCCL_SONAMES, override, folders, RcclError)


cdef Ccl open_once(str name, tuple sonames, override, folders, error):
    cdef Ccl ccl = opened.get(name)
    cdef Library library
    cdef int version
    if ccl is not None:
        return ccl
    library = _Library.open(sonames, override=override, folders=folders)
    version = version_of(library, name)
    if version < OLDEST:
        raise LibraryNotFound(f"{name} {version_text(version)} ({library.path}) is too old: {OLDEST_TEXT} "
                              "or newer needed")
    ccl = ccl_fill(library, name, version, version_text(version), ROWS, error, "NCCL_DEBUG=WARN tells more")
    ccl.table.name = b"NCCL" if name == "NCCL" else b"RCCL"
    ccl.table.in_progress = HETCCL_NCCL_IN_PROGRESS
    ccl.table.id_nbytes = HETCCL_NCCL_ID_BYTES
    ccl_adapt(ccl, "unique_id", HETCCL_NCCL_UNIQUE_ID, hetccl_nccl_unique_id)
    ccl_adapt(ccl, "init", HETCCL_NCCL_INIT, hetccl_nccl_init)
    ccl_adapt(ccl, "split", HETCCL_NCCL_SPLIT, hetccl_nccl_split)
    opened[name] = ccl
    return ccl


cdef int version_of(Library library, str name) except -1:
    cdef int version = 0
    cdef int code = (<int (*)(int*) noexcept nogil>library.symbol(b"ncclGetVersion"))(&version)
    if code != 0:
        raise LibraryNotFound(f"{name} ({library.path}): ncclGetVersion answered {code}")
    return version


def version_text(int number):
    """22703 -> "2.27.3"; releases before 2.9 counted 2708."""
    cdef int major = 10000 if number >= 10000 else 1000
    return f"{number // major}.{number % major // 100}.{number % 100}"
