"""Every plan is right: the verifier accepts all algorithms for all island lists, in place and not."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction

import pytest
from plan_cases import contiguous, end_with_parent, few_ranks, many_interleaved, many_ranks, plans

from hetccl.plan import Peer, Plan, Reduce, Send, Vendor, algorithms, applicable, build, select, uneven
from hetccl.plan.steps import BY_UNIT, COLLECTIVES, SCANS
from hetccl.plan.strict import rounds, units_sent


@pytest.fixture(scope="module")
def verified(request):
    """Function: (function of plan_cases, collective, size) -> what it returns. A process for each core runs those that
    pytest selected, ahead of the tests."""
    functions = {
        test_all_islands_of_few_ranks: few_ranks,
        test_all_sizes_of_many_ranks: many_ranks,
        test_interleaved_islands_of_many_ranks: many_interleaved,
    }
    tasks = [
        (functions[item.function], item.callspec.params["collective"], item.callspec.params["size"])
        for item in request.session.items
        if getattr(item, "function", None) in functions
    ]
    processes = min(8, len(os.sched_getaffinity(0)))
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), end_with_parent)
    futures = {task: pool.submit(*task) for task in tasks}
    yield lambda *task: futures[task].result()
    pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("size", range(1, 7))
def test_all_islands_of_few_ranks(collective, size, verified):
    assert verified(few_ranks, collective, size) >= (1, 2, 5, 15, 52, 203)[size - 1]


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("size", range(7, 13))
def test_all_sizes_of_many_ranks(collective, size, verified):
    assert verified(many_ranks, collective, size) > 0


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("size", range(7, 13))
def test_interleaved_islands_of_many_ranks(collective, size, verified):
    assert verified(many_interleaved, collective, size) > 0


LISTS = (
    contiguous((1,)),
    contiguous((4,)),
    contiguous((20,)),
    contiguous((1, 1, 1)),
    contiguous((3, 1)),
    contiguous((10, 10)),
    ((0, 2), (1, 3)),
)


@pytest.mark.parametrize("inner", ["flat", "vendor"])
@pytest.mark.parametrize("islands", LISTS, ids=lambda islands: "+".join(str(len(island)) for island in islands))
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_table_covers_all_sizes_with_what_fits(collective, islands, inner):
    fitting = applicable(collective, islands, inner)
    if not fitting:
        assert collective in SCANS
        return
    table = select.table(collective, islands, inner)
    limits = [limit for limit, _ in table]
    assert limits[-1] is None and limits[:-1] == sorted(limits[:-1])
    assert {name for _, name in table} <= set(fitting)
    for limit, name in table[:-1]:
        assert select.choose(collective, islands, limit, inner) == name
        assert select.choose(collective, islands, limit + 1, inner) != name
    assert build(collective, islands, inner=inner).algorithm == table[-1][1]


@pytest.mark.parametrize("inner", ["flat", "vendor"])
@pytest.mark.parametrize("islands", LISTS, ids=lambda islands: "+".join(str(len(island)) for island in islands))
@pytest.mark.parametrize("collective", sorted(BY_UNIT))
def test_table_for_unequal_units(collective, islands, inner):
    names = {name for _, name in select.table(collective, islands, inner, uneven=True)}
    assert names <= set(uneven(collective, islands, inner))
    for name in applicable(collective, islands, inner):
        assert build(collective, islands, 0, name, inner).uneven == (name in uneven(collective, islands, inner))


@pytest.mark.parametrize("collective", sorted(set(COLLECTIVES) - BY_UNIT))
def test_no_unequal_units_where_all_ranks_give_one(collective):
    assert uneven(collective, ((0, 1), (2,))) == ()
    assert not build(collective, ((0, 1), (2,))).uneven


@pytest.mark.parametrize("collective", ["reduce_scatter_block", "alltoall"])
def test_scratch_is_measured(collective):
    """Each unit of scratch in plans for unequal units is as long as another unit of IN."""
    for plan in plans(collective, ((0, 2), (1, 3), (4,)), (0,)):
        for rank in range(plan.size):
            program = plan.program(rank)
            used = {s.block.unit for s in program.steps if not isinstance(s, Send) and s.block and s.block.buf == 2}
            assert len(program.measures) == program.scratch
            assert len({program.measures[unit] for unit in used}) == len(used)


@pytest.mark.parametrize(
    "collective,islands,options",
    [
        ("gatherv", ((0,),), {}),
        ("allreduce", (), {}),
        ("allreduce", ((0, 1), ()), {}),
        ("allreduce", ((0, 1), (1,)), {}),
        ("allreduce", ((0, 2),), {}),
        ("bcast", ((0, 1),), {"root": 2}),
        ("bcast", ((0, 1),), {"root": -1}),
        ("bcast", ((0, 1),), {"algorithm": "ring"}),
        ("allreduce", ((0, 1), (2,)), {"algorithm": "ring", "inner": "vendor"}),
        ("allreduce", ((0, 1),), {"inner": "nccl"}),
        ("gather", ((0, 1),), {"root": 2}),
        ("scatter", ((0, 1),), {"root": -1}),
        ("scan", ((0, 1), (2,)), {"inner": "vendor"}),
    ],
)
def test_bad_arguments(collective, islands, options):
    with pytest.raises(ValueError):
        build(collective, islands, **options)


def test_one_rank_of_many():
    """A program is made alone: a thousand ranks cost no more than one."""
    made = []
    plan = build("allreduce", (range(0, 1000, 2), range(1, 1000, 2)))
    counted = Plan(
        plan.collective,
        plan.islands,
        0,
        plan.algorithm,
        "flat",
        False,
        lambda rank: made.append(rank) or plan.program(rank),
    )
    assert counted.program(7) is counted.program(7)
    assert made == [7]
    assert sum(isinstance(step, Send) for step in plan.program(7).steps) == 499 + 1 + 499


def test_algorithms_are_distinct():
    """No two names stand for the same plan."""
    size = 8
    islands = contiguous((size,))
    for collective in COLLECTIVES:
        names = [name for name in algorithms(collective) if not name.startswith("hier")]
        programs = {name: [build(collective, islands, 0, name).program(rank) for rank in range(size)] for name in names}
        assert len({str(program) for program in programs.values()}) == len(names), collective


@pytest.mark.parametrize(
    "algorithm,sizes,count",
    [
        ("direct", (5,), 1),
        ("direct", (3, 2), 1),
        ("direct_split", (5,), 2),
        ("recursive_doubling", (8,), 3),
        ("recursive_doubling", (7,), 4),
        ("ring", (5,), 8),
        ("hier_direct", (3, 2), 2),
        ("hier_direct", (2, 2, 1), 2),
        ("hierarchical", (3, 2), 3),
        ("hierarchical", (2, 2, 1), 4),
    ],
)
def test_rounds_of_allreduce(algorithm, sizes, count):
    assert rounds(build("allreduce", contiguous(sizes), algorithm=algorithm)) == count


@pytest.mark.parametrize(
    "collective,algorithm,size,count",
    [
        ("scan", "direct", 6, 1),
        ("scan", "recursive_doubling", 8, 3),
        ("scan", "recursive_doubling", 9, 4),
        ("scan", "chain", 6, 5),
        ("exscan", "direct", 6, 1),
        ("exscan", "recursive_doubling", 9, 3),
        ("exscan", "chain", 6, 5),
    ],
)
def test_rounds_of_scans(collective, algorithm, size, count):
    assert rounds(build(collective, contiguous((size,)), algorithm=algorithm)) == count


@pytest.mark.parametrize("collective", sorted(SCANS))
@pytest.mark.parametrize("algorithm", ["direct", "recursive_doubling", "chain"])
def test_scans_are_alike_for_all_islands(collective, algorithm):
    """Rank order has nothing to do with islands."""
    one, other = (build(collective, islands, 0, algorithm) for islands in (((0, 1, 2, 3),), ((0, 2), (1, 3))))
    assert [one.program(rank) for rank in range(4)] == [other.program(rank) for rank in range(4)]


@pytest.mark.parametrize("collective,own", [("scan", 1), ("exscan", 0)])
def test_small_scans_reduce_once(collective, own):
    """All of the lower ranks' data meet in one step, in rank order: half precision is rounded once."""
    plan = build(collective, contiguous((6,)), algorithm="direct")
    for rank in range(2, 6):
        (step,) = [step for step in plan.program(rank).steps if isinstance(step, Reduce)]
        assert list(map(Peer, range(rank))) == [source for source in step.sources if isinstance(source, Peer)]
        assert len(step.sources) == rank + own


