"""The MPI job that a command runs in, and what all commands say about it.

MPI is reached through hetccl.bootstrap, and only when a command needs it: doctor and info must still run, and say so,
where MPI is missing or broken.
"""

import faulthandler
import importlib
import importlib.metadata
import json
import platform
import subprocess
import sys
from typing import NamedTuple

from hetccl import config, topology
from hetccl._version import VERSION
from hetccl.errors import HetcclError

PROBE_SECONDS = 60
# Set in each process by Open MPI, by launchers that speak PMIx or PMI (MPICH, Intel MPI, Slurm), and by Cray's PALS.
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PALS_RANKID")

_PROBE = """
import json, sys
try:
    import mpi4py
except ImportError as error:
    sys.exit(str(error))
mpi4py.rc.initialize = sys.argv[1] == "init"
try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:
    sys.exit(str(error).splitlines()[0])
maps = {line.split(None, 5)[-1].strip() for line in open("/proc/self/maps")}
paths = sorted(path for path in maps if path.rpartition("/")[2].startswith("libmpi."))
print(json.dumps({"mpi4py": mpi4py.__version__, "library": MPI.Get_library_version(), "path": (paths or [""])[0]}))
"""


class MpiFound(NamedTuple):
    """library : "Open MPI v5.0.11"; path : of libmpi; problem : "" or why MPI cannot be used (the rest is then "")."""

    mpi4py: str
    library: str
    path: str
    problem: str


class MpiMissing(HetcclError):
    """mpi4py or the MPI library behind it cannot be loaded."""


