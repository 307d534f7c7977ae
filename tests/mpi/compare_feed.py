"""For the tests: a job of ranks that takes one case after another, and is started anew when a case broke it."""

import collections
import contextlib
import json
import selectors
import socket
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

import launch
from mpi import compare_case
from mpi.jobs import HERE, environment

# What a wait of hetccl may last, what a case may, and how long the other ranks have when one has met a fault.
TIMEOUT_S, CASE_S, REST_S = 20, 90, 5
START_S = 60
# Open MPI's simple algorithms are the reference for several ranks (one rank they do not serve). In its others Gather
# goes wrong where ranks lay out what they send in different ways.
REFERENCE = {"OMPI_MCA_coll": "basic,libnbc"}
# The answer of a rank that is gone.
ENDED = {"problem": "the process ended", "usable": False}


def label(case):
    """What a case is counted as."""
    if isinstance(case, compare_case.Collective):
        return case.call
    return getattr(case, "call", type(case).__name__)


class Feed:
    """One layout's job; a context manager.

    layout  : one letter per rank, its island
    subject : "hetccl", "mpi4py" or "faulty": see prog_compare      env, mpi : as for launch.start
    counts  : Counter of the cases by call
    """

    def __init__(self, layout, subject="hetccl", env=None, mpi=None):
        self.layout, self.subject, self.mpi = layout, subject, mpi
        self.env = {**(REFERENCE if len(layout) > 1 else {}), "HETCCL_TIMEOUT": str(TIMEOUT_S), **(env or {})}
        self.counts = collections.Counter()
        self.resources = contextlib.ExitStack()
        self.job, self.ranks = None, {}  # rank -> (connection, its lines)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.stop()

    def check(self, case):
        """AssertionError unless the case does the same on all ranks."""
        self.counts[label(case)] += 1
        text = compare_case.dump(case)
        problems = self._run(text)
        assert not problems, "\n".join([f"layout {self.layout}: {text}", *problems])

    def stop(self):
        """Let the ranks end by themselves, and see that they do."""
        job, self.job = self.job, None
        if job is None:
            return
        try:
            self.resources.pop_all().close()
            job.wait(START_S)
            job.check()
        finally:
            job.kill()

    def _run(self, text):
        """What is wrong with a case, by rank."""
        if self.job is None:
            self._start()
        for connection, _ in self.ranks.values():
            connection.sendall(text.encode() + b"\n")
        answers, end = {}, time.monotonic() + CASE_S
        while len(answers) < len(self.ranks) and time.monotonic() < end:
            answers.update(self._read(end, set(self.ranks) - set(answers)))
            if any(answers.values()):
                end = min(end, time.monotonic() + REST_S)
        problems = [f"rank {rank}: {found['problem']}" for rank, found in sorted(answers.items()) if found]
        missing = sorted(set(self.ranks) - set(answers))
        verdicts = {found.get("usable", True) for found in answers.values()}
        if missing:
            problems.append(f"no answer from ranks {missing}")
        if missing or not (verdicts == {True} or verdicts == {"all"}):
            output = self._abort()
            problems += [output] if len(missing) == len(self.ranks) or ENDED in answers.values() else []
        return problems

    def _read(self, end, ranks):
        """Answers that have come, waiting for the first; a rank that is gone gives none."""
        with selectors.DefaultSelector() as selector:
            for rank in ranks:
                selector.register(self.ranks[rank][0], selectors.EVENT_READ, rank)
            ready = selector.select(max(end - time.monotonic(), 0))
        found = {}
        for key, _ in ready:
            line = self.ranks[key.data][1].readline()
            found[key.data] = json.loads(line) if line else ENDED
        return found

    def _start(self):
        folder = self.resources.enter_context(tempfile.TemporaryDirectory())
        server = self.resources.enter_context(socket.socket(socket.AF_UNIX))
        path = Path(folder, "cases")
        server.bind(str(path))
        server.listen(len(self.layout))
        server.settimeout(START_S)
        arguments = (folder, self.layout, path, self.subject)
        options = {"per_rank_env": environment(self.layout), "env": self.env, "mpi": self.mpi}
        self.job = launch.start(len(self.layout), HERE / "prog_compare.py", *arguments, **options)
        self.ranks = {}
        try:
            for _ in self.layout:
                connection = self.resources.enter_context(server.accept()[0])
                connection.settimeout(None)
                lines = self.resources.enter_context(connection.makefile("r"))
                self.ranks[int(lines.readline())] = (connection, lines)
        except TimeoutError:
            raise AssertionError(f"the ranks do not start\n{self._abort()}") from None

    def _abort(self):
        """Kill the job; return what it printed, tracebacks included."""
        job, self.job = self.job, None
        try:
            job.wait(0)
        except launch.JobTimeout:
            pass
        self.resources.pop_all().close()
        return job.report()


class Feeds:
    """Feeds by layout, or by (layout, subject), started when first asked for."""

    def __init__(self, **options):
        self.options, self.feeds = options, {}

    def __getitem__(self, key):
        if key not in self.feeds:
            self.feeds[key] = Feed(*([key] if isinstance(key, str) else key), **self.options)
        return self.feeds[key]

    def stop(self):
        for feed in self.feeds.values():
            feed.stop()

    def summary(self):
        """How many cases ran against hetccl, by call."""
        counts = sum((feed.counts for feed in self.feeds.values() if feed.subject == "hetccl"), collections.Counter())
        each = ", ".join(f"{name} {counts[name]}" for name in sorted(counts))
        return f"compared with mpi4py: {counts.total()} cases ({each})"


def compare(feed, cases, number, first=0, phases=(Phase.generate, Phase.shrink)):
    """Run `number` drawn cases; AssertionError with the smallest that hypothesis finds."""

    @settings(
        max_examples=number,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=phases,
        print_blob=False,
    )
    @seed(first)
    @given(cases)
    def run(case):
        feed.check(case)

    run()
