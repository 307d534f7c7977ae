"""What the tests of the command line share: running it, and a fake MPI."""

import os
import subprocess
import sys
from pathlib import Path

from hetccl import topology

ROOT = Path(__file__).resolve().parents[2]
COMMAND = ["-m", "hetccl"]
MEMBER = topology.Member("n0", "n0/boot", 1, 2, "host", "host", "", "", "host", "0-1")


def hetccl(*arguments, path=(), **options):
    """Run the command line in a process of its own. path : folders that come first on Python's path."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, path), str(ROOT)])}
    command = [sys.executable, *COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, **options)


def fake_mpi4py(folder, source):
    """A package mpi4py in folder, whose MPI module is `source`; returns folder."""
    (folder / "mpi4py").mkdir()
    (folder / "mpi4py/__init__.py").write_text("__version__ = '9'\nclass rc: pass\n")
    (folder / "mpi4py/MPI.py").write_text(source)
    return folder
