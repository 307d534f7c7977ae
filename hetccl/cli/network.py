"""doctor's part about the network: what a rank would use of this host's NICs, and its ways to the other ranks."""

import re
from typing import NamedTuple

from hetccl import topology
from hetccl._rdma import gid_text
from hetccl.cli import job, links
from hetccl.cli.host import Check
from hetccl.errors import HetcclError
from hetccl.net import fitness, interfaces, nearness, nics, paths

# Jobs with more ranks get one line for each number of rails: rails are then too many to read.
DETAILED_RANKS = 16


class Sight(NamedTuple):
    """What one rank sees of the network; plain values, so that every rank can be told.

    card    : {"verbs": rail cards or why none, "tcp": {"port": 0, "addresses": list} or why none}
    ports   : list of dict, each RDMA port of the host: name, state, link_layer, rate, used, why, and links.port_facts()
    trouble : str, a setting that this host cannot meet; "" if there is none
    interfaces  : {address: links.interface_facts()}
    memory, gpu : [GB/s or None, why], of links: copying in the host's memory, and the bus of the rank's GPU
    """

    card: dict
    ports: list
    trouble: str
    interfaces: dict
    memory: list
    gpu: list


def sight(rank, members, settings, roots=topology.ROOTS):
    """What this rank sees. members : topology.Member of every rank     settings : config.Config"""
    try:
        paths.check(settings)
        found = nics.look(settings)
        choices = nics.survey(rank, members, settings, found, roots)
        verbs = nics.shown(choices, settings, found)
        addresses = interfaces.addresses(settings)
    except (ValueError, OSError) as error:
        card = {"verbs": "see network", "tcp": "see network"}
        return Sight(card, [], str(error), {}, [None, "see network"], [None, ""])
    tcp = {"port": 0, "addresses": addresses} if addresses else "no network interface is up"
    ports = [_port_of(choice) | links.port_facts(choice.port, roots) for choice in choices]
    facts = {entry["address"]: links.interface_facts(entry, roots) for entry in addresses}
    memory, bus = links.memory(roots), links.gpu(members[rank].pci, roots)
    return Sight({"verbs": verbs, "tcp": tcp}, ports, "", facts, list(memory), list(bus))


def rank_checks(seen):
    """What this rank would use. seen : Sight"""
    if seen.trouble:
        for line in seen.trouble.splitlines():
            yield Check("network", "fail", line)
        return
    for port in seen.ports:
        yield _port_check(port)
    verbs, tcp = seen.card["verbs"], seen.card["tcp"]
    if isinstance(verbs, str):
        yield Check("rails", "ok", verbs if not seen.ports else "no RDMA port can serve")
    else:
        yield Check("rails", "ok", "; ".join(_rails_text(verbs)))
    if isinstance(tcp, str):
        yield Check("TCP", "warn", tcp, "set up a network interface: ranks of other hosts are met by TCP first")
    else:
        yield Check("TCP", "ok", ", ".join(map(_address_text, tcp["addresses"])))


def ways(rank, members, sights, settings):
    """This rank's ways to the others, like ones together: list of dict.

    sights : of every rank
    ranks  : list of int     kind : of paths.Path, "" if there is no way, for which `problem` tells the reasons
    rails  : ["mlx5_0:1 - mlx5_3:1", ...]     reasons : {kind: why it is not taken}
    expected : {"gb_s", "why"}, of links.Limit
    """
    cards = [seen.card for seen in sights]
    found = {}
    for peer in range(len(members)):
        if peer != rank:
            way = _way(rank, peer, members, cards, sights, settings)
            found.setdefault(str(way), {"ranks": [], **way})["ranks"].append(peer)
    return list(found.values())


def way_checks(rank, found, detailed):
    """A line for each kind of way. found : of ways()     detailed : whether to name the rails"""
    for way in found:
        to = job.ranks_text(way["ranks"])
        if way["problem"]:
            advice = "give the hosts a common network, or allow more by HETCCL_TRANSPORT"
            yield Check("reach", "fail", f"{to} cannot be reached: {way['problem']}", advice)
        elif way["kind"] == "shm":
            # With itself: so all ranks of the host say the same, which makes one line of it.
            yield Check("reach", "ok", f"{job.ranks_text(sorted([rank, *way['ranks']]))} share memory")
        else:
            count = job.plural(len(way["rails"]), "rail")
            rails = f" over {', '.join(way['rails']) if detailed else count}" if way["rails"] else ""
            why = f"; not by verbs: {way['reasons']['verbs']}" if "verbs" in way["reasons"] else ""
            yield Check("reach", "ok", f"{to} by {way['kind']}{rails}{why}")


def _way(rank, peer, members, cards, sights, settings):
    try:
        path = paths.choose(rank, peer, members, cards, settings)
    except HetcclError as error:
        nothing = links.Limit(None, "no path")
        problem = str(error).partition(": ")[2]
        return {"kind": "", "rails": [], "reasons": {}, "problem": problem, "expected": nothing._asdict()}
    ends = [(cards[rank]["verbs"][mine], cards[peer]["verbs"][theirs]) for mine, theirs in path.rails]
    names = [tuple(map(fitness.name_of, end)) for end in ends]
    # Without the ranks: whose fault it is, their lines on rails and TCP tell, and like ways become one.
    reasons = {kind: re.sub(r"\branks? [0-9]+( and [0-9]+)?: ", "", why) for kind, why in path.reasons.items()}
    if members[rank].host != members[peer].host and reasons.get("shm", "").endswith("different hosts"):
        reasons["shm"] = "different hosts"
    limit = _limit(path, names, sights[rank], sights[peer])
    rails = list(map(" - ".join, names))
    return {"kind": path.kind, "rails": rails, "reasons": reasons, "problem": "", "expected": limit._asdict()}


def _limit(path, names, mine, theirs):
    """What a path is made for: links.Limit. names : of the ports of its rails"""
    if path.kind == "shm":
        return links.Limit(*mine.memory)
    if path.kind == "tcp":
        return links.tcp(path.addresses[0][:2], mine.interfaces, theirs.interfaces)
    ports = [{port["name"]: port for port in seen.ports} for seen in (mine, theirs)]
    return links.rails([tuple(known[name] for known, name in zip(ports, pair)) for pair in names])


def _port_of(choice):
    port = choice.port
    gid = [f"GID {card['gid_index']} {gid_text(card['gid'])}, {card['why']}" for card in choice.cards]
    return {
        "name": choice.name,
        "state": port["state"],
        "link_layer": port["link_layer"],
        "rate": str(port["rate"]),
        "used": bool(choice.cards),
        "why": "; else ".join(gid) or choice.why,
    }


def _port_check(port):
    about = f"{port['name']} ({port['link_layer']}, {port['rate']})"
    if port["used"]:
        return Check("RDMA port", "ok", f"{about}: {port['why']}")
    return Check("RDMA port", "ok", f"{about} is not used: {port['why']}")


def _rails_text(cards):
    """ "mlx5_0:1 on the same PCIe switch", the nearest first."""
    distances = {}
    for card in cards:
        distances.setdefault(card["distance"], dict())[fitness.name_of(card)] = None
    return [f"{', '.join(names)} {nearness.WORDS[distance]}" for distance, names in distances.items()]


def _address_text(entry):
    speed = f", {entry['speed']} Mb/s" if entry["speed"] else ""
    return f"{entry['address']}/{entry['prefix']} ({entry['ifname']}{speed})"
