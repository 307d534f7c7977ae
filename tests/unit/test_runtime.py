"""Runtimes: the whole table on the fakes of CUDA and HIP and on the host, and what a library's errors become."""

import ctypes
import os
import re
import threading
from pathlib import Path

import pytest
import runtime_checks
from runtime_table import HEADER, MISSING, PROTOTYPES, Table

from fakes.build import build, compiler
from hetccl import _cuda, _hip, _host, libraries
from hetccl.errors import GpuError, SymbolNotFound

ROOT = Path(__file__).resolve().parents[2]


def fake(name, monkeypatch):
    """A fake library as a runtime of this process. One that is there already is the same library."""
    if compiler() is None:
        pytest.skip("no C compiler to make the fake libraries")
    for variable in [variable for variable in os.environ if variable.startswith("FAKE_")]:
        monkeypatch.delenv(variable)
    runtime = {"cuda": _cuda, "hip": _hip}[name].open(build(f"fake{name}"))
    if f"fake{name}" not in runtime.library.path:
        pytest.skip(f"this process has a real library, {runtime.library.path}")
    return runtime


@pytest.fixture(params=["cuda", "hip", "host"])
def table(request, monkeypatch):
    runtime = _host.open() if request.param == "host" else fake(request.param, monkeypatch)
    with Table(runtime) as table:
        yield table


@pytest.fixture
def cuda(monkeypatch):
    with Table(fake("cuda", monkeypatch)) as table:
        yield table


@pytest.fixture
def hip(monkeypatch):
    with Table(fake("hip", monkeypatch)) as table:
        yield table


@pytest.fixture(params=["cuda", "hip"])
def gpu(request, monkeypatch):
    with Table(fake(request.param, monkeypatch)) as table:
        yield table


@pytest.mark.parametrize("check", runtime_checks.CHECKS, ids=lambda check: check.__name__)
def test_table(table, check):
    lacks = [name for name in check.needs if not table.runtime.supports(name)]
    if lacks:
        pytest.skip(f"{table.runtime.name} memory has no {', '.join(lacks)}")
    stream = table.made("stream_create")
    check(table, stream)
    table("stream_synchronize", stream)
    table("stream_destroy", stream)


def test_launch(gpu):
    image = b"fake-module:" + build("fakekernels").encode()
    runtime_checks.launches(gpu, gpu.made("stream_create"), image)


def test_dmabuf_is_the_memory(gpu):
    runtime_checks.dmabuf_is_the_memory(gpu, gpu.made("stream_create"))


def test_values_wrap_around(cuda):
    runtime_checks.values_wrap_around(cuda, cuda.made("stream_create"))


def test_every_function_is_listed():
    listed = re.findall(r"HETCCL_SLOT\((\w+)\),", (HEADER.parent / "symbol.h").read_text())
    assert listed == list(PROTOTYPES)
    assert len(listed) > 40
    declared = (ROOT / "pyx" / "_runtime.pxd").read_text()
    assert re.findall(r"\(\*(\w+)\)\(", declared.partition("ctypedef struct hetccl_runtime_t")[2]) == [
        name for slot in listed for name in ([slot, "function"] if slot == "host_function" else [slot])
    ]


def test_the_same_each_time(cuda):
    assert _cuda.open() is cuda.runtime
    assert _cuda.open("/nowhere/libcuda.so.1") is cuda.runtime
    assert _cuda.load() is cuda.runtime
    assert _host.open() is _host.open()


def test_not_made_by_hand():
    with pytest.raises(TypeError):
        type(_host.open())()


def test_names(cuda):
    runtime = cuda.runtime
    assert (runtime.name, runtime.kind, runtime.version) == ("cuda", 1, "13.0")
    assert runtime.missing() == ()
    assert runtime.supports("alloc_async")
    assert [runtime.device_pci(d) for d in range(4)] == [f"0000:{0x3B + d:02x}:00.0" for d in range(4)]
    assert runtime.device_arch(3) == "sm_90"
    assert all(found for _, _, found in runtime.symbols())


@pytest.mark.parametrize("call", ["supports", "address"])
def test_unknown_function(call):
    with pytest.raises(ValueError, match="alloc_now"):
        getattr(_host.open(), call)("alloc_now")


@pytest.mark.parametrize("name, module", [("CUDA driver", _cuda), ("HIP", _hip)])
def test_sonames_that_users_are_told(name, module):
    (known,) = (known for known in libraries.LIBRARIES if known.name == name)
    assert known.sonames == module.SONAMES


def test_what_the_host_lacks():
    host = Table(_host.open())
    lacks = {"device_pci", "ipc_export", "ipc_open", "ipc_close", "dmabuf_export", "launch"}
    lacks |= {"module_load", "module_unload", "module_function", "rdma_flush"}
    assert set(host.runtime.missing()) == lacks
    for name in lacks:
        assert host.code(name, *[None if t is ctypes.c_void_p else 0 for t in PROTOTYPES[name][1]]) == MISSING
    assert not host.runtime.supports("launch")
    with pytest.raises(SymbolNotFound) as caught:
        host.runtime.device_pci(0)
    assert caught.value.call == "device_pci"


def test_host_waits_for_nothing():
    """A stream that is always done cannot wait, and must not hang."""
    host = Table(_host.open())
    word = ctypes.c_uint32(4)
    assert host.code("stream_wait32", None, ctypes.addressof(word), 4) == 0
    assert host.code("stream_wait32", None, ctypes.addressof(word), 5) != 0


@pytest.mark.parametrize("size", [0, 1])
def test_host_memory_without_bytes(size):
    host = Table(_host.open())
    address = host.made("alloc", size)
    assert address
    host("dealloc", address)


