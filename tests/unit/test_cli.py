"""The command line: unknown commands, what it knows of its job, and `info`."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from command import MEMBER, ROOT, fake_mpi4py, hetccl

from hetccl import libraries, topology
from hetccl.__main__ import main
from hetccl.cli import info, job

# The front


@pytest.mark.parametrize("typed, hint", [("bnech", "bench"), ("docter", "doctor"), ("plna", "plan"), ("inf", "info")])
def test_unknown_command_suggests(capsys, typed, hint):
    with pytest.raises(SystemExit) as caught:
        main([typed])
    assert caught.value.code == 2
    assert f"did you mean {hint}?" in capsys.readouterr().err


def test_unknown_command_without_a_near_one_lists_all(capsys):
    with pytest.raises(SystemExit):
        main(["xyzzy"])
    assert "info, doctor, plan, bench" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--help"], *([name, "--help"] for name in ("info", "doctor", "plan", "bench", "topo"))]
)
def test_help(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("usage: python -m hetccl")


def test_a_reader_that_leaves_is_no_error():
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stdout:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "hetccl", "info"]
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment, timeout=120)
    assert (done.returncode, done.stderr) == (128 + 13, "")


def test_ctrl_c_is_quiet(monkeypatch, capsys):
    def interrupt(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(info, "run", interrupt)
    assert main(["info"]) == 128 + 2
    assert capsys.readouterr().err == ""


# What job knows


@pytest.mark.parametrize(
    "variables, rank",
    [
        (b"", None),
        (b"HOME=/root\0", None),
        (b"PMI_RANK=3\0PMI_SIZE=4\0", 3),
        (b"A=1\0OMPI_COMM_WORLD_RANK=2\0PMIX_RANK=2\0", 2),
        (b"PMIX_RANK=0\0", 0),
        (b"PMI_RANK=x\0", None),
    ],
)
def test_launch_rank(tmp_path, variables, rank):
    (tmp_path / "self").mkdir()
    (tmp_path / "self/environ").write_bytes(variables)
    assert job.launch_rank(topology.Roots(proc=tmp_path)) == rank


@pytest.mark.parametrize(
    "source, problem",
    [
        ("raise RuntimeError('cannot load MPI library\\nlibmpi.so: no such file')", "cannot load MPI library"),
        ("raise ImportError('libmpi.so.40: cannot open')", "libmpi.so.40: cannot open"),
        ("import os, sys; sys.stderr.write('init failed\\n'); sys.stderr.flush(); os.abort()", "init failed"),
    ],
)
def test_a_broken_mpi_is_reported(tmp_path, monkeypatch, source, problem):
    monkeypatch.setenv("PYTHONPATH", str(fake_mpi4py(tmp_path, source)))
    found = job.find_mpi(may_initialize=True)
    assert found == job.MpiFound("", "", "", problem)


def test_an_mpi_that_hangs_is_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(fake_mpi4py(tmp_path, "import time; time.sleep(100)")))
    monkeypatch.setattr(job, "PROBE_SECONDS", 0.5)
    assert "0.5 s" in job.find_mpi(may_initialize=True).problem


@pytest.mark.parametrize(
    "said, short",
    [
        ("Open MPI v5.0.11, package: Open MPI user@host Distribution, ident: 5.0.11\0", "Open MPI v5.0.11"),
        ("MPICH Version:      5.0.2\nMPICH Release date: Fri Sep 25", "MPICH 5.0.2"),
        ("Intel(R) MPI Library 2021.18 for Linux* OS\n", "Intel(R) MPI Library 2021.18 for Linux* OS"),
    ],
)
def test_mpi_version_is_short(tmp_path, monkeypatch, said, short):
    source = f"def Get_library_version():\n    return {said!r}\n"
    monkeypatch.setenv("PYTHONPATH", str(fake_mpi4py(tmp_path, source)))
    found = job.find_mpi(may_initialize=False)
    assert (found.library, found.mpi4py, found.problem) == (short, "9", "")


def test_hosts_of_one_name_are_told_apart():
    other = replace(MEMBER, machine="n0/other")
    assert job.by_host([MEMBER, other, MEMBER, replace(MEMBER, host="n1", machine="n1/boot")]) == {
        "n0": [0, 2],
        "n0 #2": [1],
        "n1": [3],
    }


@pytest.mark.parametrize("ranks, text", [((3,), "rank 3"), ((0, 1, 2, 5), "ranks 0-2,5")])
def test_ranks_text(ranks, text):
    assert job.ranks_text(ranks) == text


# info


def test_info_json_and_text_agree():
    done = hetccl("info", "--json")
    assert done.returncode == 0, done.stderr
    page = json.loads(done.stdout)
    assert [found["name"] for found in page["libraries"]] == [known.name for known in libraries.LIBRARIES]
    assert topology.parse_cpulist(page["cores"]) == os.sched_getaffinity(0)
    text = info.text(page)
    for found in page["libraries"]:
        assert (found["path"] or "not found") in text
        assert bool(found["path"]) != bool(found["tried"])


def test_info_runs_without_mpi(tmp_path):
    broken = fake_mpi4py(tmp_path, "raise RuntimeError('cannot load MPI library')")
    done = hetccl("info", path=[broken])
    assert done.returncode == 0, done.stderr
    assert "not usable: cannot load MPI library" in done.stdout
