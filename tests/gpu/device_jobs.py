"""For pytest: jobs of this folder's programs on the devices that there are, or on the fakes.

A *place* is a library of arrays and what lies under it: "cupy" and "torch" need real GPUs, "fake" is the tests' own
arrays over a CUDA driver and an NCCL that work on host memory.
"""

import functools
import importlib.util
import os
from pathlib import Path

import device_arrays
import device_cases
import pytest

import launch
from mpi import jobs

HERE = Path(__file__).resolve().parent
PATHS = (launch.ROOT, HERE.parent, HERE.parent / "mpi", HERE.parent / "unit", HERE)
DEVICES_OF_FAKE = 4


@functools.cache
def missing(place, ranks):
    """Why jobs of so many ranks cannot run there; "" if they can."""
    if place == "fake":
        return ""
    found = device_arrays.device_count()
    if found < ranks:
        return f"{ranks} NVIDIA GPUs are needed, this machine has {found}" if ranks > 1 else "this machine has no GPU"
    return "" if importlib.util.find_spec(place) else f"{place} is not installed"


def environment(place):
    """The variables of a job there."""
    path = os.pathsep.join([*map(str, PATHS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path, "TEST_ARRAYS": place, **(fakes() if place == "fake" else {})}


@functools.cache
def fakes():
    """Build the fake libraries; the variables that lead to them."""
    from fakes import build

    return {
        "HETCCL_CUDA_LIB": build.build("fakecuda"),
        "HETCCL_NCCL_LIB": build.build("fakeccl"),
        "FAKE_CUDA_DEVICES": str(DEVICES_OF_FAKE),
    }


def run(program, place, ranks, *args, env=None, **options):
    """Run a program of this folder in one island; skip the test where its place is missing."""
    why = missing(place, ranks)
    if why:
        pytest.skip(why)
    return jobs.run(HERE / program, "A" * ranks, *args, env={**environment(place), **(env or {})}, **options)


def matrix(place, ranks, scope, wanted="", env=None, timeout=300):
    """Run the device matrix: (Outcome, {case: {rank: problem or None}})."""
    outcome = run("prog_matrix.py", place, ranks, place, scope, wanted, env=env, timeout=timeout)
    return outcome, outcome.by_case()


def wanted_of(place, ranks, scope, group):
    return device_cases.groups(ranks, scope, place)[group]


class CheckRuns(jobs.CheckRuns):
    """jobs.CheckRuns for programs of this folder: a layout is (place, ranks, pairs of the job's own variables)."""

    def start(self, program, layout, names):
        place, ranks, env = layout
        return run(program, place, ranks, *names, env={"HETCCL_TIMEOUT": "30", **dict(env)}, timeout=200)

    def ranks(self, layout):
        return layout[1]
