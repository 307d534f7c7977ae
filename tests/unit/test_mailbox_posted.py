"""Receives that a link has in its hands, as a network's does: the peer writes their bytes when it gets to it."""

import itertools

import pytest
from mailboxes import ANY, Room

from hetccl._mailbox_trial import ScriptedTrial

NBYTES = 100
EPEER, ENETWORK = -1, -7


def settle(mailbox):
    while mailbox.poll():
        pass


def receive(mailbox, source, tag, nbytes=NBYTES):
    room = Room(nbytes)
    return room, mailbox.receive(room.view, source, tag)


def states(received):
    return [letter.state for _, letter in received]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_several_are_under_way_at_once(order):
    mailbox = ScriptedTrial(2, 8)
    for k in range(3):
        mailbox.comes(1, k, NBYTES, k + 1, True)
    received = [receive(mailbox, 1, k) for k in range(3)]
    settle(mailbox)
    assert mailbox.asked(1) == [0, 1, 2]
    finished = set()
    for k in order:
        mailbox.writes(1, k)
        settle(mailbox)
        finished.add(k)
        assert states(received) == ["complete" if i in finished else "moving" for i in range(3)]
    assert [room.got(NBYTES) for room, _ in received] == [bytes([k + 1]) * NBYTES for k in range(3)]
    assert mailbox.counts == (0, 0, 0, 0)


@pytest.mark.parametrize("source", [1, ANY])
def test_what_comes_behind_one_that_waits_is_received(source):
    mailbox = ScriptedTrial(3, 8)
    mailbox.comes(1, 5, NBYTES, 1, True)
    mailbox.comes(1, 5, 7, 2, False)
    large, small = receive(mailbox, source, 5), receive(mailbox, source, 5)
    settle(mailbox)
    assert states([large, small]) == ["moving", "complete"]
    assert small[0].got(7) == b"\x02" * 7
    mailbox.writes(1, 0)
    settle(mailbox)
    assert large[1].state == "complete" and large[0].got(NBYTES) == b"\x01" * NBYTES
    assert mailbox.counts == (0, 0, 0, 0)


def test_a_link_that_can_ask_for_no_more_holds_its_head():
    mailbox = ScriptedTrial(2, 1)
    for k in range(3):
        mailbox.comes(1, 0, NBYTES, k + 1, True)
    received = [receive(mailbox, 1, 0) for _ in range(3)]
    for k in range(3):
        settle(mailbox)
        assert mailbox.asked(1) == list(range(k + 1))
        assert states(received) == ["complete"] * k + ["moving"] * min(2, 3 - k) + ["posted"] * max(0, 1 - k)
        mailbox.writes(1, k)
    settle(mailbox)
    assert [room.got(NBYTES) for room, _ in received] == [bytes([k + 1]) * NBYTES for k in range(3)]
    assert mailbox.counts == (0, 0, 0, 0)


@pytest.mark.parametrize("most_asked", [1, 2, 8])
@pytest.mark.parametrize("kept", list(itertools.product([True, False], repeat=3)))
def test_several_set_aside_are_received_at_once(kept, most_asked):
    mailbox = ScriptedTrial(2, most_asked)
    for k in range(3):
        mailbox.comes(1, k, NBYTES, k + 1, kept[k])
    mailbox.comes(1, 9, 1, 9, False)
    assert mailbox.probe(1, 9) == (1, 9, 1)  # sets the others aside
    received = [receive(mailbox, 1, k) for k in (2, 1, 0)]
    settle(mailbox)
    waiting = [k for k in (2, 1, 0) if kept[k]]
    assert mailbox.asked(1) == sorted(waiting[:most_asked])
    assert states(received) == ["moving" if kept[k] else "complete" for k in (2, 1, 0)]
    while waiting:
        mailbox.writes(1, waiting.pop(0))
        settle(mailbox)
    assert [room.got(NBYTES) for room, _ in received] == [bytes([k + 1]) * NBYTES for k in (2, 1, 0)]
    last = receive(mailbox, 1, 9, 1)
    settle(mailbox)
    assert last[0].got(1) == b"\x09"
    assert mailbox.counts == (0, 0, 0, 0)


