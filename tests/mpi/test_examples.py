"""The small examples as a user runs them: on any islands, on plain mpi4py, and with a planted fault."""

import re

import pytest

from launch import ROOT, mpirun

TIMEOUT_S = 120
# A collective that hangs ends in a CommTimeout that says who is missing, before the job itself is killed.
ENV = {"HETCCL_TIMEOUT": "60"}
CHECKS = {"power_iteration": 2, "heat2d": 2, "fft3d": 3, "dot": 6}
# Sizes at which some of four ranks have parts of one element, or none; MPI has no empty subarrays.
SMALLEST = {"power_iteration": 3, "heat2d": 2, "fft3d": 2, "dot": 3}

# Runs an example with a communicator in which one method does something else than it should on the last rank.
FAULTY = """
import runpy, sys
import numpy as np
import hetccl

class Faulty(hetccl.Comm):
    def {method}(self, *args, **kwargs):
        last = self.Get_rank() == self.Get_size() - 1
        if last:
            {before}
        result = super().{method}(*args, **kwargs)
        if last:
            {after}
        return result

hetccl.Comm = Faulty
sys.path.insert(0, {folder!r})
sys.argv[0] = {script!r}
runpy.run_path({script!r}, run_name="__main__")
"""


def script(name):
    return ROOT / "examples" / f"{name}.py"


def run(name, ranks, *arguments, program=None, check=True, labels=None):
    islands = [{"HETCCL_ISLAND": label} for label in labels] if labels else None
    program = program or script(name)
    return mpirun(ranks, program, *arguments, per_rank_env=islands, env=ENV, timeout=TIMEOUT_S, check=check)


def verdicts(job):
    return re.findall(r"^  (PASS|FAIL)  ", job.stdout[0], re.MULTILINE)


def assert_good(name, job, module):
    assert verdicts(job) == ["PASS"] * CHECKS[name], job.report()
    ranks = len(job.stdout)
    assert f"{ranks} rank{'s' if ranks > 1 else ''} of {module}\n" in job.stdout[0], job.report()
    assert job.stdout[1:] == ("",) * (ranks - 1) and job.stderr == ("",) * ranks, job.report()


@pytest.mark.parametrize("labels", ["A", "AB", "AAB", "ABAB", "AAAA", "AABBBC"], ids=str)
@pytest.mark.parametrize("name", CHECKS)
def test_runs_on_any_islands(name, labels):
    assert_good(name, run(name, len(labels), labels=labels), "hetccl")


@pytest.mark.parametrize("name", CHECKS)
def test_smallest_sizes(name):
    assert_good(name, run(name, 4, "--size", SMALLEST[name], labels="AABA"), "hetccl")


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("name", CHECKS)
def test_runs_on_mpi4py(name, ranks):
    job = run(name, ranks, "--mpi", check=False)
    if name == "fft3d" and "NotImplementedError" in job.report():
        pytest.skip("this MPI has no persistent collectives (MPI 4.0)")
    assert job.returncode == 0, job.report()
    assert_good(name, job, "mpi4py")


@pytest.mark.parametrize(
    ("name", "method", "before", "after"),
    [
        pytest.param("power_iteration", "Allgatherv", "pass", "args[1][0][-1] *= 1.5", id="power_iteration"),
        pytest.param("heat2d", "Irecv", "pass", "result.Wait(); args[0][0][0] += 1e-9", id="heat2d_halo"),
        pytest.param("heat2d", "Allreduce", "pass", "args[1][0] *= 1.01", id="heat2d_change"),
        pytest.param("fft3d", "Split", "args = (args[0], -1)", "pass", id="fft3d_order_of_ranks"),
        pytest.param("fft3d", "Allreduce", "pass", "args[1][0] += 1", id="fft3d_energy"),
        pytest.param("dot", "Scatterv", "pass", "args[1][-1] += 1", id="dot_scatter"),
        pytest.param("dot", "Gatherv", "pass", "args[1][0][0] += 1e-9", id="dot_gather"),
    ],
)
def test_checks_find_faults(name, method, before, after):
    path = script(name)
    program = FAULTY.format(method=method, before=before, after=after, folder=str(path.parent), script=str(path))
    job = run(name, 3, program=program, check=False)
    assert "FAIL" in verdicts(job) and len(verdicts(job)) == CHECKS[name], job.report()
    assert job.returncode == 1, job.report()


@pytest.mark.parametrize("name", CHECKS)
def test_sizes_below_one_are_refused(name):
    job = run(name, 1, "--size", 0, check=False)
    assert job.returncode == 2 and "--size" in job.stderr[0], job.report()
