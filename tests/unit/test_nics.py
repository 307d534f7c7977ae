"""Which RDMA ports a rank uses, and which of their GIDs: on made-up hosts."""

import json
from dataclasses import replace

import pytest
from rdma_hosts import LINK_LOCAL, Host, big_server, gid, infiniband, member, port, table, usual_table

from hetccl import _verbs
from hetccl.config import Config
from hetccl.errors import LibraryNotFound
from hetccl.net import interfaces, nearness, nics
from hetccl.topology import format_cpulist


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def cards(found, host, rank=0, members=None, **settings):
    return nics.card(rank, members or [member()], Config(**settings), found, host.roots)


def names(found):
    return [f"{card['device']}:{card['port']}" for card in found]


def chosen(found):
    """(index, type) of the first card of each port."""
    first = {}
    for card in found:
        first.setdefault((card["device"], card["port"]), (card["gid_index"], card["gid_type"]))
    return list(first.values())


V4, V6 = ("10.0.0.1", "fd00::1")


@pytest.mark.parametrize(
    "entries, indices",
    [
        # What NCCL took in NVIDIA/nccl#769: link-local entries come first in every table.
        (usual_table(V4), [3, 2]),
        (table((0, LINK_LOCAL, "v1"), (1, LINK_LOCAL, "v2"), (2, V6, "v1"), (3, V6, "v2")), [3, 2]),
        (table((0, V6, "v2"), (1, V4, "v2")), [1, 0]),
        (table((0, V4, "v1"), (1, V6, "v1"), (2, V6, "v2")), [2, 0, 1]),
        (table((0, V4, "v1")), [0]),
        (table((0, "127.0.0.1", "v2"), (1, "::1", "v2"), (2, V6, "v2")), [2]),
        (table((0, "169.254.0.9", "v2"), (1, "0.0.0.0", "v2"), (900, "2001:db8::7", "v2")), [900]),
        # A bond: the address stands under the slave's name and under the bond's.
        (table((0, V4, "v2", "eth0"), (1, V4, "v2", "bond0")), [0]),
        # VLANs of one port.
        (table((3, V4, "v2", "eth0"), (5, "10.1.0.1", "v2", "eth0.100"), (7, "10.2.0.1", "v2", "eth0.200")), [3, 5, 7]),
    ],
)
def test_gid(host, entries, indices):
    assert [card["gid_index"] for card in cards([port(gids=entries)], host)] == indices


def test_a_full_table_makes_few_cards(host):
    entries = table(*((index, f"10.0.{index // 250}.{index % 250 + 1}", "v2") for index in range(1024)))
    assert [card["gid_index"] for card in cards([port(gids=entries)], host)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "entries, words",
    [
        (table((0, LINK_LOCAL, "v1"), (1, LINK_LOCAL, "v2")), LINK_LOCAL),
        (table((0, "127.0.0.1", "v2"), (1, "::1", "v2")), "::ffff:127.0.0.1"),
        (table((0, "169.254.0.9", "v2")), "169.254.0.9"),
        (table((0, V4, "IB")), "(IB)"),
        ([], "none"),
    ],
)
def test_no_gid_to_use(host, entries, words):
    why = cards([port(gids=entries)], host)
    assert isinstance(why, str)
    assert words in why and "routable" in why and "HETCCL_IB_GID_INDEX" in why


@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_named_gid_is_taken_whatever_it_is(host, index):
    (card,) = cards([port(gids=usual_table(V4))], host, ib_gid_index=index)
    assert card["gid_index"] == index
    assert card["gid"] == gid(V4 if index > 1 else LINK_LOCAL)


@pytest.mark.parametrize("index, words", [(4, "GID 4 is empty"), (256, "0 to 255"), (1023, "0 to 255")])
def test_named_gid_that_is_not_there(host, index, words):
    with pytest.raises(ValueError, match=f"HETCCL_IB_GID_INDEX={index}.*mlx5_0:1.*{words}.*3 ::ffff:10.0.0.1"):
        cards([port(gids=usual_table(V4))], host, ib_gid_index=index)


