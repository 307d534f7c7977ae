"""Several rails of one peer: how they share the bytes, and what is repeated when one of them fails."""

import pytest
from wires import AGAIN, COLLECTIVE, DONE, ENETWORK, EPEER, FAILED, LOST, POINT_TO_POINT, Ends, body

from hetccl._wire_trial import Pair

memory = pytest.mark.parametrize("zero_copy", [(True, True), (False, False)], ids=["direct", "copied"])
classes = pytest.mark.parametrize("cls", [COLLECTIVE, POINT_TO_POINT], ids=["collective", "point_to_point"])


@pytest.mark.parametrize("nrails", [2, 3, 4])
@pytest.mark.parametrize("nbytes", [1000, 1024, 3001, 10007])
@memory
def test_a_message_is_spread_over_the_rails(nrails, nbytes, zero_copy):
    ends, data = Ends(nrails=nrails, zero_copy=zero_copy), body(1, nbytes)
    ends.send(0, data)
    received = ends.receive(1, nbytes)
    ends.settle()
    assert received.got() == data
    ends.assert_clean()
    counters = ends.pair.counters(0)
    assert sum(counters["bytes"]) == nbytes + 32
    used = counters["bytes"][:nrails]
    assert min(used) > 0
    assert counters["bytes"][nrails:] == [0] * (4 - nrails)


@pytest.mark.parametrize(
    "nbytes, parts",
    [
        (225, [225, 0, 0, 0]),
        (255, [255, 0, 0, 0]),
        (256, [128, 128, 0, 0]),
        (383, [192, 191, 0, 0]),
        (384, [128, 128, 128, 0]),
        (511, [192, 192, 127, 0]),
        (512, [128] * 4),
        (5121, [1344] * 3 + [1089]),
    ],
)
def test_no_part_is_short(nbytes, parts):
    ends = Ends(nrails=4, cut_bytes=128)
    ends.receive(1, nbytes, cls=COLLECTIVE)
    ends.settle()
    ends.send(0, body(1, nbytes), cls=COLLECTIVE)
    ends.settle()
    assert ends.pair.counters(0)["bytes"] == parts


def test_small_messages_take_the_first_rail():
    ends = Ends(nrails=4)
    for k in range(4):
        ends.send(0, body(k, 50), tag=k)
    ends.settle()
    assert ends.pair.counters(0)["writes"] == [4, 0, 0, 0]


@memory
@pytest.mark.parametrize("order", ["first", "last"])
def test_the_rails_need_not_keep_step(zero_copy, order):
    ends, data = Ends(nrails=3, zero_copy=zero_copy), [body(k, 2500) for k in range(4)]
    received = [ends.receive(1, 2500, tag=k) for k in range(4)]
    for k in range(4):
        ends.send(0, data[k], tag=k)
    for _ in range(300):
        for side in range(2):
            ends.advance(side)
        for side in range(2):
            for rail in (0, 1, 2) if order == "first" else (2, 1, 0):
                if ends.pair.deliver(side, rail):
                    break
            ends.pair.complete(side, rail)
    ends.settle()
    assert [task.got() for task in received] == data
    ends.assert_clean()


class Story:
    """Traffic of all kinds, both ways; the same for every test that loses a write of it."""

    SIZES = (5, 1500, 224, 700, 3, 2100, 1, 9)

    def __init__(self, **kwargs):
        self.ends = Ends(chunk_bytes=128, nchunks=3, depth=8, first=2**32 - 2, **kwargs)
        self.expected = []
        for side in range(2):
            for cls in (COLLECTIVE, POINT_TO_POINT):
                for k, nbytes in enumerate(self.SIZES):
                    data = body(100 * side + 10 * cls + k, nbytes)
                    self.ends.send(side, data, tag=k, cls=cls, sync=cls == POINT_TO_POINT and k % 3 == 0)
                    received = self.ends.receive(1 - side, nbytes, tag=k, cls=cls)
                    self.expected.append((received, data))

    def run(self, fail_at=None, lose=lambda: None):
        """Until nothing moves; when so many writes have been delivered, lose() is called. How many there were."""
        count = 0
        for _ in range(2000):
            moved = self.ends.advance_both()
            for side in range(2):
                for rail in range(self.ends.nrails):
                    if count == fail_at:
                        count, fail_at = count + 1, None
                        lose()
                    if self.ends.pair.deliver(side, rail):
                        count += 1
                        moved = True
                    # Every other write is told to be complete late.
                    if count % 2:
                        moved |= self.ends.pair.complete(side, rail)
            if not moved and not self.ends.carry():
                return count
        raise AssertionError("the wire moves for ever")

    def check(self):
        assert [task.got() for task, _ in self.expected] == [data for _, data in self.expected]
        self.ends.assert_clean()


