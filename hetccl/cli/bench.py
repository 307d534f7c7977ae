"""`python -m hetccl bench`: time one collective over a range of sizes, check its results, compare it with its peers.

Every iteration starts behind a barrier of MPI and is timed by every rank; its time is that of the slowest rank, and a
row shows the median over iterations. With --compare the libraries take turns, in alternating order, so that all of
them meet the same machine and the same caches.
"""

import argparse
import re
import tempfile
from pathlib import Path

import numpy as np

import hetccl
from hetccl.cli import job, memory, peers, plot, points, report
from hetccl.cli.collectives import Side
from hetccl.cli.measure import Bench
from hetccl.cli.report import BENCHMARKS
from hetccl.config import UNITS

DTYPES = (
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
)
OPS = ("sum", "prod", "min", "max", "avg")
# Both buffers, as much again for the expected values, and a peer's own copies.
BUFFERS_PER_RANK = 6
# The options that ranks may have different from each other.
OF_ONE_RANK = ("memory",)


def add_parser(subparsers):
    """Register the command."""
    parser = subparsers.add_parser(
        "bench",
        help="time and check a collective, with nccl-tests' columns",
        description="Time and check one collective, or messages between the first rank and the last; start it under "
        "mpirun. Sizes take K, M or G (powers of 1024; or KiB, MiB, GiB). Exit status: 0, or 1 if a result was wrong.",
    )
    add = parser.add_argument
    add("collective", choices=BENCHMARKS, metavar="collective", help=", ".join(BENCHMARKS))
    add("-b", "--minbytes", type=parse_size, default="8", metavar="SIZE", help="smallest size (8)")
    add("-e", "--maxbytes", type=parse_size, default="64M", metavar="SIZE", help="largest size (64M)")
    add("-f", "--stepfactor", type=_between(1.01, 1e6, float), default=2.0, metavar="X", help="next size / size (2)")
    add("-n", "--iters", type=_between(1, 10**6), default=20, metavar="N", help="timed iterations (20)")
    add("-w", "--warmup", type=_between(0, 10**6), default=5, metavar="N", help="untimed iterations before them (5)")
    add("-d", "--datatype", choices=DTYPES, default="float32", metavar="TYPE", help="NumPy's name of it (float32)")
    add("-o", "--op", choices=OPS, default="sum", metavar="OP", help=f"{', '.join(OPS)} (sum)")
    add("-r", "--root", type=_between(0, 10**9), default=0, metavar="RANK", help="root (0)")
    add("--memory", choices=memory.KINDS, default="host", help="where the buffers are; may differ by rank (host)")
    add("--check", action=argparse.BooleanOptionalAction, default=True, help="compare results with NumPy's (on)")
    names = ", ".join(peers.PEERS)
    add("--compare", type=_names, default=(), metavar="NAME[,NAME]", help=f"time these too: all, or some of {names}")
    add("--json", type=Path, metavar="FILE", help="write the results to this file too")
    add("--csv", type=Path, metavar="FILE", help="write the results to this file too")
    add("--plot", type=Path, metavar="FILE", help=f"draw them: {', '.join(plot.SUFFIXES)} (needs matplotlib)")
    add("--force", action="store_true", help="let these files be overwritten")
    parser.set_defaults(run=run, refuse=parser.error)


def run(args):
    """Run the benchmark. Returns the exit status, the same on all ranks: 1 if a result was wrong."""
    dtype = check_options(args)
    benchmark = BENCHMARKS[args.collective]
    world = job.world()
    trouble, place = _trouble(args, world, dtype)
    if trouble:
        args.refuse(trouble)
    counts = tuple(row_counts(args, dtype.itemsize, world.size))
    with job.communicator(world) as ours:
        header = report.header(args, world, ours, place)
        sides = [Side(ours, getattr(hetccl, args.op.upper()), hetccl.IN_PLACE, byte=job.constants().BYTE)]
        want = _want(args, dtype, place, len(ours.islands) == 1, counts[-1] * max(benchmark.units(world.size)))
        others, header["absent"] = peers.open_peers(_wanted(args, world), world, want, job.settings()[0])
        bench = Bench(benchmark, world, [*sides, *others], dtype, want.op, args.root, counts, place)
        unable = bench.drop_unable(counts[0])
        if "hetccl" in unable:
            args.refuse(f"hetccl does not run {args.collective} on these buffers: {unable['hetccl']}")
        header["absent"] |= unable
        header["peers"] = [side.name for side in bench.sides[1:]]
        _say(world, report.head_text(header))
        rows = []
        for count in counts:
            rows.append(bench.row(count, args.warmup, args.iters, args.check))
            _say(world, report.row_text(rows[-1], header))
        _say(world, report.foot_text(rows))
        for side in reversed(others):
            side.close()
    if world.rank == 0:
        page = report.page(header, rows)
        report.write(args, page)
        if args.plot:
            plot.draw(page, args.plot)
    return int(any(row.wrong() for row in rows))


def parse_size(text):
    """ "64M" -> 67108864. Raises argparse.ArgumentTypeError."""
    match = re.fullmatch(r"(\d{1,15})(?:([KMG]?)|([KMG])IB|B)", text.upper())
    if not match or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; give bytes with K, M or G, such as 512, 64K or 1GiB")
    return int(match[1]) * UNITS[match[2] or match[3] or ""]


