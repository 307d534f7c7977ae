"""What the ranks of a job tell each other for doctor and topo: who they are, what they see, and their ways."""

from typing import NamedTuple

from hetccl import topology
from hetccl.cli import gpu, job, matrix, network


class JobMap(NamedTuple):
    """The same on all ranks, but for ways.

    members : topology.Member of every rank     gpus : gpu.Sight of every rank
    nets    : network.Sight of every rank       ways : this rank's, of network.ways()
    matrix  : matrix.Matrix
    """

    members: tuple
    gpus: tuple
    nets: tuple
    ways: list
    matrix: matrix.Matrix


def collect(gather, rank, settings):
    """Look at this rank, and hear what the others see. Collective.

    gather  : callable, value -> every rank's
    Returns : JobMap
    """
    members, gpus = zip(*gather((topology.local(settings), gpu.sight(settings))), strict=True)
    nets = tuple(gather(network.sight(rank, members, settings)))
    # A setting that one rank's host cannot meet leaves nothing to be said about paths.
    ways = [] if any(seen.trouble for seen in nets) else network.ways(rank, members, nets, settings)
    rows = gather(matrix.row(rank, members, ways, gpu.path_letters(members, gpus, rank)))
    return JobMap(members, gpus, nets, ways, matrix.fold(rows, members))


def gatherer(comm, settings, call):
    """gather() for collect(): of all ranks of a communicator, with a time-out; or of one that stands alone.

    comm : mpi4py communicator, or None
    """
    return (lambda value: [value]) if comm is None else job.meeting(comm, settings, call).allgather
