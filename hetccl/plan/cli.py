"""`python -m hetccl plan`: prints a plan, proves it, and draws it. The only part of hetccl.plan that does I/O."""

import argparse
import sys
from pathlib import Path

from . import render
from .build import applicable, build
from .steps import COLLECTIVES, ROOTED
from .verify import PlanError, verify

# All ranks' steps grow with the square of their number and more: beyond, a listing takes minutes, and nobody reads it.
MAX_RANKS = 64

DESCRIPTION = "Print the plan of a collective, prove it for all ranks and counts, and draw it."


def add_parser(subparsers):
    """Add the subcommand `plan` to an argparse subparsers object; its `run` default is `run`."""
    parser = subparsers.add_parser(
        "plan", help="print, prove and draw the plan of a collective", description=DESCRIPTION
    )
    rooted = ", ".join(name for name in COLLECTIVES if name in ROOTED)
    parser.add_argument("collective", choices=COLLECTIVES)
    parser.add_argument(
        "--islands",
        default="3+2",
        metavar="SIZES|LETTERS",
        help="sizes of the islands (3+2), or a letter for each rank (ABAB); default 3+2",
    )
    parser.add_argument(
        "--order",
        choices=("block", "interleaved"),
        default="block",
        help="with sizes: ranks of an island one after another, or islands taking turns",
    )
    parser.add_argument("--algorithm", default="auto", metavar="NAME", help="default auto: the one for large messages")
    parser.add_argument("--inner", choices=("flat", "vendor"), default="flat", help="what runs inside an island")
    parser.add_argument("--root", type=int, default=0, metavar="RANK", help=f"for {rooted}; default 0")
    parser.add_argument("--in-place", action="store_true", help="input and output in one buffer (alltoall differs)")
    parser.add_argument("--rank", type=int, metavar="RANK", help="print this rank alone")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the plan into a file")
    parser.set_defaults(run=run)
    return parser


def run(args):
    """Run the subcommand; return the exit status: 0, 1 (the plan is wrong), 2 (bad input)."""
    try:
        islands = parse_islands(args.islands, args.order)
        plan = build(args.collective, islands, args.root, args.algorithm, args.inner, args.in_place)
        if args.rank is not None and not 0 <= args.rank < plan.size:
            raise ValueError(f"--rank must be from 0 to {plan.size - 1}; given {args.rank}")
    except ValueError as error:
        print(f"hetccl plan: error: {error}", file=sys.stderr)
        return 2
    try:
        verify(plan)
    except PlanError as error:
        print(f"hetccl plan: this plan is wrong: {error}", file=sys.stderr)
        return 1
    if args.svg:
        try:
            args.svg.write_text(render.svg(plan), encoding="utf-8")
        except OSError as error:
            print(f"hetccl plan: error: cannot write --svg {args.svg}: {error.strerror}", file=sys.stderr)
            return 2
    print(render.text(plan, None if args.rank is None else (args.rank,)), end="")
    print("\nproved for every count: results, reduce order, messages, memory, no deadlock")
    if plan.uneven:
        print("proved too: units may differ in length")
    others = [name for name in applicable(plan.collective, islands, plan.inner) if name != plan.algorithm]
    print(f"other algorithms: {', '.join(others) or 'none'}")
    if args.svg:
        print(f"drawn: {args.svg}")
    return 0


def parse_islands(given, order="block"):
    """Return the islands that "3+2" (sizes) or "ABAB" (a letter per rank) describes; raise ValueError otherwise."""
    if given.isascii() and given.isalpha():
        if order != "block":
            raise ValueError("--order goes with sizes: letters say the order themselves")
        labels = list(given)
    else:
        sizes = [int(size) if size.isascii() and size.isdigit() else 0 for size in given.split("+")]
        if not all(sizes):
            raise ValueError(f"--islands must be sizes like 3+2 or a letter per rank like ABAB; given {given!r}")
        _check_count(sum(sizes))
        turns = [(turn if order == "interleaved" else 0, i) for i, size in enumerate(sizes) for turn in range(size)]
        labels = [i for _, i in sorted(turns)]
    _check_count(len(labels))
    islands = {}
    for rank, label in enumerate(labels):
        islands.setdefault(label, []).append(rank)
    return tuple(map(tuple, islands.values()))


def _check_count(count):
    if count > MAX_RANKS:
        raise ValueError(f"--islands: at most {MAX_RANKS} ranks in all; given {count}")


def main(argv=None):
    """Run the subcommand alone, without the front of `python -m hetccl`."""
    parser = argparse.ArgumentParser(prog="hetccl")
    add_parser(parser.add_subparsers(required=True))
    args = parser.parse_args(argv)
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())
