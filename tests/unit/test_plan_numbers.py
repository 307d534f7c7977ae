"""Plans run with real numbers by an interpreter of their own, in random order, against NumPy.

The interpreter shares nothing with the verifier. It runs any step that may run, chosen at random, and delivers messages
in two ways: copied when sent, or read from the sender's memory only when they are consumed.
"""

from collections import deque
from math import floor
from random import Random

import numpy as np
import pytest
from plan_cases import contiguous, interleaved, plans

from hetccl.plan import Buf, Copy, Peer, Recv, Reduce, Send, build
from hetccl.plan.steps import BY_UNIT, COLLECTIVES

GARBAGE = -7e9


class Interpreter:
    """All ranks of a plan in one process; sums, divided by the number of ranks at final reduces.

    memory : per rank {Buf: [array of each unit]}
    """

    def __init__(self, plan, memory, single_copy, seed):
        self.plan, self.memory, self.single_copy = plan, memory, single_copy
        self.random = Random(seed)
        self.steps = [plan.program(rank).steps for rank in range(plan.size)]
        self.done = [set() for _ in self.steps]
        self.sent = set()  # sends whose message is under way or consumed
        self.lanes = {}  # (from, to) -> deque of (data, send)

    def view(self, rank, block, unit=0):
        """Return a block as an array view."""
        row = self.memory[rank][block.buf][block.unit + unit]
        return row[floor(len(row) * block.lo) : floor(len(row) * block.hi)]

    def run(self):
        """Run to the end; fail if nothing can run before."""
        left = [(rank, i) for rank, steps in enumerate(self.steps) for i in range(len(steps))]
        while left:
            self.random.shuffle(left)
            ran = [node for node in left if self.try_step(*node)]
            assert ran or any(i in self.done[rank] for rank, i in left), f"{self.plan} is stuck at {left}"
            left = [(rank, i) for rank, i in left if i not in self.done[rank]]

    def try_step(self, rank, i):
        """Run a step if it may run; return whether it did."""
        step = self.steps[rank][i]
        if (rank, i) in self.sent or i in self.done[rank] or not set(step.after) <= self.done[rank]:
            return False
        if isinstance(step, Send):
            return self.send(rank, i, step)
        if isinstance(step, (Recv, Reduce)):
            return self.receive(rank, i, step)
        if isinstance(step, Copy):
            self.view(rank, step.block)[:] = self.view(rank, step.source)
            self.done[rank].add(i)
            return True
        return self.vendor(rank, i, step)

    def send(self, rank, i, step):
        """Post a message, in the order of its lane."""
        for k in range(i):
            earlier = self.steps[rank][k]
            if isinstance(earlier, Send) and earlier.peer == step.peer and (rank, k) not in self.sent:
                return False
        data = self.view(rank, step.block)
        self.sent.add((rank, i))
        if len(data) == 0 or not self.single_copy:
            self.done[rank].add(i)
        if len(data):
            held = data if self.single_copy else data.copy()
            self.lanes.setdefault((rank, step.peer), deque()).append((held, i))
        return True

    def receive(self, rank, i, step):
        """Take a step's messages, in the order of their lanes."""
        target = self.view(rank, step.block)
        sources = step.sources if isinstance(step, Reduce) else (Peer(step.peer),)
        peers = [source.rank for source in sources if isinstance(source, Peer)]
        if len(target):
            for k in range(i):
                earlier = self.steps[rank][k]
                from_peers = [s.rank for s in getattr(earlier, "sources", ()) if isinstance(s, Peer)]
                from_peers += [earlier.peer] if isinstance(earlier, Recv) else []
                empty = earlier.block is not None and len(self.view(rank, earlier.block)) == 0
                if k not in self.done[rank] and not empty and set(from_peers) & set(peers):
                    return False
            if not all(self.lanes.get((peer, rank)) for peer in peers):
                return False
            rows = []
            for source in sources:
                if isinstance(source, Peer):
                    data, k = self.lanes[source.rank, rank].popleft()
                    assert len(data) == len(target)
                    self.done[source.rank].add(k)
                    rows.append(data)
                else:
                    rows.append(self.view(rank, source))
            result = np.sum(rows, axis=0) if isinstance(step, Reduce) else rows[0]
            target[:] = result / self.plan.size if getattr(step, "final", False) else result
        self.done[rank].add(i)
        return True

    def vendor(self, rank, i, step):
        """Run a vendor call when all members are there."""
        call = [k for k, other in enumerate(self.steps[rank]) if hasattr(other, "op")].index(i)
        nodes = [(r, [k for k, s in enumerate(self.steps[r]) if hasattr(s, "op")][call]) for r in step.ranks]
        steps = [self.steps[r][k] for r, k in nodes]
        for (r, k), other in zip(nodes, steps):
            earlier = {j for j in range(k) if hasattr(self.steps[r][j], "op")}
            if not earlier | set(other.after) <= self.done[r]:
                return False
        units = step.ranks if step.op in ("alltoall", "scatter") else (0,)
        given = [
            [self.view(r, other.source, unit).copy() for unit in units] if other.source else None
            for r, other in zip(step.ranks, steps)
        ]
        for j, ((r, k), other) in enumerate(zip(nodes, steps)):
            self.vendor_result(j, r, other, given)
            self.done[r].add(k)
        return True

    def vendor_result(self, j, rank, step, given):
        """Write what one member gets."""
        if step.block is None:
            return
        target = self.view(rank, step.block)
        if step.op == "alltoall":
            for k, unit in enumerate(step.ranks):
                self.view(rank, step.block, unit)[:] = given[k][j]
        elif step.op == "gather":
            for k, unit in enumerate(step.ranks):
                self.view(rank, step.block, unit)[:] = given[k][0]
        elif step.op == "scatter":
            target[:] = given[step.ranks.index(step.root)][j]
        elif step.op == "allgather":
            target[:] = np.concatenate([part for (part,) in given])
        elif step.op == "broadcast":
            target[:] = given[step.ranks.index(step.root)][0]
        else:
            total = np.sum([row for (row,) in given], axis=0)
            if step.op == "reduce_scatter":
                n = len(self.memory[rank][step.block.buf][step.block.unit])
                shift = floor(n * step.block.lo) - floor(n * step.source.lo)
                total = total[shift : shift + len(target)]
            target[:] = total / self.plan.size if step.final else total


