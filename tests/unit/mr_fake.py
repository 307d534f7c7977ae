"""tests/fakes/fakemr.c for ctypes: verbs functions and a GPU runtime that fail when told to, and caches over them."""

import ctypes
import errno
import functools
import hashlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "fakes"))
import build  # noqa: E402

INCLUDE = ROOT / "include"

# Calls of the fake, enum hetccl_mr_event, enum hetccl_mem_owner, enum hetccl_memory.
REG, DMABUF, DEREG, EXPORT_FD = range(4)
MEMLOCK, REFUSED, LIMIT, STUCK, DMABUF_FAILED, PEERMEM_FAILED, FORK = range(7)
OF_ENGINE, OF_USER = range(2)
HOST, CUDA, HIP = range(3)
FORK_ENABLED, FORK_UNNEEDED = 1, 2
DONE, AGAIN = 1, 0
# enum hetccl_direct
DIRECT, NOT_DEVICE, MANAGED, PIECES, REFUSED_DEVICE, SHORT, TOO_LARGE = range(7)
SHORTAGES = (errno.ENOMEM, errno.EAGAIN, errno.EPERM)


class Mem(ctypes.Structure):
    """hetccl_mem_t"""

    _fields_ = [("lkey", ctypes.c_uint32), ("rkey", ctypes.c_uint32), ("handle", ctypes.c_void_p)]


RESULTS = {
    "fake_table": ctypes.c_void_p,
    "fake_calls": ctypes.c_long,
    "fake_live": ctypes.c_long,
    "fake_live_nbytes": ctypes.c_long,
    "cache_told": ctypes.c_uint32,
    "cache_nbytes": ctypes.c_size_t,
    "range_note": ctypes.c_void_p,
    "range_find": ctypes.c_void_p,
    "range_touching": ctypes.c_void_p,
    "range_count": ctypes.c_size_t,
    "race": ctypes.c_long,
}
SIZE, POINTER, INT = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
ARGUMENTS = {
    "cache_open": (INT, INT, SIZE),
    "cache_get": (INT, POINTER, SIZE, INT, POINTER),
    "cache_get_device": (INT, POINTER, SIZE, POINTER),
    "cache_put": (INT, POINTER),
    "fake_allocate": (POINTER, SIZE, ctypes.c_uint64, INT, INT),
    "range_note": (POINTER, SIZE, INT),
    "range_forget": (POINTER,),
    "range_keep": (POINTER,),
    "range_release": (POINTER,),
    "range_find": (POINTER, SIZE),
    "range_touching": (POINTER, SIZE),
}


@functools.cache
def load():
    """The fake, as a ctypes library."""
    # It is made of the package's headers: another state of these is another fake.
    headers = b"".join(path.read_bytes() for path in sorted(INCLUDE.glob("hetccl/*.h")))
    state = int(hashlib.sha256(headers).hexdigest()[:8], 16)
    library = ctypes.CDLL(build.build("fakemr", f"-I{INCLUDE}", f"-DHEADERS={state}", "-Wno-unused-function"))
    for name, result in RESULTS.items():
        getattr(library, name).restype = result
    for name, arguments in ARGUMENTS.items():
        getattr(library, name).argtypes = arguments
    return library
