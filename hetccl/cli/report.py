"""What bench prints and writes: nccl-tests' columns, JSON, CSV."""

import csv
import json
import os
import shlex
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

from hetccl.cli import gpu, job, network
from hetccl.cli.collectives import COLLECTIVES
from hetccl.cli.points import POINTS

MODES = ("out_place", "in_place")
BENCHMARKS = {**COLLECTIVES, **POINTS}
# (title, unit, width) of the columns of one mode.
COLUMNS = (("time", "(us)", 10), ("algbw", "(GB/s)", 8), ("busbw", "(GB/s)", 8), ("#wrong", "", 7))
ROW_COLUMNS = (("size", "(B)", 12), ("count", "(elements)", 12), ("type", "", 9), ("redop", "", 6), ("root", "", 5))
FIELDS = ("us", "min_us", "p95_us", "algbw", "busbw", "wrong", "ratio")
KEYS = ("collective", "datatype", "op", "root", "ranks")


def header(args, world, ours, memory):
    """What the numbers depend on, as a dictionary of plain values. Collective.

    ours : hetccl.Comm     memory : of this rank, see memory.py
    """
    settings, _ = job.settings()
    mpi = job.describe_mpi()
    memories = world.allgather(memory.text)
    sights = world.allgather(gpu.sight(settings))
    ways = _ways(world, ours, settings)
    return {
        "command": shlex.join(["python", "-m", "hetccl", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "versions": f"{job.versions()}, NumPy {np.__version__}",
        "mpi": f"{mpi.library} through mpi4py {mpi.mpi4py}",
        "machine": _processor(),
        "cores": os.cpu_count() or 1,
        "load": round(os.getloadavg()[0], 1),
        "ranks": world.size,
        "islands": [list(island.ranks) for island in ours.islands],
        "members": job.island_lines(ours.members),
        "memory": job.by_text(memories),
        "paths": [
            *job.by_text(ways["texts"]),
            *_device_paths(ours, sights, memories),
            f"single copy {settings.single_copy}, algorithm {settings.algorithm}",
        ],
        "limits": ways["limits"],
        "warmup": args.warmup,
        "iters": args.iters,
        "collective": args.collective,
        "datatype": args.datatype,
        "op": args.op if BENCHMARKS[args.collective].reduces else "none",
        "root": args.root if BENCHMARKS[args.collective].rooted else -1,
        "check": args.check,
        "peers": [],
        "absent": {},
    }


def head_text(header):
    """The lines above the first row."""
    width = sum(column[2] for column in _columns(header))
    left = sum(column[2] for column in ROW_COLUMNS)
    titles = (*ROW_COLUMNS, *_columns(header) * 2)
    lines = [
        f"# {header['versions']}",
        f"# {header['mpi']}",
        f"# {job.plural(header['ranks'], 'rank')}; {machine_text(header)}",
        *(f"# {line}" for line in header["members"]),
        *(f"# buffers: {line}" for line in header["memory"]),
        *(f"# path: {line}" for line in header["paths"]),
        *(f"# {name} does not take part: {why}" for name, why in header["absent"].items()),
        f"# {header['command']}",
        f"# time: median of {header['iters']} after {header['warmup']}, slowest rank"
        + ("; ratio: hetccl's time / that one's, which take turns" if header["peers"] else ""),
        "#",
        "#" + " " * (left - 1) + "out-of-place".center(width) + "in-place".center(width),
        "#" + _cells([(c[0], c[2]) for c in titles])[1:],
        "#" + _cells([(c[1], c[2]) for c in titles])[1:],
    ]
    return "\n".join(line.rstrip() for line in lines)


def row_text(row, header):
    """One row. row : measure.Row"""
    values = [row.nbytes, row.count, header["datatype"], header["op"], header["root"]]
    cells = list(zip(values, (column[2] for column in ROW_COLUMNS), strict=True))
    for mode in MODES:
        cells += _mode_cells(getattr(row, mode), header)
    return _cells(cells)


def foot_text(rows):
    """The lines below the last row. rows : list of measure.Row"""
    results = [timings for row in rows for timings in row.modes()]
    lines = [f"# average bus bandwidth: {np.mean([timings['hetccl'].busbw for timings in results]):.3f} GB/s"]
    for name in results[0]:
        found = [timings[name] for timings in results if name in timings]
        checked = [timing.wrong for timing in found if timing.wrong is not None]
        if checked and (name == "hetccl" or sum(checked)):
            of = "" if name == "hetccl" else f" of {name}"
            lines.append(f"# wrong elements{of}: {sum(checked)}{' FAILED' if sum(checked) else ' OK'}")
        ratios = [timing.ratio for timing in found if timing.ratio is not None]
        if ratios:
            mean = np.exp(np.mean(np.log(ratios)))
            lines.append(f"# time / that of {name}: geometric mean {mean:.2f}, worst {max(ratios):.2f}")
    return "\n".join(lines)


def machine_text(header):
    """The machine, and how busy it was before."""
    return f"{header['machine']}, {job.plural(header['cores'], 'core')}, load {header['load']} before"


def page(header, rows):
    """What --json writes and --plot draws, as plain values."""
    return {"header": header, "rows": [asdict(row) for row in rows]}


def write(args, page):
    """Write --json and --csv. Raises OSError."""
    if args.json:
        args.json.write_text(json.dumps(page, indent=1) + "\n")
    if args.csv:
        with args.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*KEYS, "nbytes", "count", "mode", "library", *FIELDS])
            for row in page["rows"]:
                for mode in MODES:
                    for name, timing in (row[mode] or {}).items():
                        key = [page["header"][field] for field in KEYS]
                        values = [timing[field] for field in FIELDS]
                        writer.writerow([*key, row["nbytes"], row["count"], mode, name, *values])


