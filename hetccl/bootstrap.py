"""How the ranks of a communicator find each other: the only module that imports mpi4py.

MPI carries host names, island labels, the addresses of shared-memory segments, network cards and the job secret, all of
it before Comm() returns. The ranks agree by nonblocking collectives, polled with a time-out; these have a context of
their own inside MPI, so no message of the user's can meet them. Only a rank whose time is over sends messages, empty
ones on the two highest tags. After construction nothing here calls MPI but `fill_status`, which is local.
"""

import atexit
import functools
import operator
import pickle
import time
import weakref
from dataclasses import dataclass

from mpi4py import MPI

from hetccl import (
    _board,
    _buffer,
    _comm,
    _endpoint,
    _layout,
    _lists,
    _op,
    config,
    island,
    joining,
    oneccl,
    topology,
    vendors,
)
from hetccl.errors import CommClosed, CommTimeout, HetcclError
from hetccl.net import paths
from hetccl.plan import algorithms, build, select
from hetccl.plan import uneven as uneven_algorithms
from hetccl.plan.steps import COLLECTIVES

log = config.LOGGER

# A rank that has waited out its time asks "are you in Comm()?" on the highest tags that MPI allows, and hears for so
# long.
ROLL_CALL_SECONDS = 2.0
POLL_SECONDS = (1e-5, 2e-3)  # first and longest pause between two looks at MPI

# NumPy's kind -> MPI's datatypes of that kind, the usual one first; the size in bits completes a name that is _SIZED.
_DATATYPES = {
    "int": "SIGNED_CHAR SHORT INT LONG LONG_LONG INT8_T INT16_T INT32_T INT64_T AINT OFFSET COUNT "
    "INTEGER INTEGER1 INTEGER2 INTEGER4 INTEGER8",
    "uint": "UNSIGNED_CHAR BYTE CHAR UNSIGNED_SHORT UNSIGNED UNSIGNED_LONG UNSIGNED_LONG_LONG "
    "UINT8_T UINT16_T UINT32_T UINT64_T",
    "float": "FLOAT DOUBLE FLOAT16_T FLOAT32_T FLOAT64_T REAL REAL2 REAL4 REAL8 DOUBLE_PRECISION",
    "bfloat16": "BFLOAT16_T",
    "complex": "C_FLOAT_COMPLEX C_DOUBLE_COMPLEX CXX_FLOAT_COMPLEX CXX_DOUBLE_COMPLEX COMPLEX COMPLEX8 COMPLEX16 "
    "DOUBLE_COMPLEX",
    "bool": "C_BOOL CXX_BOOL",
    "longdouble": "LONG_DOUBLE",
    "clongdouble": "C_LONG_DOUBLE_COMPLEX CXX_LONG_DOUBLE_COMPLEX",
    "float_int": "FLOAT_INT",
    "double_int": "DOUBLE_INT",
    "long_int": "LONG_INT",
    "int_int": "INT_INT TWOINT",
    "short_int": "SHORT_INT",
    "longdouble_int": "LONG_DOUBLE_INT",
}
_SIZED = ("int", "uint", "float", "complex")

# What live communicators have joined, to be left when the program ends or finalizes MPI: a rank that ends by an
# exception of its own would otherwise sit in MPI_Finalize, alive, while its peers wait for it in a collective.
_joined = weakref.WeakSet()

# Requests that were left (a time-out, Ctrl-C): MPI may still write to their buffers, so they are never freed.
_abandoned = []