@pytest.mark.parametrize("collective", sorted(SCANS))
def test_chain_sends_the_fewest_bytes(collective):
    plan = build(collective, contiguous((7,)))
    assert plan.algorithm == "chain"
    assert [units_sent(plan, rank) for rank in range(7)] == [1] * 6 + [0]


SIZES = [(1, 1), (3, 1), (3, 2), (4, 4), (1, 1, 1), (3, 2, 1), (5, 4, 3), (2, 2, 2, 2)]


@pytest.mark.parametrize("inner", ["flat", "vendor"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(
    "collective", ["allreduce", "reduce", "bcast", "allgather", "reduce_scatter_block", "alltoall", "gather", "scatter"]
)
def test_cross_traffic_is_the_least_and_shared_by_all(collective, sizes, inner):
    """Units that each island sends to others; within an island all ranks that hold the data send alike."""
    islands, k, p = contiguous(sizes), len(sizes), sum(sizes)
    plan = build(collective, islands, algorithm="hierarchical", inner=inner)
    for i, island in enumerate(islands):
        s = len(island)
        least = {
            "allreduce": Fraction(2 * (k - 1), k) if k > 2 else 1,
            "reduce": 1 if i else 0,
            "bcast": Fraction(k - 2, k - 1) if i else 1,
            "allgather": s * (k - 1),
            "reduce_scatter_block": p - s,
            "alltoall": s * (p - s),
            "gather": s if i else 0,
            "scatter": None,
        }[collective]
        sent = [units_sent(plan, rank, across=True) for rank in island]
        if collective == "scatter":  # the root alone has the data
            assert sent == ([p - s] if i == 0 else [0]) + [0] * (s - 1)
        else:
            assert sent == [Fraction(least) / s] * s


@pytest.mark.parametrize("collective", [name for name in COLLECTIVES if name not in SCANS])
def test_vendor_inside_leaves_no_message_inside(collective):
    islands = ((0, 2, 5), (1, 4), (3,))
    home = {rank: island for island in islands for rank in island}
    for name in applicable(collective, islands, "vendor"):
        root = 0 if collective in ("gather", "scatter") else 4  # the vendor CCL serves the root's island alone
        plan = build(collective, islands, root, name, "vendor")
        for rank in range(plan.size):
            for step in plan.program(rank).steps:
                assert not (isinstance(step, Send) and home[step.peer] == home[rank])
        assert any(isinstance(step, Vendor) for step in plan.program(0).steps)


@pytest.mark.parametrize("algorithm", ["direct_split", "hierarchical"])
def test_reduces_are_wide(algorithm):
    """Half-precision sums are rounded once per stage: a part is reduced over the whole island in one step."""
    plan = build("allreduce", contiguous((6,)), algorithm=algorithm)
    assert [len(step.sources) for step in plan.program(3).steps if isinstance(step, Reduce)] == [6]
