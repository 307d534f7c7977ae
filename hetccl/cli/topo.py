"""`python -m hetccl topo`: the job as a picture or as text: hosts, ranks and their devices, islands, NICs, paths."""

import sys
from pathlib import Path

from hetccl.cli import drawing, job, jobmap, matrix, scene
from hetccl.errors import CommTimeout, HetcclError

# Of hosts; the matrix below them has all.
MOST_HOSTS = 16


def add_parser(subparsers):
    """Register the command."""
    parser = subparsers.add_parser(
        "topo",
        help="draw the job: hosts, ranks, islands, NICs and the path of each pair",
        description="Draw the job; start it under mpirun as the program itself. Without --svg as text.",
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write a picture to this file, which must not exist")
    parser.set_defaults(run=run, refuse=parser.error)


def run(args):
    """Print or draw the job once. Returns the exit status, the same on all ranks."""
    settings, problem = job.settings()
    launched = job.launch_rank() is not None
    comm = job.world(max(settings.timeout, job.PROBE_SECONDS)) if launched else None
    rank = comm.rank if launched else 0
    gather = jobmap.gatherer(comm, settings, "topo")
    refused = _claim(args.svg) if args.svg and rank == 0 else ""
    try:
        try:
            (refused, *_) = gather(refused)
        except CommTimeout:
            if rank == 0 and not refused:
                _forget(args.svg)
            raise
        if refused:
            args.refuse(f"argument --svg: {refused}")
        # At last together: MPI_Finalize has no time-out.
        return max(gather(_show(args, gather, rank, settings, problem)))
    except CommTimeout as error:
        job.give_up(error)


def text(seen):
    """The job for a person. seen : jobmap.JobMap"""
    shown = scene.compose(seen)
    lines = [shown.title]
    for label, vendor, count in shown.islands[:MOST_HOSTS]:
        lines.append(f"island {label} ({vendor}): {job.plural(count, 'rank')}")
    for box in shown.boxes[:MOST_HOSTS]:
        lines += ["", matrix.cut(box.about, 100)]
        for nic in box.nics:
            lines.append(f"  {nic.about}" + ("" if nic.used or nic.path == "T" else " (not used)"))
        lines += [f"  {tile.about}" for tile in box.ranks]
    left = len(shown.boxes) - MOST_HOSTS
    lines += ["", f"{left} more hosts"] if left > 0 else []
    return "\n".join([*lines, "", *matrix.lines(seen.matrix)]).rstrip()


def _show(args, gather, rank, settings, problem):
    """Print or draw. Returns the exit status."""
    trouble = [line for lines in gather(problem) for line in lines.splitlines()]
    done = False
    try:
        if trouble:
            raise HetcclError(f"topo: {trouble[0]}")
        seen = jobmap.collect(gather, rank, settings)
        faults = [f"rank {peer}: {net.trouble}" for peer, net in enumerate(seen.nets) if net.trouble]
        if faults:
            raise HetcclError(f"topo: {faults[0]}")
        if rank == 0 and args.svg:
            args.svg.write_text(drawing.draw(scene.compose(seen), seen.matrix))
            print(f"{args.svg}: {len(seen.members)} ranks drawn")
        elif rank == 0:
            print(text(seen))
        done = True
    except CommTimeout:
        raise
    except (HetcclError, OSError) as error:
        if rank == 0:
            print(f"hetccl: {error}", file=sys.stderr)
        return 1
    finally:
        if rank == 0 and not done:
            _forget(args.svg)
    return 0


def _claim(path):
    """Make the file, so that nothing runs whose picture cannot be written: "" or why not."""
    try:
        path.open("x").close()
    except FileExistsError:
        return f"{path} exists already; remove it, or name another file"
    except OSError as error:
        return f"cannot write {path}: {error.strerror}"
    return ""


def _forget(path):
    if path is not None:
        path.unlink(missing_ok=True)
