"""Addresses of RDMA ports: what a GID is, and whether two ports reach each other by theirs.

A GID is 128 bits: an InfiniBand port's subnet prefix and GUID, or the IP address of a RoCE port. Here it is the text
that `_verbs.devices` gives, 32 hexadecimal digits. Everything is a pure function, so that both ends of a pair come to
the same answer.
"""

import functools
import ipaddress
from typing import NamedTuple

INFINIBAND, ETHERNET = "InfiniBand", "Ethernet"
IB, ROCE_V1, ROCE_V2 = "IB", "RoCE v1", "RoCE v2"

# How well two ports reach each other, best first. Between subnets it depends on routers that nothing here can see.
# RoCE v1 is a protocol of its own beside IP, which switches and NICs neglect: last.
SAME_SUBNET, ROUTED, ROCE_V1_SUBNET = range(3)

INFINIBAND_PREFIX = 64  # bits of a GID that name its InfiniBand subnet
# What InfiniBand ports have until their subnet manager gives them a prefix, on every fabric.
# Source: InfiniBand Architecture Specification, volume 1, 4.1.1.
_DEFAULT_PREFIX = 0xFE80 << 48
# Bits of the network in an address whose netmask is not known: they decide no more than which pairs come first.
_GUESSED = {4: 24, 6: 64}


class Address(NamedTuple):
    """A GID as a number.

    version : 4 | 6, of the IP address in it
    scope   : "routable" | "link-local" | "loopback" | "unspecified", which no host has as its own
    """

    value: int
    version: int
    scope: str


@functools.lru_cache(maxsize=1 << 14)
def parse(gid):
    """The Address in a GID. gid : str, 32 hexadecimal digits. Raises ValueError."""
    value = int.from_bytes(bytes.fromhex(gid), "big")
    if len(gid) != 32:
        raise ValueError(f"gid: expected 32 hexadecimal digits, got {gid!r}")
    ip = ipaddress.IPv6Address(value)
    inner = ip.ipv4_mapped or ip
    return Address(int(inner), inner.version, _scope(inner))


def _scope(ip):
    if ip.is_unspecified or ip.is_multicast:
        return "unspecified"
    if ip.is_loopback:
        return "loopback"
    return "link-local" if ip.is_link_local else "routable"


def inner(gid):
    """The IP address in a RoCE port's GID, as text: "10.0.0.1", "fd00::1"."""
    ip = ipaddress.IPv6Address(bytes.fromhex(gid))
    return str(ip.ipv4_mapped or ip)


def meet(mine, theirs):
    """How well two rails reach each other: SAME_SUBNET, ROUTED or ROCE_V1_SUBNET; or str, why they do not.

    mine, theirs : rail cards, see hetccl.net.nics
    Invariant    : meet(a, b) == meet(b, a)
    """
    if mine["link_layer"] != theirs["link_layer"]:
        return "one port is InfiniBand, the other Ethernet"
    if mine["link_layer"] == INFINIBAND:
        return _meet_infiniband(mine, theirs)
    if mine["gid_type"] != theirs["gid_type"]:
        return "one GID is of RoCE v1, the other of RoCE v2"
    a, b = parse(mine["gid"]), parse(theirs["gid"])
    if a.version != b.version:
        return "one GID is IPv4, the other IPv6"
    if a.scope != b.scope:
        one, other = sorted((a.scope, b.scope))
        return f"one GID is {one}, the other {other}"
    if a.scope in ("loopback", "unspecified"):
        return SAME_SUBNET if a == b else f"a GID that is {a.scope} reaches its own port only"
    near = a.scope == "link-local" or _same_subnet(a, mine["prefix"], b, theirs["prefix"])
    if mine["gid_type"] == ROCE_V1:
        return ROCE_V1_SUBNET if near else "RoCE v1 does not leave its subnet"
    return SAME_SUBNET if near else ROUTED


def _meet_infiniband(mine, theirs):
    a, b = (int(card["gid"][:16], 16) for card in (mine, theirs))
    if a == b:
        return SAME_SUBNET
    if _DEFAULT_PREFIX in (a, b):
        return "the InfiniBand subnets differ, and a default prefix is not routed"
    return ROUTED


def _same_subnet(a, prefix_a, b, prefix_b):
    """Whether each lies in the other's network. prefix : bits, None where the netmask is not known."""
    width = 32 if a.version == 4 else 128
    bits = max(_GUESSED[a.version] if prefix is None else prefix for prefix in (prefix_a, prefix_b))
    return (a.value ^ b.value) >> (width - bits) == 0
