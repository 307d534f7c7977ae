"""How many bits of this host's IP addresses are their subnet's. Read from /proc/net: a GID does not say it."""

import ipaddress
import sys

from hetccl import topology

# Columns of /proc/net/route: interface, destination, gateway, ..., mask. Of /proc/net/if_inet6: address, index of the
# interface, bits of the prefix, scope, flags, interface. Source: proc(5); Linux, net/ipv6/addrconf.c.
_IFACE, _DESTINATION, _GATEWAY, _MASK = 0, 1, 2, 7
_ADDRESS6, _BITS6 = 0, 2
_NO_GATEWAY = "00000000"


class Netmasks:
    """The subnets of this network namespace, as they are when the object is made."""

    def __init__(self, roots=topology.ROOTS):
        self._routes = _routes(roots)
        self._bits6 = _bits6(roots)

    def bits(self, gid):
        """Bits of the subnet's prefix of the address in a GID; None if no interface has it. gid : 32 hex digits."""
        inner = ipaddress.IPv6Address(bytes.fromhex(gid))
        if inner.ipv4_mapped is None:
            return self._bits6.get(gid)
        around = [net.prefixlen for net in self._routes if inner.ipv4_mapped in net]
        return max(around, default=None)


def _routes(roots):
    """The IPv4 networks that this host is a part of."""
    rows = [line.split() for line in _lines(roots.proc / "net/route")[1:]]
    direct = [row for row in rows if len(row) > _MASK and row[_GATEWAY] == _NO_GATEWAY and row[_MASK] != _NO_GATEWAY]
    return [ipaddress.IPv4Network((_number(row[_DESTINATION]), bin(_number(row[_MASK])).count("1"))) for row in direct]


def _number(text):
    """The kernel prints the four bytes as a number of the machine's own byte order."""
    return int.from_bytes(int(text, 16).to_bytes(4, sys.byteorder), "big")


def _bits6(roots):
    rows = [line.split() for line in _lines(roots.proc / "net/if_inet6")]
    return {row[_ADDRESS6]: int(row[_BITS6], 16) for row in rows if len(row) > _BITS6}


def _lines(path):
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
