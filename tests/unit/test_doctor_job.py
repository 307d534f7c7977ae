"""What doctor says of a whole job: the matrix of paths, links, versions, limits, and which pairs it measures."""

import resource
from collections import Counter

import pytest
from made_jobs import Maker, cluster, islands, job_of, plain_ways, three_hosts
from rdma_hosts import Host, member

import launch
from hetccl.cli import doctor, limits, links, matrix, page, pairs, versions
from hetccl.cli.host import Check
from hetccl.config import Config

needs_mpirun = pytest.mark.skipif(not launch.launchers(), reason="no mpirun beside this interpreter or in PATH")


@pytest.fixture
def maker(monkeypatch, tmp_path):
    return Maker(monkeypatch, tmp_path)


# The matrix


def test_matrix_of_three_hosts(maker):
    seen, _ = maker.job(three_hosts(), {"node0": 2, "node1": 2})
    hosts = [number // 4 for number in range(12)]
    for row, one in enumerate(hosts):
        for col, other in enumerate(hosts):
            (path,) = seen.matrix.cells[row][col]
            expected = "." if row == col else "S" if one == other else "V" if {one, other} == {0, 1} else "T"
            # Host memory alone needs nothing for GPUs.
            expected += "p" if row != col and min(one, other) < 2 else ""
            assert path == expected
    assert "Tp" in "\n".join(matrix.lines(seen.matrix))


def test_one_island_of_gpus_runs_on_the_vendors_ccl(maker):
    seen, _ = maker.job(cluster(1, 2, 1), {})
    assert seen.matrix.cells == (((".",), ("Sc",)), (("Sc",), (".",)))


def test_pairs_without_a_path(maker):
    members = [member("n0"), member("n1")]
    seen, ways = maker.job(members, {}, transport=("shm",))
    assert seen.matrix.cells[0][1] == ("X",) and ways[0][0]["problem"]
    assert "X  no path" in matrix.lines(seen.matrix)


def test_paths_are_not_known_where_a_host_cannot_meet_a_setting():
    seen = job_of(islands("AB"), [None] * 2, [[], []])
    assert seen.matrix.cells == (((".",), ("?",)), (("?",), (".",)))


@pytest.mark.parametrize("nhosts, per_host, nvidia", [(128, 8, 64), (64, 1, 10), (16, 64, 15)])
def test_a_big_job_is_a_page(nhosts, per_host, nvidia):
    members = cluster(nhosts, per_host, nvidia)
    ways = plain_ways(members)
    seen = job_of(members, [None] * len(members), ways)
    assert seen.matrix.by_host and [len(group.hosts) for group in seen.matrix.groups] == [nvidia, nhosts - nvidia]
    inside = ("Sp",) if per_host > 1 else ()
    assert seen.matrix.inner[0] == (inside, ("Vp",)) and seen.matrix.cells[0][1] == ("Vp",)
    # Lines of checks that differ from host to host.
    findings = doctor.merge(
        [[Check("rails", "ok", each.host), Check("cores", "warn", f"{each.host} x")] for each in members]
    )
    told = [{"ways": mine, "versions": {}} for mine in ways]
    text = page.text(findings, members, seen.matrix, page.links_of(told, [], None), [])
    assert len(text.splitlines()) <= 60 and max(map(len, text.splitlines())) < 200
    assert f"{nvidia} hosts gpu[0000-{nvidia - 1:04d}]" in text and "more lines; --json has them" in text


def test_hosts_that_differ_keep_their_rows():
    """Two hosts of 16 reach the others by TCP; one of them has ranks of two islands."""
    members = [each for host in range(16) for each in islands("AB" if host == 3 else "AA", f"n{host}")]
    slow = {"n2", "n3"}
    ways = plain_ways(members)
    for mine, found in zip(members, ways):
        far = found[1]["ranks"]
        tcp = [peer for peer in far if mine.host in slow or members[peer].host in slow]
        found[1:] = [
            {**found[1], "kind": kind, "ranks": ranks}
            for kind, ranks in (("tcp", tcp), ("verbs", [peer for peer in far if peer not in tcp]))
            if ranks
        ]
    seen = job_of(members, [None] * 32, ways)
    groups = {group.hosts: group.islands for group in seen.matrix.groups}
    assert groups == {
        tuple(f"n{host}" for host in range(16) if host not in (2, 3)): ("A",),
        ("n2",): ("A",),
        ("n3",): ("A", "B"),
    }
    first = [group.hosts[0] for group in seen.matrix.groups]
    cells = {(a, b): seen.matrix.cells[i][j] for i, a in enumerate(first) for j, b in enumerate(first) if a != b}
    assert set(cells.values()) == {("T",)}
    assert seen.matrix.inner[first.index("n0")] == (("S",), ("V",))


def test_a_matrix_too_large_is_cut():
    """Every host differs from every other one."""
    members = [each for host in range(30) for each in islands([f"i{host}"], f"n{host}")]
    seen = job_of(members, [None] * 30, plain_ways(members, "tcp"))
    said = matrix.lines(seen.matrix)
    assert len(seen.matrix.groups) == 30 and "10 more rows and columns are left out; --json has them" in said
    assert len(seen.matrix.as_dict()["rows"]) == 30


@pytest.mark.parametrize(
    "names, text",
    [
        (["n1"], "n1"),
        (["n01", "n02", "n03", "login"], "n[01-03],login"),
        (["a9", "a10", "b1"], "a[9-10],b1"),
        ([f"a{number}" for number in range(12)], "a[0-11]"),
        ([f"a{number:02d}" for number in range(12)], "a[00-11]"),
        (
            [f"{letter}x" for letter in "abcdefghijklmnopqrstuvwxyz"],
            "ax,bx,cx,dx,ex,fx,gx,hx,ix,jx,kx,lx,mx,nx,ox,px,qx,rx,sx,...",
        ),
    ],
)
def test_hosts_text(names, text):
    assert matrix.hosts_text(names) == text


# Links


@pytest.mark.parametrize(
    "speed, width, gb_s",
    [("2.5 GT/s PCIe", 1, 0.25), ("8.0 GT/s PCIe", 8, 7.877), ("16.0 GT/s PCIe", 16, 31.508), ("Unknown", 16, None)],
)
def test_pcie(tmp_path, speed, width, gb_s):
    """Against the table of rates in the PCI-SIG's FAQ: 250 MB/s, 7.88 GB/s, 31.5 GB/s."""
    (tmp_path / "current_link_speed").write_text(f"{speed}\n")
    (tmp_path / "current_link_width").write_text(f"{width}\n")
    found = links.pcie(tmp_path)
    assert found.gb_s == (None if gb_s is None else pytest.approx(gb_s, rel=1e-3))
    assert links.pcie(tmp_path / "none") == (None, "PCIe unknown")


def test_bus_of_a_gpu(maker):
    """It slows its link down while nothing runs: the highest speed counts."""
    bus = maker.roots.sys / "bus/pci/devices/0000:1b:00.0"
    bus.mkdir(parents=True)
    for name, text in (
        ("current_link_speed", "2.5 GT/s"),
        ("max_link_speed", "32.0 GT/s"),
        ("current_link_width", "16"),
    ):
        (bus / name).write_text(f"{text}\n")
    seen, ways = maker.job(cluster(2, 1, 1), {})
    (link,) = (link for link in page.links_of([{"ways": mine} for mine in ways], seen.nets, None) if link.kind == "gpu")
    assert link.pairs == 2 and link.gb_s == pytest.approx(63.0, rel=1e-3)
    assert "2 GPUs" in page.link_lines([link])[0]


def smbios(size=16384, width=64, speed=4800, configured=4400):
    raw = bytearray(0x22)
    for at, value in ((0x0A, width), (0x0C, size), (0x15, speed), (0x20, configured)):
        raw[at : at + 2] = value.to_bytes(2, "little")
    return bytes(raw)


@pytest.mark.parametrize(
    "modules, gb_s, words",
    [
        ([smbios(), smbios(), smbios(size=0)], 35.2, "at most half of 70.4 GB/s: 2 modules of 64 bit at 4400 MT/s"),
        ([smbios(configured=0)], 19.2, "at 4800 MT/s"),
        ([smbios(speed=0, configured=0)], None, "unknown"),
        ([], None, "unknown"),
    ],
)
def test_memory(tmp_path, modules, gb_s, words):
    made = Host(tmp_path)
    for number, raw in enumerate(modules):
        entry = made.roots.sys / f"firmware/dmi/entries/17-{number}/raw"
        entry.parent.mkdir(parents=True)
        entry.write_bytes(raw)
    found = links.memory(made.roots)
    assert found.gb_s == (None if gb_s is None else pytest.approx(gb_s)) and words in found.why


def test_expected_bandwidth_of_rails_and_tcp(maker):
    """Two rails of 100 Gb/s, one of which sits in a slot of PCIe 3.0 x4; TCP over 10 Gb/s."""
    slot = maker.roots.sys / "class/infiniband/mlx5_1/device"
    slot.mkdir(parents=True)
    (slot / "current_link_speed").write_text("8.0 GT/s PCIe\n")
    (slot / "current_link_width").write_text("4\n")
    _, ways = maker.job([member("n0"), member("n1"), member("n2")], {"n0": 2, "n1": 2})
    expected = {peer: way["expected"] for way in ways[0] for peer in way["ranks"]}
    assert expected[1]["gb_s"] == pytest.approx(12.5 + 3.938, rel=1e-3)
    assert "mlx5_0:1 100 Gb/sec" in expected[1]["why"] and "mlx5_1:1 PCIe 8 GT/s x4" in expected[1]["why"]
    assert (expected[2]["gb_s"], expected[2]["why"]) == (1.25, "eth0 10000 Mb/s")
    told = [{"ways": mine} for mine in ways]
    found = page.links_of(told, [], None)
    assert Counter({link.kind: link.pairs for link in found}) == {"verbs": 1, "tcp": 2}
    assert "16.4" in "\n".join(page.link_lines(found))


def test_a_speed_that_no_driver_tells_is_unknown():
    silent = {"ifname": "eth0", "rate": "", "gb_s": None, "pcie_gb_s": 2.0, "bus": "PCIe 8 GT/s x2"}
    found = links.tcp(("10.0.0.1", "10.0.0.2"), {"10.0.0.1": silent}, {"10.0.0.2": silent})
    assert found == (None, "unknown: the driver of eth0 tells no speed")


# Versions and limits


@pytest.mark.parametrize(
    "name, other, status", [("hetccl", "9", "fail"), ("NumPy", "1.0", "warn"), ("kernel", "Linux 1", "ok")]
)
def test_versions_that_differ(name, other, status):
    mine = {"hetccl": "0.1.0", "Python": "3.11.7", "NumPy": "2.4.6", "kernel": "Linux 6"}
    same, differs = versions.job_checks([mine, mine | {name: other}, mine])
    assert same.status == "ok" and name not in same.text and "Python 3.11.7" in same.text
    assert differs.status == status and bool(differs.advice) == (status != "ok")
    assert differs.text == f"{name} differs: {mine[name]} on ranks 0,2; {other} on rank 1"


def test_a_library_that_only_some_have_does_not_differ():
    assert versions.differences([{"NCCL": "2.28"}, {}, {"NCCL": "2.28"}]) == {}


@pytest.mark.parametrize(
    "limit, status, words",
    [
        ((1024, 4096), "ok", "1024"),
        ((1023, 4096), "warn", "ulimit -n 1024"),
        ((512, 512), "warn", "the hard limit is 512"),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), "ok", "unlimited"),
    ],
)
def test_open_files(limit, status, words):
    """256 ranks elsewhere by tcp, with two connections for data and one more each."""
    ways = [{"kind": "tcp", "ranks": list(range(256))}, {"kind": "shm", "ranks": list(range(1000))}]
    check = limits.open_files(ways, Config(), limit)
    assert check.status == status and words in check.text + check.advice


