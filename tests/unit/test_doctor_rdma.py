"""What info and doctor say of libibverbs and the devices, on the fake library."""

import errno
import json
import resource
import subprocess
import sys

import pytest
from fake_verbs import environment, needs_compiler, run

from hetccl.cli import rdma

GID = "gid=1/00000000000000000000ffff0a63000{0}/2/0"
DEVICES = f"device=mlx5_0 {GID.format(1)} device=mlx5_1 state=1 {GID.format(2)} device=iw_0 transport=1"


def page(command, **variables):
    """The command's lines, or its object with --json in it."""
    made = environment(FAKEVERBS_DEVICES=DEVICES, **variables)
    arguments = [sys.executable, "-m", "hetccl", *command]
    done = subprocess.run(arguments, env=made, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout) if "--json" in command else done.stdout


def info(made):
    """info's object in this environment."""
    command = [sys.executable, "-m", "hetccl", "info", "--json"]
    done = subprocess.run(command, env=made, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout)


def doctor(name, **variables):
    """[(status, text, advice)] of doctor's lines of this name."""
    checks = page(["doctor", "--json"], **variables)["checks"]
    return [(check["status"], check["text"], check["advice"]) for check in checks if check["name"] == name]


@needs_compiler
def test_info_lists_ports_and_what_cannot_be_used():
    text = page(["info"])
    assert "mlx5_0 port 1: ACTIVE, Ethernet, 100 Gb/sec, MTU 4096, 1 GIDs RoCE v2\n" in text
    assert "mlx5_1 port 1: DOWN" in text
    assert "iw_0 is not used: iWARP" in text
    assert "memory that may be locked: " in text and "fork: ibv_fork_init" in text
    assert "libibverbs lacks" not in text


@needs_compiler
def test_info_of_an_old_library():
    made = environment(without=["ibv_reg_dmabuf_mr"])
    command = [sys.executable, "-m", "hetccl", "info", "--json"]
    found = json.loads(
        subprocess.run(command, env=made, capture_output=True, text=True, timeout=120, check=True).stdout
    )
    assert found["rdma"]["missing"] == ["ibv_reg_dmabuf_mr@IBVERBS_1.12"]
    assert "libibverbs lacks ibv_reg_dmabuf_mr@IBVERBS_1.12" in list(rdma.lines(found["rdma"]))


@needs_compiler
def test_info_without_devices_is_quiet():
    made = environment(FAKEVERBS_FAIL=f"get_device_list={errno.ENOSYS}")
    command = [sys.executable, "-m", "hetccl", "info", "--json"]
    found = json.loads(
        subprocess.run(command, env=made, capture_output=True, text=True, timeout=120, check=True).stdout
    )
    if found["rdma"]["ports"]:
        pytest.skip("this host has RDMA devices, which the kernel shows")
    assert list(rdma.lines(found["rdma"])) == ["no RDMA device"]


@needs_compiler
def test_doctor_connects_a_queue_pair_of_each_rail():
    assert [(status, text.partition(":")[0]) for status, text, _ in doctor("queue pair")] == [("ok", "mlx5_0")]


CONNECTION = """
import gc
from hetccl.cli import rdma
card = {"device": "fake0", "port": 1, "gid": "00000000000000000000ffff0a630001", "gid_index": 1}
found = rdma.connection(card, {})
gc.collect()
print(json.dumps([found.status, found.text, found.advice, live()]))
"""


@needs_compiler
@pytest.mark.parametrize(
    "call, number, words",
    [
        ("alloc_pd", errno.ENOMEM, "Cannot allocate memory"),
        ("create_comp_channel", errno.EMFILE, "EMFILE"),
        ("create_cq", errno.ENOMEM, "RLIMIT_MEMLOCK"),
        ("create_qp", errno.EPERM, "RLIMIT_MEMLOCK"),
        ("modify_qp", errno.ETIMEDOUT, "could not be resolved"),
        ("post_recv", errno.ENOMEM, "ENOMEM"),
    ],
)
def test_doctor_tells_what_fails_and_why(call, number, words):
    status, text, advice, left = json.loads(run(CONNECTION, FAKEVERBS_FAIL=f"{call}={number}"))
    assert status == "warn" and text.startswith(f"fake0:1 GID 1: ibv_{call} failed on fake0") and words in text
    assert "HETCCL_IB_HCA" in advice
    assert set(left.values()) == {0}


@needs_compiler
def test_doctor_on_fork():
    (found,) = doctor("RDMA and fork", FAKEVERBS_FAIL=f"fork_init={errno.EINVAL}")
    assert found[0] == "warn" and "EINVAL" in found[1] and "spawn" in found[2]


@pytest.mark.parametrize(
    "limit, may_lock_all, status", [(-1, False, "ok"), (65536, True, "ok"), (65536, False, "warn")]
)
def test_locked_memory(monkeypatch, limit, may_lock_all, status):
    monkeypatch.setattr(resource, "getrlimit", {resource.RLIMIT_MEMLOCK: (limit, limit)}.__getitem__)
    monkeypatch.setattr(rdma, "may_lock_all", lambda: may_lock_all)
    found = rdma.memlock()
    assert found.status == status
    assert ("64 KiB" in found.text) == (limit > 0)
    assert ("ulimit -l" in found.advice) == (status == "warn")


def test_nothing_to_say_without_rails():
    assert list(rdma.checks(None, "no RDMA device")) == []
