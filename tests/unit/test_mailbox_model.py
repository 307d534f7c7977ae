"""Random sends, receives and probes of three ranks, against a model of MPI's matching (MPI 4.1, section 3.5)."""

import random

import pytest
from mailboxes import ANY, BY_ADDRESS, STREAM, Group, Room, body

RANKS = 3
TAGS = 3
SIZES = [0, 0, 1, 1, 5, 31, 224, 225, 1000, STREAM, BY_ADDRESS]
OPERATIONS = 1000


class Sent:
    """A message that no receive has taken yet."""

    def __init__(self, source, tag, data, sync, letter):
        self.source, self.tag, self.data, self.sync, self.letter = source, tag, data, sync, letter


class Wanted:
    """A receive, or a probe, and what it must end with: None, "complete" with a message, or "too long"."""

    def __init__(self, source, tag, capacity):
        self.source, self.tag, self.room = source, tag, Room(capacity)
        self.letter = self.outcome = self.message = None

    def fits(self, message):
        return self.source in (ANY, message.source) and self.tag in (ANY, message.tag)

    def takes(self, message):
        """Give it a message that fits; False if that is too long."""
        self.message = message
        self.outcome = "complete" if len(message.data) <= len(self.room.view) else "too long"
        return self.outcome == "complete"

    def check(self):
        if self.outcome is None:
            assert self.letter.state in ("posted", "moving")
            return
        message = self.message
        assert (self.letter.state, self.letter.matched) == (
            self.outcome,
            (message.source, message.tag, len(message.data)),
        )
        if self.outcome == "complete":
            assert self.room.got(len(message.data)) == message.data
        else:
            assert self.room.got(0) == b""


class Receiver:
    """What MPI says of one rank's receiving side."""

    def __init__(self):
        self.messages, self.receives = [], []

    def first_of_each_sender(self, wanted):
        first = {}
        for message in self.messages:
            if wanted.fits(message):
                first.setdefault(message.source, message)
        return first

    def arrive(self, message):
        """A message was sent: the receives that it ends, in order."""
        ended = []
        for wanted in list(self.receives):
            if wanted.fits(message):
                self.receives.remove(wanted)
                ended.append(wanted)
                if wanted.takes(message):
                    return ended
        self.messages.append(message)
        return ended

    def want(self, wanted, choice):
        """A receive was posted; choice: the sender that the mailbox chose of several."""
        first = self.first_of_each_sender(wanted)
        if not first:
            self.receives.append(wanted)
        elif wanted.takes(first[choice if choice in first else next(iter(first))]):
            self.messages.remove(wanted.message)


class Play:
    """Three ranks, and the models of their receiving sides."""

    def __init__(self, seed, single_copy):
        self.random = random.Random(seed)
        self.group = Group(RANKS, single_copy)
        self.models = [Receiver() for _ in range(RANKS)]
        self.number = 0
        self.sent, self.wanted = [], []

    def send(self):
        source, dest, tag = (self.random.randrange(n) for n in (RANKS, RANKS, TAGS))
        self.number += 1
        data, sync = body(self.number, self.random.choice(SIZES)), self.random.random() < 0.2
        message = Sent(source, tag, data, sync, self.group[source].send(data, dest, tag, sync=sync))
        self.sent.append(message)
        return dest, message

    def receive(self, any_source):
        rank = self.random.randrange(RANKS)
        source = self.random.choice([0, 1, 2, ANY] if any_source else [0, 1, 2])
        wanted = Wanted(
            source, self.random.choice([0, 1, 2, ANY]), self.random.choice([*SIZES, BY_ADDRESS, BY_ADDRESS])
        )
        wanted.letter = self.group[rank].receive(wanted.room.view, source, wanted.tag)
        self.wanted.append(wanted)
        return rank, wanted

    def drain(self):
        """Receive all that is left, and send whatever is still waited for."""
        for rank, model in enumerate(self.models):
            while model.messages:
                wanted = Wanted(ANY, ANY, BY_ADDRESS)
                wanted.letter = self.group[rank].receive(wanted.room.view, ANY, ANY)
                self.group.settle()
                model.want(wanted, wanted.letter.matched[0])
                wanted.check()
            while model.receives:
                wanted = model.receives[0]
                source, tag = max(wanted.source, 0), max(wanted.tag, 0)
                data = body(7, 0)
                message = Sent(source, tag, data, False, self.group[source].send(data, rank, tag))
                self.group.settle()
                model.arrive(message)
        for wanted in self.wanted:
            wanted.check()
        assert {message.letter.state for message in self.sent} == {"complete"}
        self.group.assert_empty()


@pytest.fixture
def play():
    """Function: Play's arguments -> Play, closed at the end."""
    plays = []

    def make(*args):
        plays.append(Play(*args))
        return plays[-1]

    yield make
    for made in plays:
        made.group.close()


def probe(play, take):
    """Probe, or take and receive what was taken; the message must be one that a receive might get."""
    rank = play.random.randrange(RANKS)
    wanted = Wanted(play.random.choice([0, 1, 2, ANY]), play.random.choice([0, 1, 2, ANY]), BY_ADDRESS)
    mailbox, model = play.group[rank], play.models[rank]
    possible = model.first_of_each_sender(wanted)
    found = mailbox.probe(wanted.source, wanted.tag)
    while possible and found is None:  # a stream in front of it has to be set aside first
        play.group.settle()
        found = mailbox.probe(wanted.source, wanted.tag)
    if not possible:
        assert found is None and mailbox.take(wanted.source, wanted.tag) is None
        return
    message = possible[found[0]]
    assert found == (message.source, message.tag, len(message.data))
    if take:
        wanted.letter = mailbox.take(found[0], wanted.tag)
        assert wanted.letter.matched == found
        wanted.takes(message)
        model.messages.remove(message)
        mailbox.fill(wanted.letter, wanted.room.view)
        play.group.settle()
        wanted.check()


@pytest.mark.parametrize("single_copy", [True, False], ids=["address", "stream"])
@pytest.mark.parametrize("seed", range(5))
def test_step_by_step(play, seed, single_copy):
    """All moves that can be made are made after each operation, so that the model knows what each must give."""
    play = play(seed, single_copy)
    for _ in range(OPERATIONS):
        kind = play.random.choices(["send", "receive", "probe", "take"], [10, 9, 2, 1])[0]
        if kind == "send":
            dest, message = play.send()
            play.group.settle()
            for wanted in play.models[dest].arrive(message):
                wanted.check()
            if message.sync:
                assert (message.letter.state == "complete") == (message not in play.models[dest].messages)
        elif kind == "receive":
            rank, wanted = play.receive(True)
            play.group.settle()
            play.models[rank].want(wanted, wanted.letter.matched[0])
            wanted.check()
        else:
            probe(play, kind == "take")
    play.drain()


@pytest.mark.parametrize("single_copy", [True, False], ids=["address", "stream"])
@pytest.mark.parametrize("seed", range(5))
def test_at_any_moment(play, seed, single_copy):
    """Ranks move at random moments. Of given sources, who gets what does not depend on them."""
    play = play(seed, single_copy)
    for _ in range(OPERATIONS):
        if play.random.random() < 0.55:
            dest, message = play.send()
            play.models[dest].arrive(message)
        else:
            rank, wanted = play.receive(False)
            play.models[rank].want(wanted, wanted.source)
        for _ in range(play.random.randrange(4)):
            play.group[play.random.randrange(RANKS)].poll()
    play.group.settle()
    play.drain()
