"""oneCCL: what we declare of it against its own headers, what is found of it, and whom it can join."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hetccl import _oneccl, config, oneccl
from hetccl._dl import Library
from hetccl.errors import LibraryNotFound
from hetccl.topology import Member
from oneccl_files import HEADERS, LIB, absent

ROOT = Path(__file__).resolve().parents[2]
CXX = shutil.which("g++") or shutil.which("clang++")
needs_library = pytest.mark.skipif(bool(absent()), reason=absent())
needs_headers = pytest.mark.skipif(
    not (HEADERS / "oneapi/ccl.h").exists() or not CXX,
    reason=absent() or f"no oneapi/ccl.h in {HEADERS}" if CXX else "no C++ compiler",
)

# Equal to a compiler: pointers of any kind, whole numbers and enums of one size, structs of one size.
CONTRACT = """
#include <type_traits>
#include "oneapi/ccl.h"
extern "C" {
#include "hetccl/abi.h"
#include "hetccl/oneccl.h"
}
template <class A, class B> constexpr bool same() {
    if (std::is_pointer_v<A> || std::is_pointer_v<B>) return std::is_pointer_v<A> && std::is_pointer_v<B>;
    if (std::is_class_v<A> || std::is_class_v<B>)
        return std::is_class_v<A> && std::is_class_v<B> && sizeof(A) == sizeof(B) && alignof(A) == alignof(B);
    return sizeof(A) == sizeof(B);
}
template <class A, class B> struct alike : std::false_type {};
template <class R, class S, class... A, class... B> struct alike<R (*)(A...), S (*)(B...)> {
    static constexpr bool count = sizeof...(A) == sizeof...(B);
    template <bool> struct each { static constexpr bool value = false; };
    static constexpr bool value = [] {
        if constexpr (count) return same<R, S>() && (same<A, B>() && ...);
        else return false;
    }();
};
#define SLOT(slot, function) static_assert(alike<decltype(hetccl_ccl_t::slot), decltype(&function)>::value, #slot)
SLOT(all_reduce, onecclAllReduce);
SLOT(reduce, onecclReduce);
SLOT(reduce_scatter, onecclReduceScatter);
SLOT(broadcast, onecclBroadcast);
SLOT(all_gather, onecclAllGather);
SLOT(all_to_all, onecclAllToAll);
SLOT(scatter, onecclScatter);
SLOT(finalize, onecclCommFinalize);
SLOT(destroy, onecclCommDestroy);
SLOT(last_error, onecclGetLastError);
static_assert(alike<hetccl_oneccl_unique_id_fn *, decltype(&onecclGetUniqueId)>::value, "unique_id");
static_assert(alike<hetccl_oneccl_init_fn *, decltype(&onecclCommInitRank)>::value, "init");
#define NUMBER(ours, theirs) static_assert((int)(ours) == (int)(theirs), #theirs)
NUMBER(sizeof(hetccl_oneccl_id_t), sizeof(onecclUniqueId));
NUMBER(HETCCL_ONECCL_ID_BYTES, ONECCL_UNIQUE_ID_BYTES);
NUMBER(HETCCL_ONECCL_INVALID_USAGE, onecclInvalidUsage);
NUMBER(HETCCL_ONECCL_IN_PROGRESS, onecclInProgress);
NUMBER(HETCCL_ONECCL_NO_MEMORY, onecclAllocFailureCPU);
NUMBER(HETCCL_INT8, onecclInt8);
NUMBER(HETCCL_UINT8, onecclUint8);
NUMBER(HETCCL_INT32, onecclInt32);
NUMBER(HETCCL_UINT32, onecclUint32);
NUMBER(HETCCL_INT64, onecclInt64);
NUMBER(HETCCL_UINT64, onecclUint64);
NUMBER(HETCCL_FLOAT16, onecclFloat16);
NUMBER(HETCCL_FLOAT32, onecclFloat32);
NUMBER(HETCCL_FLOAT64, onecclFloat64);
NUMBER(HETCCL_BFLOAT16, onecclBfloat16);
NUMBER(HETCCL_SUM, onecclSum);
NUMBER(HETCCL_PROD, onecclProd);
NUMBER(HETCCL_MAX, onecclMax);
NUMBER(HETCCL_MIN, onecclMin);
NUMBER(HETCCL_AVG, onecclAvg);
"""
NAMES = (
    "onecclSuccess", "onecclError", "onecclSystemError", "onecclInternalError", "onecclInvalidArgument",
    "onecclInvalidUsage", "onecclInProgress", "onecclFailureGPU", "onecclFailureCPU", "onecclAllocFailureCPU",
    "onecclAllocFailureGPU", "onecclPluginException", "onecclNotImplemented",
)  # fmt: skip
WRONG = ("NUMBER(5, onecclMin);", "SLOT(all_reduce, onecclReduce);", "SLOT(scatter, onecclAllGather);")


def compiles(text, tmp_path):
    """(whether g++ takes it, what it said)"""
    source = tmp_path / "contract.cpp"
    source.write_text(text)
    command = [CXX, "-std=c++17", "-fsyntax-only", f"-I{HEADERS}", f"-I{ROOT / 'include'}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.returncode == 0, done.stderr


@needs_headers
def test_declarations_are_the_headers(tmp_path):
    fits, said = compiles(CONTRACT, tmp_path)
    assert fits, said


@needs_headers
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_declaration_is_refused(wrong, tmp_path):
    fits, said = compiles(CONTRACT + wrong, tmp_path)
    assert not fits and "static assertion failed" in said.replace("static_assert failed", "static assertion failed")


@needs_headers
def test_result_names_are_the_headers(tmp_path):
    checks = "\n".join(f'if (strcmp(hetccl_oneccl_result_name({name}), "{name}")) return 1;' for name in NAMES)
    last = f"return hetccl_oneccl_result_name({NAMES[-1]} + 1) != nullptr;"
    source, program = tmp_path / "names.cpp", tmp_path / "names"
    body = f"int main() {{ {checks} {last} }}\n"
    source.write_text(f'#include <cstring>\n#include "oneapi/ccl.h"\n#include "hetccl/oneccl.h"\n{body}')
    command = [CXX, "-std=c++17", f"-I{HEADERS}", f"-I{ROOT / 'include'}", str(source), "-o", str(program)]
    subprocess.run(command, check=True, timeout=120)
    assert subprocess.run([program], timeout=60).returncode == 0


@needs_library
def test_opens_once_with_all_that_it_names():
    ccl = _oneccl.open(str(LIB / "libccl.so.2"))
    assert ccl is _oneccl.open() and (ccl.name, ccl.library.path) == ("oneCCL", str(LIB / "libccl.so.2"))
    assert ccl.version == "2022.2.0"
    assert [symbol for _, (symbol,), _ in _oneccl.ROWS if not ccl.library.has(symbol)] == []
    assert [slot for slot, _, _ in _oneccl.ROWS if not ccl.supports(slot)] == []


@needs_library
def test_says_what_it_lacks():
    missing = _oneccl.open(str(LIB / "libccl.so.2")).missing()
    assert set(missing) >= {"gather", "split", "group_start", "group_end", "register_buffer", "op_create"}
    assert not set(missing) & {"all_reduce", "async_error", "abort", "init", "destroy", "error_text"}


@needs_library
@pytest.mark.parametrize("part", _oneccl.PARTS)
def test_part_that_is_absent_is_named(part, tmp_path):
    for name in {"libccl.so.2", *_oneccl.PARTS} - {part}:
        (tmp_path / name).symlink_to(LIB / name)
    # Another process: here the parts may be loaded.
    code = f"""
