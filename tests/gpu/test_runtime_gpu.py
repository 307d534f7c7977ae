"""Every function of the runtimes' table on real GPUs (the checks of tests/unit/runtime_checks.py), and what only real
ones can show. Skipped, with the reason, where there is no GPU."""

import ctypes
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import runtime_checks
from runtime_table import Table

from hetccl import _cuda, _hip
from hetccl.errors import GpuError, LibraryNotFound
from hetccl.libraries import wheel_folders

PTX = Path(__file__).with_name("increment.ptx").read_bytes() + b"\0"
OPEN = {"cuda": (_cuda, "HETCCL_CUDA_LIB"), "hip": (_hip, "HETCCL_HIP_LIB")}


def opened(name):
    module, variable = OPEN[name]
    try:
        runtime = module.open(os.environ.get(variable), wheel_folders())
    except (LibraryNotFound, GpuError) as error:
        pytest.skip(f"no {name} device here: {str(error).splitlines()[0]}")
    if "fakecuda" in runtime.library.path or "fakehip" in runtime.library.path:
        pytest.skip(f"this process has a fake driver: {runtime.library.path}")
    return runtime


@pytest.fixture(params=["cuda-0", "cuda-1", "hip-0", "hip-1"])
def table(request):
    name, _, device = request.param.partition("-")
    runtime = opened(name)
    if int(device) >= runtime.device_count():
        pytest.skip(f"only {runtime.device_count()} {name} device")
    with Table(runtime, int(device)) as table:
        yield table


@pytest.fixture
def stream(table):
    stream = table.made("stream_create")
    yield stream
    table("stream_synchronize", stream)
    table("stream_destroy", stream)


@pytest.mark.parametrize("check", [*runtime_checks.CHECKS, runtime_checks.waits], ids=lambda check: check.__name__)
def test_table(table, stream, check):
    lacks = [name for name in getattr(check, "needs", ()) if not table.runtime.supports(name)]
    if lacks:
        pytest.skip(f"{table.runtime.library.path} has no {', '.join(lacks)}")
    check(table, stream)


def test_launch(table, stream):
    if table.runtime.name != "cuda":
        pytest.skip("the image is PTX")
    runtime_checks.launches(table, stream, PTX)


def test_values_wrap_around(table, stream):
    if table.runtime.name != "cuda":
        pytest.skip("HIP compares plain numbers")
    runtime_checks.values_wrap_around(table, stream)


def test_capture(table, stream):
    """The table sees that a stream is captured into a graph."""
    if table.runtime.name != "cuda":
        pytest.skip("the capture is begun with CUDA's function")
    library, capturing, graph = ctypes.CDLL(table.runtime.library.path), ctypes.c_int(), ctypes.c_void_p()
    relaxed = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
    assert library.cuStreamBeginCapture_v2(ctypes.c_void_p(stream), relaxed) == 0
    table("stream_capturing", stream, ctypes.byref(capturing))
    refused = table.code("stream_synchronize", stream)
    library.cuStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph))
    assert capturing.value == 1
    assert refused == 900
    table("stream_capturing", stream, ctypes.byref(capturing))
    assert capturing.value == 0


def test_nothing_is_missing(table):
    allowed = set() if table.runtime.name == "cuda" else {"dmabuf_export"}  # HIP 5.2 has none
    assert set(table.runtime.missing()) <= allowed


@pytest.mark.parametrize("width, value", [(1, 0x5A), (4, 0x12345678), (8, 0x0123456789ABCDEF)])
def test_fill_beyond_4_gib(table, stream, width, value):
    nbytes = (1 << 32) + (1 << 20)
    device = ctypes.c_void_p()
    if table.code("alloc", ctypes.byref(device), nbytes + 64) != 0:
        pytest.skip("not enough device memory")
    table("fill_async", device.value + nbytes, 0x5C, 1, 64, stream)
    table("fill_async", device.value, value, width, nbytes // width, stream)
    expected = np.full(4096 // width, value, f"u{width}").view("u1")
    for offset in (0, 1 << 31, (1 << 32) - 4096, 1 << 32, nbytes - 4096):
        assert np.array_equal(table.get(device.value + offset, 4096, stream), expected), offset
    assert (table.get(device.value + nbytes, 64, stream) == 0x5C).all()
    table("dealloc", device)


def test_pointer_in_a_thread_without_a_device(table):
    """What an array's memory is gets asked before any device is current."""
    device = table.made("alloc", 4096)
    found = []
    thread = threading.Thread(target=lambda: found.append(table.runtime.pointer(device + 5)))
    thread.start()
    thread.join(20)
    assert (found[0]["kind"], found[0]["device"]) == (table.runtime.name, table.device)
    assert found[0]["base"] <= device
    table("dealloc", device)


def test_managed(table):
    name = {"cuda": "cuMemAllocManaged", "hip": "hipMallocManaged"}[table.runtime.name]
    allocate = getattr(ctypes.CDLL(table.runtime.library.path), name)
    address = ctypes.c_void_p()
    assert allocate(ctypes.byref(address), ctypes.c_size_t(4096), 1) == 0
    about = table.runtime.pointer(address.value)
    assert (about["kind"], about["managed"], about["registered"]) == (table.runtime.name, True, False)
    table("dealloc", address)


def test_memory_of_a_pool_is_the_devices(table, stream):
    device = table.made("alloc_async", 4096, stream)
    table("stream_synchronize", stream)
    about = table.about(device)
    assert (about.kind, about.device) == (table.runtime.kind, table.device)
    assert about.buffer_id != 0
    table("dealloc_async", device, stream)


def test_copy_between_devices(table, stream):
    runtime = table.runtime
    if runtime.device_count() < 2:
        pytest.skip("only one device")
    other = Table(runtime, 1 - table.device)
    values = runtime_checks.pattern(1 << 20)
    here = table.made("alloc", 1 << 20)
    with other:
        there = other.made("alloc", 1 << 20)
    table.put(here, values, stream)
    table("copy_async", there, here, 1 << 20, stream)
    assert np.array_equal(table.get(there, 1 << 20, stream), values)
    assert table.current() == table.device
    assert table.about(there).device == other.device
    table("dealloc", here)
    with other:
        other("dealloc", there)


def test_out_of_memory_is_an_error(table):
    code = table.code("alloc", ctypes.byref(ctypes.c_void_p()), 1 << 50)
    with pytest.raises(GpuError, match="smaller buffers") as caught:
        table.runtime.check_code(code, "alloc")
    assert caught.value.code == code == 2
