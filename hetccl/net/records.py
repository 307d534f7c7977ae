"""What the bodies of control messages must be: every one that a peer sends is checked here before it is used.

A check returns plain values, or raises HandshakeError, which names the field and nothing of its contents.
"""

from hetccl import _wire
from hetccl._calls import CALLS
from hetccl.net.handshake import HandshakeError

MOST_CONNECTIONS = 16
TEXT_CHARACTERS = 1000
MOST_REASON = 5  # of a fault: enum hetccl_reason
# Why a proved peer does not go on. CROSSED: another connection of the pair is being made, or is there; ENDED: it has
# freed the communicator; FAILED: it cannot, and will not be able to.
CROSSED, ENDED, FAILED = REASONS = ("crossed", "ended", "failed")


def integer(body, name, low, high):
    """body[name], a whole number from low to high."""
    value = body.get(name)
    if type(value) is not int or not low <= value <= high:
        raise HandshakeError(f"{name} is no whole number from {low} to {high}")
    return value


def text(body, name):
    """body[name], a text that can be printed in one line."""
    value = body.get(name)
    if type(value) is not str or len(value) > TEXT_CHARACTERS or not value.isprintable():
        raise HandshakeError(f"{name} is no text of at most {TEXT_CHARACTERS} printable characters")
    return value


def mapping(body, name):
    """body[name], an object."""
    value = body.get(name)
    if type(value) is not dict:
        raise HandshakeError(f"{name} is no object")
    return value


def listing(body, name, count):
    """body[name], a list of `count` values."""
    value = body.get(name)
    if type(value) is not list or len(value) != count:
        raise HandshakeError(f"{name} is no list of {count}")
    return value


def only(body, *names):
    """Refuse fields that the protocol does not know, and missing ones."""
    if set(body) != set(names):
        raise HandshakeError(f"it has not exactly the fields {', '.join(names)}")


def endpoint(body, kind, nrails):
    """The record of an endpoint.

    body    : dict     kind : "verbs" | "tcp", as this rank chose     nrails : int, as this rank chose
    Returns : (list of what each rail said, inbox, connections): inbox is what Wire.attach takes
    """
    only(body, "kind", "rails", "inbox", "connections")
    if body["kind"] != kind:
        raise HandshakeError(f"kind is not {kind}: the ranks chose differently how to reach each other")
    rails = listing(body, "rails", nrails)
    if not all(type(rail) is dict for rail in rails):
        raise HandshakeError("rails is no list of objects")
    return rails, _inbox(mapping(body, "inbox"), nrails), integer(body, "connections", 1, MOST_CONNECTIONS)


def _inbox(body, nrails):
    only(body, "address", "cells", "cell_bytes", "rkeys")
    integer(body, "address", 4096, (1 << 64) - 4096)
    cells = integer(body, "cells", _wire.LEAST_CELLS, _wire.MOST_CELLS)
    cell_bytes = integer(body, "cell_bytes", _wire.LEAST_CELL_BYTES, _wire.MOST_CELL_BYTES)
    if cells & (cells - 1) or cell_bytes % _wire.CELL_UNIT or body["address"] % _wire.CELL_UNIT:
        raise HandshakeError(
            f"inbox: cells is no power of two, or cell_bytes or address no multiple of {_wire.CELL_UNIT}"
        )
    for rkey in listing(body, "rkeys", nrails):
        integer({"rkey": rkey}, "rkey", 0, (1 << 32) - 1)
    return body


def fault(body, nranks):
    """(reason, reporter, culprit) of a fault."""
    only(body, "reason", "reporter", "culprit")
    ranks = (integer(body, name, 0, nranks - 1) for name in ("reporter", "culprit"))
    return (integer(body, "reason", 1, MOST_REASON), *ranks)


def entered(body):
    """(question, how many collectives, index of the call) of an answer."""
    only(body, "question", "entered", "call")
    limits = {"question": 1 << 63, "entered": 1 << 64, "call": len(CALLS)}
    return tuple(integer(body, name, 0, limit - 1) for name, limit in limits.items())


def question(body):
    """The number of a question."""
    only(body, "question")
    return integer(body, "question", 0, (1 << 63) - 1)


def rail_down(body, nrails):
    """(index, state, words) of a rail that the peer has closed; the wire checks the state."""
    only(body, "rail", "state", "text")
    return integer(body, "rail", 0, nrails - 1), mapping(body, "state"), text(body, "text")


def refusal(body):
    """(reason, words): why the peer does not go on; reason is one of REASONS."""
    only(body, "reason", "text")
    if body["reason"] not in REASONS:  # a tuple: whatever type JSON made of it can be compared
        raise HandshakeError("reason is none that the protocol knows")
    return body["reason"], text(body, "text")


def nothing(body):
    """Of a message without a body."""
    only(body)
