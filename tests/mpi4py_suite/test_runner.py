"""The runner on test files of our own: what fails on one rank, ends the job or hangs is found, and the rest runs."""

import pytest

import launch
from mpi4py_suite import expected, suite

ARRAYIMPL = "ArrayBackends = []"
DLPACKIMPL = "make_py_capsule = None"
MPIUNITTEST = """
from unittest import TestCase, main
skipMPI = None
"""
TESTS = """
import os, time
import mpiunittest as unittest
from mpi4py import MPI

class TestRequest(unittest.TestCase):
    COMM = MPI.COMM_WORLD
    def testAPasses(self):
        self.assertEqual(self.COMM.allreduce(1), 2)
    def testBFailsOnOneRank(self):
        TestRequest.before = self.COMM
        self.assertEqual(self.COMM.rank, 0)
    def testCHasNewCommunicator(self):
        self.assertNotEqual(self.COMM, self.before)
        self.assertEqual(self.COMM, MPI.COMM_WORLD)
    def testDFailsInPart(self):
        with self.subTest(part=1):
            self.fail("in part")
    def testEIsSkipped(self):
        self.skipTest("no need")
    def testFEndsTheJob(self):
        if self.COMM.rank == 1:
            os._exit(3)
        time.sleep(60)
    def testGPasses(self):
        self.assertEqual(self.COMM.allreduce(1), 2)
    def testHHangs(self):
        time.sleep(60)
"""
OUTCOMES = {
    "testAPasses": "passed",
    "testBFailsOnOneRank": "failed",
    "testCHasNewCommunicator": "passed",
    "testDFailsInPart": "failed",
    "testEIsSkipped": "skipped",
    "testFEndsTheJob": "unfinished",
    "testGPasses": "passed",
    "testHHangs": "unfinished",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tests")
    files = {"arrayimpl": ARRAYIMPL, "dlpackimpl": DLPACKIMPL, "mpiunittest": MPIUNITTEST, "test_request": TESTS}
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    found = suite.run(folder, "mpi", ["test_request"], 2, silence_s=8)
    return {name.rpartition(".")[2]: result for name, result in found.items()}


@pytest.mark.parametrize("name", OUTCOMES)
def test_outcome(results, name):
    assert results[name].outcome == OUTCOMES[name]


def test_all_tests_in_order(results):
    assert list(results) == list(OUTCOMES)


def test_the_failing_rank_says_why(results):
    why = results["testBFailsOnOneRank"].why
    assert why.startswith("rank 1: ") and "AssertionError: 1 != 0" in why


def test_a_failing_part_is_named(results):
    assert "part=1" in results["testDFailsInPart"].why


APPLIES = expected.Difference("request.*.testDFailsInPart", True, "for a reason", "as foretold")
SPARED = expected.Difference("request.*.testDFailsInPart", True, "for a reason", "as foretold", ranks=(1,))
NOT_RUN = expected.Difference("request.*.testDFailsInPart", True, "for a reason", None)


@pytest.mark.parametrize(("outcome", "why", "entry", "wrong"), [
    ("passed", "", None, False),
    ("skipped", "no GPU", None, False),
    ("failed", "1 != 2", None, True),
    ("unfinished", "", None, True),
    ("failed", "Error: as foretold", APPLIES, False),
    ("failed", "1 != 2", APPLIES, True),
    ("passed", "", APPLIES, True),
    ("skipped", "no GPU", APPLIES, False),
    ("unfinished", "as foretold", APPLIES, True),
    ("failed", "Error: as foretold", SPARED, True),
    ("skipped", "for a reason", NOT_RUN, False),
])  # fmt: skip
def test_faults(monkeypatch, outcome, why, entry, wrong):
    monkeypatch.setattr(expected, "DIFFERENCES", (entry,) if entry else ())
    results = {"test_request.TestRequest.testDFailsInPart": suite.Result(outcome, why)}
    assert bool(suite.faults(results, 2)) is wrong


REASONS = {*expected.NOT_RUN.values(), *(entry.reason for entry in expected.DIFFERENCES)}


@pytest.mark.parametrize("reason", sorted(REASONS))
def test_reason_is_documented(reason):
    assert f"{reason} |" in (launch.ROOT / "docs" / "mpi4py-suite.md").read_text()


def test_each_difference_is_of_a_file_that_is_run():
    files = {f"test_{entry.pattern.split('.')[0]}" for entry in expected.DIFFERENCES}
    assert files <= set(expected.FILES)
