"""Device kernels on the fakes of CUDA, HIP and their run-time compilers: which code is loaded, and launches that run.

Both run-time compilers are fakes that give the source to the host's C++ compiler, so that a launch does the kernel's
work on the fake's memory. The kernels of a device are loaded once for a process: each test here has its own device.
"""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from device_kernel_cases import DTYPE_NUMBERS, OP_NUMBERS, host_result, rtc_command
from kernel_cases import DTYPES, bits, check, operands
from runtime_table import Table

from fakes import build
from hetccl import _cuda, _device_kernels, _hip
from hetccl._device_compiler import Compiler
from hetccl.errors import GpuError, LibraryNotFound

ROOT = Path(__file__).resolve().parents[2]
RUNTIMES = {"cuda": _cuda, "hip": _hip}
COMPILERS = {"cuda": "fakenvrtc", "hip": "fakehiprtc"}
ARCHS = {"cuda": "sm_90", "hip": "gfx942"}
NAMES = {"cuda": "NVRTC", "hip": "hipRTC"}
COUNT = 4099

every_runtime = pytest.mark.parametrize("name", RUNTIMES)


@pytest.fixture
def opened(monkeypatch):
    """Function: name -> the fake runtime, with the fake compiler's path."""

    def open_fakes(name):
        for variable in [variable for variable in os.environ if variable.startswith("FAKE_")]:
            monkeypatch.delenv(variable)
        monkeypatch.setenv("FAKE_RTC", rtc_command())
        try:
            runtime = RUNTIMES[name].open(build.build(f"fake{name}"))
            compiler = build.build(COMPILERS[name])
            build.kernels(_device_kernels.source())
        except RuntimeError as error:
            pytest.skip(str(error))
        if f"fake{name}" not in runtime.library.path:
            pytest.skip(f"this process has a real library, {runtime.library.path}")
        return runtime, compiler

    return open_fakes


def ahead(folder, runtime, arch, image=None):
    """Write a file of code built ahead, as the fake driver loads it."""
    image = image or b"fake-module:" + build.kernels(_device_kernels.source()).encode() + b"\0"
    path = Path(_device_kernels.built_ahead(runtime, arch, folder))
    path.write_bytes(image)
    return path


def reduced(kernels, op, dtype, nsources, stream=0, divisor=0):
    """A reduction in the fake device's memory: (result, what the host's loops give), as bytes."""
    sources = [bits(source[:COUNT]) for source in operands(dtype)[:nsources]]
    with Table(kernels.runtime, kernels.device) as table:
        device = [table.made("alloc", len(sources[0])) for _ in range(nsources + 1)]
        for address, source in zip(device[1:], sources):
            table.put(address, source, stream)
        numbers = OP_NUMBERS[op], DTYPE_NUMBERS[dtype]
        kernels.reduce(device[0], device[1:], COUNT, *numbers, stream=stream, divisor=divisor)
        got = table.get(device[0], len(sources[0]), stream)
        for address in device:
            table("dealloc", address)
    return got, host_result(op, dtype, sources, divisor)


@every_runtime
def test_compiled_at_run_time(name, opened, tmp_path):
    runtime, compiler = opened(name)
    kernels = _device_kernels.load(runtime, 0, tmp_path, compiler)
    assert kernels.arch == ARCHS[name]
    assert kernels.form.startswith(f"compiled for {ARCHS[name]} at run time by {NAMES[name]} 13.0")
    for op, dtype, nsources in (
        ("sum", "float32", 2),
        ("max", "bfloat16", 8),
        ("bxor", "int16", 3),
        ("lor", "bool", 1),
    ):
        got, want = reduced(kernels, op, dtype, nsources)
        check(op, dtype, got.view(DTYPES[dtype][1]), want.view(DTYPES[dtype][1]), f"{nsources} sources")


@every_runtime
def test_average_divides_on_its_last_step(name, opened, tmp_path):
    runtime, compiler = opened(name)
    kernels = _device_kernels.load(runtime, 0, tmp_path, compiler)
    for divisor in (0, 7):
        for dtype in ("int8", "float16", "complex64"):
            got, want = reduced(kernels, "avg", dtype, 3, divisor=divisor)
            check("avg", dtype, got.view(DTYPES[dtype][1]), want.view(DTYPES[dtype][1]), f"by {divisor}")


