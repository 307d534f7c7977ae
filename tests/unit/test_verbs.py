"""libibverbs through its table: devices as they are listed, and every failure in words. On the fake library."""

import errno
import json
import re
import resource
from pathlib import Path

import pytest
from fake_verbs import ROOT, needs_compiler, run

from hetccl import _verbs_errors

FE80, IPV4, ULA = "fe80" + 20 * "0" + "fffe0001", 20 * "0" + "ffff0a630001", "fd99" + 27 * "0" + "1"
STATES = ("NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER", "state 6")
LIST = "problems = []; print(json.dumps([_verbs.devices(problems=problems), problems, live()]))"
NOTHING = {"context": 0, "pd": 0, "mr": 0, "channel": 0, "cq": 0, "qp": 0}


def listed(text=None, **options):
    """[devices, problems, live objects] of the fake with these FAKEVERBS_DEVICES."""
    return json.loads(run(LIST, **({} if text is None else {"FAKEVERBS_DEVICES": text}), **options))


@needs_compiler
def test_every_fact_of_a_port():
    ports, problems, left = listed(
        f"device=mlx5_0 max_qp=77 max_qp_wr=88 state=4 link=2 mtu=4 width=2 speed=64 ngids=8 npkeys=3 "
        f"gid=1/{FE80}/2/1 gid=3/{IPV4}/1/0"
    )
    assert (problems, left) == ([], NOTHING)
    assert ports == [
        {
            "device": "mlx5_0",
            "port": 1,
            "state": "ACTIVE",
            "link_layer": "Ethernet",
            "active_mtu": 2048,
            "lid": 0,
            "sm_lid": 0,
            "rate": "200 Gb/sec",
            "guid": "02fa:4e00:0000:0001",
            "max_qp": 77,
            "max_mr": 8192,
            "max_qp_wr": 88,
            "max_sge": 8,
            "max_qp_rd_atom": 16,
            "npkeys": 3,
            "ngids": 8,
            "gids": [
                {"index": 1, "gid": FE80, "type": "RoCE v2", "netdev": "lo"},
                {"index": 3, "gid": IPV4, "type": "RoCE v1", "netdev": ""},
            ],
            "sys": "",
            "numa": -1,
        }
    ]


@needs_compiler
def test_infiniband_with_two_ports_one_down():
    ports, _, _ = listed(f"device=b_0 link=1 lid=17 sm_lid=2 gid=0/{FE80}/0/0 port state=1 link=1 device=a_0 link=0")
    assert [(port["device"], port["port"]) for port in ports] == [("a_0", 1), ("b_0", 1), ("b_0", 2)]
    assert [port["link_layer"] for port in ports] == ["InfiniBand"] * 3
    assert [port["state"] for port in ports] == ["ACTIVE", "ACTIVE", "DOWN"]
    assert (ports[1]["lid"], ports[1]["sm_lid"], ports[1]["gids"][0]["type"]) == (17, 2, "IB")
    assert ports[2]["gids"] == []


@needs_compiler
@pytest.mark.parametrize("state, text", list(enumerate(STATES)))
def test_states_by_name(state, text):
    assert listed(f"device=x state={state}")[0][0]["state"] == text


@needs_compiler
def test_a_long_and_sparse_table_of_gids():
    ports, _, _ = listed(f"device=x ngids=1024 gid=1023/{ULA}/2/0 gid=5/{IPV4}/2/0")
    assert [(gid["index"], gid["gid"]) for gid in ports[0]["gids"]] == [(5, IPV4), (1023, ULA)]
    assert ports[0]["ngids"] == 1024


def sysfs(folder, name):
    """A device of /sys/class/infiniband with its PCI device: the folders of both."""
    pci = folder / "devices/pci0000:00/0000:00:01.0"
    device = folder / "class/infiniband" / name
    types, ndevs = (device / "ports/1/gid_attrs" / kind for kind in ("types", "ndevs"))
    for path in (pci, types, ndevs):
        path.mkdir(parents=True)
    (device / "device").symlink_to(pci)
    (pci / "numa_node").write_text("1\n")
    (device / "ports/1/rate").write_text("100 Gb/sec (4X EDR)\n")
    for index, kind in enumerate(("IB/RoCE v1", "RoCE v2")):
        (types / str(index)).write_text(f"{kind}\n")
        (ndevs / str(index)).write_text("eth7\n")
    return device, pci


@needs_compiler
def test_what_sysfs_adds(tmp_path):
    device, pci = sysfs(tmp_path, "x")
    port = listed(f"device=x sysfs={device}")[0][0]
    assert (port["sys"], port["numa"], port["rate"]) == (str(pci), 1, "100 Gb/sec (4X EDR)")


