"""`python -m hetccl info`: what is installed, found and visible. Judges nothing; that is doctor's work."""

import json
import os
import platform
from dataclasses import asdict

from hetccl import kernels, topology
from hetccl._version import VERSION
from hetccl.cli import gpu, job, rdma
from hetccl.errors import LibraryNotFound
from hetccl.libraries import LIBRARIES


def add_parser(subparsers):
    """Register the command."""
    parser = subparsers.add_parser(
        "info",
        help="version, libraries, devices, NICs, and the islands of the job",
        description="Print the version, the libraries found and where, devices, NICs and the job's islands.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.set_defaults(run=run)


def run(args):
    """Print the page once for the job. Returns the exit status."""
    settings, problem = job.settings()
    members, rank = None, 0
    if job.launch_rank() is not None:
        comm = job.world()
        rank = comm.rank
        members = comm.gather(topology.local(settings))
    if rank == 0:
        page = collect(settings, problem, members)
        print(json.dumps(page, indent=2) if args.json else text(page))
    return 0


def collect(settings, problem, members):
    """The page as a dictionary of plain values. members : of all ranks, or None outside a job."""
    islands = topology.islands(members or ())
    libraries = [_look_up(known, settings) for known in LIBRARIES]
    found = {library["name"] for library in libraries if library["path"]}
    return {
        "version": VERSION,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "host": platform.node(),
        "cores": topology.format_cpulist(os.sched_getaffinity(0)),
        "configuration_problem": problem,
        "mpi": job.find_mpi(may_initialize=members is None)._asdict(),
        "libraries": libraries,
        "tables": [opened._asdict() for opened in gpu.open_found(found, settings)],
        "kernels": [kernels.describe(runtime)._asdict() for runtime in gpu.KERNELS.values()],
        "devices": [asdict(device) for device in topology.devices(settings)],
        "rdma": rdma.collect(settings),
        "members": [member.as_dict() for member in members or ()],
        "islands": [island._asdict() for island in islands],
    }


def text(page):
    """The page for a person."""
    mpi = page["mpi"]
    lines = [f"hetccl {page['version']}, Python {page['python']}, {page['system']}"]
    if page["configuration_problem"]:
        lines.append(f"configuration problem: {page['configuration_problem']}")
    lines += ["", "MPI"]
    if mpi["problem"]:
        lines.append(f"  not usable: {mpi['problem']}")
    else:
        lines.append(f"  {mpi['library']} through mpi4py {mpi['mpi4py']}  {mpi['path']}")
    lines += ["", "Libraries"]
    for found in page["libraries"]:
        where = f"{found['path']} ({found['origin']})" if found["path"] else "not found"
        lines.append(f"  {found['name']:<13} {found['version'] or '-':<12} {where}")
    if page["tables"]:
        lines += ["", "As hetccl uses them"]
        lines += [f"  {table['name']:<13} {_table_text(table)}" for table in page["tables"]]
    lines += ["", "Reduction kernels"]
    lines += [f"  {found['runtime']:<13} {_kernels_text(found)}" for found in page["kernels"]]
    lines += ["", "Devices"]
    lines += [f"  {gpu['pci']:<13} {gpu['vendor']:<7} {gpu['name']}" for gpu in page["devices"]] or ["  none visible"]
    lines += ["", "NICs"]
    lines += [f"  {line}" for line in rdma.lines(page["rdma"])]
    lines += ["", "Job"]
    members = [topology.Member(**member) for member in page["members"]]
    if members:
        lines += [f"  {line}" for line in [job.plural(len(members), "rank"), *job.island_lines(members)]]
    else:
        lines.append("  one process, not under mpirun")
    return "\n".join(lines)


def _table_text(table):
    if table["problem"]:
        return f"not usable: {table['problem']}"
    return f"lacks {', '.join(table['missing'])}" if table["missing"] else "has every function that hetccl knows"


def _kernels_text(found):
    ahead = f"built ahead for {', '.join(found['ahead'])}" if found["ahead"] else "not built ahead"
    if found["compiler"]:
        return f"{ahead}; others at run time by {found['compiler']}"
    return f"{ahead}; no run-time compiler: {found['problem']}"


def _look_up(known, settings):
    try:
        library = known.open(settings)
    except LibraryNotFound as error:
        return {"name": known.name, "path": "", "origin": "", "version": "", "tried": str(error)}
    version = known.version(library)
    return {"name": known.name, "path": library.path, "origin": library.origin, "version": version, "tried": ""}
