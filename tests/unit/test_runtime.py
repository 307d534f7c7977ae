"""Runtimes: the whole table on the fake CUDA driver and on the host, and what a faulty or incomplete library leads to."""

import ctypes
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import runtime_checks
from fakes.build import build, compiler
from runtime_table import HEADER, MISSING, PROTOTYPES, Table

from hetccl import _cuda, _hip, _host
from hetccl.errors import GpuError, LibraryNotFound, SymbolNotFound

ROOT = Path(__file__).resolve().parents[2]
needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C compiler to make the fake driver")


def fake_cuda(monkeypatch):
    """The fake driver as a runtime of this process. One that is there already is the same library."""
    for name in [name for name in os.environ if name.startswith("FAKE_CUDA_")]:
        monkeypatch.delenv(name)
    runtime = _cuda.open(build("fakecuda"))
    if "fakecuda" not in runtime.library.path:
        pytest.skip(f"this process has a real driver, {runtime.library.path}")
    return runtime


@pytest.fixture(params=["cuda", "host"])
def table(request, monkeypatch):
    if request.param == "host":
        runtime = _host.open()
    elif compiler() is None:
        pytest.skip("no C compiler to make the fake driver")
    else:
        runtime = fake_cuda(monkeypatch)
    with Table(runtime) as table:
        yield table


@pytest.fixture
def cuda(monkeypatch):
    if compiler() is None:
        pytest.skip("no C compiler to make the fake driver")
    with Table(fake_cuda(monkeypatch)) as table:
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


def test_launch(cuda):
    image = b"fake-module:" + build("fakekernels").encode()
    runtime_checks.launches(cuda, cuda.made("stream_create"), image)


def test_dmabuf_is_the_memory(cuda):
    runtime_checks.dmabuf_is_the_memory(cuda, cuda.made("stream_create"))


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


def test_what_the_host_lacks():
    host = Table(_host.open())
    lacks = {"device_pci", "ipc_export", "ipc_open", "ipc_close", "dmabuf_export", "launch"}
    lacks |= {"module_load", "module_unload", "module_function"}
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


def test_not_ready(cuda, monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_LAZY", "1")
    stream, event, device = cuda.made("stream_create"), cuda.made("event_create"), cuda.made("alloc", 64)
    cuda("fill_async", device, 1, 1, 64, stream)
    cuda("event_record", event, stream)
    assert [cuda.code("stream_query", stream) for _ in range(3)] == [600, 0, 0]
    assert [cuda.code("event_query", event) for _ in range(3)] == [600, 0, 0]
    cuda("fill_async", device, 1, 1, 64, stream)
    cuda("event_record", event, stream)
    cuda("event_synchronize", event)
    cuda("stream_synchronize", stream)
    assert cuda.code("event_query", event) == cuda.code("stream_query", stream) == 0


@pytest.mark.parametrize("kind", ["stream", "event"])
def test_use_after_destroy(cuda, kind):
    handle = cuda.made(f"{kind}_create")
    cuda(f"{kind}_destroy", handle)
    assert cuda.code(f"{kind}_query", handle) == 400
    assert cuda.code(f"{kind}_destroy", handle) == 400


def test_without_a_context(monkeypatch):
    if compiler() is None:
        pytest.skip("no C compiler to make the fake driver")
    table = Table(fake_cuda(monkeypatch))
    assert table.current() == -1
    assert table.code("alloc", ctypes.byref(ctypes.c_void_p()), 64) == 201
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


def test_managed(cuda):
    library = ctypes.CDLL(cuda.runtime.library.path)
    address = ctypes.c_uint64()
    assert library.cuMemAllocManaged(ctypes.byref(address), ctypes.c_size_t(64), 1) == 0
    about = cuda.runtime.pointer(address.value)
    assert (about["kind"], about["managed"], about["registered"]) == ("cuda", True, False)
    assert about["nbytes"] == 64


def test_captured_stream(cuda):
    stream = cuda.made("stream_create")
    library = ctypes.CDLL(cuda.runtime.library.path)
    library.fakeStreamCapture(ctypes.c_void_p(stream), 1)
    capturing = ctypes.c_int()
    cuda("stream_capturing", stream, ctypes.byref(capturing))
    assert capturing.value == 1
    assert cuda.code("stream_synchronize", stream) == 900


# Other libraries: each in a process of its own, since a process has one driver


def run(program, **variables):
    """Run a program; `cuda(...)` in it is _cuda.open or _cuda.load of a fake driver."""
    head = """
        import ctypes, os, sys
        from fakes.build import build
        from runtime_table import Table, MISSING, PROTOTYPES
        from hetccl import _cuda
        from hetccl.errors import GpuError, LibraryNotFound, SymbolNotFound
    """
    text = textwrap.dedent(head) + textwrap.dedent(program)
    paths = [ROOT, ROOT / "tests", ROOT / "tests" / "unit"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("FAKE_", "HETCCL_", "CUDA_"))}
    environment.update(variables, PYTHONPATH=os.pathsep.join(map(str, paths)))
    done = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_wrong_override_lists_paths():
    out = run("""
        try:
            _cuda.open("/nowhere/libcuda.so", ["/some/folder"])
        except LibraryNotFound as error:
            print(error)
    """)
    assert "/nowhere/libcuda.so (override)" in out
    assert "libcuda.so.1 (process)" in out
    assert "/some/folder" not in out


