"""The addresses of this host that peers may connect to, and which of two hosts' addresses to try first.

The kernel is asked (rtnetlink), not the host's name: a name may stand for 127.0.1.1, or for nothing at all.
"""

import ipaddress
import os
import socket
import struct
from pathlib import Path

from hetccl.config import names_text

NETWORKS = Path("/sys/class/net")
# linux/rtnetlink.h, linux/if_addr.h, linux/if_link.h, linux/if.h
RTM_NEWLINK, RTM_GETLINK, RTM_NEWADDR, RTM_GETADDR = 16, 18, 20, 22
NLM_F_REQUEST, NLM_F_DUMP = 1, 0x300
NLMSG_ERROR, NLMSG_DONE = 2, 3
IFA_ADDRESS, IFA_LOCAL, IFA_FLAGS = 1, 2, 8
IFA_F_DADFAILED, IFA_F_TENTATIVE = 0x08, 0x40
IFLA_IFNAME = 3
IFF_UP, IFF_RUNNING = 0x1, 0x40
HEADER = struct.Struct("=IHHII")
ANSWER_SECONDS = 5
FAMILIES = {socket.AF_INET: "IPv4", socket.AF_INET6: "IPv6"}


def addresses(settings):
    """The addresses of this host's interfaces that are up, link-local and loopback ones only if there is nothing else.

    settings : config.Config; socket_ifname picks interfaces
    Returns  : list of {"address": text without a scope, "family": "IPv4" | "IPv6", "ifname", "prefix": bits of the
               subnet, "speed": Mbit/s or None}, in the kernel's order
    Raises   : ValueError (an interface that does not exist, or none with an address), OSError
    """
    links = _links()
    names = _chosen(settings.socket_ifname, [name for name, _ in links.values()])
    up = {index: name for index, (name, is_up) in links.items() if is_up and name in names}
    found = [dict(entry, speed=speed(entry["ifname"])) for entry in _assigned(up)]
    if settings.socket_ifname is not None and not found:
        raise ValueError(
            f"HETCCL_SOCKET_IFNAME={names_text(settings.socket_ifname)} leaves no interface that is up and has an "
            f"address; there are {', '.join(sorted(name for name, _ in links.values()))}"
        )
    least = min((_remoteness(entry) for entry in found), default=0)
    return [entry for entry in found if _remoteness(entry) == least]


def subnets():
    """{address of this host: bits of it that are its subnet's}, of all interfaces that are up."""
    up = {index: name for index, (name, is_up) in _links().items() if is_up}
    return {entry["address"]: entry["prefix"] for entry in _assigned(up)}


def order(mine, theirs, source=None):
    """The pairs of addresses to try for a connection, best first.

    mine, theirs : addresses() of the two hosts
    source       : function: their address -> the address from which the kernel would send there, None: no route; for
                   tests
    Returns      : list of (my address, their address) as socket.create_connection() takes them, link-local ones with
                   the scope of the interface here. Same subnet first, then what the kernel has a route for, then what
                   HETCCL_SOCKET_IFNAME wants although the route is another. An address that both hosts have for
                   themselves, as those of container bridges, comes last, unless the hosts are the same.
    """
    source = source or route_source
    here, there = ({entry["address"] for entry in entries} for entries in (mine, theirs))
    shared = here & there if here != there else set()
    ranked = []
    for peer in theirs:
        candidates = [entry for entry in mine if entry["family"] == peer["family"]]
        near = [entry for entry in candidates if _is_near(entry, peer)]
        far = [entry for entry in candidates if _remoteness(entry) == _remoteness(peer) == 0]
        ranked += [(peer["address"] in shared, 0, _slowness(entry, peer), entry, peer) for entry in near]
        if far and not near:
            routed = source(peer["address"])
            exact = [entry for entry in far if entry["address"] == routed]
            ranked += [
                (peer["address"] in shared, 1 if exact else 2, _slowness(entry, peer), entry, peer)
                for entry in exact or far
            ]
    ranked.sort(key=lambda row: row[:3])
    return [(_scoped(entry["address"], entry), _scoped(peer["address"], entry)) for *_, entry, peer in ranked]


