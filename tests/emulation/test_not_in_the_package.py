"""What is installed with hetccl: the package alone, and nothing of the tests, the fakes and the emulation."""

import re
from pathlib import Path

import pytest

import launch

setuptools = pytest.importorskip("setuptools", minversion="77")
SOURCES = [path for folder in ("hetccl", "pyx", "include") for path in sorted((launch.ROOT / folder).rglob("*.*"))]
TEXTS = [path for path in SOURCES if path.suffix in (".py", ".pyi", ".pyx", ".pxd", ".h")]


@pytest.fixture
def installed(monkeypatch):
    """Function: (packages besides pyproject.toml's) -> the files that a wheel gets, below its root."""
    monkeypatch.chdir(launch.ROOT)

    def files(more=()):
        distribution = setuptools.Distribution({"script_name": "setup.py"})
        distribution.parse_config_files([str(launch.ROOT / "pyproject.toml")])
        distribution.packages = [*distribution.packages, *more]
        command = distribution.get_command_obj("build_py")
        command.build_lib = "wheel"
        command.ensure_finalized()
        extra = [name for _, names in distribution.data_files or () for name in names]
        return [Path(path).relative_to("wheel") for path in command.get_outputs(include_bytecode=False)] + extra

    return files


def test_wheel_holds_the_package_alone(installed):
    files = installed()
    assert Path("hetccl/comm.py") in files
    assert not [path for path in files if path.parts[0] != "hetccl"]


def test_a_wheel_with_tests_would_be_seen(installed):
    assert [path for path in installed(["tests.fakes"]) if path.parts[0] != "hetccl"]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_package_knows_no_emulation(path):
    assert not re.search(r"EMULATION_|emulated|FAKE_", path.read_text())
