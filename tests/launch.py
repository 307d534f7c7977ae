"""Start MPI jobs from tests: every rank's output apart, its own environment, and a hard time-out for the whole tree.

Used by all tests that need several ranks; imports nothing of hetccl and nothing of MPI. A job is any mpirun found on
this machine (`launchers`) running this interpreter. Each rank is started through a small shell script that picks the
rank's variables and writes its pid and output to files of its own. `Job.pid` is the program's own: signals sent there
reach the program itself.
"""

import functools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
# The mark by which all processes of a job are found, wherever they moved: launchers put ranks in sessions of their own.
MARK = "LAUNCH_JOB"
# Variables of the ranks of all jobs, unless a job gives its own: pytest's option --transport.
COMMON = {}
# Hosts to which the ranks of all jobs are dealt out in equal parts, in order; empty: this one.
HOSTS = []
# What an outer launcher or user may have set, and what must not leak into a job of its own.
FOREIGN = re.compile(r"(OMPI|PMIX|PMI|PRTE|HYDRA|MPIR|MPI4PY|HETCCL)_")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
POLL_S = 0.02
DIRECT = """\
echo $$ >{folder}/$rank.pid
exec "$@" >{folder}/$rank.out 2>{folder}/$rank.err
"""
# The launcher must not see a rank die: it would kill the others (MPICH's does even with -disable-auto-cleanup, when it
# sees the rank's socket close before the exit). So the script stays, with that socket open, until all ranks are gone.
# No `&` here: it would make the program ignore SIGINT.
SHIELDED = """\
sh -c 'echo $$ >"$0"; exec "$@"' {folder}/$rank.pid "$@" >{folder}/$rank.out 2>{folder}/$rank.err
echo $? >{folder}/$rank.ending
mv {folder}/$rank.ending {folder}/$rank.rc
until set -- {folder}/*.rc && [ $# -eq {n} ]; do sleep 0.1; done
"""
# How long a process may take to go after SIGKILL: the kernel may have to unmap gigabytes first.
KILL_S = 30.0
# How long ranks have to print where they hang, between SIGABRT, of which they end, and SIGKILL.
TRACEBACK_S = 10.0


