"""Topology from fake /proc and /sys trees, and the grouping of ranks into islands."""

import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from hetccl import topology
from hetccl.topology import Device, Island, Member, Nic, Roots


def config(island=None, cuda=None, hip=None, rocr=None):
    return SimpleNamespace(island=island, cuda_visible_devices=cuda, hip_visible_devices=hip, rocr_visible_devices=rocr)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def roots(tmp_path):
    return Roots(tmp_path / "proc", tmp_path / "sys", tmp_path / "dev")


def add_nvidia(roots, minor, pci, uuid, model="NVIDIA H200", node=True):
    write(
        roots.proc / f"driver/nvidia/gpus/{pci}/information",
        f"Model: \t\t {model}\nIRQ:   \t\t 512\nGPU UUID: \t {uuid}\nVideo BIOS: \t ??.??.??.??.??\nBus Type: \t PCIe\n"
        f"Bus Location: \t {pci}\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n",
    )
    if node:
        write(roots.dev / f"nvidia{minor}", "")


def add_amd(roots, node, location, unique=0, simds=304, version=90402):
    write(
        roots.sys / f"class/kfd/kfd/topology/nodes/{node}/properties",
        f"cpu_cores_count 0\nsimd_count {simds}\nlocation_id {location}\ndomain 1\n"
        f"unique_id {unique}\ngfx_target_version {version}\n",
    )


def member(vendor="host", label=None, **fields):
    base = Member("n0", "n0/boot", 1, 2, vendor, topology.RUNTIMES[vendor], "", "", label or vendor, "0")
    return replace(base, **fields)


def test_no_device_is_host(roots):
    found = topology.local(config(), roots)
    assert (found.vendor, found.runtime, found.device, found.pci, found.label) == ("host", "host", "", "", "host")


def test_local_describes_this_process():
    found = topology.local(config(island="left"))
    assert found.label == "left"
    assert found.pid == os.getpid()
    assert found.cores == os.sched_getaffinity(0)
    assert os.uname().nodename == found.host


# Prints the machine of the process that runs it.
MACHINE = (
    "from types import SimpleNamespace as N; from hetccl import topology; print(topology.local(N(island=None,"
    "cuda_visible_devices=None, hip_visible_devices=None, rocr_visible_devices=None)).machine)"
)


