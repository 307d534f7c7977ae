"""slurm/rdma.sbatch over Soft-RoCE: Slurm on nodes of a guest with RDMA devices; takes minutes, with --rdma alone."""

import os
import sys
from pathlib import Path

import pytest

from slurm import cluster
from slurm.test_slurm import LITTLE, PROGRAM, ROOT, Site, verify
from softroce import image, vm

IN_GUEST = "SLURM_IN_GUEST"
GUEST_S, JOB_S = 1500, 1200


@pytest.mark.rdma
@pytest.mark.limit(GUEST_S + 200)
@pytest.mark.skipif(IN_GUEST in os.environ, reason="this is the guest")
@pytest.mark.skipif(cluster.reason_against() is not None, reason=f"no Slurm here: {cluster.reason_against()}")
def test_rdma_in_a_guest():
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
    env = {IN_GUEST: "1", "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    options = vm.Options(nodes=3, nics=1, timeout=GUEST_S, env=env, live=False)
    inner = [sys.executable, "-m", "pytest", "--rdma", "-p", "no:cacheprovider", Path(__file__), "-k", "test_inside"]
    try:
        result = vm.run(inner, options)
    except image.CannotPrepare as error:
        pytest.skip(f"no Soft-RoCE here (make test-rdma sets it up): {error}")
    assert result.status == 0 and "1 passed" in result.text, result.text


@pytest.mark.rdma
@pytest.mark.limit(GUEST_S)
@pytest.mark.skipif(IN_GUEST not in os.environ, reason="run by test_rdma_in_a_guest")
def test_inside(tmp_path):
    site = Site(tmp_path)
    with cluster.Cluster(ROOT / "build" / "slurm-soft-roce", ["node0", "node1", "node2"]) as slurm:
        env = {**site.env, **LITTLE}
        job = slurm.submit(site.path, "slurm/rdma.sbatch", PROGRAM, "found", env=env, limit_s=JOB_S)
    # The script allows shared memory and verbs alone: between the nodes there was no other way.
    verify(job, site, ["node1", "node1", "node2", "node2"], [["host", [0, 1, 2, 3]]])
