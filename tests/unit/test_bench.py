"""`bench`: options are refused before anything runs; its numbers and its checks hold.

What runs under mpirun, all collectives and messages and an error planted in each of them, is in test_bench_jobs.py.
"""

import csv
import functools
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from command import COMMAND, ROOT, hetccl

import launch
from hetccl.cli import bench, points, report
from hetccl.cli.collectives import COLLECTIVES, PERIOD, Inputs, Side
from hetccl.cli.measure import Bench, Row, Timing
from hetccl.cli.points import POINTS

needs_mpirun = pytest.mark.skipif(not launch.launchers(), reason="no mpirun beside this interpreter or in PATH")

# Options


@pytest.mark.parametrize(
    "text, nbytes",
    [
        *(("8", 8), ("8B", 8), ("1K", 1024), ("64k", 65536), ("3M", 3 << 20), ("2G", 2 << 30)),
        *(("1KiB", 1024), ("64MiB", 64 << 20), ("1gib", 1 << 30)),
    ],
)
def test_sizes(text, nbytes):
    assert bench.parse_size(text) == nbytes


BAD_OPTIONS = [
    ("allreduce -b 8X", "8X"),
    ("allreduce -b -8", "-b"),
    ("allreduce -b 0", "'0'"),
    ("allreduce -b 1.5K", "1.5K"),
    ("allreduce -b 1KB", "1KB"),
    ("allreduce -b 1T", "1T"),
    ("allreduce -b K", "'K'"),
    ("allreduce -e 99999999999999999999", "-e"),
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
    ("allreduce --compare mpi4py,mpi4py", "mpi4py,mpi4py"),
    ("allreduce --compare all,mpi4py", "all,mpi4py"),
    ("allreduce --compare cupy", "cupy does not take buffers in host memory"),
    ("allreduce --compare mpi4py -o avg", "average"),
    ("alltoallw --compare torch-gloo", "Alltoallw"),
    ("allreduce --memory gpu", "gpu"),
    ("allreduce --memory hip", "no hip buffers"),
    ("allreduce -n 1000001", "-n"),
    ("allreduce -f 1e7", "-f"),
    ("latency", "two ranks"),
    ("scan -o avg", "average"),
    ("allreduce --compare mpi4py -d float16", "float16"),
    ("allreduce --json /nowhere/x.json", "/nowhere/x.json"),
    ("allreduce --csv /", "/"),
    ("allreduce --csv /dev/null/x.csv", "/dev/null/x.csv"),
    ("allreduce --json x.out --csv x.out", "x.out"),
    ("allreduce --plot x.gif", "x.gif"),
    ("reduce -r 1", "--root"),
    ("allreduce -e 1000000G", "MiB"),
]