@dataclass
class Membership:
    """What Comm needs to know, handed over by join().

    mpi     : the user's MPI communicator
    members : topology.Member of every rank    islands : topology.Island, in order of their lowest rank
    board   : _board.Board of all ranks        network : hetccl.net.network.Network to other hosts, or None
    settings: config.Config as read when the Comm was built
    crowded : whether this host has more ranks than cores that they may use
    note_bytes : host buffers from here on may be registered with RDMA devices; 0: none may
    """

    mpi: MPI.Intracomm
    rank: int
    size: int
    members: tuple
    islands: tuple
    board: _board.Board
    network: object
    settings: config.Config
    crowded: bool
    any_source: int = MPI.ANY_SOURCE
    any_tag: int = MPI.ANY_TAG
    proc_null: int = MPI.PROC_NULL
    note_bytes: int = 0

    def plans(self, collective, root, in_place, uneven):
        """The collective's plans by message size: [(largest bytes or None, hetccl.plan.Plan)].

        uneven : units may differ in length
        """
        groups = tuple(island.ranks for island in self.islands)
        wanted = self.settings.algorithm
        fitting = uneven_algorithms(collective, groups) if uneven else algorithms(collective)
        table = ((None, wanted),) if wanted in fitting else select.table(collective, groups, uneven=uneven)
        return [(limit, build(collective, groups, root, name, in_place=in_place)) for limit, name in table]

    def open_island(self, vendor, device, exchange, call):
        """Meet the other ranks in the vendor's library; see hetccl.island.

        exchange : callable, bytes -> every rank's bytes; collective
        Returns  : VendorComm; None: host buffers stay with the engine
        """

        def gather(value):
            return [pickle.loads(card) for card in exchange(pickle.dumps(value))]

        if vendor == topology.HOST and not oneccl.prepare(self.members, self.rank, self.settings, gather):
            return None
        return island.open_island(vendor, device, self.rank, self.size, self.members, self.settings, gather, call)

    def open_device(self, vendor, device):
        """This rank's GPU, for calls between islands: (_runtime.Runtime, index). Raises what opening it does."""
        if not hasattr(device, "__index__"):
            raise TypeError(f"device: expected a whole number, got {type(device).__name__}")
        runtime = vendors.open_runtime(vendor, self.settings)
        if not 0 <= operator.index(device) < runtime.device_count():
            raise ValueError(f"device: {device} is none of the {runtime.device_count()} that this process can see")
        return runtime, operator.index(device)

    def peers_of(self, child):
        """(rank in it, pid) of a child communicator's other ranks on this host; see VendorComm."""
        if child == MPI.COMM_NULL:
            return []
        everyone = list(range(child.size))
        ours = MPI.Group.Translate_ranks(child.Get_group(), everyone, self.mpi.Get_group())
        mine = self.members[self.rank]
        near = [rank for rank in everyone if rank != child.rank and self.members[ours[rank]].shares_memory(mine)]
        return [(rank, self.members[ours[rank]].pid) for rank in near]

    def device_of(self, vendor, address):
        """Index of the device whose memory it is; 0 for memory that the vendor's runtime does not know."""
        try:
            runtime = vendors.open_runtime(vendor, self.settings)
        except HetcclError:
            return 0  # open_island meets it again, and tells the other ranks
        return max(0, runtime.pointer(address)["device"])

    def fill_status(self, status, source, tag, nbytes):
        """Write the outcome of a receive into an MPI.Status, as MPI_Recv would."""
        status.Set_source(source)
        status.Set_tag(tag)
        status.Set_error(MPI.SUCCESS)
        status.Set_elements(MPI.BYTE, nbytes)

    def group(self, open_batch):
        """The communicator's MPI.Group; called, it opens a batch of hetccl's."""
        group = _Group(self.mpi.Get_group())
        group.open_batch = open_batch
        return group

    def info(self, info):
        """MPI's info for None."""
        return MPI.INFO_NULL if info is None else info

    def is_mpi_comm(self, other):
        """Whether it is mpi4py's."""
        return isinstance(other, MPI.Comm)

    def free_mpi(self):
        """Free the MPI communicator, if there still is MPI."""
        if not MPI.Is_finalized():
            self.mpi.Free()


class _Group(MPI.Group):
    """comm.group: mpi4py's attribute, and hetccl's `with comm.group():`."""

    def __call__(self):
        return self.open_batch()


def _clear_status(status):
    """Make it MPI's empty status."""
    status.Set_source(MPI.ANY_SOURCE)
    status.Set_tag(MPI.ANY_TAG)
    status.Set_error(MPI.SUCCESS)
    status.Set_elements(MPI.BYTE, 0)
    status.Set_cancelled(False)


def join(comm):
    """Meet the other ranks of `comm` and connect to them. Collective.

    comm   : mpi4py intracommunicator
    Returns: Membership
    Raises : TypeError, ValueError (not a usable communicator), CommClosed (MPI is finalized or not initialized),
             CommTimeout (`.peer` lists the ranks that did not come within HETCCL_TIMEOUT), HetcclError (a rank cannot
             take part)
    """
    check_communicator(comm)
    _watch_the_end()
    settings, member, trouble = _describe_self()
    meeting = Meeting(comm, (settings or config.Config()).timeout)
    members, board, network = joining.join(meeting.allgather, comm.rank, settings, member, trouble)
    _joined.add(board)
    if network is not None:
        _joined.add(network)
    islands = topology.islands(members)
    log.debug("Comm of %d ranks, islands %s", comm.size, [(island.label, island.ranks) for island in islands])
    here = [other for other in members if other.shares_memory(member)]
    crowded = len(here) > len(frozenset().union(*(other.cores for other in here)))
    return Membership(
        comm,
        comm.rank,
        comm.size,
        members,
        islands,
        board,
        network,
        settings,
        crowded,
        note_bytes=0 if network is None else network.note_bytes,
    )