@needs_compiler
@pytest.mark.parametrize(
    "options",
    [{"without": ["_ibv_query_gid_table"]}, {"FAKEVERBS_FAIL": f"query_gid_table={errno.EOPNOTSUPP}"}],
    ids=["old-library", "old-kernel"],
)
@pytest.mark.parametrize("link, first", [(2, "RoCE v1"), (1, "IB")])
def test_gids_one_by_one(tmp_path, options, link, first):
    """Their types are then the kernel's texts, of which one stands for two types."""
    device, _ = sysfs(tmp_path, "x")
    text = f"device=x sysfs={device} link={link} gid=0/{FE80}/1/0 gid=1/{IPV4}/2/0"
    gids = listed(text, **options)[0][0]["gids"]
    assert gids == [
        {"index": 0, "gid": FE80, "type": first, "netdev": "eth7"},
        {"index": 1, "gid": IPV4, "type": "RoCE v2", "netdev": "eth7"},
    ]


@needs_compiler
@pytest.mark.parametrize(
    "text, words",
    [
        ("device=bad transport=1 device=good", ["bad", "iWARP"]),
        (f"device=bad open={errno.EACCES} device=good", ["bad", "EACCES", "/dev/infiniband", "permissions"]),
        (f"device=bad open={errno.ENOENT} device=good", ["bad", "ENOENT", "ib_uverbs", "--device"]),
    ],
)
def test_a_device_that_cannot_be_used_is_told_and_left_out(text, words):
    ports, problems, left = listed(text)
    assert [port["device"] for port in ports] == ["good"]
    assert len(problems) == 1 and all(word in problems[0] for word in words), problems
    assert left == NOTHING


@needs_compiler
@pytest.mark.parametrize("call", ["query_device", "query_port"])
def test_a_device_that_does_not_answer(call):
    ports, problems, left = listed(FAKEVERBS_FAIL=f"{call}={errno.EIO}@1")
    assert [port["device"] for port in ports] == ["fake1"]
    assert len(problems) == 1 and f"ibv_{call} failed on fake0" in problems[0] and "EIO" in problems[0]
    assert left == NOTHING


@needs_compiler
def test_a_kernel_without_rdma_is_no_fault():
    assert listed(FAKEVERBS_FAIL=f"get_device_list={errno.ENOSYS}")[:2] == [[], []]


@needs_compiler
def test_a_list_that_fails():
    code = "print(json.dumps(raised(_verbs.devices)), fake.fakeverbs_calls(b'get_device_list'))"
    found, calls = run(code, FAKEVERBS_FAIL=f"get_device_list={errno.ENOMEM}").rsplit(" ", 1)
    kind, message, call, code = json.loads(found)
    assert (kind, call, code, calls) == ("VerbsError", "ibv_get_device_list", errno.ENOMEM, "1")
    assert "ENOMEM" in message


OPEN = """
device = _verbs.Device.open("fake1")
alive = live()
device.close()
device.close()
kept = _verbs.Device.open("fake0")
del kept
print(json.dumps([alive["context"], live()["context"], repr(device), raised(_verbs.Device.open, "fake9")]))
"""


@needs_compiler
def test_devices_are_given_back():
    alive, left, text, (kind, message, _, _) = json.loads(run(OPEN))
    assert (alive, left, text) == (1, 0, "<Device fake1 closed>")
    assert kind == "ValueError" and "fake9" in message and "fake0, fake1" in message


@needs_compiler
@pytest.mark.parametrize("call", ["open_device", "close_device"])
def test_open_and_close_that_fail(call):
    code = """
    def both():
        _verbs.Device.open("fake0").close()
    print(json.dumps(raised(both)))
    """
    kind, message, name, number = json.loads(run(code, FAKEVERBS_FAIL=f"{call}={errno.EBUSY}@1"))
    assert (kind, name, number) == ("VerbsError", f"ibv_{call}", errno.EBUSY)
    assert "fake0" in message and "EBUSY" in message


FORK = "verbs = _verbs.open(); print(json.dumps([verbs.fork_safe, verbs.fork, fake.fakeverbs_calls(b'fork_init')]))"


@needs_compiler
@pytest.mark.parametrize(
    "options, safe, calls, words",
    [
        ({"FAKEVERBS_FORK": "0"}, True, 1, "ibv_fork_init"),
        ({"FAKEVERBS_FORK": "1"}, True, 0, "the program has called ibv_fork_init"),
        ({"FAKEVERBS_FORK": "2"}, True, 0, "the kernel copies"),
        ({"without": ["ibv_is_fork_initialized"]}, True, 1, "ibv_fork_init"),
        ({"FAKEVERBS_FAIL": f"fork_init={errno.EINVAL}"}, False, 1, "ibv_fork_init failed: EINVAL"),
    ],
)
def test_fork_safety(options, safe, calls, words):
    found = json.loads(run(FORK, **options))
    assert (found[0], found[2]) == (safe, calls) and words in found[1]


NEWER = ["_ibv_query_gid_table", "ibv_reg_dmabuf_mr", "ibv_is_fork_initialized"]


@needs_compiler
@pytest.mark.parametrize("without", [[], NEWER, NEWER[1:2]], ids=["new", "old", "without-dma-buf"])
def test_an_old_library_will_do(without):
    code = "print(json.dumps([_verbs.open().missing(), len(_verbs.devices()), _verbs.open() is _verbs.open()]))"
    missing, count, same = json.loads(run(code, without=without))
    assert (sorted(name for name, _ in missing), count, same) == (sorted(without), 2, True)
    assert all(re.fullmatch(r"IBVERBS_1\.\d+", version) for _, version in missing)


