"""Libraries of GPU runtimes that are missing, incomplete, old, or have no device: each in a process of its own, since a
process has one driver."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import runtime_checks
from runtime_table import PROTOTYPES

from fakes.build import build, compiler

ROOT = Path(__file__).resolve().parents[2]
needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C compiler to make the fake libraries")


def run(program, **variables):
    """Run a program; `cuda(...)` in it is _cuda.open or _cuda.load of a fake driver."""
    head = """
        import ctypes, os, sys
        from fakes.build import build
        from runtime_table import Table, MISSING, PROTOTYPES
        from hetccl import _cuda, _hip
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


# HIP 5: other numbers of memory types, other places in structs, fewer functions
HIP5_LACKS = ["hipLaunchHostFunc", "hipGetDevicePropertiesR0600", "hipMemGetHandleForAddressRange"]
HIP5_LACKS += ["hsa_amd_portable_export_dmabuf"]


@pytest.fixture(scope="module")
def hip5():
    """What the checks said on a HIP 5: {name: "" or a traceback}."""
    out = run(
        f"""
        import json, traceback, runtime_checks
        runtime = _hip.open(build("fakehip", without={HIP5_LACKS!r}))
        assert runtime.version == "5.2.21153"
        assert runtime.missing() == ("dmabuf_export",), runtime.missing()
        assert runtime.device_arch(0) == "gfx90a"  # without its modes
        answers = {{}}
        with Table(runtime) as table:
            for check in runtime_checks.CHECKS:
                if all(runtime.supports(name) for name in check.needs):
                    answers[check.__name__] = ""
                    try:
                        check(table, table.made("stream_create"))
                    except Exception:
                        answers[check.__name__] = traceback.format_exc()
        print(json.dumps(answers))
        """,
        FAKE_HIP_VERSION="50221153",
        FAKE_HIP_ARCH="gfx90a",
    )
    return json.loads(out)


@needs_compiler
@pytest.mark.parametrize("name", [c.__name__ for c in runtime_checks.CHECKS if "dmabuf_export" not in c.needs])
def test_hip5(hip5, name):
    assert hip5[name] == ""


@needs_compiler
def test_hip5_answers_are_no_errors():
    """HIP 5 remembers "not ready" and "unknown memory" as errors; programs would find them after their own kernels."""
    run(
        """
        with Table(_hip.open(build("fakehip"))) as table:
            library = ctypes.CDLL(table.runtime.library.path)
            stream, event, device = table.made("stream_create"), table.made("event_create"), table.made("alloc", 64)
            table("fill_async", device, 1, 1, 64, stream)
            table("event_record", event, stream)
            library.hipGetLastError()
            for function, handle in (("event_query", event), ("stream_query", stream)):
                assert table.code(function, handle) == 600
                assert library.hipPeekAtLastError() == 0, function
            assert library.hipPointerGetAttributes(ctypes.create_string_buffer(32), ctypes.c_void_p(id(table))) == 1
            assert library.hipGetLastError() == 1
            assert table.about(id(table)).kind == 0
            assert library.hipPeekAtLastError() == 0
        """,
        FAKE_HIP_VERSION="50221153",
        FAKE_HIP_LAZY="1",
    )


@needs_compiler
@pytest.mark.parametrize("version, lacks", [("60443484", []), ("70125424", ["hsa_amd_portable_export_dmabuf"])])
def test_dmabuf_of_hip(version, lacks):
    """By HSA, or by HIP's own function, which knows no offset: the same memory."""
    run(
        f"""
        import runtime_checks
        with Table(_hip.open(build("fakehip", without={lacks!r}))) as table:
            runtime_checks.dmabuf_is_the_memory(table, table.made("stream_create"))
        """,
        FAKE_HIP_VERSION=version,
    )


@needs_compiler
@pytest.mark.parametrize("code", [100, 101])
def test_no_amd_device(code):
    out = run(
        """
        try:
            _hip.open(build("fakehip"))
        except GpuError as error:
            print(error.code, error)
        """,
        **({"FAKE_HIP_DEVICES": "0"} if code == 100 else {"FAKE_HIP_FAIL": "hipInit=101"}),
    )
    assert out.startswith(f"{code} ")
    assert "/dev/kfd" in out


def test_no_hip():
    out = run("""
        try:
            _hip.open("/nowhere/libamdhip64.so")
        except LibraryNotFound as error:
            print(error, *_hip.SONAMES, sep="\\n")
    """)
    assert "/nowhere/libamdhip64.so (override)" in out
    for release in (7, 6, 5):
        assert f"libamdhip64.so.{release} (process)" in out


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