@every_runtime
def test_product_with_a_factor(name, opened, tmp_path):
    runtime, compiler = opened(name)
    kernels = _device_kernels.load(runtime, 0, tmp_path, compiler)
    values = operands("float64")[0][:COUNT]
    with Table(runtime) as table:
        device = table.made("alloc", values.nbytes)
        table.put(device, values, 0)
        kernels.scale(device, device, COUNT, DTYPE_NUMBERS["float64"], np.float64(1.5).tobytes())
        got = table.get(device, values.nbytes, 0).view("f8")
        table("dealloc", device)
    with np.errstate(all="ignore"):
        assert np.array_equal(got, values * 1.5, equal_nan=True)


@every_runtime
def test_built_ahead(name, opened, tmp_path):
    runtime, _ = opened(name)
    path = ahead(tmp_path, name, ARCHS[name])
    kernels = _device_kernels.load(runtime, 1, tmp_path, "/nowhere/librtc.so")
    assert kernels.form == f"built ahead, {path}" and kernels.device == 1
    got, want = reduced(kernels, "sum", "float32", 2)
    check("sum", "float32", got.view("f4"), want.view("f4"), "built ahead")
    assert _device_kernels.load(runtime, 1) is kernels, "loaded once for a device"


@every_runtime
def test_code_that_the_driver_refuses_is_compiled_anew(name, opened, tmp_path):
    runtime, compiler = opened(name)
    path = ahead(tmp_path, name, ARCHS[name], b"of another driver\0")
    kernels = _device_kernels.load(runtime, 2, tmp_path, compiler)
    assert kernels.form.startswith("compiled for") and str(path) in kernels.form
    got, want = reduced(kernels, "prod", "int32", 2)
    assert np.array_equal(got, want)


def test_code_of_another_source_is_not_loaded(opened, tmp_path, monkeypatch):
    """The file's name has the source's key."""
    runtime, compiler = opened("cuda")
    path = ahead(tmp_path, "cuda", "sm_90")
    path.rename(path.with_name("kernels-000000000000.fatbin"))
    monkeypatch.setenv("FAKE_RTC_FAIL", "6")
    with pytest.raises(LibraryNotFound, match="No such file"):
        _device_kernels.load(runtime, 3, tmp_path, compiler)


@every_runtime
def test_a_compilers_error_is_told(name, opened, tmp_path, monkeypatch):
    runtime, compiler = opened(name)
    monkeypatch.setenv("FAKE_RTC_FAIL", "6")
    with pytest.raises(LibraryNotFound) as caught:
        _device_kernels.load(runtime, 3, tmp_path, compiler)
    text = str(caught.value)
    assert "kernels(1): error: as the fake was told" in text and "RTC_ERROR_COMPILATION" in text
    assert str(tmp_path) in text and ARCHS[name] in text


@pytest.mark.parametrize("archs, option", [("75,80,90", "sm_90"), ("75,80", "compute_80"), ("100", "compute_100")])
def test_what_nvrtc_is_asked_for(archs, option, opened, monkeypatch):
    """An architecture that it does not know yet gets PTX of the latest before."""
    _, path = opened("cuda")
    monkeypatch.setenv("FAKE_RTC_ARCHS", archs)
    compiler = Compiler.open("cuda", path)
    image, target = compiler.compile(_device_kernels.source().encode(), "sm_90")
    options = ctypes.CDLL(compiler.library.path).nvrtcFakeOptions
    options.restype = ctypes.c_char_p
    asked = options().decode().split()
    assert target == option and f"--gpu-architecture={option}" in asked and "--fmad=false" in asked
    assert image.startswith(b"fake-module:") and compiler.name == "NVRTC" and compiler.version() == "13.0"


def test_what_hiprtc_is_asked_for(opened):
    _, path = opened("hip")
    compiler = Compiler.open("hip", path)
    assert (
        compiler.architectures() == () and compiler.compile(_device_kernels.source().encode(), "gfx90a")[1] == "gfx90a"
    )
    options = ctypes.CDLL(compiler.library.path).hiprtcFakeOptions
    options.restype = ctypes.c_char_p
    assert {"--offload-arch=gfx90a", "-ffp-contract=off"} <= set(options().decode().split())


