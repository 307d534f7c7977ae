"""hetccl does what mpi4py does, byte by byte: calls drawn by hypothesis, run with both on copies of the same buffers.

The cases are the same in every run. tests/long has more of them.
"""

import pytest
from hypothesis import Phase
from hypothesis import strategies as st

from mpi import compare_draw
from mpi.compare_feed import Feeds, compare

LAYOUTS = ("A", "AB", "AAB", "ABAB", "AABBB")
COLLECTIVES, TOGETHER, POINT_TO_POINT = 60, 10, 40
# What mpi4py alone can run: it has no groups, and Open MPI's nonblocking Alltoallw fails in place.
COMPARABLE = {
    "collectives": compare_draw.collectives(3, forms=("blocking",)),
    "messages": compare_draw.point_to_point(3, [name for name in compare_draw.PATTERNS if name != "group"]),
}


@pytest.fixture(scope="module")
def feeds(request):
    feeds = Feeds()
    yield feeds
    feeds.stop()
    request.config.pluginmanager.get_plugin("terminalreporter").write_line(feeds.summary())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_collectives(layout, feeds):
    compare(feeds[layout], compare_draw.collectives(len(layout)), COLLECTIVES)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_collectives_under_way_together(layout, feeds):
    compare(feeds[layout], compare_draw.together(len(layout)), TOGETHER)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_point_to_point(layout, feeds):
    compare(feeds[layout], compare_draw.point_to_point(len(layout)), POINT_TO_POINT)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ends_well(layout, feeds):
    """The job that ran the cases ends with 0."""
    feeds[layout].stop()


def test_harness_finds_nothing_in_mpi4py(feeds):
    """Compared with itself mpi4py has no faults: what is found elsewhere is not the harness's."""
    compare(feeds["AAB", "mpi4py"], st.one_of(*COMPARABLE.values()), 60)


@pytest.mark.parametrize("cases", COMPARABLE.values(), ids=COMPARABLE)
def test_harness_finds_planted_faults(cases, feeds):
    """A wrong bit, a wrong tag: see prog_compare.Faulty."""
    with pytest.raises(AssertionError, match="rank"):
        compare(feeds["AAB", "faulty"], cases, 300, phases=[Phase.generate])
