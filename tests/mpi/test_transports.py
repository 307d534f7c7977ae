"""The checks of messages, of the engine and of communicators' lives, with all ranks apart: over TCP on one host."""

import pytest

from mpi import jobs

PROGRAMS = (
    "check_p2p.py",
    "check_semantics_p2p.py",
    "check_engine.py",
    "check_life.py",
    "check_load.py",
    "check_attacked.py",
)
CASES = [(program, "AAB", name) for program in PROGRAMS for name in jobs.check_names(program)]


class OverTcp(jobs.CheckRuns):
    """The same checks, whose ranks share no memory."""

    def start(self, program, layout, names):
        env = {"HETCCL_TIMEOUT": "30", "HETCCL_TRANSPORT": "tcp"}
        return jobs.run(program, layout, *names, env=env, timeout=400)


@pytest.fixture(scope="session")
def runs(request):
    return OverTcp.of(request, test_check)


@pytest.mark.parametrize("program, layout, name", CASES, ids=lambda value: str(value).removesuffix(".py"))
def test_check(program, layout, name, runs):
    runs.verify(program, layout, name)
