"""Which code for devices an installation has, and what is said of it; the code itself: tests/kernels."""

import struct
from functools import partial
from pathlib import Path

import pytest

import device_kernels as tool
import launch
from hetccl import _device_kernels, kernels

NONE = kernels.Kernels("cuda", (), "", "libnvrtc.so.13 not found")


def fatbin(*entries):
    """A fat binary of entries (kind, architecture's number), laid out as nvcc's are."""
    bodies = b"".join(
        struct.pack("<HHIQ12xI", kind, 0x101, 64, 8, arch) + bytes(32) + b"a" * 8 for kind, arch in entries
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(bodies)) + bodies


def test_source_inside_the_package_is_the_trees():
    assert _device_kernels.source() == tool.source()
    assert tool.key(tool.source()) == _device_kernels.KEY


def test_each_header_is_in_the_source_once():
    assert _device_kernels.source().count("#ifndef HETCCL_REDUCE_OPS_H") == 1
    assert '#include "hetccl' not in _device_kernels.source()


def test_header_is_the_source(tmp_path):
    """As C reads the string."""
    text = 'a "quoted" \\n line\n\ttab\n'
    lines = tool.header(text).partition("[] =\n")[2].rstrip(";\n").splitlines()
    assert "".join(line.strip()[1:-1] for line in lines).encode().decode("unicode_escape") == text
    path = tmp_path / "header.h"
    tool.write_header(path)
    first = path.stat().st_mtime_ns
    tool.write_header(path)
    assert path.stat().st_mtime_ns == first, "a header that has not changed compiles nothing again"


def test_built_ahead(tmp_path):
    assert kernels.built_ahead("cuda", tmp_path) == kernels.built_ahead("hip", tmp_path) == ()
    image = fatbin((kernels.FATBIN_CODE, 90), (kernels.FATBIN_PTX, 75), (kernels.FATBIN_CODE, 75))
    Path(_device_kernels.built_ahead("cuda", "sm_90", tmp_path)).write_bytes(image)
    for arch in ("gfx942", "gfx90a"):
        Path(_device_kernels.built_ahead("hip", arch, tmp_path)).touch()
    Path(tmp_path, "kernels-000000000000-gfx906.co").touch()
    assert kernels.built_ahead("cuda", tmp_path) == ("sm_75", "sm_90", "PTX")
    assert kernels.built_ahead("hip", tmp_path) == ("gfx90a", "gfx942")
    assert kernels.describe("cuda", tmp_path).ahead == ("sm_75", "sm_90", "PTX")


@pytest.mark.parametrize("damage", [b"", b"\x7fELF" + bytes(60), fatbin((2, 90))[:-1], fatbin((2, 90)) + b"x"], ids=len)
def test_a_file_that_is_no_fat_binary(damage, tmp_path):
    with pytest.raises(ValueError):
        kernels.fatbin_entries(damage)
    Path(_device_kernels.built_ahead("cuda", "", tmp_path)).write_bytes(damage)
    assert kernels.built_ahead("cuda", tmp_path) == ()


@pytest.mark.parametrize(
    "ahead, compiler, arch, words",
    [
        (("sm_80", "sm_90", "PTX"), "", "sm_90", "built ahead for sm_90"),
        (("sm_80", "sm_86", "PTX"), "", "sm_89", "built ahead for sm_86, which runs on sm_89"),
        (("sm_80", "sm_86", "PTX"), "", "sm_87", "as PTX"),
        (("sm_80", "PTX"), "", "sm_120", "as PTX, from which the driver makes code for sm_120"),
        (("sm_90",), "NVRTC 13.0", "sm_80", "compiled for sm_80 at run time by NVRTC 13.0"),
        ((), "", "sm_80", "none for sm_80: not built ahead, and no run-time compiler (libnvrtc"),
        (("gfx906",), "", "gfx942", "none for gfx942"),
        (("gfx942",), "", "gfx942", "built ahead for gfx942"),
        (("gfx942",), "hipRTC 7.1", "gfx950", "compiled for gfx950 at run time by hipRTC 7.1"),
    ],
)
def test_what_serves_a_device(ahead, compiler, arch, words):
    assert words in kernels.serving(NONE._replace(ahead=ahead, compiler=compiler), arch)


def test_a_wheel_takes_along_what_was_built(tmp_path, monkeypatch):
    """And no code of another source."""
    setuptools = pytest.importorskip("setuptools")
    pytest.importorskip("Cython")
    monkeypatch.chdir(launch.ROOT)
    from setup import BuildWithKernels

    names = {f"kernels-{_device_kernels.KEY}.fatbin", f"kernels-{_device_kernels.KEY}-gfx942.co"}
    code = tmp_path / "code"
    code.mkdir()
    for name in [*names, "kernels-000000000000.fatbin"]:
        (code / name).write_text(name)
    monkeypatch.setattr(tool, "built", partial(tool.built, code))
    command = BuildWithKernels(setuptools.Distribution({"packages": []}))
    command.ensure_finalized()
    command.build_lib, command.editable_mode = str(tmp_path / "wheel"), False
    command.run()
    assert {path.name for path in (tmp_path / "wheel" / "hetccl" / "device_code").iterdir()} == names
