"""This host's addresses for TCP against what `ip` or the socket calls say, and the order in which pairs are tried."""

import errno
import fcntl
import json
import os
import re
import shutil
import socket
import struct
import subprocess
from dataclasses import replace

import pytest

from hetccl.config import Config, load
from hetccl.net import interfaces

DEFAULTS = Config()
SIOCGIFADDR = 0x8915


def settings(text):
    return load({"HETCCL_SOCKET_IFNAME": text})


def entry(address, ifname="eth0", prefix=None, speed=None):
    family = "IPv6" if ":" in address else "IPv4"
    prefix = prefix or (64 if family == "IPv6" else 24)
    return {"address": address, "family": family, "ifname": ifname, "prefix": prefix, "speed": speed}


class Kernel:
    """A host whose rtnetlink answers are made up: [(name, up, [(address, prefix, flags)])]."""

    def __init__(self, links):
        self.links = links

    def dump(self, request, answer, body):
        for index, (name, up, assigned) in enumerate(self.links, 1):
            if request == 18:  # RTM_GETLINK
                flags = 0x41 if up else 0x1
                yield struct.pack("=BxHiII", 0, 1, index, flags, 0) + attribute(3, os.fsencode(name) + b"\0")
                continue
            for address, prefix, flags in assigned:
                family = socket.AF_INET6 if ":" in address else socket.AF_INET
                packed = attribute(1, socket.inet_pton(family, address))
                yield struct.pack("=BBBBi", family, prefix, flags, 0, index) + packed


def attribute(kind, value):
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


LOOPBACK = ("lo", True, [("127.0.0.1", 8, 0), ("::1", 128, 0)])
LINK_LOCAL = ("fe80::7", 64, 0)


@pytest.fixture
def host(monkeypatch):
    """Function: links of Kernel -> the addresses that hetccl finds with some settings."""

    def make(links, config=DEFAULTS):
        monkeypatch.setattr(interfaces, "_dump", Kernel(links).dump)
        return [found["address"] for found in interfaces.addresses(config)]

    return make


def test_a_name_that_is_no_utf_8(host):
    assert host([("caf\udce9", True, [("10.0.0.7", 24, 0)])]) == ["10.0.0.7"]


def test_this_host_as_the_ip_command_sees_it():
    if shutil.which("ip") is None:
        pytest.skip("there is no ip command")
    answer = subprocess.run(["ip", "-j", "address"], capture_output=True, text=True, check=True).stdout
    known = {
        (address["local"], link["ifname"], address["prefixlen"])
        for link in json.loads(answer)
        for address in link["addr_info"]
    }
    found = interfaces.addresses(DEFAULTS)
    assert {(e["address"], e["ifname"], e["prefix"]) for e in found} <= known
    assert found, "a host has at least a loopback interface"


def test_this_host_as_the_kernel_sees_it():
    found = {(e["address"], e["ifname"]) for e in interfaces.addresses(settings("lo"))}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        packed = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("16s24x", b"lo"))[20:24]
    assert (socket.inet_ntoa(packed), "lo") in found


def test_one_can_listen_on_each_address():
    listed = interfaces.addresses(DEFAULTS)
    assert listed
    for found in listed:
        family = socket.AF_INET6 if found["family"] == "IPv6" else socket.AF_INET
        scope = f"%{found['ifname']}" if found["address"].startswith("fe80") else ""
        with socket.create_server((found["address"] + scope, 0), family=family):
            pass


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        ([LOOPBACK, ("a", True, [("10.0.0.1", 8, 0), ("fd00::1", 64, 0), LINK_LOCAL])], ["10.0.0.1", "fd00::1"]),
        ([LOOPBACK, ("a", True, [("fd00::1", 64, 0), LINK_LOCAL])], ["fd00::1"]),
        ([LOOPBACK, ("a", True, [LINK_LOCAL])], ["fe80::7"]),
        ([LOOPBACK, ("a", True, [("169.254.3.4", 16, 0)]), ("b", True, [LINK_LOCAL])], ["169.254.3.4", "fe80::7"]),
        ([LOOPBACK], ["127.0.0.1", "::1"]),
        ([LOOPBACK, ("a", False, [("10.0.0.1", 8, 0)])], ["127.0.0.1", "::1"]),
        ([LOOPBACK, ("a", True, [("fd00::1", 64, 0x40), ("fd00::2", 64, 0x08), ("fd00::3", 64, 0)])], ["fd00::3"]),
        ([("a", True, [])], []),
        ([], []),
    ],
    ids=[
        "both",
        "IPv6 alone",
        "link-local alone",
        "both link-local",
        "loopback alone",
        "down",
        "tentative",
        "none",
        "",
    ],
)
def test_addresses(host, links, expected):
    assert host(links) == expected


