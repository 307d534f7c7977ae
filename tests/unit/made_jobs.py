"""Made-up jobs for the tests of doctor and topo: of any size, on hosts with and without GPUs and NICs."""

from dataclasses import replace

from rdma_hosts import Host, member, port, usual_table

from hetccl import topology
from hetccl.cli import gpu, jobmap, matrix, network
from hetccl.config import Config
from hetccl.net import interfaces, nics

NO_GPU = gpu.Sight((), None, None)
OPENED = gpu.Opened("CUDA driver", "13.0", "/lib/libcuda.so.1", "system")
MODELS = {"nvidia": "NVIDIA H200", "amd": "gfx942"}
RUNTIMES = {"nvidia": "cuda", "amd": "hip"}


def with_gpu(made, vendor):
    """A member that drives a GPU."""
    return replace(
        made, vendor=vendor, runtime=RUNTIMES[vendor], device=MODELS[vendor], pci="0000:1b:00.0", label=vendor
    )


def sights_of(members):
    """gpu.Sight of members: one GPU for each that has a vendor."""
    return [
        gpu.Sight((topology.Device(each.vendor, each.device, each.pci, str(rank)),), OPENED, OPENED)
        if each.device
        else NO_GPU
        for rank, each in enumerate(members)
    ]


def job_of(members, nets, ways):
    """A JobMap. ways : of each rank, of network.ways()"""
    gpus, rows, of_host = sights_of(members), [], {}
    for rank, mine in enumerate(ways):
        # In a big job all ranks of a host have one row; a thousand of them would take long.
        key = members[rank].machine if len(members) > matrix.FULL_RANKS else rank
        if key not in of_host:
            of_host[key] = matrix.row(rank, members, mine, gpu.path_letters(members, gpus, rank))
        rows.append(of_host[key])
    return jobmap.JobMap(tuple(members), tuple(gpus), tuple(nets), ways[0], matrix.fold(rows, members))


class Maker:
    """Jobs whose paths hetccl.net chooses. monkeypatch, folder : pytest's monkeypatch and tmp_path"""

    def __init__(self, monkeypatch, folder):
        self.monkeypatch, self.roots = monkeypatch, Host(folder).roots

    def net(self, rank, members, ports, address, speed=10000):
        """network.Sight of a rank."""
        entry = {"address": address, "family": "IPv4", "ifname": "eth0", "prefix": 16, "speed": speed}
        self.monkeypatch.setattr(nics, "look", lambda settings: ports)
        self.monkeypatch.setattr(interfaces, "addresses", lambda settings: [entry])
        return network.sight(rank, members, Config(), self.roots)

    def job(self, members, nports, **settings):
        """(JobMap, ways of each rank). nports : {host: number of RDMA ports}"""
        hosts = list(dict.fromkeys(each.host for each in members))
        nets = []
        for rank, each in enumerate(members):
            number = hosts.index(each.host) + 1
            ports = [port(f"mlx5_{i}", gids=usual_table(f"10.0.{i}.{number}")) for i in range(nports.get(each.host, 0))]
            nets.append(self.net(rank, members, ports or "no RDMA device", f"192.168.0.{number}"))
        ways = [network.ways(rank, members, nets, Config(**settings)) for rank in range(len(members))]
        return job_of(members, nets, ways), ways


def islands(labels, host="n0"):
    """Members of one host without GPUs, in islands."""
    return [replace(member(host), label=label) for label in labels]


def three_hosts():
    """Four ranks each on a host of NVIDIA GPUs, one of AMD GPUs, and one without."""
    kinds = ("nvidia", "amd", "")
    return [
        with_gpu(member(f"node{host}"), kind) if kind else member(f"node{host}")
        for host, kind in enumerate(kinds)
        for _ in range(4)
    ]


def cluster(nhosts, per_host, nvidia):
    """Members of so many hosts, the first `nvidia` of them with NVIDIA's GPUs, the others with AMD's."""
    return [
        with_gpu(member(f"gpu{host:04d}" if host < nvidia else f"amd{host:04d}"), "nvidia" if host < nvidia else "amd")
        for host in range(nhosts)
        for _ in range(per_host)
    ]


def plain_ways(members, far="verbs"):
    """Ways of each rank, by shm inside a host and `far` between hosts, without a look at NICs."""
    everyone = []
    limit = {"gb_s": 50.0, "why": "mlx5_0:1 400 Gb/sec"}
    for rank, mine in enumerate(members):
        near = [peer for peer, other in enumerate(members) if other.host == mine.host and peer != rank]
        rest = [peer for peer, other in enumerate(members) if other.host != mine.host]
        about = {"rails": [], "reasons": {}, "problem": "", "expected": limit}
        everyone.append(
            [{"ranks": ranks, "kind": kind, **about} for ranks, kind in ((near, "shm"), (rest, far)) if ranks]
        )
    return everyone
