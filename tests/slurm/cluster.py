"""A Slurm of the tests' own: munged, slurmctld, and a slurmd on each host of tests/hosts.py, all below one folder.

    python tests/slurm/cluster.py                    installs Debian's packages where they are missing (root)

Nothing in /etc is read or written. Daemons run in the foreground, as children of this process, on hosts whose processes
end with the command for which they were made: none outlives it.
"""

import os
import re
import secrets
import shlex
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from softroce import image

# libpmix-dev has the name libpmix.so, by which the plug-in mpi/pmix opens the library.
PACKAGES = ("slurm-wlm", "munge", "libpmi0", "libpmi2-0", "libpmix-dev", "iproute2", "util-linux")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "sinfo")
START_S, STOP_S, JOB_S = 60, 10, 200
# Slurm finds hosts by name.
CONF = """\
ClusterName=hetccl
SlurmctldHost={login}
SlurmUser=root
AuthType=auth/munge
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
GresTypes=gpu
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
# Jobs of several components are started by the backfill scheduler alone: every second.
SchedulerParameters=bf_interval=1
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
MailProg=/bin/true
KillWait=5
{nodes}
PartitionName=cpu Nodes=ALL Default=YES
{partitions}
"""
NODE = "NodeName={name} CPUs=4 RealMemory=1000{gres}"
# A GPU is a device file, here of the kind of /dev/null: Slurm counts it, and names it to the ranks.
GRES = "NodeName={name} Name=gpu File={folder}/gpu[0-1] Flags={flags}"
FLAGS = {"cuda": "nvidia_gpu_env", "rocm": "amd_gpu_env"}
NULL = os.makedev(1, 3)
# Not the kernel's real control groups: no limit of this Slurm's needs any.
CGROUP = "CgroupPlugin=cgroup/v1\nCgroupMountpoint={folder}/cgroup\n"
# Nodes share /tmp here, as no real ones do; /dev/shm is each one's own.
MPI = "PMIxCliTmpDirBase=/dev/shm\n"


class CannotStart(Exception):
    """Slurm cannot run here; the message says why."""