def check_communicator(comm):
    """Refuse what is not an intracommunicator of a running MPI, before any traffic."""
    if isinstance(comm, _comm.Comm):
        raise TypeError("comm: is a hetccl.Comm already; its MPI communicator is comm.mpi")
    if not isinstance(comm, MPI.Comm):
        raise TypeError(f"comm: expected an mpi4py communicator such as MPI.COMM_WORLD, got {type(comm).__name__}")
    if not MPI.Is_initialized():
        raise CommClosed("comm: MPI is not initialized", call="Comm")
    if MPI.Is_finalized():
        raise CommClosed("comm: MPI is finalized; build communicators before MPI.Finalize()", call="Comm")
    if comm == MPI.COMM_NULL:
        raise ValueError("comm: is MPI.COMM_NULL; this process is not a member of the communicator")
    if comm.Is_inter():
        raise ValueError("comm: is an intercommunicator; hetccl needs an intracommunicator (Merge() makes one)")


def _leave_all(reason="the program is ending"):
    _endpoint.end(reason)
    for joined in list(_joined):
        joined.leave()


def _end_of_mpi(comm, keyval, value):
    _leave_all("MPI is finalized")


@functools.cache
def _watch_the_end():
    """Hear of MPI_Finalize and of the program's end.

    Source : MPI 4.1, section 11.2.4: attributes of COMM_SELF are deleted first of all
    """
    atexit.register(_leave_all)
    keyval = MPI.Comm.Create_keyval(delete_fn=_end_of_mpi)
    MPI.COMM_SELF.Set_attr(keyval, True)


def _mpi_ops():
    """Handles of MPI's predefined ops -> their names; any other op is the user's."""
    names = "SUM PROD MAX MIN LAND LOR LXOR BAND BOR BXOR MINLOC MAXLOC REPLACE NO_OP OP_NULL"
    return {MPI._handleof(getattr(MPI, name)): name for name in names.split()}


def _function_of(op):
    """The Python function of an op that MPI.Op.Create made; None for one made in C."""
    try:
        return op.__reduce__()[1][0]
    except ValueError:
        return None


def _mpi_datatypes():
    """[(MPI.Datatype, name of the dtype)] of MPI's basic datatypes. Some MPIs lack some; the C types differ in size."""
    found = []
    for kind, members in _DATATYPES.items():
        for member in members.split():
            nbytes = _size_of(getattr(MPI, member, MPI.DATATYPE_NULL))
            if nbytes:
                found.append((getattr(MPI, member), f"{kind}{8 * nbytes if kind in _SIZED else ''}"))
    return found


def _size_of(datatype):
    """Bytes of a basic datatype; 0 for one that this MPI lacks."""
    try:
        return 0 if datatype == MPI.DATATYPE_NULL else datatype.Get_size()
    except MPI.Exception:  # mpi4py's wheel has a handle for each of MPI's names, whether or not the library knows it
        return 0


def _decode(datatype):
    """Description of a datatype for _layout.register_decoder, or None."""
    if not isinstance(datatype, MPI.Datatype) or datatype == MPI.DATATYPE_NULL:
        return None
    if not datatype.is_predefined:
        # MPI gives a freed datatype's handle to a new one, so that a layout must be forgotten at MPI_Type_free.
        datatype.Set_attr(_layout_keyval(), True)
    return _decode_tree(datatype)


def _decode_tree(datatype):
    extent = datatype.Get_extent()[1]
    if datatype.is_predefined:
        return "NAMED", extent, {"handle": MPI._handleof(datatype)}, ()
    child, combiner, params = datatype.decode()
    children = params.pop("datatypes", [child])
    try:
        described = [_decode_tree(inner) for inner in children if inner != MPI.DATATYPE_NULL]
    finally:
        for inner in children:  # decoding has made new references of them
            if not inner.is_predefined:
                inner.Free()
    if "order" in params:
        params["order"] = "F" if params["order"] == MPI.ORDER_FORTRAN else "C"
    return combiner, extent, params, described


@functools.cache
def _layout_keyval():
    return MPI.Datatype.Create_keyval(delete_fn=_forget_layout)


def _forget_layout(datatype, keyval, value):
    _layout.forget(MPI._handleof(datatype))


