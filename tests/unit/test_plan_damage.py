"""The verifier rejects plans that are broken on purpose, each kind of damage at every place where it can be done."""

from dataclasses import replace
from fractions import Fraction

import pytest
from plan_cases import contiguous, plans

from hetccl.plan import Block, Buf, Copy, Peer, Plan, PlanError, Program, Recv, Reduce, Send, Vendor, build, verify
from hetccl.plan.steps import COLLECTIVES
from hetccl.plan.verify import VENDOR_OPS

ISLANDS = (
    contiguous((2,)),
    contiguous((3,)),
    contiguous((5,)),
    contiguous((1, 1)),
    contiguous((3, 2)),
    ((0, 2), (1, 3)),
    contiguous((2, 1, 1)),
    ((0, 4, 5), (1,), (2, 3)),
)
PLANS = [
    pytest.param(plan, id=str(plan)[6:-1].replace(" ", "-"))
    for collective in COLLECTIVES
    for islands in ISLANDS
    for plan in plans(collective, islands, (1,))
]


def damaged(plan, rank, steps, scratch=None, measures=None, uneven=None):
    """Return the plan with another program for one rank."""
    programs = {peer: plan.program(peer) for peer in range(plan.size)}
    own = programs[rank]
    programs[rank] = Program(
        tuple(steps), own.scratch if scratch is None else scratch, own.measures if measures is None else measures
    )
    return remade(plan, programs, plan.uneven if uneven is None else uneven)


def remade(plan, programs, uneven):
    """Return a plan like another one with programs given by rank."""
    given = (plan.collective, plan.islands, plan.root, plan.algorithm, plan.inner, plan.in_place)
    return Plan(*given, programs.__getitem__, uneven)


def changed(plan, rank, i, **fields):
    """Return the plan with one step changed."""
    steps = list(plan.program(rank).steps)
    steps[i] = replace(steps[i], **fields)
    return damaged(plan, rank, steps)


def without_step(plan, rank, i):
    """Return the plan without one step; what waited for it waits for what it waited for."""
    steps = []
    gone = plan.program(rank).steps[i].after
    for k, step in enumerate(plan.program(rank).steps):
        if k != i:
            after = {earlier for given in step.after for earlier in (gone if given == i else (given,))}
            steps.append(replace(step, after=tuple(sorted(j - (j > i) for j in after))))
    return damaged(plan, rank, steps)


def each_step(plan):
    """Yield (rank, index, step) of the whole plan."""
    for rank in range(plan.size):
        for i, step in enumerate(plan.program(rank).steps):
            yield rank, i, step


def reject(plan, broken):
    """Fail with the damage if the verifier accepts any of the broken plans; return how many there were."""
    count = 0
    for what, bad in broken:
        count += 1
        try:
            verify(bad)
        except PlanError as error:
            assert str(error)
        else:
            pytest.fail(f"accepted: {plan} with {what}")
    return count


@pytest.mark.parametrize("plan", PLANS)
def test_each_step_is_needed(plan):
    broken = ((f"rank {r} without step {i}: {step}", without_step(plan, r, i)) for r, i, step in each_step(plan))
    assert reject(plan, broken) >= plan.size


@pytest.mark.parametrize("plan", PLANS)
def test_each_dependency_is_needed(plan):
    reject(
        plan,
        (
            (
                f"rank {r}, step {i} not after {gone}",
                changed(plan, r, i, after=tuple(a for a in step.after if a != gone)),
            )
            for r, i, step in each_step(plan)
            for gone in step.after
        ),
    )


@pytest.mark.parametrize("plan", PLANS)
def test_wrong_peer(plan):
    def broken():
        for rank, i, step in each_step(plan):
            for peer in range(-1, plan.size + 1):
                if isinstance(step, (Send, Recv)) and peer != step.peer:
                    yield f"rank {rank}, step {i} with peer {peer}", changed(plan, rank, i, peer=peer)
                if isinstance(step, Reduce):
                    for k, source in enumerate(step.sources):
                        if isinstance(source, Peer) and source.rank != peer:
                            sources = (*step.sources[:k], Peer(peer), *step.sources[k + 1 :])
                            yield f"rank {rank}, step {i} from {peer}", changed(plan, rank, i, sources=sources)

    reject(plan, broken())


