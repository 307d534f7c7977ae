"""Which RDMA ports of this host a rank uses, and which GID of each: the rail cards that it shows the other ranks.

A rail card is a dict that JSON can carry:

device, port, link_layer : "mlx5_0", 1, "InfiniBand" | "Ethernet"
gid, gid_index, gid_type : 32 hexadecimal digits, the index in the port's table, "IB" | "RoCE v1" | "RoCE v2"
lid, mtu, speed          : InfiniBand's local identifier (0 for RoCE), bytes, Gb/s (0.0 where it is not known)
prefix                   : bits of the GID that are its subnet's; None where the netmask is not known
distance, slot           : from the rank's device (index of nearness.WORDS); the port's place among those of its host
why                      : what speaks for this GID, in words
"""

import functools
import re
from dataclasses import replace
from typing import NamedTuple

from hetccl import _verbs, config, topology
from hetccl.errors import LibraryNotFound, VerbsError
from hetccl.net import fitness, gids, interfaces, nearness


class Choice(NamedTuple):
    """What became of one port of this host.

    port     : dict as _verbs.devices() gives it
    cards    : list of its rail cards, the best first; [] if the rank does not use it
    distance : index of nearness.WORDS
    why      : what speaks against it; "" if it is used
    """

    port: dict
    cards: list
    distance: int
    why: str

    @property
    def name(self):
        """ "mlx5_0:1" """
        return fitness.name_of(self.port)


def look(settings):
    """The RDMA ports of this host: list of dict as _verbs.devices() gives it, or str, why there is none.

    settings : config.Config; HETCCL_VERBS_LIB is read
    """
    problems = []
    try:
        ports = _verbs.devices(settings.verbs_lib, problems)
    except (LibraryNotFound, VerbsError) as error:
        # Without the paths that were tried: most hosts without RDMA have no libibverbs, and `doctor` lists them.
        problems, ports = [str(error).partition("; tried:")[0]], []
    if not ports and not problems:
        problems = ["no RDMA device"]
    for problem in problems:
        config.LOGGER.info("RDMA: %s", problem)
    return ports or "; ".join(problems)


def card(rank, members, settings, found, roots=topology.ROOTS):
    """The rail cards of a rank of this host, the nearest port's first; or str, why it has none.

    A port has several cards where several of its GIDs can serve: another rank may have only one kind.

    members : hetccl.topology.Member of every rank: those of this host share its ports
    found   : of look()
    Raises  : ValueError, the settings ask for what this host does not have
    """
    return shown(survey(rank, members, settings, found, roots), settings, found)


def shown(choices, settings, found):
    """card(), after survey()."""
    cards = [card for choice in choices for card in choice.cards]
    if cards:
        return cards
    why = "; ".join(f"{choice.name}: {choice.why}" for choice in choices) or found
    if settings.transport == ("verbs",):
        raise ValueError(f"HETCCL_TRANSPORT=verbs, but this host has no RDMA port to use: {why}")
    return why


def survey(rank, members, settings, found, roots=topology.ROOTS):
    """What becomes of each RDMA port of this host: list of Choice, in the order in which the rank uses them.

    Arguments and errors are those of card().
    """
    ports = [] if isinstance(found, str) else found
    whys = fitness.refusals(ports, settings, roots, "" if ports else found)
    places = {fitness.name_of(port): nearness.of_port(port, roots) for port in ports}
    used = sorted(
        (port for port in ports if not whys[fitness.name_of(port)]),
        key=lambda port: (places[fitness.name_of(port)].chain, port["device"], port["port"]),
    )
    slots = {fitness.name_of(port): slot for slot, port in enumerate(used)}
    distances = _distances(members[rank], places, roots)
    subnets = interfaces.subnets()
    choices = []
    for port in ports:
        name = fitness.name_of(port)
        entries = [] if whys[name] else fitness.entries(port, settings.ib_gid_index)
        cards = [_rail_card(port, entry, why, subnets, distances[name], slots[name]) for entry, why in entries]
        choices.append(Choice(port, cards, distances[name], whys[name]))
    return _in_turn(choices, _turn(rank, members, places, slots, roots))


def _distances(member, places, roots):
    """{name of a port: how far it is from the rank}"""
    mine = nearness.of_member(member, roots)
    return {name: nearness.distance(mine, place) for name, place in places.items()}


def _turn(rank, members, places, slots, roots):
    """How many lower ranks of this host have the same nearest ports: they would all begin with the same one."""
    mine = members[rank]

    @functools.cache
    def nearest(pci, cpus):
        distances = _distances(replace(mine, pci=pci, cpus=cpus), places, roots)
        least = min((distances[name] for name in slots), default=0)
        return frozenset(name for name in slots if distances[name] == least)

    lower = [other for other in members[:rank] if other.host == mine.host]
    wanted = nearest(mine.pci, mine.cpus)
    return sum(nearest(other.pci, other.cpus) == wanted for other in lower)


def _in_turn(choices, turn):
    """Used ports first, the nearest first, those of one distance beginning with the rank's turn."""
    used = {}
    for choice in choices:
        if choice.cards:
            used.setdefault(choice.distance, []).append(choice)
    ordered = []
    for distance in sorted(used):
        alike = sorted(used[distance], key=lambda choice: choice.cards[0]["slot"])
        start = turn % len(alike)
        ordered += alike[start:] + alike[:start]
    return ordered + [choice for choice in choices if not choice.cards]


def _rail_card(port, entry, why, subnets, distance, slot):
    infiniband = port["link_layer"] == gids.INFINIBAND
    return {
        "device": port["device"],
        "port": port["port"],
        "link_layer": port["link_layer"],
        "gid": entry["gid"],
        "gid_index": entry["index"],
        "gid_type": entry["type"],
        "lid": port["lid"] if infiniband else 0,
        "mtu": port["active_mtu"],
        "speed": _speed(port["rate"]),
        "prefix": gids.INFINIBAND_PREFIX if infiniband else subnets.get(gids.inner(entry["gid"])),
        "distance": distance,
        "slot": slot,
        "why": why,
    }


def _speed(rate):
    """Gb/s. rate : a number, or the kernel's text, "100 Gb/sec (4X EDR)"."""
    digits = re.match(r"[0-9.]+", str(rate))
    return float(digits[0]) if digits else 0.0
