"""Settings of the network that cannot be met end Comm() on all ranks, with the rank that has them."""

from pathlib import Path

import pytest
from rdma_hosts import gid

import launch
from fakes import build

pytestmark = pytest.mark.skipif(not launch.launchers(), reason="no mpirun beside this interpreter or in PATH")

CODE = """
from mpi4py import MPI
import hetccl
try:
    hetccl.Comm(MPI.COMM_WORLD)
except hetccl.HetcclError as error:
    print(error)
else:
    print("no error")
"""


@pytest.mark.parametrize(
    "variables, words",
    [
        (
            [{}, {"HETCCL_IB_TC": "96"}],
            "rank 1: ValueError: HETCCL_IB_TC is set, but HETCCL_TRANSPORT=tcp rules out verbs",
        ),
        ([{"HETCCL_IB_HCA": "no_such0"}] * 2, "rank 0: ValueError: HETCCL_IB_HCA is set"),
        ([{}, {"HETCCL_SOCKET_IFNAME": "nosuch0"}], "rank 1: ValueError: HETCCL_SOCKET_IFNAME=nosuch0"),
    ],
)
def test_one_ranks_fault_ends_comm_on_all(variables, words):
    environments = [{"HETCCL_TRANSPORT": "tcp", **mine} for mine in variables]
    job = launch.mpirun(2, CODE, per_rank_env=environments)
    assert all(words in said for said in job.stdout), job.stdout


def test_verbs_without_a_port():
    job = launch.mpirun(2, CODE, per_rank_env=[{"HETCCL_TRANSPORT": "verbs", "HETCCL_IB_HCA": "no_such0"}] * 2)
    assert all("rank 0: ValueError: HETCCL_IB_HCA=no_such0" in said for said in job.stdout), job.stdout
    assert all("rank 1: " in said for said in job.stdout)


@pytest.mark.skipif(build.compiler() is None, reason="no C compiler to make a libibverbs of")
def test_islands_that_do_not_meet():
    """Two islands whose NICs are of different kinds: every rank is told each pair, each path and why it fails."""
    ethernet = f"device=roce0 gid=0/{gid('10.0.0.1')}/2/1"
    infiniband = f"device=ib0 link=1 lid=7 gid=0/{gid('fe80::7')}/0/0"
    library = str(Path(build.build("fakeverbs")).parent)
    common = {"HETCCL_TRANSPORT": "verbs", "LD_LIBRARY_PATH": library}
    job = launch.mpirun(
        4, CODE, env=common, per_rank_env=[{"FAKEVERBS_DEVICES": d} for d in (ethernet, infiniband) * 2]
    )
    expected = (
        "Comm: ranks 0,2 cannot reach ranks 1,3: shm: not in HETCCL_TRANSPORT; "
        "verbs: one port is InfiniBand, the other Ethernet; tcp: not in HETCCL_TRANSPORT\n"
    )
    assert job.stdout == (expected,) * 4
