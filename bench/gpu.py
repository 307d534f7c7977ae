"""Compare hetccl on GPUs with CuPy's NCCL binding, nccl4py, torch.distributed and a plain C loop over NCCL.

    python bench/gpu.py                    1 and 2 ranks, 8 B to 1 GiB: tables on stdout
    python bench/gpu.py --json build/gpu-bench.json --ranks 2 --quick

All contenders run in the same processes, on the same arrays, stream and copy of NCCL, and take turns. A ratio is the
median of the rounds' ratios, hetccl's time by the other's in the same round; +- is half the distance of the quartiles.
"""

import argparse
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from compare_mpi import mpirun, size_text

REPOSITORY = Path(__file__).resolve().parent.parent
RUN_SECONDS = 400
MIB = 1 << 20


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2], metavar="N", help="numbers of ranks (1 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all times")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    args = parser.parse_args()
    devices = device_count()
    if not devices:
        print("hetccl: this machine has no NVIDIA GPU", file=sys.stderr)
        return 1
    build_loop()
    pages, failed = [], False
    for ranks in args.ranks:
        if ranks > devices:
            print(f"{ranks} ranks need {ranks} GPUs; this machine has {devices}\n")
            continue
        ended, page = run_job("gpu_job.py", ranks, args.quick, RUN_SECONDS)
        failed |= not ended
        if page is None:
            continue
        pages.append(page)
        print("\n".join([*table(page), "", *host_table(page), "", *summary(page), ""]), flush=True)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(pages))
    return int(failed)


def device_count():
    """How many NVIDIA GPUs there are, by the driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    return 0 if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) else count.value


def build_loop():
    """Compile the C loop where gpu_contenders.py looks for it."""
    library = REPOSITORY / "build" / "ccl_loop.so"
    library.parent.mkdir(exist_ok=True)
    compiler = os.environ.get("CC") or shutil.which("cc") or "gcc"
    source = REPOSITORY / "bench" / "ccl_loop.c"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)


def run_job(program, ranks, quick, seconds):
    """Run one job of a program of this folder: (whether it ended well, what it wrote or None)."""
    launcher = mpirun(Path(shutil.which("mpirun") or "mpirun").parent.parent)
    # Bound to a core, NCCL's threads would share it with the program.
    launcher += ["--bind-to", "none"] if "--oversubscribe" in launcher else []
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        command = [*launcher, "-n", str(ranks), sys.executable, REPOSITORY / "bench" / program]
        command += [results, *(["--quick"] if quick else [])]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        try:
            code = subprocess.run(command, env=environment, stdout=sys.stderr, timeout=seconds).returncode
        except subprocess.TimeoutExpired:
            code = f"none after {seconds} s"
        page = json.loads(results.read_text()) if results.exists() else None
        if code:
            print(f"hetccl: bench/{program} on {ranks} ranks: exit status {code}", file=sys.stderr)
        return code == 0, page


def ratio(row, other):
    """(median, half the distance of the quartiles) of hetccl's time by another's, round by round."""
    pairs = zip(row["times"]["hetccl"], row["times"][other])
    low, middle, high = statistics.quantiles([ours / theirs for ours, theirs in pairs], n=4)
    return middle, (high - low) / 2


def others(page):
    return [name for name in page["rows"][0]["times"] if name != "hetccl"]


def table(page):
    head = page["header"]
    yield (
        f"{head['ranks']} ranks, {head['device']}, NCCL {head['nccl']}, CuPy {head['cupy']}, Python {head['python']}. "
        "Medians in µs on the device; x: hetccl's time by that one's."
    )
    for name, why in head["absent"].items():
        yield f"{name} does not take part: {why}"
    yield ""
    names = others(page)
    yield "| collective | size | hetccl | " + " | ".join(f"{name} | x" for name in names) + " |"
    yield "|---|---:|---:|" + "---:|---:|" * len(names)
    for row in page["rows"]:
        medians = {name: statistics.median(times) * 1e6 for name, times in row["times"].items()}
        cells = []
        for name in names:
            middle, spread = ratio(row, name)
            cells += [f"{medians[name]:.1f}", f"{middle:.3f} ± {spread:.3f}"]
        yield f"| {row['collective']} | {size_text(row['nbytes'])} | {medians['hetccl']:.1f} | {' | '.join(cells)} |"


def host_table(page):
    names = list(page["host"][0]["seconds"])
    yield "The host's time per call in µs, queued without waiting (the slowest rank's median)."
    yield ""
    yield "| collective | size | " + " | ".join(names) + " | hetccl - C loop |"
    yield "|---|---:|" + "---:|" * (len(names) + 1)
    for row in page["host"]:
        micro = {name: seconds * 1e6 for name, seconds in row["seconds"].items()}
        cells = [f"{micro[name]:.2f}" for name in names]
        above = micro["hetccl"] - micro["C loop"]
        yield f"| {row['collective']} | {size_text(row['nbytes'])} | {' | '.join(cells)} | {above:+.2f} |"


def summary(page):
    """The targets: never slower than CuPy and nccl4py within the spread, 1.01 of the C loop from 1 MiB, 0.5 us."""
    for other, limit, smallest in (("CuPy", 1.0, 0), ("nccl4py", 1.0, 0), ("C loop", 1.01, MIB)):
        if other not in others(page):
            continue
        rows = [row for row in page["rows"] if row["nbytes"] >= smallest]
        over = [row for row in rows if ratio(row, other)[0] - ratio(row, other)[1] > limit]
        worst = max(ratio(row, other)[0] for row in rows)
        names = ", ".join(f"{row['collective']} {size_text(row['nbytes'])}" for row in over) or "none"
        where = f"{other} from {size_text(smallest)}" if smallest else other
        fits = f"{len(rows) - len(over)} of {len(rows)}"
        yield f"- at most {limit:.2f} x {where}: {fits}; not: {names} (worst {worst:.3f})"
    above = [(row["seconds"]["hetccl"] - row["seconds"]["C loop"]) * 1e6 for row in page["host"]]
    yield f"- host time above the C loop: {min(above):+.2f} to {max(above):+.2f} µs"


if __name__ == "__main__":
    sys.exit(main())
