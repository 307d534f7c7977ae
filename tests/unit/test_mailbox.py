"""Point-to-point messages: matched as MPI matches them, set aside, acknowledged, refused; ranks are mailboxes here."""

import os

import numpy as np
import pytest
from mailboxes import ANY, BY_ADDRESS, RING_BYTES, SECRET, STREAM, Group, Room, body

from hetccl import _shm
from hetccl._mailbox_trial import Trial

# A Held struct is less than this.
SMALL = 512
PEER_GONE = -1


@pytest.fixture
def group():
    """Function: Group's arguments -> Group, closed at the end."""
    groups = []

    def make(*args, **kwargs):
        groups.append(Group(*args, **kwargs))
        return groups[-1]

    yield make
    for made in groups:
        made.close()


single_copy = pytest.mark.parametrize("single_copy", [True, False], ids=["address", "stream"])
sizes = pytest.mark.parametrize("nbytes", [0, 1, 31, 224, 225, STREAM, BY_ADDRESS])


@single_copy
@sizes
def test_a_message_arrives(group, single_copy, nbytes):
    ranks, data, room = group(2, single_copy), body(1, nbytes), Room(nbytes + 3)
    sent, received = ranks[0].send(data, 1, 7), ranks[1].receive(room.view, 0, 7)
    ranks.settle()
    assert (sent.state, received.state, received.matched) == ("complete", "complete", (0, 7, nbytes))
    assert room.got(nbytes) == data
    ranks.assert_empty()


@single_copy
@sizes
def test_tags_out_of_order(group, single_copy, nbytes):
    ranks = group(2, single_copy)
    bodies = [body(tag, nbytes) for tag in range(5)]
    for tag in range(5):
        ranks[0].send(bodies[tag], 1, tag)
    ranks.settle()
    for tag in (3, 1, 4, 0, 2):
        room = Room(nbytes)
        received = ranks[1].receive(room.view, 0, tag)
        ranks.settle()
        assert (received.state, received.matched) == ("complete", (0, tag, nbytes))
        assert room.got(nbytes) == bodies[tag]
    ranks.assert_empty()


@pytest.mark.parametrize("tag", [0, 1, 2**31 - 1])
def test_every_tag(group, tag):
    ranks, room = group(2), Room(1)
    ranks[0].send(body(1, 1), 1, tag)
    received = ranks[1].receive(room.view, ANY, ANY)
    ranks.settle()
    assert received.matched == (0, tag, 1)


@single_copy
@pytest.mark.parametrize("nbytes", [3, STREAM, BY_ADDRESS])
@pytest.mark.parametrize("source", [0, ANY])
@pytest.mark.parametrize("first", ["receives", "sends"])
def test_messages_of_one_tag_keep_their_order(group, single_copy, nbytes, source, first):
    ranks, rooms = group(2, single_copy), [Room(nbytes) for _ in range(20)]
    bodies = [body(k, nbytes) for k in range(20)]

    def send():
        for data in bodies:
            ranks[0].send(data, 1, 4)

    def receive():
        for room in rooms:
            ranks[1].receive(room.view, source, 4)

    for step in (send, receive) if first == "sends" else (receive, send):
        step()
        ranks.settle()
    assert [room.got(nbytes) for room in rooms] == bodies
    ranks.assert_empty()


def test_receives_match_in_the_order_they_were_posted(group):
    ranks, rooms = group(3), [Room(1) for _ in range(4)]
    received = [
        ranks[2].receive(rooms[i].view, source, tag)
        for i, (source, tag) in enumerate([(1, 5), (ANY, 5), (0, ANY), (0, 5)])
    ]
    for _ in range(3):
        ranks[0].send(body(1, 1), 2, 5)
        ranks.settle()
        states = [letter.state for letter in received]
        assert states == ["posted"] + ["complete"] * (states.count("complete")) + ["posted"] * (
            states.count("posted") - 1
        )
    assert [letter.state for letter in received] == ["posted", "complete", "complete", "complete"]
    ranks[1].send(body(1, 1), 2, 5)
    ranks.settle()
    assert received[0].matched == (1, 5, 1)
    ranks.assert_empty()


