"""What bench prints and writes: nccl-tests' columns, JSON, CSV."""

import csv
import json
import shlex
import sys
from dataclasses import asdict

import numpy as np

from hetccl import topology
from hetccl.cli import job
from hetccl.cli.collectives import COLLECTIVES

MODES = ("out_place", "in_place")
# (title, unit, width) of the columns of one mode; the last two only with --compare.
COLUMNS = (("time", "(us)", 10), ("algbw", "(GB/s)", 8), ("busbw", "(GB/s)", 8), ("#wrong", "", 7))
PEER_COLUMNS = (("mpi4py", "(us)", 10), ("ratio", "", 7))
ROW_COLUMNS = (("size", "(B)", 12), ("count", "(elements)", 12), ("type", "", 9), ("redop", "", 6), ("root", "", 5))


def header(args, world, ours):
    """What the numbers depend on, as a dictionary of plain values. Collective."""
    settings, _ = job.settings()
    members = world.allgather(topology.local(settings))
    mpi = job.describe_mpi()
    return {
        "command": shlex.join(["python", "-m", "hetccl", *sys.argv[1:]]),
        "versions": f"{job.versions()}, NumPy {np.__version__}",
        "mpi": f"{mpi.library} through mpi4py {mpi.mpi4py}",
        "ranks": world.size,
        "members": job.island_lines(members),
        "path": job.path_text(settings),
        "warmup": args.warmup,
        "iters": args.iters,
        "collective": args.collective,
        "datatype": args.datatype,
        "op": args.op if COLLECTIVES[args.collective].reduces else "none",
        "root": args.root if COLLECTIVES[args.collective].rooted else -1,
    }


def head_text(header, args):
    """The lines above the first row."""
    columns = COLUMNS + PEER_COLUMNS if args.compare else COLUMNS
    width = sum(column[2] for column in columns)
    left = sum(column[2] for column in ROW_COLUMNS)
    lines = [
        f"# {header['versions']}",
        f"# {header['mpi']}",
        f"# {job.plural(header['ranks'], 'rank')}",
        *(f"# {line}" for line in header["members"]),
        f"# path: {header['path']}",
        f"# {header['command']}",
        f"# time: median of {args.iters} after {args.warmup}, slowest rank"
        + (f"; ratio: hetccl / {args.compare}, which take turns" if args.compare else ""),
        "#",
        "#" + " " * (left - 1) + "out-of-place".center(width) + "in-place".center(width),
        "#" + _cells([(c[0], c[2]) for c in ROW_COLUMNS + columns * 2])[1:],
        "#" + _cells([(c[1], c[2]) for c in ROW_COLUMNS + columns * 2])[1:],
    ]
    return "\n".join(line.rstrip() for line in lines)


def row_text(row, args):
    """One row."""
    collective = COLLECTIVES[args.collective]
    op = args.op if collective.reduces else "none"
    root = args.root if collective.rooted else -1
    values = [row.nbytes, row.count, args.datatype, op, root]
    cells = list(zip(values, (column[2] for column in ROW_COLUMNS), strict=True))
    for mode in MODES:
        cells += _mode_cells(getattr(row, mode), args.compare)
    return _cells(cells)


def foot_text(rows):
    """The lines below the last row."""
    results = [result for row in rows for result in row.results()]
    lines = [f"# average bus bandwidth: {np.mean([result.ours.busbw for result in results]):.3f} GB/s"]
    checked = [result.wrong for result in results if result.wrong is not None]
    if checked:
        wrong = sum(checked)
        lines.append(f"# wrong elements: {wrong}{' FAILED' if wrong else ' OK'}")
    ratios = [result.ratio for result in results if result.ratio is not None]
    if ratios:
        mean = np.exp(np.mean(np.log(ratios)))
        lines.append(f"# time / mpi4py's: geometric mean {mean:.2f}, worst {max(ratios):.2f}")
    return "\n".join(lines)


def write(args, header, rows):
    """Write --json and --csv. Raises OSError."""
    if args.json:
        args.json.write_text(json.dumps({"header": header, "rows": [asdict(row) for row in rows]}, indent=2) + "\n")
    if args.csv:
        with args.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            fields = (
                "us",
                "min_us",
                "p95_us",
                "algbw",
                "busbw",
                "wrong",
                "peer_us",
                "peer_min_us",
                "peer_p95_us",
                "ratio",
            )
            writer.writerow(["collective", "datatype", "op", "root", "ranks", "nbytes", "count", "mode", *fields])
            for row in rows:
                for mode in MODES:
                    if getattr(row, mode):
                        writer.writerow(_record(header, row, mode))


def _record(header, row, mode):
    result = getattr(row, mode)
    ours, peer = result.ours, result.peer
    key = [header[name] for name in ("collective", "datatype", "op", "root", "ranks")]
    times = [ours.us, ours.min_us, ours.p95_us, ours.algbw, ours.busbw, result.wrong]
    against = [peer.us, peer.min_us, peer.p95_us, result.ratio] if peer else [None] * 4
    return [*key, row.nbytes, row.count, mode, *times, *against]


def _mode_cells(result, compare):
    columns = COLUMNS + PEER_COLUMNS if compare else COLUMNS
    widths = [column[2] for column in columns]
    if result is None:
        return [("N/A", width) for width in widths]
    ours = result.ours
    wrong = "N/A" if result.wrong is None else result.wrong
    values = [f"{ours.us:.2f}", f"{ours.algbw:.3f}", f"{ours.busbw:.3f}", wrong]
    if compare:
        values += [f"{result.peer.us:.2f}", f"{result.ratio:.2f}"]
    return list(zip(values, widths, strict=True))


def _cells(cells):
    # A value wider than its column moves the rest, but never touches its neighbour.
    return "".join(f" {value:>{width - 1}}" for value, width in cells)
