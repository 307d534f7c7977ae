"""mpi4py's own tests on hetccl: those that expected.py does not except pass; a test here is one file of theirs."""

import collections

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


def test_every_file_is_run_or_explained(tests_folder):
    found = {path.stem for path in tests_folder.glob("test_*.py")}
    assert found == {*expected.FILES, *expected.NOT_RUN}