@single_copy
@pytest.mark.parametrize("probing", [False, True], ids=["receive", "take"])
def test_any_source_starves_nobody(group, single_copy, probing):
    ranks, got = group(3, single_copy), []
    for k in range(4):
        for source in range(2):
            ranks[source].send(body(k, STREAM), 2, k)
    ranks.settle()
    for _ in range(4):
        room = Room(STREAM)
        if probing:
            letter = ranks[2].take(ANY, ANY)
            ranks[2].fill(letter, room.view)
        else:
            letter = ranks[2].receive(room.view, ANY, ANY)
        ranks.settle()
        got.append(letter.matched[:2])
    assert sorted(got) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_by_address_nothing_is_copied_aside(group):
    ranks, data, room = group(2), body(1, BY_ADDRESS), Room(BY_ADDRESS)
    sent = ranks[0].send(data, 1, 1)
    ranks[0].send(body(2, 1), 1, 2)
    ranks[1].receive(Room(1).view, 0, 2)
    ranks.settle()
    assert ranks[1].counts[0] < SMALL
    assert sent.state == "moving"
    data[:] = body(3, BY_ADDRESS)  # it is still the sender's, so what is there now is what arrives
    ranks[1].receive(room.view, 0, 1)
    ranks.settle()
    assert sent.state == "complete"
    assert room.got(BY_ADDRESS) == data


def test_a_stream_set_aside_is_kept(group):
    ranks, data, room = group(2, False), body(1, BY_ADDRESS), Room(BY_ADDRESS)
    sent = ranks[0].send(data, 1, 1)
    ranks[0].send(body(2, 1), 1, 2)
    ranks[1].receive(Room(1).view, 0, 2)
    ranks.settle()
    assert sent.state == "complete"
    assert BY_ADDRESS < ranks[1].counts[0] < BY_ADDRESS + SMALL
    expected, data[:] = bytes(data), bytes(BY_ADDRESS)
    ranks[1].receive(room.view, 0, 1)
    ranks.settle()
    assert room.got(BY_ADDRESS) == expected
    ranks.assert_empty()


def test_without_interest_messages_stay_in_the_ring(group):
    ranks = group(2)
    sent = [ranks[0].send(body(k, 100), 1, k) for k in range(10)]
    ranks.settle()
    assert [letter.state for letter in sent] == ["complete"] * 8 + ["moving", "posted"]
    assert ranks[1].counts == (0, 0, 0, 0)
    assert ranks[0].blockers(sent[8]) == ranks[0].blockers(sent[9]) == (0, 1)


@single_copy
@pytest.mark.parametrize("nbytes", [10, STREAM, BY_ADDRESS])
@pytest.mark.parametrize("where", ["posted before", "at the head", "set aside"])
@pytest.mark.parametrize("source", [0, ANY])
def test_too_long_stays_for_the_next_receive(group, single_copy, nbytes, where, source):
    ranks, data, small, room = group(2, single_copy), body(1, nbytes), Room(nbytes - 1), Room(nbytes)
    if where == "posted before":
        refused = ranks[1].receive(small.view, source, 3)
    sent = ranks[0].send(data, 1, 3)
    later = ranks[0].send(body(2, nbytes), 1, 3)
    if where == "set aside":
        ranks[0].send(bytearray(1), 1, 9)
        ranks[1].receive(bytearray(1), source, 9)
    ranks.settle()
    if where != "posted before":
        refused = ranks[1].receive(small.view, source, 3)
        ranks.settle()
    assert (refused.state, refused.matched) == ("too long", (0, 3, nbytes))
    assert small.got(0) == b""
    received = ranks[1].receive(room.view, source, 3)
    last = Room(nbytes)
    ranks[1].receive(last.view, source, 3)
    ranks.settle()
    assert (received.state, sent.state, later.state) == ("complete", "complete", "complete")
    assert (room.got(nbytes), last.got(nbytes)) == (data, body(2, nbytes))
    ranks.assert_empty()


def test_too_long_goes_on_to_the_receives_already_posted(group):
    ranks, rooms = group(2), [Room(2), Room(3), Room(4), Room(4)]
    received = [ranks[1].receive(room.view, 0, 1) for room in rooms]
    ranks[0].send(body(1, 4), 1, 1)
    ranks.settle()
    assert [letter.state for letter in received] == ["too long", "too long", "complete", "posted"]
    assert rooms[2].got(4) == body(1, 4)