WRITES = {
    (nrails, copied): Story(nrails=nrails, zero_copy=(not copied, not copied)).run()
    for nrails in (2, 3)
    for copied in (False, True)
}


def every_write(nrails, step=1):
    return pytest.mark.parametrize(
        "copied, number", [(copied, n) for copied in (False, True) for n in range(0, WRITES[nrails, copied], step)]
    )


@pytest.mark.parametrize("nrails, copied", WRITES)
def test_the_story_without_a_loss(nrails, copied):
    story = Story(nrails=nrails, zero_copy=(not copied, not copied))
    story.run()
    story.check()


@every_write(2)
@pytest.mark.parametrize("rail", [0, 1])
@pytest.mark.parametrize("notices", [0, 1])
def test_a_rail_fails_at_every_single_write(copied, number, rail, notices):
    story = Story(nrails=2, zero_copy=(not copied, not copied))
    ends = story.ends

    def lose():
        ends.pair.fail(notices, rail)
        ends.advance(notices)
        assert ends.pair.pending(notices) == (1 << rail, 1 << rail)
        before = ends.pair.counters(notices)["writes"]
        ends.advance(notices)
        assert ends.pair.counters(notices)["writes"] == before
        assert ends.mend(rail, notices, between=lambda: (ends.advance(1 - notices), ends.carry())) == [DONE, DONE]

    story.run(number, lose)
    story.check()


@every_write(2, 5)
@pytest.mark.parametrize("rail", [0, 1])
@pytest.mark.parametrize("first", [0, 1])
def test_a_rail_fails_on_both_sides_and_the_other_goes_on_meanwhile(copied, number, rail, first):
    story = Story(nrails=2, zero_copy=(not copied, not copied))
    ends = story.ends

    def lose():
        for side in range(2):
            ends.pair.fail(side, rail)
        for _ in range(3):
            ends.carry()
            for side in range(2):
                ends.advance(side)
        assert ends.mend(rail, first, between=lambda: ends.carry()) == [DONE, DONE]

    story.run(number, lose)
    story.check()


@every_write(3, 9)
@pytest.mark.parametrize("closes", [((0, 1), (1, 0)), ((0, 1), (0, 1)), ((1, 0), (0, 1)), ((0, 2), (2, 0))])
@pytest.mark.parametrize("resumes", [((0, 1), (1, 0)), ((0, 1), (0, 1))])
def test_two_rails_fail_at_once(copied, number, closes, resumes):
    """Each side closes them and resumes in an order of its own."""
    story = Story(nrails=3, zero_copy=(not copied, not copied))
    ends, pair = story.ends, story.ends.pair

    def lose():
        got = [{}, {}]
        for turn in range(2):
            for side in range(2):
                rail = closes[side][turn]
                pair.fail(side, rail)
                ends.advance(side)
                got[side][rail] = pair.close_rail(side, rail)
                ends.carry()
        for turn in range(2):
            for side in range(2):
                rail = closes[side][resumes[side][turn]]
                assert pair.resume(side, rail, got[1 - side][rail]) == DONE
                ends.advance(side)
                ends.carry()

    story.run(number, lose)
    story.check()


@every_write(3, 7)
@pytest.mark.parametrize("second", [1, 2, 5, 20])
def test_one_rail_fails_after_the_other(copied, number, second):
    story = Story(nrails=3, zero_copy=(not copied, not copied))
    ends = story.ends

    def lose():
        ends.pair.fail(1, 0)
        ends.advance(1)
        assert ends.mend(0, 1) == [DONE, DONE]
        for k in range(second):
            ends.advance(k % 2)
            ends.pair.deliver(k % 2, 1)
        ends.pair.fail(0, 1)
        ends.advance(0)
        assert ends.mend(1, 0) == [DONE, DONE]

    story.run(number, lose)
    story.check()