def test_folders_are_searched():
    out = run("""
        try:
            _cuda.open(folders=["/some/folder"])
        except LibraryNotFound as error:
            print(error)
        except GpuError as error:  # this machine has a driver
            print("/some/folder/libcuda.so.1", error)
    """)
    assert "/some/folder/libcuda.so.1" in out


@needs_compiler
@pytest.mark.parametrize(
    "variables, code, hint",
    [
        ({"FAKE_CUDA_DEVICES": "0"}, 100, "CUDA_VISIBLE_DEVICES"),
        ({"CUDA_VISIBLE_DEVICES": ""}, 100, "CUDA_VISIBLE_DEVICES"),
        ({"FAKE_CUDA_FAIL": "cuInit=803"}, 803, "restart"),
        ({"FAKE_CUDA_FAIL": "cuInit=34"}, 34, "stub"),
        ({"FAKE_CUDA_FAIL": "cuDriverGetVersion=999"}, 999, "cuDriverGetVersion"),
    ],
    ids=["no-device", "none-visible", "mismatch", "stub", "no-version"],
)
def test_driver_that_does_not_work(variables, code, hint):
    out = run(
        """
        for attempt in 1, 2:
            try:
                _cuda.open(build("fakecuda"))
            except GpuError as error:
                print(error.code, error.call, error)
        """,
        **variables,
    )
    assert len(out.splitlines()) == 2
    assert out.startswith(f"{code} ")
    assert hint in out


@needs_compiler
def test_visible_devices():
    out = run(
        """
        runtime = _cuda.open(build("fakecuda"))
        print(*[runtime.device_pci(d) for d in range(runtime.device_count())])
        """,
        CUDA_VISIBLE_DEVICES="2,0",
    )
    assert out.split() == ["0000:3d:00.0", "0000:3b:00.0"]


@needs_compiler
def test_one_symbol_missing():
    out = run("""
        runtime = _cuda.open(build("fakecuda", without=["cuMemGetHandleForAddressRange"]))
        assert runtime.missing() == ("dmabuf_export",)
        assert not runtime.supports("dmabuf_export") and runtime.supports("ipc_export")
        with Table(runtime) as table:
            fd, offset = ctypes.c_int(), ctypes.c_uint64()
            code = table.code("dmabuf_export", table.made("alloc", 64), 64, ctypes.byref(fd), ctypes.byref(offset))
        assert code == MISSING
        try:
            runtime.check_code(code, "dmabuf_export")
        except SymbolNotFound as error:
            print(error, error.call, runtime.library.path)
    """)
    for word in ("cuMemGetHandleForAddressRange", "dmabuf_export", "CUDA 11.7", "13.0"):
        assert word in out
    assert out.count(out.split()[-1]) == 2