def expected(collective, inputs, rank, root):
    """Return what MPI says OUT holds, averages for reductions, sums for scans, from the inputs' units of all ranks."""
    size = len(inputs)
    if collective in ("allreduce", "reduce"):
        return sum(units[0] for units in inputs) / size
    if collective == "reduce_scatter_block":
        return sum(units[rank] for units in inputs) / size
    if collective in ("scan", "exscan"):
        return sum(units[0] for units in inputs[: rank + (collective == "scan")])
    if collective == "bcast":
        return inputs[root][0]
    if collective == "scatter":
        return inputs[root][rank]
    return np.concatenate([units[rank if collective == "alltoall" else 0] for units in inputs])


def lengths(collective, rank, counts):
    """Return (lengths of the units of IN, of OUT): counts[r, s] is what r gives s in an all-to-all, counts[0] else."""
    if collective == "alltoall":
        return counts[rank], counts[:, rank]
    one, each = counts[0, rank : rank + 1], counts[0]
    return {
        "allgather": (one, each),
        "gather": (one, each),
        "scatter": (each, one),
        "reduce_scatter_block": (each, one),
    }.get(collective, (one, one))


def memories(plan, counts, in_place, uneven=False):
    """Return (memory per rank, inputs): different whole numbers by rank and index; garbage everywhere else."""
    memory, inputs, name = [], [], plan.collective
    for rank in range(plan.size):
        start = 1009.0 * (rank + 1) ** 2
        given, taken = lengths(name, rank, counts)
        flat = np.arange(sum(given), dtype=float) * 131 + start
        units = np.split(flat, np.cumsum(given)[:-1])
        inputs.append([unit.copy() for unit in units])
        out = [np.full(n, GARBAGE) for n in taken]
        scratch = [np.full(given[k], GARBAGE) for k in plan.program(rank).measures]
        if in_place and (name == "allgather" or name == "gather" and rank == plan.root):
            out[rank][:] = units[0]
            units = [out[rank]]
        elif in_place and name == "reduce_scatter_block":
            out = [units[rank if uneven else 0]]
        elif in_place and name == "scatter" and rank == plan.root:
            out = [units[rank]]
        elif in_place and name not in ("bcast", "gather", "scatter"):
            out = units
        memory.append({Buf.IN: units, Buf.OUT: out, Buf.SCRATCH: scratch})
    return memory, inputs


def check(plan, counts, in_place, single_copy, uneven=False):
    """Run a plan, and compare all outputs with what NumPy says."""
    memory, inputs = memories(plan, counts, in_place, uneven)
    Interpreter(plan, memory, single_copy, seed=int(counts.sum())).run()
    for rank in range(plan.size):
        where = (plan, rank, f"in_place={in_place}", f"single_copy={single_copy}")
        if not in_place:
            assert all(map(np.array_equal, memory[rank][Buf.IN], inputs[rank])), where
        at_root = rank == plan.root
        if plan.collective in ("reduce", "gather") and not at_root or plan.collective == "bcast" and at_root:
            continue
        got = np.concatenate(memory[rank][Buf.OUT])
        if plan.collective == "exscan" and rank == 0:
            assert in_place or np.all(got == GARBAGE), where
        else:
            assert np.array_equal(got, expected(plan.collective, inputs, rank, plan.root)), where


