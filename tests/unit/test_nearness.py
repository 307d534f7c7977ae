"""PCIe distance and NUMA nodes, in made-up trees of sysfs."""

import pytest
from rdma_hosts import Host, member, port, table

from hetccl.net import nearness

RC, RC2 = "pci0000:00", "pci0000:80"
ROOT = (RC, "0000:00:01.0")
SWITCH = (*ROOT, "0000:01:00.0")


@pytest.fixture
def host(tmp_path):
    made = Host(tmp_path)
    made.add_nodes("0-3", "4-7")
    return made


def measure(host, gpu, nic, gpu_node=-1, nic_node=-1):
    host.add_pci(*gpu, numa=gpu_node)
    sys = host.add_pci(*nic, numa=nic_node)
    mine = nearness.of_member(member(pci=gpu[-1], cpus="0-3"), host.roots)
    return nearness.distance(mine, nearness.of_port(port(sys=sys, numa=nic_node), host.roots))


GPU, NIC = "0000:0a:00.0", "0000:0b:00.0"


@pytest.mark.parametrize(
    "gpu, nic, expected",
    [
        ((*SWITCH, "0000:02:00.0", GPU), (*SWITCH, "0000:02:01.0", NIC), nearness.SWITCH),
        ((*ROOT, "0000:01:00.0"), (*ROOT, "0000:01:00.1"), nearness.SWITCH),
        (
            (*SWITCH, "0000:02:00.0", "0000:03:00.0", "0000:04:00.0", GPU),
            (*SWITCH, "0000:02:01.0", "0000:05:00.0", "0000:06:00.0", NIC),
            nearness.ROOT_PORT,
        ),
        ((*ROOT, GPU), (RC, "0000:00:02.0", NIC), nearness.BRIDGE),
        ((RC, "0000:00:05.0"), (RC, "0000:00:06.0"), nearness.BRIDGE),
    ],
)
def test_common_ancestors(host, gpu, nic, expected):
    assert measure(host, gpu, nic) == expected


@pytest.mark.parametrize(
    "gpu_node, nic_node, expected",
    [
        (0, 0, nearness.NODE),
        (0, 1, nearness.OTHER_NODE),
        (1, 1, nearness.NODE),
        (-1, 1, nearness.UNKNOWN),
        (0, -1, nearness.UNKNOWN),
    ],
)
def test_numa_nodes_of_devices_apart(host, gpu_node, nic_node, expected):
    assert measure(host, (*ROOT, GPU), (RC2, "0000:80:01.0", NIC), gpu_node, nic_node) == expected


@pytest.mark.parametrize(
    "cpus, node, expected",
    [
        ("0-3", 0, nearness.NODE),
        ("4", 0, nearness.OTHER_NODE),
        ("3-4", 1, nearness.NODE),
        ("0-7", 1, nearness.NODE),
        ("9", 1, nearness.UNKNOWN),
        ("0", -1, nearness.UNKNOWN),
    ],
)
def test_ranks_without_a_gpu_go_by_their_cores(host, cpus, node, expected):
    sys = host.add_pci(*ROOT, NIC, numa=node)
    place = nearness.of_port(port(sys=sys, numa=node), host.roots)
    assert nearness.distance(nearness.of_member(member(cpus=cpus), host.roots), place) == expected


def test_a_host_of_one_node_leaves_no_doubt(tmp_path):
    host = Host(tmp_path)
    host.add_nodes("0-7")
    assert measure(host, (*ROOT, GPU), (RC2, "0000:80:01.0", NIC)) == nearness.NODE


def test_a_software_device_is_where_its_interface_is(host):
    """rdma_rxe has no PCI device of its own."""
    folder = host.add_pci(*ROOT, NIC, numa=1)
    link = host.roots.sys / "class/net/eth0/device"
    link.parent.mkdir(parents=True)
    link.symlink_to(folder)
    soft = port("rxe0", gids=table((0, "10.0.0.1", "v2", "eth0")))
    place = nearness.of_port(soft, host.roots)
    assert place.nodes == {1} and place.chain[-1] == NIC


def test_a_device_that_is_nowhere(host):
    place = nearness.of_port(port("rxe0", gids=table((0, "10.0.0.1", "v2", "veth0"))), host.roots)
    assert place == nearness.Place((), frozenset())
    assert nearness.distance(nearness.of_member(member(), host.roots), place) == nearness.UNKNOWN


def test_words_for_each_distance():
    assert len(set(nearness.WORDS)) == nearness.UNKNOWN + 1
