"""Every collective, dtype, op, count and list of islands, in place and not, equals NumPy bit by bit.

One job per layout runs all its cases; a test here is one collective, dtype and op, and covers all counts, forms and
roots. `--full` runs every count with every dtype and op.
"""

import collections

import pytest

from mpi import jobs, matrix


def pytest_generate_tests(metafunc):
    if "group" in metafunc.fixturenames:
        full = metafunc.config.getoption("--full")
        metafunc.parametrize(
            "layout, group",
            [(layout, group) for layout in matrix.LAYOUTS for group in matrix.groups(len(layout), full)],
        )


@pytest.fixture(scope="module")
def results(request):
    """Function: layout -> (Outcome, {case: {rank: problem}})."""
    full = request.config.getoption("--full")
    found = {}

    def of(layout):
        if layout not in found:
            outcome = jobs.run("prog_exact.py", layout, *["full"] * full, timeout=7200 if full else 300)
            by_case = collections.defaultdict(dict)
            for line in outcome.lines:
                if "case" in line:
                    by_case[line["case"]][line["rank"]] = line["problem"]
            found[layout] = (outcome, by_case)
        return found[layout]

    return of


def test_equals_numpy(layout, group, results, request):
    outcome, by_case = results(layout)
    wrong = []
    for case in matrix.groups(len(layout), request.config.getoption("--full"))[group]:
        ran = by_case.get(case, {})
        wrong += [f"{case}, rank {rank}: {problem}" for rank, problem in sorted(ran.items()) if problem]
        missing = sorted(set(range(len(layout))) - set(ran))
        if missing:
            wrong.append(f"{case}: not run on ranks {missing}")
    assert not wrong, "\n".join([*wrong, "" if by_case else outcome.text])


@pytest.mark.parametrize("layout", matrix.LAYOUTS)
def test_ends_well(layout, results):
    outcome, _ = results(layout)
    ended = outcome.by_rank("end")
    assert sorted(ended) == list(range(len(layout))) and outcome.job.returncode == 0, outcome.text
