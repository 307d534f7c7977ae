"""`bench`: options are refused before anything runs; its numbers and its checks hold."""

import csv
import json
from types import SimpleNamespace

import numpy as np
import pytest
from command import COMMAND, hetccl

import launch
from hetccl.cli import bench, report
from hetccl.cli.collectives import COLLECTIVES, PERIOD, Inputs, Side
from hetccl.cli.measure import Bench, Result, Row, Timing

needs_mpirun = pytest.mark.skipif(not launch.launchers(), reason="no mpirun beside this interpreter or in PATH")

# Options


@pytest.mark.parametrize("text, nbytes", [("8", 8), ("1K", 1024), ("64k", 65536), ("3M", 3 << 20), ("2G", 2 << 30)])
def test_sizes(text, nbytes):
    assert bench.parse_size(text) == nbytes


@pytest.mark.parametrize(
    "arguments, named",
    [
        ("allreduce -b 8X", "8X"),
        ("allreduce -b -8", "-b"),
        ("allreduce -b 0", "'0'"),
        ("allreduce -b 1.5K", "1.5K"),
        ("allreduce -b 2K -e 1K", "minbytes"),
        ("allreduce -f 1", "-f"),
        ("allreduce -f nan", "nan"),
        ("allreduce -n 0", "-n"),
        ("allreduce -w -1", "-w"),
        ("allreduce -n x", "'x'"),
        ("allreduce -d float", "float"),
        ("allreduce -o mean", "mean"),
        ("alltoal", "alltoal"),
        ("allreduce --compare nccl", "nccl"),
        ("allreduce --compare mpi4py -o avg", "average"),
        ("scan -o avg", "average"),
        ("allreduce --compare mpi4py -d float16", "float16"),
        ("allreduce --json /nowhere/x.json", "/nowhere/x.json"),
        ("allreduce --csv /", "/"),
        ("reduce -r 1", "--root"),
        ("allreduce -e 1000000G", "MiB"),
    ],
)
def test_bad_options_are_refused_before_the_run(arguments, named):
    done = hetccl("bench", *arguments.split())
    assert done.returncode == 2
    assert named in done.stderr.splitlines()[-1] and "error:" in done.stderr.splitlines()[-1]
    assert done.stdout == ""


@pytest.mark.parametrize(
    "collective, lowest, highest, factor, counts",
    [
        ("allreduce", 8, 64, 2, [2, 4, 8, 16]),
        ("allreduce", 1, 16, 2, [1, 2, 4]),
        ("allgather", 8, 64, 2, [1, 2, 4]),
        ("alltoall", 16, 100, 4, [1, 4]),
        ("allreduce", 40, 100, 1.5, [10, 15, 22]),
    ],
)
def test_row_counts(collective, lowest, highest, factor, counts):
    args = SimpleNamespace(collective=collective, minbytes=lowest, maxbytes=highest, stepfactor=factor)
    assert list(bench.row_counts(args, itemsize=4, nranks=4)) == counts


# What NumPy expects

REFERENCE = {
    "allreduce": lambda ins, rank, root, n, reduce: reduce(ins)[:n],
    "reduce": lambda ins, rank, root, n, reduce: reduce(ins)[:n] if rank == root else None,
    "broadcast": lambda ins, rank, root, n, reduce: ins[root][:n],
    "allgather": lambda ins, rank, root, n, reduce: ins[:, :n].reshape(-1),
    "reduce_scatter": lambda ins, rank, root, n, reduce: reduce(ins)[rank * n : rank * n + n],
    "alltoall": lambda ins, rank, root, n, reduce: ins[:, rank * n : rank * n + n].reshape(-1),
    "sendrecv": lambda ins, rank, root, n, reduce: ins[rank - 1][:n],
    "gather": lambda ins, rank, root, n, reduce: ins[:, :n].reshape(-1) if rank == root else None,
    "scatter": lambda ins, rank, root, n, reduce: ins[root][rank * n : rank * n + n],
    "allgatherv": lambda ins, rank, root, n, reduce: np.concatenate([ins[r][: parts(n)[r]] for r in range(3)]),
    "gatherv": lambda ins, rank, root, n, reduce: (
        np.concatenate([ins[r][: parts(n)[r]] for r in range(3)]) if rank == root else None
    ),
    "scatterv": lambda ins, rank, root, n, reduce: np.split(ins[root], np.cumsum(parts(n)))[rank],
    "reduce_scatterv": lambda ins, rank, root, n, reduce: np.split(reduce(ins), np.cumsum(parts(n)))[rank],
    "alltoallv": lambda ins, rank, root, n, reduce: np.concatenate(
        [np.split(ins[r], np.cumsum([parts(n)[(r + peer) % 3] for peer in range(3)]))[rank] for r in range(3)]
    ),
    "scan": lambda ins, rank, root, n, reduce: reduce(ins[: rank + 1])[:n],
    "exscan": lambda ins, rank, root, n, reduce: reduce(ins[:rank])[:n] if rank else None,
}


