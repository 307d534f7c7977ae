"""Checks inside guests with Soft-RoCE devices; a test is one check. `--rdma` runs the long ones as well."""

import pytest

from mpi import jobs, matrix
from softroce.guests import GuestRuns, Item, Machine

RAILS = Item("softroce/check_rails.py")
RAILS_LONG = Item("softroce/check_rails_long.py")
VERBS = (("HETCCL_TRANSPORT", "verbs"),)
# Sent again only after 17 s: a guest may have little of its host's time.
PATIENT = (*VERBS, ("HETCCL_IB_TIMEOUT", "22"))
MEMORY = Item("softroce/check_memory.py", "AA", PATIENT)
# Shared memory inside a node, verbs between the two: what the transports choose by themselves.
TWO_NODES = Machine(nics=1, nodes=2, timeout=1000)
PYVERBS = Item("softroce/check_pyverbs.py", "AA", VERBS)
PYVERBS_SHORT = ("check_eager", "check_announced")
REDUCE = Item("mpi/check_reduce.py", "AB", PATIENT)
MIXED = Item("mpi/check_reduce.py", "ABCD", (), machine=TWO_NODES)
# Rails between two pairs of devices.
FAULTS_MACHINE = Machine(nics=4, timeout=3600)
FAULTS = Item("softroce/check_faults.py", "AA", VERBS, 1200, FAULTS_MACHINE)
KILLS = Item("softroce/check_kills.py", timeout=1200, machine=FAULTS_MACHINE)
STATES = Item("softroce/check_states.py", timeout=2400, machine=FAULTS_MACHINE)
# The same on two hosts.
FAR_MACHINE = Machine(nics=1, nodes=2, timeout=3600)
FAR_STATES = Item("softroce/check_states.py", env=(("NODES", "2"),), timeout=2400, machine=FAR_MACHINE)
# The last: it takes a device away.
DEVICES = Item("softroce/check_devices.py", "AA", VERBS, 600, FAULTS_MACHINE)
PROGRAMS = ("ops", "p2p", "semantics", "semantics_comms", "semantics_ops", "semantics_p2p", "semantics_requests")
ENGINE = tuple(
    Item(f"mpi/check_{program}.py", "AAB", VERBS, 400, Machine(timeout=3600)) for program in (*PROGRAMS, "engine")
)
MIX = tuple(Item(f"mpi/check_{program}.py", "ABA", (), 400, TWO_NODES._replace(timeout=3600)) for program in PROGRAMS)
# The whole matrix: verbs for every pair of ranks, and what the transports choose by themselves; on two and three hosts.
MATRIX = tuple(
    Item(
        "softroce/check_matrix.py",
        env=(("LAYOUT", layout), ("NODES", str(nodes)), *env),
        timeout=1000,
        machine=Machine(nics=1, nodes=nodes, timeout=10000),
    )
    for nodes, env in ((2, VERBS), (3, ()))
    for layout in matrix.LAYOUTS
    if len(layout) >= nodes
)
ITEMS = (
    RAILS,
    RAILS_LONG,
    MEMORY,
    PYVERBS,
    REDUCE,
    MIXED,
    FAULTS,
    KILLS,
    STATES,
    FAR_STATES,
    DEVICES,
    *ENGINE,
    *MIX,
    *MATRIX,
)
LONG = {RAILS_LONG, MIXED, FAULTS, KILLS, STATES, FAR_STATES, DEVICES, *ENGINE, *MIX, *MATRIX}


def is_long(item, name):
    return item in LONG or item == PYVERBS and name not in PYVERBS_SHORT


CASES = [
    pytest.param(item, name, marks=[pytest.mark.rdma] if is_long(item, name) else [], id=f"{item}-{name}")
    for item in ITEMS
    for name in jobs.check_names(item.path)
]


@pytest.fixture(scope="session")
def guests(request):
    return GuestRuns.of(request, test_check)


@pytest.mark.limit(10500)
@pytest.mark.parametrize("item, name", CASES)
def test_check(item, name, guests):
    guests.verify(item, name)
