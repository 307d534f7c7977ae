"""Made-up hosts for the tests of hetccl.net: a /sys, ports as _verbs.devices() lists them, and members."""

import ipaddress
from dataclasses import replace

from command import MEMBER

from hetccl.topology import Roots

LINK_LOCAL = "fe80::5054:ff:fe12:3456"


def gid(address):
    """ "10.0.0.1" or "fd00::1" -> 32 hexadecimal digits."""
    ip = ipaddress.ip_address(address)
    return f"{0xFFFF << 32 | int(ip) if ip.version == 4 else int(ip):032x}"


def table(*entries):
    """A port's GIDs. entries : (index, address, "v1" | "v2" | "IB") or these with the interface's name."""
    kinds = {"v1": "RoCE v1", "v2": "RoCE v2", "IB": "IB"}
    return [
        {"index": index, "gid": gid(address), "type": kinds[kind], "netdev": (*rest, "")[0]}
        for index, address, kind, *rest in entries
    ]


def usual_table(address):
    """What Linux makes of an interface with one IPv4 address."""
    return table((0, LINK_LOCAL, "v1"), (1, LINK_LOCAL, "v2"), (2, address, "v1"), (3, address, "v2"))


def port(device="mlx5_0", number=1, gids=(), **fields):
    """A port as _verbs.devices() gives it: RoCE, active, 100 Gb/s."""
    return {
        "device": device,
        "port": number,
        "state": "ACTIVE",
        "link_layer": "Ethernet",
        "active_mtu": 4096,
        "lid": 0,
        "sm_lid": 0,
        "rate": "100 Gb/sec (4X EDR)",
        "guid": "b8599f0300a1b2c3",
        "max_qp": 131072,
        "max_mr": 1 << 24,
        "max_qp_wr": 32768,
        "max_sge": 30,
        "max_qp_rd_atom": 16,
        "npkeys": 128,
        "ngids": 256,
        "gids": list(gids),
        "sys": "",
        "numa": -1,
        **fields,
    }


def infiniband(device="mlx5_0", number=1, prefix="fe80::", **fields):
    """An active InfiniBand port with one GID."""
    own = int(ipaddress.IPv6Address(prefix)) + 0xB8599F0300A1B200 + number
    entries = table((0, ipaddress.IPv6Address(own), "IB"))
    return port(device, number, entries, **{"link_layer": "InfiniBand", "lid": 7, **fields})


def member(host="n0", pci="", cpus="0-1"):
    """A rank of a host, driving the GPU at `pci` if there is one."""
    return replace(MEMBER, host=host, machine=f"{host}/boot", pci=pci, cpus=cpus)


class Host:
    """A /sys below a folder."""

    def __init__(self, folder):
        self.roots = Roots(folder / "proc", folder / "sys", folder / "dev")

    def write(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def add_nodes(self, *cpulists):
        """NUMA nodes, with the cores of each."""
        for node, cores in enumerate(cpulists):
            self.write(self.roots.sys / f"devices/system/node/node{node}/cpulist", cores + "\n")

    def add_pci(self, *path, numa=-1):
        """A PCI device by its path from the host bridge ("pci0000:00", "0000:00:01.0", ...). Returns its folder."""
        folder = self.roots.sys / "devices" / "/".join(path)
        self.write(folder / "numa_node", f"{numa}\n")
        link = self.roots.sys / "bus/pci/devices" / path[-1]
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(folder)
        return str(folder)

    def add_pkeys(self, device, *keys):
        """The partition keys of a device's first port."""
        for index, key in enumerate(keys):
            self.write(self.roots.sys / f"class/infiniband/{device}/ports/1/pkeys/{index}", key + "\n")


def big_server(folder, host="n0", cluster=0):
    """8 GPUs and 8 NICs, in pairs below a switch, four pairs on each of two sockets. Returns (Host, ports, members)."""
    made = Host(folder)
    made.add_nodes("0-31", "32-63")
    ports, members = [], []
    for pair in range(8):
        node, bus = pair // 4, 0x10 * (pair + 1)
        above = (f"pci0000:{bus:02x}", f"0000:{bus:02x}:01.0", f"0000:{bus + 1:02x}:00.0")
        gpu, nic = f"0000:{bus + 3:02x}:00.0", f"0000:{bus + 4:02x}:00.0"
        made.add_pci(*above, f"0000:{bus + 2:02x}:00.0", gpu, numa=node)
        sys = made.add_pci(*above, f"0000:{bus + 2:02x}:01.0", nic, numa=node)
        address = f"10.7.{pair}.{cluster + 1}"
        ports.append(port(f"mlx5_{pair}", gids=usual_table(address), sys=sys, numa=node, rate="400 Gb/sec (4X NDR)"))
        members.append(member(host, pci=gpu, cpus="0-31" if node == 0 else "32-63"))
    return made, ports, members