def test_a_port_without_the_named_gid_is_left_out(host):
    found = [port("mlx5_0", gids=table((0, V4, "v2"))), port("mlx5_1", gids=usual_table(V4))]
    assert names(cards(found, host, ib_gid_index=3)) == ["mlx5_1:1"]


def test_card(host, monkeypatch):
    monkeypatch.setattr(interfaces, "subnets", lambda: {V4: 20, V6: 96, "127.0.0.1": 8})
    found = [port(gids=table((5, V4, "v2", "eth0"), (6, V6, "v2", "eth0"), (7, "10.1.0.1", "v2", "eth9")))]
    answers = cards(found, host)
    assert json.loads(json.dumps(answers)) == answers
    assert [card["prefix"] for card in answers] == [20, None, 96]
    assert {**answers[0], "why": ""} == {
        "device": "mlx5_0",
        "port": 1,
        "link_layer": "Ethernet",
        "gid": "00000000000000000000ffff0a000001",
        "gid_index": 5,
        "gid_type": "RoCE v2",
        "lid": 0,
        "mtu": 4096,
        "speed": 100.0,
        "prefix": 20,
        "distance": nearness.UNKNOWN,
        "slot": 0,
        "why": "",
    }
    assert all(isinstance(card["why"], str) and card["why"] for card in answers)


@pytest.mark.parametrize("rate, speed", [("2.5 Gb/sec (1X SDR)", 2.5), (400, 400.0), (12.5, 12.5), ("", 0.0)])
def test_speed(host, rate, speed):
    assert cards([port(gids=usual_table(V4), rate=rate)], host)[0]["speed"] == speed


def test_infiniband(host):
    found = [infiniband("ib0", prefix="fec0:0:0:3::"), infiniband("ib0", 2, state="DOWN"), infiniband("ib1", lid=0)]
    (card,) = cards(found, host)
    assert (card["device"], card["port"], card["gid_index"], card["lid"], card["prefix"]) == ("ib0", 1, 0, 7, 64)
    whys = {choice.name: choice.why for choice in nics.survey(0, [member()], Config(), found, host.roots)}
    assert "DOWN" in whys["ib0:2"] and "LID" in whys["ib1:1"] and whys["ib0:1"] == ""


def test_infiniband_and_roce_side_by_side(host):
    found = [infiniband("mlx5_0"), port("mlx5_1", gids=usual_table(V4))]
    assert [(card["device"], card["gid_type"]) for card in cards(found, host)] == [
        ("mlx5_0", "IB"),
        ("mlx5_1", "RoCE v2"),
        ("mlx5_1", "RoCE v1"),
    ]


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"state": "DOWN"}, "DOWN"),
        ({"state": "INIT"}, "INIT"),
        ({"state": ""}, "unknown"),
        ({"link_layer": "Unspecified"}, "Unspecified"),
    ],
)
def test_ports_that_cannot_serve(host, fields, words):
    why = cards([port(gids=usual_table(V4), **fields)], host)
    assert isinstance(why, str) and words in why and "mlx5_0:1" in why
    with pytest.raises(ValueError, match=f"HETCCL_TRANSPORT=verbs.*{words}"):
        cards([port(gids=usual_table(V4), **fields)], host, transport=("verbs",))


@pytest.mark.parametrize("found", ["no RDMA device", "libibverbs.so.1 not found"])
def test_no_device(host, found):
    assert found == cards(found, host)
    assert found == cards(found, host, ib_hca=(("mlx5_9",), True)), "nothing to leave out is no fault"
    assert found == cards(found, host, ib_gid_index=3)
    assert found == cards(found, host, transport=("shm", "verbs"))
    with pytest.raises(ValueError, match="HETCCL_TRANSPORT=verbs.*" + found):
        cards(found, host, transport=("verbs",))
    with pytest.raises(ValueError, match="HETCCL_IB_HCA=mlx5_0: this host has no RDMA device"):
        cards(found, host, ib_hca=(("mlx5_0",), False))


def four_ports():
    return [
        port("mlx5_0", 1, usual_table("10.0.0.1")),
        port("mlx5_0", 2, usual_table("10.0.1.1")),
        port("mlx5_1", 1, usual_table("10.0.2.1")),
        port("mlx5_10", 1, usual_table("10.0.3.1")),
    ]


