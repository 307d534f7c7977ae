"""Gets mpi4py's own tests: the `test` folder of the source archive of the mpi4py that is installed.

They are downloaded once, through pip and whatever index it is configured for (pip checks the archive's hash), into
.mpi/, which is no part of the repository.
"""

import importlib.metadata
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import launch

DOWNLOAD_S = 180


class FetchError(Exception):
    """The archive cannot be had; the message says why."""


def version():
    """The version of mpi4py that is installed, as text."""
    return importlib.metadata.version("mpi4py")


def tests_folder():
    """The folder with the test_*.py files, fetched if they are not there yet.

    Returns: Path
    Raises : FetchError
    """
    folder = launch.ROOT / ".mpi" / f"mpi4py-{version()}"
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            _unpack(_download(Path(scratch)), Path(scratch, "tests"))
            Path(scratch, "tests").rename(folder)
    return folder


def _download(into):
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps", "--no-binary", "mpi4py"]
    command += ["--dest", str(into), f"mpi4py=={version()}"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DOWNLOAD_S)
    except subprocess.TimeoutExpired:
        raise FetchError(f"pip has not answered in {DOWNLOAD_S} s") from None
    found = list(into.glob("mpi4py-*.tar.gz"))
    if done.returncode != 0 or not found:
        said = (done.stderr.strip() or "it found no archive").splitlines()[-1]
        raise FetchError(f"pip cannot download the source of mpi4py {version()}: {said}")
    return found[0]


def _unpack(archive, folder):
    """Copy the files of the archive's test folder; it has no folders inside."""
    folder.mkdir()
    with tarfile.open(archive) as tar:
        for member in tar:
            path = Path(member.name)
            if member.isfile() and path.suffix == ".py" and path.parts[1:-1] == ("test",):
                with tar.extractfile(member) as source, open(folder / path.name, "wb") as target:
                    shutil.copyfileobj(source, target)
    if not list(folder.glob("test_*.py")):
        raise FetchError(f"{archive.name} has no test/test_*.py")