def test_an_address_of_a_point_to_point_link_is_this_ends(monkeypatch):
    def dump(request, answer, body):
        if request == 18:
            yield from Kernel([("tun0", True, [])]).dump(request, answer, body)
        else:
            far, near = (attribute(kind, socket.inet_aton(a)) for kind, a in ((1, "10.0.0.2"), (2, "10.0.0.1")))
            yield struct.pack("=BBBBi", socket.AF_INET, 32, 0, 0, 1) + far + near

    monkeypatch.setattr(interfaces, "_dump", dump)
    assert [found["address"] for found in interfaces.addresses(DEFAULTS)] == ["10.0.0.1"]


TWO = [LOOPBACK, ("eth0", True, [("10.0.0.1", 8, 0)]), ("ib0", True, [("10.1.0.1", 8, 0), LINK_LOCAL])]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("eth0", ["10.0.0.1"]),
        ("ib0", ["10.1.0.1"]),
        ("ib0,eth0", ["10.0.0.1", "10.1.0.1"]),
        ("lo", ["127.0.0.1", "::1"]),
        ("^eth0", ["10.1.0.1"]),
        ("^eth0,ib0", ["127.0.0.1", "::1"]),
    ],
)
def test_chosen_interfaces(host, text, expected):
    assert host(TWO, settings(text)) == expected


@pytest.mark.parametrize("text", ["eth1", "^eth1", "eth0,eth1", "eth"])
def test_an_unknown_interface(host, text):
    wrong = "eth" if text == "eth" else "eth1"
    with pytest.raises(ValueError, match=rf"HETCCL_SOCKET_IFNAME={re.escape(text)}: .* {wrong}; .* eth0, ib0, lo"):
        host(TWO, settings(text))


@pytest.mark.parametrize("text", ["down0", "^lo,eth0", "bare0"])
def test_chosen_interfaces_without_an_address(host, text):
    links = [
        LOOPBACK,
        ("eth0", True, [("10.0.0.1", 8, 0)]),
        ("down0", False, [("10.2.0.1", 8, 0)]),
        ("bare0", True, []),
    ]
    with pytest.raises(ValueError, match="leaves no interface that is up and has an address; there are bare0, down0"):
        host(links, settings(text))


def test_a_kernel_that_refuses(monkeypatch):
    near, far = socket.socketpair()

    class Link:
        """A netlink socket that answers EPERM."""

        def __init__(self, *_):
            self.bind = lambda address: None

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def settimeout(self, seconds):
            assert seconds > 0

        def send(self, data):
            length, kind, flags = struct.unpack_from("=IHH", data)
            assert (length, kind, flags) == (len(data), 18, 0x301)
            far.send(struct.pack("=IHHIIi", 20, 2, 0, 1, 0, -errno.EPERM))

        def recv(self, nbytes):
            return near.recv(nbytes)

    monkeypatch.setattr(interfaces.socket, "socket", Link)
    with pytest.raises(OSError, match="does not list") as refused:
        interfaces.addresses(DEFAULTS)
    assert refused.value.errno == errno.EPERM
    near.close(), far.close()


def no_route(address):
    return None


def routes(**table):
    """Function: address -> source, by the address's first part."""
    return lambda address: table.get("to_" + re.split("[.:]", address)[0])


def test_the_same_subnet_comes_first():
    mine = [entry("10.0.0.1"), entry("172.16.0.1", "eth1")]
    theirs = [entry("172.16.9.2", "eth1"), entry("10.0.0.2")]
    pairs = interfaces.order(mine, theirs, routes(to_172="172.16.0.1"))
    assert pairs == [("10.0.0.1", "10.0.0.2"), ("172.16.0.1", "172.16.9.2")]


