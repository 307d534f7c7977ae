"""The bandwidth that the links between ranks are made for, as this system tells it; nothing is measured here.

Numbers are GB/s (10^9 bytes) in one direction, without the headers of packets. Where nothing tells a number it is None.
"""

import re
from typing import NamedTuple

from hetccl import topology

# GT/s of a PCIe lane -> the part of its bits that is data: 8b/10b, 128b/130b, and 242 of the 256 bytes of a flit.
PCIE_DATA = {2.5: 0.8, 5.0: 0.8, 8.0: 128 / 130, 16.0: 128 / 130, 32.0: 128 / 130, 64.0: 242 / 256}
# SMBIOS 3.6, section 7.18, type 17: where the fields of a memory device lie.
DATA_WIDTH, SIZE, SPEED, CONFIGURED_SPEED = 0x0A, 0x0C, 0x15, 0x20
BITS = 8


class Limit(NamedTuple):
    """gb_s : GB/s one way, None where nothing tells it     why : where the number comes from, or why there is none"""

    gb_s: float | None
    why: str


def pcie(folder, fastest=False):
    """The PCIe link of a device.

    folder  : Path, of the device in sysfs
    fastest : its highest speed, for devices that slow their link down while nothing happens, as GPUs do
    Returns : Limit
    """
    speed = _number(folder / ("max_link_speed" if fastest else "current_link_speed"))
    width = _number(folder / "current_link_width")
    if speed not in PCIE_DATA or not width:
        return Limit(None, "PCIe unknown")
    return Limit(speed * width * PCIE_DATA[speed] / BITS, f"PCIe {speed:g} GT/s x{width:g}")


def gpu(pci, roots=topology.ROOTS):
    """The PCIe link of a rank's GPU. pci : its address, "" for none. Returns Limit, without a GPU with an empty why."""
    if not pci:
        return Limit(None, "")
    bus = pcie(roots.sys / "bus/pci/devices" / pci, fastest=True)
    return Limit(bus.gb_s, f"the GPU's bus, {bus.why} at its fastest" if bus.gb_s else "the GPU's bus: PCIe unknown")


def memory(roots=topology.ROOTS):
    """What this host's memory can give, copying: half of it is read and half written. Returns Limit.

    Firmware tells it to root alone; it lists modules, not channels, and modules may share one: it is an upper bound.
    """
    modules = []
    for raw in sorted((roots.sys / "firmware/dmi/entries").glob("17-*/raw")):
        try:
            data = raw.read_bytes()
        except OSError:
            return Limit(None, "unknown: the firmware tells the memory's speed to root alone")
        if len(data) > SPEED + 1 and _word(data, SIZE):
            configured = _word(data, CONFIGURED_SPEED) if len(data) > CONFIGURED_SPEED + 1 else 0
            modules.append((configured or _word(data, SPEED), _word(data, DATA_WIDTH)))
    if not modules or not all(speed and width for speed, width in modules):
        return Limit(None, "unknown: neither kernel nor firmware tell the memory's speed")
    peak = sum(speed * width / BITS for speed, width in modules) / 1000
    kinds = " and ".join(
        f"{modules.count(kind)} modules of {kind[1]} bit at {kind[0]} MT/s" for kind in dict.fromkeys(modules)
    )
    return Limit(peak / 2, f"at most half of {peak:.1f} GB/s: {kinds} (SMBIOS)")


def rails(ends):
    """What the rails of a verbs path carry together.

    ends    : of each rail a pair of dict, what Sight.ports of hetccl.cli.network has of its two ports
    Returns : Limit
    """
    total, whys = 0.0, []
    for pair in ends:
        limits = [
            Limit(port["gb_s"], f"{port['name']} {port['rate']}{' as a software device says' * port['software']}")
            for port in pair
        ]
        limits += [Limit(port["pcie_gb_s"], f"{port['name']} {port['bus']}") for port in pair]
        least = min((limit for limit in limits if limit.gb_s), default=None)
        if least is None:
            return Limit(None, f"unknown: {' and '.join(port['name'] for port in pair)} tell no rate")
        total += least.gb_s
        whys.append(least.why)
    return Limit(total, " + ".join(sorted(whys)))


def tcp(pair, interfaces, their_interfaces):
    """What the interfaces of a TCP path carry.

    pair       : (my address, their address)
    interfaces : {address: of interface_facts()}
    Returns    : Limit
    """
    found = [known.get(address.partition("%")[0]) for known, address in zip((interfaces, their_interfaces), pair)]
    limits = []
    for entry in filter(None, found):
        limits.append(Limit(entry["gb_s"], f"{entry['ifname']} {entry['rate']}"))
        limits.append(Limit(entry["pcie_gb_s"], f"{entry['ifname']} {entry['bus']}"))
    if all(entry and entry["gb_s"] for entry in found):
        return min(limit for limit in limits if limit.gb_s)
    silent = dict.fromkeys(entry["ifname"] for entry in found if entry and not entry["gb_s"])
    return Limit(None, f"unknown: the driver of {' and '.join(silent) or 'the interface'} tells no speed")


def port_facts(port, roots=topology.ROOTS):
    """{"gb_s": of its rate, "pcie_gb_s", "bus": where that is from, "software": without a device} of an RDMA port.

    port : dict as _verbs.devices() gives it
    """
    match = re.match(r"[0-9.]+", str(port["rate"]))
    device = roots.sys / "class/infiniband" / port["device"] / "device"
    bus = pcie(device)
    gb_s = float(match[0]) / BITS if match else None
    return {"gb_s": gb_s, "pcie_gb_s": bus.gb_s, "bus": bus.why, "software": not device.exists()}


def interface_facts(entry, roots=topology.ROOTS):
    """The same of a network interface, with its "ifname" and "rate". entry : of hetccl.net.interfaces.addresses()"""
    bus = pcie(roots.sys / "class/net" / entry["ifname"] / "device")
    speed = entry["speed"]
    return {
        "ifname": entry["ifname"],
        "rate": f"{speed} Mb/s" if speed else "",
        "gb_s": speed / 1000 / BITS if speed else None,
        "pcie_gb_s": bus.gb_s,
        "bus": bus.why,
    }


def _number(path):
    try:
        match = re.match(r"[0-9.]+", path.read_text())
    except OSError:
        return None
    return float(match[0]) if match else None


def _word(data, at):
    return int.from_bytes(data[at : at + 2], "little")
