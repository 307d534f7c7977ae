"""What doctor says of GPU buffers: libraries, who shares a GPU, islands. Libraries and devices are made up here."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from command import MEMBER

import launch
from fakes import build
from hetccl import config, topology
from hetccl.cli import gpu, info
from hetccl.errors import LibraryNotFound

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "include" / "hetccl"
GPUS = tuple(topology.Device("nvidia", "NVIDIA H200", f"0000:{bus}:00.0", f"GPU-{bus}") for bus in (18, 29, 54))
RUNTIME = gpu.Opened("CUDA driver", "13.0", "/lib/libcuda.so.1", "system")
CCL = gpu.Opened("NCCL", "2.28.9", "/lib/libnccl.so.2", "wheel")
NVIDIA = replace(MEMBER, vendor="nvidia", runtime="cuda", label="nvidia")


def sight(*devices, runtime=RUNTIME, ccl=CCL):
    return gpu.Sight(devices, runtime, ccl) if devices else gpu.Sight((), None, None)


def by_name(checks):
    return {check.name: check for check in checks}


def job_checks(sights, members=None, needed=False):
    return by_name(gpu.job_checks(members or [NVIDIA] * len(sights), sights, needed))


def opener(version, missing=()):
    """What hetccl.vendors gives: a table, or an error."""

    def open_library(vendor, settings):
        if isinstance(version, Exception):
            raise version
        library = SimpleNamespace(path="/lib/x.so", origin="wheel")
        devices = dict(device_count=lambda: 1, device_arch=lambda device: "sm_90")
        return SimpleNamespace(version=version, library=library, missing=lambda: missing, **devices)

    return open_library


@pytest.fixture
def libraries(monkeypatch):
    """Call it with the outcome of opening a runtime and a CCL; GPUs are then visible."""

    def make(runtime, ccl):
        monkeypatch.setattr(gpu.vendors, "open_runtime", runtime)
        monkeypatch.setattr(gpu.vendors, "load_runtime", runtime)
        monkeypatch.setattr(gpu.vendors, "open_ccl", ccl)
        monkeypatch.setattr(topology, "devices", lambda settings: GPUS[:1])
        return gpu.sight(config.Config())

    return make


def test_libraries_of_a_rank(libraries):
    seen = libraries(opener("13.0", ("dmabuf_export",)), opener("2.28.9"))
    checks = by_name(gpu.rank_checks(seen, needed=False))
    assert {check.status for check in checks.values()} == {"ok"}
    assert "NVIDIA H200 0000:18:00.0" in checks["devices"].text
    assert checks["CUDA driver"].text == "13.0 /lib/x.so (wheel); lacks dmabuf_export"
    assert checks["NCCL"].text == "2.28.9 /lib/x.so (wheel)"
    assert "sm_90" in checks["kernels"].text


@pytest.mark.parametrize("needed, status", [(False, "warn"), (True, "fail")])
@pytest.mark.parametrize(
    "error, words",
    [
        (LibraryNotFound("libnccl.so.2 not found; tried:\n  libnccl.so.2 (system): no"), "libnccl.so.2 not found"),
        (LibraryNotFound("NCCL 2.14.3 (/lib/x.so) is too old: 2.18 or newer needed"), "2.18 or newer needed"),
    ],
)
def test_a_library_that_cannot_be_used(libraries, error, words, needed, status):
    seen = libraries(opener("13.0"), opener(error))
    check = by_name(gpu.rank_checks(seen, needed))["NCCL"]
    assert (check.status, check.text.endswith(words)) == (status, True)
    assert "HETCCL_NCCL_LIB" in check.advice
    path = job_checks([seen, sight(GPUS[1])], needed=needed)["GPU buffers"]
    assert path.status == status and "rank 0" in path.text


@pytest.mark.parametrize("missing, status", [("all_to_all", "ok"), ("gather", "ok"), ("all_reduce", "warn")])
def test_functions_that_are_missing(libraries, missing, status):
    check = by_name(gpu.rank_checks(libraries(opener("13.0"), opener("2.20.5", (missing,))), needed=False))["NCCL"]
    assert check.status == status
    assert f"lacks {missing}" in check.text
    assert (missing in check.advice) == (status == "warn")


def test_a_rank_without_a_gpu():
    assert [check.status for check in gpu.rank_checks(sight(), needed=False)] == ["ok"]
    assert [check.status for check in gpu.rank_checks(sight(), needed=True)] == ["fail"]
    assert job_checks([sight(), sight()], [MEMBER, MEMBER]) == {}


@pytest.mark.parametrize(
    "seen, ranks",
    [
        ([GPUS[:1], GPUS[1:2]], None),
        ([GPUS[:1], GPUS[1:2], GPUS[:1]], "ranks 0,2"),
        ([GPUS[:2]] * 2, None),
        ([GPUS[:2]] * 3, "ranks 0-2"),
        ([GPUS[:2], GPUS[1::-1], GPUS[:2]], "ranks 0-2"),
        ([(), GPUS[:1], GPUS[:1]], "ranks 1-2"),
    ],
)
@pytest.mark.parametrize("needed, status", [(False, "warn"), (True, "fail")])
def test_ranks_that_share_a_gpu(seen, ranks, needed, status):
    members = [NVIDIA if devices else MEMBER for devices in seen]
    checks = job_checks([sight(*devices) for devices in seen], members, needed)
    if ranks is None:
        assert "GPU per rank" not in checks
        return
    assert checks["GPU per rank"].status == status
    assert ranks in checks["GPU per rank"].text and GPUS[0].pci in checks["GPU per rank"].text
    # Between islands no vendor's CCL is needed.
    assert checks["GPU buffers"].status == (status if MEMBER not in members else "ok")


def test_equal_addresses_on_two_hosts_are_two_gpus():
    members = [NVIDIA, replace(NVIDIA, host="n1", machine="n1/boot")]
    assert "GPU per rank" not in job_checks([sight(GPUS[0]), sight(GPUS[0])], members)


def test_one_island_is_the_vendors():
    check = job_checks([sight(GPUS[0]), sight(GPUS[1])])["GPU buffers"]
    assert (check.status, check.text) == ("ok", "Allreduce runs on NCCL 2.28.9: 2 ranks, one island")


@pytest.mark.parametrize("members", [[NVIDIA, MEMBER], [NVIDIA, replace(NVIDIA, label="B")]])
def test_several_islands_are_the_engines(members):
    sights = [sight(GPUS[0]) if member.vendor == "nvidia" else sight() for member in members]
    check = job_checks(sights, members)["GPU buffers"]
    assert check.status == "ok"
    assert "2 islands" in check.text and "rank 0" in check.text and "rank 1" in check.text


@pytest.mark.parametrize("other, status", [("2.28.7", "ok"), ("2.27.9", "warn"), ("3.28.9", "warn")])
def test_versions_of_an_island(other, status):
    """As a communicator demands it: major and minor release are the same."""
    check = job_checks([sight(GPUS[0]), sight(GPUS[1], ccl=CCL._replace(version=other))])["GPU buffers"]
    assert check.status == status
    assert "2.28.9" in check.text and other in check.text


def test_device_to_try():
    members = [NVIDIA, replace(NVIDIA, machine="n1/boot"), NVIDIA, NVIDIA, MEMBER]
    sights = [sight(*GPUS[:2]), sight(GPUS[0]), sight(*GPUS[:2]), sight(*GPUS[:2]), sight()]
    assert [gpu.device_of(members, sights, rank) for rank in range(5)] == [0, 0, 1, 0, None]
    permuted = [sight(*GPUS[:2]), sight(*GPUS[1::-1])]
    assert [gpu.device_of([NVIDIA] * 2, permuted, rank) for rank in range(2)] == [0, 0]


def test_functions_that_are_needed_exist():
    names = set()
    for header in ("runtime.h", "ccl.h"):
        names.update(re.findall(r"\(\*(\w+)\)\(", (INCLUDE / header).read_text()))
    assert names >= gpu.NEEDED


def test_info_shows_what_a_table_lacks(libraries, monkeypatch):
    libraries(opener("13.0"), opener("2.20.5", ("gather",)))
    opened = gpu.open_found({"CUDA driver", "NCCL"}, config.Config())
    assert [(table.name, table.missing) for table in opened] == [("CUDA driver", ()), ("NCCL", ("gather",))]
    monkeypatch.setattr(gpu, "open_found", lambda names, settings: opened)
    assert "lacks gather" in info.text(info.collect(config.Config(), "", None))


# Ranks that see GPUs, whatever this machine has.
PROGRAM = """
import sys
from hetccl import topology
from hetccl.__main__ import main
gpus = tuple(topology.Device("nvidia", "made up", f"0000:{bus}:00.0", f"GPU-{bus}") for bus in range(10, 14))
topology.devices = lambda settings, roots=topology.ROOTS: gpus
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def on_fakes():
    """Function: run `doctor` on two ranks over the fake driver and the fake CCL; (exit status, checks by name)."""
    if build.compiler() is None or not launch.launchers():
        pytest.skip("no C compiler or no mpirun")
    fakes = {"HETCCL_CUDA_LIB": build.build("fakecuda"), "HETCCL_NCCL_LIB": build.build("fakeccl")}

    def run(*options, **env):
        command = ("doctor", "--json", *options)
        done = launch.mpirun(2, PROGRAM, *command, env={**fakes, **env}, timeout=120, check=False)
        checks = json.loads(done.stdout[0])["checks"]
        return done.returncode, {check["name"]: check for check in checks}

    return run


