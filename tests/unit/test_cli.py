"""The command line: options are refused before anything runs, the pages are right, bench's numbers and checks hold."""

import csv
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import launch
from hetccl import libraries, topology
from hetccl.__main__ import main
from hetccl.cli import bench, doctor, host, info, job, report
from hetccl.cli.collectives import COLLECTIVES, PERIOD, Inputs, Side
from hetccl.cli.host import Check
from hetccl.cli.measure import Bench, Result, Row, Timing

ROOT = Path(__file__).resolve().parents[2]
MEMBER = topology.Member("n0", "n0/boot", 1, 2, "host", "host", "", "", "host", "0-1")
COMMAND = ["-m", "hetccl"]
needs_mpirun = pytest.mark.skipif(not launch.launchers(), reason="no mpirun beside this interpreter or in PATH")


def hetccl(*arguments, path=(), **options):
    """Run the command line in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, path), str(ROOT)])}
    command = [sys.executable, "-m", "hetccl", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, **options)


def fake_mpi4py(folder, source):
    (folder / "mpi4py").mkdir()
    (folder / "mpi4py/__init__.py").write_text("__version__ = '9'\nclass rc: pass\n")
    (folder / "mpi4py/MPI.py").write_text(source)
    return folder


# The front


@pytest.mark.parametrize("typed, hint", [("bnech", "bench"), ("docter", "doctor"), ("plna", "plan"), ("inf", "info")])
def test_unknown_command_suggests(capsys, typed, hint):
    with pytest.raises(SystemExit) as caught:
        main([typed])
    assert caught.value.code == 2
    assert f"did you mean {hint}?" in capsys.readouterr().err


def test_unknown_command_without_a_near_one_lists_all(capsys):
    with pytest.raises(SystemExit):
        main(["xyzzy"])
    assert "info, doctor, plan, bench" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in ("info", "doctor", "plan", "bench"))])
def test_help(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("usage: python -m hetccl")


def test_a_reader_that_leaves_is_no_error():
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stdout:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "hetccl", "info"]
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment, timeout=120)
    assert (done.returncode, done.stderr) == (128 + 13, "")


def test_ctrl_c_is_quiet(monkeypatch, capsys):
    def interrupt(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(info, "run", interrupt)
    assert main(["info"]) == 128 + 2
    assert capsys.readouterr().err == ""


# What job knows


@pytest.mark.parametrize(
    "variables, rank",
    [
        (b"", None),
        (b"HOME=/root\0", None),
        (b"PMI_RANK=3\0PMI_SIZE=4\0", 3),
        (b"A=1\0OMPI_COMM_WORLD_RANK=2\0PMIX_RANK=2\0", 2),
        (b"PMIX_RANK=0\0", 0),
        (b"PMI_RANK=x\0", None),
    ],
)
def test_launch_rank(tmp_path, variables, rank):
    (tmp_path / "self").mkdir()
    (tmp_path / "self/environ").write_bytes(variables)
    assert job.launch_rank(topology.Roots(proc=tmp_path)) == rank


@pytest.mark.parametrize(
    "source, problem",
    [
        ("raise RuntimeError('cannot load MPI library\\nlibmpi.so: no such file')", "cannot load MPI library"),
        ("raise ImportError('libmpi.so.40: cannot open')", "libmpi.so.40: cannot open"),
        ("import os, sys; sys.stderr.write('init failed\\n'); sys.stderr.flush(); os.abort()", "init failed"),
    ],
)
def test_a_broken_mpi_is_reported(tmp_path, monkeypatch, source, problem):
    monkeypatch.setenv("PYTHONPATH", str(fake_mpi4py(tmp_path, source)))
    found = job.find_mpi(may_initialize=True)
    assert found == job.MpiFound("", "", "", problem)


def test_an_mpi_that_hangs_is_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(fake_mpi4py(tmp_path, "import time; time.sleep(100)")))
    monkeypatch.setattr(job, "PROBE_SECONDS", 0.5)
    assert "0.5 s" in job.find_mpi(may_initialize=True).problem


@pytest.mark.parametrize(
    "said, short",
    [
        ("Open MPI v5.0.11, package: Open MPI user@host Distribution, ident: 5.0.11\0", "Open MPI v5.0.11"),
        ("MPICH Version:      5.0.2\nMPICH Release date: Fri Sep 25", "MPICH 5.0.2"),
        ("Intel(R) MPI Library 2021.18 for Linux* OS\n", "Intel(R) MPI Library 2021.18 for Linux* OS"),
    ],
)
def test_mpi_version_is_short(tmp_path, monkeypatch, said, short):
    source = f"def Get_library_version():\n    return {said!r}\n"
    monkeypatch.setenv("PYTHONPATH", str(fake_mpi4py(tmp_path, source)))
    found = job.find_mpi(may_initialize=False)
    assert (found.library, found.mpi4py, found.problem) == (short, "9", "")


def test_hosts_of_one_name_are_told_apart():
    other = replace(MEMBER, machine="n0/other")
    assert job.by_host([MEMBER, other, MEMBER, replace(MEMBER, host="n1", machine="n1/boot")]) == {
        "n0": [0, 2],
        "n0 #2": [1],
        "n1": [3],
    }


@pytest.mark.parametrize("ranks, text", [((3,), "rank 3"), ((0, 1, 2, 5), "ranks 0-2,5")])
def test_ranks_text(ranks, text):
    assert job.ranks_text(ranks) == text


# Libraries


@pytest.mark.parametrize(
    "name, number, text",
    [
        ("NCCL", 22703, "2.27.3"),
        ("RCCL", 22505, "2.25.5"),
        ("CUDA runtime", 12080, "12.8"),
        ("CUDA driver", 13000, "13.0"),
        ("HIP", 60443484, "6.4.43484"),
        ("oneCCL", 20220200, "2022.2.0"),
    ],
)
def test_versions_are_decoded(name, number, text):
    (known,) = (known for known in libraries.LIBRARIES if known.name == name)
    assert known.version_text(number) == text


@pytest.mark.skipif(
    not (shutil.which("cc") or shutil.which("gcc")), reason="no C compiler to make the library under test"
)
@pytest.mark.parametrize(
    "body, text",
    [
        ("int ncclGetVersion(int *v) { *v = 22703; return 0; }", "2.27.3"),
        ("int ncclGetVersion(int *v) { *v = 22703; return 1; }", ""),
        ("int somethingElse(void) { return 0; }", ""),
    ],
)
def test_a_wheel_library_is_found_with_its_version(tmp_path, monkeypatch, request, body, text):
    soname = f"libfake{abs(hash(request.node.nodeid))}.so.2"
    folder = tmp_path / "site-packages/nvidia/nccl/lib"
    folder.mkdir(parents=True)
    (tmp_path / "fake.c").write_text(body)
    compiler = shutil.which("cc") or shutil.which("gcc")
    command = [compiler, "-shared", "-fPIC", f"-Wl,-soname,{soname}", "-o", folder / soname, tmp_path / "fake.c"]
    subprocess.run(command, check=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site-packages"), *sys.path])
    known = libraries.Known("NCCL", (soname,), "ncclGetVersion", (10000, 100, 1))
    library = known.open()
    assert (library.origin, library.path) == ("wheel", str(folder / soname))
    assert known.version(library) == text


# info


def test_info_json_and_text_agree():
    done = hetccl("info", "--json")
    assert done.returncode == 0, done.stderr
    page = json.loads(done.stdout)
    assert [found["name"] for found in page["libraries"]] == [known.name for known in libraries.LIBRARIES]
    assert topology.parse_cpulist(page["cores"]) == os.sched_getaffinity(0)
    text = info.text(page)
    for found in page["libraries"]:
        assert (found["path"] or "not found") in text
        assert bool(found["path"]) != bool(found["tried"])


def test_info_runs_without_mpi(tmp_path):
    broken = fake_mpi4py(tmp_path, "raise RuntimeError('cannot load MPI library')")
    done = hetccl("info", path=[broken])
    assert done.returncode == 0, done.stderr
    assert "not usable: cannot load MPI library" in done.stdout


# doctor


def test_doctor_fails_without_mpi(tmp_path):
    broken = fake_mpi4py(tmp_path, "raise RuntimeError('cannot load MPI library')")
    done = hetccl("doctor", "--json", path=[broken])
    assert done.returncode == 1, done.stderr
    statuses = {check["name"]: check["status"] for check in json.loads(done.stdout)["checks"]}
    assert statuses["MPI"] == "fail"
    assert statuses["shared memory"] == "ok"
    assert "communicator" not in statuses


def test_doctor_reports_a_wrong_variable(monkeypatch):
    monkeypatch.setenv("HETCCL_ISLNAD", "left")
    done = hetccl("doctor", "--json")
    assert done.returncode == 1, done.stderr
    (check,) = (check for check in json.loads(done.stdout)["checks"] if check["name"] == "configuration")
    assert check["status"] == "fail" and "HETCCL_ISLAND" in check["text"]


def test_doctor_passes_on_one_process():
    done = hetccl("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hetccl can run here" in done.stdout


def test_merge_brings_equal_findings_together():
    good, bad, other = Check("a", "ok", "x"), Check("a", "fail", "y", "z"), Check("b", "ok", "x")
    findings = doctor.merge([[good, other], [bad, other], [good, other]])
    assert findings == (
        doctor.Finding(good, (0, 2)),
        doctor.Finding(bad, (1,)),
        doctor.Finding(other, (0, 1, 2)),
    )
    assert doctor.status_of(findings) == 1
    assert doctor.status_of(findings[:1]) == 0
    text = doctor.text(findings, [MEMBER] * 3)
    assert "x (ranks 0,2)" in text and "y (rank 1)" in text and "-> z" in text
    assert "1 problem to solve first" in text


def test_ranks_out_of_reach_fail():
    members = [MEMBER, replace(MEMBER, host="n1", machine="n1/boot")]
    checks = {check.name: check for check in doctor.job_checks(members)}
    assert checks["reach"].status == "fail"
    assert "n0: rank 0" in checks["reach"].text and "n1: rank 1" in checks["reach"].text
    assert "reach" not in {check.name for check in doctor.job_checks([MEMBER, MEMBER])}


def test_a_gpu_is_reported_with_its_libraries(monkeypatch):
    gpu = topology.Device("nvidia", "NVIDIA H200", "0000:18:00.0", "GPU-1")
    monkeypatch.setattr(topology, "devices", lambda settings: (gpu,))
    monkeypatch.setattr(doctor, "LIBRARIES", (libraries.Known("NCCL", ("libnone.so.2",)),))
    checks = {check.name: check for check in doctor.rank_checks(None, "")}
    assert "NVIDIA H200" in checks["devices"].text
    assert (checks["NCCL"].status, "libnone.so.2" in checks["NCCL"].text) == ("warn", True)


@pytest.mark.parametrize(
    "nranks, cores, quota, status", [(2, 2, None, "ok"), (3, 2, None, "warn"), (2, 8, 1.5, "warn")]
)
def test_cores_against_ranks(nranks, cores, quota, status):
    assert host.enough_cores(nranks, frozenset(range(cores)), quota).status == status


@pytest.mark.parametrize("text, quota", [("max 100000", None), ("150000 100000", 1.5), ("", None), (None, None)])
def test_cpu_quota(tmp_path, text, quota):
    if text is not None:
        (tmp_path / "cpu.max").write_text(text)
    assert host.cpu_quota(tmp_path / "cpu.max") == quota


def test_shared_memory_refused(monkeypatch):
    def refuse(*arguments):
        raise PermissionError(1, "Operation not permitted")

    assert host.shared_memory().status == "ok"
    monkeypatch.setattr(os, "memfd_create", refuse)
    assert host.shared_memory().status == "fail"


@pytest.mark.parametrize("scope, words", [("2", "ptrace_scope is 2"), (None, "SYS_PTRACE")])
def test_single_copy_refused(tmp_path, monkeypatch, scope, words):
    if scope:
        (tmp_path / "sys/kernel/yama").mkdir(parents=True)
        (tmp_path / "sys/kernel/yama/ptrace_scope").write_text(scope)
    monkeypatch.setattr(host, "_READER", "import errno, sys; sys.exit(errno.EPERM)")
    check = host.single_copy(tmp_path)
    assert check.status == "warn" and "Operation not permitted" in check.text
    assert words in check.advice


def test_single_copy_that_reads_wrong_bytes_is_not_ok(monkeypatch):
    monkeypatch.setattr(host, "_READER", "import sys; sys.stdout.write('0' * int(sys.argv[3]))")
    assert host.single_copy().status == "warn"


# bench: options


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


# bench: what NumPy expects

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


# bench: the stopwatch, on one rank and a communicator of ours


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


@needs_mpirun
def test_doctor_and_info_print_one_page_for_the_job():
    islands = [{"HETCCL_ISLAND": label} for label in "ABA"]
    for command in ("doctor", "info"):
        done = launch.mpirun(3, COMMAND, command, "--json", per_rank_env=islands, timeout=120, check=False)
        assert done.returncode == 0, done.report()
        assert done.stdout[1:] == ("", "")
        page = json.loads(done.stdout[0])
        assert [(island["label"], island["ranks"]) for island in page["islands"]] == [("A", [0, 2]), ("B", [1])]
        assert len({member["pid"] for member in page["members"]}) == 3


@needs_mpirun
def test_doctor_fails_on_all_ranks_and_names_the_faulty_one():
    faulty = [{}, {"HETCCL_TIMEOUT": "soon"}]
    done = launch.mpirun(2, COMMAND, "doctor", "--json", per_rank_env=faulty, timeout=120, check=False)
    assert done.returncode == 1
    checks = [check for check in json.loads(done.stdout[0])["checks"] if check["name"] == "configuration"]
    assert {check["status"]: check["ranks"] for check in checks} == {"ok": [0], "fail": [1]}
