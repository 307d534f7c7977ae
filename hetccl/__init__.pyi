"""hetccl: GPU collectives across mixed-vendor clusters, through mpi4py's own API."""

from hetccl._buffer import IN_PLACE
from hetccl._messages import Message
from hetccl._op import (
    AVG,
    BAND,
    BOR,
    BXOR,
    LAND,
    LOR,
    LXOR,
    MAX,
    MAXLOC,
    MIN,
    MINLOC,
    PROD,
    SUM,
    Op,
    premul_sum,
)
from hetccl._placement import Registration
from hetccl._request import Prequest, Request
from hetccl._version import VERSION as __version__
from hetccl.comm import Comm
from hetccl.errors import (
    CommClosed,
    CommTimeout,
    GpuError,
    HetcclError,
    LibraryError,
    LibraryNotFound,
    NcclError,
    OneCclError,
    PeerError,
    RcclError,
    SymbolNotFound,
    VerbsError,
)

__all__ = [
    "AVG", "BAND", "BOR", "BXOR", "IN_PLACE", "LAND", "LOR", "LXOR", "MAX", "MAXLOC", "MIN", "MINLOC", "PROD", "SUM",
    "Comm", "CommClosed", "CommTimeout", "GpuError", "HetcclError", "LibraryError", "LibraryNotFound", "Message",
    "NcclError", "OneCclError", "Op", "PeerError", "Prequest", "RcclError", "Registration", "Request", "SymbolNotFound",
    "VerbsError", "__version__", "premul_sum",
]  # fmt: skip
