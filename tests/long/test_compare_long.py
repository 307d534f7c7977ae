"""The comparison with mpi4py at length: `make test-long`. Other seeds than in `make test`, more islands, every way
through the engine, and each MPI that is here."""

import pytest

import launch
from mpi import compare_draw
from mpi.compare_feed import Feeds, compare

LAYOUTS = ("A", "AA", "AB", "AAB", "ABC", "AABB", "ABAB", "AABBB", "ABABA")
# Cases of each kind for each layout and seed; all in all more than 20,000.
CASES = {"collectives": 500, "together": 80, "point_to_point": 250}
SEEDS = (1, 2, 3)
WAYS = {
    "copies": {"HETCCL_SINGLE_COPY": "off"},
    "small-rings": {"HETCCL_SINGLE_COPY": "off", "HETCCL_RING_BYTES": "1024"},
    "sleeping": {"HETCCL_SPIN_US": "0"},
    "checked": {"HETCCL_CHECK": "1"},
}


@pytest.fixture(scope="module")
def feeds(request):
    """Function: (MPI, way) -> Feeds."""
    made = {}

    def find(mpi=None, way=None):
        if (mpi, way) not in made:
            made[mpi, way] = Feeds(mpi=mpi, env=WAYS.get(way))
        return made[mpi, way]

    yield find
    writer = request.config.pluginmanager.get_plugin("terminalreporter")
    for (mpi, way), found in made.items():
        found.stop()
        writer.write_line(f"{mpi or 'default'} MPI, {way or 'as usual'}: {found.summary()}")


def draw(kind, layout):
    return getattr(compare_draw, kind)(len(layout))


@pytest.mark.limit(3600)
@pytest.mark.parametrize("number", SEEDS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", CASES)
def test_cases(kind, layout, number, feeds):
    compare(feeds()[layout], draw(kind, layout), CASES[kind], first=number)


@pytest.mark.limit(3600)
@pytest.mark.parametrize("layout", ["AB", "ABAB"])
@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("way", WAYS)
def test_ways(way, kind, layout, feeds):
    compare(feeds(way=way)[layout], draw(kind, layout), CASES[kind] // 2, first=4)


@pytest.mark.limit(3600)
@pytest.mark.parametrize("layout", ["AAB", "ABAB"])
@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("mpi", [name for name in launch.launchers() if name != "default"])
def test_other_mpis(mpi, kind, layout, feeds):
    compare(feeds(mpi=mpi)[layout], draw(kind, layout), CASES[kind] // 2, first=5)
