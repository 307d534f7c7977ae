"""hetccl's HIP table on AMD's own library: Debian's build of ROCm 5.2, on a machine without an AMD device.

Real code of AMD's, as far as it goes without a device: symbols, versions, the first calls' answers. Each is loaded in a
process of its own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import amd_files
import launch
from amd.need import fetched

HERE = Path(__file__).resolve().parent
PROBE = HERE.parent / "emulation" / "prog_probe.py"
PROGRAM_S = 60
KFD = Path("/dev/kfd")
NO_DEVICE, INVALID_DEVICE = 100, 101
# Newer than 5.2, as hetccl's list says of each. For the first two an older function does; without the others dma-buf
# cannot be had.
NEWER = {
    "hipLaunchHostFunc",
    "hipGetDevicePropertiesR0600",
    "hipMemGetHandleForAddressRange",
    "hsa_amd_portable_export_dmabuf",
}

pytestmark = pytest.mark.skipif(KFD.exists(), reason="this machine has AMD's kernel driver: the tests are of none")


@pytest.fixture(scope="module")
def library():
    return fetched(amd_files.debian_library)


@pytest.fixture(scope="module")
def variables(library):
    before = filter(None, [os.environ.get("LD_LIBRARY_PATH")])
    return {"LD_LIBRARY_PATH": os.pathsep.join([str(library.parent), *before])}


def run(program, library, variables):
    path = os.pathsep.join([str(launch.ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, program, library],
        env={**os.environ, **variables, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def found(library, variables):
    return run(HERE / "prog_load.py", library, variables)


def test_every_symbol_resolves_or_is_reported(library, found):
    assert Path(found["path"]).samefile(library)
    assert found["version"].startswith("5.2.")
    assert set(found["unresolved"]) == NEWER
    assert found["missing"] == ["dmabuf_export"]


def test_opening_without_a_device_is_a_clear_error(found):
    assert found["error"] == "GpuError" and found["code"] in (NO_DEVICE, INVALID_DEVICE)
    assert "No AMD device can be seen" in found["text"]


def test_what_amds_library_answers_without_a_device(library, variables):
    """The emulation without a driver answers the same (tests/emulation/test_emulation.py)."""
    answers = run(PROBE, library, variables)
    assert answers["devices"] == 0
    assert answers["answers"].pop("hipRuntimeGetVersion") == 0
    assert answers["answers"].pop("hipGetDeviceCount") == NO_DEVICE
    assert set(answers["answers"].values()) == {INVALID_DEVICE}


@pytest.mark.parametrize("ranks", [1, 2])
def test_host_buffers_are_undisturbed_and_hip_memory_is_refused(library, variables, ranks):
    job = launch.mpirun(
        ranks,
        HERE / "prog_no_device.py",
        env={
            **variables,
            "HETCCL_HIP_LIB": str(library),
            "HETCCL_TIMEOUT": "20",
            "PYTHONPATH": os.pathsep.join([str(launch.ROOT), str(HERE.parent)]),
        },
        timeout=PROGRAM_S,
    )
    for text in job.stdout:
        told = json.loads(text)
        assert told["right"] == [True, True, True]
        assert told["error"] == "GpuError" and told["code"] in (NO_DEVICE, INVALID_DEVICE), told
        assert "Allreduce" in told["text"] and "No AMD device can be seen" in told["text"]
