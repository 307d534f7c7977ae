"""For the tests: start the programs of this folder under mpirun, once per program and layout, and read their reports.

A layout is a string of one letter per rank, the rank's island: "AAB" is islands of 2 and 1.
"""

import ast
import collections
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import launch

HERE = Path(__file__).resolve().parent


def environment(layout):
    """Each rank's variables; none when all ranks are in one island, since that is what a user without labels has."""
    labels = [{"HETCCL_ISLAND": letter} for letter in layout]
    return None if len(set(layout)) == 1 else labels


def check_names(program):
    """The checks of a program, in the order of its text. It is not imported: that would start MPI in this process."""
    tree = ast.parse(Path(HERE, program).read_text())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")]


def read_reports(folder, ranks):
    """All lines of all ranks; a line cut by a kill is left out."""
    lines = []
    for rank in range(ranks):
        path = Path(folder, f"{rank}.jsonl")
        for text in path.read_text().splitlines() if path.exists() else []:
            try:
                lines.append(json.loads(text))
            except json.JSONDecodeError:
                continue
    return lines


class Outcome:
    """What a job left: `lines` of its report, `text` of its output, `job` (None when it ran without mpirun)."""

    def __init__(self, lines, text, job=None, timed_out=False):
        self.lines, self.text, self.job, self.timed_out = lines, text, job, timed_out

    def by_rank(self, field):
        """{rank: the last line that has `field`}"""
        return {line["rank"]: line for line in self.lines if field in line}

    def by_case(self, way=None):
        """{case: {rank: problem or None}}, of a program that runs a matrix. way: of only this one of its ways."""
        found = collections.defaultdict(dict)
        for line in self.lines:
            if "case" in line and way in (None, line.get("way")):
                found[line["case"]][line["rank"]] = line["problem"]
        return found


def run(program, layout, *args, timeout=300, per_rank_env=None, **options):
    """Run a program of this folder; its arguments are <report folder> <layout> *args. A job that had to be killed or
    failed gives its lines all the same: what they lack is for the test to find. per_rank_env: instead of the islands
    of the layout."""
    timed_out = False
    with tempfile.TemporaryDirectory() as folder:
        try:
            job = launch.mpirun(
                len(layout),
                Path(HERE, program),
                folder,
                layout,
                *args,
                timeout=timeout,
                check=False,
                per_rank_env=per_rank_env or environment(layout),
                **options,
            )
        except launch.JobTimeout as error:
            job, timed_out = error.job, True
        return Outcome(read_reports(folder, len(layout)), job.report(), job, timed_out)


def exact(layout, scope, timeout=300, **options):
    """Run the exactness matrix: (Outcome, {case: {rank: problem or None}})."""
    outcome = run("prog_exact.py", layout, scope, timeout=timeout, **options)
    return outcome, outcome.by_case()


def faults(by_case, wanted, ranks):
    """What is wrong with the cases that were wanted; one that did not run on every rank is a fault."""
    wrong = []
    for case in wanted:
        ran = by_case.get(case, {})
        wrong += [f"{case}, rank {rank}: {problem}" for rank, problem in sorted(ran.items()) if problem]
        missing = sorted(set(range(ranks)) - set(ran))
        if missing:
            wrong.append(f"{case}: not run on ranks {missing}")
    return wrong


def run_alone(program, *args, timeout=300, env=None):
    """Run a program of this folder in one process without mpirun."""
    with tempfile.TemporaryDirectory() as folder:
        environ = launch.inherited()
        environ.update(PYTHONPATH=os.pathsep.join([str(launch.ROOT), environ.get("PYTHONPATH", "")]), **(env or {}))
        done = subprocess.run(
            [sys.executable, HERE / program, folder, "A", *args],
            env=environ,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        return Outcome(read_reports(folder, 1), f"returncode {done.returncode}\n{done.stdout}{done.stderr}")


class Spec(NamedTuple):
    """A job to be run: `args` are the program's own, `env` pairs of all ranks' variables."""

    program: str
    layout: str
    args: tuple = ()
    env: tuple = ()
    keep_alive: bool = False
    timeout: int = 240

    def __str__(self):
        return "-".join([*self.args, self.layout])

    def run(self):
        options = {"env": dict(self.env), "timeout": self.timeout, "keep_alive": self.keep_alive}
        return run(self.program, self.layout, *self.args, **options)


class Pool:
    """Runs jobs that mostly wait, a few at a time, ahead of the tests that look at them."""

    # More would slow down what the tests measure on a machine of two cores.
    AT_ONCE = 3

    def __init__(self, specs):
        self.executor = ThreadPoolExecutor(self.AT_ONCE)
        self.futures = {spec: self.executor.submit(spec.run) for spec in dict.fromkeys(specs)}

    def __getitem__(self, spec):
        return self.futures[spec].result()

    def close(self):
        """Start no more; those that run end by their own time-outs."""
        self.executor.shutdown(cancel_futures=True)


class CheckRuns:
    """Runs a program's checks for a layout at the first question about one: all chosen ones in one job, and those after
    a check that crashed in another."""

    def __init__(self, chosen):
        # {(program, layout): [check, ...]}: those that pytest selected, so that one alone is quick to run.
        self.chosen = chosen
        self.found = {}

    @classmethod
    def of(cls, request, test, program=None):
        """For the cases of a test that pytest selected. program: what it runs, where that is no parameter of it."""
        chosen = collections.defaultdict(list)
        for item in request.session.items:
            if item.function is test:
                params = item.callspec.params
                chosen[params.get("program", program), params["layout"]].append(params["name"])
        return cls(chosen)

    def verify(self, program, layout, name):
        """AssertionError unless every rank ran the check and found nothing."""
        if (program, layout, name) not in self.found:
            self._run(program, layout, self.chosen[program, layout])
        ran, text = self.found[program, layout, name]
        problems = [f"rank {rank}: {problem}" for rank, problem in sorted(ran.items()) if problem]
        assert not problems, "\n".join(problems)
        missing = set(range(self.ranks(layout))) - set(ran)
        assert not missing, f"ranks {sorted(missing)} did not finish {name}\n{text}"

    def _run(self, program, layout, names):
        while names:
            outcome = self.start(program, layout, names)
            for name in names:
                ran = {line["rank"]: line["problem"] for line in outcome.lines if line["name"] == name}
                self.found[program, layout, name] = (ran, outcome.text)
            ended = [len(self.found[program, layout, name][0]) == self.ranks(layout) for name in names]
            # What did not end is at fault; a job that was stopped for its time would only be stopped again.
            names = names[ended.index(False) + 1 :] if False in ended and not outcome.timed_out else []

    def start(self, program, layout, names):
        """Run one job: its Outcome."""
        env = {"HETCCL_TIMEOUT": "30"}
        if layout == ALONE:
            return run_alone(program, *names, env=env)
        return run(program, layout, *names, env=env, timeout=400)

    def ranks(self, layout):
        return 1 if layout == ALONE else len(layout)


# The layout of one process that no mpirun started.
ALONE = "alone"
