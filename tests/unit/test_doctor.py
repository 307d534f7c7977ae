"""`doctor`: each check on what it looks at, and the page for a job."""

import json
import os
import re

import pytest
from command import COMMAND, MEMBER, ROOT, fake_mpi4py, hetccl

import launch
from hetccl import oneccl
from hetccl.cli import doctor, host, page
from hetccl.cli.host import Check

needs_mpirun = pytest.mark.skipif(not launch.launchers(), reason="no mpirun beside this interpreter or in PATH")


def test_doctor_fails_without_mpi(tmp_path):
    broken = fake_mpi4py(tmp_path, "raise RuntimeError('cannot load MPI library')")
    done = hetccl("doctor", "--json", path=[broken])
    assert done.returncode == 1, done.stderr
    statuses = {check["name"]: check["status"] for check in json.loads(done.stdout)["checks"]}
    assert statuses["MPI"] == "fail"
    assert statuses["shared memory"] == "ok"
    assert "communicator" not in statuses


def test_doctor_reports_a_wrong_variable(monkeypatch):
    monkeypatch.setenv("HETCCL_ISLNAD", "left")
    done = hetccl("doctor", "--json")
    assert done.returncode == 1, done.stderr
    (check,) = (check for check in json.loads(done.stdout)["checks"] if check["name"] == "configuration")
    assert check["status"] == "fail" and "HETCCL_ISLAND" in check["text"]


