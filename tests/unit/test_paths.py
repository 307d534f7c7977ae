"""Which way two ranks take to each other, and that both ends come to mirror images of it."""

import ipaddress
import random
from collections import Counter
from dataclasses import replace

import pytest
from rdma_hosts import LINK_LOCAL, Host, big_server, gid, infiniband, member, port, table, usual_table

from hetccl.config import Config
from hetccl.errors import HetcclError
from hetccl.net import gids, nearness, nics, paths

PORT = 40000


def tcp(*addresses):
    """What a rank shows of its TCP addresses, given as "10.0.0.1/24"."""
    entries = []
    for text in addresses:
        ip = ipaddress.ip_interface(text)
        about = {"address": str(ip.ip), "prefix": ip.network.prefixlen, "family": f"IPv{ip.version}"}
        entries.append({**about, "ifname": "eth0", "speed": None})
    return {"port": PORT, "addresses": entries}


def rail(device, address, number=1, **fields):
    """A rail card: RoCE v2, 100 Gb/s, alone at its distance."""
    return {
        "device": device,
        "port": number,
        "link_layer": "Ethernet",
        "gid": gid(address),
        "gid_index": 3,
        "gid_type": "RoCE v2",
        "lid": 0,
        "mtu": 4096,
        "speed": 100.0,
        "prefix": 24,
        "distance": nearness.UNKNOWN,
        "slot": 0,
        "why": "",
        **fields,
    }


def network(verbs="no RDMA device", address="192.168.0.1/16"):
    return {"verbs": verbs, "tcp": tcp(address)}


def mirrored(path):
    return [(theirs, mine) for mine, theirs in path.rails]


def both_ways(cards, members=None, **settings):
    """The Path from 0 to 1, after a look at the way back."""
    members = members or [member("n0"), member("n1")]
    there = paths.choose(0, 1, members, cards, Config(**settings))
    back = paths.choose(1, 0, members, cards, Config(**settings))
    assert there.kind == back.kind
    assert there.rails == mirrored(back)
    assert list(there.reasons) == list(back.reasons)
    return there


def test_one_host_shares_memory():
    path = both_ways([None, None], [member("n0"), member("n0")])
    assert path == paths.Path("shm", [], [], {})


@pytest.mark.parametrize("transport", [("verbs",), ("tcp",), ("verbs", "tcp")])
def test_one_host_without_shm(transport):
    members = [member("n0"), member("n0")]
    cards = [network([rail("mlx5_0", "10.0.0.1")]), network([rail("mlx5_0", "10.0.0.1")])]
    path = both_ways(cards, members, transport=transport)
    assert path.kind == transport[0]
    assert path.reasons["shm"] == "not in HETCCL_TRANSPORT"


def test_two_hosts_use_verbs():
    path = both_ways([network([rail("mlx5_0", "10.0.0.1")]), network([rail("mlx5_3", "10.0.0.2")])])
    assert (path.kind, path.rails) == ("verbs", [(0, 0)])
    assert "n0 and n1" in path.reasons["shm"]
    assert path.addresses and all(address[2] == PORT for address in path.addresses)


def test_tcp_where_one_has_no_nic():
    path = both_ways([network([rail("mlx5_0", "10.0.0.1")]), network("all its ports are down")])
    assert (path.kind, path.rails) == ("tcp", [])
    assert path.reasons["verbs"] == "rank 1: all its ports are down"


def test_two_pid_namespaces_of_one_host():
    members = [member("n0"), replace(member("n0"), machine="n0/other")]
    path = both_ways([network(), network()], members)
    assert path.kind == "tcp" and "namespaces" in path.reasons["shm"]


def test_nothing_leads_there():
    cards = [{"verbs": "no RDMA device", "tcp": "no network interface is up"}, network([rail("mlx5_0", "10.0.0.1")])]
    with pytest.raises(HetcclError) as caught:
        paths.choose(0, 1, [member("n0"), member("n1")], cards, Config())
    assert (caught.value.rank, caught.value.peer) == (0, 1)
    said = str(caught.value)
    assert said.startswith("rank 0 cannot reach rank 1: shm: n0 and n1 are different hosts; verbs: ")
    assert "no RDMA device" in said and said.endswith("tcp: rank 0: no network interface is up")