@pytest.mark.parametrize(
    "text, used",
    [
        ("mlx5_1", ["mlx5_1:1"]),
        ("mlx5_0", ["mlx5_0:1", "mlx5_0:2"]),
        ("mlx5_0:2,mlx5_10", ["mlx5_0:2", "mlx5_10:1"]),
        ("^mlx5_0", ["mlx5_1:1", "mlx5_10:1"]),
        ("^mlx5_0:1,mlx5_10:1", ["mlx5_0:2", "mlx5_1:1"]),
    ],
)
def test_named_devices(host, text, used):
    choice = (tuple(text.removeprefix("^").split(",")), text.startswith("^"))
    assert list(dict.fromkeys(names(cards(four_ports(), host, ib_hca=choice)))) == used


@pytest.mark.parametrize(
    "listed, excluded, words",
    [
        (("mlx5_2",), False, "mlx5_2 is no RDMA device of this host; there are mlx5_0, mlx5_1, mlx5_10"),
        (("mlx5",), False, "mlx5 is no RDMA device"),
        (("mlx5_0", "mlx4_0:1"), False, "mlx4_0 is no RDMA device"),
        (("mlx5_2",), True, "HETCCL_IB_HCA=.mlx5_2: mlx5_2 is no RDMA device"),
        (("mlx5_0:3",), False, "HETCCL_IB_HCA=mlx5_0:3: mlx5_0 has no port 3; it has 1-2"),
        (("mlx5_1:0",), True, "mlx5_1 has no port 0; it has 1"),
        (("mlx5_0", "mlx5_1", "mlx5_10"), True, "HETCCL_IB_HCA=.mlx5_0,mlx5_1,mlx5_10 leaves no RDMA port"),
    ],
)
def test_named_devices_that_are_wrong(host, listed, excluded, words):
    with pytest.raises(ValueError, match=words):
        cards(four_ports(), host, ib_hca=(listed, excluded))


@pytest.mark.parametrize(
    "index, words", [(2, "partition key 2 is empty"), (128, "0 to 3"), (4, "indices 0 to 3")], ids=str
)
def test_partition_key_that_is_not_there(host, index, words):
    host.add_pkeys("mlx5_0", "0xffff", "0x8001", "0x0000", "0x0000")
    found = [port(gids=usual_table(V4), npkeys=4)]
    with pytest.raises(ValueError, match=f"HETCCL_IB_PKEY={index}.*mlx5_0:1.*{words}"):
        cards(found, host, ib_pkey=index)
    assert names(cards(found, host, ib_pkey=1)) == ["mlx5_0:1"] * 2
    with pytest.raises(ValueError, match="index 0 only"):
        cards([port(gids=usual_table(V4), npkeys=1)], host, ib_pkey=1)


def test_an_empty_default_partition_key_is_the_users_fault_only_if_asked_for(host):
    host.add_pkeys("mlx5_0", "0x0000")
    assert "partition key 0 is empty" in cards([port(gids=usual_table(V4))], host)


def test_send_queue_that_is_too_deep(host):
    found = [port("mlx5_0", gids=usual_table(V4), max_qp_wr=1024), port("mlx5_1", gids=usual_table(V4))]
    assert names(cards(found, host, ib_send_queue=4096)) == ["mlx5_1:1"] * 2
    with pytest.raises(ValueError, match="HETCCL_IB_SEND_QUEUE=4096.*1024 work requests"):
        cards(found[:1], host, ib_send_queue=4096)