def test_doctor_passes_on_one_process():
    done = hetccl("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hetccl can run here" in done.stdout


@pytest.mark.parametrize(
    "serves, status, words",
    [
        (oneccl.HostCcl("hetccl"), "ok", "hetccl's own algorithms"),
        (oneccl.HostCcl("oneCCL", "2022.2.0", "/lib/libccl.so.2"), "ok", "oneCCL 2022.2.0 /lib/libccl.so.2"),
        (oneccl.HostCcl("oneCCL", problem="libccl.so.2 not found; tried:\n  a"), "fail", "libccl.so.2 not found"),
    ],
)
def test_who_serves_host_buffers(monkeypatch, serves, status, words):
    monkeypatch.setattr(oneccl, "describe", lambda settings: serves)
    check = doctor.host_buffers(None)
    assert (check.status, words in check.text, "tried" in check.text) == (status, True, False)


def test_doctor_fails_without_the_library_that_was_asked_for(monkeypatch):
    monkeypatch.setenv("HETCCL_HOST_CCL", "oneccl")
    monkeypatch.setenv("HETCCL_ONECCL_LIB", "/nowhere/libccl.so.2")
    done = hetccl("doctor", "--json")
    assert done.returncode == 1, done.stderr
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["host buffers"]["status"] == "fail"


def test_merge_brings_equal_findings_together():
    good, bad, other = Check("a", "ok", "x"), Check("a", "fail", "y", "z"), Check("b", "ok", "x")
    findings = doctor.merge([[good, other], [bad, other], [good, other]])
    assert findings == (
        doctor.Finding(good, (0, 2)),
        doctor.Finding(bad, (1,)),
        doctor.Finding(other, (0, 1, 2)),
    )
    assert page.status_of(findings) == 1
    assert page.status_of(findings[:1]) == 0
    text = page.text(findings, [MEMBER] * 3, None, [], [])
    assert "x (ranks 0,2)" in text and "y (rank 1)" in text and "-> z" in text
    assert "1 problem to solve first" in text


@pytest.mark.parametrize(
    "nranks, cores, quota, status", [(2, 2, None, "ok"), (3, 2, None, "warn"), (2, 8, 1.5, "warn")]
)
def test_cores_against_ranks(nranks, cores, quota, status):
    assert host.enough_cores(nranks, frozenset(range(cores)), quota).status == status


@pytest.mark.parametrize("text, quota", [("max 100000", None), ("150000 100000", 1.5), ("", None), (None, None)])
def test_cpu_quota(tmp_path, text, quota):
    if text is not None:
        (tmp_path / "cpu.max").write_text(text)
    assert host.cpu_quota(tmp_path / "cpu.max") == quota


def test_shared_memory_refused(monkeypatch):
    def refuse(*arguments):
        raise PermissionError(1, "Operation not permitted")

    assert host.shared_memory().status == "ok"
    monkeypatch.setattr(os, "memfd_create", refuse)
    assert host.shared_memory().status == "fail"


@pytest.mark.parametrize("scope, words", [("2", "ptrace_scope is 2"), (None, "SYS_PTRACE")])
def test_single_copy_refused(tmp_path, monkeypatch, scope, words):
    if scope:
        (tmp_path / "sys/kernel/yama").mkdir(parents=True)
        (tmp_path / "sys/kernel/yama/ptrace_scope").write_text(scope)
    monkeypatch.setattr(host, "_READER", "import errno, sys; sys.exit(errno.EPERM)")
    check = host.single_copy(tmp_path)
    assert check.status == "warn" and "Operation not permitted" in check.text
    assert words in check.advice


def test_single_copy_that_reads_wrong_bytes_is_not_ok(monkeypatch):
    monkeypatch.setattr(host, "_READER", "import sys; sys.stdout.write('0' * int(sys.argv[3]))")
    assert host.single_copy().status == "warn"


@needs_mpirun
def test_doctor_and_info_print_one_page_for_the_job():
    islands = [{"HETCCL_ISLAND": label} for label in "ABA"]
    for command in (["doctor", "--measure"], ["info"]):
        done = launch.mpirun(3, COMMAND, *command, "--json", per_rank_env=islands, timeout=120, check=False)
        assert done.returncode == 0, done.report()
        assert done.stdout[1:] == ("", "")
        told = json.loads(done.stdout[0])
        assert [(island["label"], island["ranks"]) for island in told["islands"]] == [("A", [0, 2]), ("B", [1])]
        assert len({member["pid"] for member in told["members"]}) == 3
        if command[0] == "doctor":
            assert_measured(told)


def assert_measured(told):
    """What doctor tells of three ranks that share memory, under the names that docs/cli.md has."""
    schema = (ROOT / "docs" / "cli.md").read_text().partition("### --json")[2].partition("\n## ")[0]
    for keys in (told, *told["networks"], told["matrix"], told["matrix"]["rows"][0], *told["links"], *told["measured"]):
        assert set(keys) <= set(re.findall(r"`(\w+)`", schema))
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", schema, re.MULTILINE)
    assert set(told) == {key for row in rows for key in re.findall(r"\w+", row)}
    assert [(pair["low"], pair["high"]) for pair in told["measured"]] == [(0, 1), (0, 2), (1, 2)]
    assert all(pair["latency_us"] > 0 and pair["gb_s"] > 0 for pair in told["measured"])
    expected = [[["."] if row == column else ["S"] for column in range(3)] for row in range(3)]
    assert [row["paths"] for row in told["matrix"]["rows"]] == expected
    assert [each["hetccl"] for each in told["versions"]] == [told["version"]] * 3
    assert sum(link["pairs"] for link in told["links"]) == 3
    assert {check["name"] for check in told["checks"]} >= {"versions", "open files", "processes", "/dev/shm", "memory"}


@needs_mpirun
def test_doctor_fails_on_all_ranks_and_names_the_faulty_one():
    faulty = [{}, {"HETCCL_TIMEOUT": "soon"}]
    done = launch.mpirun(2, COMMAND, "doctor", "--json", per_rank_env=faulty, timeout=120, check=False)
    assert done.returncode == 1
    checks = [check for check in json.loads(done.stdout[0])["checks"] if check["name"] == "configuration"]
    assert {check["status"]: check["ranks"] for check in checks} == {"ok": [0], "fail": [1]}
