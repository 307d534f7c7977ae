"""Run `python -m hetccl bench` in the jobs of docs/performance.md: tables on stdout, JSON and pictures in a folder.

    python bench/suite.py                                the first case: two islands on this host, in build/bench
    python bench/suite.py --all --into bench/results     all cases of host buffers; then make the page anew: make report
    python bench/suite.py --only latency -- -n 1000      one of them; what follows -- goes to bench

Where peers are missing (PyTorch for Gloo, oneCCL), the tables name them. GPUs: bench/peers/compare.py.
"""

import argparse
import itertools
import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from compare_mpi import REPOSITORY, environment, interpreter, mpirun, own_mpi

RUN_SECONDS = 900


@dataclass(frozen=True)
class Case:
    """One job.

    title     : of its section on the page      collective : of bench
    islands   : one letter per rank             options    : of bench
    variables : of the environment              evidence   : kind, as docs/evidence.md has them
    ranks     : {letter: options of bench} of islands that have their own
    unbound   : whether Open MPI shall not bind ranks to cores: the threads of a vendor's library would share one
    """

    title: str
    collective: str
    islands: str
    options: tuple
    variables: dict = field(default_factory=dict)
    evidence: str = "run"
    ranks: dict = field(default_factory=dict)
    unbound: bool = False


SIZES = ("-b", "8", "-e", "16M", "-f", "8", "-n", "30", "--compare", "all")
MESSAGE_SIZES = ("-b", "8", "-e", "4M", "-f", "8", "-n", "30", "--compare", "all")
# Open MPI takes TCP too: else it would go through shared memory, and the two could not be compared.
TCP = {"HETCCL_TRANSPORT": "tcp", "OMPI_MCA_btl": "tcp,self"}
CASES = {
    "islands-shm": Case("Two islands of one host, shared memory", "allreduce", "AB", SIZES),
    "islands-tcp": Case("Two islands of one host, TCP", "allreduce", "AB", SIZES, TCP),
    "islands-shm-4": Case("Two islands of two ranks, shared memory", "allreduce", "AABB", SIZES),
    "island": Case("One island", "allreduce", "AA", SIZES),
    "latency": Case("Messages one way, shared memory", "latency", "AB", MESSAGE_SIZES),
    "bandwidth": Case("Windows of messages, shared memory", "bandwidth", "AB", MESSAGE_SIZES),
}


def main():
    """Returns the exit status: 1 if a job failed or a result was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="all cases, not the first alone")
    parser.add_argument("--only", nargs="+", choices=CASES, metavar="CASE", help=", ".join(CASES))
    add_options(parser)
    args = parser.parse_args()
    names = args.only or (list(CASES) if args.all else list(CASES)[:1])
    return run_cases({name: CASES[name] for name in names}, args, parser)


def add_options(parser):
    """The options that this program and bench/peers/compare.py have in common."""
    parser.add_argument(
        "--into", type=Path, default=REPOSITORY / "build" / "bench", metavar="FOLDER", help="(build/bench)"
    )
    parser.add_argument("--mpi", type=Path, metavar="FOLDER", help="with bin/mpirun; else that of .venv or of PATH")
    parser.add_argument("--evidence", help="what the results rest on, if not on this machine as it is: Soft-RoCE, ...")
    parser.add_argument("bench", nargs="*", help="after --: more options of `python -m hetccl bench`")


def run_cases(cases, args, parser):
    """Run cases one after another. Returns the exit status: 1 if one failed."""
    prefix = args.mpi or own_mpi()
    if prefix is None or not (prefix / "bin" / "mpirun").exists():
        parser.error(f"there is no {prefix}/bin/mpirun" if prefix else "no mpirun found; name an MPI with --mpi")
    try:
        args.into.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"argument --into: {args.into}: {error.strerror}")
    failed = []
    for number, (name, case) in enumerate(cases.items()):
        print(f"\n# {case.title}", flush=True)
        if not run_case(name, case, number, prefix, args):
            failed.append(name)
    print(f"\nhetccl: {'failed: ' + ', '.join(failed) if failed else 'JSON and pictures are in ' + str(args.into)}")
    return int(bool(failed))


def run_case(name, case, order, prefix, args):
    """Run one job. Returns whether its results are right; they are in the folder then, with how they were made."""
    results = args.into / f"{name}.json"
    written = ["--json", str(results), "--force"]
    if has_matplotlib(prefix):
        written += ["--plot", str(results.with_suffix(".svg"))]
    else:
        print("# no picture: matplotlib is not installed", flush=True)
    launcher = mpirun(prefix)
    # Of the launchers only Open MPI's has options here.
    unbound = ["--bind-to", "none"] if case.unbound and len(launcher) > 1 else []
    command = launch([*launcher, *unbound], interpreter(prefix), case, [*args.bench, *written])
    try:
        code = subprocess.run(command, env=environment(prefix) | case.variables, timeout=RUN_SECONDS).returncode
    except subprocess.TimeoutExpired:
        print(f"hetccl: {name}: not done after {RUN_SECONDS} s", file=sys.stderr)
        return False
    if code:
        print(f"hetccl: {name}: exit status {code}: {shlex.join(map(str, command))}", file=sys.stderr)
        return False
    page = json.loads(results.read_text())
    shown = launch(["mpirun", *unbound], "python", case, args.bench)
    variables = [f"{variable}={value}" for variable, value in case.variables.items()]
    page = {
        "title": case.title,
        "evidence": args.evidence or case.evidence,
        "order": order,
        "launch": shlex.join([*variables, *shown]),
        **page,
    }
    without_names(page["header"])
    results.write_text(json.dumps(page, indent=1) + "\n")
    return True


def launch(launcher, python, case, more):
    """The command: one part for each run of ranks of one island."""
    parts = []
    for letter, ranks in itertools.groupby(case.islands):
        options = [*case.options, *case.ranks.get(letter, ()), *more]
        bench = ["-m", "hetccl", "bench", case.collective, *options]
        parts += [":", "-n", str(len(list(ranks))), "env", f"HETCCL_ISLAND={letter}", python, *bench]
    return [*launcher, *parts[1:]]


def has_matplotlib(prefix):
    """Whether the Python of the job can draw."""
    check = "import importlib.util, sys; sys.exit(importlib.util.find_spec('matplotlib') is None)"
    return subprocess.run([interpreter(prefix), "-c", check], env=dict(os.environ)).returncode == 0


def without_names(header):
    """Results are published: hosts are numbered, and the command is that of `launch`."""
    hosts = (line for line in header["members"] if line.startswith("host "))
    numbered = iter(f"host {number}:{line.partition(':')[2]}" for number, line in enumerate(hosts))
    header["members"] = [next(numbered) if line.startswith("host ") else line for line in header["members"]]
    del header["command"]


if __name__ == "__main__":
    sys.exit(main())
