"""Which way two ranks take to each other: shared memory, verbs or tcp, over which rails and addresses.

A function of what all ranks know once the communicator is built (members, cards, settings), so that both ends of a
pair come to mirror images of one result without a message. Only the order of the addresses follows each host's routes.
"""

import ipaddress
from typing import NamedTuple

from hetccl import config, topology
from hetccl.errors import HetcclError
from hetccl.net import gids, interfaces

# Best first.
KINDS = ("shm", "verbs", "tcp")
# A rail of less than this part of the fastest one's speed would hold up the others: pieces are of equal size.
SLOWEST_PART = 0.5
# Of who cannot reach whom, in one message.
MOST_LINES = 32

# {transports: the settings that mean nothing without one of them}
_NEEDED_BY = {
    ("verbs",): [name for name in config.Config.__dataclass_fields__ if name.startswith("ib_")],
    ("tcp",): ["tcp_connections"],
    ("verbs", "tcp"): ["socket_ifname"],
}


class Path(NamedTuple):
    """The way from one rank to another.

    kind      : "shm" | "verbs" | "tcp"
    rails     : [(index of my rail card, index of theirs)], in the pair's common order; verbs only
    addresses : [(my address, their address, their port)] to try for TCP connections, best first; not for shm
    reasons   : {kind: why it was not taken} of the kinds that would have come first
    """

    kind: str
    rails: list
    addresses: list
    reasons: dict


def check(settings):
    """Refuse settings that contradict each other. settings : config.Config. Raises ValueError, a line for each."""
    allowed = settings.transport or KINDS
    transport = f"HETCCL_TRANSPORT={','.join(allowed)}"
    problems = []
    for kinds, names in _NEEDED_BY.items():
        if not set(kinds) & set(allowed):
            problems += [
                f"HETCCL_{name.upper()} is set, but {transport} rules out {' and '.join(kinds)}: unset one of them"
                for name in names
                if getattr(settings, name) != getattr(config.Config(), name)
            ]
    if problems:
        raise ValueError("\n".join(problems))


def choose(rank, peer, members, cards, settings):
    """The way from `rank` to `peer`: the mirror image of the way back.

    members : hetccl.topology.Member of every rank
    cards   : of every rank {"verbs": rail cards, see hetccl.net.nics, "tcp": {"port": int, "addresses": as
              hetccl.net.interfaces.addresses() gives them}}, with the reason, a str, in the place of what a rank does
              not have; of ranks that share memory not looked at
    Returns : Path
    Raises  : HetcclError, with the reason against each kind: the same ones on both ends
    """
    path, whys = _choose(rank, peer, members, cards, settings)
    if path is None:
        raise HetcclError(f"rank {rank} cannot reach rank {peer}: {whys}", call="Comm", rank=rank, peer=peer)
    return path


def choose_all(rank, peers, members, cards, settings):
    """({peer: Path}, {peer: the reason against each kind, str}): the peers that can be reached, and the others."""
    found, unreached = {}, {}
    for peer in peers:
        path, whys = _choose(rank, peer, members, cards, settings)
        if path is None:
            unreached[peer] = whys
        else:
            found[peer] = path
    return found, unreached


def unreached_lines(everyone):
    """Who cannot reach whom, and why: a line for ranks of which that is the same, at most so many.

    everyone : of each rank {peer: reasons}, of choose_all()
    """
    alike = {}
    for rank, unreached in enumerate(everyone):
        for why in dict.fromkeys(unreached.values()):
            peers = tuple(peer for peer, other in unreached.items() if other == why)
            alike.setdefault((why, peers), []).append(rank)
    lines = {}
    for (why, peers), ranks in alike.items():
        if (peers, tuple(ranks), why) not in lines:  # the other end says the same
            lines[tuple(ranks), peers, why] = None
    said = [f"{_ranks(ranks)} cannot reach {_ranks(peers)}: {why}" for ranks, peers, why in lines]
    left = len(said) - MOST_LINES
    return said if left <= 0 else [*said[:MOST_LINES], f"{left} more such lines are left out"]


def _choose(rank, peer, members, cards, settings):
    """(Path, "") or (None, the reason against each kind)."""
    allowed = settings.transport or KINDS
    reasons = {kind: "not in HETCCL_TRANSPORT" for kind in KINDS if kind not in allowed}
    if "shm" in allowed:
        if members[rank].shares_memory(members[peer]):
            return Path("shm", [], [], {}), ""
        reasons["shm"] = _why_no_shm(*(members[end] for end in sorted((rank, peer))))
    addresses, why_unheard = _addresses(rank, peer, members, cards)
    if "verbs" in allowed:
        rails, reasons["verbs"] = _rails(rank, peer, cards, settings.rails)
        if rails and addresses:
            return Path("verbs", rails, addresses, _before("verbs", reasons)), ""
        if rails:
            reasons["verbs"] = f"no TCP connection to exchange addresses by: {why_unheard}"
    if "tcp" in allowed:
        if addresses:
            return Path("tcp", [], addresses, _before("tcp", reasons)), ""
        reasons["tcp"] = why_unheard
    return None, "; ".join(f"{kind}: {reasons[kind]}" for kind in KINDS)