def test_what_was_told_of_an_earlier_rail_is_old():
    """The receiver closed rail 1 before two cells came, and the sender learns of that last."""
    ends = Ends(nrails=3)
    pair, data = ends.pair, [body(k, 10 + k) for k in range(3)]
    received = [ends.receive(1, len(part)) for part in data]
    pair.fail(1, 1)
    ends.advance(1)
    old = pair.close_rail(1, 1)
    for part in data[:2]:
        ends.send(0, part)
    ends.advance(0)
    assert pair.deliver(0, 0)
    assert pair.deliver(0, 0)
    pair.fail(0, 0)
    new = [pair.close_rail(side, 0) for side in range(2)]
    assert (old["cells"], new[1]["cells"]) == ([0, 0], [0, 2])
    assert pair.resume(0, 0, new[1]) == DONE
    ends.send(0, data[2])
    ends.advance(0)
    assert pair.under_way(0, 1) > 0
    mine = pair.close_rail(0, 1)
    assert pair.resume(0, 1, old) == DONE
    assert pair.resume(1, 0, new[0]) == pair.resume(1, 1, mine) == DONE
    ends.settle()
    assert [task.got() for task in received] == data
    ends.assert_clean()


def test_a_message_is_done_only_when_its_writes_are_complete():
    """However late that is told: the peer may have asked for 64 pieces more meanwhile."""
    ends = Ends(nrails=2, chunk_bytes=64, cut_bytes=64, nchunks=2, depth=200, zero_copy=(True, False))
    pair, data = ends.pair, [body(1, 128), body(2, 64 * 130)]
    sent = [ends.send(0, part, tag=k, sync=True) for k, part in enumerate(data)]
    received = [ends.receive(1, len(part), tag=k) for k, part in enumerate(data)]
    for _ in range(300):
        for side in range(2):
            ends.advance(side)
            for rail in range(2):
                while pair.deliver(side, rail):
                    pass
        pair.complete(1, 0)
    assert [task.got() for task in received] == data
    assert [task.result for task in sent] == [None, None]
    for rail, results in ((0, [None, None]), (1, [DONE, DONE])):
        pair.complete(0, rail)
        ends.advance(0)
        assert [task.result for task in sent] == results
    ends.assert_clean()


@memory
@pytest.mark.parametrize("nrails", [1, 2])
def test_no_rail_is_left(nrails, zero_copy):
    ends = Ends(nrails=nrails, zero_copy=zero_copy)
    data, large = body(1, 20), body(2, 3000)
    ends.send(0, data, tag=1)
    ends.settle()
    sent, coming = ends.send(0, large, tag=2), ends.receive(1, 3000, tag=2, cls=COLLECTIVE)
    for side in range(2):
        ends.advance(side)
    for rail in range(nrails):
        ends.pair.fail(0, rail)
        ends.advance(0)
        last = rail == nrails - 1
        assert ends.mend(rail) == [ENETWORK if last else DONE] * 2
    received = ends.receive(1, 20, tag=1)
    ends.settle()
    assert received.got() == data
    assert [task.result for task in (sent, coming)] == [ENETWORK] * 2
    assert [ends.pair.state(side) for side in range(2)] == ["failed", "failed"]
    assert [ends.pair.registrations(side) for side in range(2)] == [(0, 0)] * 2
    late = ends.send(0, data), ends.receive(0, 20, cls=COLLECTIVE), ends.receive(0, 3000, cls=COLLECTIVE)
    ends.settle()
    assert [task.result for task in late] == [ENETWORK] * 3
    assert ends.pair.peek(0, POINT_TO_POINT) == ENETWORK
    assert ends.pair.broken == []


@pytest.mark.parametrize("state, fault", [(LOST, EPEER), (FAILED, ENETWORK)])
def test_the_traffic_ends_after_what_has_arrived(state, fault):
    ends = Ends()
    data = [body(k, nbytes) for k, nbytes in enumerate((10, 0, 200))]
    for k, part in enumerate(data):
        ends.send(0, part, tag=k)
    announced = ends.send(0, body(9, 5000), tag=9)
    ends.settle()
    ends.pair.end(1, state)
    received = [ends.receive(1, len(part), tag=k) for k, part in enumerate(data)]
    last, none = ends.receive(1, 5000, tag=9), ends.receive(1, 5, tag=10)
    ends.settle()
    assert [task.got() for task in received] == data
    assert (last.result, none.result) == (fault, fault)
    assert announced.result is None
    assert ends.pair.registrations(1)[0] == 0


