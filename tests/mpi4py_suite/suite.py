"""pytest's side: runs mpi4py's test files in jobs, on hetccl or as they are, and compares what passed with expected.py.

A job runs all files that are run with its number of ranks; it is started at the first question about one of them.
"""

import collections
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import launch
from mpi import jobs
from mpi4py_suite import expected

HERE = Path(__file__).resolve().parent
# Several times what a job takes on two busy cores, and its longest test.
JOB_S, SILENCE_S = 1200, 200
LOOK_S = 0.1
# Jobs for one number of ranks: a test that hangs or crashes costs one, and the next goes on behind it.
MOST_JOBS = 4


class Result(NamedTuple):
    """What became of a test. outcome: "passed", "skipped", "failed" or "unfinished"; why: of the rank that says so."""

    outcome: str
    why: str


def of_ranks(lines):
    """One Result of the lines that the ranks wrote about a test: the worst one counts."""
    worst = max(lines, key=lambda line: ("passed", "skipped", "failed").index(line["outcome"]))
    why = f"rank {worst['rank']}: {worst['why']}" if worst["outcome"] == "failed" else worst["why"]
    return Result(worst["outcome"], why)


def run(tests_folder, subject, files, ranks, mpi=None, silence_s=SILENCE_S):
    """Run test files in jobs of `ranks` ranks.

    subject   : "hetccl", or "mpi" for mpi4py's own communicators
    silence_s : how long no test may end, once the first has begun
    Returns : dict, the tests' names in their order -> Result
    """
    results, last_done = {}, ""
    for _ in range(MOST_JOBS):
        names, lines, text = _job(tests_folder, subject, files, ranks, last_done, mpi, silence_s)
        if not names:
            raise AssertionError(f"the job ended before its first test\n{text}")
        for name in names[names.index(last_done) + 1 if last_done else 0 :]:
            last_done, complete = name, len(lines[name]) == ranks
            results[name] = of_ranks(lines[name]) if complete else Result("unfinished", text)
            if not complete:
                break
        if len(results) == len(names):
            break
    return {name: results.get(name, Result("unfinished", "too many tests ended their jobs")) for name in names}


def _job(tests_folder, subject, files, ranks, last_done, mpi, silence_s):
    """(names of all tests, {name: lines of the ranks that finished it}, all output)"""
    with tempfile.TemporaryDirectory() as folder:
        arguments = (folder, tests_folder, subject, last_done, *files)
        # What claims to lie on a GPU lies in host memory: no driver shall get it.
        env = {"HETCCL_TIMEOUT": "60", "HETCCL_CUDA_LIB": expected.NO_DRIVER}
        with launch.start(ranks, HERE / "prog_suite.py", *arguments, env=env, mpi=mpi) as job:
            text = _watched(job, folder, silence_s)
        names, lines = [], collections.defaultdict(list)
        for line in jobs.read_reports(folder, ranks):
            if "names" in line:
                names = line["names"]
            else:
                lines[line["name"]].append(line)
    return names, lines, text


def _watched(job, folder, silence_s):
    """All that a job has printed, when it has ended, or its time is over, or that of the test it is at."""
    begin = heard = time.monotonic()
    nbytes = 0
    while not job.ends_within(LOOK_S):
        now, written = time.monotonic(), sum(path.stat().st_size for path in Path(folder).iterdir())
        if written > nbytes:
            heard, nbytes = now, written
        # Before the names of its tests have come, a job starts up.
        if now - begin > JOB_S or nbytes and now - heard > silence_s:
            break
    try:
        return job.wait(0).report()
    except launch.JobTimeout as error:
        return str(error)


def foretold(outcome, why, entry):
    return outcome == "failed" and entry.says in why


def faults(results, ranks):
    """What is not as expected.py says: [text]. What mpi4py's own conditions skip is neither here nor there."""
    wrong = []
    for name, (outcome, why) in results.items():
        entry = expected.difference(name, ranks)
        if entry is None and outcome not in ("passed", "skipped"):
            wrong.append(f"{name} {outcome}\n{why}")
        elif (
            entry is not None and entry.says is not None and outcome != "skipped" and not foretold(outcome, why, entry)
        ):
            wrong.append(f"{name} {outcome}, but expected.py says that it fails with {entry.says!r}\n{why}")
    return wrong


class Counts(NamedTuple):
    """A row of the table in docs/mpi4py-suite.md. skipped: by the file itself, for want of a GPU's library or an MPI's
    function; none is counted twice."""

    tests: int
    passed: int
    differ: int
    not_applicable: int
    skipped: int


def count(results, ranks):
    """The Counts of one file's results."""
    entries = [expected.difference(name, ranks) for name in results]
    outcomes = collections.Counter(got.outcome for got, entry in zip(results.values(), entries) if entry is None)
    applies = collections.Counter(entry.applies for entry in entries if entry is not None)
    return Counts(len(results), outcomes["passed"], applies[True], applies[False], outcomes["skipped"])


class Runs:
    """The jobs of one pytest session, and what was found: {(mpi, ranks): {file: {test: Result}}}.

    chosen : {(mpi, ranks): files that pytest selected}, which go into one job
    """

    def __init__(self, tests_folder, chosen):
        self.tests_folder = tests_folder
        self.chosen = chosen
        self.results = {}

    def of(self, mpi, ranks, file):
        """{test: Result} of a file."""
        if file not in self.results.get((mpi, ranks), {}):
            files = list(dict.fromkeys([file, *self.chosen[mpi, ranks]]))
            found = run(self.tests_folder, "hetccl", files, ranks, mpi)
            by_file = self.results[mpi, ranks] = {name: {} for name in files}
            for name, result in found.items():
                by_file[name.split(".")[0]][name] = result
        return self.results[mpi, ranks][file]