@functools.cache
def refusals():
    """{arguments: [exit status, stdout, stderr]} of all that is refused, in one process: starting one takes longest."""
    done = subprocess.run(
        [sys.executable, ROOT / "tests/unit/prog_bench_refused.py", *(arguments for arguments, _ in BAD_OPTIONS)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("arguments, named", BAD_OPTIONS)
def test_bad_options_are_refused_before_the_run(arguments, named):
    status, stdout, stderr = refusals()[arguments]
    assert status == 2
    assert named in stderr.splitlines()[-1] and "error:" in stderr.splitlines()[-1]
    assert stdout == ""


@pytest.mark.parametrize("option", ["--json", "--csv", "--plot"])
def test_an_existing_file_is_not_overwritten(tmp_path, option):
    path = tmp_path / "kept.svg"
    path.write_text("mine")
    done = hetccl("bench", "allreduce", "-e", "8", option, path)
    assert done.returncode == 2 and done.stdout == ""
    assert f"{path} exists" in done.stderr or (option == "--plot" and "matplotlib is not installed" in done.stderr)
    assert path.read_text() == "mine"


def test_refused_files_leave_nothing(tmp_path):
    done = hetccl("bench", "allreduce", "-e", "8", "--json", tmp_path / "a.json", "--csv", tmp_path / "no" / "b.csv")
    assert done.returncode == 2 and str(tmp_path / "no" / "b.csv") in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "collective, lowest, highest, factor, counts",
    [
        ("allreduce", 8, 64, 2, [2, 4, 8, 16]),
        ("allreduce", 1, 16, 2, [1, 2, 4]),
        ("allgather", 8, 64, 2, [1, 2, 4]),
        ("alltoall", 16, 100, 4, [1, 4]),
        ("allreduce", 40, 100, 1.5, [10, 15, 22]),
        ("bandwidth", 8, 32, 2, [2, 4, 8]),
        ("barrier", 8, 64, 2, [1]),
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
    "alltoallw": lambda ins, rank, root, n, reduce: REFERENCE["alltoallv"](ins, rank, root, n, reduce),
    "barrier": lambda ins, rank, root, n, reduce: None,
    "latency": lambda ins, rank, root, n, reduce: {0: ins[2][:n], 2: ins[0][:n]}.get(rank),
    "bidirectional": lambda ins, rank, root, n, reduce: {0: ins[2][:n], 2: ins[0][:n]}.get(rank),
    "bandwidth": lambda ins, rank, root, n, reduce: ins[0][:n] if rank == 2 else None,
    "scan": lambda ins, rank, root, n, reduce: reduce(ins[: rank + 1])[:n],
    "exscan": lambda ins, rank, root, n, reduce: reduce(ins[:rank])[:n] if rank else None,
}


def parts(n):
    """The parts of three ranks in the collectives that end in v."""
    return [n - n // 2, n + n // 2, n]


@pytest.mark.parametrize("count", [1, 7, PERIOD // 2 + 1])
@pytest.mark.parametrize("name", report.BENCHMARKS)
def test_expected_results(name, count):
    size, root = 3, 1
    inputs = Inputs(np.dtype("float32"), "sum", size)
    whole = np.array([inputs.of(rank, 0, size * count) for rank in range(size)])
    for rank in range(size):
        got = report.BENCHMARKS[name].expected(inputs, rank, root, count)
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


# Bus bandwidth by algorithm bandwidth on 2, 3, 4 and 8 ranks, worked out by hand from nccl-tests' doc/PERFORMANCE.md:
# "AllReduce: * 2(n-1)/n, ReduceScatter: * (n-1)/n, AllGather: * (n-1)/n, Broadcast: * 1, Reduce: * 1", and from its
# sources for those that it says nothing of (gather, scatter, alltoall: (n-1)/n; sendrecv: 1). The rest is MPI's alone.
ALL_BUT_OWN = (1 / 2, 2 / 3, 3 / 4, 7 / 8)
ONES = (1, 1, 1, 1)
FACTORS = {
    "allreduce": (1, 4 / 3, 3 / 2, 7 / 4),
    **dict.fromkeys(["reduce_scatter", "allgather", "alltoall", "gather", "scatter"], ALL_BUT_OWN),
    **dict.fromkeys(["reduce_scatterv", "allgatherv", "alltoallv", "alltoallw", "gatherv", "scatterv"], ALL_BUT_OWN),
    **dict.fromkeys(["reduce", "broadcast", "sendrecv", "scan", "exscan"], ONES),
    **dict.fromkeys(["latency", "bandwidth", "bidirectional"], ONES),
    "barrier": (0, 0, 0, 0),
}


@pytest.mark.parametrize("name", report.BENCHMARKS)
def test_bus_bandwidth_factors(name):
    assert [report.BENCHMARKS[name].factor(p) for p in (2, 3, 4, 8)] == pytest.approx(FACTORS[name], rel=1e-12)


class Silent:
    """A communicator on which nothing is called: its times are given by hand."""

    rank = 0

    def __init__(self, size):
        self.size = size


# (name, ranks, elements in a row, bytes of its size) of int32: the larger buffer of a rank, as nccl-tests print it.
SIZES = [
    ("allreduce", 4, 100, 400),
    ("broadcast", 4, 100, 400),
    ("reduce", 4, 100, 400),
    ("allgather", 4, 100, 1600),
    ("reduce_scatter", 4, 100, 1600),
    ("alltoall", 4, 100, 1600),
    ("gather", 4, 100, 1600),
    ("scatter", 4, 100, 1600),
    ("sendrecv", 4, 100, 400),
    ("latency", 2, 100, 400),
]


@pytest.mark.parametrize("name, ranks, count, nbytes", SIZES)
def test_sizes_and_bandwidths(name, ranks, count, nbytes):
    benchmark = report.BENCHMARKS[name]
    stopwatch = Bench(benchmark, Silent(ranks), [Side(None, None, None)], np.dtype("int32"), "sum", 0, [count])
    assert count * 4 * max(stopwatch.send_units, stopwatch.recv_units) == nbytes
    timing = stopwatch._timing(np.array([2e-6, 4e-6, 100e-6]), nbytes, stopwatch.sides[0])
    assert (timing.us, timing.min_us) == pytest.approx((4, 2))
    assert timing.algbw == pytest.approx(nbytes / 4e-6 / 1e9)
    assert timing.busbw == pytest.approx(timing.algbw * FACTORS[name][(2, 3, 4, 8).index(ranks)])


def test_two_way_bandwidth_counts_both_ways():
    stopwatch = Bench(POINTS["bidirectional"], Silent(2), [Side(None, None, None)], np.dtype("int32"), None, 0, [100])
    timing = stopwatch._timing(np.array([4e-6]), 400, stopwatch.sides[0])
    assert timing.algbw == timing.busbw == pytest.approx(800 / 4e-6 / 1e9)


@pytest.mark.parametrize("nbytes, wanted", [(8, 64), (1 << 20, 64), (2 << 20, 32), (1 << 30, 2)])
def test_windows(nbytes, wanted):
    assert points.window(nbytes) == wanted


# The stopwatch, on one rank and a communicator of ours


class OneRank:
    """A communicator of one rank; `damage` is called on each result."""

    rank, size = 0, 1

    def __init__(self, damage=lambda result: None):
        self.damage = damage
        self.calls = 0

    def Allreduce(self, send, recv, op):
        self.calls += 1
        if send is not ...:
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
    stopwatch = Bench(COLLECTIVES["allreduce"], comm, [Side(comm, None, ...)], np.dtype("int32"), "sum", 0, [8])
    ours = stopwatch.row(8, warmup=0, iters=3, check=False).out_place["hetccl"]
    assert (ours.us, ours.min_us) == (3e6, 2e6)
    assert ours.algbw == ours.busbw == 32 / 3 / 1e9


def spoil_last(result):
    result[-1] += 1


@pytest.mark.parametrize("damage, wrong", [(lambda result: None, 0), (spoil_last, 1)])
def test_wrong_elements_are_counted(damage, wrong):
    comm = OneRank(damage)
    stopwatch = Bench(COLLECTIVES["allreduce"], comm, [Side(comm, None, ...)], np.dtype("int32"), "sum", 0, [100])
    row = stopwatch.row(50, warmup=2, iters=3, check=True)
    assert (row.nbytes, row.count) == (200, 50)
    assert [row.out_place["hetccl"].wrong, row.in_place["hetccl"].wrong] == [wrong, wrong]
    assert row.wrong() == 2 * wrong
    assert comm.calls == 2 * (2 + 3 + 1)


def test_a_call_that_does_nothing_is_wrong():
    comm = OneRank()
    comm.Allreduce = lambda send, recv, op: None
    stopwatch = Bench(COLLECTIVES["allreduce"], comm, [Side(comm, None, ...)], np.dtype("int32"), "sum", 0, [100])
    row = stopwatch.row(100, warmup=0, iters=1, check=True)
    assert row.out_place["hetccl"].wrong == 100


def test_the_libraries_take_turns():
    order = []
    sides = []
    for name in "AB":
        comm = OneRank()
        comm.Allreduce = lambda send, recv, op, name=name: order.append(name)
        sides.append(Side(comm, None, ..., name=name))
    stopwatch = Bench(COLLECTIVES["allreduce"], OneRank(), sides, np.dtype("int32"), "sum", 0, [8])
    row = stopwatch.row(8, warmup=0, iters=4, check=False)
    assert "".join(order) == "ABBAABBA" * 2
    assert row.out_place["A"].wrong is None
    assert row.out_place["A"].ratio is None
    assert row.out_place["B"].ratio == row.out_place["A"].us / row.out_place["B"].us


def test_a_peer_that_raises_is_dropped_with_its_words():
    def refuse(send, recv, op):
        raise RuntimeError("no such thing\nmore")

    able, unable = OneRank(), OneRank()
    unable.Allreduce = refuse
    sides = [Side(able, None, None), Side(unable, None, None, name="B"), Side(able, None, None, name="C")]
    stopwatch = Bench(COLLECTIVES["allreduce"], OneRank(), sides, np.dtype("int32"), "sum", 0, [8])
    assert stopwatch.drop_unable(8) == {"B": "RuntimeError: no such thing"}
    assert [side.name for side in stopwatch.sides] == ["hetccl", "C"]
    able.Allreduce = refuse
    assert list(stopwatch.drop_unable(8)) == ["hetccl", "C"]


def timing(us, **more):
    return Timing(us, us / 2, 2 * us, 1.0, 1.5, **more)


HEADER = {
    "versions": "v",
    "mpi": "m",
    "machine": "c",
    "cores": 2,
    "load": 0.1,
    "ranks": 2,
    "members": [],
    "memory": [],
    "paths": [],
    "peers": [],
    "command": "c",
    "iters": 1,
    "warmup": 0,
    "absent": {},
    "datatype": "float32",
    "op": "sum",
    "root": -1,
}


@pytest.mark.parametrize("peers", [[], ["mpi4py"], ["mpi4py", "mpi4py-staged", "copy"]])
def test_columns_line_up(peers):
    header = HEADER | {"peers": peers}
    timings = {"hetccl": timing(123456.78, wrong=0), **{name: timing(5.0, ratio=999.99) for name in peers}}
    row = Row(67108864, 16777216, timings, None)
    titles = report.head_text(header).splitlines()[-2]
    values = report.row_text(row, header)
    assert len(titles) == len(values)
    assert len(titles.lstrip("#").split()) == len(values.split())


def test_the_head_names_who_is_missing():
    header = HEADER | {"absent": {"torch-gloo": "PyTorch: No module named 'torch'"}}
    assert "# torch-gloo does not take part: PyTorch: No module named 'torch'" in report.head_text(header)


def test_foot_tells_wrong_and_ratio():
    slow = {"hetccl": timing(2, wrong=0), "mpi4py": timing(4, ratio=0.5, wrong=0)}
    quick = {"hetccl": timing(8, wrong=3), "mpi4py": timing(4, ratio=2.0, wrong=7), "copy": timing(1)}
    text = report.foot_text([Row(8, 2, slow, quick)])
    assert "wrong elements: 3 FAILED" in text
    assert "wrong elements of mpi4py: 7 FAILED" in text
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
    assert {record["library"] for record in records} == {"hetccl"}
    again = hetccl("bench", "allreduce", "-e", "8", "-n", "1", "--json", written[0], "--force")
    assert again.returncode == 0 and len(json.loads(written[0].read_text())["rows"]) == 1
    assert {record["wrong"] for record in records} == {"0"}


def test_a_missing_peer_is_named(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('made to be missing')\n")
    done = hetccl("bench", "allreduce", "-e", "8", "-n", "1", "--compare", "torch-gloo,mpi4py", path=[tmp_path])
    assert done.returncode == 0, done.stderr
    assert "# torch-gloo does not take part: PyTorch: made to be missing" in done.stdout.splitlines()
    assert "# time / that of mpi4py: geometric mean" in done.stdout


@needs_mpirun
def test_bad_options_are_told_once_per_job():
    done = launch.mpirun(2, COMMAND, "bench", "allreduce", "-b", "8X", timeout=60, check=False)
    assert done.returncode == 2
    assert "8X" in done.stderr[0] and done.stderr[1] == ""
