"""Messages over a wire of one rail: eager and asked for, from and into the user's memory or through hetccl's."""

import pytest
from wires import (
    AGAIN,
    COLLECTIVE,
    DONE,
    ELENGTH,
    ETAG,
    PAYLOAD,
    POINT_TO_POINT,
    Ends,
    body,
)

classes = pytest.mark.parametrize("cls", [COLLECTIVE, POINT_TO_POINT], ids=["collective", "point_to_point"])
SIZES = (1, 31, 32, 33, PAYLOAD, PAYLOAD + 1, 256, 257, 1025, 5000)
# A plan has no empty messages.
classes_and_sizes = pytest.mark.parametrize(
    "cls, nbytes", [(POINT_TO_POINT, 0), *((cls, nbytes) for cls in (COLLECTIVE, POINT_TO_POINT) for nbytes in SIZES)]
)
memory = pytest.mark.parametrize(
    "zero_copy",
    [(True, True), (False, True), (True, False), (False, False)],
    ids=["direct", "staged", "landed", "both"],
)


@classes_and_sizes
@memory
@pytest.mark.parametrize("first", ["sender", "receiver"])
def test_a_message_arrives(cls, nbytes, zero_copy, first):
    ends, data = Ends(zero_copy=zero_copy), body(nbytes, nbytes)
    if first == "sender":
        ends.send(0, data, cls=cls)
        ends.settle()
    received = ends.receive(1, nbytes, cls=cls)
    ends.settle()
    if first == "receiver":
        ends.send(0, data, cls=cls)
        ends.settle()
    assert received.got() == data
    ends.assert_clean()


