"""Rails over verbs on the fake libibverbs: the checks that tests/softroce runs on Soft-RoCE, in seconds and everywhere.

What stands on real packets is left out: their loss, and a transfer that is under way (the fake's is done at the post).
"""

import json
import subprocess
import sys

import pytest
from fake_verbs import ROOT, environment, needs_compiler

from mpi import jobs

CHECKS = ROOT / "tests" / "softroce" / "check_rails.py"
ON_DEVICES = {"check_loss_of_one_percent", "check_loss_of_ten_percent", "check_killed_peer_in_mid_transfer"}
NAMES = [name for name in jobs.check_names(CHECKS) if name not in ON_DEVICES]
GIDS = "gid=0/fe80000000000000000000fffe00000{0}/2/1 gid=1/00000000000000000000ffff0a63000{0}/2/1"
DEVICES = " ".join(f"device=rxe{i} {GIDS.format(i + 1)}" for i in range(2))

pytestmark = needs_compiler


@pytest.fixture(scope="module")
def problems(tmp_path_factory):
    """{check: None or its traceback} of one program that runs them all."""
    folder = tmp_path_factory.mktemp("rails")
    program = ROOT / "tests" / "unit" / "prog_rails_on_fake.py"
    made = environment(FAKEVERBS_DEVICES=DEVICES, FAKEVERBS_ARENA=str(folder / "arena"))
    command = [sys.executable, str(program), str(folder), "fake", *NAMES]
    done = subprocess.run(command, env=made, capture_output=True, text=True, timeout=300)
    lines = [json.loads(line) for line in (folder / "0.jsonl").read_text().splitlines()]
    found = {line["name"]: line["problem"] for line in lines}
    return {name: found.get(name, f"no report:\n{done.stdout}{done.stderr}") for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_check(problems, name):
    assert problems[name] is None, problems[name]