def pair_up(low, high, most):
    """The rails of a pair of ranks.

    Only what is equally good becomes a rail, because each carries an equal part: the ports that reach each other best,
    of those the fast ones, of those the nearest to both ranks' devices.

    low, high : rail cards of the lower and of the higher rank, each in its rank's order     most : int
    Returns   : ([(index in low, index in high)], "") or ([], why none of them reaches another)
    """
    pairs, whys = {}, {}
    for i, mine in enumerate(low):
        for j, theirs in enumerate(high):
            met = gids.meet(mine, theirs)
            if isinstance(met, str):
                whys[met] = None
                continue
            ports = _port(mine), _port(theirs)
            pairs[ports] = min(pairs.get(ports, (met, i, j)), (met, i, j))
    if not pairs:
        return [], "; ".join(whys) or "no rail"
    return _match(_best(pairs.values(), low, high), low, high, most), ""


def _best(pairs, low, high):
    """Of [(how they meet, i, j)] the equally good ones: [(i, j)]."""
    best = min(met for met, _, _ in pairs)
    left = [(i, j) for met, i, j in pairs if met == best]
    speeds = {(i, j): min(low[i]["speed"], high[j]["speed"]) for i, j in left}
    fastest = max(speeds.values())
    left = [pair for pair in left if speeds[pair] >= SLOWEST_PART * fastest]
    far = {(i, j): low[i]["distance"] + high[j]["distance"] for i, j in left}
    nearest = min(far.values())
    return [pair for pair in left if far[pair] == nearest]


def _match(pairs, low, high, most):
    """As many of the pairs as there can be, at most `most`, so that no port is in two.

    The lower rank's ports come in its order; each takes the port of the same slot if it can, because in a fabric of
    rails such ports share a switch, else the first of the higher rank's order. A port that finds all taken makes
    another one change over. Source: augmenting paths (Kuhn 1955)
    """
    wanted = {}
    for i, j in sorted(pairs, key=lambda pair: (pair[0], low[pair[0]]["slot"] != high[pair[1]]["slot"], pair[1])):
        wanted.setdefault(_port(low[i]), []).append((i, j))
    taken = {}

    def place(port, seen):
        for i, j in wanted[port]:
            theirs = _port(high[j])
            if theirs in seen:
                continue
            seen.add(theirs)
            if theirs not in taken or place(_port(low[taken[theirs][0]]), seen):
                taken[theirs] = i, j
                return True
        return False

    for port in wanted:
        if len(taken) < most:
            place(port, set())
    return sorted(taken.values())


def _rails(rank, peer, cards, most):
    """([(my index, their index)], "") or ([], why not)."""
    low, high = (cards[end]["verbs"] for end in sorted((rank, peer)))
    missing = _missing("verbs", rank, peer, cards)
    if missing:
        return [], missing
    pairs, why = pair_up(low, high, most)
    return ([(i, j) if rank < peer else (j, i) for i, j in pairs]), why


def _addresses(rank, peer, members, cards):
    """([(my address, their address, their port)], "") or ([], why there is none). The kernel here tells its routes."""
    mine, theirs = cards[rank]["tcp"], cards[peer]["tcp"]
    missing = _missing("tcp", rank, peer, cards)
    if missing:
        return [], missing
    pairs = interfaces.order(mine["addresses"], theirs["addresses"])
    if members[rank].host != members[peer].host:
        # Every host has the same loopback addresses, and they lead to itself.
        pairs = [pair for pair in pairs if not ipaddress.ip_address(pair[1].partition("%")[0]).is_loopback]
    why = "their addresses are of different families, or do not leave their hosts"
    return [(*pair, theirs["port"]) for pair in pairs], "" if pairs else why


def _missing(kind, rank, peer, cards):
    """Which of the two lacks a card of a kind, and why; "" if neither does."""
    whys = {}
    for end in sorted((rank, peer)):
        if isinstance(cards[end][kind], str):
            whys.setdefault(cards[end][kind], []).append(str(end))
    return "; ".join(f"rank{'s' * (len(ends) > 1)} {' and '.join(ends)}: {why}" for why, ends in whys.items())


def _before(kind, reasons):
    return {other: reasons[other] for other in KINDS[: KINDS.index(kind)]}


def _why_no_shm(mine, theirs):
    if mine.host != theirs.host:
        return f"{mine.host} and {theirs.host} are different hosts"
    return f"two systems, PID namespaces or user namespaces on {mine.host}"


def _ranks(ranks):
    return f"rank{'s' * (len(ranks) > 1)} {topology.format_cpulist(ranks)}"


def _port(card):
    return card["device"], card["port"]
