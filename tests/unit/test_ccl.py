"""The tables of NCCL and RCCL: names, releases, errors; on the fake, and on NCCL's own wheel where it is installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from vendor_ranks import ROOT, run

from hetccl import _ccl, _nccl, libraries

SLOTS = _ccl.slot_names()
# What the launch code does without.
YOUNG = ("ncclAlltoAll", "ncclGather", "ncclScatter", "ncclCommSplit", "ncclCommRegister", "ncclCommDeregister")


def test_rows_and_slots_agree():
    assert [row[0] for row in _nccl.ROWS] == list(SLOTS)


def test_names_are_those_of_the_registry():
    known = {library.name: library.sonames for library in libraries.LIBRARIES}
    assert known["NCCL"] == _nccl.NCCL_SONAMES
    assert known["RCCL"] == _nccl.RCCL_SONAMES


@pytest.mark.parametrize(
    "number, text", [(22703, "2.27.3"), (23203, "2.32.3"), (21800, "2.18.0"), (2708, "2.7.8"), (20900, "2.9.0")]
)
def test_version_text(number, text):
    assert _nccl.version_text(number) == text


def test_opened(tmp_path):
    body = """
    ccl = open_ccl()
    assert (ccl.name, ccl.version, ccl.missing()) == ("NCCL", "2.28.9", ())
    assert ccl.library.path == os.environ["FAKE_CCL"] and repr(ccl) == f"<NCCL 2.28.9 {ccl.library.path}>"
    assert ccl.supports("all_to_all") and open_ccl() is ccl
    assert type(caught(ccl.supports, "alltoall")) is ValueError
    assert type(caught(type(ccl))) is TypeError
    ids = {ccl.unique_id() for _ in range(5)}
    assert len(ids) == 5 and {len(one) for one in ids} == {128}
    """
    run(tmp_path, 1, body)


@pytest.mark.parametrize("name, error", [("nccl", "NcclError"), ("rccl", "RcclError")])
def test_errors(tmp_path, name, error):
    body = f"""
    ccl = open_ccl({name!r})
    error = caught(ccl.unique_id)
    assert type(error) is {error} and error.code == 2, repr(error)
    for word in ("ncclGetUniqueId", ccl.name, ccl.version, ccl.library.path, "unhandled system error", "NCCL_DEBUG"):
        assert word in str(error), (word, str(error))
    """
    options = ("-Wl,-soname,librccl.so.1",) if name == "rccl" else ()
    run(tmp_path, 1, body, env={"FAKE_CCL_FAIL": "ncclGetUniqueId=2"}, options=options)


def test_missing_functions(tmp_path):
    body = """
    ccl = open_ccl()
    slots = {"all_to_all", "gather", "scatter", "split", "register_buffer", "deregister_buffer"}
    assert set(ccl.missing()) == slots
    assert not any(map(ccl.supports, slots)) and ccl.supports("all_reduce")
    comm = join()
    error = caught(comm.wait, -32768, "Alltoall", "all_to_all")
    assert type(error) is SymbolNotFound and error.call == "Alltoall"
    for word in ("ncclAlltoAll", "2.28 or newer", ccl.library.path, "NCCL 2.20.5"):
        assert word in str(error), (word, str(error))
    """
    run(tmp_path, 1, body, without=YOUNG, env={"FAKE_CCL_VERSION": "22005"})


def test_other_name_of_rccl(tmp_path):
    body = """
    ccl = open_ccl("rccl")
    assert ccl.supports("all_to_all") and ccl.name == "RCCL"
    """
    run(tmp_path, 1, body, options=("-Wl,-soname,librccl.so.1", "-DncclAlltoAll=ncclAllToAll"))


@pytest.mark.parametrize("number, text", [("21403", "2.14.3"), ("21709", "2.17.9"), ("2708", "2.7.8")])
def test_old_release(tmp_path, number, text):
    body = f"""
    error = caught(open_ccl)
    assert type(error) is LibraryNotFound
    for word in ("NCCL {text}", os.environ["FAKE_CCL"], "2.18 or newer needed"):
        assert word in str(error), (word, str(error))
    """
    run(tmp_path, 1, body, env={"FAKE_CCL_VERSION": number})


def test_no_version(tmp_path):
    run(tmp_path, 1, "assert type(caught(open_ccl)) is SymbolNotFound", without=("ncclGetVersion",))


def test_not_found(tmp_path):
    body = """
    error = caught(_nccl.open_rccl, "/nowhere/librccl.so.1")
    assert type(error) is LibraryNotFound and "/nowhere/librccl.so.1" in str(error)
    """
    run(tmp_path, 1, body)


def wheel_of_nccl():
    """The path of the real NCCL among the installed wheels, or None."""
    found = [Path(folder) / "libnccl.so.2" for folder in libraries.wheel_folders()]
    return next((path for path in found if path.exists()), None)


needs_nccl = pytest.mark.skipif(wheel_of_nccl() is None, reason="no wheel of NCCL (nvidia-nccl-cu13) is installed")


@needs_nccl
def test_real_nccl():
    """Everything but communication works without a GPU; what does not is an error with NCCL's words."""
    program = """
from hetccl import _cuda, _nccl, libraries
from hetccl._vendor import VendorComm
from vendor_ranks import *
from hetccl.errors import NcclError
from fakes.build import build
ccl = _nccl.open_nccl(None, libraries.wheel_folders())
major, minor = map(int, ccl.version.split(".")[:2])
assert ccl.library.origin == "wheel" and (major, minor) >= (2, 18)
absent = {"all_to_all", "gather", "scatter"} if (major, minor) < (2, 28) else set()
assert set(ccl.missing()) == absent, ccl.missing()
one, other = ccl.unique_id(), ccl.unique_id()
assert len(one) == 128 and one != other
error = caught(VendorComm, ccl, _cuda.open(build("fakecuda")), 0, 1, 0, one, 5.0)
assert type(error) is NcclError and error.code == 1, repr(error)
assert "ncclCommInitRankConfig" in str(error) and "cuda" in str(error).lower()
print(ccl.version, error)
"""
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tests" / "unit")))
    environ = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@needs_nccl
