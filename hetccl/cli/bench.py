"""`python -m hetccl bench`: time one collective over a range of sizes, check its results, compare it with mpi4py's.

Every iteration starts behind a barrier of MPI and is timed by every rank; its time is that of the slowest rank, and a
row shows the median over iterations. With --compare the two libraries take turns, in alternating order, so that both
meet the same machine and the same caches.
"""

import argparse
import re
from pathlib import Path

import numpy as np

import hetccl
from hetccl.cli import job, report
from hetccl.cli.collectives import COLLECTIVES, Side
from hetccl.cli.measure import Bench
from hetccl.config import UNITS

DTYPES = (
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
)
OPS = ("sum", "prod", "min", "max", "avg")
# mpi4py maps neither to an MPI datatype that can be reduced.
NO_PEER_DTYPES = ("float16", "bfloat16")
# Both buffers, and as much again for the expected values.
BUFFERS_PER_RANK = 4


def add_parser(subparsers):
    """Register the command."""
    parser = subparsers.add_parser(
        "bench",
        help="time and check a collective, with nccl-tests' columns",
        description="Time and check one collective; start it under mpirun. Sizes take K, M or G (powers of 1024). "
        "Exit status: 0, or 1 if a result was wrong.",
    )
    add = parser.add_argument
    add("collective", choices=COLLECTIVES, metavar="collective", help=", ".join(COLLECTIVES))
    add("-b", "--minbytes", type=parse_size, default="8", metavar="SIZE", help="smallest size (8)")
    add("-e", "--maxbytes", type=parse_size, default="64M", metavar="SIZE", help="largest size (64M)")
    add("-f", "--stepfactor", type=_at_least(1.01, float), default=2.0, metavar="X", help="next size / size (2)")
    add("-n", "--iters", type=_at_least(1), default=20, metavar="N", help="timed iterations (20)")
    add("-w", "--warmup", type=_at_least(0), default=5, metavar="N", help="untimed iterations before them (5)")
    add("-d", "--datatype", choices=DTYPES, default="float32", metavar="TYPE", help="NumPy's name of it (float32)")
    add("-o", "--op", choices=OPS, default="sum", metavar="OP", help=f"{', '.join(OPS)} (sum)")
    add("-r", "--root", type=_at_least(0), default=0, metavar="RANK", help="root (0)")
    add("--check", action=argparse.BooleanOptionalAction, default=True, help="compare results with NumPy's (on)")
    add("--compare", choices=["mpi4py"], metavar="LIBRARY", help="time mpi4py in the same run too")
    add("--json", type=Path, metavar="FILE", help="write the results to this file too")
    add("--csv", type=Path, metavar="FILE", help="write the results to this file too")
    parser.set_defaults(run=run, refuse=parser.error)


def run(args):
    """Run the benchmark. Returns the exit status, the same on all ranks: 1 if a result was wrong."""
    dtype = check_options(args)
    collective = COLLECTIVES[args.collective]
    world = job.world()
    trouble = _trouble(args, world)
    if trouble:
        args.refuse(trouble)
    with job.communicator(world) as ours:
        sides = _sides(args, world, ours)
        counts = tuple(row_counts(args, dtype.itemsize, world.size))
        bench = Bench(collective, world, sides, dtype, args.op if collective.reduces else None, args.root, counts[-1])
        header = report.header(args, world, ours)
        _say(world, report.head_text(header, args))
        rows = []
        for count in counts:
            rows.append(bench.row(count, args.warmup, args.iters, args.check))
            _say(world, report.row_text(rows[-1], args))
        _say(world, report.foot_text(rows))
    if world.rank == 0:
        report.write(args, header, rows)
    return int(any(result.wrong for row in rows for result in row.results()))


def parse_size(text):
    """ "64M" -> 67108864. Raises argparse.ArgumentTypeError."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text.upper())
    if not match or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; give bytes with K, M or G, such as 512, 64K or 1G")
    return int(match[1]) * UNITS[match[2]]


def check_options(args):
    """Refuse options that do not fit each other. Returns the NumPy dtype."""
    if args.minbytes > args.maxbytes:
        args.refuse(f"argument -b/--minbytes: {args.minbytes} is more than -e/--maxbytes, {args.maxbytes}")
    if args.op == "avg" and not COLLECTIVES[args.collective].averages:
        args.refuse(f"argument -o/--op: {args.collective} has no average; choose another")
    if args.compare and COLLECTIVES[args.collective].reduces:
        if args.op == "avg":
            args.refuse("argument --compare: MPI has no average; choose another -o/--op")
        if args.datatype in NO_PEER_DTYPES:
            args.refuse(f"argument --compare: mpi4py does not reduce {args.datatype}; choose another -d/--datatype")
    if args.compare and args.datatype == "bfloat16":
        args.refuse("argument --compare: mpi4py does not take bfloat16; choose another -d/--datatype")
    if args.datatype != "bfloat16":
        return np.dtype(args.datatype)
    try:
        # The package gives NumPy its bfloat16; nothing else here needs it.
        from ml_dtypes import bfloat16
    except ImportError:
        args.refuse("argument -d/--datatype: bfloat16 needs the package ml_dtypes")
    return np.dtype(bfloat16)


def row_counts(args, itemsize, nranks):
    """The element counts of the rows, each once: sizes too small for one element per rank are rounded up to that."""
    parts = nranks if COLLECTIVES[args.collective].parts else 1
    last, nbytes = 0, float(args.minbytes)
    while nbytes <= args.maxbytes:
        count = max(1, int(nbytes) // (itemsize * parts))
        if count != last:
            yield count
        last = count
        nbytes *= args.stepfactor


def _trouble(args, world):
    """What only a rank of the job can find wrong; rank 0's word, or the first rank's that has one. Collective."""
    found = []
    if args.root >= world.size:
        found.append(f"argument -r/--root: {args.root} is not one of {job.plural(world.size, 'rank')}")
    needed, available = BUFFERS_PER_RANK * args.maxbytes * job.ranks_of_host(world), job.memory_available()
    if needed > available:
        found.append(f"argument -e/--maxbytes: needs {needed >> 20} MiB, and this host has {available >> 20} MiB free")
    for path in filter(None, (args.json, args.csv)) if world.rank == 0 else ():
        try:
            path.open("a").close()
        except OSError as error:
            found.append(f"cannot write {path}: {error.strerror}")
    return next((troubles[0] for troubles in world.allgather(found) if troubles), None)


def _sides(args, world, ours):
    name = args.op.upper()
    sides = [Side(ours, getattr(hetccl, name), hetccl.IN_PLACE)]
    if args.compare:
        mpi = job.constants()
        sides.append(Side(world, getattr(mpi, name), mpi.IN_PLACE))
    return sides


def _say(world, text):
    if world.rank == 0:
        print(text, flush=True)


def _at_least(lowest, kind=int):
    def parse(text):
        try:
            number = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
        if not number >= lowest:
            raise argparse.ArgumentTypeError(f"{text} is less than {lowest}")
        return number

    return parse