@pytest.mark.parametrize("options", [(), ("--gpu",)])
def test_libraries_that_work(on_fakes, options):
    status, checks = on_fakes(*options)
    assert status == 0
    assert checks["GPU buffers"]["text"] == "Allreduce runs on NCCL 2.28.9: 2 ranks, one island"
    assert ("vendor's communicator" in checks["communicator"]["text"]) == bool(options)


def test_the_page_has_a_row_for_each_check(on_fakes):
    _, checks = on_fakes()
    page = (ROOT / "docs" / "cli.md").read_text().partition("## doctor")[2].partition("## bench")[0]
    rows = re.findall(r"^\| ([^|]+?)(?: \*)? \|", page, re.MULTILINE)
    assert set(checks) <= {name for row in rows for name in row.split(", ")}


@pytest.mark.parametrize(
    "env",
    [{"FAKE_CUDA_FAIL": "cuDevicePrimaryCtxRetain=2"}, {"FAKE_CCL_FAIL": "ncclCommInitRankConfig=3"}],
    ids=["no context", "no communicator"],
)
def test_only_gpu_touches_a_gpu(on_fakes, env):
    status, checks = on_fakes(**env)
    assert (status, checks["communicator"]["status"]) == (0, "ok")
    status, checks = on_fakes("--gpu", **env)
    assert (status, checks["communicator"]["status"]) == (1, "fail")


def test_a_wrong_path(on_fakes):
    status, checks = on_fakes(HETCCL_NCCL_LIB="/nowhere/libnccl.so.2")
    assert (status, checks["NCCL"]["status"]) == (0, "warn")
    assert "/nowhere/libnccl.so.2" in checks["NCCL"]["text"]


def test_an_old_library(on_fakes):
    status, checks = on_fakes(FAKE_CCL_VERSION="21403")
    assert (status, checks["NCCL"]["status"], checks["GPU buffers"]["status"]) == (0, "warn", "warn")
    assert "2.14.3" in checks["NCCL"]["text"] and "2.18 or newer needed" in checks["NCCL"]["text"]
    status, checks = on_fakes("--gpu", FAKE_CCL_VERSION="21403")
    assert (status, checks["NCCL"]["status"]) == (1, "fail")