@pytest.mark.parametrize("plan", [p for p in PLANS if p.values[0].collective != "barrier"])
def test_wrong_block(plan):
    """Every block moves to every other place that the program knows."""

    def broken():
        for rank in range(plan.size):
            steps = plan.program(rank).steps
            known = dict.fromkeys(step.block for step in steps if step.block)
            known.update(dict.fromkeys(step.source for step in steps if isinstance(step, Copy)))
            for i, step in enumerate(steps):
                for other in known:
                    same = plan.in_place and {step.block, other} == {other._replace(buf=b) for b in (Buf.IN, Buf.OUT)}
                    if step.block and other != step.block and not same:
                        yield f"rank {rank}, step {i} at {other}", changed(plan, rank, i, block=other)

    reject(plan, broken())


@pytest.mark.parametrize("plan", PLANS)
def test_final_flag(plan):
    reject(
        plan,
        (
            (f"rank {r}, step {i} final={not step.final}", changed(plan, r, i, final=not step.final))
            for r, i, step in each_step(plan)
            if isinstance(step, Reduce)
            or (isinstance(step, Vendor) and step.op in ("allreduce", "reduce") and step.block)
            if plan.collective != "barrier"
        ),
    )


@pytest.mark.parametrize("plan", PLANS)
def test_contribution_twice_or_not_at_all(plan):
    def broken():
        for rank, i, step in each_step(plan):
            if isinstance(step, Reduce):
                for k, source in enumerate(step.sources):
                    fewer = (*step.sources[:k], *step.sources[k + 1 :])
                    yield f"rank {rank}, step {i} without {source}", changed(plan, rank, i, sources=fewer)
                    yield (
                        f"rank {rank}, step {i}, {source} twice",
                        changed(plan, rank, i, sources=(*step.sources, source)),
                    )

    reject(plan, broken())


@pytest.mark.parametrize("plan", PLANS)
def test_scratch_too_small(plan):
    reject(
        plan,
        (
            (
                f"rank {rank} with less scratch",
                damaged(plan, rank, plan.program(rank).steps, plan.program(rank).scratch - 1),
            )
            for rank in range(plan.size)
            if plan.program(rank).scratch
        ),
    )


@pytest.mark.parametrize("plan", [p for p in PLANS if p.values[0].collective != "barrier"])
def test_lane_order(plan):
    """Two messages of a lane are swapped on one side."""

    def broken():
        for rank in range(plan.size):
            steps = plan.program(rank).steps
            for kind in (Send, Recv):
                for i, first in enumerate(steps):
                    for k in range(i + 1, len(steps)):
                        second = steps[k]
                        if (
                            isinstance(first, kind)
                            and isinstance(second, kind)
                            and first.peer == second.peer
                            and first.block != second.block
                        ):
                            swapped = list(steps)
                            swapped[i] = replace(first, block=second.block)
                            swapped[k] = replace(second, block=first.block)
                            yield f"rank {rank}, blocks of steps {i} and {k} swapped", damaged(plan, rank, swapped)

    reject(plan, broken())


@pytest.mark.parametrize(
    "algorithm,islands", [("direct", (3,)), ("direct", (3, 2)), ("hier_direct", (3, 2)), ("hier_direct", (1, 1, 1))]
)
def test_other_order_of_operands_on_one_rank(algorithm, islands):
    plan = build("allreduce", contiguous(islands), algorithm=algorithm)
    broken = [
        (f"rank {rank}, step {i} reversed", changed(plan, rank, i, sources=step.sources[::-1]))
        for rank, i, step in each_step(plan)
        if isinstance(step, Reduce) and len(step.sources) > 2
    ]
    assert reject(plan, broken) >= 3


SCANS = [p for p in PLANS if p.values[0].collective in ("scan", "exscan")]


@pytest.mark.parametrize("plan", SCANS)
def test_scans_keep_rank_order(plan):
    """Any two neighbours among the operands swapped, on one rank or on all."""

    def swapped(step, k):
        sources = list(step.sources)
        sources[k : k + 2] = sources[k + 1], sources[k]
        return replace(step, sources=tuple(sources))

    def broken():
        for rank, i, step in each_step(plan):
            for k in range(len(step.sources) - 1 if isinstance(step, Reduce) else 0):
                bad = changed(plan, rank, i, sources=swapped(step, k).sources)
                yield f"rank {rank}, step {i}, operands {k} and {k + 1} swapped", bad
        steps = {
            rank: Program(
                tuple(swapped(step, 0) if isinstance(step, Reduce) else step for step in plan.program(rank).steps),
                plan.program(rank).scratch,
            )
            for rank in range(plan.size)
        }
        yield "the first two operands swapped everywhere", remade(plan, steps, False)

    if any(isinstance(step, Reduce) for _, _, step in each_step(plan)):
        assert reject(plan, broken()) >= 2