def test_the_kernels_route_picks_the_interface():
    mine = [entry("10.0.0.1"), entry("172.16.0.1", "eth1")]
    pairs = interfaces.order(mine, [entry("192.168.7.7"), entry("203.0.113.9")], routes(to_192="172.16.0.1"))
    assert pairs[0] == ("172.16.0.1", "192.168.7.7")
    assert set(pairs[1:]) == {("10.0.0.1", "203.0.113.9"), ("172.16.0.1", "203.0.113.9")}


def test_a_route_over_an_interface_that_was_left_out_is_not_taken():
    pairs = interfaces.order([entry("10.0.0.1")], [entry("192.168.7.7")], routes(to_192="172.16.0.1"))
    assert pairs == [("10.0.0.1", "192.168.7.7")]


def test_the_faster_interface_comes_first():
    mine = [entry("10.0.0.1", speed=1000), entry("10.1.0.1", "ib0", speed=200_000), entry("10.2.0.1", "x")]
    theirs = [entry("10.0.0.2", speed=1000), entry("10.1.0.2", "ib0", speed=100_000), entry("10.2.0.2", "x")]
    assert [pair[1] for pair in interfaces.order(mine, theirs, no_route)] == ["10.1.0.2", "10.0.0.2", "10.2.0.2"]


def test_ipv6_alone():
    mine, theirs = [entry("fd00::1")], [entry("fd00::2"), entry("10.0.0.1")]
    assert interfaces.order(mine, theirs, no_route) == [("fd00::1", "fd00::2")]


def test_link_local_addresses_have_the_scope_of_this_hosts_interface():
    pairs = interfaces.order([entry("fe80::1", "eth0")], [entry("fe80::2", "enp3s0")], no_route)
    assert pairs == [("fe80::1%eth0", "fe80::2%eth0")]


def test_two_hosts_of_which_one_has_but_a_loopback_interface():
    assert interfaces.order([entry("127.0.0.1", "lo", 8)], [entry("10.0.0.1")], no_route) == []
    assert interfaces.order([entry("10.0.0.1")], [entry("127.0.0.1", "lo", 8)], no_route) == []


def test_bridges_of_containers_come_last():
    """Each host has one of the same address, which leads nowhere but to itself."""
    bridge = entry("172.17.0.1", "docker0", 16)
    pairs = interfaces.order([bridge, entry("10.0.0.1")], [bridge, entry("10.0.1.1")], routes(to_10="10.0.0.1"))
    assert pairs == [("10.0.0.1", "10.0.1.1"), ("172.17.0.1", "172.17.0.1")]


def test_one_host():
    both = [entry("172.17.0.1", "docker0", 16), entry("10.0.0.1")]
    assert interfaces.order(both, both, no_route) == [("172.17.0.1", "172.17.0.1"), ("10.0.0.1", "10.0.0.1")]


@pytest.mark.parametrize("source", [interfaces.route_source, no_route])
def test_this_host_reaches_itself(source):
    found = interfaces.addresses(DEFAULTS)
    for mine, theirs in interfaces.order(found, found, source):
        family = socket.AF_INET6 if ":" in theirs else socket.AF_INET
        with socket.create_server((theirs, 0), family=family) as server:
            there = theirs, server.getsockname()[1]
            with socket.create_connection(there, timeout=10, source_address=(mine, 0)) as near:
                assert near.getpeername()[:2] == server.getsockname()[:2]


@pytest.mark.parametrize(("text", "expected"), [("100000\n", 100_000), ("-1\n", None), ("", None), (None, None)])
def test_speed(tmp_path, monkeypatch, text, expected):
    monkeypatch.setattr(interfaces, "NETWORKS", tmp_path)
    if text is not None:
        (tmp_path / "eth0").mkdir()
        (tmp_path / "eth0" / "speed").write_text(text)
    assert interfaces.speed("eth0") == expected


def test_loopback_has_a_route():
    assert interfaces.route_source("127.0.0.1") == "127.0.0.1"


def test_nothing_depends_on_the_hosts_name(monkeypatch):
    def refuse(*_):
        raise AssertionError("the name service was asked")

    for name in ("gethostname", "gethostbyname", "getfqdn", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
    found = interfaces.addresses(replace(DEFAULTS))
    interfaces.order(found, found)
