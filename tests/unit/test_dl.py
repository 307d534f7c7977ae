"""Libraries are found in the documented order, and say where they came from and what they lack."""

import ctypes
import os
import shutil
import subprocess
import sys

import pytest

from hetccl._dl import Library
from hetccl.errors import LibraryNotFound, SymbolNotFound

CC = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
pytestmark = pytest.mark.skipif(CC is None, reason="no C compiler to make the libraries under test")


def build(folder, soname, value, source="int number(void) { return VALUE; }", *flags):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lib.c").write_text(source)
    path = folder / soname
    options = ["-shared", "-fPIC", f"-DVALUE={value}", f"-Wl,-soname,{soname}", *flags]
    subprocess.run([CC, *options, "-o", path, folder / "lib.c"], check=True)
    return str(path)


@pytest.fixture
def soname(request):
    """A name of its own for each test: a library stays loaded for the life of the process."""
    return f"libhetccl_{abs(hash(request.node.nodeid))}.so.1"


def number(library, name="number", version=None):
    return ctypes.CFUNCTYPE(ctypes.c_int)(library.address(name, version))()


def test_what_the_process_has_comes_first():
    library = Library.open(["libc.so.6"], override="/nowhere/libc.so.6")
    assert library.origin == "process"
    assert os.path.isfile(library.path)
    assert number(library, "getpid") == os.getpid()


def test_override(tmp_path, soname):
    path = build(tmp_path / "own", soname, 11)
    build(tmp_path / "wheel", soname, 22)
    library = Library.open([soname], override=path, folders=[str(tmp_path / "wheel")])
    assert (library.origin, library.path, number(library)) == ("override", path, 11)


def test_a_loaded_copy_beats_the_override(tmp_path, soname):
    first = Library.open([soname], override=build(tmp_path / "a", soname, 1))
    second = Library.open([soname], override=build(tmp_path / "b", soname, 2))
    assert (second.origin, second.path, number(second)) == ("process", first.path, 1)


def test_a_bad_override_is_not_passed_over(tmp_path, soname):
    build(tmp_path, soname, 5)
    with pytest.raises(LibraryNotFound) as caught:
        Library.open([soname], override="/nowhere/x.so", folders=[str(tmp_path)])
    assert "/nowhere/x.so (override)" in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_folders_in_order_and_broken_files_passed_over(tmp_path, soname):
    broken = tmp_path / "broken" / soname
    broken.parent.mkdir()
    broken.write_text("not a library")
    path = build(tmp_path / "good", soname, 33)
    build(tmp_path / "late", soname, 44)
    folders = [str(tmp_path / name) for name in ("empty", "broken", "good", "late")]
    library = Library.open([soname], folders=folders)
    assert (library.origin, library.path, number(library)) == ("wheel", path, 33)


def test_sonames_in_order(tmp_path, soname):
    path = build(tmp_path, soname, 6)
    library = Library.open([soname + ".newer", soname], folders=[str(tmp_path)])
    assert library.path == path


def test_system_search(tmp_path, soname):
    path = build(tmp_path, soname, 7)
    code = f"from hetccl._dl import Library; x = Library.open([{soname!r}]); print(x.origin, x.path)"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["system", path]


def test_not_found_lists_every_path_with_the_reason(tmp_path):
    (tmp_path / "libnone.so.2").write_text("not a library, though longer than an ELF header\n" * 9)
    with pytest.raises(LibraryNotFound) as caught:
        Library.open(["libnone.so.2", "libnone.so.1"], folders=[str(tmp_path)])
    lines = str(caught.value).splitlines()[1:]
    where = [line.split("):")[0].strip() for line in lines]
    names = ["libnone.so.2", "libnone.so.1"]
    assert where == (
        [f"{name} (process" for name in names]
        + [f"{tmp_path}/{name} (wheel" for name in names]
        + [f"{name} (system" for name in names]
    )
    assert "ELF" in lines[2]
    assert isinstance(caught.value, ImportError)


VERSIONED = """
int number_old(void) { return 1; }
int number_new(void) { return 2; }
__asm__(".symver number_old, number@TEST_1.0");
__asm__(".symver number_new, number@@TEST_1.1");
"""


def test_symbol_versions(tmp_path, soname):
    script = tmp_path / "versions"
    script.write_text("TEST_1.0 { global: number; local: *; }; TEST_1.1 { global: number; } TEST_1.0;")
    path = build(tmp_path, soname, 0, VERSIONED, f"-Wl,--version-script={script}")
    library = Library.open([soname], override=path)
    assert [number(library, version=v) for v in ("TEST_1.0", "TEST_1.1", None)] == [1, 2, 2]
    assert library.has("number", "TEST_1.0") and not library.has("number", "TEST_9.9")
    with pytest.raises(SymbolNotFound) as caught:
        library.address("number", "TEST_9.9")
    assert "number@TEST_9.9" in str(caught.value) and path in str(caught.value)


def test_missing_symbol(tmp_path, soname):
    library = Library.open([soname], override=build(tmp_path, soname, 0))
    assert library.has("number") and not library.has("letter")
    with pytest.raises(SymbolNotFound) as caught:
        library.address("letter")
    assert caught.value.call == "letter"


def test_made_by_open_only():
    with pytest.raises(TypeError):
        Library()
    with pytest.raises(TypeError):
        Library.open("libc.so.6")