@pytest.mark.parametrize(
    "given, error",
    [
        (dict(sources=[]), ValueError),
        (dict(sources=[64] * 9), ValueError),
        (dict(op=OP_NUMBERS["max"], dtype=DTYPE_NUMBERS["complex64"]), TypeError),
        (dict(dtype=DTYPE_NUMBERS["longdouble"]), TypeError),
        (dict(op=OP_NUMBERS["avg"], dtype=DTYPE_NUMBERS["bool"]), TypeError),
        (dict(op=99), TypeError),
        (dict(divisor=-1), ValueError),
        (dict(divisor=2), ValueError),
    ],
    ids=str,
)
def test_bad_arguments(given, error, opened, tmp_path):
    runtime, compiler = opened("cuda")
    kernels = _device_kernels.load(runtime, 0, tmp_path, compiler)
    arguments = dict(out=64, sources=[64, 128], count=1, op=OP_NUMBERS["sum"], dtype=DTYPE_NUMBERS["float32"]) | given
    with pytest.raises(error):
        kernels.reduce(**arguments)


def test_bad_factor(opened, tmp_path):
    runtime, compiler = opened("cuda")
    kernels = _device_kernels.load(runtime, 0, tmp_path, compiler)
    with pytest.raises(ValueError, match="factor: 3 bytes"):
        kernels.scale(64, 64, 1, DTYPE_NUMBERS["float32"], b"abc")
    with pytest.raises(TypeError):
        kernels.scale(64, 64, 1, DTYPE_NUMBERS["bool"], b"a")


def test_no_elements_launch_nothing(opened, tmp_path, monkeypatch):
    """Not even with addresses that are none; and what launching answers is an error by name."""
    runtime, compiler = opened("cuda")
    kernels = _device_kernels.load(runtime, 0, tmp_path, compiler)
    monkeypatch.setenv("FAKE_CUDA_FAIL", "cuLaunchKernel=700")
    kernels.reduce(0, [0, 0], 0, OP_NUMBERS["sum"], DTYPE_NUMBERS["float32"])
    with pytest.raises(GpuError, match="cuLaunchKernel"):
        kernels.reduce(64, [64], 1, OP_NUMBERS["sum"], DTYPE_NUMBERS["float32"])


def test_not_made_by_hand():
    for kind in (_device_kernels.DeviceKernels, Compiler):
        with pytest.raises(TypeError):
            kind()


def test_a_launch_waits_for_its_stream(opened, tmp_path, monkeypatch):
    """On a queue of the fake's: the kernel runs behind a wait for a value that is written after the launch."""
    runtime, compiler = opened("cuda")
    kernels = _device_kernels.load(runtime, 0, tmp_path, compiler)
    monkeypatch.setenv("FAKE_CUDA_QUEUES", "2")
    with Table(runtime) as table:
        stream = table.made("stream_create")
        address, memory = table.pinned(3 * 64)
        words = memory.view("u4")
        words[:] = 5
        words[:16] = 0  # the flag's line
        table("stream_wait32", stream, address, 1)
        line = address + 64
        kernels.reduce(line, [line, address + 128], 16, OP_NUMBERS["sum"], DTYPE_NUMBERS["uint32"], stream=stream)
        assert words[16] == 5, "launched behind a wait, it has not run"
        words[0] = 1
        table("stream_synchronize", stream)
        assert (words[16:32] == 10).all() and (words[32:] == 5).all()
        table("stream_destroy", stream)
        table("host_dealloc", address)


NOTHING = """
import sys
from hetccl import _cuda, _device_kernels
from hetccl.errors import LibraryNotFound
runtime = _cuda.open(sys.argv[1])
try:
    _device_kernels.load(runtime, 0, "/nowhere", "/nowhere/libnvrtc.so")
except LibraryNotFound as error:
    print(error)
"""


def test_neither_code_nor_compiler(opened):
    """In a process of its own: no run-time compiler is loaded there."""
    opened("cuda")
    command = [sys.executable, "-c", NOTHING, build.build("fakecuda")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert "/nowhere/kernels-" in done.stdout and "/nowhere/libnvrtc.so (override)" in done.stdout, done.stderr
