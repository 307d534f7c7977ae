"""Is this the job that was asked for? Run by all its ranks, before the program; exit status 0 if it is.

Says which rank is where and which GPUs it may see, and compares one all-reduce with NumPy's sum.
"""

import os
import socket
import sys

GPUS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
FITS = {"Open MPI": "pmix", "MPICH": "pmi2", "Intel(R) MPI": "pmi2"}


def refuse(text):
    # Every rank of a job finds the same: one of them says it.
    if os.environ.get("SLURM_PROCID", "0") == "0":
        print(f"slurm/check.py on {socket.gethostname()}: {text}", file=sys.stderr, flush=True)
    sys.exit(2)


try:
    import numpy as np
    from mpi4py import MPI

    import hetccl
except (ImportError, RuntimeError) as error:
    refuse(
        f"{sys.executable} cannot load hetccl, mpi4py or MPI: {error}. Install hetccl in this Python, or name another "
        "one (venv=, image=), and the module of your MPI, in the .env file of slurm/"
    )


def main():
    world = MPI.COMM_WORLD
    started = int(os.environ.get("SLURM_NTASKS", world.size))
    library = " ".join(MPI.Get_library_version().split("\n")[0].split(",")[0].split())
    if world.size == 1 < started:
        kind = os.environ.get("SLURM_MPI_TYPE", "none")
        right = next((kind for name, kind in FITS.items() if name in library), "pmix or pmi2")
        refuse(
            f"srun started {started} ranks, and {library} found 1: srun --mpi={kind} is not for it. "
            f"Set SLURM_MPI_TYPE={right}; `srun --mpi=list` names what this Slurm has"
        )
    with hetccl.Comm(world) as comm:
        given = np.arange(5) + 100 * np.arange(comm.size)[:, np.newaxis]
        found = np.empty(5, given.dtype)
        comm.Allreduce(given[comm.rank], found)
        right = np.array_equal(found, given.sum(axis=0))
        island = next(island.label for island in comm.islands if comm.rank in island.ranks)
        gpus = " ".join(f"{name}={os.environ[name]}" for name in GPUS if name in os.environ) or "no GPU"
        lines = comm.gather(f"rank {comm.rank} on {socket.gethostname()}, island {island}, {gpus}")
        wrong = [rank for rank, well in enumerate(comm.allgather(right)) if not well]
        if comm.rank == 0:
            hosts = {line.split()[3] for line in lines}
            print(f"{comm.size} ranks on {len(hosts)} nodes, {len(comm.islands)} islands, {library}", *lines, sep="\n")
            print(f"all-reduce wrong on ranks {wrong}" if wrong else "all-reduce as NumPy's sum", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except hetccl.HetcclError as error:
        refuse(error)