def route_source(address):
    """The address from which the kernel would send to another, or None: it has no route. Nothing is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return probe.getsockname()[0].partition("%")[0]
    except OSError:
        return None


def speed(ifname):
    """Mbit/s of an interface as its driver says, or None: it does not say."""
    try:
        value = int((NETWORKS / ifname / "speed").read_text())
    except (OSError, ValueError):
        return None
    return value if value > 0 else None


def _chosen(socket_ifname, existing):
    if socket_ifname is None:
        return set(existing)
    names, exclude = socket_ifname
    unknown = [name for name in names if name not in existing]
    if unknown:
        raise ValueError(
            f"HETCCL_SOCKET_IFNAME={names_text(socket_ifname)}: there is no network interface "
            f"{' or '.join(unknown)}; there are {', '.join(sorted(existing))}"
        )
    return set(existing) - set(names) if exclude else set(names)


def _remoteness(entry):
    """0: reaches other networks, 1: the link only, 2: this host only."""
    address = ipaddress.ip_address(entry["address"])
    return 2 if address.is_loopback else 1 if address.is_link_local else 0


def _is_near(entry, peer):
    network = ipaddress.ip_network(f"{entry['address']}/{entry['prefix']}", strict=False)
    return _remoteness(entry) == _remoteness(peer) and ipaddress.ip_address(peer["address"]) in network


def _slowness(entry, peer):
    """For sorting: the pair's slower interface counts, one of unknown speed as if it were very slow."""
    return -min(entry["speed"] or 0, peer["speed"] or 0)


def _scoped(address, entry):
    """entry: of the interface here that leads to the address."""
    return (
        f"{address}%{entry['ifname']}"
        if ipaddress.ip_address(address).version == 6 and (ipaddress.ip_address(address).is_link_local)
        else address
    )


def _links():
    """{index: (name, whether it is up and has a carrier)}"""
    links = {}
    for body in _dump(RTM_GETLINK, RTM_NEWLINK, struct.pack("=BxHiII", socket.AF_UNSPEC, 0, 0, 0, 0)):
        index, flags = struct.unpack_from("=iI", body, 4)
        name = _attributes(body[16:]).get(IFLA_IFNAME, b"").rstrip(b"\0")
        # The kernel allows any bytes but a few.
        links[index] = os.fsdecode(name), flags & (IFF_UP | IFF_RUNNING) == IFF_UP | IFF_RUNNING
    return links


def _assigned(names):
    """Yield the address entries of the interfaces in names: {index: name}."""
    for body in _dump(RTM_GETADDR, RTM_NEWADDR, struct.pack("=BBBBi", socket.AF_UNSPEC, 0, 0, 0, 0)):
        family, prefix, flags, _, index = struct.unpack_from("=BBBBi", body)
        found = _attributes(body[8:])
        # On a point-to-point link IFA_ADDRESS is the other end's.
        packed = found.get(IFA_LOCAL, found.get(IFA_ADDRESS))
        flags = struct.unpack("=I", found[IFA_FLAGS])[0] if IFA_FLAGS in found else flags
        if family in FAMILIES and index in names and packed and not flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED):
            address = socket.inet_ntop(family, packed)
            yield {"address": address, "family": FAMILIES[family], "ifname": names[index], "prefix": prefix}


def _dump(request, answer, body):
    """Yield the bodies of the kernel's answers to an rtnetlink request for everything of a kind."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as link:
        link.settimeout(ANSWER_SECONDS)
        link.bind((0, 0))
        link.send(HEADER.pack(HEADER.size + len(body), request, NLM_F_REQUEST | NLM_F_DUMP, 1, 0) + body)
        while True:
            data = link.recv(1 << 17)
            for kind, content in _messages(data):
                if kind == NLMSG_DONE:
                    return
                if kind == NLMSG_ERROR:
                    error = -struct.unpack_from("=i", content)[0]
                    raise OSError(error, f"the kernel does not list the network's interfaces: {os.strerror(error)}")
                if kind == answer:
                    yield content


def _messages(data):
    """Yield (kind, body) of the netlink messages in data."""
    while len(data) >= HEADER.size:
        nbytes, kind = HEADER.unpack_from(data)[:2]
        yield kind, data[HEADER.size : nbytes]
        data = data[_aligned(nbytes) :]


def _attributes(data):
    """{type: value} of a row of netlink attributes."""
    found = {}
    while len(data) >= 4:
        nbytes, kind = struct.unpack_from("=HH", data)
        if nbytes < 4:
            break
        found[kind & 0x3FFF] = data[4:nbytes]
        data = data[_aligned(nbytes) :]
    return found


def _aligned(nbytes):
    return max(4, nbytes + 3 & ~3)
