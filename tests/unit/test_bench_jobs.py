"""`bench` under mpirun: every collective and every kind of messages in one job, and an error planted in each."""

import functools
import json
import tempfile
from pathlib import Path

import pytest

import launch
from hetccl.cli.points import POINTS
from hetccl.cli.report import BENCHMARKS

pytestmark = pytest.mark.skipif(not launch.launchers(), reason="no mpirun beside this interpreter or in PATH")
HERE = Path(__file__).resolve().parent
# Two ranks in one island, one in another.
ISLANDS = [{"HETCCL_ISLAND": label} for label in "AAB"]
MODES = [f"{name}-{mode}" for name, benchmark in BENCHMARKS.items() for mode in benchmark.modes if name != "barrier"]


@functools.cache
def results(program):
    """What a program of this folder wrote."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "results.json")
        done = launch.mpirun(3, HERE / program, path, timeout=200, check=False, per_rank_env=ISLANDS)
        assert path.exists(), done.report()
        return json.loads(path.read_text())


@pytest.mark.parametrize("name", BENCHMARKS)
def test_bench_under_mpirun(name):
    first, *others = (found[name] for found in results("prog_bench.py"))
    assert [first["status"], *(found["status"] for found in others)] == [0, 0, 0]
    assert {found["text"] for found in others} == {""}
    lines = first["text"].splitlines()
    assert "# island A (host): ranks 0-1" in lines and "# path: ranks 0-2 share memory" in lines
    rows = [line.split() for line in lines if not line.startswith("#")]
    if name == "barrier":
        assert [row[:2] for row in rows] == [["0", "0"]]
        return
    assert len(rows) == 3
    assert {row[8] for row in rows} | {row[16] for row in rows} <= {"0", "N/A"}
    assert "# wrong elements: 0 OK" in lines and "# wrong elements of mpi4py" not in first["text"]


@pytest.mark.parametrize("case", MODES)
def test_a_planted_error_is_counted(case):
    found = results("prog_bench_planted.py")[case]
    assert found["sound"] == 0
    # Of messages every one is spoiled, of a collective one element.
    name = case.partition("-")[0]
    assert found["spoiled"] == (64 if name in POINTS and POINTS[name].window else 1)
