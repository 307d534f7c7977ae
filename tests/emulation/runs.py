"""Jobs on the emulated HIP runtime that tests of the fakes and of real GPUs share; each in a process of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TABLE = ROOT / "tests" / "gpu" / "test_runtime_gpu.py"
JOB_S = 200


def whole_table(library, chosen, **variables):
    """Run the checks of hetccl's HIP table that pytest's -k chooses: how many passed; AssertionError if one fails."""
    command = [sys.executable, "-m", "pytest", "-q", str(TABLE), "-k", chosen]
    text = _run(command, HETCCL_HIP_LIB=str(library), **variables)
    return int(re.search(r"(\d+) passed", text)[1])


def launch(library, image, **variables):
    """Load and launch a kernel: image is a file with one for what lies under the emulation. AssertionError."""
    path = os.pathsep.join(map(str, [ROOT, HERE.parent, HERE.parent / "unit"]))
    text = _run([sys.executable, HERE / "prog_launch.py", library, image], PYTHONPATH=path, **variables)
    assert text == "emulated: launched\n", text


def _run(command, **variables):
    done = subprocess.run(
        list(map(str, command)),
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=JOB_S,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout
