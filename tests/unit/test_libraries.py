"""The libraries opened at run time: how their versions are read, and where they are found."""

import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from hetccl import config, libraries
from hetccl.errors import LibraryNotFound

SETTINGS = config.Config()
REPLACEABLE = [known for known in libraries.LIBRARIES if known.setting]
CC = shutil.which("cc") or shutil.which("gcc")
needs_compiler = pytest.mark.skipif(CC is None, reason="no C compiler to make the library under test")


def build(folder, soname, body="int value(void) { return 1; }"):
    """Compile a library; returns its path. Its name must be new: the loader keeps what it has opened."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fake.c").write_text(body)
    command = [CC, "-shared", "-fPIC", f"-Wl,-soname,{soname}", "-o", folder / soname, folder / "fake.c"]
    subprocess.run(command, check=True)
    return folder / soname


@pytest.fixture
def soname(request):
    return f"libfake{abs(hash(request.node.nodeid))}.so.2"


@pytest.mark.parametrize(
    "name, number, text",
    [
        ("NCCL", 22703, "2.27.3"),
        ("RCCL", 22505, "2.25.5"),
        ("CUDA runtime", 12080, "12.8"),
        ("CUDA driver", 13000, "13.0"),
        ("HIP", 60443484, "6.4.43484"),
        ("oneCCL", 20220200, "2022.2.0"),
    ],
)
def test_versions_are_decoded(name, number, text):
    (known,) = (known for known in libraries.LIBRARIES if known.name == name)
    assert known.version_text(number) == text


@needs_compiler
@pytest.mark.parametrize(
    "body, text",
    [
        ("int ncclGetVersion(int *v) { *v = 22703; return 0; }", "2.27.3"),
        ("int ncclGetVersion(int *v) { *v = 22703; return 1; }", ""),
        ("int somethingElse(void) { return 0; }", ""),
    ],
)
def test_a_wheel_library_is_found_with_its_version(tmp_path, monkeypatch, soname, body, text):
    path = build(tmp_path / "site-packages/nvidia/nccl/lib", soname, body)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site-packages"), *sys.path])
    known = libraries.Known("NCCL", (soname,), "ncclGetVersion", (10000, 100, 1))
    library = known.open(SETTINGS)
    assert (library.origin, library.path) == ("wheel", str(path))
    assert known.version(library) == text


@needs_compiler
def test_the_users_library_comes_before_a_wheels(tmp_path, monkeypatch, soname):
    build(tmp_path / "site-packages/nvidia/nccl/lib", soname)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site-packages"), *sys.path])
    path = build(tmp_path / "mine", soname)
    known = libraries.Known("NCCL", (soname,), setting="nccl_lib")
    library = known.open(config.load({"HETCCL_NCCL_LIB": str(path)}))
    assert (library.origin, library.path) == ("override", str(path))


@pytest.mark.parametrize(
    "known", [known for known in libraries.LIBRARIES if known.setting], ids=lambda known: known.name
)
def test_each_variable_names_its_own_library(known):
    """A name that no loader finds is the only one tried; a copy that the process holds would come first."""
    variable = f"HETCCL_{known.setting.upper()}"
    renamed = replace(known, sonames=("libnone.so.0",))
    with pytest.raises(LibraryNotFound, match="/nowhere/of/mine.so"):
        renamed.open(config.load({variable: "/nowhere/of/mine.so"}))
    others = {f"HETCCL_{other.setting.upper()}": "/nowhere/else.so" for other in REPLACEABLE}
    del others[variable]
    assert known.override(config.load(others)) is None


@pytest.mark.parametrize("name, first, last", [("HIP", "libamdhip64.so.7", "libamdhip64.so")])
def test_newer_releases_come_first(name, first, last):
    (known,) = (known for known in libraries.LIBRARIES if known.name == name)
    assert (known.sonames[0], known.sonames[-1]) == (first, last)
    assert "libamdhip64.so.5" in known.sonames
