"""Compare hetccl with its peers on the NVIDIA GPUs of one machine, in the jobs that docs/performance.md shows.

    python bench/peers/build.py                             once: a CUDA-aware Open MPI, in build/peers
    python bench/peers/compare.py --into bench/results      two GPUs; then make the page anew: make report

One island: CuPy's NCCL, nccl4py, torch.distributed and CUDA-aware MPI. Two islands of one GPU each: Gloo, MPI through
the host, CUDA-aware MPI. All take turns in one process, on the same buffers. What is not installed is named in the
tables. Without --mpi the jobs run with build/peers, if it is there. What follows -- goes to bench.
"""

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from suite import Case, add_options, run_cases  # noqa: E402 - found by the line above

from gpu import device_count  # noqa: E402

SIZES = ("--memory", "cuda", "-b", "8", "-e", "256M", "-f", "8", "-n", "20", "--compare", "all")
CASES = {
    "gpu-island": Case("One island of two GPUs", "allreduce", "AA", SIZES, unbound=True),
    "gpu-island-allgather": Case("One island of two GPUs, all-gather", "allgather", "AA", SIZES, unbound=True),
    "gpu-islands": Case("Two islands of one GPU each", "allreduce", "AB", SIZES, unbound=True),
}
GPUS = 2


def main():
    """Returns the exit status: 1 if a job failed, a result was wrong or there are too few GPUs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="CASE", help=", ".join(CASES))
    add_options(parser)
    args = parser.parse_args()
    found = device_count()
    if found < GPUS:
        print(f"hetccl: {GPUS} NVIDIA GPUs are needed, this machine has {found}", file=sys.stderr)
        return 1
    built = HERE.parents[1] / "build" / "peers"
    if args.mpi is None and (built / "bin" / "mpirun").exists():
        args.mpi = built
    return run_cases({name: CASES[name] for name in args.only}, args, parser)


if __name__ == "__main__":
    sys.exit(main())