@pytest.mark.parametrize("copied", [False, True])
def test_a_large_message_that_has_landed_is_delivered_after_the_peers_end(copied):
    ends, data = Ends(zero_copy=(True, not copied), chunk_bytes=256, nchunks=4), body(1, 1000)
    received = ends.receive(1, 1000, cls=COLLECTIVE)
    ends.settle()
    ends.send(0, data, cls=COLLECTIVE)
    ends.advance(0)
    ends.carry()
    ends.pair.end(1)
    ends.settle()
    assert received.got() == data


def test_a_message_whose_writes_are_complete_is_done_after_the_peers_end():
    ends = Ends()
    sent = ends.send(0, body(1, 1000))
    ends.settle()
    received = ends.receive(1, 1000)
    ends.advance(1)
    ends.carry()
    ends.advance(0)
    ends.carry()
    ends.pair.end(0)
    ends.advance(0)
    assert sent.result == DONE
    ends.advance(1)
    assert received.result == DONE


@pytest.mark.parametrize("receive", [False, True])
def test_a_peer_that_cannot_be_connected(receive):
    pair = Pair()
    message = pair.message(0, receive, POINT_TO_POINT, bytearray(8), 7)
    call = message.recv if receive else message.send
    assert call() == AGAIN
    pair.end(0, FAILED)
    assert call() == ENETWORK
    assert pair.peek(0, POINT_TO_POINT) == ENETWORK
    pair.close(0)
    assert pair.state(0) == "unconnected"


def test_quiet_ends_all_use_of_the_users_memory():
    ends = Ends(nrails=2)
    ends.receive(1, 3000, cls=COLLECTIVE)
    ends.settle()
    ends.send(0, body(1, 3000), cls=COLLECTIVE)
    ends.advance(0)
    assert [ends.pair.registrations(side)[0] for side in range(2)] == [2, 2]
    for side in range(2):
        ends.pair.quiet(side)
    assert [ends.pair.registrations(side) for side in range(2)] == [(0, 4), (0, 4)]
    assert not any(ends.pair.deliver(0, rail) for rail in range(2))
    for side in range(2):
        ends.pair.close(side)
    assert [ends.pair.registrations(side) for side in range(2)] == [(0, 0), (0, 0)]
    assert ends.pair.broken == []


GOOD = {"cells": [0, 0], "cts": [0, 0], "open": [[], []]}


@pytest.mark.parametrize("cls", [0, 1])
@pytest.mark.parametrize(
    "lie",
    [
        {"cells": 1},
        {"cells": 2**31},
        {"cells": 2**32 - 5},
        {"cts": 1},
        {"cts": 2**31},
        {"cts": 2**32 - 65},
        {"open": [(0, 0, 0)] * 65},
    ],
)
def test_a_peer_that_says_what_cannot_be_is_given_up(lie, cls):
    ends = Ends(nrails=2)
    got = {key: list(value) for key, value in GOOD.items()}
    for key, value in lie.items():
        got[key][cls] = value
    ends.pair.close_rail(0, 0)
    assert ends.pair.resume(0, 0, got) == ENETWORK
    assert ends.pair.state(0) == "failed"


@classes
@pytest.mark.parametrize("position", [0, 1, 77, 2**32 - 1])
@pytest.mark.parametrize("mask", [0, 1, 2, 15, 2**32 - 1])
def test_a_peer_that_lies_about_pieces_harms_nobody(cls, position, mask):
    """Whatever it says is in place, what is written goes where it asked for it."""
    ends = Ends(nrails=2)
    ends.receive(1, 3000, cls=cls)
    sent = ends.send(0, body(1, 3000), cls=cls)
    ends.settle() if cls == COLLECTIVE else ends.advance(0)
    ends.pair.fail(0, 0)
    ends.advance(0)
    got = [ends.pair.close_rail(side, 0) for side in range(2)]
    got[1]["open"][cls] = [(position, 2, mask)]
    assert ends.pair.resume(0, 0, got[1]) == DONE
    assert ends.pair.resume(1, 0, got[0]) == DONE
    ends.settle()
    assert sent.result in (None, DONE)
    assert ends.pair.broken == []