@single_copy
@sizes
@pytest.mark.parametrize("aside", [False, True], ids=["head", "set aside"])
def test_a_synchronous_send_waits_for_its_receive(group, single_copy, nbytes, aside):
    ranks, room = group(2, single_copy), Room(nbytes)
    sent = ranks[0].send(body(1, nbytes), 1, 1, sync=True)
    after = ranks[0].send(body(2, 1), 1, 2)
    if aside:
        ranks[1].receive(bytearray(1), 0, 2)
    ranks.settle()
    assert sent.state == "moving"
    assert ranks[1].probe(0, 1) == (0, 1, nbytes)
    ranks.settle()
    assert sent.state == "moving"
    assert ranks[0].blockers(sent) == (0, 1)
    received = ranks[1].receive(room.view, 0, 1)
    ranks.settle()
    assert (sent.state, received.state) == ("complete", "complete")
    assert room.got(nbytes) == body(1, nbytes)
    assert (after.state == "complete") or not aside


@pytest.mark.parametrize("count", [64, 512, 600])
def test_many_by_address_in_reverse(group, count):
    """Beyond 512, the acknowledgements of a link, messages are streamed: the last may be wanted first."""
    ranks, data = group(2), np.frombuffer(body(1, BY_ADDRESS + count), np.uint8).copy()
    sent = [ranks[0].send(data[tag : tag + BY_ADDRESS], 1, tag) for tag in range(count)]
    room = Room(BY_ADDRESS)
    for tag in reversed(range(count)):
        received = ranks[1].receive(room.view, 0, tag)
        ranks.settle()
        assert received.state == "complete"
        assert room.got(BY_ADDRESS) == data[tag : tag + BY_ADDRESS].tobytes()
    assert {letter.state for letter in sent} == {"complete"}
    ranks.assert_empty()


def test_synchronous_sends_wait_for_an_acknowledgement_to_spare(group):
    ranks = group(2)
    sent = [ranks[0].send(body(tag, 1), 1, tag, sync=True) for tag in range(600)]
    assert ranks[1].receive(bytearray(1), 0, 599).state == "posted"
    ranks.settle()
    assert [letter.state for letter in sent].count("posted") == 600 - 512 - 1
    for tag in range(600):
        ranks[1].receive(bytearray(1), 0, tag) if tag != 599 else None
    ranks.settle()
    assert {letter.state for letter in sent} == {"complete"}
    ranks.assert_empty()


@single_copy
@sizes
def test_probe_takes_nothing(group, single_copy, nbytes):
    ranks, room = group(2, single_copy), Room(nbytes)
    assert ranks[1].probe(ANY, ANY) is None
    ranks[0].send(body(1, nbytes), 1, 1)
    ranks[0].send(body(2, nbytes), 1, 2)
    ranks.settle()
    for source, tag in [(0, 1), (ANY, 1), (0, ANY), (ANY, ANY)] * 2:
        assert ranks[1].probe(source, tag) == (0, 1, nbytes)
    assert ranks[1].probe(1, ANY) is None
    while ranks[1].probe(ANY, 2) is None:  # the first has to be set aside, which takes the sender's polls
        ranks.settle()
    assert ranks[1].probe(ANY, 2) == (0, 2, nbytes)
    assert ranks[1].probe(ANY, ANY) == (0, 1, nbytes)
    received = ranks[1].receive(room.view, 0, ANY)
    ranks.settle()
    assert received.matched == (0, 1, nbytes)
    assert room.got(nbytes) == body(1, nbytes)


def test_probe_leaves_messages_to_posted_receives(group):
    ranks, room = group(2), Room(1)
    received = ranks[1].receive(room.view, ANY, 1)
    ranks[0].send(body(1, 1), 1, 1)
    ranks[0].poll()
    assert ranks[1].probe(0, ANY) is None
    assert received.state == "complete"


