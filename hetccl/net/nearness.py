"""How near a NIC is to what a rank works on: its GPU, or the cores of a rank without one. Read from /sys.

A device's place in sysfs is its path through the PCIe tree: host bridge, root port, switch ports, device.
"""

import os
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from hetccl import topology

# Nearest first; in a card, a distance is an index here.
WORDS = (
    "on the same PCIe switch",
    "below the same root port",
    "on the same host bridge",
    "on the same NUMA node",
    "on another NUMA node",
    "at an unknown distance",
)
SWITCH, ROOT_PORT, BRIDGE, NODE, OTHER_NODE, UNKNOWN = range(len(WORDS))
# From a switch's inner side: one of its ports, and the device there.
_BELOW_SWITCH = 2


class Place(NamedTuple):
    """Where something is. chain : names on its path through the PCIe tree, () if not known; nodes : of NUMA, int."""

    chain: tuple
    nodes: frozenset


def of_member(member, roots=topology.ROOTS):
    """The Place of a rank of this host: of its GPU, or of its cores."""
    device = roots.sys / "bus/pci/devices" / member.pci
    if member.pci and device.exists():
        return of_device(device, roots)
    nodes = _nodes(roots)
    return Place((), frozenset(node for node, cores in nodes.items() if cores & member.cores))


def of_port(port, roots=topology.ROOTS):
    """The Place of an RDMA port. port : dict as _verbs.devices() gives it."""
    # A software device has no place of its own: that of the network interface beneath it counts.
    beneath = [roots.sys / "class/net" / gid["netdev"] / "device" for gid in port["gids"] if gid["netdev"]]
    place = of_device(port["sys"] or next((path for path in beneath if path.exists()), ""), roots)
    return place if port["numa"] < 0 else place._replace(nodes=frozenset([port["numa"]]))


def of_device(path, roots=topology.ROOTS):
    """The Place of a PCI device. path : of its folder in sysfs, or of a link to it; "": not known."""
    parts = Path(os.path.realpath(path)).parts if path else ()
    bridges = [index for index, part in enumerate(parts) if part.startswith("pci") and ":" in part]
    chain = parts[bridges[0] :] if bridges else ()
    return Place(chain, _nodes_of_device(path, roots) if chain else frozenset())


def distance(mine, nic):
    """How far a NIC is: SWITCH to UNKNOWN. mine, nic : Place."""
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(mine.chain, nic.chain)))
    if shared > 1:
        below = max(len(mine.chain), len(nic.chain)) - shared
        return SWITCH if below <= _BELOW_SWITCH else ROOT_PORT
    if shared == 1:
        return BRIDGE
    if mine.nodes and nic.nodes:
        return NODE if mine.nodes & nic.nodes else OTHER_NODE
    return UNKNOWN


def _nodes_of_device(path, roots):
    try:
        node = int((Path(path) / "numa_node").read_text())
    except (OSError, ValueError):
        node = -1
    if node >= 0:
        return frozenset([node])
    # Firmware that names no node leaves no doubt where there is one only.
    nodes = _nodes(roots)
    return frozenset(nodes) if len(nodes) == 1 else frozenset()


def _nodes(roots):
    """{NUMA node: its cores}"""
    found = {}
    for path in (roots.sys / "devices/system/node").glob("node[0-9]*/cpulist"):
        try:
            found[int(path.parent.name.removeprefix("node"))] = topology.parse_cpulist(path.read_text().strip())
        except (OSError, ValueError):
            continue
    return found
