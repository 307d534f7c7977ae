"""Random traffic over a wire, in random order of its writes, with rails that fail: what arrives is what was sent."""

import random

import pytest
from wires import AGAIN, COLLECTIVE, DONE, POINT_TO_POINT, Ends, body

SIZES = (1, 2, 31, 32, 33, 96, 97, 224, 225, 500, 1000, 3000)


class Model:
    """One run; everything random comes from the seed."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        pick = self.random.choice
        self.nrails = pick((1, 2, 3, 4))
        self.ends = Ends(
            nrails=self.nrails,
            shapes=(self.shape(), self.shape()),
            depth=pick((1, 2, 5, 16)),
            nchunks=pick((1, 2, 5)),
            chunk_bytes=pick((64, 128, 512)),
            cut_bytes=pick((64, 256)),
            max_write=pick((50, 200, 1 << 20)),
            first=pick((0, 2**25 - 20, 2**32 - 20)),
            zero_copy=(pick((False, True)), pick((False, True))),
        )
        self.expected = []
        # Messages to come: each side's calls, in the order in which it makes them.
        self.calls = [self.make_calls(side) for side in range(2)]
        self.alive = list(range(self.nrails))
        self.mending = {}  # rail: what each side has said, None before

    def shape(self):
        return self.random.choice((2, 4, 8)), self.random.choice((128, 256))

    def make_calls(self, side):
        """Sends to the other side, and this side's receives of its sends, each direction and class in order."""
        if side == 0:
            self.messages = {
                (sender, cls): [
                    (self.random.choice(SIZES if cls == COLLECTIVE else (0, *SIZES)), k)
                    for k in range(self.random.randrange(15))
                ]
                for sender in range(2)
                for cls in range(2)
            }
        rows = {(sender, cls): list(row) for (sender, cls), row in self.messages.items()}
        calls = [key for key, row in rows.items() for _ in row]
        self.random.shuffle(calls)
        return [(key, *rows[key].pop(0)) for key in calls]

    def call(self, side):
        if not self.calls[side]:
            return
        (sender, cls), nbytes, tag = self.calls[side].pop(0)
        data = body(1000 * sender + 100 * cls + tag, nbytes)
        if sender == side:
            sync = cls == POINT_TO_POINT and self.random.random() < 0.3
            self.ends.send(side, data, tag=tag, cls=cls, sync=sync)
        elif cls == COLLECTIVE and self.random.random() < 0.4:
            step = self.random.choice((7, 64, 1 << 20))
            self.expected.append((self.ends.fetch(side, nbytes, tag=tag, step=step), data))
        else:
            self.expected.append((self.ends.receive(side, nbytes, tag=tag, cls=cls), data))

    def fail(self):
        if len(self.alive) < 2:
            return
        rail = self.alive.pop(self.random.randrange(len(self.alive)))
        for side in self.random.choice(((0,), (1,), (0, 1))):
            self.ends.pair.fail(side, rail)
        self.mending[rail] = [None, None]

    def mend(self):
        """One step of one side for a rail that has failed: close it, and resume when the other has closed it."""
        if not self.mending:
            return
        rail, side = self.random.choice(list(self.mending)), self.random.randrange(2)
        said = self.mending[rail]
        if said[side] is None:
            said[side] = self.ends.pair.close_rail(side, rail)
        elif isinstance(said[1 - side], dict) and isinstance(said[side], dict):
            assert self.ends.pair.resume(side, rail, said[1 - side]) == DONE
            said[side] = (said[side],)
        elif isinstance(said[1 - side], tuple) and isinstance(said[side], dict):
            assert self.ends.pair.resume(side, rail, said[1 - side][0]) == DONE
            del self.mending[rail]

    def step(self, failing):
        side, rail = self.random.randrange(2), self.random.randrange(self.nrails)
        chance = self.random.random()
        if chance < 0.15:
            self.call(side)
        elif chance < 0.40:
            self.ends.advance(side)
        elif chance < 0.80:
            self.ends.pair.deliver(side, rail)
        elif chance < 0.93:
            self.ends.pair.complete(side, rail)
        elif chance < 0.98:
            self.mend()
        elif failing:
            self.fail()

    def run(self, failing):
        for _ in range(600):
            self.step(failing)
        for _ in range(1000):
            for side in range(2):
                self.call(side)
            self.mend()
            moved = self.ends.advance_both()
            if not self.ends.carry() and not moved and not self.mending and self.calls == [[], []]:
                break


@pytest.mark.parametrize("failing", [False, True], ids=["whole", "failing"])
@pytest.mark.parametrize("seed", range(200))
def test_random_traffic(seed, failing):
    model = Model(seed)
    model.run(failing)
    assert [task.got() for task, _ in model.expected] == [data for _, data in model.expected]
    model.ends.assert_clean()
    for side in range(2):
        assert model.ends.pair.poll(side) == AGAIN
        model.ends.pair.close(side)
    assert [model.ends.pair.registrations(side) for side in range(2)] == [(0, 0), (0, 0)]
    assert model.ends.pair.broken == []