def _describe_self():
    """(settings, Member, None), or (None, None, what is wrong here): the others must hear of it, not wait."""
    try:
        settings = config.load()
        _check_algorithm(settings.algorithm)
        paths.check(settings)
        config.setup_logging(settings.log, MPI.COMM_WORLD.rank)
        return settings, topology.local(settings), None
    except (ValueError, OSError) as error:
        return None, None, f"{type(error).__name__}: {error}"


def _check_algorithm(name):
    """Refuse what no collective has; a name that some have holds for those."""
    known = {"auto"}.union(*map(algorithms, COLLECTIVES))
    if name not in known:
        raise ValueError(f"HETCCL_ALGORITHM={name!r} is no algorithm; there are {', '.join(sorted(known))}")


class Meeting:
    """Agreements of all ranks of a communicator during Comm(), or another call of all ranks.

    comm : mpi4py communicator     timeout : seconds that one of them may take     call : its name, for messages
    """

    def __init__(self, comm, timeout, call="Comm"):
        self.comm = comm
        self.timeout = timeout
        self.call = call
        self.tag = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)

    def allgather(self, value):
        """Every rank's value, in rank order. Raises CommTimeout, with the ranks that have not come."""
        comm = self.comm
        payload = pickle.dumps(value)
        lengths = bytearray(8 * comm.size)
        self._wait(comm.Iallgather([len(payload).to_bytes(8, "little"), MPI.BYTE], [lengths, MPI.BYTE]), lengths)
        counts = [int.from_bytes(lengths[8 * r : 8 * r + 8], "little") for r in range(comm.size)]
        everything = bytearray(sum(counts))
        starts = [sum(counts[:r]) for r in range(comm.size)]
        self._wait(comm.Iallgatherv([payload, MPI.BYTE], [everything, (counts, starts), MPI.BYTE]), everything)
        return [pickle.loads(everything[start : start + count]) for start, count in zip(starts, counts)]

    def _wait(self, request, buffer):
        deadline = time.monotonic() + self.timeout
        pause, longest = POLL_SECONDS
        pending = (request, buffer)
        _abandoned.append(pending)  # until it is complete: whatever leaves this loop, MPI may still write to the buffer
        while not request.Test():
            self._answer_roll_call()
            if time.monotonic() > deadline:
                raise self._time_out()
            time.sleep(pause)
            pause = min(2 * pause, longest)
        _abandoned.remove(pending)

    def _answer_roll_call(self):
        """Reply to ranks that ask who is here. Returns those that have asked."""
        heard = set()
        status = MPI.Status()
        while self.comm.Iprobe(MPI.ANY_SOURCE, self.tag, status):
            asker = status.Get_source()
            self.comm.Recv([None, 0, MPI.BYTE], asker, self.tag)
            _abandoned.append((self.comm.Isend([None, 0, MPI.BYTE], asker, self.tag - 1), None))
            heard.add(asker)
        return heard

    def _time_out(self):
        comm = self.comm
        others = set(range(comm.size)) - {comm.rank}
        _abandoned.extend((comm.Isend([None, 0, MPI.BYTE], peer, self.tag), None) for peer in others)
        here = set()
        deadline = time.monotonic() + ROLL_CALL_SECONDS
        while here != others and time.monotonic() < deadline:
            here |= self._answer_roll_call()
            here |= {peer for peer in others - here if comm.Iprobe(peer, self.tag - 1)}
            time.sleep(POLL_SECONDS[1])
        missing = tuple(sorted(others - here))
        who = f"ranks {list(missing)} have not called it" if missing else "all ranks are there but MPI did not deliver"
        waited = f"waited {self.timeout:g} s (HETCCL_TIMEOUT) for all {comm.size} ranks"
        return CommTimeout(
            f"{self.call}: rank {comm.rank} {waited}; {who}",
            call=self.call,
            rank=comm.rank,
            peer=missing,
        )


_names = _mpi_datatypes()
_usual = {name: datatype for datatype, name in reversed(_names)}
_handles = {MPI._handleof(datatype): name for datatype, name in _names}
_buffer.register_mpi(_handles, MPI._handleof, MPI.IN_PLACE, MPI.BOTTOM)
_layout.register_decoder(_decode)
_op.register_mpi_ops(MPI.Op, _mpi_ops(), _usual, MPI._handleof, _function_of, MPI.buffer.frombuffer)
_lists.register_mpi_requests(MPI.Request, MPI.UNDEFINED, MPI.Status, _clear_status)