@pytest.mark.parametrize(
    "transport, words",
    [
        (("shm",), "verbs: not in HETCCL_TRANSPORT; tcp: not in HETCCL_TRANSPORT"),
        (("verbs",), "shm: not in HETCCL_TRANSPORT; verbs: ranks 0 and 1: no RDMA device"),
        (("shm", "verbs"), "tcp: not in HETCCL_TRANSPORT"),
    ],
)
def test_nothing_that_is_allowed_leads_there(transport, words):
    with pytest.raises(HetcclError, match=words):
        paths.choose(0, 1, [member("n0"), member("n1")], [network(), network()], Config(transport=transport))


def test_every_pair_that_cannot_meet_is_told():
    """Three hosts, of which the first has a NIC and the last no address: every pair stands in the lines, once."""
    cards = [network([rail("mlx5_0", "10.0.0.1")]), network(), {"verbs": "no RDMA device", "tcp": "no interface is up"}]
    members = [member("n0"), member("n1"), member("n2")]
    everyone = []
    for rank in range(3):
        peers = [peer for peer in range(3) if peer != rank]
        found, unreached = paths.choose_all(rank, peers, members, cards, Config())
        assert sorted([*found, *unreached]) == peers
        everyone.append(unreached)
    assert paths.unreached_lines(everyone) == [
        "rank 0 cannot reach rank 2: shm: n0 and n2 are different hosts; verbs: rank 2: no RDMA device; "
        "tcp: rank 2: no interface is up",
        "rank 1 cannot reach rank 2: shm: n1 and n2 are different hosts; verbs: ranks 1 and 2: no RDMA device; "
        "tcp: rank 2: no interface is up",
    ]


def test_what_cannot_meet_is_bounded():
    everyone = [
        {peer: f"{min(peer, rank)} {max(peer, rank)}" for peer in range(9) if peer != rank} for rank in range(9)
    ]
    said = paths.unreached_lines(everyone)
    assert len(said) == paths.MOST_LINES + 1 and said[-1] == "4 more such lines are left out"


def test_verbs_need_a_connection_to_begin_with():
    cards = [{"verbs": [rail("mlx5_0", "10.0.0.1")], "tcp": "no address"}, network([rail("mlx5_0", "10.0.0.2")])]
    with pytest.raises(HetcclError, match="verbs: no TCP connection to exchange addresses by: rank 0: no address"):
        paths.choose(0, 1, [member("n0"), member("n1")], cards, Config())


@pytest.mark.parametrize(
    "mine, theirs, pairs",
    [
        (["10.1.0.1/24"], ["10.1.0.2/24"], [("10.1.0.1", "10.1.0.2")]),
        (["fd00::1/64", "10.1.0.1/24"], ["10.1.0.2/24"], [("10.1.0.1", "10.1.0.2")]),
        (["fe80::1/64"], ["fe80::2/64"], [("fe80::1%eth0", "fe80::2%eth0")]),
        (["fd00::1/64"], ["fd00::2/64"], [("fd00::1", "fd00::2")]),
    ],
)
def test_addresses_to_try(mine, theirs, pairs):
    cards = [{"verbs": "no RDMA device", "tcp": tcp(*addresses)} for addresses in (mine, theirs)]
    assert both_ways(cards).addresses == [(*pair, PORT) for pair in pairs]


@pytest.mark.parametrize("mine, theirs", [("10.1.0.1/24", "fd00::1/64"), ("127.0.0.1/8", "127.0.0.1/8")])
def test_addresses_that_lead_nowhere(mine, theirs):
    cards = [{"verbs": "no RDMA device", "tcp": tcp(address)} for address in (mine, theirs)]
    with pytest.raises(HetcclError, match="tcp: their addresses are of different families, or do not leave"):
        paths.choose(0, 1, [member("n0"), member("n1")], cards, Config())


def test_loopback_leads_to_the_same_host():
    cards = [{"verbs": "no RDMA device", "tcp": tcp("127.0.0.1/8")}] * 2
    path = both_ways(cards, [member("n0"), member("n0")], transport=("tcp",))
    assert path.addresses == [("127.0.0.1", "127.0.0.1", PORT)]


