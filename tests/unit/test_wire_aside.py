"""Messages over a wire that are taken out of their link before a receive asks for them."""

import numpy as np
import pytest
from mailboxes import Room
from wires import AGAIN, DONE, ELENGTH, PAYLOAD, POINT_TO_POINT, Ends, body, connect

memory = pytest.mark.parametrize("zero_copy", [(True, True), (False, False)], ids=["direct", "copied"])


@pytest.mark.parametrize("nbytes", [0, 1, PAYLOAD, PAYLOAD + 1, 3000])
@pytest.mark.parametrize("sync", [False, True])
@memory
def test_set_aside(nbytes, sync, zero_copy):
    ends = Ends(zero_copy=zero_copy)
    pair, data, after = ends.pair, body(6, nbytes), body(7, 12)
    sent = ends.send(0, data, tag=5, sync=sync)
    ends.send(0, after)
    ends.settle()
    asked = nbytes > PAYLOAD or sync
    assert pair.peek(1, POINT_TO_POINT) == (nbytes, 0 if asked else nbytes, 5)
    aside = pair.set_aside(1, POINT_TO_POINT)
    assert aside.held == (nbytes, 5, None if asked or nbytes == 0 else data)
    received = ends.receive(1, 12)
    ends.settle()
    assert received.got() == after
    assert sent.result == (None if asked else DONE)
    room = Room(nbytes)
    message = pair.message(1, True, POINT_TO_POINT, room.view, 5)
    for _ in range(100):
        status = aside.recv(message)
        if status == DONE:
            break
        assert status >= 0
        ends.settle()
    assert status == DONE
    assert room.got(nbytes) == data
    ends.settle()
    ends.assert_clean()


def test_nothing_to_set_aside():
    assert connect().set_aside(0, POINT_TO_POINT) == AGAIN


def test_set_aside_and_received_with_another_length():
    ends = Ends()
    ends.send(0, body(1, 3000))
    ends.settle()
    aside = ends.pair.set_aside(1, POINT_TO_POINT)
    assert aside.recv(ends.pair.message(1, True, POINT_TO_POINT, bytearray(2999), 7)) == ELENGTH


@pytest.mark.parametrize("count", [1, 16, 40])
def test_many_set_aside_are_received_in_any_order(count):
    ends = Ends(shapes=((64, 256), (64, 256)))
    data = [body(k, 300 + k) for k in range(count)]
    for k, part in enumerate(data):
        ends.send(0, part, tag=k)
    asides = []
    for _ in range(count):
        ends.settle()
        asides.append(ends.pair.set_aside(1, POINT_TO_POINT))
    rooms = [Room(len(part)) for part in data]
    waiting = [
        (asides[k], ends.pair.message(1, True, POINT_TO_POINT, rooms[k].view, k))
        for k in np.random.default_rng(1).permutation(count)
    ]
    for _ in range(1000):
        waiting = [pair for pair in waiting if pair[0].recv(pair[1]) != DONE]
        ends.settle()
        if not waiting:
            break
    assert waiting == []
    assert [rooms[k].got(len(data[k])) for k in range(count)] == data
    ends.settle()
    ends.assert_clean()
