"""The frames of rails over TCP against a peer of plain sockets, which follows the documented format or breaks it."""

import random
import socket
import struct

import pytest
from rails import BREACH_FRAME, DEPTH, FAULT_WIRE, PAIRS, End, connect, settle, unix_pair

from hetccl._rail_trial import Trial

FRAME = struct.Struct("<BBHIQIIII")
WRITE, ACK = 1, 2
IMM, LAZY = 1, 2
MAX_WRITE = 4 << 20
ROOM = 4096


class Peer:
    """A rail and the other ends of its connections; `posted` writes of the rail are on their way, one byte each."""

    def __init__(self, nconnections=1, posted=0, kind="unix"):
        pairs = [PAIRS[kind]() for _ in range(nconnections)]
        self.end, self.socks = End([near for near, _ in pairs]), [far for _, far in pairs]
        self.target = self.end.target(ROOM)
        for k in range(posted):
            self.end.trial.write([b"x"], 0, 0, imm=k)

    def say(self, *frames, connection=0, size=1 << 20):
        """Send bytes, `size` at a time, with polls between."""
        data = b"".join(frames)
        for begin in range(0, len(data), size):
            try:
                self.socks[connection].sendall(data[begin : begin + size])
            except BrokenPipeError:  # it has been refused already
                break
            self.end.poll()
        settle(self.end)

    def frame(self, payload=b"", *, skip=0, **fields):
        """A legal WRITE of the payload to the target's bytes from `skip` on, but for the fields given."""
        values = {
            "kind": WRITE,
            "flags": IMM,
            "parts": 1,
            "sequence": 0,
            "remote_addr": self.target.address + skip,
            "rkey": self.target.rkey,
            "nbytes": len(payload),
            "imm": 0,
            "ack": 0,
        }
        assert set(fields) <= set(values)
        return FRAME.pack(*{**values, **fields}.values()) + payload

    def hear(self, nbytes, connection=0):
        """The next bytes from the rail."""
        data = b""
        while len(data) < nbytes:
            self.end.poll()
            self.socks[connection].settimeout(10)
            data += self.socks[connection].recv(nbytes - len(data))
        return data

    def assert_breach(self):
        assert (self.end.trial.state, self.end.trial.fault) == ("failed", (FAULT_WIRE, BREACH_FRAME))
        assert "wire protocol" in self.end.rail.fault()

    def close(self):
        for sock in self.socks:
            sock.close()
        self.end.close()


