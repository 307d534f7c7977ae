"""The error classes of hetccl. Faults in arguments are Python's own BufferError, TypeError and ValueError."""


class HetcclError(Exception):
    """Base of all errors of hetccl.

    Attributes (None where they do not apply):
    call : str, the call that failed, as the user wrote it ("Allreduce")
    code : int or str, the library's own code
    rank : int, the rank that raises
    peer : int or tuple of int, the rank or ranks at fault
    """

    def __init__(self, message="", *, call=None, code=None, rank=None, peer=None):
        super().__init__(message)
        self.call = call
        self.code = code
        self.rank = rank
        self.peer = peer

    def __reduce__(self):
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(cls, args, state):
    error = cls(*args)
    error.__dict__.update(state)
    return error


class LibraryError(HetcclError):
    """A vendor library or the kernel returned an error."""


class GpuError(LibraryError):
    """The CUDA driver or HIP returned an error; `.code` is its number."""


class NcclError(LibraryError):
    """NCCL returned an error; `.code` is its number."""


class RcclError(LibraryError):
    """RCCL returned an error; `.code` is its number."""


class OneCclError(LibraryError):
    """oneCCL returned an error; `.code` is its number."""


class VerbsError(LibraryError):
    """libibverbs or an RDMA device returned an error; `.code` is its errno."""


class LibraryNotFound(HetcclError, ImportError):
    """A shared library could not be loaded; the message lists every path tried with the loader's answer."""


class SymbolNotFound(LibraryNotFound):
    """A library was loaded but lacks a function; the message names it, with its symbol version if one was asked for."""


class PeerError(HetcclError, ConnectionError):
    """Another rank died, left the collective, or freed the communicator; `.peer` says which."""


class CommTimeout(HetcclError, TimeoutError):
    """A wait lasted longer than HETCCL_TIMEOUT; the message says what was outstanding, `.peer` from whom."""


class CommClosed(HetcclError, ValueError):
    """The communicator was freed, belongs to the parent of a fork, or MPI is finalized."""