def test_two_rails_of_two_subnets():
    mine = [rail("a", "10.0.0.1", slot=0), rail("b", "10.0.1.1", slot=1)]
    theirs = [rail("x", "10.0.1.2", slot=0), rail("y", "10.0.0.2", slot=1)]
    assert both_ways([network(mine), network(theirs)]).rails == [(0, 1), (1, 0)]


def test_a_rail_that_meets_only_the_other_ones_second():
    mine = [rail("a", "10.0.0.1", prefix=24), rail("b", "fd00::1", prefix=64)]
    theirs = [rail("x", "fe80::2"), rail("y", "10.0.0.2", slot=1)]
    assert both_ways([network(mine), network(theirs)]).rails == [(0, 1)]


@pytest.mark.parametrize("most, pairs", [(1, 1), (2, 2), (3, 3), (4, 3)])
def test_rail_counts_differ(most, pairs):
    mine = [rail(f"a{slot}", f"10.0.0.{slot + 1}", slot=slot) for slot in range(5)]
    theirs = [rail(f"x{slot}", f"10.0.0.{slot + 101}", slot=slot) for slot in range(3)]
    path = both_ways([network(mine), network(theirs)], rails=most)
    assert path.rails == [(index, index) for index in range(pairs)]


def test_a_port_is_in_one_rail_only():
    """Though it has several GIDs, and the other end several ports."""
    mine = [rail("a", "10.0.0.1"), rail("a", "10.0.1.1"), rail("a", "fd00::1", prefix=64)]
    theirs = [rail("x", "10.0.1.2"), rail("y", "fd00::2", prefix=64)]
    assert both_ways([network(mine), network(theirs)]).rails == [(1, 0)]


@pytest.mark.parametrize(
    "theirs, expected",
    [
        ([rail("x", "10.0.0.2"), rail("x", "fd00::2", prefix=64)], (0, 0)),
        ([rail("x", "fd00::2", prefix=64), rail("x", "10.0.0.2", gid_type="RoCE v1")], (1, 0)),
        ([rail("x", "10.0.0.2", gid_type="RoCE v1")], (2, 0)),
    ],
    ids=["IPv4", "IPv6", "v1"],
)
def test_the_best_gid_of_a_port_that_the_other_end_has_too(theirs, expected):
    mine = [rail("a", "10.0.0.1"), rail("a", "fd00::1", prefix=64), rail("a", "10.0.0.1", gid_type="RoCE v1")]
    assert both_ways([network(mine), network(theirs)]).rails == [expected]


def test_an_earlier_pair_makes_way():
    """The first port could take either of the other's, the second only the one that the first would choose."""
    mine = [rail("a", "10.0.0.1", prefix=16, slot=0), rail("b", "10.0.1.1", prefix=24, slot=1)]
    theirs = [rail("x", "10.0.1.2", prefix=16, slot=0), rail("y", "10.0.2.2", prefix=16, slot=1)]
    assert both_ways([network(mine), network(theirs)]).rails == [(0, 1), (1, 0)]


def test_same_subnet_before_nearness():
    """Whether a router joins two subnets cannot be seen from here."""
    mine = [rail("a", "10.0.0.1", distance=nearness.SWITCH), rail("b", "10.0.1.1", distance=nearness.NODE)]
    theirs = [rail("x", "10.0.1.2", distance=nearness.SWITCH)]
    assert both_ways([network(mine), network(theirs)]).rails == [(1, 0)]


def test_only_the_nearest_become_rails():
    mine = [rail("a", "10.0.0.1", distance=nearness.SWITCH), rail("b", "10.0.0.2", distance=nearness.OTHER_NODE)]
    theirs = [rail("x", "10.0.0.3", distance=nearness.NODE), rail("y", "10.0.0.4", distance=nearness.NODE, slot=1)]
    assert both_ways([network(mine), network(theirs)]).rails == [(0, 0)]


@pytest.mark.parametrize("slow, rails", [(100.0, [(0, 0), (1, 1)]), (50.0, [(0, 0), (1, 1)]), (25.0, [(1, 1)])])
def test_a_slow_port_holds_up_nobody(slow, rails):
    mine = [rail("a", "10.0.0.1", speed=slow), rail("b", "10.0.0.2", slot=1)]
    theirs = [rail("x", "10.0.0.3"), rail("y", "10.0.0.4", slot=1)]
    assert both_ways([network(mine), network(theirs)]).rails == rails


