"""Rank 1 of a communicator of two, written from docs/wire-protocol.md with pyverbs: without a line of hetccl's.

Usage: pyverbs_peer.py DEED < JSON {"secret" (hexadecimal), "address" [host, port], "cards" [for each rail: device, gid,
gid_index]}. Says "up" when the pair is connected, then does the deed, then "done", each in a line; a failed assertion
ends it with status 1. check_pyverbs.py is the other side.
"""

import json
import os
import subprocess
import sys
import time

from documented_control import BYE, FAULT, RAIL_DOWN, READY, RECORD, Control, Refusal
from documented_rails import CREDIT, CTS, EAGER, FIN, RTS, Side, immediate

ME, RANK, RANKS = 1, 0, 2
SHAPE = 8, 1024


def data(nbytes, seed):
    return bytes((131 * i + 17 * (i >> 8) + 29 * seed) & 255 for i in range(nbytes))


def expect_eager(side, tag, nbytes, seed):
    cell = side.take_cell(1)
    assert (cell.kind, cell.tag, cell.nbytes) == (EAGER, tag, nbytes), cell
    assert cell.payload == data(nbytes, seed)


def eager(side):
    for seed, nbytes in enumerate((0, 1, 7, side.shape.eager)):
        expect_eager(side, 10 + seed, nbytes, seed)
    for seed, nbytes in enumerate((0, 1, 33, side.remote.eager)):
        side.send_eager(1, 20 + seed, data(nbytes, seed))


def credits(side):
    for seed in range(100):
        expect_eager(side, 30, seed, seed)
    for seed in range(100):
        side.send_eager(1, 31, data(seed, seed))
    assert side.credits >= 5


def announced(side):
    cell = side.take_cell(1)
    assert (cell.kind, cell.tag, cell.nbytes) == (RTS, 40, 300007), cell
    assert side.receive(1, cell, (1, 100003)) == data(300007, 1)
    seq = side.announce(1, 41, 700001)
    side.serve(1, seq, 41, data(700001, 2))


def synchronous(side):
    for tag, nbytes in ((42, 5), (43, 0)):
        cell = side.take_cell(1)
        assert (cell.kind, cell.tag, cell.nbytes) == (RTS, tag, nbytes), cell
        assert side.receive(1, cell) == data(nbytes, tag)
    for tag, nbytes in ((44, 5), (45, 0)):
        assert side.serve(1, side.announce(1, tag, nbytes), tag, data(nbytes, tag)) == 1


def out_of_order(side):
    first, second = side.take_cell(1), side.take_cell(1)
    assert (first.tag, second.tag) == (50, 51)
    assert side.receive(1, second) == data(50021, 51)
    assert side.receive(1, first, (33333,)) == data(100003, 50)
    first, second = side.announce(1, 60, 100003), side.announce(1, 61, 90001)
    side.serve(1, second, 61, data(90001, 61))
    side.serve(1, first, 60, data(100003, 60))


def many_pieces(side):
    """More CTS entries than there are places."""
    cell = side.take_cell(1)
    assert side.receive(1, cell, range(0, cell.nbytes, 1000)) == data(150001, 3)
    assert side.lanes[1].cts_filled == 151


def receiver_first(side):
    """Collectives, whose receiver asks before anything is announced; then this side does."""
    lane, nbytes = side.lanes[0], 100003
    side.until(lambda: lane.asks)
    tag = lane.asks[0].tag
    assert lane.asks[0].total == nbytes, lane.asks[0]
    side.serve(0, lane.seq, tag, data(nbytes, 1))  # no cell
    lane.seq += 1
    side.until(lambda: lane.asks)
    tag = lane.asks[0].tag
    seq = side.announce(0, tag, nbytes)  # crosses
    side.serve(0, seq, tag, data(nbytes, 2))
    cell = side.take_cell(0)
    assert (cell.kind, cell.nbytes, cell.seq) == (RTS, nbytes, 0), cell
    assert side.receive(0, cell) == data(nbytes, 3)
    # The tag's upper 27 bits number the collectives.
    position = side.ask(0, 1, cell.tag + 32, nbytes, 0, nbytes, 0)
    side.send_eager(1, 70, b"")
    side.until(lambda: side.is_complete(0, position))
    assert side.memory[side.landing : side.landing + nbytes] == data(nbytes, 4)
    assert lane.cells_arrived == 1


def attributes(side):
    """The peer's queue pairs as the kernel shows them to everybody; and what the peer's own device must say of them."""
    shown = subprocess.run(["rdma", "-j", "-d", "resource", "show", "qp"], check=True, capture_output=True, text=True)
    pairs = [pair for pair in json.loads(shown.stdout) if pair["type"] == "RC" and pair.get("pid") != os.getpid()]
    assert len(pairs) == len(side.rails) and len({pair.get("pid") for pair in pairs}) == 1, shown.stdout
    expected = []
    for rail in side.rails:
        mine, theirs = rail.record(), rail.remote
        numbers = theirs["qpn"], mine["qpn"], theirs["psn"], mine["psn"], "RTS"
        found = [tuple(pair[name] for name in ("lqpn", "rqpn", "sq-psn", "rq-psn", "state")) for pair in pairs]
        assert found.count(numbers) == 1, (numbers, found)
        expected.append(
            {
                "dest_qp_num": mine["qpn"],
                "rq_psn": mine["psn"],
                "sq_psn": theirs["psn"],
                "dgid": mine["gid"],
                "path_mtu": min(mine["mtu"], theirs["mtu"]),
            }
        )
    print(json.dumps(expected), flush=True)


