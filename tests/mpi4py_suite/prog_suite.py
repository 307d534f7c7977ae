"""A job's program: runs mpi4py's test files on hetccl's communicators, or as they are, and reports each test.

usage: prog_suite.py <report folder> <tests folder> <hetccl|mpi> <last test done or ""> <file>...

The files are not changed: they import a module `MPI` that is mpi4py's, except that COMM_WORLD and COMM_SELF are
hetccl.Comm, and the classes of requests and messages hetccl's. After a test that failed on any rank the communicators
are made anew, so that what it left behind cannot fail the next one. Ranks agree between the tests through MPI.
"""

import json
import os
import sys
import time
import traceback
import types
import unittest
from pathlib import Path

import expected
import mpi4py
from mpi4py import MPI

# Between two looks at MPI; the ranks share cores.
PAUSE_S = 2e-4


class Subject:
    """What is tested: makes the communicators, and the module MPI that a file sees."""

    def __init__(self, name):
        self.modules = []
        self.hetccl = None
        self.world, self.self = MPI.COMM_WORLD, MPI.COMM_SELF
        if name == "hetccl":
            import hetccl

            self.hetccl = hetccl
            self.world, self.self = hetccl.Comm(self.world), hetccl.Comm(self.self)

    def enter(self, own):
        """From now on `from mpi4py import MPI` gives a module of ours; own: with hetccl's requests and messages."""
        module = types.ModuleType("mpi4py.MPI")
        module.__dict__.update(vars(MPI))
        module.COMM_WORLD, module.COMM_SELF = self.world, self.self
        if self.hetccl and own:
            for name in ("Request", "Prequest", "Message"):
                setattr(module, name, getattr(self.hetccl, name))
            module.REQUEST_NULL = self.hetccl.Request()
        self.modules.append(module)
        mpi4py.MPI = sys.modules["mpi4py.MPI"] = module

    def load(self, files):
        """Import test files and return their tests, in unittest's order."""
        self.enter(own=False)
        import mpiunittest

        adapt_arrays()
        skip_mpi, tests = mpiunittest.skipMPI, []
        for file in files:
            own = expected.FILES[file].own
            self.enter(own)
            # What an MPI cannot do is no excuse for us.
            mpiunittest.skipMPI = skip_nothing if self.hetccl and own else skip_mpi
            tests += flatten(unittest.defaultTestLoader.loadTestsFromName(file))
        return tests

    def renew(self, tests):
        """New communicators in place of those that a test may have left unusable."""
        stale = {id(self.world): "world", id(self.self): "self"}
        self.world, self.self = MPI.COMM_WORLD.Dup(), MPI.COMM_SELF.Dup()
        if self.hetccl:
            self.world, self.self = self.hetccl.Comm(self.world), self.hetccl.Comm(self.self)
        for module in self.modules:
            module.COMM_WORLD, module.COMM_SELF = self.world, self.self
        for cls in {base for test in tests for base in type(test).__mro__}:
            name = stale.get(id(cls.__dict__.get("COMM")))
            if name:
                cls.COMM = getattr(self, name)


def adapt_arrays():
    """Take out of the files' array classes what no library but mpi4py can work with."""
    import arrayimpl
    import dlpackimpl

    # They claim to lie on a GPU, but lie in host memory.
    arrayimpl.ArrayBackends[:] = [cls for cls in arrayimpl.ArrayBackends if not hasattr(cls, "set_interface")]
    # Their DLPack tensors end with the capsule, not, as DLPack has it, when the consumer calls the deleter.
    export, exported = dlpackimpl.make_py_capsule, []

    def export_for_good(managed, owned=True):
        if owned:
            exported.append(managed)
        return export(managed, owned)

    dlpackimpl.make_py_capsule = export_for_good


def skip_nothing(predicate, *conditions, reason=""):
    return lambda test: test


def flatten(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flatten(test)
        else:
            yield test


class Verdict(unittest.TestResult):
    """The outcome of one test: "passed", "skipped" or "failed", and why."""

    def __init__(self):
        super().__init__()
        self.outcome, self.why = "passed", ""

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        if self.outcome == "passed":
            self.outcome, self.why = "skipped", reason

    def addFailure(self, test, err):
        self._fail(err)

    def addError(self, test, err):
        self._fail(err)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self._fail(err, subtest)

    def _fail(self, err, subtest=None):
        if self.outcome != "failed":
            where = f"{subtest}\n" if subtest else ""
            self.outcome, self.why = "failed", where + "".join(traceback.format_exception(*err))


class Agreement:
    """Ranks meet between tests, without burning the cores that slower ranks need."""

    def __init__(self):
        self.comm = MPI.COMM_WORLD.Dup()

    def any(self, flag):
        """True if the flag is set on any rank; returns when all ranks have come."""
        mine, total = bytearray([flag]), bytearray(1)
        request = self.comm.Iallreduce([mine, MPI.BYTE], [total, MPI.BYTE], MPI.BOR)
        while not request.Test():
            time.sleep(PAUSE_S)
        return bool(total[0])


def run(test, entry):
    """Run one test: (outcome, why, seconds). entry: its Difference or None."""
    if entry is not None and entry.says is None:
        return "skipped", entry.reason, 0.0
    verdict, start = Verdict(), time.monotonic()
    unittest.TestSuite([test]).run(verdict)
    return verdict.outcome, verdict.why, round(time.monotonic() - start, 3)


def main(report_folder, tests_folder, name, last_done, *files):
    sys.path.insert(0, tests_folder)
    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    subject, agreement, any_failed = Subject(name), Agreement(), False
    tests = subject.load(files)
    names = [test.id() for test in tests]
    with open(Path(report_folder, f"{rank}.jsonl"), "w", buffering=1) as report:
        report.write(json.dumps({"rank": rank, "names": names}) + "\n")
        for index in range(names.index(last_done) + 1 if last_done else 0, len(names)):
            outcome, why, seconds = run(tests[index], expected.difference(names[index], size))
            line = {"rank": rank, "name": names[index], "outcome": outcome, "why": why, "seconds": seconds}
            report.write(json.dumps(line) + "\n")
            if agreement.any(outcome == "failed"):
                any_failed = True
                subject.renew(tests)
    if any_failed:  # MPI's finalization would wait for what a failed test has left open
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
