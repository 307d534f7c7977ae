"""What a GID is, and whether two ports reach each other by theirs."""

import itertools

import pytest
from rdma_hosts import LINK_LOCAL, gid

from hetccl._rdma import gid_text
from hetccl.net import gids


def card(address, kind="RoCE v2", prefix=None, link_layer="Ethernet"):
    return {"gid": gid(address), "gid_type": kind, "link_layer": link_layer, "prefix": prefix}


@pytest.mark.parametrize(
    "address, version, scope",
    [
        ("10.0.0.1", 4, "routable"),
        ("127.0.0.1", 4, "loopback"),
        ("169.254.3.4", 4, "link-local"),
        ("0.0.0.0", 4, "unspecified"),
        ("224.0.0.1", 4, "unspecified"),
        ("2001:db8::1", 6, "routable"),
        ("fd00::1", 6, "routable"),
        ("::1", 6, "loopback"),
        ("fe80::1", 6, "link-local"),
        ("febf::1", 6, "link-local"),
        ("fec0::1", 6, "routable"),
        ("ff02::1", 6, "unspecified"),
        ("::", 6, "unspecified"),
    ],
)
def test_parse(address, version, scope):
    assert gids.parse(gid(address))[1:] == (version, scope)


@pytest.mark.parametrize("text", ["", "0" * 31, "0" * 33, "0" * 34, "g" * 32, "00:00"])
def test_parse_refuses_what_is_no_gid(text):
    with pytest.raises(ValueError):
        gids.parse(text)


@pytest.mark.parametrize(
    "address, text", [("10.99.0.1", "::ffff:10.99.0.1"), ("fd99::1", "fd99::1"), ("fe80::1:0:2", "fe80::1:0:2")]
)
def test_text(address, text):
    assert gid_text(gid(address)) == text


@pytest.mark.parametrize(
    "a, b, expected",
    [
        (card("10.0.0.1", prefix=24), card("10.0.0.2", prefix=24), gids.SAME_SUBNET),
        (card("10.0.0.1", prefix=24), card("10.0.1.2", prefix=24), gids.ROUTED),
        (card("10.0.0.1", prefix=16), card("10.0.1.2", prefix=16), gids.SAME_SUBNET),
        # The narrower mask decides: what one end takes for its neighbour, the other sends to a router.
        (card("10.0.0.1", prefix=16), card("10.0.1.2", prefix=24), gids.ROUTED),
        (card("10.0.0.0", prefix=31), card("10.0.0.1", prefix=31), gids.SAME_SUBNET),
        (card("10.0.0.1", prefix=32), card("10.0.0.2", prefix=32), gids.ROUTED),
        (card("10.0.0.1", prefix=0), card("192.168.0.1", prefix=0), gids.SAME_SUBNET),
        (card("10.0.0.1"), card("10.0.0.200"), gids.SAME_SUBNET),
        (card("10.0.0.1"), card("10.0.1.1"), gids.ROUTED),
        (card("fd00::1", prefix=64), card("fd00::2", prefix=64), gids.SAME_SUBNET),
        (card("fd00::1", prefix=64), card("fd00:0:0:1::2", prefix=64), gids.ROUTED),
        (card("fd00::1", prefix=128), card("fd00::2", prefix=128), gids.ROUTED),
        (card("10.0.0.1", "RoCE v1"), card("10.0.0.2", "RoCE v1"), gids.ROCE_V1_SUBNET),
        (card("fe80::1"), card("fe80::2"), gids.SAME_SUBNET),
        (card("fe80::1", "RoCE v1"), card("fe80::2", "RoCE v1"), gids.ROCE_V1_SUBNET),
        (card("::1"), card("::1"), gids.SAME_SUBNET),
        (card("fe80::7", "IB", 64, "InfiniBand"), card("fe80::8", "IB", 64, "InfiniBand"), gids.SAME_SUBNET),
        (card("fec0:0:0:1::7", "IB", 64, "InfiniBand"), card("fec0:0:0:2::8", "IB", 64, "InfiniBand"), gids.ROUTED),
    ],
)
def test_who_reaches_whom(a, b, expected):
    assert gids.meet(a, b) == expected == gids.meet(b, a)


@pytest.mark.parametrize(
    "a, b, words",
    [
        (card("fe80::7", "IB", 64, "InfiniBand"), card("10.0.0.1"), "InfiniBand, the other Ethernet"),
        (card("10.0.0.1"), card("10.0.0.2", "RoCE v1"), "RoCE v1"),
        (card("10.0.0.1"), card("fd00::1"), "IPv6"),
        (card("10.0.0.1", "RoCE v1"), card("10.0.1.2", "RoCE v1"), "does not leave its subnet"),
        (card("fd00::1"), card(LINK_LOCAL), "link-local"),
        (card("10.0.0.1"), card("127.0.0.1"), "loopback"),
        (card("127.0.0.1"), card("127.0.0.2"), "its own port"),
        (card("fe80::7", "IB", 64, "InfiniBand"), card("fec0::8", "IB", 64, "InfiniBand"), "default prefix"),
    ],
)
def test_who_does_not(a, b, words):
    assert words in gids.meet(a, b)
    assert gids.meet(a, b) == gids.meet(b, a)


def test_meet_is_symmetric():
    addresses = ["10.0.0.1", "10.0.1.1", "127.0.0.1", "169.254.0.1", "::1", LINK_LOCAL, "fd00::1", "fd01::1"]
    cards = [card(a, kind, prefix) for a in addresses for kind in ("RoCE v1", "RoCE v2") for prefix in (None, 8, 24)]
    cards += [card(a, "IB", 64, "InfiniBand") for a in ("fe80::7", "fec0::7", "fec0:0:0:1::7")]
    pairs = list(itertools.product(cards, cards))
    assert [gids.meet(a, b) for a, b in pairs] == [gids.meet(b, a) for a, b in pairs]