def launch_rank(roots=topology.ROOTS):
    """This process's rank as its launcher told it, without MPI; None if no launcher started it.

    Read from /proc: what the process was started with, whatever has changed in os.environ since.
    """
    try:
        entries = (roots.proc / "self/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    variables = dict(entry.decode(errors="replace").partition("=")[::2] for entry in entries)
    ranks = [variables[name] for name in RANK_VARIABLES if variables.get(name, "").isdecimal()]
    return int(ranks[0]) if ranks else None


def world(patience=None):
    """MPI.COMM_WORLD. Initializes MPI. Raises MpiMissing.

    patience : seconds; where MPI_Init, which waits for all ranks, takes longer, this process ends with its stack on
               stderr: nothing in Python runs while it is in MPI
    """
    if patience is not None:
        faulthandler.dump_traceback_later(patience, exit=True)
    try:
        return _mpi().COMM_WORLD
    finally:
        if patience is not None:
            faulthandler.cancel_dump_traceback_later()


def constants():
    """mpi4py's MPI module, for its ops and IN_PLACE. Initializes MPI. Raises MpiMissing."""
    return _mpi()


def meeting(comm, settings, call):
    """Agreements of all ranks that end: its allgather(value) gives every rank's, or raises CommTimeout.

    comm : mpi4py communicator     settings : config.Config; timeout is read     call : what the ranks are in
    """
    return importlib.import_module("hetccl.bootstrap").Meeting(comm, settings.timeout, call)


def give_up(error):
    """End the whole job, with exit status 1: a rank is lost, for which MPI_Finalize of the others would wait."""
    comm = _mpi().COMM_WORLD
    print(f"hetccl rank {comm.rank}: {error}", file=sys.stderr, flush=True)
    comm.Abort(1)


def communicator(comm, device=None):
    """hetccl's communicator over an mpi4py one. Collective; raises what hetccl.Comm raises.

    device : index of the GPU of the vendor's communicator beneath it; None: without one until it is needed
    """
    return importlib.import_module("hetccl").Comm(comm, device=device)


def find_mpi(may_initialize):
    """Load MPI in a process of its own, because a broken MPI ends the process that initializes it.

    may_initialize : whether to try MPI_Init too; not in a job's rank, whose launcher expects one MPI_Init
    Returns        : MpiFound
    """
    command = [sys.executable, "-c", _PROBE, "init" if may_initialize else "load"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        return MpiFound("", "", "", f"MPI_Init did not return within {PROBE_SECONDS} s")
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        said = (done.stderr or done.stdout).strip().splitlines()
        return MpiFound("", "", "", said[-1].strip() if said else f"exit status {done.returncode}")
    answer = json.loads(lines[-1])
    return MpiFound(answer["mpi4py"], _short_version(answer["library"]), answer["path"], "")


def settings():
    """(Config, "") or, if a variable is wrong, (Config of the defaults, what is wrong)."""
    try:
        return config.load(), ""
    except ValueError as error:
        return config.load({}), str(error)


def versions():
    """One line about this installation."""
    return f"hetccl {VERSION}, Python {platform.python_version()}, {platform.system()} {platform.release()}"


def first_line(error):
    """What an error says, without the list of paths that were tried for a library."""
    return str(error).partition("; tried:")[0].replace("\n", " ")


def plural(number, noun):
    """(1, "rank") -> "1 rank"; (3, "rank") -> "3 ranks"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def ranks_text(ranks):
    """(0, 1, 2, 5) -> "ranks 0-2,5"; (3,) -> "rank 3"."""
    return f"rank{'' if len(ranks) == 1 else 's'} {topology.format_cpulist(ranks)}"


def by_text(texts):
    """Each text once, with the ranks whose it is; the ranks are left out where all say the same: list of str.

    texts : of each rank; of "" nothing is said
    """
    ranks = {}
    for rank, text in enumerate(texts):
        ranks.setdefault(text, []).append(rank)
    whole = len(ranks) == 1
    return [text if whole else f"{ranks_text(those)}: {text}" for text, those in ranks.items() if text]


def island_lines(members):
    """A line for each island and for each host: list of str."""
    lines = []
    for island in topology.islands(members):
        lines.append(f"island {island.label} ({island.vendor}): {ranks_text(island.ranks)}")
    for host, ranks in by_host(members).items():
        cores = frozenset().union(*(members[rank].cores for rank in ranks))
        lines.append(f"host {host}: {ranks_text(ranks)} on {plural(len(cores), 'core')}")
    return lines


def by_host(members):
    """Host name -> list of ranks, by lowest rank. Hosts that share a name but not a machine are numbered."""
    machines = {}
    for rank, member in enumerate(members):
        machines.setdefault(member.machine, []).append(rank)
    named, copies = {}, {}
    for ranks in machines.values():
        host = members[ranks[0]].host
        copies[host] = copies.get(host, 0) + 1
        named[f"{host} #{copies[host]}" if copies[host] > 1 else host] = ranks
    return named


def _mpi():
    try:
        return importlib.import_module("hetccl.bootstrap").MPI
    except (ImportError, RuntimeError) as error:
        # mpi4py raises RuntimeError where it finds no MPI library, ImportError where one does not load.
        raise MpiMissing(f"MPI cannot be used: {error}; `python -m hetccl doctor` says more") from error


def _short_version(text):
    """What MPI_Get_library_version says, cut to name and number."""
    words = text.strip("\0\n ").replace(",", " ").split()
    if words[:1] == ["MPICH"]:
        return f"MPICH {words[2]}"
    return " ".join(words[:3]) if words[:2] == ["Open", "MPI"] else text.splitlines()[0][:60]


def describe_mpi():
    """The MPI that this process has initialized: MpiFound, without a path."""
    mpi = _mpi()
    return MpiFound(importlib.metadata.version("mpi4py"), _short_version(mpi.Get_library_version()), "", "")


def ranks_of_host(comm):
    """How many ranks of an MPI communicator run on this host. Collective."""
    node = comm.Split_type(_mpi().COMM_TYPE_SHARED)
    nranks = node.size
    node.Free()
    return nranks


def rank_of_host(comm):
    """This rank's number among those of an MPI communicator on this host. Collective."""
    node = comm.Split_type(_mpi().COMM_TYPE_SHARED)
    rank = node.rank
    node.Free()
    return rank


def memory_available(proc=topology.ROOTS.proc):
    """Bytes that this host can still give to programs. Source: proc(5), meminfo."""
    lines = (line.split() for line in (proc / "meminfo").read_text().splitlines())
    return next(int(words[1]) for words in lines if words[0] == "MemAvailable:") * 1024