from hetccl import _oneccl
from hetccl.errors import LibraryNotFound
try:
    _oneccl.open({str(tmp_path / "libccl.so.2")!r})
except LibraryNotFound as error:
    print("needs {part} " in str(error))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.stdout == "True\n", done.stdout + done.stderr


@needs_library
def test_unique_ids_differ():
    """In a process of its own, with the environment that a communicator gives it."""
    code = f"""
from hetccl import _oneccl
ccl = _oneccl.open({str(LIB / "libccl.so.2")!r})
one, other = ccl.unique_id(), ccl.unique_id()
print(len(one), len(other), one != other, _oneccl.ndone())
"""
    env = {**os.environ, **oneccl.environment(LIB, 0, 1)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT, env=env)
    assert done.stdout.endswith("4096 4096 True 2\n"), done.stdout + done.stderr


def test_describe_hetccls_own():
    assert oneccl.describe(config.Config()) == oneccl.HostCcl("hetccl")


@needs_library
def test_describe_what_was_found():
    path = str(LIB / "libccl.so.2")
    told = oneccl.describe(config.Config(host_ccl="oneccl", oneccl_lib=path))
    assert told == oneccl.HostCcl("oneCCL", "2022.2.0", path)


def test_describe_what_is_absent():
    code = """
from hetccl import config, oneccl
print(oneccl.describe(config.Config(host_ccl="oneccl", oneccl_lib="/nowhere/libccl.so.2")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert "name='oneCCL'" in done.stdout and "/nowhere/libccl.so.2" in done.stdout, done.stdout + done.stderr


def test_absent_front_is_library_not_found(tmp_path):
    with pytest.raises(LibraryNotFound):
        Library.open((str(tmp_path / "libccl.so.2"),))


@pytest.mark.parametrize("below", ["", "libfabric"])
def test_libfabric_beside_it_is_taken(below, tmp_path):
    folder = tmp_path / below
    folder.mkdir(exist_ok=True)
    (folder / "libfabric.so.1").touch()
    wanted = oneccl.environment(tmp_path, 1, 3)
    assert (wanted["CCL_LOCAL_RANK"], wanted["CCL_LOCAL_SIZE"], wanted["CCL_ATL_TRANSPORT"]) == ("1", "3", "ofi")
    assert wanted["CCL_OFI_LIBRARY_PATH"] == str(folder / "libfabric.so.1")
    assert wanted["FI_PROVIDER_PATH"] == str(folder)


def test_systems_libfabric_is_left_alone(tmp_path):
    assert not {"CCL_OFI_LIBRARY_PATH", "FI_PROVIDER_PATH"} & set(oneccl.environment(tmp_path, 0, 2))


def members(*pids, machine="here"):
    return [Member("host", machine, pid, 7, "host", "host", "", "", "host", "0-1") for pid in pids]


def reach(*pids):
    return frozenset(("here", pid, 7) for pid in pids)


@pytest.mark.parametrize(
    "pids, reaches",
    [
        ((1, 2), (reach(), reach())),
        ((1, 2), (reach(1, 2), reach(1, 2))),
        ((2, 1), (reach(1, 2, 3), reach(1, 2, 3))),
        ((1, 3), (reach(1, 2, 3), reach(1, 3))),
    ],
)
def test_fits(pids, reaches):
    assert oneccl.unfit(members(*pids), reaches) == ""


@pytest.mark.parametrize(
    "pids, reaches, named",
    [
        ((1, 2), (reach(), reach(2, 3)), "[1]"),
        ((1, 2), (reach(1, 2), reach()), "[0]"),
        ((1, 2, 3), (reach(1, 2), reach(1, 2), reach(3)), "[0, 1, 2]"),
        ((1, 2), (reach(1, 2), reach(2, 3)), "[0, 1]"),
    ],
)
def test_does_not_fit(pids, reaches, named):
    assert named in oneccl.unfit(members(*pids), reaches)


def test_several_hosts_do_not_fit():
    assert "one host" in oneccl.unfit(members(1) + members(2, machine="there"), (reach(), reach()))