OPENING = ["cuInit", "cuDriverGetVersion"]


@needs_compiler
def test_all_symbols_missing():
    """Whatever a library lacks, no function of the table answers success, and each names the symbol."""
    symbols = sorted({symbol for _, symbol, _ in _cuda_symbols()} - set(OPENING))
    assert len(symbols) > 40
    out = run(f"""
        runtime = _cuda.open(build("fakecuda", without={symbols!r}))
        table = Table(runtime)
        scratch = (ctypes.c_char * 256)()
        texts = ("error_text",)
        for name, (result, types) in PROTOTYPES.items():
            if name in texts:
                continue
            arguments = [ctypes.byref(scratch) if t is ctypes.c_void_p else 1 for t in types]
            assert table.code(name, *arguments) == MISSING, name
            try:
                runtime.check_code(MISSING, name)
            except SymbolNotFound as error:
                assert "has no cu" in str(error), (name, error)
            print(name)
        print(*texts)
        assert set(runtime.missing()) == set(PROTOTYPES), set(PROTOTYPES) - set(runtime.missing())
        print(table.code("error_text", 2).decode())
    """)
    assert set(PROTOTYPES) < set(out.split())


def _cuda_symbols():
    listed = run("""
        for row in _cuda.load(build("fakecuda")).symbols():
            print(*row[:2])
    """)
    return [(*line.split(), "") for line in listed.splitlines()]


@needs_compiler
@pytest.mark.parametrize("symbol", OPENING)
def test_not_a_driver(symbol):
    out = run(f"""
        try:
            _cuda.open(build("fakecuda", without=[{symbol!r}]))
        except SymbolNotFound as error:
            print(error)
    """)
    assert symbol in out


@needs_compiler
def test_names_of_older_drivers():
    older = ["cuStreamWriteValue32", "cuStreamWaitValue32", "cuMemHostRegister", "cuIpcOpenMemHandle"]
    out = run(f"""
        import runtime_checks
        runtime = _cuda.open(build("fakecuda", *[f"-D{{name}}_v2={{name}}" for name in {older!r}]))
        assert runtime.missing() == ()
        found = [name for _, _, name in runtime.symbols()]
        assert set({older!r}) < set(found), found
        with Table(runtime) as table:
            stream = table.made("stream_create")
            runtime_checks.written_values(table, stream)
            runtime_checks.registered(table, stream)
            runtime_checks.between_processes(table, stream)
        print("done")
    """)
    assert out.split() == ["done"]


@needs_compiler
def test_child_of_a_fork():
    out = run("""
        runtime = _cuda.open(build("fakecuda"))
        table = Table(runtime)
        child = os.fork()
        if not child:
            os._exit(table.code("enter", 0, ctypes.byref(ctypes.c_void_p())))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    assert out.split() == ["3"]


@needs_compiler
def test_signatures_are_nvidias(tmp_path):
    """The fake driver compiles against the toolkit's cuda.h: a function that differs is an error."""
    places = [os.environ.get("CUDA_HOME", ""), *map(str, sorted(Path("/usr/local").glob("cuda*")))]
    found = [place for place in places if place and Path(place, "include", "cuda.h").exists()]
    if not found:
        pytest.skip("no CUDA toolkit to compare with: set CUDA_HOME")
    assert build("fakecuda", "-DFAKE_CUDA_HEADER", f"-I{found[0]}/include")


def test_hip_is_not_here():
    try:
        runtime = _hip.load("/nowhere/libamdhip64.so")
    except LibraryNotFound as error:
        assert "/nowhere/libamdhip64.so (override)" in str(error)
        assert all(f"{name} (process)" in str(error) for name in _hip.SONAMES)
    else:
        assert runtime.library.origin == "process"