def other_rail_down(side, control):
    """The carrier goes on: only the parts that were on the other rail are said again, by each side."""
    lane, nbytes = side.lanes[1], 600011
    cell = side.take_cell(1)
    side.stop(1)
    position = side.ask(1, cell.seq, cell.tag, nbytes, 0, nbytes, 0)
    side.until(lambda: lane.open[position][1])
    assert lane.open[position] == [2, {0}], lane.open
    seq = side.announce(1, 41, 100003)
    side.serve(1, seq, 41, data(100003, 41))
    assert close_rail(side, control, 1) == (0, 0, 1)
    side.until(lambda: side.is_complete(1, position))
    assert side.memory[side.landing : side.landing + nbytes] == data(nbytes, 40)
    assert side.credits == 0
    expect_eager(side, 42, 7, 42)


def carrier_down(side, control):
    """A cell and an entry of this side are lost on the rail, and three cells and an entry of the peer's."""
    lane, nbytes = side.lanes[1], 100003
    cell = side.take_cell(1)
    announced = side.announce(1, 60, 50021)
    side.stop(0)
    print("stopped", flush=True)
    position = side.ask(1, cell.seq, cell.tag, nbytes, 0, nbytes, 0)
    side.send_eager(1, 61, data(33, 61))
    # So that the peer writes to the rail before it hears that it is closed. The outcome is the same if it does not.
    time.sleep(1)
    assert close_rail(side, control, 0) == (1, 1, 0)
    side.until(lambda: side.is_complete(1, position))
    assert side.memory[side.landing : side.landing + nbytes] == data(nbytes, 50)
    for tag in (51, 52, 53):
        expect_eager(side, tag, 17 * tag, tag)
    ask = side.next_ask(1, announced)
    assert (ask.tag, ask.total, ask.offset, ask.nbytes) == (60, 50021, 0, 50021), ask
    imm = immediate(FIN, 1, ask.position)
    side.write(data(50021, 60), ask.address, ask.rkey[1], imm, rail=1)
    assert (side.credits, lane.cells_arrived) == (2, 4), (side.credits, lane.cells_arrived)


def close_rail(side, control, index):
    control.say(RAIL_DOWN, rail=index, state=side.state(), text="stopped on purpose")
    down = control.hear(RAIL_DOWN)[1]
    assert down["rail"] == index, down
    return side.resume(index, down["state"])


def wrong_position(side):
    side.put_cell(1, 1, EAGER, 0, position=5)


def fin_for_nothing(side):
    side.write(b"", side.address, side.rkeys[0], immediate(FIN, 1, 3))


def ask_for_nothing(side):
    """A message that was never begun."""
    side.ask(1, 7, 1, 100000, 0, 100000, 0)


def ask_out_of_turn(side):
    side.write(b"", side.address, side.rkeys[0], immediate(CTS, 1, 2))


def credit_for_nothing(side):
    side.write(b"", side.address, side.rkeys[0], immediate(CREDIT, 1, 3))


BREACHES = (wrong_position, fin_for_nothing, ask_for_nothing, ask_out_of_turn, credit_for_nothing)
DOWN = (other_rail_down, carrier_down)
DEEDS = {
    deed.__name__: deed
    for deed in (
        eager,
        credits,
        announced,
        synchronous,
        out_of_order,
        many_pieces,
        receiver_first,
        attributes,
        *DOWN,
        *BREACHES,
    )
}


def wrong_secret(secret, where):
    """Another communicator, as far as the peer can see."""
    refused(2, bytes(16), where)


def wrong_version(secret, where):
    refused(1, secret, where, 2)


def refused(status, secret, where, version=1):
    try:
        Control(secret, where, ME, RANK, RANKS, version)
    except Refusal as refusal:
        assert refusal.args == (status, 1)
    else:
        raise AssertionError("the handshake was not refused")


def forged(secret, where):
    """Somebody who has seen the communicator's name, but has not its secret."""
    closed(Control(secret, where, ME, RANK, RANKS, forged=bytes(16)))


def replayed(secret, where):
    control = Control(secret, where, ME, RANK, RANKS)
    control.hear(RECORD)
    control.sock.close()
    closed(Control.repeat(where, control.handshake))


def closed(control):
    assert control.sock.recv(1) == b"", "the peer goes on"


REFUSALS = {deed.__name__: deed for deed in (wrong_secret, wrong_version, forged, replayed)}


def main(deed):
    told = json.load(sys.stdin)
    secret, where = bytes.fromhex(told["secret"]), tuple(told["address"])
    if deed in REFUSALS:
        REFUSALS[deed](secret, where)
        print("done", flush=True)
        return
    control = Control(secret, where, ME, RANK, RANKS)
    record = control.hear(RECORD)[1]
    side = Side(told["cards"], SHAPE)
    control.say(RECORD, **side.record())
    side.connect(record)
    control.say(READY)
    control.hear(READY)
    print("up", flush=True)
    DEEDS[deed](side, *([control] if DEEDS[deed] in DOWN else []))
    print("done", flush=True)
    if DEEDS[deed] in BREACHES:
        # The rail on which the breach was met may be told of before, or after.
        heard = []
        while not heard or heard[-1][0] != BYE:
            heard.append(control.hear(FAULT, RAIL_DOWN, BYE))
        assert (FAULT, {"reason": 5, "reporter": RANK, "culprit": ME}) in heard, heard
        return
    control.hear(BYE)


if __name__ == "__main__":
    main(*sys.argv[1:])
