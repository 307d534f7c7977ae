"""The network side of one communicator: its rails' ports, its wire, and the connections to ranks of other hosts."""

import time

from hetccl import _rdma, _tcp, _wire, config
from hetccl.net import connector, interfaces, nics, paths

log = config.LOGGER

# Of each class of traffic and direction: enough for a bandwidth-delay product of small messages.
CELLS = 16
# Largest message that goes eagerly, as in shared memory: programs may count on it (docs/semantics.md).
EAGER_BYTES = 32768
# How long a rank that has waited too long asks the others how far they are.
ASK_S = 2.0
ANSWER_S, ASK_AGAIN_S = 0.5, 0.05


def shares_memory(settings, members, one, other):
    """Whether two ranks move their data through shared memory: those of one host, if shm is among the transports."""
    if one == other:
        return True
    return (settings.transport is None or "shm" in settings.transport) and members[one].shares_memory(members[other])


def cell_bytes(eager_bytes):
    """Bytes of a cell that holds messages of so many bytes, None for the default: whole lines, header included."""
    wanted = (EAGER_BYTES if eager_bytes is None else eager_bytes) + _wire.HEADER_BYTES
    cell = -(-wanted // _wire.CELL_UNIT) * _wire.CELL_UNIT
    if cell > _wire.MOST_CELL_BYTES:
        most = _wire.MOST_CELL_BYTES - _wire.HEADER_BYTES
        raise ValueError(f"HETCCL_EAGER_BYTES={eager_bytes}: a message goes eagerly up to {most} bytes")
    return max(cell, _wire.LEAST_CELL_BYTES)


class Network:
    """What one rank needs to reach the ranks of other hosts. It is made in steps, around an exchange of cards.

    members  : topology.Member of every rank     near : ranks that share this one's memory
    secret   : bytes, the job's
    Attributes: card (what the other ranks must know, JSON-able), wire (_wire.Wire), paths ({rank: paths.Path})
    Raises   : ValueError (a variable asks for what this host does not have), OSError (no socket)
    """

    def __init__(self, rank, members, near, secret, settings):
        self.rank, self.members, self.near = rank, members, near
        self.secret, self.settings = secret, settings
        self.cell_bytes = cell_bytes(settings.eager_bytes)
        self.wire = self.group = self.board = None
        self.paths, self.ports = {}, {}
        verbs = "not in HETCCL_TRANSPORT"
        if settings.transport is None or "verbs" in settings.transport:
            verbs = nics.card(rank, members, settings, nics.look(settings))
        addresses = interfaces.addresses(settings)
        listener = connector.listen([address["address"] for address in addresses])
        self.listens = True  # the connector awaits a group
        self.card = {"verbs": verbs, "tcp": {"port": listener["port"], "addresses": addresses}}

    def choose(self, cards):
        """Choose the way to each rank. cards : every rank's card; of those near, not looked at

        Returns : {rank: the reason against each transport}, of the ranks that cannot be reached
        """
        far = [peer for peer in range(len(self.members)) if peer not in self.near]
        self.paths, unreached = paths.choose_all(self.rank, far, self.members, cards, self.settings)
        return unreached

    def join(self, board):
        """Take the ways that were chosen; connections are made when they are needed.

        board  : _board.Board
        Raises : VerbsError, OSError
        """
        size, settings = len(self.members), self.settings
        hosts = [member.host for member in self.members]
        self.wire = _wire.Wire(self.rank, size, CELLS, self.cell_bytes, hosts)
        routes = {peer: path._replace(rails=self._ports(path)) for peer, path in self.paths.items()}
        for port in self.ports.values():
            self.wire.add_port(port)
        self.listens = False
        self.group = connector.Group(
            self.secret,
            self.rank,
            hosts,
            self.wire,
            board,
            routes,
            settings.timeout,
            settings.tcp_connections,
        )
        self.board = board
        board.connect_far(self.wire.wake_fd, self._ask)
        for kind in sorted({path.kind for path in self.paths.values()}):
            ranks = [peer for peer, path in self.paths.items() if path.kind == kind]
            log.debug("rank %d reaches ranks %s by %s", self.rank, ranks, kind)

    def _ask(self, peers):
        """How far ranks of other hosts are, as Group.entered(), those included that nothing has connected yet."""
        self.wire.reach(peers)
        answers, deadline = {}, time.monotonic() + ASK_S
        while len(answers) < len(peers) and time.monotonic() < deadline:
            answers.update(self.group.entered([peer for peer in peers if peer not in answers], ANSWER_S))
            time.sleep(ASK_AGAIN_S)
        return answers

    @property
    def note_bytes(self):
        """Host buffers from here on may be registered with RDMA devices; 0: there are none in use."""
        return self.cell_bytes if any(path.kind == "verbs" for path in self.paths.values()) else 0

    def _ports(self, path):
        """The port of each rail of a path."""
        return [self._port("tcp")] if path.kind == "tcp" else [self._port(mine) for mine, _ in path.rails]

    def _port(self, key):
        """The port of an index among this rank's rail cards, or of "tcp"; made when first needed."""
        if key not in self.ports:
            self.ports[key] = _tcp.TcpPort(self.settings.timeout) if key == "tcp" else self._rdma_port(key)
        return self.ports[key]

    def _rdma_port(self, index):
        given = {name: getattr(self.settings, f"ib_{name}") for name in _rdma.SETTINGS}
        return _rdma.RdmaPort(self.card["verbs"][index], receives=_wire.most_immediates(CELLS), settings=given)

    def leave(self):
        """Tell the other ranks that the program ends; idempotent, waits for nothing."""
        if self.group is not None:
            self.group.leave()

    def drop(self, engine):
        """Have it closed soon, wherever this is called: nobody has freed the communicator.

        engine : kept until then, with the memory that the other ranks may still write to
        """
        if self.group is not None and self.group.lives():
            self.group.drop(lambda: (self.close(0.0), engine))
        else:
            self.close(0.0)

    def close(self, seconds):
        """Let what has been sent arrive, part from the other ranks, give everything back; idempotent.

        Blocks : until it has arrived, at most so many seconds
        """
        if self.group is not None:
            if not self.group.close(seconds) and seconds > 0:
                log.warning("rank %d freed a communicator before everything that it sent had arrived", self.rank)
            self.board.disconnect_far()
        if self.listens:
            self.listens = False
            connector.forgo()
        if self.wire is not None:
            self.wire.close()
        for port in self.ports.values():
            port.close()
        self.ports.clear()
        self.group = None
