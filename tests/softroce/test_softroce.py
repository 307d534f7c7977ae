"""Checks inside guests with Soft-RoCE devices; a test is one check. `--rdma` runs the long ones as well."""

import pytest

from mpi import jobs
from softroce.guests import GuestRuns, Item

RAILS = Item("softroce/check_rails.py")
RAILS_LONG = Item("softroce/check_rails_long.py")
MEMORY = Item("softroce/check_memory.py", "AA", (("HETCCL_TRANSPORT", "verbs"),))
ITEMS = (RAILS, RAILS_LONG, MEMORY)
LONG = {RAILS_LONG}
CASES = [
    pytest.param(item, name, marks=[pytest.mark.rdma] if item in LONG else [], id=f"{item}-{name}")
    for item in ITEMS
    for name in jobs.check_names(item.path)
]


@pytest.fixture(scope="session")
def guests(request):
    return GuestRuns.of(request, test_check)


@pytest.mark.limit(1200)
@pytest.mark.parametrize("item, name", CASES)
def test_check(item, name, guests):
    guests.verify(item, name)
