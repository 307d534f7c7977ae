"""What `make bench` starts and `make report` makes: the jobs' commands, the page from results, the pictures."""

import copy
import importlib.util
import json
import subprocess
import sys

import pytest
from command import ROOT, hetccl

from hetccl.cli import plot

sys.path.insert(0, str(ROOT / "bench"))

import report
import suite

TIMING = {"us": 12.34, "min_us": 10.0, "p95_us": 20.0, "algbw": 1.0, "busbw": 1.5, "wrong": 0, "ratio": None}
HEADER = {
    "date": "2026-01-02",
    "versions": "hetccl 9",
    "mpi": "MPI 8",
    "machine": "processor",
    "cores": 4,
    "load": 0.1,
    "ranks": 3,
    "islands": [[0, 1], [2]],
    "members": ["island A (host): ranks 0-1", "island B (host): rank 2", "host secret: ranks 0-2 on 4 cores"],
    "memory": ["host memory (NumPy)"],
    "paths": ["ranks 0-2 share memory"],
    "limits": {"network interface": 1.25},
    "iters": 7,
    "collective": "allreduce",
    "datatype": "float32",
    "absent": {"torch-gloo": "PyTorch: it is not there"},
    "command": "python -m hetccl bench allreduce",
}


def page():
    rows = []
    for nbytes in (8, 2048, 3 << 20):
        timings = {
            "hetccl": TIMING,
            "mpi4py": {**TIMING, "us": 24.68, "ratio": 0.5},
            "copy": {**TIMING, "us": 1.0, "p95_us": 2.0, "wrong": None},
        }
        rows.append({"nbytes": nbytes, "count": nbytes // 4, "out_place": timings, "in_place": None})
    extra = {"title": "A title", "evidence": "run", "order": 0, "launch": "mpirun -n 3 python"}
    return {**extra, "header": copy.deepcopy(HEADER), "rows": rows}


def test_a_section_says_on_what_it_rests():
    text = report.section("name", page())
    assert text.startswith("## A title (run)\n\n2026-01-02: hetccl 9, MPI 8; processor, 4 cores, load 0.1 before.")
    for part in ("ranks 0-2 share memory", "torch-gloo did not take part: PyTorch: it is not there.", "Medians of 7"):
        assert part in text
    assert "\n    mpirun -n 3 python\n" in text
    assert "](performance_name.svg)" in text
    assert "| size | hetccl | busbw, GB/s | mpi4py | ratio | copy in memory |" in text
    assert "| 3M | 12.3 (10.0-20.0) | 1.500 | 24.7 (10.0-20.0) | 0.50 | 1.0 (10.0-2.0) |" in text
    assert text.endswith("Wrong elements: 0.") and "other work" not in text


def test_a_section_says_that_a_machine_was_busy():
    busy = page()
    busy["header"]["load"] = 4.5
    assert "**The machine had other work (a load of 4.5 on 4 cores)" in report.section("name", busy)


def test_sections_replace_those_before_and_nothing_else():
    text = f"above\n{report.BEGIN}\nold\n{report.END}\nbelow\n"
    made = report.with_sections(text, {"name": page()})
    assert made.startswith(f"above\n{report.BEGIN}\n\n## A title") and made.endswith(f"{report.END}\nbelow\n")
    assert "old" not in made
    assert report.with_sections(made, {"name": page()}) == made


def test_the_page_is_what_the_results_give():
    pages = report.load(ROOT / "bench" / "results")
    text = (ROOT / "docs" / "performance.md").read_text()
    assert pages and report.with_sections(text, pages) == text, "run: make report"
    for name in pages:
        assert (ROOT / "docs" / report.picture_of(name)).exists()


def test_results_name_no_host():
    made = page()
    suite.without_names(made["header"])
    assert "secret" not in json.dumps(made) and "host 0: ranks 0-2 on 4 cores" in made["header"]["members"]


def test_the_command_of_a_job():
    case = suite.Case("title", "allreduce", "AAB", ("-n", "3"), ranks={"B": ("--memory", "hip")})
    assert suite.launch(["mpirun"], "python", case, ["-w", "0"]) == [
        *("mpirun", "-n", "2", "env", "HETCCL_ISLAND=A", "python", "-m", "hetccl", "bench", "allreduce"),
        *("-n", "3", "-w", "0", ":", "-n", "1", "env", "HETCCL_ISLAND=B", "python", "-m", "hetccl", "bench"),
        *("allreduce", "-n", "3", "--memory", "hip", "-w", "0"),
    ]


@pytest.mark.parametrize("suffix, begins", [(".svg", b"<?xml"), (".png", b"\x89PNG"), (".pdf", b"%PDF")])
@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_pictures(tmp_path, suffix, begins):
    plot.draw(page(), tmp_path / f"a{suffix}")
    data = (tmp_path / f"a{suffix}").read_bytes()
    assert data.startswith(begins)
    if suffix == ".svg":
        text = data.decode()
        for part in ("hetccl", "mpi4py", "limit: copies", "network interface: 1.25 GB/s", "size (bytes)", "3M"):
            assert part in text
        plot.draw(page(), tmp_path / "again.svg")
        assert (tmp_path / "again.svg").read_bytes() == data


def test_without_matplotlib_a_picture_is_refused_before_the_run(tmp_path):
    # A package that hides the installed one from find_spec, as far as importing goes.
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util\nreal = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'matplotlib' else real(name, *a)\n"
    )
    done = hetccl("bench", "allreduce", "-e", "8", "--plot", tmp_path / "a.svg", path=[tmp_path])
    assert done.returncode == 2 and done.stdout == ""
    assert "matplotlib is not installed" in done.stderr and "hetccl[bench]" in done.stderr


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_the_command_for_newcomers(tmp_path):
    if suite.own_mpi() is None:
        pytest.skip("no mpirun beside this interpreter or in PATH")
    command = [sys.executable, ROOT / "bench/suite.py", "--into", tmp_path, "--", "-e", "1K", "-n", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# island A (host): rank 0" in done.stdout and "# island B (host): rank 1" in done.stdout
    assert "# wrong elements: 0 OK" in done.stdout
    made = json.loads((tmp_path / "islands-shm.json").read_text())
    assert made["evidence"] == "run" and "HETCCL_ISLAND=B" in made["launch"]
    assert (tmp_path / "islands-shm.svg").read_text().startswith("<?xml")
    assert "Two islands of one host" in report.section("islands-shm", made)
