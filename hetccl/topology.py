"""Where each rank runs and which device it drives, and the islands that follow from it.

Everything is read from /proc and /sys: no driver, runtime or vendor library is loaded, so that a Comm for host buffers
never creates a GPU context. bootstrap.py sends the Members round; info and doctor print them. The roots are arguments
for the tests.
"""

import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

HOST = "host"
RUNTIMES = {"nvidia": "cuda", "amd": "hip", HOST: "host"}
# AMD encodes PCI bus, device and function in one number (Linux: kfd_topology.c, location_id).
_BUS_SHIFT, _DEVFN_BITS, _FUNCTION_BITS = 8, 8, 3


class Roots(NamedTuple):
    """The file systems that are read."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    dev: Path = Path("/dev")


ROOTS = Roots()


@dataclass(frozen=True)
class Device:
    """A GPU as the kernel's driver shows it.

    vendor : "nvidia" | "amd"
    name   : the driver's name for the model
    pci    : "dddd:bb:dd.f"; "" for a MIG instance, whose GPU only the vendor's library knows
    uuid   : as CUDA_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES take it; "" if the driver shows none
    """

    vendor: str
    name: str
    pci: str
    uuid: str


@dataclass(frozen=True)
class Nic:
    """One port of an RDMA device.

    state      : "ACTIVE", "DOWN", ...
    link_layer : "InfiniBand" | "Ethernet"
    rate       : the kernel's text, "100 Gb/sec (4X EDR)"
    """

    name: str
    port: int
    state: str
    link_layer: str
    rate: str

    def as_port(self):
        """What is known of it, under the names that _verbs.devices() has for it."""
        return {
            "device": self.name,
            "port": self.port,
            "state": self.state,
            "link_layer": self.link_layer,
            "rate": self.rate,
        }


@dataclass(frozen=True)
class Member:
    """One rank, as the other ranks need to know it. Plain strings and ints: pickles, and `asdict` makes JSON of it.

    host    : host name
    machine : equal on two ranks exactly if one kernel runs both and each sees the other's /proc entry: boot id, PID and
              user namespace. The host name is part of it, because cloned virtual machines repeat the rest.
    pid     : in that PID namespace
    started : start time of the process, clock ticks since boot; with pid it names the process for good: pids return
    vendor  : "nvidia" | "amd" | "host"
    runtime : "cuda" | "hip" | "host"
    device  : name of the first visible device, "" without one
    pci     : its PCI address
    label   : HETCCL_ISLAND, or the vendor where that is not set
    cpus    : the cores this rank may use, in the kernel's list form, "0-3,8"
    """

    host: str
    machine: str
    pid: int
    started: int
    vendor: str
    runtime: str
    device: str
    pci: str
    label: str
    cpus: str

    @property
    def cores(self):
        """The cores this rank may use, as a frozenset of int."""
        return parse_cpulist(self.cpus)

    def shares_memory(self, other):
        """True if one kernel runs both ranks and each can open the other's /proc entry."""
        return self.machine == other.machine

    def as_dict(self):
        """The fields by name; `Member(**d)` is the way back."""
        return asdict(self)


class Island(NamedTuple):
    """The ranks of a communicator that one vendor CCL can serve together; `ranks` in rank order."""

    label: str
    vendor: str
    ranks: tuple


def local(config, roots=ROOTS):
    """Describe the calling process.

    config : hetccl.config.Config; island and the three *_visible_devices are read
    Returns: Member
    """
    visible = devices(config, roots)
    first = visible[0] if visible else Device(HOST, "", "", "")
    return Member(
        host=socket.gethostname(),
        machine=_machine(roots),
        pid=os.getpid(),
        started=start_time(os.getpid(), roots),
        vendor=first.vendor,
        runtime=RUNTIMES[first.vendor],
        device=first.name,
        pci=first.pci,
        label=config.island or first.vendor,
        cpus=format_cpulist(os.sched_getaffinity(0)),
    )


def islands(members):
    """Group ranks into islands: same vendor, runtime and label.

    members : sequence of Member, one per rank, in rank order
    Returns : tuple of Island, ordered by lowest rank
    """
    groups = {}
    for rank, member in enumerate(members):
        groups.setdefault((member.label, member.vendor, member.runtime), []).append(rank)
    return tuple(Island(label, vendor, tuple(ranks)) for (label, vendor, _), ranks in groups.items())


def devices(config, roots=ROOTS):
    """The GPUs this process may use, in the order in which the vendor's runtime numbers them on a node of like GPUs.

    CUDA sorts unlike GPUs by speed unless CUDA_DEVICE_ORDER=PCI_BUS_ID; here it is always PCI order.
    Returns : tuple of Device; NVIDIA's come first on a machine that holds both
    Source  : CUDA programming guide, CUDA_VISIBLE_DEVICES; ROCm, "GPU isolation techniques"
    """
    amd = _select(_amd_devices(roots), config.rocr_visible_devices)
    # HIP numbers what ROCr left over, and takes CUDA's variable where its own is missing.
    hip_choice = config.hip_visible_devices
    amd = _select(amd, config.cuda_visible_devices if hip_choice is None else hip_choice)
    return _select(_nvidia_devices(roots), config.cuda_visible_devices) + amd