def test_threads_of_a_control_group(tmp_path, monkeypatch):
    made = Host(tmp_path)
    made.write(made.roots.sys / "fs/cgroup/pids.max", "100\n")
    made.write(made.roots.sys / "fs/cgroup/pids.current", "60\n")
    monkeypatch.setattr(limits.os, "geteuid", lambda: 0)
    assert limits.processes(1, made.roots).status == "ok"
    check = limits.processes(2, made.roots)
    assert check.status == "warn" and "room for 40 more threads" in check.text and "64 may be needed" in check.text


@pytest.mark.parametrize("has_gpu, status", [(False, "ok"), (True, "warn")])
def test_no_dev_shm(tmp_path, has_gpu, status):
    assert limits.dev_shm(has_gpu, Host(tmp_path).roots).status == status


def test_rings_beyond_the_memory():
    check = limits.memory(64, Config(ring_bytes=1 << 40))
    assert check.status == "warn" and "HETCCL_RING_BYTES" in check.advice
    assert limits.memory(1 << 14, Config(ring_bytes=1 << 40)).status == "fail"


# Measuring


def test_all_pairs_of_a_small_job():
    assert pairs.choose(lambda low, high: "" if (low, high) == (0, 2) else "shm", 4) == [
        (0, 1), (0, 3), (1, 2), (1, 3), (2, 3),
    ]  # fmt: skip