# Faults of the driver


def test_error(cuda, monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_FAIL", "cuMemAllocAsync=2,cuStreamQuery=700")
    code = cuda.code("alloc_async", ctypes.byref(ctypes.c_void_p()), 100, None)
    assert code == 2
    with pytest.raises(GpuError) as caught:
        cuda.runtime.check_code(code, "alloc_async")
    assert (caught.value.code, caught.value.call) == (2, "alloc_async")
    for word in ("cuMemAllocAsync", "CUDA_ERROR_OUT_OF_MEMORY", "smaller buffers"):
        assert word in str(caught.value)
    with pytest.raises(GpuError, match=r"CUDA_ERROR_ILLEGAL_ADDRESS.*earlier kernel"):
        cuda.runtime.check_code(cuda.code("stream_query", None), "stream_query")
    cuda.runtime.check_code(0, "alloc")


def test_error_of_a_method(cuda, monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_FAIL", "cuDeviceGetCount=999")
    with pytest.raises(GpuError, match="cuDeviceGetCount") as caught:
        cuda.runtime.device_count()
    assert caught.value.code == 999


def test_not_ready(gpu, monkeypatch):
    monkeypatch.setenv(f"FAKE_{gpu.runtime.name.upper()}_LAZY", "1")
    stream, event, device = gpu.made("stream_create"), gpu.made("event_create"), gpu.made("alloc", 64)
    gpu("fill_async", device, 1, 1, 64, stream)
    gpu("event_record", event, stream)
    assert [gpu.code("stream_query", stream) for _ in range(3)] == [600, 0, 0]
    assert [gpu.code("event_query", event) for _ in range(3)] == [600, 0, 0]
    gpu("fill_async", device, 1, 1, 64, stream)
    gpu("event_record", event, stream)
    gpu("event_synchronize", event)
    gpu("stream_synchronize", stream)
    assert gpu.code("event_query", event) == gpu.code("stream_query", stream) == 0


@pytest.mark.parametrize("kind", ["stream", "event"])
def test_use_after_destroy(gpu, kind):
    handle = gpu.made(f"{kind}_create")
    gpu(f"{kind}_destroy", handle)
    assert gpu.code(f"{kind}_query", handle) == 400
    assert gpu.code(f"{kind}_destroy", handle) == 400


def test_without_a_context(monkeypatch):
    table, answers = Table(fake("cuda", monkeypatch)), []

    def ask():
        answers.extend([table.current(), table.code("alloc", ctypes.byref(ctypes.c_void_p()), 64)])

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join(20)
    assert answers == [-1, 201]
    with pytest.raises(GpuError, match="no current device"):
        table.runtime.check_code(201, "alloc")


def test_copy_beyond_an_allocation(cuda):
    device, other = cuda.made("alloc", 100), cuda.made("alloc", 200)
    assert cuda.code("copy_async", device, other, 101, None) == 1
    assert cuda.code("copy_async", device, other, 100, None) == 0


def test_a_wait_ends(cuda, monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_WAIT_MS", "50")
    address, memory = cuda.pinned(4)
    memory[:] = 0
    assert cuda.code("stream_wait32", None, address, 1) == 702


def test_managed(gpu):
    library = ctypes.CDLL(gpu.runtime.library.path)
    allocate = library.cuMemAllocManaged if gpu.runtime.name == "cuda" else library.hipMallocManaged
    address = ctypes.c_uint64()
    assert allocate(ctypes.byref(address), ctypes.c_size_t(64), 1) == 0
    about = gpu.runtime.pointer(address.value)
    assert (about["kind"], about["managed"], about["registered"]) == (gpu.runtime.name, True, False)
    assert about["nbytes"] == 64


def test_captured_stream(cuda):
    stream = cuda.made("stream_create")
    library = ctypes.CDLL(cuda.runtime.library.path)
    library.fakeStreamCapture(ctypes.c_void_p(stream), 1)
    capturing = ctypes.c_int()
    cuda("stream_capturing", stream, ctypes.byref(capturing))
    assert capturing.value == 1
    assert cuda.code("stream_synchronize", stream) == 900


# HIP's own ways


def test_hip_names(hip):
    runtime = hip.runtime
    assert (runtime.name, runtime.kind, runtime.version) == ("hip", 2, "7.1.25424")
    assert runtime.missing() == ()
    assert runtime.device_arch(0) == "gfx942"
    assert runtime.device_pci(1) == "0000:c2:00.0"


def test_hip_answers_are_no_errors(hip, monkeypatch):
    """Programs ask for the thread's last error after their own kernels."""
    monkeypatch.setenv("FAKE_HIP_LAZY", "1")
    library = ctypes.CDLL(hip.runtime.library.path)
    stream, device = hip.made("stream_create"), hip.made("alloc", 64)
    hip("fill_async", device, 1, 1, 64, stream)
    assert library.hipSetDevice(99) == 101
    assert hip.code("stream_query", stream) == 600
    assert hip.about(id(hip)).kind == 0
    assert library.hipGetLastError() == 101  # an error that is not ours stays
    assert library.hipGetLastError() == 0


def test_hsa_error(hip):
    local = (ctypes.c_char * 64)()
    fd, offset = ctypes.c_int(), ctypes.c_uint64()
    code = hip.code("dmabuf_export", ctypes.byref(local), 64, ctypes.byref(fd), ctypes.byref(offset))
    with pytest.raises(GpuError, match="hsa_amd_portable_export_dmabuf.*HSA status 0x1001"):
        hip.runtime.check_code(code, "dmabuf_export")
