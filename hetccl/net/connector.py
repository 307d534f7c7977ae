"""The connector: one thread of the process that meets the peers of its communicators over TCP.

It owns the listening sockets and the control connections. bootstrap.py makes a Group for each communicator that has
peers on other hosts; the Group tells the wire when a peer is connected, and the board when it has left or died.
"""


def listen(addresses=()):
    """Listen for peers; once per process and set of addresses, whatever the number of communicators.

    addresses : str, numeric IPv4 and IPv6 addresses of this host; none: all addresses, and the card has none
    Returns   : {"port": int, "addresses": [str]}, what the other ranks need to know. Each call must be followed by a
                Group, or by nothing more: the socket is closed with the last Group
    Raises    : OSError (naming the address)
    """
    raise NotImplementedError


class Group:
    """The network side of one communicator.

    secret      : 16 bytes that the ranks of the communicator share and nobody else knows
    rank        : int
    cards       : per rank, what it has said of its network; None for ranks that are not reached by it
    hosts       : str per rank, host names for messages
    wire        : _wire.Wire     board : _board.Board     paths : {peer: net.paths.Path}
    timeout     : seconds in which a peer that is wanted must be reached
    connections : TCP connections for data of each rail (kind "tcp")
    """

    def __init__(self, secret, rank, cards, hosts, wire, board, paths, timeout, connections=2):
        raise NotImplementedError

    def close(self, seconds):
        """Let what has been sent arrive, say good-bye to all peers, and close their connections; idempotent.

        seconds : most that it may take
        Returns : bool, whether everything had arrived
        """
        raise NotImplementedError

    def leave(self):
        """Say good-bye at once: the program ends. Idempotent; waits for nothing."""
        raise NotImplementedError

    def entered(self, peers, seconds):
        """Ask which collective each peer has entered last; their main threads may be anywhere.

        peers   : ranks     seconds : how long to wait for answers
        Returns : {peer: (how many it has entered, index of the last call)}, of those that have answered
        """
        raise NotImplementedError

    def resources(self):
        """What it holds: {"connected": [ranks], "sockets": int, "threads": int}."""
        raise NotImplementedError
