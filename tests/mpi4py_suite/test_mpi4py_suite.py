"""mpi4py's own tests on hetccl: those that expected.py does not except pass; a test here is one file of theirs."""

import collections
import fnmatch
import re

import pytest

import launch
from mpi4py_suite import expected, fetch, suite

# On other MPIs than the default one a job of one size: hetccl's own calls leave MPI alone.
ELSEWHERE = 3
CASES = [
    (mpi, ranks, file)
    for mpi in launch.launchers() or ("default",)
    for file, entry in expected.FILES.items()
    for ranks in entry.ranks
    if mpi == "default" or ranks == ELSEWHERE
]


def usual_ranks(file):
    ranks = expected.FILES[file].ranks
    return ELSEWHERE if ELSEWHERE in ranks else ranks[0]


@pytest.fixture(scope="session")
def tests_folder():
    try:
        return fetch.tests_folder()
    except fetch.FetchError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def runs(request, tests_folder):
    chosen = collections.defaultdict(list)
    for item in request.session.items:
        if getattr(item, "originalname", "") == "test_file":
            chosen[item.callspec.params["mpi"], item.callspec.params["ranks"]].append(item.callspec.params["file"])
    return suite.Runs(tests_folder, chosen)


@pytest.mark.limit(suite.MOST_JOBS * suite.JOB_S + 60)
@pytest.mark.parametrize(("mpi", "ranks", "file"), CASES)
def test_file(runs, mpi, ranks, file):
    results = runs.of(mpi, ranks, file)
    assert results, "the file has no tests"
    wrong = suite.faults(results, ranks)
    assert not wrong, "\n\n".join(wrong)


# The table of docs/mpi4py-suite.md: the version it is of, and its rows of whole numbers.
PAGE = launch.ROOT / "docs" / "mpi4py-suite.md"
VERSION = re.compile(r"^Version of mpi4py: ([\d.]+)", re.MULTILINE)
ROW = re.compile(r"^\| (test_\w+) \|((?: \d+ \|)+)", re.MULTILINE)


@pytest.mark.parametrize("file", expected.FILES)
def test_documented_counts(runs, file):
    text = PAGE.read_text()
    if VERSION.search(text)[1] != fetch.version():
        pytest.skip(f"the table is of mpi4py {VERSION.search(text)[1]}, not {fetch.version()}")
    rows = {name: tuple(map(int, re.findall(r"\d+", cells))) for name, cells in ROW.findall(text)}
    ranks = usual_ranks(file)
    got = suite.count(runs.of("default", ranks, file), ranks)
    tests, passed, differ, not_applicable, skipped = rows[file]
    # What is skipped depends on the MPI and on the packages that are there.
    assert (tests, differ, not_applicable, passed + skipped) == (
        got.tests,
        got.differ,
        got.not_applicable,
        got.passed + got.skipped,
    )


@pytest.mark.parametrize("entry", expected.DIFFERENCES, ids=lambda entry: entry.pattern)
def test_difference_is_of_a_test(runs, entry):
    file = f"test_{entry.pattern.split('.')[0]}"
    ranks = entry.ranks[0] if entry.ranks else usual_ranks(file)
    assert fnmatch.filter(runs.of("default", ranks, file), f"test_{entry.pattern}")


def test_every_file_is_run_or_explained(tests_folder):
    found = {path.stem for path in tests_folder.glob("test_*.py")}
    assert found == {*expected.FILES, *expected.NOT_RUN}