def test_unknown_speeds_are_alike():
    mine = [rail("a", "10.0.0.1", speed=0.0), rail("b", "10.0.0.2", slot=1, speed=0.0)]
    assert len(both_ways([network(mine), network(mine)]).rails) == 2


@pytest.mark.parametrize(
    "mine, theirs, words",
    [
        (rail("a", "10.0.0.1"), rail("x", "fd00::1"), "IPv6"),
        (rail("a", "10.0.0.1"), rail("x", "10.0.0.2", gid_type="RoCE v1"), "RoCE v1"),
        (rail("a", "fe80::1"), rail("x", "fd00::1"), "link-local"),
        (rail("a", "10.0.0.1"), rail("x", "fe80::1", link_layer="InfiniBand", gid_type="IB"), "InfiniBand"),
    ],
)
def test_rails_that_do_not_meet(mine, theirs, words):
    path = both_ways([network([mine]), network([theirs])])
    assert path.kind == "tcp" and words in path.reasons["verbs"]


def cluster(folder, nhosts):
    """Members and cards of a cluster of big servers, 8 ranks each."""
    members, hosts = [], []
    for number in range(nhosts):
        made, ports, ranks = big_server(folder / f"n{number}", f"n{number}", number)
        hosts += [(made, ports)] * len(ranks)
        members += ranks
    cards = [
        network(nics.card(rank, members, Config(), ports, made.roots), f"192.168.0.{rank + 1}/16")
        for rank, (made, ports) in enumerate(hosts)
    ]
    return members, cards


def test_every_nic_of_a_cluster_works(tmp_path):
    """Between servers with a subnet for each NIC, peers of one place meet over the NICs of their own GPUs."""
    members, cards = cluster(tmp_path, 2)
    used = Counter()
    for rank in range(8):
        path = paths.choose(rank, rank + 8, members, cards, Config())
        ((mine, theirs),) = path.rails
        assert cards[rank]["verbs"][mine]["device"] == cards[rank + 8]["verbs"][theirs]["device"] == f"mlx5_{rank}"
        used[mine] += 1
    assert used == {0: 8}, "the first card of each rank is the one of its own NIC"


def test_a_cluster_is_symmetric(tmp_path):
    members, cards = cluster(tmp_path, 2)
    for rank in range(8):
        for peer in range(8, 16):
            there = paths.choose(rank, peer, members, cards, Config())
            assert mirrored(there) == paths.choose(peer, rank, members, cards, Config()).rails
            # Over the NIC of the one's GPU, or over that of the other's: both are as near.
            slots = {cards[rank]["verbs"][mine]["slot"] for mine, _ in there.rails}
            assert slots == {cards[peer]["verbs"][theirs]["slot"] for _, theirs in there.rails} == {rank, peer - 8}


def test_infiniband_rails(tmp_path):
    made = Host(tmp_path)
    cards = [
        network(nics.card(0, [member()], Config(), [infiniband("ib0", prefix=first), infiniband("ib1")], made.roots))
        for first in ("fec0:0:0:1::", "fec0:0:0:2::")
    ]
    assert both_ways(cards).rails == [(1, 1)], "one subnet needs no router"


def test_infiniband_meets_no_ethernet(tmp_path):
    made = Host(tmp_path)
    found = ([infiniband("ib0"), port("eth0", gids=usual_table("10.0.0.1"))], [port("x", gids=usual_table("10.0.0.2"))])
    cards = [network(nics.card(0, [member()], Config(), ports, made.roots)) for ports in found]
    path = both_ways(cards)
    (pair,) = path.rails
    assert cards[0]["verbs"][pair[0]]["device"] == "eth0"


ADDRESSES = [f"10.0.{net}.{host}" for net in range(3) for host in (1, 2)] + ["fd00::1", "fd01::2", LINK_LOCAL]


