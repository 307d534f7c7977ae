"""What a picture of a job shows: hosts with their ranks and NICs, and the networks between them; without places."""

from typing import NamedTuple

from hetccl import topology
from hetccl.cli import job
from hetccl.cli.links import BITS
from hetccl.net import fitness

# Jobs of more hosts, or hosts of more ranks, are drawn with like hosts as one, or with an island's ranks as one.
MOST_HOSTS, MOST_TILES, MOST_NICS = 32, 64, 16
NETWORKS = {"V": "RDMA", "T": "TCP"}


class Rank(NamedTuple):
    """One rank, or the ranks of an island of a host with many. island : its number     about : all that is known"""

    name: str
    device: str
    island: int
    about: str


class Nic(NamedTuple):
    """A port or interface. path : "V" | "T"     used : whether a rank of the host would use it"""

    name: str
    rate: str
    path: str
    used: bool
    about: str


class Box(NamedTuple):
    """A host, or so many like ones. shares : whether its ranks share memory     number : its place"""

    number: int
    name: str
    count: int
    ranks: tuple
    nics: tuple
    shares: bool
    about: str


class Network(NamedTuple):
    """The hosts that are joined by a kind of path, directly or through each other. boxes : tuple of Box"""

    name: str
    path: str
    boxes: tuple


class Scene(NamedTuple):
    """islands : tuple of (label, vendor, number of ranks)"""

    title: str
    islands: tuple
    boxes: tuple
    networks: tuple


def compose(seen):
    """The Scene of a job. seen : jobmap.JobMap"""
    hosts = job.by_host(seen.members)
    islands = topology.islands(seen.members)
    number_of = {rank: number for number, island in enumerate(islands) for rank in island.ranks}
    paths = _between(seen.matrix, hosts)
    classes = [(name,) for name in hosts]
    if len(hosts) > MOST_HOSTS:
        classes = [group.hosts for group in seen.matrix.groups]
    boxes = tuple(_box(place, names, hosts, seen, number_of, paths) for place, names in enumerate(classes))
    counts = [job.plural(len(seen.members), "rank"), job.plural(len(hosts), "host"), job.plural(len(islands), "island")]
    return Scene(
        f"{counts[0]} on {counts[1]}, {counts[2]}",
        tuple((island.label, island.vendor, len(island.ranks)) for island in islands),
        boxes,
        tuple(_networks(boxes, classes, paths)),
    )


def _between(matrix, hosts):
    """{(host, host): set of letters}, of hosts that differ and of the ranks of one."""
    place = {name: number for number, group in enumerate(matrix.groups) for name in group.hosts}
    found = {}
    if matrix.by_host:
        for one in hosts:
            for other in hosts:
                inside, between = matrix.inner[place[one]]
                paths = matrix.cells[place[one]][place[other]] if place[one] != place[other] else between
                found[one, other] = {path[0] for path in (inside if one == other else paths)}
        return found
    for group, row in zip(matrix.groups, matrix.cells):
        for other, cell in zip(matrix.groups, row):
            found.setdefault((group.hosts[0], other.hosts[0]), set()).update(path[0] for path in cell if path != ".")
    return found


def _box(number, names, hosts, seen, number_of, paths):
    name, ranks = names[0], hosts[names[0]]
    title = f"host {name}" if len(names) == 1 else f"{len(names)} x {name}"
    tiles = [_rank(rank, seen, number_of[rank]) for rank in ranks]
    if len(tiles) > MOST_TILES:
        tiles = _by_island(ranks, seen, number_of)
    nics = _nics(ranks, seen, paths, name)
    everyone = sorted(rank for each in names for rank in hosts[each])
    about = f"{title}: {job.plural(len(everyone), 'rank')}, {job.ranks_text(everyone)}"
    return Box(number, title, len(names), tuple(tiles), tuple(nics), "S" in paths[name, name], about)


def _rank(rank, seen, island):
    member = seen.members[rank]
    cards = seen.nets[rank].card["verbs"]
    ports = [] if isinstance(cards, str) else list(dict.fromkeys(map(fitness.name_of, cards)))
    device = f"{member.device} {member.pci}".strip() or "no GPU"
    about = f"rank {rank}, island {member.label}, {device}, cores {member.cpus}"
    if ports:
        about += f", {', '.join(ports)}"
    return Rank(f"rank {rank}", member.device.removeprefix("NVIDIA ") or "host memory", island, about)


def _by_island(ranks, seen, number_of):
    groups = {}
    for rank in ranks:
        groups.setdefault(number_of[rank], []).append(rank)
    for island, members in groups.items():
        first = seen.members[members[0]]
        about = f"{job.ranks_text(members)}, island {first.label}"
        yield Rank(
            job.plural(len(members), "rank"), first.device.removeprefix("NVIDIA ") or "host memory", island, about
        )


def _nics(ranks, seen, paths, host):
    """The ports of a host, and where TCP is used the interface of its first address."""
    net = seen.nets[ranks[0]]
    letters = set().union(*(found for (one, _), found in paths.items() if one == host))
    used = set()
    for rank in ranks:
        cards = seen.nets[rank].card["verbs"]
        used |= set() if isinstance(cards, str) else set(map(fitness.name_of, cards))
    nics = []
    for port in net.ports:
        rate = port["rate"].partition(" (")[0].replace("Gb/sec", "Gb/s")
        about = f"{port['name']} {port['link_layer']} {rate}" + ("" if port["used"] else f": {port['why']}")
        nics.append(Nic(port["name"], rate, "V", port["name"] in used and "V" in letters, about))
    del nics[MOST_NICS:]
    tcp = net.card["tcp"]
    if "T" in letters and not isinstance(tcp, str):
        names = dict.fromkeys(entry["ifname"] for entry in tcp["addresses"])
        for name in list(names)[:1]:
            facts = next(facts for facts in net.interfaces.values() if facts["ifname"] == name)
            about = ", ".join(f"{entry['address']} ({entry['ifname']})" for entry in tcp["addresses"])
            rate = f"{facts['gb_s'] * BITS:g} Gb/s" if facts["gb_s"] else "speed not told"
            nics.append(Nic(name, rate, "T", True, about))
    return nics


def _networks(boxes, classes, paths):
    """The connected hosts of each kind of path, as Network."""
    for letter, name in NETWORKS.items():
        joined = {number: {number} for number in range(len(boxes))}
        linked = set()
        for one, mine in enumerate(classes):
            for other, theirs in enumerate(classes):
                far = theirs[-1] if one == other else theirs[0]
                if letter in paths[mine[0], far] or (one == other and letter in paths[mine[0], mine[0]]):
                    linked |= {one, other}
                    both = joined[one] | joined[other]
                    joined.update(dict.fromkeys(both, both))
        groups = list({id(group): sorted(group) for number, group in joined.items() if number in linked}.values())
        for count, group in enumerate(groups):
            label = name if len(groups) == 1 else f"{name} {count + 1}"
            yield Network(label, letter, tuple(boxes[number] for number in group))
