"""Settings of the network that cannot be met end Comm() on all ranks, with the rank that has them."""

import pytest

import launch

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