def random_host(chance, folder):
    """Cards of a host with up to four devices, with whatever GIDs."""
    made = Host(folder)
    ports = []
    for index in range(chance.randrange(5)):
        if chance.random() < 0.2:
            ports.append(infiniband(f"ib{index}", prefix=chance.choice(["fe80::", "fec0:0:0:1::", "fec0:0:0:2::"])))
            continue
        entries = [
            (index, chance.choice(ADDRESSES), chance.choice(["v1", "v2", "v2"])) for index in range(chance.randrange(6))
        ]
        numa, rate = chance.choice([-1, 0, 1]), chance.choice([25, 100, 200])
        ports.append(port(f"mlx5_{index}", gids=table(*entries), numa=numa, rate=rate))
    if not ports:
        return "no RDMA device"
    made.add_nodes("0-3", "4-7")
    members = [member(cpus=chance.choice(["0-3", "4-7", "0-7"])) for _ in range(4)]
    cards = nics.card(chance.randrange(4), members, Config(), ports, made.roots)
    for card in cards if isinstance(cards, list) else ():
        if card["link_layer"] == "Ethernet":
            card["prefix"] = chance.choice([None, 16, 24])
    return cards


@pytest.mark.parametrize("seed", range(300))
def test_both_ends_agree(seed, tmp_path):
    chance = random.Random(seed)
    cards = [network(random_host(chance, tmp_path / name), "192.168.0.1/16") for name in "ab"]
    most = chance.randrange(1, 5)
    path = both_ways(cards, rails=most)
    assert len(path.rails) <= most
    ends = [[(c["device"], c["port"]) for c in card["verbs"]] if path.rails else [] for card in cards]
    for side in (0, 1):
        used = [ends[side][pair[side]] for pair in path.rails]
        assert len(set(used)) == len(used), "a port is in one rail only"
    for pair in path.rails:
        assert isinstance(gids.meet(cards[0]["verbs"][pair[0]], cards[1]["verbs"][pair[1]]), int)
    # Found by trying all: no rail only where no card of one end meets a card of the other.
    if path.kind == "tcp" and not any(isinstance(card["verbs"], str) for card in cards):
        meetings = [gids.meet(a, b) for a in cards[0]["verbs"] for b in cards[1]["verbs"]]
        assert all(isinstance(met, str) for met in meetings)


def test_random_hosts_are_of_all_kinds(tmp_path):
    """The seeds above meet what they are meant to."""
    kinds = Counter()
    for seed in range(300):
        chance = random.Random(seed)
        cards = [network(random_host(chance, tmp_path / f"{seed}{name}"), "192.168.0.1/16") for name in "ab"]
        path = paths.choose(0, 1, [member("n0"), member("n1")], cards, Config())
        kinds[path.kind, len(path.rails)] += 1
    assert {("tcp", 0), ("verbs", 1), ("verbs", 2)} <= set(kinds)


@pytest.mark.parametrize(
    "settings, words",
    [
        (Config(transport=("tcp",), ib_hca=(("mlx5_0",), False)), "HETCCL_IB_HCA is set.*HETCCL_TRANSPORT=tcp"),
        (Config(transport=("tcp",), ib_gid_index=3), "HETCCL_IB_GID_INDEX is set.*rules out verbs"),
        (Config(transport=("shm", "tcp"), ib_tc=96), "HETCCL_IB_TC is set.*HETCCL_TRANSPORT=shm,tcp"),
        (Config(transport=("verbs",), tcp_connections=4), "HETCCL_TCP_CONNECTIONS is set.*rules out tcp"),
        (Config(transport=("shm",), socket_ifname=(("eth0",), False)), "HETCCL_SOCKET_IFNAME.*verbs and tcp"),
    ],
)
def test_settings_that_contradict_each_other(settings, words):
    with pytest.raises(ValueError, match=words):
        paths.check(settings)


def test_every_contradiction_is_told():
    with pytest.raises(ValueError) as caught:
        paths.check(Config(transport=("shm",), ib_tc=1, ib_sl=2, tcp_connections=1))
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize(
    "settings",
    [
        Config(),
        Config(ib_hca=(("mlx5_0",), False), tcp_connections=4, socket_ifname=(("eth0",), True)),
        Config(transport=("verbs",), ib_gid_index=0, socket_ifname=(("eth0",), False)),
        Config(transport=("tcp",), tcp_connections=4, socket_ifname=(("eth0",), False)),
        Config(transport=("shm",)),
    ],
)
def test_settings_that_go_together(settings):
    paths.check(settings)
