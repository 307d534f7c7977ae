"""An all-reduce of float32 between islands of one GPU each, against plain copies, mpi4py and torch's Gloo.

    python bench/crossing.py                     2 ranks, 8 B to 1 GiB: a table on stdout
    python bench/crossing.py --json build/crossing.json --quick

All contenders run in the same processes on the same arrays and stream, and take turns. "copies" moves as many bytes to
the host, and as many back, at the same time: what the exchange could take at best. A ratio is the median of the rounds'
ratios. Sizes are those of one buffer; GB/s are its bytes by the time.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

from compare_mpi import size_text

from gpu import device_count, run_job

RUN_SECONDS = 300


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="(2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all times")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    args = parser.parse_args()
    if device_count() < args.ranks:
        print(f"hetccl: {args.ranks} NVIDIA GPUs are needed, there are {device_count()}", file=sys.stderr)
        return 1
    ended, page = run_job("crossing_job.py", args.ranks, args.quick, RUN_SECONDS)
    if page is None:
        return 1
    print("\n".join(table(page)))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(page))
    return int(not ended)


def table(page):
    head = page["header"]
    yield (
        f"{head['ranks']} ranks, {head['device']}, {head['cores']} cores, {head['mpi']}, CuPy {head['cupy']}, Python "
        f"{head['python']}. Medians on the device in µs; x: that one's time by hetccl's, so that 2 is twice as long."
    )
    for name, why in head["absent"].items():
        yield f"{name} does not take part: {why}"
    names = list(page["rows"][-1]["times"])[1:]
    yield ""
    yield "| size | hetccl | GB/s | host | " + " | ".join(f"{name} | x" for name in names) + " |"
    yield "|---:|---:|---:|---:|" + "---:|---:|" * len(names)
    for row in page["rows"]:
        ours = statistics.median(row["times"]["hetccl"])
        cells = [f"{ours * 1e6:.1f}", f"{row['nbytes'] / ours / 1e9:.2f}"]
        cells.append(f"{statistics.median(row['hosts']['hetccl']) * 1e6:.1f}")
        for name in names:
            theirs = row["times"].get(name)
            cells += (
                [f"{statistics.median(theirs) * 1e6:.1f}", f"{times_as_long(row, name):.3f}"] if theirs else ["", ""]
            )
        yield f"| {size_text(row['nbytes'])} | {' | '.join(cells)} |"


def times_as_long(row, name):
    """Another's time by hetccl's, the median over the rounds."""
    return statistics.median(their / our for their, our in zip(row["times"][name], row["times"]["hetccl"]))


if __name__ == "__main__":
    sys.exit(main())