def install():
    """Install those of PACKAGES that are missing. Raises image.CannotPrepare."""
    query = ("dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *PACKAGES)
    if shutil.which("apt-get") is None:
        raise image.CannotPrepare("Slurm comes from Debian's packages; there is no apt-get here")
    listed = subprocess.run(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.splitlines()
    missing = [name for name in PACKAGES if f"{name} installed" not in listed]
    if not missing:
        return
    if os.geteuid() != 0:
        raise image.CannotPrepare(f"root must install {' '.join(missing)}: apt-get install --no-install-recommends ...")
    print("slurm: installing " + " ".join(missing), flush=True)
    image.apt("update")
    image.apt("install", "-y", "--no-install-recommends", *missing)


def reason_against():
    """Why no Slurm can run in this process's environment; None where it can."""
    if "NO_HOSTS" in os.environ:
        return os.environ["NO_HOSTS"]
    if "HOSTS" not in os.environ:
        return "needs the hosts of tests/hosts.py: make test-slurm"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"no {', '.join(missing)}: make test-slurm by root installs Debian's packages" if missing else None


class Job(NamedTuple):
    """A finished batch job. status: the script's own exit status · text: all that it and its ranks printed"""

    status: int
    text: str


class Cluster:
    """A running Slurm; a context manager.

    folder : Path, emptied; configuration, state and logs go there
    hosts  : list of str: the login host, then nodes; those named cuda... or rocm... have two GPUs, and are also in a
             partition of that name
    """

    def __init__(self, folder, hosts):
        self.folder, self.login, self.nodes = folder, hosts[0], hosts[1:]
        self._daemons = {}

    def __enter__(self):
        try:
            self._write()
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc):
        self.stop()

    def _write(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "state").mkdir(parents=True)
        kinds = {kind: [name for name in self.nodes if name.startswith(kind)] for kind in FLAGS}
        partitions = [f"PartitionName={kind} Nodes={','.join(names)}" for kind, names in kinds.items() if names]
        with_gpus = {name: FLAGS[kind] for kind, names in kinds.items() for name in names}
        nodes = [NODE.format(name=name, gres=" Gres=gpu:2" if name in with_gpus else "") for name in self.nodes]
        gres = [GRES.format(name=name, folder=self.folder, flags=flags) for name, flags in with_gpus.items()]
        conf = dict(login=self.login, folder=self.folder, nodes="\n".join(nodes), partitions="\n".join(partitions))
        files = {
            "slurm.conf": CONF.format(**conf),
            "gres.conf": "\n".join([*gres, ""]),
            "cgroup.conf": CGROUP.format(folder=self.folder),
            "mpi.conf": MPI,
        }
        for name, text in files.items():
            (self.folder / name).write_text(text)
        for i in range(2):
            os.mknod(self.folder / f"gpu{i}", 0o600 | stat.S_IFCHR, NULL)
        for name in self.nodes:
            (self.folder / f"spool-{name}").mkdir()
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))

    def _start(self):
        conf = os.environ["SLURM_CONF"] = str(self.folder / "slurm.conf")
        # /run is the hosts' own. --force: the folder of the key may be writable by its group.
        os.makedirs("/run/munge", exist_ok=True)
        files = [f"--{name}-file=/run/munge/{name}" for name in ("seed", "log", "pid")]
        munged = ["munged", "--foreground", "--force", f"--key-file={self.folder}/munge.key", *files]
        self._spawn("munged", self.login, *munged)
        self._spawn("slurmctld", self.login, "slurmctld", "-D", "-f", conf)
        for name in self.nodes:
            self._spawn(name, name, "slurmd", "-D", "-N", name, "-f", conf)
        deadline = time.monotonic() + START_S
        while (states := self._states()) != dict.fromkeys(self.nodes, "idle"):
            ended = [name for name, daemon in self._daemons.items() if daemon.poll() is not None]
            if ended or time.monotonic() > deadline:
                raise CannotStart(f"nodes: {states}; ended: {ended}\n{self.logs()}")
            time.sleep(0.1)

    def _states(self):
        done = subprocess.run(["sinfo", "-hN", "-p", "cpu", "-o", "%N %T"], capture_output=True, text=True)
        return dict(line.split() for line in done.stdout.splitlines())

    def _spawn(self, name, host, *command):
        with open(self.folder / f"{name}.log", "wb") as log:
            where = ["on", host, f"exec {shlex.join(command)}"]
            self._daemons[name] = subprocess.Popen(
                where, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def logs(self, lines=30):
        """The ends of the daemons' logs."""
        texts = {name: (self.folder / f"{name}.log").read_text(errors="replace") for name in self._daemons}
        return "\n".join(f"--- {name}\n" + "\n".join(text.splitlines()[-lines:]) for name, text in texts.items())

    def stop(self):
        """End every daemon: the nodes first, for they speak to the others."""
        for name in reversed(list(self._daemons)):
            daemon = self._daemons.pop(name)
            daemon.terminate()
            try:
                daemon.wait(STOP_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def submit(self, site, script, *arguments, options=(), env=None, before=(), limit_s=JOB_S):
        """Run `BEFORE sbatch OPTIONS SCRIPT ARGUMENTS` in the folder site to the job's end.

        Returns: Job
        Raises : AssertionError, with the output and the logs, if sbatch refuses or the job outlives its time
        """
        out = Path(site, "job.out")
        out.unlink(missing_ok=True)
        command = [*before, "sbatch", "--parsable", f"--output={out}", *options, script, *map(str, arguments)]
        done = subprocess.run(
            command,
            cwd=site,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}{done.stderr}"
        number = done.stdout.strip()
        deadline = time.monotonic() + limit_s
        while (status := self._exit_status(number)) is None:
            if time.monotonic() > deadline:
                subprocess.run(["scancel", number])
                raise AssertionError(f"still there after {limit_s} s\n{self._read(out)}\n{self.logs()}")
            time.sleep(0.1)
        return Job(status, self._read(out))

    def _read(self, path):
        return path.read_text(errors="replace") if path.exists() else ""

    def _exit_status(self, number):
        """None while the job, or any component of it, is there."""
        shown = subprocess.run(["scontrol", "show", "job", number], capture_output=True, text=True, check=True).stdout
        states = set(re.findall(r"JobState=(\w+)", shown))
        if not states <= {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}:
            return None
        status, number = map(int, re.search(r" ExitCode=(\d+):(\d+)", shown).groups())
        return status or number and 128 + number


def main():
    try:
        install()
    except image.CannotPrepare as error:
        print(f"slurm: {error}", flush=True)


if __name__ == "__main__":
    main()