def test_each_gpu_has_its_own_nic(tmp_path):
    made, ports, members = big_server(tmp_path)
    for rank in range(8):
        order = names(nics.card(rank, members, Config(), ports, made.roots))
        near = [f"mlx5_{other}:1" for other in range(4 * (rank // 4), 4 * (rank // 4) + 4)]
        assert order[0] == f"mlx5_{rank}:1"
        assert set(order[:8]) == set(near), "then those of the same socket"


def test_distances_of_a_big_server(tmp_path):
    made, ports, members = big_server(tmp_path)
    found = nics.survey(5, members, Config(), ports, made.roots)
    distances = {choice.name: choice.distance for choice in found}
    assert distances["mlx5_5:1"] == nearness.SWITCH
    assert {distances[f"mlx5_{nic}:1"] for nic in (4, 6, 7)} == {nearness.NODE}
    assert {distances[f"mlx5_{nic}:1"] for nic in (0, 1, 2, 3)} == {nearness.OTHER_NODE}


def test_slots_do_not_depend_on_the_rank(tmp_path):
    made, ports, members = big_server(tmp_path)
    for rank in (0, 3, 7):
        found = nics.card(rank, members, Config(), ports, made.roots)
        assert {card["device"]: card["slot"] for card in found} == {f"mlx5_{nic}": nic for nic in range(8)}


def test_host_ranks_use_the_nic_of_their_cores(tmp_path):
    made, ports, _ = big_server(tmp_path)
    members = [member(cpus="0-7"), member(cpus="40"), member(cpus="0-63")]
    first = [nics.card(rank, members, Config(), ports, made.roots)[0]["slot"] for rank in range(3)]
    assert first[0] in range(4) and first[1] in range(4, 8)


def test_equally_near_nics_are_taken_in_turn(tmp_path):
    made, ports, _ = big_server(tmp_path)
    # Ranks dealt round the sockets: those of one socket must still begin with different NICs.
    members = [member(cpus="0-31" if rank % 2 == 0 else "32-63") for rank in range(8)]
    first = [nics.card(rank, members, Config(), ports, made.roots)[0]["device"] for rank in range(8)]
    assert sorted(first) == [f"mlx5_{nic}" for nic in range(8)]


def test_ranks_of_other_hosts_do_not_count_for_the_turn(tmp_path):
    made, ports, _ = big_server(tmp_path)
    there = [member("n1", cpus="0-31")] * 3
    alone = nics.card(0, [member(cpus="0-31")], Config(), ports, made.roots)
    assert nics.card(3, [*there, member(cpus="0-31")], Config(), ports, made.roots) == alone


def test_one_nic_serves_everyone(host):
    found = [port(gids=usual_table(V4))]
    members = [member()] * 5
    assert {names(cards(found, host, rank, members))[0] for rank in range(5)} == {"mlx5_0:1"}


def test_the_order_does_not_depend_on_that_of_the_list(tmp_path):
    made, ports, members = big_server(tmp_path)
    expected = nics.card(2, members, Config(), ports, made.roots)
    assert nics.card(2, members, Config(), ports[::-1], made.roots) == expected


def test_a_gpu_that_sysfs_does_not_show(tmp_path):
    """A MIG instance has no PCI address: the cores decide."""
    made, ports, members = big_server(tmp_path)
    lost = replace(members[6], pci="")
    assert nics.card(0, [lost], Config(), ports, made.roots)[0]["slot"] in range(4, 8)
    assert format_cpulist(lost.cores) == "32-63"


def test_look_without_a_library(monkeypatch):
    def devices(override, problems):
        raise LibraryNotFound(f"libibverbs.so.1 not found; tried:\n  {override}: no such file")

    monkeypatch.setattr(_verbs, "devices", devices)
    assert nics.look(Config(verbs_lib="/nowhere/x.so")) == "libibverbs.so.1 not found"


@pytest.mark.parametrize(
    "problems, answer", [([], "no RDMA device"), (["siw0 is not used", "b"], "siw0 is not used; b")]
)
def test_look_without_a_device(monkeypatch, caplog, problems, answer):
    monkeypatch.setattr(_verbs, "devices", lambda override, told: told.extend(problems) or [])
    with caplog.at_level("INFO", "hetccl"):
        assert nics.look(Config()) == answer
    assert caplog.messages == [f"RDMA: {problem}" for problem in answer.split("; ")]
    assert {record.levelname for record in caplog.records} == {"INFO"}


def test_look_tells_of_devices_that_it_leaves_out(monkeypatch, caplog):
    ports = [port(gids=usual_table(V4))]
    monkeypatch.setattr(_verbs, "devices", lambda override, told: told.append("siw0 is not used") or ports)
    with caplog.at_level("INFO", "hetccl"):
        assert nics.look(Config()) == ports
    assert caplog.messages == ["RDMA: siw0 is not used"]