@single_copy
@sizes
def test_what_is_taken_is_nobody_elses(group, single_copy, nbytes):
    ranks, room, other = group(2, single_copy), Room(nbytes), Room(nbytes)
    assert ranks[1].take(0, ANY) is None
    first = ranks[0].send(body(1, nbytes), 1, 1, sync=True)
    ranks[0].send(body(2, nbytes), 1, 1)
    ranks.settle()
    taken = ranks[1].take(ANY, ANY)
    assert (taken.state, taken.matched) == ("idle", (0, 1, nbytes))
    received = ranks[1].receive(other.view, 0, 1)
    ranks.settle()
    assert (received.state, other.got(nbytes)) == ("complete", body(2, nbytes))
    assert first.state == "moving"
    ranks[1].fill(taken, room.view)
    ranks.settle()
    assert (taken.state, taken.matched, room.got(nbytes)) == ("complete", (0, 1, nbytes), body(1, nbytes))
    assert first.state == "complete"
    ranks.assert_empty()


@single_copy
@pytest.mark.parametrize("nbytes", [1, STREAM, BY_ADDRESS])
def test_what_is_taken_survives_a_short_buffer(group, single_copy, nbytes):
    ranks, small, room = group(2, single_copy), Room(nbytes - 1), Room(nbytes)
    ranks[0].send(body(1, nbytes), 1, 1)
    ranks.settle()
    taken = ranks[1].take(0, 1)
    ranks[1].fill(taken, small.view)
    assert taken.state == "too long"
    ranks[1].fill(taken, room.view)
    ranks.settle()
    assert (taken.state, small.got(0), room.got(nbytes)) == ("complete", b"", body(1, nbytes))


def test_what_is_taken_and_dropped_costs_nothing_afterwards(group):
    ranks = group(2)
    ranks[0].send(body(1, 10), 1, 1)
    ranks.settle()
    assert ranks[1].take(0, 1) is not None
    ranks.settle()
    assert ranks[1].counts[2:] == (0, 0)


@single_copy
@sizes
@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("first", ["send", "receive"])
def test_a_message_to_oneself(group, single_copy, nbytes, sync, first):
    ranks, room = group(1, single_copy), Room(nbytes)
    if first == "send":
        sent = ranks[0].send(body(1, nbytes), 0, 1, sync=sync)
        ranks.settle()
        assert (sent.state == "complete") == (nbytes <= 8 * 224 and not sync)
        received = ranks[0].receive(room.view, 0, 1)
    else:
        received = ranks[0].receive(room.view, ANY, ANY)
        ranks.settle()
        sent = ranks[0].send(body(1, nbytes), 0, 1, sync=sync)
    ranks.settle()
    assert (sent.state, received.state, room.got(nbytes)) == ("complete", "complete", body(1, nbytes))
    ranks.assert_empty()


def test_beyond_the_limit_the_link_waits(group):
    ranks, bodies = group(2, limit=2 * STREAM + SMALL), [body(k, STREAM) for k in range(4)]
    for tag in range(4):
        ranks[0].send(bodies[tag], 1, tag)
    wanted = Room(STREAM)
    received = ranks[1].receive(wanted.view, 0, 3)
    ranks.settle()
    held, waiting, pending, _ = ranks[1].counts
    assert 2 * STREAM < held <= 2 * STREAM + SMALL
    assert (waiting, pending, received.state) == (1, 1, "posted")
    # The message that waits can be received itself, and what is received makes room.
    for tag in (2, 0):
        room = Room(STREAM)
        ranks[1].receive(room.view, 0, tag)
        ranks.settle()
        assert room.got(STREAM) == bodies[tag]
    assert (received.state, wanted.got(STREAM)) == ("complete", bodies[3])
    assert ranks[1].counts[1] == 0


def test_what_the_sender_keeps_does_not_reach_the_limit(group):
    ranks = group(2, limit=20 * SMALL)
    for tag in range(20):
        ranks[0].send(body(tag, BY_ADDRESS), 1, tag)
    received = ranks[1].receive(bytearray(BY_ADDRESS), 0, 19)
    ranks.settle()
    assert received.state == "complete"


def test_take_is_not_limited(group):
    ranks, room = group(2, limit=0), Room(STREAM)
    ranks[0].send(body(1, STREAM), 1, 1)
    ranks.settle()
    assert ranks[1].probe(0, 2) is None
    ranks[1].fill(ranks[1].take(0, 1), room.view)
    ranks.settle()
    assert room.got(STREAM) == body(1, STREAM)


