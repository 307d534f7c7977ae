"""The public communicator: how it is built. What it does is in hetccl._comm (pyx/_comm.pyx)."""

from hetccl import _comm


class Comm(_comm.Comm):
    """Collectives and messages on arrays for the ranks of an MPI communicator; mpi4py's names and arguments.

    comm    : mpi4py intracommunicator. Building is collective: all its ranks must take part. It is used for that alone,
              and for what hetccl does not do itself: any other method or attribute is the MPI communicator's
    device  : whole number: set up the vendor's library for GPU buffers now, on this device; all ranks must give one.
              None: the first call on GPU buffers does, on the device of its buffer, and needs all ranks
    Raises  : TypeError, ValueError (not a usable communicator), CommClosed (MPI is finalized), CommTimeout (`.peer`:
              the ranks that did not come within HETCCL_TIMEOUT), HetcclError (a rank cannot take part: why, and which)

    rank, size : int
    islands    : tuple of Island(label, vendor, ranks)
    members    : tuple of Member, one per rank
    mpi        : the MPI communicator underneath
    """

    __slots__ = ()

    def __new__(cls, comm, *, device=None):
        # mpi4py initializes MPI when it is imported: not before the first communicator is built.
        from hetccl import bootstrap

        made = super().__new__(cls, bootstrap.join(comm))
        made._use_host_library()
        if device is not None:
            made._connect(device)
        return made