class Launcher(NamedTuple):
    """One mpirun: `name` as tests say it, `kind` "openmpi" or "mpich", `version` as numbers, `path` of the program."""

    name: str
    kind: str
    version: tuple
    path: Path

    def options(self, n, keep_alive):
        """The options that let a job of n ranks run here; keep_alive: the other ranks live on when one dies."""
        each = -(-n // max(1, len(HOSTS)))
        if self.kind == "mpich":
            return ["-hosts", ",".join(HOSTS), "-ppn", str(each)] if HOSTS else []
        options = ["--host", ",".join(f"{host}:{each}" for host in HOSTS)] if HOSTS else ["--oversubscribe"]
        options += ["--bind-to", "none"]
        if os.geteuid() == 0:
            options.append("--allow-run-as-root")
        return [*options, "--enable-recovery"] if keep_alive else options

    def environment(self):
        """What a job of it needs: the library for mpi4py, where the loader does not find it without help."""
        found = sorted((self.path.parent.parent / "lib").glob("libmpi.so.*"))
        library = {"MPI4PY_LIBMPI": str(found[0])} if found else {}
        # Open MPI 4 wants a remote shell even for ranks of one host.
        no_shell = self.kind == "openmpi" and self.version < (5,) and not (shutil.which("ssh") or shutil.which("rsh"))
        return {**library, "OMPI_MCA_plm": "isolated"} if no_shell else library


@functools.cache
def launchers():
    """All MPIs of this machine by name: "default" (beside this interpreter, else on PATH), then each .mpi/<name>."""
    beside = Path(sys.executable).parent / "mpirun"
    default = beside if beside.exists() else shutil.which("mpirun") or shutil.which("mpiexec")
    paths = {"default": default} if default else {}
    paths.update({path.parent.parent.name: path for path in sorted(ROOT.glob(".mpi/*/bin/mpirun"))})
    return {name: _identify(name, Path(path)) for name, path in paths.items()}


def _identify(name, path):
    text = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    version = re.search(r"\d+(\.\d+)+", text)
    if version is None or not re.search("Open MPI|OpenRTE|HYDRA|Intel", text):
        raise RuntimeError(f"{path}: neither Open MPI nor MPICH nor Intel MPI says {text!r}")
    # Intel MPI is MPICH to its users.
    kind = "mpich" if re.search("HYDRA|Intel", text) else "openmpi"
    return Launcher(name, kind, tuple(int(part) for part in version[0].split(".")), path)


SHARED_MEMORY_FOLDERS = ("OMPI_MCA_btl_sm_backing_directory", "OMPI_MCA_btl_vader_backing_directory")


class JobTimeout(AssertionError):
    """A job outlived its time-out and was killed; `.job` holds what its ranks had printed."""

    def __init__(self, job, timeout_s):
        super().__init__(f"killed after {timeout_s} s\n{job.report()}")
        self.job = job


class Job:
    """A running or finished MPI job; a context manager that kills what still runs at its end.

    n          : number of ranks
    args       : list of str, mpirun's command line
    returncode : int, mpirun's, or with keep_alive the first non-zero one of the ranks; None while it runs
    stdout     : tuple of str, one per rank; so far, while the job runs
    stderr     : tuple of str, one per rank; so far, while the job runs
    returncodes : tuple of int or None, one per rank, as a shell counts them (137 for SIGKILL); only with keep_alive
    launcher_output : str, what mpirun itself printed
    """

    def __init__(self, launcher, n, command, env, per_rank_env, keep_alive, cwd):
        self.n = n
        self.returncode = None
        self._keep_alive = keep_alive
        self._mark = uuid.uuid4().hex
        self._dir = Path(tempfile.mkdtemp(prefix="launch-"))
        script = self._dir / "rank.sh"
        script.write_text(_rank_script(self._dir, n, per_rank_env, keep_alive))
        self.args = [str(launcher.path), *launcher.options(n, keep_alive), "-n", str(n), "sh", str(script), *command]
        # What the launcher and Open MPI keep in files goes with the job's own folder, also after SIGKILL. Open MPI
        # (4: vader, 5: sm) names its shared memory by a short hash of the job, so that jobs running at once could meet
        # in /dev/shm.
        own = dict.fromkeys(("TMPDIR", *SHARED_MEMORY_FOLDERS), str(self._dir))
        environ = {**_environment(launcher), **launcher.environment(), **env, **own, MARK: self._mark}
        with open(self._dir / "mpirun", "wb") as output:
            self._process = subprocess.Popen(
                self.args,
                env=environ,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._texts = None

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.kill()

    def _read(self, name):
        if self._texts is not None:
            return self._texts.get(name, "")
        path = self._dir / name
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def stdout(self):
        return tuple(self._read(f"{rank}.out") for rank in range(self.n))

    @property
    def stderr(self):
        return tuple(self._read(f"{rank}.err") for rank in range(self.n))

    @property
    def returncodes(self):
        return tuple(int(text) if text else None for text in (self._read(f"{rank}.rc") for rank in range(self.n)))

    @property
    def launcher_output(self):
        return self._read("mpirun")

    def pid(self, rank, timeout_s=120):
        """The process id of a rank's program; waits until the rank has started."""
        deadline = time.monotonic() + timeout_s
        while not self._read(f"{rank}.pid").endswith("\n"):
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise AssertionError(f"rank {rank} never started\n{self.report()}")
            time.sleep(POLL_S)
        return int(self._read(f"{rank}.pid"))

    def wait(self, timeout_s):
        """Wait for the end; after timeout_s all ranks print their tracebacks and are killed: JobTimeout."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._abort()
            self.kill()
            raise JobTimeout(self, timeout_s) from None
        self.kill()
        return self

    def ends_within(self, seconds):
        """Whether the launcher has ended, or does so within this time."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _marked(self):
        """The pids of all processes of the job that still run."""
        return {int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _has_mark(pid, self._mark)}

    def _abort(self):
        """Let every rank print its traceback; the launcher is stopped, or it would kill the others first."""
        running = self._marked()
        ranks = {int(text) for text in (self._read(f"{rank}.pid") for rank in range(self.n)) if text} & running
        for pid in running - ranks:
            _signal(pid, signal.SIGSTOP)
        for pid in ranks:
            _signal(pid, signal.SIGABRT)
        deadline = time.monotonic() + TRACEBACK_S
        while ranks & self._marked() and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def kill(self):
        """Kill every process of the job that still runs, collect the output and remove the job's files."""
        if self._texts is not None:
            return
        deadline = time.monotonic() + KILL_S
        while pids := self._marked():
            if time.monotonic() > deadline:
                raise RuntimeError(f"processes {pids} of {self.args} do not die")
            for pid in pids:
                _signal(pid, signal.SIGKILL)
            time.sleep(POLL_S)
        self.returncode = self._process.wait(KILL_S)
        self._texts = {p.name: p.read_text(errors="replace") for p in self._dir.iterdir() if p.is_file()}
        shutil.rmtree(self._dir, ignore_errors=True)
        if self._keep_alive:
            codes = [-signal.SIGKILL if code is None else code for code in self.returncodes]
            self.returncode = next(filter(None, codes), 0)

    def check(self):
        """Raise AssertionError with everything printed unless the job ended with 0; returns the job."""
        if self.returncode != 0:
            raise AssertionError(self.report())
        return self

    def report(self):
        """Everything the job printed, for a person."""
        parts = [f"{shlex.join(self.args)}\nreturncode {self.returncode}"]
        for rank, (out, err) in enumerate(zip(self.stdout, self.stderr)):
            parts += [f"--- rank {rank} {kind}\n{text}" for kind, text in (("stdout", out), ("stderr", err)) if text]
        return "\n".join([*parts, f"--- mpirun\n{self.launcher_output}"])


def start(n, program, *args, env=None, per_rank_env=None, mpi=None, keep_alive=False, cwd=None):
    """Start a job of n ranks and return the running Job: `with start(...) as job: os.kill(job.pid(1), SIGINT)`.

    program      : str, Python code (dedented) | Path, a Python script | list of str, arguments of the interpreter
                   (["-m", "hetccl", "info"])
    args         : the program's own arguments
    env          : dict of str, variables of all ranks; HETCCL_* and the launchers' own are not inherited
    per_rank_env : list of n dicts, variables of one rank each (HETCCL_ISLAND)
    mpi          : str, a name of `launchers()`; default: "default"
    keep_alive   : the other ranks live on when one dies, and Job.returncodes tells how each one ended. They must
                   leave by os._exit: MPI's finalize would wait for the dead one. Without it mpirun kills all when
                   one fails.
    """
    if per_rank_env is not None and len(per_rank_env) != n:
        raise ValueError(f"per_rank_env has {len(per_rank_env)} entries for {n} ranks")
    found = launchers()
    if (mpi or "default") not in found:
        names = ", ".join(found) or "none"
        raise RuntimeError(f"no MPI named {mpi or 'default'!r} here (there are: {names}); run `make test`")
    if isinstance(program, Path):
        program = [str(program)]
    elif isinstance(program, str):
        program = ["-c", textwrap.dedent(program)]
    command = [sys.executable, *program, *map(str, args)]
    env = {**COMMON, **(env or {})}
    return Job(found[mpi or "default"], n, command, env, per_rank_env or [{}] * n, keep_alive, cwd or ROOT)


def mpirun(n, program, *args, timeout=180, check=True, **options):
    """Run a job of n ranks to its end and return the finished Job; program and options as for `start`.

    timeout : seconds, wall clock
    check   : AssertionError with all output when the job fails
    Raises  : JobTimeout (an AssertionError) with all output and each rank's traceback
    """
    with start(n, program, *args, **options) as job:
        job.wait(timeout)
    return job.check() if check else job


def inherited():
    """The variables of this process that a job may have, too."""
    # What starts ranks on other hosts is in the variables of the launchers.
    foreign = re.compile("HETCCL_") if HOSTS else FOREIGN
    return {name: value for name, value in os.environ.items() if not foreign.match(name)}


def _environment(launcher):
    kept = inherited()
    # Where MPI's library is not among what mpi4py's wheel looks for, its user says which MPI there is.
    if os.environ.get("MPI4PY_MPIABI") == launcher.kind:
        kept["MPI4PY_MPIABI"] = launcher.kind
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    # PYTHONFAULTHANDLER prints the Python stack on SIGABRT: what a hanging rank was doing.
    fixed = {"PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    return {**kept, **dict.fromkeys(THREADS, "1"), **fixed}


def _rank_script(folder, n, per_rank_env, keep_alive):
    """The shell script that starts a rank's program; Open MPI and MPICH name the rank's variable differently."""
    cases = [
        f"{rank}) " + " ".join(f"export {name}={shlex.quote(str(value))};" for name, value in env.items()) + " ;;"
        for rank, env in enumerate(per_rank_env)
        if env
    ]
    choose = ["case $rank in", *cases, "esac"] if cases else []
    lines = [
        "rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$PMIX_RANK}}",
        f"[ \"$rank\" -lt {n} ] || {{ echo 'no rank in the environment of this launcher' >&2; exit 97; }}",
        "ulimit -c 0",
        *choose,
        *(SHIELDED if keep_alive else DIRECT).format(folder=shlex.quote(str(folder)), n=n).splitlines(),
    ]
    return "\n".join(lines) + "\n"


def _has_mark(pid, mark):
    """True if the process carries the job's mark (bytes of a zombie's environment are gone: it needs no signal)."""
    try:
        return f"{MARK}={mark}".encode() in Path("/proc", pid, "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False


def _signal(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
