"""Layer L2: rails and ports as objects, so that those who connect peers need not know which kind they hold.

Every method is called with the GIL. What touches the C structs of a rail that is connected needs the communicator's
mutex besides; _wire.Wire takes it around the calls here.
"""

# enum hetccl_direct.
cdef tuple DIRECT = (
    "", "its runtime does not know it as memory of a GPU", "it is managed memory, which migrates",
    "it reaches beyond its allocation: it is mapped in pieces",
    "it cannot be registered, neither as a dma-buf nor by a peer-memory module",
    "no more memory can be registered now", "its allocation is larger than what is registered at a time",
    "the peer is not connected", "the rail is not one of RDMA", "the peer is reached through shared memory",
    "the device has no queue pair to itself", "what has been written could not be flushed",
    "the receiver reads it where it lands",
)

# enum hetccl_wire_breach; the names are docs/wire-protocol.md's.
cdef tuple BREACHES = (
    "", "CELL, a message's cell or its header", "CTS, a request for a piece", "FIN, the end of a piece",
    "CREDIT, cells given back", "a frame of a data connection",
)


cdef str breach_text(int code):
    """A fault of the kind HETCCL_FAULT_WIRE in words."""
    return f"the peer broke the wire protocol: {BREACHES[code]}"


cdef str direct_text(int why, str where):
    return f"{where}: {DIRECT[why]}" if where else DIRECT[why]


cdef class Rail:
    """A way to write into one peer's memory; see _rdma.QueuePair and _tcp.TcpRail."""

    def local(self):
        """What the peer must know of this end, before connect(): a dict that JSON can carry."""
        raise NotImplementedError

    def connect(self, remote, sockets=()):
        """Connect to the peer's end: rail.state is UP afterwards.

        remote  : dict, the peer's local(), checked here
        sockets : authenticated connections for data, as file descriptors that the rail owns from now on; tcp only
        Raises  : ValueError (remote is no such dict), LibraryError (a verbs call failed), OSError
        """
        raise NotImplementedError

    def describe(self):
        """Where the rail runs, in words: "mlx5_0 port 1, GID ::ffff:10.0.0.1 (index 3)"; for messages and doctor."""
        raise NotImplementedError

    def fault(self):
        """Why it failed, in words; "" while it has not."""
        raise NotImplementedError

    def loop(self):
        """The rail of its port to this process's own memory, made on the first call; None: its kind has none.

        It is closed as any rail, before the port. Raises: VerbsError, MemoryError.
        """
        return None

    def close(self):
        """Give the rail back; idempotent. Its registrations must have been given back before.

        It takes no mutex, and needs none where the rail is stopped or has never been connected.
        """
        raise NotImplementedError

    def forget(self):
        """In the child of a fork: close what would seem to the peer to be this end."""


cdef class Port:
    """What a communicator polls for its rails; see _rdma.RdmaPort and _tcp.TcpPort."""

    def rail(self, peer, index):
        """A new rail to a peer, not connected. peer : int, rank     index : int, among the peer's rails"""
        raise NotImplementedError

    def close(self):
        """Give the port back; idempotent. Its rails must be closed."""
        raise NotImplementedError

    def forget(self):
        """In the child of a fork: close descriptors of its own."""
