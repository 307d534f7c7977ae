"""Layer L4: the communicator that users hold: its life, its children, and what passes to MPI. See hetccl.Comm."""

from hetccl._calls cimport CREATE, DUP, SPLIT, SPLIT_TYPE
from hetccl._endpoint cimport Batch
from hetccl._request cimport Request
from hetccl._vendor cimport VendorComm

from hetccl import _endpoint
from hetccl.errors import CommClosed


cdef class Comm(Messages):
    """See hetccl.Comm, which adds how the ranks meet."""

    def Get_rank(self):
        """This process's rank in the communicator."""
        return self.rank

    def Get_size(self):
        """Number of ranks."""
        return self.size

    def Split(self, color=0, key=0):
        """Make a communicator of the ranks with the same color, in the order of key, then of rank.

        color   : whole number from 0, or MPI.UNDEFINED: this rank is in none
        key     : whole number
        Returns : Comm, which owns its MPI communicator; MPI.COMM_NULL for MPI.UNDEFINED
        Blocks  : until all ranks have called it
        Raises  : as hetccl.Comm
        Source  : MPI 4.1, section 7.4.2
        """
        self.gather_all(SPLIT)
        child = self.mpi.Split(color, key)
        return self.derived(child, self.split_vendor(child, color if child else None, key))

    def Split_type(self, split_type, key=0, info=None):
        """Make communicators by a property of the ranks, such as MPI.COMM_TYPE_SHARED: those of one host.

        split_type, info : as mpi4py's
        key, Returns, Blocks, Raises : as Split
        Source  : MPI 4.1, section 7.4.2
        """
        self.gather_all(SPLIT_TYPE)
        return self.derived(self.mpi.Split_type(split_type, key, self.membership.info(info)))

    def Dup(self, info=None):
        """Make a communicator of the same ranks, whose messages and collectives never meet this one's.

        info    : as mpi4py's
        Returns, Blocks, Raises : as Split
        Source  : MPI 4.1, section 7.4.2
        """
        self.gather_all(DUP)
        child = self.mpi.Dup(info)
        return self.derived(child, self.split_vendor(child, 0, self.rank))

    def Dup_with_info(self, info):
        """As Dup, with info. Source : MPI 4.1, section 7.4.2"""
        return self.Dup(info)

    def Clone(self):
        """As Dup. Source : MPI 4.1, section 7.4.2"""
        return self.Dup()

    def Create(self, group):
        """Make a communicator of the ranks in an MPI group; all ranks of this one call it.

        group   : MPI.Group
        Returns : as Split; MPI.COMM_NULL on ranks that are not in the group
        Blocks, Raises : as Split
        Source  : MPI 4.1, section 7.4.2
        """
        self.gather_all(CREATE)
        return self.derived(self.mpi.Create(group))

    def Create_group(self, group, tag=0):
        """As Create, but only the ranks of the group call it. The first part of the wait is MPI's, without a time-out.

        group   : MPI.Group
        tag     : tells apart calls of several threads
        Source  : MPI 4.1, section 7.4.2
        """
        self.usable(CREATE)
        return self.derived(self.mpi.Create_group(group, tag))

    def Compare(self, other):
        """As mpi4py's, of the MPI communicators underneath. Source : MPI 4.1, section 7.4.1"""
        return self.mpi.Compare(other.mpi if isinstance(other, Comm) else other)

    cdef int gather_all(self, int call) except -1:
        """Wait here, with a time-out, for what MPI would wait for without one."""
        return self.barrier(Request, call).run(None)

    cdef object derived(self, object mpi, VendorComm vendor=None):
        cdef Comm comm
        if not mpi:
            return mpi
        # If this raises, mpi is not freed: that is collective, and the ranks do not agree any more.
        comm = type(self)(mpi)
        comm.owns_mpi = True
        comm.gpu = comm.vendor = vendor
        return comm

    @property
    def group(self):
        """`with comm.group():` collects the blocking calls of this thread on the communicator, and runs them together
        at the end of the block: no order of sends and receives can deadlock. An exception inside drops them; nothing
        has moved. Buffers must stay as they are meanwhile, and results and status are there after the block.

        As in mpi4py, it is also the communicator's MPI.Group.

        Raises : at the end, the first error of the calls, once the others have ended
        """
        if self.group_ is None:
            self.group_ = self.membership.group(self._open_batch)
        return self.group_

    def _open_batch(self):
        cdef Batch batch = Batch.__new__(Batch)
        batch.endpoint = self
        batch.calls = []
        return batch

    @property
    def name(self):
        """The MPI communicator's name."""
        return self.mpi.name

    @name.setter
    def name(self, value):
        self.mpi.name = value

    def Free(self):
        """Give back what the communicator holds. A second call does nothing.

        Local, and the user's MPI communicator is not touched; but a communicator that Split, Dup or Create made frees
        its MPI communicator, which all of its ranks must do. Requests that are not complete end with CommClosed, and
        peers that still wait for this rank get PeerError.

        Blocks  : until the calls of other threads on this communicator have ended
        Raises  : RuntimeError (called from a signal handler inside a call), CommTimeout (another thread does not end)
        """
        if self.closed or not self.executor.is_own_process():
            return
        self.closed = True
        try:
            self.await_queued()
            self.executor.stop()
        except BaseException:
            self.closed = False
            raise
        try:
            self.leave_vendors()
        finally:
            broken = self.executor.board.broken()
            self.executor.board.close()
            # With a rank gone, MPI could wait for it.
            if self.owns_mpi and not broken:
                self.membership.free_mpi()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.Free()

    def __getattr__(self, name):
        if self.closed:
            raise CommClosed(f"{name}: the communicator has been freed", call=name)
        if _endpoint.ended_because() is not None:
            raise CommClosed(f"{name}: {_endpoint.ended_because()}", call=name)
        if not hasattr(self.mpi, name):
            raise AttributeError(f"neither hetccl.Comm nor {type(self.mpi).__name__} of mpi4py has {name!r}")
        return getattr(self.mpi, name)

    def __bool__(self):
        return not self.closed

    def __eq__(self, other):
        if isinstance(other, Comm):
            return self is other
        if self.membership.is_mpi_comm(other):
            return self.closed and not other
        return NotImplemented

    def __hash__(self):
        return id(self)

    def __reduce__(self):
        raise TypeError("a Comm cannot be pickled; build one in each process")

    def __repr__(self):
        islands = "1 island" if len(self.islands) == 1 else f"{len(self.islands)} islands"
        state = "freed" if self.closed else f"rank {self.rank} of {self.size}, {islands}"
        return f"<hetccl.Comm {state}>"
