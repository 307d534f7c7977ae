"""`python -m hetccl`: info, doctor, plan, bench, topo."""

import argparse
import difflib
import os
import sys

from hetccl._version import VERSION
from hetccl.cli import bench, doctor, info, job, topo
from hetccl.errors import HetcclError
from hetccl.plan import cli as plan

COMMANDS = {"info": info, "doctor": doctor, "plan": plan, "bench": bench, "topo": topo}
# What a shell reports for a program that ended on SIGINT or SIGPIPE.
INTERRUPTED, BROKEN_PIPE = 128 + 2, 128 + 13


class Parser(argparse.ArgumentParser):
    """A parser of which, in a job, only rank 0 speaks: every rank finds the same fault."""

    def error(self, message):
        if job.launch_rank():
            sys.exit(2)
        super().error(message)

    def _print_message(self, message, file=None):
        if not job.launch_rank():
            super()._print_message(message, file)


def make_parser():
    """The parser of the command line."""
    parser = Parser(prog="python -m hetccl", description="GPU collectives across mixed-vendor clusters.")
    parser.add_argument("--version", action="version", version=f"hetccl {VERSION}")
    subparsers = parser.add_subparsers(dest="command", metavar="command", required=True)
    for module in COMMANDS.values():
        module.add_parser(subparsers)
    return parser


def main(arguments=None):
    """Run one command. Returns the exit status: 0 well, 1 the command found or met a fault, 2 wrong usage."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = make_parser()
    if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        near = difflib.get_close_matches(arguments[0], COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}"
        parser.error(f"unknown command {arguments[0]!r}: {hint}")
    args = parser.parse_args(arguments)
    try:
        status = COMMANDS[args.command].run(args)
        sys.stdout.flush()
        return status
    except HetcclError as error:
        rank = job.launch_rank()
        print(f"hetccl{'' if rank is None else f' rank {rank}'}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more at exit: give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


if __name__ == "__main__":
    sys.exit(main())