def test_real_header(tmp_path):
    """Our numbers and our part of the configuration are those of NCCL's own header, as its compiler sees them."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    header = wheel_of_nccl().parents[1] / "include" / "nccl.h"
    (tmp_path / "cuda_runtime.h").write_text("typedef void *cudaStream_t, *cudaEvent_t;\n")
    (tmp_path / "cuda_fp16.h").write_text("")
    fields = {
        "size": "size",
        "magic": "magic",
        "version": "version",
        "blocking": "blocking",
        "cga_cluster_size": "cgaClusterSize",
        "min_ctas": "minCTAs",
        "max_ctas": "maxCTAs",
        "net_name": "netName",
        "split_share": "splitShare",
    }
    same = [f"offsetof(hetccl_nccl_config_t, {a}) == offsetof(ncclConfig_t, {b})" for a, b in fields.items()]
    same += [
        "sizeof(hetccl_nccl_id_t) == sizeof(ncclUniqueId)",
        "sizeof(hetccl_nccl_config_t) <= sizeof(ncclConfig_t)",
        "HETCCL_NCCL_IN_PROGRESS == ncclInProgress",
        "HETCCL_NCCL_UNDEFINED == NCCL_CONFIG_UNDEF_INT",
        "ncclSystemError == 2 && ncclRemoteError == 6",
        "ncclScalarHostImmediate == 1 && NCCL_SPLIT_NOCOLOR == -1",
        "sizeof(ncclRedOp_t) == sizeof(int) && sizeof(ncclDataType_t) == sizeof(int)",
    ]
    lines = [f'_Static_assert({text}, "{text}");' for text in same]
    calls = [f"void *f{i} = (void *){name};" for i, (_, names, _) in enumerate(_nccl.ROWS) for name in names[:1]]
    unit = tmp_path / "unit.c"
    includes = ["#include <stddef.h>", f'#include "{header}"', '#include "hetccl/nccl.h"']
    configuration = """
#include <stdio.h>
int main(void) {
    ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
    hetccl_nccl_config_t ours = hetccl_nccl_config();
    int is_same = ours.magic == theirs.magic && ours.net_name == theirs.netName;
    printf("%d\\n", is_same && ours.split_share == theirs.splitShare && ours.cga_cluster_size == theirs.cgaClusterSize);
    return 0;
}
"""
    unit.write_text("\n".join([*includes, *lines, *calls, configuration]))
    command = [compiler, "-std=gnu11", f"-I{tmp_path}", f"-I{ROOT}/include", str(unit), str(wheel_of_nccl())]
    command += [f"-Wl,-rpath,{wheel_of_nccl().parent}", "-o", str(tmp_path / "unit")]
    built = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([tmp_path / "unit"], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "1\n", ran.stderr
