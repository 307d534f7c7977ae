"""What AMD published, fetched once per session; tests that need what cannot be had here are skipped and say why."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import amd_files
from amd import contract, pxd
from amd.need import fetched

VALUES_S = 60


@pytest.fixture(scope="session", autouse=True)
def needs_a_compiler():
    if contract.compiler() is None:
        pytest.skip("no C++ compiler here")


@pytest.fixture(scope="session")
def bindings():
    """The folder with AMD's package rocm.bindings."""
    return fetched(amd_files.bindings)


@pytest.fixture(scope="session")
def declarations(bindings):
    """All functions of HIP and RCCL as AMD's bindings declare them."""
    folder = bindings / "rocm" / "bindings"
    return pxd.Declarations(folder / "cyhip.pxd", folder / "cyrccl.pxd")


@pytest.fixture(scope="session")
def compiled(bindings):
    """Numbers and layouts in AMD's compiled modules: {"values": {name: int}, "structs": {name: {...}}}."""
    program = Path(__file__).with_name("prog_values.py")
    done = subprocess.run(
        [sys.executable, program],
        env={**os.environ, "PYTHONPATH": str(bindings)},
        capture_output=True,
        text=True,
        timeout=VALUES_S,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