def test_a_big_job_measures_a_sample_of_each_kind():
    chosen = pairs.choose(lambda low, high: "shm" if low // 8 == high // 8 else "verbs", 1024)
    kinds = Counter(low // 8 == high // 8 for low, high in chosen)
    assert kinds == {True: pairs.SAMPLE, False: pairs.SAMPLE} and len(set(chosen)) == len(chosen)
    assert all(0 <= low < high < 1024 for low, high in chosen)


def test_pairs_at_the_same_time_share_no_host():
    hosts = [rank // 2 for rank in range(8)]
    every = [(low, high) for low in range(8) for high in range(low + 1, 8)]
    schedule = pairs.rounds(every, hosts)
    assert sorted(pair for part in schedule for pair in part) == every
    for part in schedule:
        used = [host for pair in part for host in {hosts[rank] for rank in pair}]
        assert len(set(used)) == len(used)
    assert len(schedule) < len(every)


def measured(low, high, gb_s, expected=None):
    return pairs.Measured(low, high, "verbs", 2.0, gb_s, {"gb_s": expected, "why": "port"})


@pytest.mark.parametrize(
    "rates, expected, slow",
    [([12, 11, 5], 12.5, [2]), ([12, 11, 12, 12, 5], None, [4]), ([12, 5], None, []), ([7, 7], 12.5, [])],
)
def test_slow_pairs(rates, expected, slow):
    found = pairs.slow([measured(0, number, rate, expected) for number, rate in enumerate(rates)])
    assert [pair.high for alike, _, _ in found for pair in alike] == slow
    warned = list(doctor.slow_checks([measured(0, number, rate, expected) for number, rate in enumerate(rates)]))
    assert [check.status for check in warned] == ["warn"] * len(slow) and all(check.advice for check in warned)


def test_table_of_what_was_measured():
    said = pairs.lines([measured(0, 1, 1.5), measured(1, 2, 2.25)], 3)
    assert said[-1].split() == ["2", "-", "2.25", "."] and pairs.lines([measured(0, 1, 1.5)], 2) == []


STOPS = """
import os, signal, sys
from hetccl.__main__ import main
from hetccl.cli import network
if os.environ["RANK"] == "1":
    network.sight = lambda *arguments: os.kill(os.getpid(), signal.SIGSTOP)
sys.exit(main(["doctor"]))
"""


@needs_mpirun
def test_a_rank_that_hangs_ends_doctor():
    each = [{"RANK": str(rank)} for rank in range(2)]
    job = launch.mpirun(2, STOPS, env={"HETCCL_TIMEOUT": "1"}, per_rank_env=each, timeout=60, check=False)
    assert job.returncode != 0
    assert "ranks [1] have not called it" in job.stderr[0]
