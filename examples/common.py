"""What the small examples share: their options, and how a run says whether it was right."""

import argparse
import math
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread per rank, set before NumPy loads its BLAS


def parse_options(doc, **sizes):
    """The command line: --mpi, and one option for each of `sizes`, {name: (default, help)}; all are numbers above 0."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mpi", action="store_true", help="use mpi4py's communicator, without hetccl")
    for name, (default, text) in sizes.items():
        parser.add_argument(f"--{name}", type=_positive, default=default, help=f"{text} ({default})")
    return parser.parse_args()


def _positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def share(length, part, parts):
    """The indices of range(length) that fall to one of so many parts, as equal as can be: a slice."""
    return slice(length * part // parts, length * (part + 1) // parts)


def report(comm, title, errors):
    """Print what was found, on rank 0; an error on any rank fails on all. Collective.

    errors : {what: (this rank's error, the largest that is accepted)}
    Returns: the exit status, 0 or 1
    """
    # The lower-case method is mpi4py's own, whichever communicator this is: a check must not rest on what it checks.
    found = comm.allgather({what: math.inf if math.isnan(error) else error for what, (error, _) in errors.items()})
    worst = {what: max(rank[what] for rank in found) for what in errors}
    passed = {what: worst[what] <= bound for what, (_, bound) in errors.items()}
    if comm.Get_rank() == 0:
        module, ranks = type(comm).__module__.partition(".")[0], comm.Get_size()
        print(f"{title}; {ranks} rank{'s' if ranks > 1 else ''} of {module}")
        for what, (_, bound) in errors.items():
            verdict = "PASS" if passed[what] else "FAIL"
            print(f"  {verdict}  {what}: {worst[what]:.1e}, at most {bound:.0e}")
    return 0 if all(passed.values()) else 1
