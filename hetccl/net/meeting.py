"""What the two sides of a control connection say once they have proved themselves, until their rails are connected.

Pair calls meet() on a helper thread. The document is docs/wire-protocol.md.
"""

import socket
import time

from hetccl.errors import HetcclError
from hetccl.net import control, records
from hetccl.net.handshake import HandshakeError

RECORD_SECONDS = 30.0
# What rails and the wire raise of what goes wrong with them.
FAULTS = (OSError, ValueError, MemoryError, HetcclError)
# A host that does not answer for so long is lost: keepalive is for a connection at rest, the other for one that sends.
SILENCE_SECONDS = 20
_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * SILENCE_SECONDS),
)


class Refused(HandshakeError):
    """The peer, or this side, does not go on: reason is one of records.REASONS."""

    def __init__(self, reason, text):
        super().__init__(text)
        self.reason = reason


def meet(pair, stream, session, address):
    """Agree on this connection, exchange records, connect the rails; the pair is up when this returns.

    address : that this side has dialled, None where the peer has begun
    Raises  : Refused, HandshakeError, OSError
    """
    stream.deadline = time.monotonic() + min(RECORD_SECONDS, pair.group.timeout)
    talk = control.Talk(stream, session, address is not None)
    decides = pair.group.rank < pair.peer
    record = None if decides else _hear(talk, control.RECORD)
    refusal = pair.claim(address is not None, session)
    if refusal:
        _refuse(talk, *refusal)
    made = False
    try:
        rails = _prepare(pair, talk)
        record = record or _hear(talk, control.RECORD)
        _connect(pair, talk, rails, record, address, session)
        talk.say(control.READY, {})
        _hear(talk, control.READY)
        for level, option, value in _OPTIONS:
            stream.sock.setsockopt(level, option, value)
        pair.come_up(stream.sock, talk)
        made = True
    finally:
        if not made:
            pair.release()


def _hear(talk, kind):
    """The body of the next message, which must be of this type. Raises Refused if the peer does not go on."""
    heard, body = talk.hear(kind, control.REFUSED)
    if heard == control.REFUSED:
        raise Refused(*records.refusal(body))
    return body


def _refuse(talk, reason, text):
    talk.say(control.REFUSED, {"reason": reason, "text": line(text)})
    raise Refused(reason, text)


def _prepare(pair, talk):
    """Make this side's rails and say this side's record. Returns the rails. Raises Refused, HandshakeError, OSError."""
    rails = []
    try:
        for index, port in enumerate(pair.path.rails):
            rails.append(port.rail(pair.peer, index))
        body = {
            "kind": pair.path.kind,
            "rails": [rail.local() for rail in rails],
            "inbox": pair.group.wire.prepare(pair.peer, rails),
            "connections": pair.group.connections,
        }
    except FAULTS as error:
        for rail in rails:
            rail.close()
        _refuse(talk, records.FAILED, words(error))
    talk.say(control.RECORD, body)
    return rails


def _connect(pair, talk, rails, record, address, session):
    """Connect the rails to the peer's, and take in what it writes. Raises Refused, HandshakeError, OSError."""
    sockets = []
    try:
        remotes, inbox, connections = records.endpoint(record, pair.path.kind, len(rails))
    except HandshakeError as error:
        _refuse(talk, records.FAILED, str(error))
    each = min(connections, pair.group.connections) if pair.path.kind == "tcp" else 0
    if address is not None:
        sockets = pair.dial_data(each * len(rails), address, session, talk.stream.deadline)
    else:
        sockets = pair.await_data(each * len(rails), talk.stream.deadline)
    try:
        for index, (rail, remote) in enumerate(zip(rails, remotes)):
            mine = sockets[index * each : (index + 1) * each]
            rail.connect(remote, [pair.hand_over(sock) for sock in mine])
        pair.group.wire.attach(pair.peer, inbox)
    except FAULTS as error:
        _refuse(talk, records.FAILED, words(error))
    finally:
        for sock in sockets:
            pair.undial(sock)


def line(text):
    """A text as control messages carry it."""
    return "".join(c if c.isprintable() else " " for c in text)[: records.TEXT_CHARACTERS]


def words(error):
    """What an error says; an OSError without its number."""
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
