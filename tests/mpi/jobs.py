"""For the tests: start the programs of this folder under mpirun, once per program and layout, and read their reports.

A layout is a string of one letter per rank, the rank's island: "AAB" is islands of 2 and 1.
"""

import ast
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

    def __init__(self, lines, text, job=None):
        self.lines, self.text, self.job = lines, text, job

    def by_rank(self, field):
        """{rank: the last line that has `field`}"""
        return {line["rank"]: line for line in self.lines if field in line}


def run(program, layout, *args, timeout=120, **options):
    """Run a program of this folder; its arguments are <report folder> <layout> *args. A job that had to be killed or
    failed gives its lines all the same: what they lack is for the test to find."""
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
                per_rank_env=environment(layout),
                **options,
            )
        except launch.JobTimeout as error:
            job = error.job
        return Outcome(read_reports(folder, len(layout)), job.report(), job)


def run_alone(program, *args, timeout=120, env=None):
    """Run a program of this folder in one process without mpirun."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {name: value for name, value in os.environ.items() if not launch.FOREIGN.match(name)}
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
    timeout: int = 60

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
    """Runs a program's checks for a layout at the first question about one, all chosen ones in one job."""

    def __init__(self, chosen):
        # {(program, layout): [check, ...]}: those that pytest selected, so that one alone is quick to run.
        self.chosen = chosen
        self.outcomes = {}

    def verify(self, program, layout, name):
        """AssertionError unless every rank ran the check and found nothing."""
        key = (program, layout)
        if key not in self.outcomes:
            names, options = self.chosen[key], {"env": {"HETCCL_TIMEOUT": "30"}, "timeout": 240}
            run_it = run_alone if layout == ALONE else run
            layouts = [] if layout == ALONE else [layout]
            self.outcomes[key] = run_it(program, *layouts, *names, **options)
        outcome = self.outcomes[key]
        ran = {line["rank"]: line["problem"] for line in outcome.lines if line["name"] == name}
        problems = [f"rank {rank}: {problem}" for rank, problem in sorted(ran.items()) if problem]
        assert not problems, "\n".join(problems)
        missing = set(range(1 if layout == ALONE else len(layout))) - set(ran)
        assert not missing, f"ranks {sorted(missing)} did not finish {name}\n{outcome.text}"


# The layout of one process that no mpirun started.
ALONE = "alone"