def check_options(args):
    """Refuse options that do not fit each other. Returns the NumPy dtype."""
    benchmark = BENCHMARKS[args.collective]
    if args.minbytes > args.maxbytes:
        args.refuse(f"argument -b/--minbytes: {args.minbytes} is more than -e/--maxbytes, {args.maxbytes}")
    if args.op == "avg" and not benchmark.averages:
        args.refuse(f"argument -o/--op: {args.collective} has no average; choose another")
    dtype = _dtype(args)
    for name in args.compare if args.compare != ("all",) else ():
        want = _want(args, dtype, None, True, args.maxbytes)
        if why := peers.PEERS[name].lacks(want):
            args.refuse(f"argument --compare: {name}: {why}")
    written = [path for path in (args.json, args.csv, args.plot) if path]
    if len(set(written)) < len(written):
        args.refuse(f"arguments --json, --csv, --plot: {written[0]} is given twice")
    if args.plot and args.plot.suffix not in plot.SUFFIXES:
        args.refuse(f"argument --plot: {args.plot}: the name must end in {', '.join(plot.SUFFIXES)}")
    return dtype


def row_counts(args, itemsize, nranks):
    """The element counts of the rows, each once: sizes too small for one element per rank are rounded up to that."""
    if not max(BENCHMARKS[args.collective].units(nranks)):
        yield 1
        return
    parts = nranks if BENCHMARKS[args.collective].parts else 1
    last, nbytes = 0, float(args.minbytes)
    while nbytes <= args.maxbytes:
        count = max(1, int(nbytes) // (itemsize * parts))
        if count != last:
            yield count
        last = count
        nbytes *= args.stepfactor


def file_trouble(path, force):
    """ "" or why a file cannot be written. Nothing is left where it will be."""
    if path.is_dir():
        return f"cannot write {path}: it is a folder"
    if path.exists() and not force:
        return f"{path} exists: name another file, or give --force"
    try:
        if path.exists():
            path.open("a").close()
        else:
            # Whether a file can be made there, only making one tells.
            tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        return f"cannot write {path}: {error.strerror}"
    return ""


def _trouble(args, world, dtype):
    """What only a rank of the job can find wrong: the first rank's word that has one. Collective.

    Returns : (what, or None; this rank's memory)
    """
    found, place = [], None
    if args.root >= world.size:
        found.append(f"argument -r/--root: {args.root} is not one of {job.plural(world.size, 'rank')}")
    if BENCHMARKS[args.collective].pair and world.size < 2:
        found.append(f"argument collective: {args.collective} is between two ranks; start it under mpirun")
    needed, available = _bytes_needed(args) * job.ranks_of_host(world), job.memory_available()
    if needed > available and args.memory == "host":
        found.append(f"argument -e/--maxbytes: needs {needed >> 20} MiB, and this host has {available >> 20} MiB free")
    kinds = sorted(set(world.allgather(args.memory)))
    for name in args.compare if args.compare != ("all",) else ():
        if unfit := peers.unfit(name, kinds):
            found.append(f"argument --compare: {name} {unfit}")
    if world.rank == 0:
        found += [f"argument --plot: {plot.missing()}"] if args.plot and plot.missing() else []
        files = filter(None, (args.json, args.csv, args.plot))
        found += [why for why in (file_trouble(path, args.force) for path in files) if why]
    try:
        place = memory.open_memory(args.memory, dtype, job.rank_of_host(world))
    except memory.MemoryMissing as error:
        found.append(f"argument --memory: rank {world.rank} has no {args.memory} buffers: {error}")
    alike = {name: str(value) for name, value in vars(args).items() if name not in (*OF_ONE_RANK, "run", "refuse")}
    if world.bcast(alike) != alike:
        found.append(f"rank {world.rank} was started with other options than rank 0; --memory alone may differ")
    return next((troubles[0] for troubles in world.allgather(found) if troubles), None), place


def _bytes_needed(args):
    largest = max(args.maxbytes, points.WINDOW_BYTES if BENCHMARKS[args.collective].window else 0)
    return BUFFERS_PER_RANK * largest


def _dtype(args):
    if args.datatype != "bfloat16":
        return np.dtype(args.datatype)
    try:
        # The package gives NumPy its bfloat16; nothing else here needs it.
        from ml_dtypes import bfloat16
    except ImportError:
        args.refuse("argument -d/--datatype: bfloat16 needs the package ml_dtypes")
    return np.dtype(bfloat16)


def _want(args, dtype, place, one_island, count):
    benchmark = BENCHMARKS[args.collective]
    op = args.op if benchmark.reduces else None
    return peers.Want(benchmark, dtype, op, place, count * dtype.itemsize, one_island)


def _wanted(args, world):
    """The peers to open: with a picture, its limit is one of them. Collective."""
    kinds = world.allgather(args.memory)
    wanted = peers.names(kinds) if args.compare == ("all",) else list(args.compare)
    return [*wanted, "copy"] if args.plot and "copy" not in wanted else wanted


def _names(text):
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in (*peers.PEERS, "all")]
    if unknown or len(set(names)) < len(names) or ("all" in names and len(names) > 1):
        known = ", ".join(peers.PEERS)
        raise argparse.ArgumentTypeError(f"{text!r}: give all, or one or more of {known}, with commas")
    return names


def _say(world, text):
    if world.rank == 0:
        print(text, flush=True)


def _between(lowest, highest, kind=int):
    def parse(text):
        try:
            number = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
        if not lowest <= number <= highest:
            raise argparse.ArgumentTypeError(f"{text} is not between {lowest} and {highest}")
        return number

    return parse