@needs_compiler
@pytest.mark.parametrize("symbol", ["ibv_create_qp", "ibv_reg_mr", "ibv_create_comp_channel"])
def test_a_library_that_is_none(symbol):
    kind, message, call, _ = json.loads(run("print(json.dumps(raised(_verbs.open)))", without=[symbol]))
    assert (kind, call) == ("SymbolNotFound", symbol)
    assert f"{symbol}@IBVERBS_1." in message and "libibverbs.so.1" in message


@needs_compiler
def test_a_wrong_path_says_what_was_tried():
    code = """
    import subprocess
    text = "from hetccl import _verbs; _verbs.open('/nowhere/libx.so')"
    print(json.dumps(subprocess.run([sys.executable, "-c", text], capture_output=True, text=True).stderr))
    """
    message = json.loads(run(code))
    assert "LibraryNotFound" in message and "/nowhere/libx.so (override)" in message


def enum(name):
    """[(constant without prefix, value)] of an enum of verbs_abi.h."""
    text = (ROOT / "include/hetccl/verbs_abi.h").read_text()
    body = re.search(rf"enum hetccl_ibv_{name} \{{(.*?)\}};", text, re.DOTALL)[1]
    return [(constant, int(value)) for constant, value in re.findall(r"HETCCL_IBV_(\w+) = (\d+)", body)]


@pytest.mark.parametrize("constant, status", enum("wc_status"))
def test_completions_by_name(constant, status):
    text = _verbs_errors.completion_text(status, 0x81, "mlx5_0", 2, "::ffff:10.0.0.1", 3, "node7")
    assert text.startswith(f"{constant.removeprefix('WC_')} (completion status {status}, vendor error 0x81)")
    assert "mlx5_0 port 2, GID ::ffff:10.0.0.1 to rank 3 on node7" in text


def test_completions_with_less_known():
    text = _verbs_errors.completion_text(22, 0, "mlx5_0", 1)
    assert text == "status 22 (completion status 22, vendor error 0x0) on mlx5_0 port 1"
    assert "HETCCL_IB_TIMEOUT" in _verbs_errors.completion_text(12, 0, "mlx5_0", 1)


@pytest.mark.parametrize("constant, event", enum("event_type"))
def test_events_by_name(constant, event):
    name = constant.removeprefix("EVENT_")
    assert _verbs_errors.event_text(event, "mlx5_0") == f"{name} on mlx5_0"
    assert _verbs_errors.event_text(event, "mlx5_0", 2) == f"{name} on mlx5_0 port 2"


def test_an_event_of_tomorrow():
    assert _verbs_errors.event_text(99, "mlx5_0") == "event 99 on mlx5_0"


@pytest.mark.parametrize(
    "limit, text",
    [(65536, "64 KiB"), (1000, "1000 bytes"), (3 << 29, "1.5 GiB"), (8 << 20, "8 MiB"), (-1, "unlimited")],
)
def test_memlock_in_words(monkeypatch, limit, text):
    monkeypatch.setattr(resource, "getrlimit", {resource.RLIMIT_MEMLOCK: (limit, limit)}.__getitem__)
    assert _verbs_errors.memlock_text() == text
    advice = _verbs_errors.memlock_advice()
    assert text in advice and ("ulimit -l" in advice) == (limit >= 0)


@pytest.mark.parametrize("capabilities, may", [("0000000000004000", True), ("ffffffffffffbfff", False), (None, False)])
def test_the_capability_to_lock_memory(tmp_path, capabilities, may):
    (tmp_path / "status").write_text("Name:\tpython\n" + (f"CapEff:\t{capabilities}\n" if capabilities else ""))
    assert _verbs_errors.may_lock_all(tmp_path / "status") is may


def rows():
    """[(symbol, version, "1" if needed)] of verbs.h."""
    table = (ROOT / "include/hetccl/verbs.h").read_text().replace("\\\n", " ")
    return re.findall(r'X\([\w \*]+, \w+, (\w+), "IBVERBS_(1\.\d+)", ([01])', table)


def test_the_fake_has_every_function():
    exported, version = [], ""
    for line in Path(ROOT, "tests/fakes/fakeverbs.map").read_text().splitlines():
        version = line.split()[0].removeprefix("IBVERBS_") if line.startswith("IBVERBS") else version
        exported += [(name, version) for name in re.findall(r"^ +(_?ibv_\w+);", line)]
    assert sorted(exported) == sorted((name, version) for name, version, _ in rows())


def test_the_page_has_every_function():
    told = []
    for line in (ROOT / "docs/verbs.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and re.fullmatch(r"1\.\d+", cells[1]):
            told += [(name, cells[1], str(int(cells[2] == "needed"))) for name in re.findall(r"`(\w+)`", cells[0])]
    assert sorted(told) == sorted(rows())