@pytest.fixture
def peer():
    """Function: Peer's arguments -> Peer, closed at the end."""
    made = []

    def make(*args, **kwargs):
        made.append(Peer(*args, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_what_is_sent(peer):
    it = peer()
    it.end.trial.write([b"abc", b"de"], 0x1122334455667788, 0xAABBCCDD, imm=0x01020304)
    it.end.trial.write([b"f"], 0x10, 7, lazy=True)
    it.end.trial.write([], 0, 0, imm=9)
    assert it.hear(32 + 5) == FRAME.pack(WRITE, IMM, 1, 0, 0x1122334455667788, 0xAABBCCDD, 5, 0x01020304, 0) + b"abcde"
    assert it.hear(32 + 1) == FRAME.pack(WRITE, LAZY, 1, 1, 0x10, 7, 1, 0, 0) + b"f"
    assert it.hear(32) == FRAME.pack(WRITE, IMM, 1, 2, 0, 0, 0, 9, 0)
    it.say(it.frame(b"xyz", imm=3))
    assert it.hear(32) == FRAME.pack(ACK, 0, 0, 0, 0, 0, 0, 0, 1)


@pytest.mark.parametrize("nconnections", [1, 2, 3, 16])
@pytest.mark.parametrize("nbytes", [262_144, 524_287, 524_288, 1_000_001, MAX_WRITE])
def test_a_large_write_is_cut_over_the_connections(peer, nconnections, nbytes):
    it = peer(nconnections, kind="IPv4")
    data = random.Random(nbytes).randbytes(nbytes)
    view = memoryview(data)
    it.end.trial.write([view[: nbytes // 5], view[nbytes // 5 :]], 1000, 5, imm=6)
    parts = 1 if nconnections == 1 or nbytes < 524_288 else min(nconnections, nbytes // 262_144)
    got = bytearray(nbytes)
    covered = 0
    for connection in range(parts):
        kind, flags, said, sequence, address, rkey, length, imm, ack = FRAME.unpack(it.hear(32, connection))
        assert (kind, flags, said, sequence, rkey, imm, ack) == (WRITE, IMM, parts, 0, 5, 6, 0)
        assert length > 0
        got[address - 1000 : address - 1000 + length] = it.hear(length, connection)
        covered += length
    assert (covered, bytes(got)) == (nbytes, data)


@pytest.mark.parametrize("size", [1, 3, 31, 33])
def test_torn_frames(peer, size):
    it = peer(posted=2)
    it.say(
        it.frame(b"first", imm=1),
        it.frame(b"", sequence=1, imm=2, ack=1),
        FRAME.pack(ACK, 0, 0, 0, 0, 0, 0, 0, 2),
        it.frame(b"second", skip=5, sequence=2, imm=3, ack=2),
        size=size,
    )
    assert it.target.got()[:11] == b"firstsecond"
    assert it.end.trial.told() == [1, 2, 3]
    assert it.end.trial.counts == (2, 2)


def test_parts_and_writes_in_any_order_over_the_connections(peer):
    """Told in the order of their numbers, whichever comes first; one peer's sockets are three rivers."""
    it = peer(3)
    two = {"parts": 2, "sequence": 1, "imm": 11}
    it.say(it.frame(b"dd", skip=6, sequence=2, imm=12), connection=2)
    it.say(it.frame(b"cc", skip=4, **two), connection=1)
    assert it.end.trial.told() == []
    it.say(it.frame(b"aa", sequence=0, imm=10), connection=0)
    assert it.end.trial.told() == [10]
    it.say(it.frame(b"bb", skip=2, **two), connection=0)
    assert it.end.trial.told() == [10, 11, 12]
    assert it.target.got()[:8] == b"aabbccdd"


def test_an_older_acknowledgement_may_come_later(peer):
    it = peer(2, posted=1)
    it.say(it.frame(b"", imm=1, ack=1))
    it.say(it.frame(b"", sequence=1, imm=2, ack=0), connection=1)
    assert (it.end.trial.counts, it.end.trial.state) == ((1, 1), "up")


BREACHES = {
    "kind 0": {"kind": 0},
    "kind 3": {"kind": 3},
    "kind 255": {"kind": 255},
    "flag 4": {"flags": IMM | 4},
    "flag 128": {"flags": 128},
    "no part": {"parts": 0},
    "more parts than connections": {"parts": 3},
    "parts of nothing": {"parts": 2, "nbytes": 0},
    "longer than a write": {"nbytes": MAX_WRITE + 1},
    "longer than any": {"nbytes": 0xFFFFFFFF},
    "number too high": {"sequence": DEPTH},
    "number that is past": {"sequence": 0xFFFFFFFF},
    "acknowledges what was not sent": {"ack": 3},
    "acknowledges half the circle": {"ack": 0x7FFFFFFF},
}


@pytest.mark.parametrize("fields", BREACHES.values(), ids=BREACHES)
@pytest.mark.parametrize("size", [1, 1 << 20])
def test_a_frame_against_the_rules(peer, fields, size):
    it = peer(2, posted=2)
    it.say(it.frame(b"payload", **fields), size=size)
    it.assert_breach()
    it.target.assert_untouched()
    assert it.end.trial.told() == []
    assert it.socks[1].recv(1 << 20) == b"", "the peer is told, over all connections"


PLACES = {
    "before": (-1, 8),
    "around the begin": (-4, 8),
    "behind": (ROOM, 1),
    "around the end": (ROOM - 7, 8),
    "longer than the region": (0, ROOM + 1),
    "far away": (1 << 40, 8),
    "beyond all addresses": (None, 8),
}


@pytest.mark.parametrize(("skip", "nbytes"), PLACES.values(), ids=PLACES)
def test_outside_of_what_was_offered(peer, skip, nbytes):
    it = peer()
    address = (1 << 64) - 4 if skip is None else it.target.address + skip
    it.say(it.frame(b"z" * nbytes, remote_addr=address))
    it.assert_breach()
    it.target.assert_untouched()


@pytest.mark.parametrize("change", [1, 1 << 8, 1 << 15, 1 << 16, 1 << 31])
def test_a_key_that_was_not_given(peer, change):
    it = peer()
    it.say(it.frame(b"payload", rkey=it.target.rkey ^ change))
    it.assert_breach()
    it.target.assert_untouched()


def test_the_key_of_memory_that_was_given_back(peer):
    """Also if the same memory has been offered again."""
    it = peer()
    old = it.target
    old.mem.dereg()
    for _ in range(200):
        again = it.end.trial.reg(old.view)
        assert again.rkey != old.rkey
        again.dereg()
    it.end.trial.reg(old.view)
    it.say(it.frame(b"payload"))
    it.assert_breach()
    old.assert_untouched()


def test_memory_given_back_under_a_payload(peer):
    it = peer()
    it.say(it.frame(b"a" * 100)[:-60])
    it.target.mem.dereg()
    it.say(b"a" * 60)
    it.assert_breach()
    assert it.target.got() == b"a" * 40 + b"\x5a" * (ROOM - 40)


def test_a_key_of_another_rail(peer):
    it = peer()
    near, far = unix_pair()
    other = it.end.port.rail(2, 0)
    trial = Trial(it.end.port, other)
    connect(other, [near])
    far.sendall(it.frame(b"payload"))
    settle(it.end)
    assert (trial.state, trial.fault) == ("failed", (FAULT_WIRE, BREACH_FRAME))
    it.target.assert_untouched()
    it.say(it.frame(b"payload"))
    assert it.end.trial.told() == [0], "the rail whose key it was goes on"
    far.close(), other.close()


def test_many_keys(peer):
    """All that the table holds, each other than all others; the next is refused, and the first still fits."""
    it = peer()
    memory = memoryview(bytearray(1))
    given = [it.end.trial.reg(memory) for _ in range((1 << 16) - 1)]
    assert len({mem.rkey for mem in given} | {it.target.rkey}) == 1 << 16
    assert it.end.trial.reg(memory) is None
    given.pop().dereg()
    assert it.end.trial.reg(memory) is not None
    it.say(it.frame(b"payload"))
    assert it.target.got()[:7] == b"payload"


@pytest.mark.parametrize(
    "fields",
    [{"imm": 1}, {"flags": IMM}, {"parts": 1}, {"nbytes": 1}, {"begun": 1}],
    ids=["other imm", "other flags", "other parts", "no third part", "the same twice"],
)
def test_a_part_that_does_not_fit_to_the_others(peer, fields):
    it = peer(2)
    fields = dict(fields)
    begun = fields.pop("begun", 0)
    first = {"parts": 2, "sequence": 1, "flags": IMM | LAZY}
    it.say(it.frame(b"a", **first))
    if begun:
        it.say(it.frame(b"a", **first), it.frame(b"a", **first))
    elif "nbytes" in fields:
        it.say(it.frame(b"a", **first), it.frame(b"", **first))
    else:
        it.say(it.frame(b"a", **{**first, **fields}))
    it.assert_breach()


@pytest.mark.parametrize("byte", range(28))
def test_an_acknowledgement_brings_nothing_else(peer, byte):
    it = peer(posted=1)
    frame = bytearray(FRAME.pack(ACK, 0, 0, 0, 0, 0, 0, 0, 1))
    frame[byte] |= 0x40
    it.say(bytes(frame))
    it.assert_breach()
    assert it.end.trial.counts == (1, 0)


def test_an_acknowledgement_of_what_lies_in_the_queue(peer):
    """It would give memory back that is still to be sent."""
    it = peer(kind="IPv4")
    data = bytes(MAX_WRITE)
    for k in range(8):
        it.end.trial.write([data], 0, 0, imm=k)
    it.say(FRAME.pack(ACK, 0, 0, 0, 0, 0, 0, 0, 8))
    it.assert_breach()
    assert it.end.trial.counts == (8, 0)


def test_the_end_within_a_frame(peer):
    it = peer()
    it.say(it.frame(b"a" * 100, imm=1)[:-1])
    it.socks[0].shutdown(socket.SHUT_RDWR)
    settle(it.end)
    assert (it.end.trial.state, it.end.rail.fault()) == ("failed", "the peer closed the connection")
    assert it.end.trial.told() == []


class Model:
    """What a receiver with one connection and `sent` writes on their way makes of a stream, in plain Python."""

    def __init__(self, address, rkey, sent):
        self.address, self.rkey, self.sent = address, rkey, sent
        self.memory, self.told = bytearray(b"\x5a" * ROOM), []
        self.waiting = {}  # number -> immediate value or None, of writes whose bytes are all there
        self.arrived = self.completed = 0
        self.broken = False

    def take(self, data):
        while len(data) >= FRAME.size:
            frame, data = FRAME.unpack_from(data), data[FRAME.size :]
            if not self.is_legal(*frame):
                self.broken = True
                return
            kind, flags, _, sequence, address, _, nbytes, imm, ack = frame
            self.completed += self.newly(ack)
            if kind == WRITE:
                got, data = data[:nbytes], data[nbytes:]
                if got:
                    self.memory[address - self.address : address - self.address + len(got)] = got
                if len(got) < nbytes:
                    return
                self.waiting[sequence] = imm if flags & IMM else None
                self.tell()

    def newly(self, ack):
        ahead = (ack - self.completed) % (1 << 32)
        return ahead if ahead < 1 << 31 else 0

    def is_legal(self, kind, flags, parts, sequence, address, rkey, nbytes, imm, ack):
        if self.completed + self.newly(ack) > self.sent:
            return False
        if kind == ACK:
            return not any((flags, parts, sequence, address, rkey, nbytes, imm))
        skip = address - self.address
        inside = rkey == self.rkey and skip >= 0 and skip + nbytes <= ROOM
        in_window = (sequence - self.arrived) % (1 << 32) < DEPTH and sequence not in self.waiting
        return kind == WRITE and flags < 4 and parts == 1 and (inside or nbytes == 0) and in_window

    def tell(self):
        while self.arrived in self.waiting:
            imm = self.waiting.pop(self.arrived)
            self.arrived += 1
            if imm is not None:
                self.told.append(imm)


def stream(rng, it, sent):
    """A legal stream, of which perhaps a few bytes are changed, cut off, or put in."""
    frames = []
    acked = 0
    for number in range(rng.randrange(1, 12)):
        acked = rng.randint(acked, sent)
        if rng.random() < 0.2:
            frames.append(FRAME.pack(ACK, 0, 0, 0, 0, 0, 0, 0, acked))
        nbytes = rng.choice([0, 1, 31, 32, 33, rng.randrange(ROOM + 1)])
        fields = {
            "skip": rng.randint(0, ROOM - nbytes),
            "flags": rng.choice([IMM, IMM | LAZY, LAZY, 0]),
            "sequence": number,
            "imm": rng.getrandbits(32),
            "ack": acked,
        }
        frames.append(it.frame(rng.randbytes(nbytes), **fields))
    kind = rng.choice(["legal", "flip", "random field", "truncate", "noise"])
    victim = rng.randrange(len(frames))
    frame = bytearray(frames[victim])
    if kind == "flip":
        frame[rng.randrange(FRAME.size)] ^= 1 << rng.randrange(8)
    elif kind == "random field":
        begin = rng.choice([2, 4, 8, 16, 20, 28])
        width = 8 if begin == 8 else 2 if begin == 2 else 4
        frame[begin : begin + width] = rng.choice([bytes(width), b"\xff" * width, rng.randbytes(width)])
    elif kind == "truncate":
        del frame[rng.randrange(len(frame)) :]
        del frames[victim + 1 :]
    elif kind == "noise":
        frame = bytearray(rng.randbytes(rng.randrange(1, 200)))
    frames[victim] = bytes(frame)
    return b"".join(frames)


@pytest.mark.parametrize("seed", range(500))
def test_fuzz(peer, seed):
    """Every stream has the effect that the rules give it, and none beyond the memory that was offered."""
    rng = random.Random(seed)
    sent = rng.randrange(4)
    it = peer(posted=sent)
    model = Model(it.target.address, it.target.rkey, sent)
    data = stream(rng, it, sent)
    model.take(data)
    it.say(data, size=rng.choice([1 << 20, 1000, 37]))
    assert it.end.trial.state == ("failed" if model.broken else "up")
    if model.broken:
        it.assert_breach()
    assert it.end.trial.told() == model.told
    assert it.end.trial.counts == (sent, model.completed)
    assert it.target.got() == model.memory


def test_the_fuzz_breaks_some_and_spares_some(peer):
    fates = set()
    for seed in range(40):
        it, rng = peer(), random.Random(seed)
        model = Model(it.target.address, it.target.rkey, 0)
        model.take(stream(rng, it, 0))
        fates.add(model.broken)
    assert fates == {False, True}
