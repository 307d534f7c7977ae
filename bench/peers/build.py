"""Build a CUDA-aware Open MPI with UCX in build/peers, for bench/peers/compare.py: no wheel and no package has one.

    python bench/peers/build.py [--into build/peers] [--jobs N]

Sources: the distribution's source package of openmpi (apt-get, no root), UCX from the wheel libucx-cu13, CUDA's
headers from the wheel nvidia-cuda-runtime. No GPU is needed to build. Tried with Debian 12, whose Open MPI is 4.1.4.
`build/peers/bin/mpirun` starts jobs with it, and `build/peers/bin/python` is this interpreter with mpi4py led to it.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import debian  # noqa: E402 - found by the line above

WHEELS = ("libucx-cu13>=1.20,<2", "nvidia-cuda-runtime>=13,<14")
# What is bundled is used, so that nothing but a compiler is needed; what a comparison on GPUs does not use is left out.
CONFIGURE = (
    *("--disable-mpi-fortran", "--disable-oshmem", "--disable-io-romio", "--disable-man-pages"),
    *("--with-hwloc=internal", "--with-libevent=internal", "--with-pmix=internal"),
    *("--without-verbs", "--without-psm2", "--without-ofi", "--disable-debug", "--disable-static"),
)


class BuildError(Exception):
    """A step failed; the message says which, and where its output is."""


def main():
    """Returns the exit status: 1 if a step failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=ROOT / "build" / "peers", metavar="FOLDER", help="(build/peers)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="(all cores)")
    args = parser.parse_args()
    if not debian.available():
        parser.error("apt-get and dpkg-deb are needed: the sources are a Debian package")
    folder = args.into.resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        wheels = unpack_wheels(folder)
        source = unpack_source(folder)
        compile_it(folder, source, wheels, args.jobs)
        write_programs(folder, wheels)
        print(f"hetccl: {check(folder)}")
    except (BuildError, debian.FetchError, OSError) as error:
        print(f"hetccl: {error}", file=sys.stderr)
        return 1
    return 0


def unpack_wheels(folder):
    """The folders of UCX and of CUDA's headers: (Path, Path)."""
    place = folder / "wheels"
    if not (place / "done").exists():
        step(folder, "wheels", [sys.executable, "-m", "pip", "install", "--no-deps", "--target", place, *WHEELS])
        # libtool would follow these to the folders of the machine that built the wheel.
        for archive in place.glob("libucx/lib/**/*.la"):
            archive.unlink()
        (place / "done").touch()
    headers = next(place.glob("nvidia/**/include/cuda.h"), None)
    if headers is None:
        raise BuildError(f"no cuda.h in {place}")
    return place / "libucx", headers.parent.parent


def unpack_source(folder):
    """The folder of Open MPI's sources."""
    place = folder / "source"
    if not (place / "configure").exists():
        (archive,) = debian.source("openmpi", folder / "package").glob("openmpi_*.orig.tar.*")
        place.mkdir(exist_ok=True)
        step(folder, "unpack", ["tar", "-xf", archive, "-C", place, "--strip-components=1"])
    return place


def compile_it(folder, source, wheels, jobs):
    """Configure, make and install in folder/openmpi."""
    ucx, cuda = wheels
    prefix = folder / "openmpi"
    if (prefix / "bin" / "mpirun").exists():
        return
    work = folder / "work"
    work.mkdir(exist_ok=True)
    options = [f"--prefix={prefix}", f"--with-ucx={ucx}", f"--with-cuda={cuda}", *CONFIGURE]
    # Where UCX lies is written into the libraries: the wheel has no other way to be found.
    step(folder, "configure", [source / "configure", *options, f"LDFLAGS=-Wl,-rpath,{ucx / 'lib'}"], work)
    step(folder, "make", ["make", f"-j{jobs}"], work)
    step(folder, "install", ["make", "install"], work)


def write_programs(folder, wheels):
    """bin/mpirun and bin/python, which set what each needs."""
    prefix, ucx = folder / "openmpi", wheels[0]
    environment = {
        "OPAL_PREFIX": prefix,
        "LD_LIBRARY_PATH": f"{prefix / 'lib'}:{ucx / 'lib'}:$LD_LIBRARY_PATH",
        "MPI4PY_LIBMPI": prefix / "lib" / "libmpi.so.40",
        "OMPI_MCA_plm_rsh_agent": "sh",
        # It may also serve jobs on host buffers, on machines without a GPU.
        "OMPI_MCA_opal_warn_on_missing_libcuda": "0",
    }
    debian.write_script(folder / "bin" / "mpirun", environment, prefix / "bin" / "mpirun")
    debian.write_script(folder / "bin" / "python", environment, sys.executable)


def check(folder):
    """What has been built, as a line: its version and whether it was built for CUDA and UCX."""
    told = subprocess.run(
        [folder / "openmpi" / "bin" / "ompi_info", "--parsable", "--all"], capture_output=True, text=True
    )
    version = re.search(r"^ompi:version:full:(.*)$", told.stdout, re.M)
    wanted = ("mpi_built_with_cuda_support:value:true", "mca:pml:ucx:version")
    if told.returncode or version is None or not all(text in told.stdout for text in wanted):
        raise BuildError(f"{folder / 'openmpi'}: not an Open MPI with CUDA and UCX: {told.stderr.strip()}")
    return f"Open MPI {version[1]} with CUDA and UCX: {folder / 'bin' / 'mpirun'}"


def step(folder, name, command, where=None):
    """Run a command; its output goes to folder/NAME.log. Raises BuildError."""
    print(f"hetccl: {name} (output in {folder / f'{name}.log'})", flush=True)
    with (folder / f"{name}.log").open("w") as log:
        log.write(f"+ {shlex.join(map(str, command))}\n")
        log.flush()
        done = subprocess.run(command, cwd=where, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    if done.returncode:
        lines = (folder / f"{name}.log").read_text().splitlines()
        raise BuildError("\n".join([*lines[-20:], f"{name} failed: {folder / f'{name}.log'}"]))


if __name__ == "__main__":
    sys.exit(main())