@pytest.mark.parametrize("collective", ["scan", "exscan"])
def test_scans_take_no_other_ranks(collective):
    """One rank more, or one less, in a whole step: the programs of a communicator of another order."""
    plan = build(collective, contiguous((4,)), algorithm="direct")
    for one, other in ((1, 2), (2, 3), (0, 3)):
        programs = {rank: plan.program({one: other, other: one}.get(rank, rank)) for rank in range(4)}
        assert reject(plan, [(f"ranks {one} and {other} exchanged", remade(plan, programs, False))]) == 1


UNEVEN = [p for p in PLANS if p.values[0].uneven]


@pytest.mark.parametrize("plan", UNEVEN)
def test_wrong_measure(plan):
    """Each used unit of scratch as long as each other unit of IN, and without a measure."""

    def broken():
        for rank in range(plan.size):
            program = plan.program(rank)
            for slot in sorted(used(program)):
                for unit in range(plan.size):
                    if unit != program.measures[slot]:
                        measures = (*program.measures[:slot], unit, *program.measures[slot + 1 :])
                        bad = damaged(plan, rank, program.steps, measures=measures)
                        yield f"rank {rank}, SCRATCH[{slot}] measured by IN[{unit}]", bad
                bad = damaged(plan, rank, program.steps, measures=program.measures[:slot])
                yield f"rank {rank} without a measure of SCRATCH[{slot}]", bad

    assert reject(plan, broken()) >= sum(len(used(plan.program(rank))) for rank in range(plan.size))


def used(program):
    """Return the units of scratch that the steps write; those of a vendor call are written by copies."""
    written = [step.block for step in program.steps if not isinstance(step, Send) and step.block]
    return {block.unit for block in written if block.buf == Buf.SCRATCH}


@pytest.mark.parametrize("size", [3, 4, 5])
def test_ring_is_not_for_unequal_units(size):
    plan = build("reduce_scatter_block", contiguous((size,)), algorithm="ring")
    programs = {rank: plan.program(rank) for rank in range(size)}
    with pytest.raises(PlanError, match="as long as"):
        verify(remade(plan, programs, True))


@pytest.mark.parametrize("in_place", [False, True])
def test_lengths_of_a_pair_belong_to_it(in_place):
    """What goes one way and what comes back may differ in length."""
    whole = (Fraction(0), Fraction(1))
    plan = build("alltoall", contiguous((2,)), in_place=in_place)
    programs = {
        rank: Program(
            (
                Copy(Block(Buf.SCRATCH, 0, *whole), Block(Buf.IN, 1 - rank, *whole)),
                Send(Block(Buf.SCRATCH, 0, *whole), 1 - rank, after=(0,)),
                Recv(Block(Buf.OUT, 1 - rank, *whole), 1 - rank, after=(0,)),
                Copy(Block(Buf.OUT, rank, *whole), Block(Buf.IN, rank, *whole)),
            ),
            1,
            (1 - rank,),
        )
        for rank in range(2)
    }
    verify(remade(plan, programs, True))
    own = {rank: program._replace(measures=(rank,)) for rank, program in programs.items()}
    assert reject(plan, [("measured by the own unit", remade(plan, own, True))]) == 1


def test_unequal_in_place_is_a_mode_of_its_own():
    """Unequal units: the result lies over the rank's own unit, and what reads that one must come first."""
    plan = build("reduce_scatter_block", contiguous((3,)), algorithm="direct")
    steps = list(plan.program(1).steps)
    (last,) = [i for i, step in enumerate(steps) if isinstance(step, Reduce)]
    part = Block(Buf.IN, 1, Fraction(0), Fraction(1))
    steps.append(Copy(Block(Buf.SCRATCH, 0, *part[2:]), part))  # reads what only this mode overwrites
    bad = damaged(plan, 1, steps, scratch=1, measures=(1,))
    verify(damaged(plan, 1, steps, scratch=1, measures=(1,), uneven=False))
    with pytest.raises(PlanError) as caught:
        verify(bad)
    assert (caught.value.rank, caught.value.step) == (1, last + 1)