def machine_of(*command):
    """topology's machine of a process that another program starts."""
    done = subprocess.run([*command, sys.executable, "-c", MACHINE], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_machine_is_shared_by_processes_of_this_host_only(roots):
    here = topology.local(config())
    assert machine_of() == here.machine
    write(roots.proc / "sys/kernel/random/boot_id", "another-boot\n")
    assert not here.shares_memory(topology.local(config(), roots))


@pytest.mark.parametrize(
    "options, same",
    [
        ("--pid --fork --mount-proc", False),
        ("--user --map-root-user", False),
        # Shared memory is a descriptor in /proc: it needs none of these.
        ("--ipc", True),
        ("--net", True),
        ("--mount", True),
        ("--uts", True),
    ],
)
def test_namespaces_of_the_kernel(options, same):
    command = ["unshare", *options.split()]
    try:
        subprocess.run([*command, "true"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this system lets nobody start {' '.join(command)}: {error}")
    assert (machine_of(*command) == topology.local(config()).machine) == same


def test_another_host_name_is_another_machine():
    """Cloned virtual machines may repeat everything else."""
    command = ["unshare", "--uts", "sh", "-c", 'hostname elsewhere && exec "$@"', "sh"]
    try:
        subprocess.run([*command, "true"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this system lets nobody change a host name in a namespace: {error}")
    assert machine_of(*command).startswith("elsewhere/")


@pytest.mark.parametrize("kind", ["pid", "user"])
def test_another_namespace_is_another_machine(roots, kind):
    seen = set()
    for inode in ("1", "2"):
        link = roots.proc / "self/ns" / kind
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(f"{kind}:[{inode}]")
        seen.add(topology.local(config(), roots).machine)
    assert len(seen) == 2


def test_start_time_tells_processes_apart(roots):
    assert topology.start_time(os.getpid()) > 0
    write(roots.proc / "7/stat", "7 (a) b (c)) S " + " ".join(str(n) for n in range(4, 53)))
    assert topology.start_time(7, roots) == 22
    assert topology.start_time(8, roots) == 0


def test_nvidia_in_pci_order(roots):
    add_nvidia(roots, 1, "0000:9A:00.0", "GPU-bbbb")
    add_nvidia(roots, 0, "0000:18:00.0", "GPU-aaaa")
    assert topology.devices(config(), roots) == (
        Device("nvidia", "NVIDIA H200", "0000:18:00.0", "GPU-aaaa"),
        Device("nvidia", "NVIDIA H200", "0000:9a:00.0", "GPU-bbbb"),
    )
    found = topology.local(config(), roots)
    assert (found.vendor, found.runtime, found.label, found.pci) == ("nvidia", "cuda", "nvidia", "0000:18:00.0")


def test_nvidia_of_other_containers_are_left_out(roots):
    add_nvidia(roots, 0, "0000:18:00.0", "GPU-aaaa", node=False)
    add_nvidia(roots, 1, "0000:9a:00.0", "GPU-bbbb")
    assert [device.uuid for device in topology.devices(config(), roots)] == ["GPU-bbbb"]


def test_nvidia_without_any_node_yet(roots):
    add_nvidia(roots, 0, "0000:18:00.0", "GPU-aaaa", node=False)
    assert len(topology.devices(config(), roots)) == 1


@pytest.mark.parametrize(
    "choice, uuids",
    [
        (None, ["GPU-aa10", "GPU-aa20", "GPU-bb30"]),
        ("", []),
        ("-1", []),
        ("2,0", ["GPU-bb30", "GPU-aa10"]),
        ("1, 2", ["GPU-aa20", "GPU-bb30"]),
        ("0,7,1", ["GPU-aa10"]),
        ("GPU-bb", ["GPU-bb30"]),
        ("GPU-aa", []),
        ("GPU-aa20,0", ["GPU-aa20", "GPU-aa10"]),
        ("MIG-1234", ["MIG-1234"]),
        ("none", []),
    ],
)
def test_cuda_visible_devices(roots, choice, uuids):
    for minor, uuid in enumerate(["GPU-aa10", "GPU-aa20", "GPU-bb30"]):
        add_nvidia(roots, minor, f"0000:{minor}0:00.0", uuid)
    assert [device.uuid for device in topology.devices(config(cuda=choice), roots)] == uuids
    assert topology.local(config(cuda=choice), roots).vendor == ("nvidia" if uuids else "host")


def test_mig_without_a_driver_is_nothing(roots):
    assert topology.devices(config(cuda="MIG-1234"), roots) == ()


def test_amd_nodes(roots):
    add_amd(roots, 0, 0, simds=0)
    add_amd(roots, 10, 0xC503, unique=0x2A)
    add_amd(roots, 2, 0x0500)
    assert topology.devices(config(), roots) == (
        Device("amd", "gfx942", "0001:05:00.0", ""),
        Device("amd", "gfx942", "0001:c5:00.3", "GPU-000000000000002a"),
    )
    found = topology.local(config(), roots)
    assert (found.vendor, found.runtime, found.device) == ("amd", "hip", "gfx942")


@pytest.mark.parametrize(
    "version, name", [(90402, "gfx942"), (90010, "gfx90a"), (100302, "gfx1032"), (110000, "gfx1100")]
)
def test_gfx_name(roots, version, name):
    add_amd(roots, 1, 0x500, version=version)
    assert topology.devices(config(), roots)[0].name == name


def test_amd_node_that_may_not_be_read(roots):
    add_amd(roots, 1, 0x500)
    (roots.sys / "class/kfd/kfd/topology/nodes/2").mkdir()
    assert len(topology.devices(config(), roots)) == 1


@pytest.mark.parametrize(
    "choices, buses",
    [
        ({}, "01 02 03"),
        ({"rocr": "2,0"}, "03 01"),
        ({"rocr": "2,0", "hip": "1"}, "01"),
        ({"cuda": "1"}, "02"),
        ({"cuda": "1", "hip": "0"}, "01"),
        ({"hip": ""}, ""),
        ({"rocr": "GPU-0000000000000002"}, "02"),
    ],
)
def test_amd_visible_devices(roots, choices, buses):
    for bus in (1, 2, 3):
        add_amd(roots, bus, bus << 8, unique=bus)
    assert [device.pci[5:7] for device in topology.devices(config(**choices), roots)] == buses.split()


def test_nics(roots):
    for name, port, state, link in [
        ("mlx5_1", 1, "1: DOWN", "InfiniBand"),
        ("mlx5_0", 2, "4: ACTIVE", "Ethernet"),
        ("mlx5_0", 1, "4: ACTIVE", "Ethernet"),
    ]:
        folder = roots.sys / f"class/infiniband/{name}/ports/{port}"
        write(folder / "state", state + "\n")
        write(folder / "link_layer", link + "\n")
        write(folder / "rate", "100 Gb/sec (4X EDR)\n")
    assert topology.nics(roots) == (
        Nic("mlx5_0", 1, "ACTIVE", "Ethernet", "100 Gb/sec (4X EDR)"),
        Nic("mlx5_0", 2, "ACTIVE", "Ethernet", "100 Gb/sec (4X EDR)"),
        Nic("mlx5_1", 1, "DOWN", "InfiniBand", "100 Gb/sec (4X EDR)"),
    )


def test_no_nics(roots):
    assert topology.nics(roots) == ()


@pytest.mark.parametrize("cores, text", [(set(), ""), ({3}, "3"), ({0, 1}, "0-1"), ({0, 2, 3, 4, 9}, "0,2-4,9")])
def test_cpulist_both_ways(cores, text):
    assert topology.format_cpulist(cores) == text
    assert topology.parse_cpulist(text) == cores


def test_member_survives_pickle_and_json():
    original = member("amd", "left", device="gfx942", cpus="0-3,8")
    assert pickle.loads(pickle.dumps(original)) == original
    assert Member(**json.loads(json.dumps(original.as_dict()))) == original


@pytest.mark.parametrize(
    "members, expected",
    [
        ([("host", None)] * 3, [("host", "host", (0, 1, 2))]),
        ([("amd", None), ("nvidia", None)] * 2, [("amd", "amd", (0, 2)), ("nvidia", "nvidia", (1, 3))]),
        ([("host", x) for x in "ABBA"], [("A", "host", (0, 3)), ("B", "host", (1, 2))]),
        (
            [("amd", "x"), ("nvidia", "x"), ("amd", "y")],
            [("x", "amd", (0,)), ("x", "nvidia", (1,)), ("y", "amd", (2,))],
        ),
        ([("host", "b"), ("host", "a"), ("host", "b")], [("b", "host", (0, 2)), ("a", "host", (1,))]),
        ([], []),
    ],
)
def test_islands(members, expected):
    assert topology.islands([member(*m) for m in members]) == tuple(Island(*e) for e in expected)


def test_one_vendor_with_two_runtimes_is_two_islands():
    found = topology.islands([member("amd"), member("amd", runtime="cuda")])
    assert [island.ranks for island in found] == [(0,), (1,)]
