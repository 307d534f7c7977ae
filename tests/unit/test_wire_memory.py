"""How two sides of a wire are connected, and the memory that they take and give back."""

import pytest
from mailboxes import Room
from wires import AGAIN, COLLECTIVE, DONE, ELENGTH, POINT_TO_POINT, Ends, body

from hetccl._wire_trial import Pair

classes = pytest.mark.parametrize("cls", [COLLECTIVE, POINT_TO_POINT], ids=["collective", "point_to_point"])


@pytest.mark.parametrize(
    "shape", [(0, 256), (1, 256), (3, 256), (2048, 256), (4, 64), (4, 130), (4, (1 << 20) + 64), (2**32 - 1, 2**32 - 1)]
)
def test_a_peer_with_an_impossible_inbox_is_refused(shape):
    pair = Pair()
    assert pair.open(0) == pair.open(1) == (DONE, -1)
    assert pair.attach(0, shape) == (ELENGTH, -1)
    pair.close(0)
    assert (pair.state(0), pair.registrations(0)) == ("unconnected", (0, 0))


@pytest.mark.parametrize("step", ["open", "attach"])
@pytest.mark.parametrize("rail", [0, 1, 3])
def test_memory_that_cannot_be_registered(step, rail):
    pair = Pair(nrails=4)
    for name in ("open", "attach"):
        if name == step:
            pair.refuse(0, rail, engine=True)
        for side in range(2):
            expected = (-5, rail) if (name, side) == (step, 0) else (DONE, -1)
            assert getattr(pair, name)(side) == expected
        if name == step:
            break
    pair.close(0)
    assert (pair.state(0), pair.registrations(0)) == ("unconnected", (0, 0))
    assert pair.broken == []


def test_memory_is_registered_while_it_is_used():
    ends = Ends()
    ends.send(0, body(1, 3000))
    ends.receive(1, 3000)
    ends.settle()
    assert [ends.pair.registrations(side) for side in range(2)] == [(0, 2)] * 2
    for side in range(2):
        ends.pair.close(side)
    assert [ends.pair.registrations(side) for side in range(2)] == [(0, 0)] * 2
    assert [ends.pair.state(side) for side in range(2)] == ["unconnected"] * 2
    assert ends.pair.broken == []


@pytest.mark.parametrize("receive", [False, True])
@classes
def test_the_first_use_asks_for_a_connection(receive, cls):
    pair = Pair()
    message = pair.message(0, receive, cls, bytearray(8), 7)
    assert pair.state(0) == "unconnected"
    assert (message.recv() if receive else message.send()) == AGAIN
    assert pair.state(0) == "wanted"
    for step in (pair.open, pair.attach):
        for side in range(2):
            step(side)
    assert pair.state(0) == "ready"
    assert (message.recv() if receive else message.send()) == AGAIN
    for side in range(2):
        pair.go(side)
    if not receive:
        assert message.send() == DONE


def test_looking_asks_for_no_connection():
    pair = Pair()
    assert pair.peek(0, POINT_TO_POINT) == AGAIN
    assert pair.state(0) == "unconnected"


def test_what_comes_before_this_side_may_send_is_taken_in():
    pair = Pair()
    for step in (pair.open, pair.attach):
        for side in range(2):
            step(side)
    pair.go(0)
    data, room = body(1, 60), Room(60)
    assert pair.message(0, False, POINT_TO_POINT, data, 7).send() == DONE
    assert pair.deliver(0, 0)
    assert pair.message(1, True, POINT_TO_POINT, room.view, 7).recv() == DONE
    assert room.got(60) == data