@memory
@pytest.mark.parametrize("nbytes", [PAYLOAD + 1, 5000])
def test_the_way_of_the_bytes(zero_copy, nbytes):
    ends = Ends(zero_copy=zero_copy)
    ends.send(0, body(1, nbytes))
    ends.receive(1, nbytes)
    ends.settle()
    ends.assert_clean()
    sent, received = ends.pair.counters(0), ends.pair.counters(1)
    assert (sent["direct_out"], sent["staged_out"]) == ((nbytes, 0) if zero_copy[0] else (0, nbytes))
    assert (received["direct_in"], received["landed_in"]) == ((nbytes, 0) if zero_copy[1] else (0, nbytes))
    assert received["cts"] == (1 if zero_copy[1] else -(-nbytes // 256))


@pytest.mark.parametrize("nbytes", [0, 1, PAYLOAD])
def test_a_small_message_is_one_write(nbytes):
    ends = Ends()
    sent = ends.send(0, body(1, nbytes))
    ends.advance(0)
    assert sent.result == DONE
    assert ends.pair.under_way(0, 0) == 1
    counters = ends.pair.counters(0)
    assert (counters["eager"], counters["rts"]) == (1, 0)
    assert counters["bytes"][0] == -(-nbytes // 32) * 32 + 32


@classes
@memory
def test_both_ways_at_once(cls, zero_copy):
    ends = Ends(zero_copy=zero_copy)
    data = [[body(10 * side + k, nbytes) for k, nbytes in enumerate((1, 3000, 224, 225, 700, 9))] for side in range(2)]
    received = [[], []]
    for side in range(2):
        for k, part in enumerate(data[side]):
            ends.send(side, part, tag=k, cls=cls)
            received[1 - side].append(ends.receive(1 - side, len(part), tag=k, cls=cls))
    ends.settle()
    for side in range(2):
        assert [task.got() for task in received[1 - side]] == data[side]
    ends.assert_clean()


@pytest.mark.parametrize("nbytes", [0, 1, PAYLOAD, PAYLOAD + 1, 4000])
def test_a_synchronous_message_waits_for_its_receive(nbytes):
    ends, data = Ends(), body(3, nbytes)
    sent = ends.send(0, data, sync=True)
    ends.settle()
    assert sent.result is None
    assert sent.message.posted
    received = ends.receive(1, nbytes)
    ends.settle()
    assert sent.result == DONE
    assert received.got() == data
    ends.assert_clean()


def test_a_message_in_the_links_hands_does_not_hold_up_the_next():
    ends = Ends()
    large, small = ends.send(0, body(1, 3000), tag=1), ends.send(0, body(2, 8), tag=2)
    ends.settle()
    assert (large.result, small.result) == (None, DONE)


def test_a_receive_in_the_links_hands_does_not_hold_up_the_next():
    ends = Ends()
    data = [body(1, 3000), body(2, 8)]
    for k in range(2):
        ends.send(0, data[k], tag=k)
    ends.settle()
    large, small = ends.receive(1, 3000, tag=0), ends.receive(1, 8, tag=1)
    ends.advance(1)
    assert large.message.message.posted
    assert small.got() == data[1]
    ends.settle()
    assert large.got() == data[0]


@memory
def test_more_large_receives_than_the_link_keeps_at_once(zero_copy):
    ends, count = Ends(zero_copy=zero_copy, shapes=((64, 256), (64, 256)), depth=200), 40
    data = [body(k, 300 + 17 * k) for k in range(count)]
    received = [ends.receive(1, len(part), tag=k) for k, part in enumerate(data)]
    for k, part in enumerate(data):
        ends.send(0, part, tag=k)
    ends.settle()
    assert [task.got() for task in received] == data
    ends.assert_clean()


@pytest.mark.parametrize("count", [1, 3, 4, 5, 9, 100])
@classes
def test_a_full_ring_waits_for_credits(count, cls):
    ends = Ends()
    data = [body(k, 1 + k) for k in range(count)]
    sent = [ends.send(0, part, tag=k, cls=cls) for k, part in enumerate(data)]
    ends.settle()
    assert [task.result for task in sent] == [DONE] * min(count, 4) + [None] * max(0, count - 4)
    received = [ends.receive(1, len(part), tag=k, cls=cls) for k, part in enumerate(data)]
    ends.settle()
    assert [task.got() for task in received] == data
    ends.assert_clean()
    assert ends.pair.counters(1)["credits"] == count // 2


def test_a_full_ring_of_one_class_leaves_the_other_alone():
    ends = Ends()
    for k in range(9):
        ends.send(0, body(k, 5), tag=k)
    ends.settle()
    data = body(99, 50)
    ends.send(0, data, cls=COLLECTIVE)
    received = ends.receive(1, 50, cls=COLLECTIVE)
    ends.settle()
    assert received.got() == data


def test_a_cell_is_not_filled_while_its_write_is_not_complete():
    ends = Ends(shapes=((2, 256), (2, 256)))
    pair = ends.pair
    sent = [ends.send(0, body(k, 5), tag=k) for k in range(3)]
    received = [ends.receive(1, 5, tag=k) for k in range(3)]
    ends.advance(0)
    while pair.deliver(0, 0):
        ends.advance(1)
    while pair.deliver(1, 0):
        pass
    ends.advance(0)
    assert [task.result for task in sent] == [DONE, DONE, None]
    pair.complete(0, 0)
    ends.settle()
    assert [task.got() for task in received] == [body(k, 5) for k in range(3)]
    ends.assert_clean()


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("nchunks", [1, 2, 32])
@memory
@classes
def test_a_short_send_queue(depth, nchunks, zero_copy, cls):
    ends = Ends(depth=depth, nchunks=nchunks, zero_copy=zero_copy, max_write=100)
    data = [body(k, nbytes) for k, nbytes in enumerate((5, 1500, 224, 4000, 225, 1))]
    for side in range(2):
        for k, part in enumerate(data):
            ends.send(side, part, tag=k, cls=cls)
    received = [ends.receive(side, len(part), tag=k, cls=cls) for side in range(2) for k, part in enumerate(data)]
    ends.settle()
    assert [task.got() for task in received] == 2 * data
    ends.assert_clean()


@pytest.mark.parametrize("first", [0, 2**25 - 3, 2**31 - 3, 2**32 - 3, 2**32 - 70])
@memory
@classes
def test_numbers_wrap(first, zero_copy, cls):
    ends = Ends(first=first, zero_copy=zero_copy)
    data = [body(k, (3, 300, 1000)[k % 3]) for k in range(150)]
    for k, part in enumerate(data):
        ends.send(0, part, tag=k, cls=cls)
    received = [ends.receive(1, len(part), tag=k, cls=cls) for k, part in enumerate(data)]
    ends.settle()
    assert [task.got() for task in received] == data
    ends.assert_clean()


@pytest.mark.parametrize("shapes", [((2, 128), (1024, 128)), ((8, 4096), (2, 192)), ((4, 1 << 20), (4, 256))])
def test_the_two_inboxes_differ(shapes):
    ends = Ends(shapes=shapes, chunk_bytes=64)
    data = [body(k, nbytes) for k, nbytes in enumerate((96, 97, 160, 161, 4064, 4065, 10000))]
    for side in range(2):
        for k, part in enumerate(data):
            ends.send(side, part, tag=k)
    received = [ends.receive(side, len(part), tag=k) for side in range(2) for k, part in enumerate(data)]
    ends.settle()
    assert [task.got() for task in received] == 2 * data
    ends.assert_clean()


@pytest.mark.parametrize("nbytes", [1, PAYLOAD, PAYLOAD + 1, 257, 4096, 5000])
@pytest.mark.parametrize("step", [1, 16, 100, 1 << 20])
@pytest.mark.parametrize("first", ["sender", "receiver"])
def test_bytes_are_read_where_they_landed(nbytes, step, first):
    ends, data = Ends(), body(nbytes, nbytes)
    after = body(1, 20)
    if first == "sender":
        ends.send(0, data, cls=COLLECTIVE)
        ends.send(0, after, cls=COLLECTIVE)
        ends.settle()
    fetched, received = ends.fetch(1, nbytes, step=step), ends.receive(1, 20, cls=COLLECTIVE)
    ends.settle()
    if first == "receiver":
        ends.send(0, data, cls=COLLECTIVE)
        ends.send(0, after, cls=COLLECTIVE)
        ends.settle()
    assert fetched.got() == data
    assert received.got() == after
    ends.assert_clean()


def test_what_is_available_is_a_chunk_and_several_are_under_way():
    ends = Ends(chunk_bytes=128, nchunks=3)
    message = ends.pair.message(1, True, COLLECTIVE, None, 7, nbytes=1000)
    assert message.available() == AGAIN
    assert ends.pair.counters(1)["cts"] == 3
    ends.send(0, body(1, 1000), cls=COLLECTIVE)
    ends.settle()
    assert message.available() == 128
    assert message.fetch(128) == body(1, 1000)[:128]
    message.consume(28)
    assert message.available() == 100
    message.consume(100)
    assert ends.pair.counters(1)["cts"] == 4


@pytest.mark.parametrize("nbytes", [PAYLOAD + 1, 3000])
@memory
def test_a_receiver_that_is_first_needs_no_announcement(nbytes, zero_copy):
    ends, data = Ends(zero_copy=zero_copy), body(5, nbytes)
    received = ends.receive(1, nbytes, cls=COLLECTIVE)
    ends.settle()
    ends.send(0, data, cls=COLLECTIVE)
    ends.settle()
    assert received.got() == data
    assert ends.pair.counters(0)["rts"] == 0
    ends.assert_clean()


@pytest.mark.parametrize("nbytes", [0, 1, PAYLOAD + 1, 3000])
def test_a_receiver_of_a_point_to_point_message_asks_for_nothing_beforehand(nbytes):
    ends = Ends()
    ends.receive(1, nbytes)
    ends.settle()
    assert ends.pair.counters(1)["cts"] == 0


@pytest.mark.parametrize("order", ["request first", "announcement first"])
@memory
def test_request_and_announcement_cross(order, zero_copy):
    ends = Ends(zero_copy=zero_copy)
    data = [body(k, 1000) for k in range(3)]
    received = [ends.receive(1, 1000, tag=k, cls=COLLECTIVE) for k in range(3)]
    for k in range(3):
        ends.send(0, data[k], tag=k, cls=COLLECTIVE)
    for side in (1, 0) if order == "request first" else (0, 1):
        ends.advance(side)
    assert ends.pair.counters(0)["rts"] == 3
    for side in (1, 0) if order == "request first" else (0, 1):
        while ends.pair.deliver(side, 0):
            pass
        ends.advance(1 - side)
    ends.settle()
    assert [task.got() for task in received] == data
    ends.assert_clean()


def test_a_late_announcement_of_a_message_that_is_complete():
    """It went over another rail than the bytes, which were faster."""
    ends = Ends(nrails=2, cut_bytes=2000)
    pair, data = ends.pair, [body(k, 3000) for k in range(4)]
    ends.send(0, data[0], cls=COLLECTIVE)
    ends.receive(1, 3000, cls=COLLECTIVE)
    ends.settle()
    ends.send(0, data[1], cls=COLLECTIVE)
    ends.advance(0)
    received = ends.receive(1, 3000, cls=COLLECTIVE)
    ends.advance(1)
    assert pair.deliver(1, 0)
    ends.advance(0)
    assert (pair.under_way(0, 0), pair.under_way(0, 1)) == (1, 1)
    assert pair.deliver(0, 1)
    ends.advance(1)
    assert received.got() == data[1]
    for part in data[2:]:
        ends.send(0, part, cls=COLLECTIVE)
    rest = [ends.receive(1, 3000, cls=COLLECTIVE) for _ in data[2:]]
    ends.settle()
    assert [task.got() for task in rest] == data[2:]
    ends.assert_clean()


@pytest.mark.parametrize("expected", [1000, 1200, 2000])
@pytest.mark.parametrize(
    "sent, tag, fault",
    [
        (1000, 8, ETAG),
        (224, 7, ELENGTH),
        (1, 8, ETAG),
        (1001, 7, ELENGTH),
        (5000, 7, ELENGTH),
        (5000, 9, ETAG),
    ],
)
@pytest.mark.parametrize("first", ["sender", "receiver", "crossing"])
@pytest.mark.parametrize("fetch", [False, True], ids=["recv", "fetch"])
def test_another_message_than_expected_is_a_fault(expected, sent, tag, fault, first, fetch):
    ends, data = Ends(), body(1, sent)
    if first == "sender":
        ends.send(0, data, tag=tag, cls=COLLECTIVE)
        ends.settle()
    received = ends.fetch(1, expected) if fetch else ends.receive(1, expected, cls=COLLECTIVE)
    if first == "receiver":
        ends.settle()
    else:
        ends.advance(1)
    if first != "sender":
        ends.send(0, data, tag=tag, cls=COLLECTIVE)
    ends.settle()
    assert received.result == fault
    assert ends.pair.peek(1, COLLECTIVE) == (sent, sent if sent <= PAYLOAD else 0, tag)
    assert ends.pair.registrations(1)[0] == 0
    if not fetch:
        assert bytes(received.room.view) == b"\x5a" * expected
    assert ends.pair.broken == []
    assert [ends.pair.state(side) for side in range(2)] == ["up", "up"]


@pytest.mark.parametrize("sent, tag, fault", [(30, 8, ETAG), (31, 7, ELENGTH), (3000, 7, ELENGTH), (3000, 8, ETAG)])
def test_another_small_message_than_expected_is_a_fault(sent, tag, fault):
    ends = Ends()
    ends.send(0, body(1, sent), tag=tag, cls=COLLECTIVE)
    received = ends.receive(1, 30, cls=COLLECTIVE)
    ends.settle()
    assert received.result == fault


@pytest.mark.parametrize("past_cache", [False, True])
@pytest.mark.parametrize("nbytes", [5, 224, 1111])
def test_past_the_cache(past_cache, nbytes):
    ends, data = Ends(zero_copy=(True, False)), body(4, nbytes)
    ends.send(0, data)
    received = ends.receive(1, nbytes, past_cache=past_cache)
    ends.settle()
    assert received.got() == data
