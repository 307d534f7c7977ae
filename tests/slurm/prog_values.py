"""The program of the batch jobs: each rank writes a file, of where it is and what it got.

usage: prog_values.py FOLDER
"""

import json
import os
import socket
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

import hetccl

COUNT = 1023


def main():
    with hetccl.Comm(MPI.COMM_WORLD) as comm:
        given = (np.arange(COUNT) % 97 + 100 * comm.rank).astype(np.float32)
        total, every = np.empty_like(given), np.empty((comm.size, COUNT), np.float32)
        comm.Allreduce(given, total)
        comm.Allgather(given, every)
        found = {
            "rank": comm.rank,
            "size": comm.size,
            "host": socket.gethostname(),
            "prefix": os.path.basename(sys.prefix),
            "islands": [[island.label, list(island.ranks)] for island in comm.islands],
            "gpus": {name: value for name, value in os.environ.items() if name.endswith("_VISIBLE_DEVICES")},
            "library": MPI.Get_library_version().split("\n")[0],
            "total": total.tolist(),
            "every": every.tolist(),
        }
    Path(sys.argv[1], f"{found['rank']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
