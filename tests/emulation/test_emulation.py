"""The emulated HIP and RCCL themselves: what they export, how they are without a GPU, and AMD's own bindings on them.

All of it is emulated: no library of AMD's runs here, but AMD's Python bindings, which were compiled by AMD.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import amd_files
from amd import contract, pxd
from amd.need import fetched
from emulation import build, runs

HERE = Path(__file__).resolve().parent
PROGRAM_S = 120
FUNCTIONS = {name: function for function in contract.hip_functions() for name in function.names}
# What a release lacks, hetccl does without: HIP 5 has neither, and the emulation stands in for libamdhip64 alone.
LACKS = {
    5: {"hipLaunchHostFunc", "hipGetDevicePropertiesR0600", "hipMemGetHandleForAddressRange"},
    7: {"hipGetDeviceProperties"},
}
HSA = {"hsa_amd_portable_export_dmabuf"}
FOR_TESTS = {"hipMemcpy", "hipMallocManaged", "hipDeviceSynchronize"}
NO_DEVICE, INVALID_DEVICE = 100, 101
SYSTEM_ERROR, INVALID_USAGE = 2, 5


def built(make, *arguments):
    try:
        return make(*arguments)
    except build.Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module", params=[5, 7], ids=["HIP 5", "HIP 7"])
def emulated(request):
    """(HIP's release, the library's path)"""
    return request.param, built(build.hip, request.param)


@pytest.fixture(scope="module")
def rccl():
    return built(build.rccl)


def exported(path):
    """The functions and data that a library exports, by the names in its table of symbols."""
    if shutil.which("readelf") is None:
        pytest.skip("no readelf here")
    text = subprocess.run(["readelf", "--dyn-syms", "--wide", str(path)], capture_output=True, text=True, check=True)
    rows = [line.split() for line in text.stdout.splitlines()]
    return {row[7].partition("@")[0] for row in rows if len(row) > 7 and row[4] == "GLOBAL" and row[6].isdigit()}


def run(program, *arguments, **variables):
    """What a program of this folder prints as JSON; no NVIDIA library is found unless `variables` say where."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("EMULATION_", "HETCCL_"))}
    done = subprocess.run(
        [sys.executable, HERE / program, *map(str, arguments)],
        env={**environment, **{name: str(value) for name, value in variables.items()}},
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_exports_what_hetccl_and_the_tests_use(emulated):
    """No more: a function that nobody needs could only pretend to work."""
    release, library = emulated
    names = {name for name in exported(library) if name.startswith("hip")}
    assert names == (set(FUNCTIONS) - LACKS[release] - HSA) | FOR_TESTS


def test_says_that_it_is_emulated(emulated, rccl):
    # Not in this process: later tests would find the library there.
    program = "import ctypes, sys; l = ctypes.CDLL(sys.argv[1]); "
    program += "print((ctypes.c_char * 200).in_dll(l, 'hetccl_emulation').value.decode())"
    for library in (emulated[1], rccl):
        done = subprocess.run([sys.executable, "-c", program, library], capture_output=True, text=True, timeout=60)
        assert done.stdout.startswith("emulated "), done.stderr


def test_without_a_driver(emulated):
    """As AMD's own library answers where no AMD device is (tests/amd/test_debian_hip.py)."""
    release, library = emulated
    found = run("prog_probe.py", library, EMULATION_CUDA="/nonexistent")
    assert found["version"] // 10_000_000 == release and found["devices"] == 0
    assert found["answers"].pop("hipRuntimeGetVersion") == 0
    assert found["answers"].pop("hipGetDeviceCount") == NO_DEVICE
    assert set(found["answers"].values()) == {INVALID_DEVICE}


def test_exports_all_of_rccl(rccl):
    declared = set(re.findall(r"X\((\w+)\)", (HERE / "rccl_names.h").read_text()))
    assert {name for name in exported(rccl) if name.startswith("nccl")} == declared
    folder = fetched(amd_files.bindings) / "rocm" / "bindings"
    assert declared == set(pxd.Declarations(folder / "cyrccl.pxd").functions)


@pytest.fixture
def rocm(tmp_path, rccl):
    """A folder like ROCm's, with the emulated libraries in it."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libamdhip64.so").symlink_to(built(build.hip, 7))
    (tmp_path / "lib" / "librccl.so").symlink_to(rccl)
    return tmp_path


def test_amds_bindings_without_nccl(rocm):
    found = run(
        "prog_bindings.py",
        ROCM_PATH=rocm,
        PYTHONPATH=fetched(amd_files.bindings),
        EMULATION_CUDA="/nonexistent",
        EMULATION_NCCL="/nonexistent",
    )
    assert found["hipGetDeviceCount"] == [NO_DEVICE, 0]
    assert found["hipRuntimeGetVersion"][0] == 0
    assert found["ncclGetVersion"][0] == found["ncclGetUniqueId"] == SYSTEM_ERROR


def fakes():
    from fakes import build as fake

    try:
        cuda, nccl = fake.build("fakecuda"), fake.build("fakeccl")
    except RuntimeError as error:
        pytest.skip(str(error))
    return {"EMULATION_CUDA": cuda, "EMULATION_NCCL": nccl, "FAKE_CUDA_DEVICES": "3"}


def test_amds_bindings_on_the_fakes(rocm):
    found = run("prog_bindings.py", ROCM_PATH=rocm, PYTHONPATH=fetched(amd_files.bindings), **fakes())
    assert found["hipGetDeviceCount"] == [0, 3]
    assert found["ncclGetVersion"][0] == 0 and found["ncclGetVersion"][1] >= 21800
    assert found["ncclGetUniqueId"] == 0


def test_amds_bindings_on_nccl(rocm):
    """NVIDIA's NCCL answers its version and makes an id without a GPU."""
    spec = importlib.util.find_spec("nvidia.nccl") if importlib.util.find_spec("nvidia") else None
    if spec is None:
        pytest.skip("nvidia-nccl is not installed")
    library = Path(next(iter(spec.submodule_search_locations)), "lib", "libnccl.so.2")
    found = run("prog_bindings.py", ROCM_PATH=rocm, PYTHONPATH=fetched(amd_files.bindings), EMULATION_NCCL=library)
    assert found["ncclGetVersion"][0] == 0 and found["ncclGetVersion"][1] >= 21800
    assert found["ncclGetUniqueId"] == 0


def test_functions_that_nccl_lacks_are_refused(rccl):
    program = "import ctypes, sys; l = ctypes.CDLL(sys.argv[1]); print(l.ncclAlltoAllv(), l.ncclAllReduceWithBias())"
    done = subprocess.run(
        [sys.executable, "-c", program, rccl],
        env={**os.environ, **fakes()},
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
    )
    assert done.stdout.split() == [str(INVALID_USAGE)] * 2, done.stderr


def test_whole_table_of_the_runtime(emulated):
    """Every check of every runtime (tests/unit/runtime_checks.py) on hetccl's HIP table over the emulation."""
    # The fakes do all work at once: what waits for a later event would wait in vain.
    assert runs.whole_table(emulated[1], "hip-0 and test_table and not waits", **fakes()) >= 15


def test_launch_on_the_fakes(emulated, tmp_path):
    from fakes import build as fake

    image = tmp_path / "image"
    image.write_text("fake-module:" + fake.build("fakekernels"))
    runs.launch(emulated[1], image, **fakes())
