"""doctor's lines about NICs, addresses and the ways between ranks, on made-up hosts."""

import json

import pytest
from command import fake_mpi4py, hetccl
from rdma_hosts import LINK_LOCAL, Host, big_server, gid, infiniband, member, port, table, usual_table

from fakes import build
from hetccl.cli import network
from hetccl.config import Config
from hetccl.net import interfaces, nics

ETH0 = {"address": "192.168.0.1", "family": "IPv4", "ifname": "eth0", "prefix": 24, "speed": 10000}


@pytest.fixture
def see(monkeypatch, tmp_path):
    """see(ports, ...) -> Sight of a rank of a host with these ports and addresses."""

    def look(ports, rank=0, members=None, addresses=(ETH0,), made=None, **settings):
        monkeypatch.setattr(nics, "look", lambda settings: ports)
        monkeypatch.setattr(interfaces, "addresses", lambda settings: list(addresses))
        return network.sight(rank, members or [member()], Config(**settings), (made or Host(tmp_path)).roots)

    return look


def lines(checks):
    return [(check.status, check.name, check.text) for check in checks]


def test_a_host_with_ports_of_all_kinds(see):
    seen = see(
        [
            port("mlx5_0", gids=usual_table("10.0.0.1")),
            port("mlx5_1", gids=usual_table("10.0.1.1"), state="DOWN"),
            port("mlx5_2", gids=table((0, LINK_LOCAL, "v2"))),
            port("mlx5_3", gids=usual_table("10.0.3.1")),
            infiniband("mlx5_4"),
        ],
        ib_hca=(("mlx5_3",), True),
    )
    said = {text.partition(" ")[0]: text for _, name, text in lines(network.rank_checks(seen)) if name == "RDMA port"}
    assert "GID 3 ::ffff:10.0.0.1, routable IPv4, RoCE v2; else GID 2" in said["mlx5_0:1"]
    assert "is not used: the port is DOWN" in said["mlx5_1:1"]
    assert "is not used: none of its GIDs is routable" in said["mlx5_2:1"] and LINK_LOCAL in said["mlx5_2:1"]
    assert "is not used: left out by HETCCL_IB_HCA" in said["mlx5_3:1"]
    assert "InfiniBand" in said["mlx5_4:1"] and "GID 0 fe80::" in said["mlx5_4:1"]
    assert json.loads(json.dumps(seen._asdict())) == seen._asdict()


@pytest.mark.parametrize(
    "ports, words", [("libibverbs.so.1 not found", "not found"), ([port(state="DOWN")], "no RDMA port can serve")]
)
def test_a_host_without_rails_is_no_fault(see, ports, words):
    found = lines(network.rank_checks(see(ports)))
    assert {status for status, _, _ in found} == {"ok"}
    assert any(name == "rails" and words in text for _, name, text in found)


def test_addresses_in_order(see):
    fd00 = {"address": "fd00::1", "family": "IPv6", "ifname": "ib0", "prefix": 64, "speed": None}
    found = lines(network.rank_checks(see("no RDMA device", addresses=[ETH0, fd00])))
    assert found[-1] == ("ok", "TCP", "192.168.0.1/24 (eth0, 10000 Mb/s), fd00::1/64 (ib0)")


def test_no_address(see):
    found = lines(network.rank_checks(see("no RDMA device", addresses=[])))
    assert found[-1][:2] == ("warn", "TCP")


def test_distances_in_words(see, tmp_path):
    made, ports, members = big_server(tmp_path)
    (text,) = (
        text for _, name, text in lines(network.rank_checks(see(ports, 6, members, made=made))) if name == "rails"
    )
    assert text == (
        "mlx5_6:1 on the same PCIe switch; mlx5_4:1, mlx5_5:1, mlx5_7:1 on the same NUMA node; "
        "mlx5_0:1, mlx5_1:1, mlx5_2:1, mlx5_3:1 on another NUMA node"
    )


@pytest.mark.parametrize(
    "ports, settings, words",
    [
        ("no RDMA device", {"transport": ("tcp",), "ib_tc": 96}, "HETCCL_IB_TC is set"),
        ("no RDMA device", {"transport": ("verbs",)}, "HETCCL_TRANSPORT=verbs"),
        ([port(gids=usual_table("10.0.0.1"))], {"ib_hca": (("mlx5_7",), False)}, "mlx5_7 is no RDMA device"),
        ([port(gids=usual_table("10.0.0.1"))], {"ib_gid_index": 700}, "0 to 255"),
    ],
)
def test_settings_that_the_host_cannot_meet_fail(see, ports, settings, words):
    ((status, name, text),) = lines(network.rank_checks(see(ports, **settings)))
    assert (status, name) == ("fail", "network") and words in text


def sights_of(see, addresses):
    """Sights of one rank on each of so many hosts. addresses : of the hosts' NICs, "" for none."""
    sights = []
    for number, address in enumerate(addresses):
        ports = [port(f"mlx5_{number}", gids=usual_table(address))] if address else "no RDMA device"
        eth0 = {**ETH0, "address": f"192.168.0.{number + 1}"}
        sights.append(see(ports, addresses=[eth0]))
    return sights


