"""Every collective, dtype, op, count and list of islands, in place and not, equals NumPy bit by bit.

One job per layout runs all its cases; a test here is one collective, dtype and op, and covers all counts, forms and
roots. `--full` runs every count with every dtype and op.
"""

import functools

import pytest

from mpi import jobs, matrix


def scope_of(config):
    return matrix.FULL if config.getoption("--full") else matrix.QUICK


def pytest_generate_tests(metafunc):
    if "group" in metafunc.fixturenames:
        scope = scope_of(metafunc.config)
        metafunc.parametrize(
            "layout, group",
            [(layout, group) for layout in matrix.LAYOUTS for group in matrix.groups(len(layout), scope)],
        )


@pytest.fixture(scope="module")
def results(request):
    """Function: layout -> (Outcome, {case: {rank: problem}})."""
    scope = scope_of(request.config)
    return functools.cache(lambda layout: jobs.exact(layout, scope, timeout=7200 if scope == matrix.FULL else 300))


def test_equals_numpy(layout, group, results, request):
    outcome, by_case = results(layout)
    wanted = matrix.groups(len(layout), scope_of(request.config))[group]
    wrong = jobs.faults(by_case, wanted, len(layout))
    assert not wrong, "\n".join([*wrong, "" if by_case else outcome.text])


@pytest.mark.parametrize("layout", matrix.LAYOUTS)
def test_ends_well(layout, results):
    outcome, _ = results(layout)
    ended = outcome.by_rank("end")
    assert sorted(ended) == list(range(len(layout))) and outcome.job.returncode == 0, outcome.text
