"""Run bench for each collective and each kind of messages in one job; rank 0 writes what each printed, as JSON.

usage: mpirun -n N python prog_bench.py RESULTS.json
"""

import contextlib
import io
import json
import sys
from pathlib import Path

from hetccl.__main__ import main
from hetccl.cli.report import BENCHMARKS

OPTIONS = ["-b", "4", "-e", "64K", "-f", "128", "-n", "2", "-w", "1", "-r", "1", "--compare", "mpi4py,copy"]

if __name__ == "__main__":
    found = {}
    for name in BENCHMARKS:
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            status = main(["bench", name, *OPTIONS])
        found[name] = {"status": status, "text": text.getvalue()}
    from mpi4py import MPI

    everyone = MPI.COMM_WORLD.gather(found)
    if everyone:
        Path(sys.argv[1]).write_text(json.dumps(everyone))