def test_ways(see):
    members = [member("n0"), member("n0"), member("n1"), member("n2")]
    first, second, third = sights_of(see, ["10.0.0.1", "10.0.0.2", ""])
    found = network.ways(0, members, [first, first, second, third], Config())
    assert [(way["ranks"], way["kind"], way["rails"]) for way in found] == [
        ([1], "shm", []),
        ([2], "verbs", ["mlx5_0:1 - mlx5_1:1"]),
        ([3], "tcp", []),
    ]
    assert lines(network.way_checks(0, found, detailed=True)) == [
        ("ok", "reach", "ranks 0-1 share memory"),
        ("ok", "reach", "rank 2 by verbs over mlx5_0:1 - mlx5_1:1"),
        ("ok", "reach", "rank 3 by tcp; not by verbs: no RDMA device"),
    ]
    assert lines(network.way_checks(0, found, detailed=False))[1][2] == "rank 2 by verbs over 1 rail"


def test_like_ways_are_one(see):
    members = [member(f"n{number // 2}") for number in range(4)]
    here, there = sights_of(see, ["", ""])
    found = network.ways(1, members, [here, here, there, there], Config())
    assert [way["ranks"] for way in found] == [[0], [2, 3]]


def test_a_rank_out_of_reach_fails(see):
    members = [member("n0"), member("n1")]
    found = network.ways(0, members, sights_of(see, ["", ""]), Config(transport=("shm",)))
    (check,) = network.way_checks(0, found, detailed=True)
    assert check.status == "fail"
    assert "rank 1 cannot be reached" in check.text and "n0 and n1 are different hosts" in check.text


needs_compiler = pytest.mark.skipif(build.compiler() is None, reason="no C compiler to make a libibverbs of")

# Of a fake libibverbs: a port that serves, one that is down (state 1), one that has link-local GIDs only, a device that
# cannot be opened, InfiniBand with and without a LID, and one of iWARP.
DEVICES = f"""
device=roce0 ngids=1024 gid=0/{gid(LINK_LOCAL)}/2/1 gid=900/{gid("10.0.0.1")}/2/1
device=roce1 state=1 gid=0/{gid("10.0.1.1")}/2/1
device=roce2 gid=0/{gid(LINK_LOCAL)}/2/1 gid=1/{gid("127.0.0.1")}/2/1
device=broken open=13
device=ib0 link=1 lid=7 gid=0/{gid("fe80::7")}/0/0 port link=1 gid=0/{gid("fe80::8")}/0/0
device=iw0 transport=1 gid=0/{gid("10.0.2.1")}/2/1
"""


@pytest.fixture
def doctor_page(monkeypatch, tmp_path):
    """doctor_page(variables) -> what `doctor --json` prints on a host with DEVICES."""

    def run(variables=()):
        monkeypatch.setenv("FAKEVERBS_DEVICES", DEVICES)
        monkeypatch.setenv("HETCCL_VERBS_LIB", build.build("fakeverbs"))
        for name, value in dict(variables).items():
            monkeypatch.setenv(name, value)
        # An MPI may bring the real libibverbs, which then counts: two copies in one process disturb each other.
        without_mpi = fake_mpi4py(tmp_path, "raise RuntimeError('none')")
        return json.loads(hetccl("doctor", "--json", path=[without_mpi]).stdout)

    return run


@needs_compiler
def test_doctor_on_a_fake_libibverbs(doctor_page):
    (seen,) = doctor_page()["networks"]
    whys = {port["name"]: port["why"] for port in seen["ports"]}
    assert set(whys) == {"roce0:1", "roce1:1", "roce2:1", "ib0:1", "ib0:2"}
    assert {port["name"] for port in seen["ports"] if port["used"]} == {"roce0:1", "ib0:1"}
    assert "GID 900 ::ffff:10.0.0.1" in whys["roce0:1"] and "DOWN" in whys["roce1:1"]
    assert "routable" in whys["roce2:1"] and "LID" in whys["ib0:2"]
    assert {card["device"] for card in seen["card"]["verbs"]} == {"roce0", "ib0"}


@needs_compiler
@pytest.mark.parametrize(
    "variables, words",
    [
        ({"HETCCL_IB_HCA": "roce9"}, "there are ib0, roce0, roce1, roce2"),
        ({"HETCCL_IB_HCA": "ib0:3"}, "ib0 has no port 3; it has 1-2"),
        ({"HETCCL_IB_HCA": "roce1,roce2", "HETCCL_TRANSPORT": "verbs"}, "no RDMA port to use"),
        ({"HETCCL_IB_GID_INDEX": "1023"}, "roce0:1: its GID 1023 is empty; in use: 0 fe80::"),
        ({"HETCCL_IB_GID_INDEX": "900", "HETCCL_TRANSPORT": "tcp"}, "HETCCL_IB_GID_INDEX is set"),
        ({"HETCCL_IB_PKEY": "40000"}, "index 0 only"),
    ],
)
def test_doctor_fails_on_what_a_host_cannot_do(doctor_page, variables, words):
    checks = doctor_page(variables)["checks"]
    said = [check["text"] for check in checks if check["status"] == "fail" and check["name"] == "network"]
    assert any(words in text for text in said), said
