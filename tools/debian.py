"""Debian's packages unpacked in a folder and used from there: no root, and nothing outside the folder changes."""

import re
import shutil
import subprocess
from pathlib import Path


class FetchError(Exception):
    """The packages could not be fetched; the message is what apt-get or dpkg-deb said."""


def available():
    return shutil.which("apt-get") and shutil.which("dpkg-deb")


def fetch(names, folder):
    """Download packages, with what they depend on and this system lacks, and unpack them in folder/root.

    names  : list of str
    folder : Path, made if missing
    Returns: Path of folder/root
    Raises : FetchError
    """
    root, lists, archives = folder / "root", folder / "lists", folder / "archives"
    for path in (root, archives / "partial"):
        path.mkdir(parents=True, exist_ok=True)
    apt = _apt(folder, lists, archives)
    _run(*apt, "update")
    _run(*apt, "--yes", "--no-install-recommends", "--download-only", "install", *names)
    for package in sorted(archives.glob("*.deb")):
        _run("dpkg-deb", "-x", package, root)
    for path in (lists, archives):
        shutil.rmtree(path)
    # The linker script names its parts by absolute path; those that the system lacks are here.
    for script in root.glob("usr/lib/*/libc.so"):
        script.write_text(re.sub(r"(?<= )/usr/lib", f"{root}/usr/lib", script.read_text()))
    return root


def source(name, folder):
    """Download a source package, from where the system takes its packages, into folder. Raises FetchError.

    Returns: folder, which then holds its archives
    """
    lists, etc = folder / "lists", folder / "etc"
    (etc / "parts").mkdir(parents=True, exist_ok=True)
    # The system's own list may name binary packages alone: the same places have the sources.
    for path in (Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")):
        if path.suffix in (".list", ".sources") and path.is_file():
            text = re.sub(r"^Types:.*$", "Types: deb-src", path.read_text(), flags=re.M)
            (etc / "parts" / path.name).write_text(re.sub(r"^deb\s", "deb-src ", text, flags=re.M))
    apt = _apt(folder, lists, folder / "archives")
    apt += [f"-oDir::Etc::sourcelist={etc / 'none'}", f"-oDir::Etc::sourceparts={etc / 'parts'}"]
    _run(*apt, "update")
    _run(*apt, "--download-only", "source", name, where=folder)
    shutil.rmtree(lists)
    return folder


def write_script(path, environment, program):
    """Write a shell script that runs a program of the unpacked ones with what it needs to find its own parts."""
    lines = ["#!/bin/sh", *(f'export {name}="{value}"' for name, value in environment.items())]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, f'exec "{program}" "$@"', ""]))
    path.chmod(0o755)


def open_mpi(folder):
    """Fetch Debian's Open MPI 4: folder/bin/mpirun runs it, folder/lib has its library. Raises FetchError."""
    root = fetch(["openmpi-bin"], folder)
    usr = root / "usr"
    if not (usr / "bin" / "orterun").exists():
        raise FetchError("it is not Open MPI 4")
    (lib,) = usr.glob("lib/*-linux-gnu*")
    plugins, pmix = lib / "openmpi" / "lib" / "openmpi3", lib / "pmix2" / "lib"
    environment = {
        # Open MPI and PMIx were built for /usr: these tell them where each part is instead.
        "OPAL_PREFIX": usr,
        "OPAL_LIBDIR": lib,
        "OPAL_PKGLIBDIR": plugins,
        "OPAL_PKGDATADIR": usr / "share" / "openmpi",
        "OPAL_SYSCONFDIR": root / "etc",
        "OMPI_MCA_mca_base_component_path": plugins,
        "LD_LIBRARY_PATH": f"{root / 'lib' / lib.name}:{lib}:{lib / 'openmpi' / 'lib'}:{pmix}",
        # Plug-ins for networks whose libraries are missing are left out without a word, and ssh is not asked for.
        "OMPI_MCA_mca_base_component_show_load_errors": "0",
        "OMPI_MCA_plm_rsh_agent": "${OMPI_MCA_plm_rsh_agent:-sh}",
        # Where a remote shell looks for orted.
        "PATH": f"{usr / 'bin'}:$PATH",
    }
    if pmix.exists():  # else the system has this package
        environment |= {"PMIX_INSTALL_PREFIX": usr, "PMIX_MCA_mca_base_component_path": pmix / "pmix"}
    (folder / "lib").mkdir(exist_ok=True)
    for library in lib.glob("libmpi.so.40"):
        (folder / "lib" / library.name).symlink_to(library)
    write_script(folder / "bin" / "mpirun", environment, usr / "bin" / "orterun")


def _apt(folder, lists, archives):
    """apt-get with all that it writes in folder."""
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    options = {
        "Dir::State::Lists": lists,
        "Dir::Cache": folder,
        "Dir::Cache::archives": archives,
        "Debug::NoLocking": "true",
        "APT::Sandbox::User": "",
    }
    return ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]


def _run(*command, where=None):
    done = subprocess.run(
        command,
        cwd=where,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    if done.returncode != 0:
        raise FetchError(f"{' '.join(map(str, command))}\n{done.stdout}")