@pytest.mark.parametrize("how", ["head", "aside"])
def test_who_is_waited_for(how):
    mailbox = ScriptedTrial(3, 8)
    mailbox.comes(1, 0, NBYTES, 1, True)
    if how == "aside":
        mailbox.comes(1, 9, 1, 9, False)
        mailbox.probe(1, 9)
    _, letter = receive(mailbox, 1, 0)
    settle(mailbox)
    assert (letter.state, mailbox.blockers(letter)) == ("moving", (0, 1, 0))
    mailbox.writes(1, 0)
    settle(mailbox)
    assert mailbox.blockers(letter) == (0, 0, 0)


def under_way(mailbox):
    """Letters in every place that a message of rank 1 can be in."""
    mailbox.comes(1, 0, NBYTES, 1, True)
    mailbox.comes(1, 1, NBYTES, 2, True)
    mailbox.comes(1, 2, NBYTES, 3, True)
    mailbox.probe(1, 2)
    aside = receive(mailbox, 1, 1)
    landing = receive(mailbox, 1, 2)
    settle(mailbox)
    assert mailbox.asked(1) == [1, 2]
    mailbox.comes(1, 3, NBYTES, 4, True)
    head, unmatched = receive(mailbox, 1, 3), receive(mailbox, 1, 4)
    sent, waiting = mailbox.send(bytearray(1), 1, 0), mailbox.send(bytearray(1), 1, 0)
    settle(mailbox)
    assert mailbox.asked(1) == [1, 2]
    return [letter for _, letter in (aside, landing, head, unmatched)] + [sent, waiting]


@pytest.mark.parametrize("status", [EPEER, ENETWORK])
@pytest.mark.parametrize("how", ["link", "peer ends", "all end"])
def test_a_fault_ends_what_is_under_way(how, status):
    mailbox = ScriptedTrial(3, 2)
    letters = under_way(mailbox)
    other = receive(mailbox, 2, 0)[1]
    if how == "link":
        mailbox.breaks(1, status)
    else:
        mailbox.end(1 if how == "peer ends" else ANY, status)
    settle(mailbox)
    assert [letter.fault for letter in letters] == [(status, 0)] * 6
    assert {letter.state for letter in letters} == {"failed"}
    assert other.state == ("failed" if how == "all end" else "posted")
    later = [receive(mailbox, 1, 7)[1], mailbox.send(bytearray(1), 1, 0)]
    assert [letter.fault for letter in later] == [(status, 0)] * 2


@pytest.mark.parametrize("status", [EPEER, ENETWORK])
def test_a_receive_that_nothing_can_come_for_fails(status):
    mailbox = ScriptedTrial(3, 2)
    unmatched, anywhere = receive(mailbox, 1, 0)[1], receive(mailbox, ANY, 0)[1]
    mailbox.breaks(1, status)
    settle(mailbox)
    assert (unmatched.fault, anywhere.state) == ((status, 0), "posted")
    assert mailbox.blockers(anywhere) == (2, 0, 2)
    mailbox.comes(2, 0, NBYTES, 1, False)
    settle(mailbox)
    assert anywhere.state == "complete"


def test_sends_complete_when_they_are_acknowledged():
    mailbox = ScriptedTrial(2, 2)
    letters = [mailbox.send(bytearray(1), 1, 0) for _ in range(3)]
    settle(mailbox)
    assert [letter.state for letter in letters] == ["moving"] * 3
    mailbox.acknowledges(1)
    settle(mailbox)
    assert [letter.state for letter in letters] == ["complete"] * 3
    assert mailbox.counts == (0, 0, 0, 0)