def test_who_is_waited_for(group):
    ranks = group(3)
    specific, anywhere = ranks[0].receive(bytearray(1), 2, 1), ranks[0].receive(bytearray(1), ANY, 1)
    send = ranks[0].send(body(1, BY_ADDRESS), 1, 1)
    ranks.settle()
    assert ranks[0].blockers(specific) == (0, 0, 1)
    assert ranks[0].blockers(anywhere) == (2, 2, 2)
    assert ranks[0].blockers(send) == (0, 1, 0)
    ranks[2].send(body(1, 1), 0, 1)
    ranks.settle()
    assert ranks[0].blockers(specific) == (0, 0, 0)


@pytest.mark.parametrize("peer", [1, ANY])
def test_the_end_of_a_peer(group, peer):
    ranks = group(3)
    ranks[1].send(body(1, STREAM), 0, 8)
    ranks[0].receive(bytearray(1), 1, 9)
    ranks[1].poll()
    ranks[0].poll()  # tag 8 is being set aside
    letters = [
        ranks[0].send(body(1, BY_ADDRESS), 1, 1),
        ranks[0].send(body(1, 1), 1, 1, sync=True),
        ranks[0].receive(bytearray(1), 1, 1),
        ranks[0].receive(bytearray(STREAM), 1, 8),
        ranks[0].receive(bytearray(1), 2, 1),
        ranks[0].receive(bytearray(1), ANY, 1),
    ]
    ranks[0].poll()
    ranks[0].end(peer, PEER_GONE)
    assert [letter.state for letter in letters[:4]] == ["failed"] * 4
    assert [letter.state for letter in letters[4:]] == (["failed"] * 2 if peer == ANY else ["posted"] * 2)
    assert {letter.fault for letter in letters[:4]} == {(PEER_GONE, 0)}
    assert ranks[0].send(body(1, 1), 1, 1).state == "failed"
    assert ranks[0].receive(bytearray(1), 1, 1).state == "failed"
    if peer == ANY:
        assert ranks[0].receive(bytearray(1), ANY, ANY).state == "failed"
    else:
        ranks[2].send(body(1, 1), 0, 1)
        ranks[2].send(body(1, 1), 0, 1)
        ranks.settle()
        assert [letter.state for letter in letters[4:]] == ["complete"] * 2


def send_and_end(descriptor, ready, go):
    """Rank 1, in a process of its own: send by address, one message more behind it, and end without a word."""
    try:
        segment = _shm.Segment(1, 2, f"/proc/self/fd/{descriptor}", SECRET)
        os.write(ready, b"r")
        os.read(go, 1)
        segment.connect(True)
        trial = Trial(segment)
        trial.send(body(1, BY_ADDRESS), 0, 1)
        trial.send(body(2, 10), 0, 2)
        trial.poll()
    finally:
        os._exit(0)


def test_a_sender_that_ended(request):
    descriptor = _shm.create(2, SECRET, RING_BYTES)
    (mapped, ready), (start, go) = os.pipe(), os.pipe()
    for opened in (descriptor, mapped, start, go):
        request.addfinalizer(lambda opened=opened: os.close(opened))
    pid = os.fork()
    if pid == 0:
        send_and_end(descriptor, ready, start)
    os.close(ready)
    assert os.read(mapped, 1) == b"r"
    segment = _shm.Segment(0, 2, f"/proc/self/fd/{descriptor}", SECRET)
    refused = segment.probe_peers()
    segment.connect(True)
    os.write(go, b"g")
    os.waitpid(pid, 0)
    if refused:
        pytest.skip("the kernel does not let this process read its child's memory")
    trial, room = Trial(segment), Room(10)
    small = trial.receive(room.view, 1, 2)
    while small.state != "complete":
        assert trial.poll()
    assert room.got(10) == body(2, 10)
    lost, later = trial.receive(bytearray(BY_ADDRESS), 1, 1), trial.receive(bytearray(1), 1, 3)
    trial.poll()
    assert [letter.state for letter in (lost, later)] == ["failed", "failed"]
    assert lost.fault[0] == PEER_GONE
    assert trial.counts[2] == 0