def parts(n):
    """The parts of three ranks in the collectives that end in v."""
    return [n - n // 2, n + n // 2, n]


@pytest.mark.parametrize("count", [1, 7, PERIOD // 2 + 1])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_expected_results(name, count):
    size, root = 3, 1
    inputs = Inputs(np.dtype("float32"), "sum", size)
    whole = np.array([inputs.of(rank, 0, size * count) for rank in range(size)])
    for rank in range(size):
        got = COLLECTIVES[name].expected(inputs, rank, root, count)
        want = REFERENCE[name](whole, rank, root, count, lambda ins: ins.sum(axis=0))
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", bench.DTYPES)
@pytest.mark.parametrize("op", bench.OPS)
def test_reductions_are_exact_in_every_dtype(op, dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes", reason="bfloat16 comes from ml_dtypes").bfloat16
    size, count = 5, 2000
    inputs = Inputs(np.dtype(dtype), op, size)
    exact = np.array([inputs.of(rank, 11, count) for rank in range(size)]).astype(np.float64)
    reduce = {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max, "avg": np.mean}[op]
    wanted = reduce(exact, axis=0)
    if op == "avg" and np.issubdtype(inputs.dtype, np.integer):
        wanted = np.floor(wanted)
    got = inputs.reduced(11, count)
    assert got.dtype == inputs.dtype
    np.testing.assert_array_equal(got, wanted.astype(inputs.dtype))
    assert len(np.unique(exact)) > 1 and len(np.unique(got.astype(np.float64))) > 1
    assert not np.array_equal(exact[0], exact[1])


@pytest.mark.parametrize(
    "name, factor",
    [
        ("allreduce", 1.5),
        ("reduce", 1),
        ("broadcast", 1),
        ("allgather", 0.75),
        ("reduce_scatter", 0.75),
        ("alltoall", 0.75),
        ("sendrecv", 1),
        ("gather", 0.75),
        ("scatter", 0.75),
        ("allgatherv", 0.75),
        ("gatherv", 0.75),
        ("scatterv", 0.75),
        ("reduce_scatterv", 0.75),
        ("alltoallv", 0.75),
        ("scan", 1),
        ("exscan", 1),
    ],
)
def test_bus_bandwidth_factor_of_four_ranks(name, factor):
    assert COLLECTIVES[name].factor(4) == factor


# The stopwatch, on one rank and a communicator of ours


class OneRank:
    """A communicator of one rank; `damage` is called on each result."""

    rank, size = 0, 1

    def __init__(self, damage=lambda result: None):
        self.damage = damage
        self.calls = 0

    def Allreduce(self, send, recv, op):
        self.calls += 1
        if send is not None:
            recv[:] = send
        self.damage(recv)

    def Barrier(self):
        pass

    def allgather(self, value):
        return [value]


def test_times_are_the_slowest_ranks_median():
    class TwoRanks(OneRank):
        size = 2

        def allgather(self, value):
            return [np.array([[1.0, 5.0, 2.0]]), np.array([[3.0, 4.0, 1.0]])]

    comm = TwoRanks()
    stopwatch = Bench(COLLECTIVES["allreduce"], comm, [Side(comm, None, None)], np.dtype("int32"), "sum", 0, 8)
    ours = stopwatch.row(8, warmup=0, iters=3, check=False).out_place.ours
    assert (ours.us, ours.min_us) == (3e6, 2e6)
    assert ours.algbw == ours.busbw == 32 / 3 / 1e9


def spoil_last(result):
    result[-1] += 1


@pytest.mark.parametrize("damage, wrong", [(lambda result: None, 0), (spoil_last, 1)])
def test_wrong_elements_are_counted(damage, wrong):
    comm = OneRank(damage)
    stopwatch = Bench(COLLECTIVES["allreduce"], comm, [Side(comm, None, None)], np.dtype("int32"), "sum", 0, 100)
    row = stopwatch.row(50, warmup=2, iters=3, check=True)
    assert (row.nbytes, row.count) == (200, 50)
    assert [result.wrong for result in row.results()] == [wrong, wrong]
    assert comm.calls == 2 * (2 + 3 + 1)


def test_a_call_that_does_nothing_is_wrong():
    comm = OneRank()
    comm.Allreduce = lambda send, recv, op: None
    stopwatch = Bench(COLLECTIVES["allreduce"], comm, [Side(comm, None, None)], np.dtype("int32"), "sum", 0, 100)
    row = stopwatch.row(100, warmup=0, iters=1, check=True)
    assert row.out_place.wrong == 100


def test_the_libraries_take_turns():
    order = []
    sides = []
    for name in "AB":
        comm = OneRank()
        comm.Allreduce = lambda send, recv, op, name=name: order.append(name)
        sides.append(Side(comm, None, None))
    stopwatch = Bench(COLLECTIVES["allreduce"], OneRank(), sides, np.dtype("int32"), "sum", 0, 8)
    row = stopwatch.row(8, warmup=0, iters=4, check=False)
    assert "".join(order) == "ABBAABBA" * 2
    assert row.out_place.wrong is None
    assert row.out_place.ratio == row.out_place.ours.us / row.out_place.peer.us


def timing(us):
    return Timing(us, us / 2, 2 * us, 1.0, 1.5)


def args(**values):
    return SimpleNamespace(**{"collective": "allreduce", "datatype": "float32", "op": "sum", "root": 0, **values})


def test_columns_line_up():
    header = {"versions": "v", "mpi": "m", "ranks": 2, "members": [], "path": "p", "command": "c"}
    row = Row(67108864, 16777216, Result(timing(123456.78), timing(5.0), 999.99, 0), None)
    for compare in (None, "mpi4py"):
        options = args(compare=compare, iters=1, warmup=0)
        titles = report.head_text(header, options).splitlines()[-2]
        values = report.row_text(row, options)
        assert len(titles) == len(values)
        assert len(titles.lstrip("#").split()) == len(values.split())


def test_foot_tells_wrong_and_ratio():
    rows = [Row(8, 2, Result(timing(2), timing(4), 0.5, 0), Result(timing(8), timing(4), 2.0, 3))]
    text = report.foot_text(rows)
    assert "wrong elements: 3 FAILED" in text
    assert "geometric mean 1.00, worst 2.00" in text
    assert "average bus bandwidth: 1.500" in text


# The real thing


def test_bench_without_mpirun(tmp_path):
    written = tmp_path / "out.json", tmp_path / "out.csv"
    done = hetccl("bench", "allreduce", "-e", "1K", "-n", "2", "-w", "0", "--json", written[0], "--csv", written[1])
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    assert [int(row[0]) for row in rows] == [8 << step for step in range(8)]
    page = json.loads(written[0].read_text())
    assert page["header"]["ranks"] == 1
    assert [row["nbytes"] for row in page["rows"]] == [int(row[0]) for row in rows]
    records = list(csv.DictReader(written[1].open()))
    assert len(records) == 2 * len(rows)
    assert {record["wrong"] for record in records} == {"0"}


@needs_mpirun
@pytest.mark.parametrize("name", COLLECTIVES)
def test_bench_under_mpirun(name):
    arguments = [
        "bench",
        name,
        "-b",
        "4",
        "-e",
        "256K",
        "-f",
        "16",
        "-n",
        "3",
        "-w",
        "1",
        "-r",
        "1",
        "--compare",
        "mpi4py",
    ]
    done = launch.mpirun(3, COMMAND, *arguments, timeout=120, check=False)
    assert done.returncode == 0, done.report()
    assert done.stdout[1:] == ("", "")
    rows = [line.split() for line in done.stdout[0].splitlines() if not line.startswith("#")]
    assert len(rows) == 5
    assert {row[8] for row in rows} | {row[14] for row in rows} <= {"0", "N/A"}
    assert "wrong elements: 0 OK" in done.stdout[0]


@needs_mpirun
def test_bad_options_are_told_once_per_job():
    done = launch.mpirun(2, COMMAND, "bench", "allreduce", "-b", "8X", timeout=60, check=False)
    assert done.returncode == 2
    assert "8X" in done.stderr[0] and done.stderr[1] == ""