ISLANDS = (
    contiguous((1,)),
    contiguous((2,)),
    contiguous((3,)),
    contiguous((6,)),
    contiguous((1, 1)),
    contiguous((3, 1)),
    contiguous((3, 2)),
    ((0, 2), (1, 3)),
    contiguous((1, 1, 1)),
    interleaved((3, 2, 1), seed=5),
    contiguous((2, 2, 1, 1)),
)


@pytest.mark.parametrize("n", [0, 1, 7, 23])
@pytest.mark.parametrize("islands", ISLANDS, ids=str)
@pytest.mark.parametrize("collective", [name for name in COLLECTIVES if name != "barrier"])
def test_against_numpy(collective, islands, n):
    size = sum(map(len, islands))
    for plan in plans(collective, islands, {0, size // 2, size - 1}):
        for in_place in (plan.in_place,) if collective == "alltoall" else (False, True):
            for single_copy in (False, True):
                check(plan, np.full((size, size), n), in_place, single_copy)


@pytest.mark.parametrize("spread", [1, 5, 40])
@pytest.mark.parametrize("islands", ISLANDS, ids=str)
@pytest.mark.parametrize("collective", sorted(BY_UNIT))
def test_units_of_unequal_length(collective, islands, spread):
    """Lengths from 0 to `spread`, each rank's and each pair's its own; scratch is as long as its measure says."""
    size = sum(map(len, islands))
    counts = np.random.default_rng(size + spread).integers(0, spread, (size, size), endpoint=True)
    for plan in plans(collective, islands, {0, size // 2, size - 1}):
        if not plan.uneven:
            continue
        for in_place in (plan.in_place,) if collective == "alltoall" else (False, True):
            symmetric = collective == "alltoall" and in_place
            given = np.maximum(counts, counts.T) if symmetric else counts
            for single_copy in (False, True):
                check(plan, given, in_place, single_copy, uneven=True)


@pytest.mark.parametrize("single_copy", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("collective", ["scan", "exscan"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 9, 13])
def test_scans_keep_rank_order(collective, size, in_place, single_copy):
    """The sum of texts is their chain: it does not commute."""
    for plan in plans(collective, contiguous((size,)), (0,)):
        memory, _ = memories(plan, np.full((size, size), 3), in_place)
        for rank, buffers in enumerate(memory):
            for buf, rows in buffers.items():
                buffers[buf] = [np.full(3, "garbage", dtype=object) for _ in rows]
            buffers[Buf.IN] = [np.array([f"<{rank}.{k}>" for k in range(3)], dtype=object)]
            if in_place:
                buffers[Buf.OUT] = buffers[Buf.IN]
        Interpreter(plan, memory, single_copy, seed=size).run()
        for rank in range(collective == "exscan", size):
            lower = range(rank + (collective == "scan"))
            right = ["".join(f"<{k}.{index}>" for k in lower) for index in range(3)]
            assert memory[rank][Buf.OUT][0].tolist() == right, (plan, rank)


@pytest.mark.parametrize("islands", ISLANDS, ids=str)
def test_barrier_order(islands):
    """No rank is through before every rank has arrived: one rank's steps are held back until nothing else can run."""
    size = sum(map(len, islands))
    for plan in plans("barrier", islands, (0,)):
        for late in range(size):
            memory, _ = memories(plan, np.full((size, size), 1), False)
            run = Interpreter(plan, memory, single_copy=False, seed=late)
            nodes = [(rank, i) for rank in range(size) if rank != late for i in range(len(run.steps[rank]))]
            if any(late in getattr(run.steps[rank][i], "ranks", ()) for rank, i in nodes):
                nodes = [(rank, i) for rank, i in nodes if late not in getattr(run.steps[rank][i], "ranks", ())]
            while sum(run.try_step(*node) for node in nodes):
                pass
            through = [rank for rank in range(size) if rank != late and len(run.done[rank]) == len(run.steps[rank])]
            assert not through, (plan, late, through)


@pytest.mark.parametrize("algorithm", ["direct", "hier_direct", "hierarchical"])
@pytest.mark.parametrize("islands", [i for i in ISLANDS if sum(len(island) > 1 for island in i) > 1], ids=str)
def test_sums_island_by_island(algorithm, islands):
    """The rounding shows the order: each island in rank order, then the islands in theirs, the same on all ranks."""
    size, n = sum(map(len, islands)), 257
    plan = build("allreduce", islands, algorithm=algorithm)
    data = np.random.default_rng(size).standard_normal((size, n))
    memory, _ = memories(plan, np.full((size, size), n), False)
    for rank in range(size):
        memory[rank][Buf.IN][0][:] = data[rank]
    Interpreter(plan, memory, single_copy=True, seed=1).run()
    right = sum(sum(data[rank] for rank in island) for island in islands) / size
    assert not np.array_equal(right, sum(data) / size)
    for rank in range(size):
        assert memory[rank][Buf.OUT][0].tobytes() == right.tobytes()
