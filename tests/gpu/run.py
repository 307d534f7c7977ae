"""Everything that needs an NVIDIA GPU, as one command: tests, benchmark, memory checker; a short table and JSON.

usage: python tests/gpu/run.py [--json build/gpu.json] [--only tests bench memcheck] [--quick] [-- pytest's arguments]

Run by `make test-gpu`. The exit status is 0 only if all tests passed, the benchmark ran and the checker found nothing.
"""

import argparse
import collections
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(path) for path in (ROOT, HERE.parent, HERE.parent / "mpi", HERE)]

import device_jobs  # noqa: E402 - found by the line above
from device_arrays import device_count  # noqa: E402

import launch  # noqa: E402

PARTS = ("tests", "bench", "memcheck")
# compute-sanitizer slows everything down many times: one op of one dtype, all collectives.
CHECKED = "-float32-SUM-7-"
CHECKER_SECONDS = 300
CHECKER_FAULT = 86


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "gpu.json", metavar="FILE")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--quick", action="store_true", help="a shorter benchmark")
    parser.add_argument("pytest", nargs="*", help="pytest's own arguments, after --")
    args = parser.parse_args()
    devices = device_count()
    if not devices:
        print("hetccl: this machine has no NVIDIA GPU: nothing was tested", file=sys.stderr)
        return 1
    page = {"devices": devices}
    failed = []
    args.json.parent.mkdir(parents=True, exist_ok=True)
    for part in args.only:
        begin = time.monotonic()
        page[part] = globals()[f"run_{part}"](args)
        page[part]["seconds"] = round(time.monotonic() - begin, 1)
        print(f"{part}: {page[part]['summary']} ({page[part]['seconds']} s)", flush=True)
        if not page[part]["passed"]:
            failed.append(part)
        # After each part: a run that is stopped for its time leaves what it has.
        args.json.write_text(json.dumps(page, indent=1))
    print(f"hetccl: {'failed: ' + ', '.join(failed) if failed else 'all passed'}; {args.json}")
    return int(bool(failed))


def run_tests(args):
    """Run tests/gpu; the table has a line for each kind of test."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", str(HERE), "-q", f"--junitxml={report}", *args.pytest]
        # What the fakes can show, `make test` has shown.
        command += ["-k", "not fake"] if "-k" not in args.pytest else []
        code = subprocess.run(command, cwd=ROOT).returncode
        if not report.exists():
            return {"passed": False, "summary": f"pytest ended with {code} and no report"}
        cases = ElementTree.parse(report).iter("testcase")
        counts = collections.defaultdict(lambda: {"passed": 0, "failed": 0, "skipped": 0})
        faults = {}
        for case in cases:
            outcome = outcome_of(case)
            counts[kind_of(case.get("name"))][outcome] += 1
            if outcome == "failed":
                faults[case.get("name")] = "".join(case.itertext())[-2000:]
    total = {outcome: sum(each[outcome] for each in counts.values()) for outcome in ("passed", "failed", "skipped")}
    for kind, each in sorted(counts.items()):
        print(f"  {kind:40} {each['passed']:6} passed {each['failed']:4} failed {each['skipped']:4} skipped")
    summary = ", ".join(f"{number} {outcome}" for outcome, number in total.items())
    passed = code == 0 and total["passed"] > 0
    return {"passed": passed, "summary": summary, "counts": dict(counts), "faults": faults}


def outcome_of(case):
    tags = {child.tag for child in case}
    return "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"


def kind_of(name):
    """test_equals_numpy[cupy-2-Allreduce-int32-SUM] -> "test_equals_numpy cupy-2"."""
    function, _, parameters = name.rstrip("]").partition("[")
    return f"{function} {'-'.join(parameters.split('-')[:2])}".strip()


def run_bench(args):
    """Run bench/gpu.py; its tables go to stdout."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "bench.json"
        command = [sys.executable, str(ROOT / "bench" / "gpu.py"), "--json", str(results)]
        code = subprocess.run([*command, *(["--quick"] if args.quick else [])], cwd=ROOT).returncode
        pages = json.loads(results.read_text()) if results.exists() else []
    return {"passed": code == 0, "summary": f"{len(pages)} jobs", "pages": pages}


def run_memcheck(args):
    """Run a few cases of the matrix under compute-sanitizer, on as many ranks as there are GPUs (two at most)."""
    checker = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if checker is None:
        return {"passed": True, "summary": "skipped: compute-sanitizer is not installed"}
    ranks = min(2, device_count())
    launcher = launch.launchers()["default"]
    environment = {**os.environ, **launcher.environment(), **device_jobs.environment("cupy")}
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(str(launcher.path), *launcher.options(ranks, False), "-n", str(ranks)),
            *(checker, "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", str(CHECKER_FAULT)),
            *(sys.executable, str(HERE / "prog_matrix.py"), folder, "A" * ranks, "cupy", "wide", CHECKED),
        ]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=CHECKER_SECONDS)
        except subprocess.TimeoutExpired as error:
            summary = f"not done after {CHECKER_SECONDS} s"
            return {"passed": False, "summary": summary, "text": str(error.stdout)[-4000:]}
        lines = device_jobs.jobs.read_reports(folder, ranks)
    text = (done.stdout + done.stderr)[-4000:]
    ended, wrong = sum("end" in line for line in lines), [line for line in lines if line.get("problem")]
    cases = sum("case" in line for line in lines)
    passed = done.returncode == 0 and ended == ranks and not wrong and cases > 0
    verdict = "no errors" if passed else f"exit status {done.returncode}, {len(wrong)} wrong cases"
    summary = f"{verdict} in {cases} cases on {ranks} ranks"
    return {"passed": passed, "summary": summary, **({} if passed else {"text": text})}


if __name__ == "__main__":
    sys.exit(main())
