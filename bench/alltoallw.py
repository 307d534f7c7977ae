"""Time the transposes of a distributed 3-D array by Alltoallw, hetccl against mpi4py: a Markdown table on stdout.

    python bench/alltoallw.py --mpi .mpi/openmpi --mpi .mpi/mpich --ranks 2 4

The array is cut among all ranks ("4": slabs), or among a grid of ranks whose rows transpose on their own ("2 x 2":
pencils). Each pair of axes is a row of the table: "0 -> 2" turns an array that is whole along axis 0 into one that is
whole along axis 2. What is sent and received are subarray datatypes; both libraries take turns on the same arrays in
the same run, a barrier before each call, and the slowest rank counts. --mpi is as for compare_mpi.py.
"""

import argparse
import itertools
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from compare_mpi import default_mpis, environment, interpreter, mpirun

JOB = Path(__file__).resolve().parent / "alltoallw_job.py"
JOB_SECONDS = 900
PAIRS = ["".join(pair) for pair in itertools.permutations("012", 2)]


def main():
    """Returns the exit status: 1 if a result was wrong, 2 if a job failed."""
    args = parse_arguments()
    pages = []
    for prefix, ranks in itertools.product(args.mpi, args.ranks):
        for group in groups_of(ranks):
            page = run_job(prefix, ranks, group, args)
            if page is None:
                return 2
            pages.append(page)
    if args.json:
        args.json.write_text(json.dumps(pages, indent=2) + "\n")
    print("\n".join(table(pages, args)))
    return int(any(wrong(page) for page in pages))


def parse_arguments():
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--mpi", type=Path, action="append", metavar="FOLDER", help="an MPI; may be given again")
    add("--ranks", type=int, nargs="+", default=[2, 4], metavar="N", help="numbers of ranks (2 4)")
    add("--shape", type=int, nargs=3, default=[256] * 3, metavar="N", help="of the complex64 array (256 256 256)")
    add("--pairs", nargs="+", choices=PAIRS, default=PAIRS, metavar="AB", help="axes before and after (all six)")
    add("-n", "--iters", type=int, default=20, help="timed calls of each library (20)")
    add("--parts", action="store_true", help="MPI's packing alone, and its Alltoall of as many bytes, in the JSON file")
    add("--json", type=Path, help="file to write all numbers to")
    args = parser.parse_args()
    args.mpi = args.mpi or default_mpis()
    if not args.mpi:
        parser.error("no mpirun found; name an MPI with --mpi")
    return args


def groups_of(ranks):
    """The sizes of the groups that transpose: all ranks, and a row of a square grid where there is one."""
    root = round(ranks**0.5)
    return [ranks, root] if root > 1 and root * root == ranks else [ranks]


def run_job(prefix, ranks, group, args):
    """Run one job. Returns what it wrote, or None after saying on stderr what failed."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        command = [
            *(*mpirun(prefix), "-n", str(ranks), interpreter(prefix), str(JOB)),
            *("--group", str(group), "--shape", *map(str, args.shape), "--pairs", *args.pairs),
            *("--iters", str(args.iters), "--json", str(results), *(["--parts"] if args.parts else [])),
        ]
        print(f"+ {shlex.join(command)}", file=sys.stderr, flush=True)
        done = subprocess.run(command, stdout=sys.stderr, env=environment(prefix), timeout=JOB_SECONDS)
        if done.returncode or not results.exists():
            print(f"exit status {done.returncode}: {shlex.join(command)}", file=sys.stderr)
            return None
        return json.loads(results.read_text())


def table(pages, args):
    """The Markdown lines: a row for each transpose."""
    cores, system = len(os.sched_getaffinity(0)), f"{platform.system()} {platform.release()} {platform.machine()}"
    shape = " x ".join(map(str, args.shape))
    yield f"Alltoallw, {shape} complex64, on {cores} cores ({system}): medians in ms, 95th percentiles in brackets;"
    yield "CPU: processor time of all ranks together; ratios = hetccl / mpi4py in one run."
    yield f"Made by `python bench/alltoallw.py {shlex.join(sys.argv[1:])}`."
    yield ""
    yield "| MPI | ranks | axes | sent by a rank | hetccl | mpi4py | ratio | CPU: hetccl | mpi4py | ratio |"
    yield "|---|---|---|---:|---:|---:|---:|---:|---:|---:|"
    for page in pages:
        columns = page["ranks"] // page["group"]
        grid = f"{columns} x {page['group']}" if columns > 1 else str(page["ranks"])
        for row in page["rows"]:
            ours, peer = row["hetccl"], row["mpi4py"]
            cells = [f"{side['ms']:.1f} ({side['p95_ms']:.1f})" for side in (ours, peer)]
            size = f"{row['nbytes'] / (1 << 20):.3g} MiB"
            axes = f"{row['pair'][0]} -> {row['pair'][1]}"
            cells.append(f"{ours['ms'] / peer['ms']:.2f}")
            cells += [f"{ours['cpu_ms']:.1f}", f"{peer['cpu_ms']:.1f}", f"{ours['cpu_ms'] / peer['cpu_ms']:.2f}"]
            yield f"| {' | '.join([page['mpi'], grid, axes, size, *cells])} |"
    yield ""
    yield f"Wrong elements: {sum(map(wrong, pages))}."


def wrong(page):
    """Elements that any call of a page left wrong."""
    return sum(row[side]["wrong"] for row in page["rows"] for side in ("hetccl", "mpi4py"))


if __name__ == "__main__":
    sys.exit(main())
