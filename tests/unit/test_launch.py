"""The launcher of the MPI tests: it must report every rank, and never leave a process or file behind."""

import os
import signal
import time
from pathlib import Path

import pytest

import launch

MPIS = sorted(launch.launchers())
RANK = "from mpi4py import MPI; import os, sys, time; rank = MPI.COMM_WORLD.rank\n"


def run(mpi, n, code, *args, **options):
    return launch.mpirun(n, RANK + code, *args, mpi=mpi, **options)


def alive(pid):
    """True while the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until_printed(job, rank, text):
    """Wait until a rank has printed it."""
    pid = job.pid(rank)
    while text not in job.stdout[rank]:
        assert alive(pid), job.report()
        time.sleep(0.02)


def test_a_launcher_is_here():
    assert "default" in MPIS


@pytest.mark.parametrize("mpi", MPIS)
def test_ranks_output_apart(mpi):
    code = "print('out', rank, MPI.COMM_WORLD.size, *sys.argv[1:]); print('err', rank, file=sys.stderr)"
    job = run(mpi, 3, code, "a b", 7)
    assert job.returncode == 0
    assert job.stdout == tuple(f"out {rank} 3 a b 7\n" for rank in range(3))
    assert job.stderr == tuple(f"err {rank}\n" for rank in range(3))


@pytest.mark.parametrize("mpi", MPIS)
def test_library_belongs_to_launcher(mpi):
    launcher = launch.launchers()[mpi]
    words = {"openmpi": "Open MPI v", "mpich": "MPICH Version:"}[launcher.kind]
    version = ".".join(map(str, launcher.version))
    (text,) = run(mpi, 1, "print(MPI.Get_library_version())").stdout
    assert words in text and version in text


@pytest.mark.parametrize("mpi", MPIS)
def test_environment_per_rank(mpi, monkeypatch):
    monkeypatch.setenv("HETCCL_TIMEOUT", "1")
    code = "print(*(os.environ.get(name) for name in ('HETCCL_ISLAND', 'ALL', 'HETCCL_TIMEOUT', 'OMP_NUM_THREADS')))"
    islands = [{"HETCCL_ISLAND": "it's"}, {}, {"HETCCL_ISLAND": "$b c"}]
    job = run(mpi, 3, code, env={"ALL": "x"}, per_rank_env=islands)
    assert job.stdout == ("it's x None 1\n", "None x None 1\n", "$b c x None 1\n")


@pytest.mark.parametrize("mpi", MPIS)
def test_failure_is_reported(mpi):
    code = "print('rank one fails') or os._exit(3) if rank == 1 else time.sleep(60)"
    with pytest.raises(AssertionError, match="rank one fails"):
        run(mpi, 2, code)
    assert run(mpi, 2, code, check=False).returncode != 0


@pytest.mark.parametrize("mpi", MPIS)
def test_timeout_kills_the_tree_and_shows_where(mpi):
    code = """
import subprocess
child = subprocess.Popen(["sleep", "300"], start_new_session=True)
def hang_here():
    print(os.getpid(), child.pid)
    time.sleep(300)
hang_here()
"""
    with launch.start(2, RANK + code, mpi=mpi) as job:
        until_printed(job, 0, "\n")
        until_printed(job, 1, "\n")
        with pytest.raises(launch.JobTimeout) as caught:
            job.wait(0.5)
    assert caught.value.job is job
    pids = [int(pid) for text in job.stdout for pid in text.split()]
    assert len(pids) == 4
    assert not any(alive(pid) for pid in pids)
    assert all("hang_here" in text for text in job.stderr)
    assert not Path(job.args[job.args.index("sh") + 1]).parent.exists()


@pytest.mark.parametrize("mpi", MPIS)
def test_keep_alive(mpi):
    code = """
MPI.COMM_WORLD.Barrier()
if rank == 1:
    os.kill(os.getpid(), 9)
time.sleep(2)
print('lives', rank)
os._exit(0)
"""
    job = run(mpi, 3, code, keep_alive=True, check=False)
    assert job.stdout == ("lives 0\n", "", "lives 2\n")
    assert job.returncodes == (0, 137, 0)


@pytest.mark.parametrize("keep_alive", [False, True])
@pytest.mark.parametrize("mpi", MPIS)
def test_signal_reaches_the_program(mpi, keep_alive):
    code = """
try:
    print('ready')
    time.sleep(60 if rank == 1 else 0)
except KeyboardInterrupt:
    print('interrupted')
"""
    with launch.start(2, RANK + code, mpi=mpi, keep_alive=keep_alive) as job:
        until_printed(job, 1, "ready")
        os.kill(job.pid(1), signal.SIGINT)
        job.wait(120).check()
    assert job.stdout[1] == "ready\ninterrupted\n"


def test_programs(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sys.argv[1])")
    assert launch.mpirun(1, script, "x").stdout == ("x\n",)
    assert launch.mpirun(1, ["-c", "import sys; print(sys.argv[1])"], "y").stdout == ("y\n",)


@pytest.mark.parametrize("options, error", [({"mpi": "nosuch"}, RuntimeError), ({"per_rank_env": [{}]}, ValueError)])
def test_bad_calls(options, error):
    with pytest.raises(error):
        launch.start(2, "pass", **options)
