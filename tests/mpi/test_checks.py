"""Runs the checks of the check_*.py programs, each program once per layout; a test here is one check on one layout."""

import pytest

from mpi import jobs

# Odd counts, one rank, unequal and interleaved islands; ALONE is one process that no mpirun started.
LAYOUTS = {
    "check_api.py": (jobs.ALONE, "AA", "AAB", "ABAB", "AAAAA"),
    "check_p2p.py": ("AA", "AAB", "ABBA"),
    "check_bad.py": (jobs.ALONE, "AA", "AAB"),
    "check_reduce.py": ("A", "AB", "AAA", "ABC", "AAB", "AAABB"),
    "check_ops.py": ("A", "AAA", "AAB", "AAABB"),
    "check_life.py": ("AA", "AAB"),
    "check_load.py": ("AA", "AAB"),
    "check_registered.py": ("A", "AAB"),
    "check_engine.py": ("AA", "AAB"),
    "check_semantics.py": (jobs.ALONE, "AA", "AAB", "ABAB"),
    "check_semantics_ops.py": ("A", "AB", "AAB", "ABCA"),
    "check_semantics_p2p.py": ("AA", "AAB", "ABBA"),
    "check_semantics_requests.py": ("A", "AA", "AAB"),
    "check_semantics_comms.py": ("AA", "AAB", "ABBA"),
}
# Checks of something that only some layouts have.
ONLY = {"check_halves_round_once_across_islands": ("A", "AB", "ABC")}
CASES = [
    (program, layout, name)
    for program, layouts in LAYOUTS.items()
    for layout in layouts
    for name in jobs.check_names(program)
    if layout in ONLY.get(name, (layout,))
]


@pytest.fixture(scope="session")
def runs(request):
    return jobs.CheckRuns.of(request, test_check)


@pytest.mark.parametrize("program, layout, name", CASES, ids=lambda value: str(value).removesuffix(".py"))
def test_check(program, layout, name, runs):
    runs.verify(program, layout, name)
