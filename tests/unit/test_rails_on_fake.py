"""Rails over verbs on the fake libibverbs: the checks that tests/softroce runs on Soft-RoCE, in seconds and everywhere.

What stands on real packets is left out: their loss, and a transfer that is under way (the fake's is done at the post).
"""

import fake_verbs
import pytest
from fake_verbs import ROOT, needs_compiler

from mpi import jobs

CHECKS = ROOT / "tests" / "softroce" / "check_rails.py"
ON_DEVICES = {"check_loss_of_one_percent", "check_loss_of_ten_percent", "check_killed_peer_in_mid_transfer"}
NAMES = [name for name in jobs.check_names(CHECKS) if name not in ON_DEVICES]

pytestmark = needs_compiler


@pytest.fixture(scope="module")
def problems(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rails")
    variables = {"FAKEVERBS_DEVICES": fake_verbs.devices("rxe", 2), "FAKEVERBS_ARENA": str(folder / "arena")}
    return fake_verbs.problems("prog_rails_on_fake.py", folder, NAMES, **variables)


@pytest.mark.parametrize("name", NAMES)
def test_check(problems, name):
    assert problems[name] is None, problems[name]