def test_two_operands_may_be_swapped():
    plan = build("allreduce", contiguous((1, 1)), algorithm="direct")
    steps = plan.program(0).steps
    verify(changed(plan, 0, len(steps) - 1, sources=steps[-1].sources[::-1]))


@pytest.mark.parametrize("collective", ["alltoall", "allgather", "barrier"])
def test_cyclic_wait(collective):
    """Everybody receives before sending, as a program with blocking calls in the wrong order would."""
    plan = build(collective, contiguous((3,)), algorithm="pairwise" if collective == "alltoall" else "direct")
    for rank in range(plan.size):
        steps = plan.program(rank).steps
        receives = [replace(step, after=()) for step in steps if isinstance(step, Recv)]
        others = [replace(step, after=()) for step in steps if isinstance(step, Copy)]
        sends = [replace(step, after=(0,)) for step in steps if isinstance(step, Send)]
        plan = damaged(plan, rank, [*receives, *others, *sends])
    with pytest.raises(PlanError, match="deadlock"):
        verify(plan)


def test_send_that_needs_buffering_to_get_done():
    """An exchange in one block works only if the sends are buffered: under single copy both wait for ever."""
    whole = (0, Fraction(0), Fraction(1))
    programs = [
        Program(
            (
                Send(Block(Buf.IN, *whole), 1 - rank),
                Reduce(Block(Buf.OUT, *whole), (Block(Buf.IN, *whole), Peer(1 - rank)), True, after=(0,)),
            ),
            0,
        )
        for rank in range(2)
    ]
    with pytest.raises(PlanError, match="deadlock"):
        verify(Plan("allreduce", ((0, 1),), 0, "hand", "flat", False, programs.__getitem__))


def test_input_must_not_be_written():
    plan = build("allreduce", contiguous((2,)), algorithm="direct_split")
    k = len(plan.program(0).steps) - 1
    block = plan.program(0).steps[k].block
    with pytest.raises(PlanError, match="IN must not be written"):
        verify(changed(plan, 0, k, block=block._replace(buf=Buf.IN)))


def test_race_in_place_alone():
    """A dependency that only in-place use needs is missed only there."""
    plan = build("allreduce", contiguous((3,)), algorithm="direct_split")
    (k,) = [i for i, step in enumerate(plan.program(0).steps) if isinstance(step, Recv) and step.peer == 1]
    bad = changed(plan, 0, k, after=())
    verify(bad, in_place=False)
    with pytest.raises(PlanError) as caught:
        verify(bad, in_place=True)
    assert (caught.value.rank, caught.value.step) == (0, k)


def test_alltoall_out_of_place_plan_is_not_for_in_place():
    plan = build("alltoall", contiguous((3,)))
    verify(plan, in_place=False)
    with pytest.raises(PlanError):
        verify(plan, in_place=True)


VENDOR = [p for p in PLANS if any(isinstance(step, Vendor) for _, _, step in each_step(p.values[0]))]


@pytest.mark.parametrize("plan", VENDOR)
def test_vendor_calls_must_agree(plan):
    def broken():
        for rank, i, step in each_step(plan):
            if isinstance(step, Vendor):
                for op in (*sorted(VENDOR_OPS), "send"):
                    if op != step.op:
                        yield f"rank {rank}, step {i} as {op}", changed(plan, rank, i, op=op)
                yield f"rank {rank}, step {i} of fewer", changed(plan, rank, i, ranks=step.ranks[:-1])
                yield f"rank {rank}, step {i} of other order", changed(plan, rank, i, ranks=step.ranks[::-1])
                for root in range(-1, plan.size):
                    if root != step.root:
                        yield f"rank {rank}, step {i} with root {root}", changed(plan, rank, i, root=root)
                yield f"rank {rank}, step {i} without buffers", changed(plan, rank, i, block=None, source=None)
            if isinstance(step, Vendor) and step.source and plan.collective != "barrier":
                half = (step.source.lo + step.source.hi) / 2
                yield f"rank {rank}, step {i} of half", changed(plan, rank, i, source=step.source._replace(hi=half))

    assert reject(plan, broken()) >= 12
