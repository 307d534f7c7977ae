"""Where the hosts of tests/hosts.py and a Slurm on them cannot be had, tests hear why."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hosts
from softroce import image

TESTS = Path(hosts.__file__).parent
# Prints what the tests of a command would skip with; every user but root, in effect.
ASK = """
import os, runpy, sys
os.geteuid = lambda: 1000
sys.argv[:] = [{script!r}, *{arguments!r}]
runpy.run_path({script!r}, run_name="__main__")
"""
REASON = "import os; print(os.environ.get('NO_HOSTS'), os.environ.get('HOSTS'))"


def ask(script, *arguments, environ=()):
    code = ASK.format(script=str(TESTS / script), arguments=arguments)
    env = {**os.environ, **dict(environ)}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.skipif(not all(map(shutil.which, hosts.PROGRAMS)), reason=f"needs {', '.join(hosts.PROGRAMS)}")
def test_the_command_runs_without_root_and_hears_why():
    done = ask("hosts.py", "node0", "node1", "--", sys.executable, "-c", REASON)
    assert (done.returncode, done.stdout) == (0, "needs root, for network namespaces None\n")


@pytest.mark.parametrize("arguments", [[], ["node0"], ["--", "true"], ["node0", "--"]])
def test_usage(arguments):
    done = ask("hosts.py", *arguments)
    assert done.returncode == 1
    assert "NAME... -- COMMAND..." in done.stderr


def slurm_tests(**environ):
    env = {name: value for name, value in os.environ.items() if name not in ("HOSTS", "NO_HOSTS")}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rs",
        "-p",
        "no:cacheprovider",
        str(TESTS / "slurm"),
        "-k",
        "rdma",
    ]
    return subprocess.run(command, env={**env, **environ}, cwd=TESTS.parent, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "environ, reason",
    [({}, "needs the hosts of tests/hosts.py: make test-slurm"), ({"NO_HOSTS": "needs root"}, "needs root")],
)
def test_tests_of_slurm_are_skipped_with_the_reason(environ, reason):
    done = slurm_tests(**environ)
    assert done.returncode == 0 and f"no Slurm here: {reason}" in done.stdout
    assert " skipped" in done.stdout and "passed" not in done.stdout


@pytest.mark.parametrize("missing", [True, False])
def test_only_root_installs_slurm(missing, monkeypatch):
    from slurm import cluster

    listed = "" if missing else "\n".join(f"{name} installed" for name in cluster.PACKAGES)
    monkeypatch.setattr(cluster.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(cluster.subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, 0, listed, ""))
    monkeypatch.setattr(cluster.os, "geteuid", lambda: 1000)
    if missing:
        with pytest.raises(image.CannotPrepare, match="root must install slurm-wlm munge"):
            cluster.install()
    else:
        cluster.install()