def nics(roots=ROOTS):
    """The RDMA ports of this host, by device name and port number: tuple of Nic."""
    found = []
    for port in sorted((roots.sys / "class/infiniband").glob("*/ports/*")):
        found.append(
            Nic(
                name=port.parent.parent.name,
                port=int(port.name),
                state=_text(port / "state").partition(":")[2].strip(),
                link_layer=_text(port / "link_layer"),
                rate=_text(port / "rate"),
            )
        )
    return tuple(sorted(found, key=lambda nic: (nic.name, nic.port)))


def start_time(pid, roots=ROOTS):
    """Start time of a process in clock ticks since boot; 0 if there is no such process. Source: proc(5), field 22."""
    # The command name, field 2, may itself hold spaces and brackets: count from its last bracket.
    fields = _text(roots.proc / str(pid) / "stat").rpartition(")")[2].split()
    return int(fields[22 - 3]) if fields else 0


def parse_cpulist(text):
    """ "0-3,8" -> frozenset({0, 1, 2, 3, 8})."""
    cores = set()
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        cores.update(range(int(low), int(high or low) + 1))
    return frozenset(cores)


def format_cpulist(cores):
    """{0, 1, 2, 3, 8} -> "0-3,8"."""
    runs = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def _machine(roots):
    boot = _text(roots.proc / "sys/kernel/random/boot_id")
    spaces = (_link(roots.proc / "self/ns" / kind) for kind in ("pid", "user"))
    return "/".join((socket.gethostname(), boot, *spaces))


def _nvidia_devices(roots):
    found = []
    for info in (roots.proc / "driver/nvidia/gpus").glob("*/information"):
        lines = (line.partition(":") for line in _text(info).splitlines())
        fields = {key.strip(): value.strip() for key, _, value in lines}
        pci = fields.get("Bus Location") or info.parent.name
        device = Device("nvidia", fields.get("Model", ""), pci.lower(), fields.get("GPU UUID", ""))
        found.append((device, roots.dev / f"nvidia{fields.get('Device Minor', '')}"))
    # A container may show every GPU of its host in /proc, and only its own in /dev. A host where no process has used a
    # GPU since boot may have no nodes at all: they are made on first use.
    granted = [device for device, node in found if node.exists()]
    return tuple(sorted(granted or [device for device, _ in found], key=lambda device: device.pci))


def _amd_devices(roots):
    found = []
    for node in (roots.sys / "class/kfd/kfd/topology/nodes").glob("*"):
        # Nodes of GPUs that the container may not use refuse to be read, and read as empty here.
        lines = (line.split() for line in _text(node / "properties").splitlines())
        fields = {parts[0]: int(parts[1]) for parts in lines if len(parts) == 2}
        if not fields.get("simd_count"):
            continue
        location, devfn_mask = fields.get("location_id", 0), (1 << _DEVFN_BITS) - 1
        slot, function = divmod(location & devfn_mask, 1 << _FUNCTION_BITS)
        pci = f"{fields.get('domain', 0):04x}:{location >> _BUS_SHIFT:02x}:{slot:02x}.{function}"
        unique = fields.get("unique_id", 0)
        name = _gfx_name(fields.get("gfx_target_version", 0)) or _text(node / "name")
        found.append((int(node.name), Device("amd", name, pci, f"GPU-{unique:016x}" if unique else "")))
    return tuple(device for _, device in sorted(found, key=lambda item: item[0]))


def _gfx_name(version):
    """90402 -> "gfx942": two decimal digits each for minor and stepping, shown as one hexadecimal digit each."""
    major, rest = divmod(version, 10000)
    return f"gfx{major}{rest // 100:x}{rest % 100:x}" if version else ""


def _select(found, choice):
    """Apply a *_VISIBLE_DEVICES list: numbers or uuid prefixes; the first entry that names nothing ends it."""
    if choice is None:
        return found
    chosen = []
    for entry in (part.strip() for part in choice.split(",")):
        if entry.startswith("MIG-") and found and found[0].vendor == "nvidia":
            chosen.append(Device("nvidia", "MIG instance", "", entry))
            continue
        if entry.isdecimal():
            matches = found[int(entry) : int(entry) + 1]
        else:
            matches = [device for device in found if entry and device.uuid.startswith(entry)]
        if len(matches) != 1:
            break
        chosen.append(matches[0])
    return tuple(chosen)


def _text(path):
    """A small file's text, stripped; "" if it is missing or may not be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _link(path):
    try:
        return os.readlink(path)
    except OSError:
        return ""