def _processor():
    """The processor's name."""
    lines = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
    names = [value.strip() for key, _, value in lines if key.strip() == "model name"]
    return names[0] if names else "processor without a name"


def _ways(world, ours, settings):
    """{"texts": each rank's ways to the others, "limits": of the networks they take}. Collective."""
    seen = network.sight(world.rank, ours.members, settings)
    every = world.allgather(seen)
    found = [] if any(one.trouble for one in every) else network.ways(world.rank, ours.members, every, settings)
    lines = [check.text for check in network.way_checks(world.rank, found, world.size <= network.DETAILED_RANKS)]
    kinds = {way["kind"] for way in found}
    limits = {}
    if "verbs" in kinds and not isinstance(seen.card["verbs"], str):
        most = max(len(way["rails"]) for way in found)
        limits[f"{job.plural(most, 'rail')} of a rank"] = sum(card["speed"] for card in seen.card["verbs"][:most]) / 8
    if "tcp" in kinds and not isinstance(seen.card["tcp"], str):
        limits["network interface"] = max(entry["speed"] or 0 for entry in seen.card["tcp"]["addresses"]) / 8000
    told = world.allgather(({name: speed for name, speed in limits.items() if speed}, lines))
    names = sorted({name for limits, _ in told for name in limits})
    slowest = {name: min(limits[name] for limits, _ in told if name in limits) for name in names}
    return {"texts": ["; ".join(lines) for _, lines in told], "limits": slowest}


def _device_paths(ours, sights, memories):
    """Who runs calls on GPU buffers, in doctor's words; nothing where all buffers are the host's."""
    if not any(sight.devices for sight in sights) or all(text.startswith("host") for text in memories):
        return []
    return [f"{check.name}: {check.text}" for check in gpu.job_checks(ours.members, sights, True)]


def _columns(header):
    columns = list(COLUMNS)
    for name in header["peers"]:
        columns += [(name, "(us)", max(10, len(name) + 2)), ("ratio", "", 7)]
    return tuple(columns)


def _mode_cells(timings, header):
    widths = [column[2] for column in _columns(header)]
    if timings is None:
        return [("N/A", width) for width in widths]
    ours = timings["hetccl"]
    wrong = "N/A" if ours.wrong is None else ours.wrong
    values = [f"{ours.us:.2f}", f"{ours.algbw:.3f}", f"{ours.busbw:.3f}", wrong]
    for name in header["peers"]:
        timing = timings.get(name)
        ratio = None if timing is None else timing.ratio
        values += ["N/A" if timing is None else f"{timing.us:.2f}", "N/A" if ratio is None else f"{ratio:.2f}"]
    return list(zip(values, widths, strict=True))


def _cells(cells):
    # A value wider than its column moves the rest, but never touches its neighbour.
    return "".join(f" {value:>{width - 1}}" for value, width in cells)
