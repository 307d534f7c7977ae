"""The fake libibverbs does what a real device does: what tests/fakes/verbs_trial.c prints was the same on Soft-RoCE."""

import subprocess

import pytest
from fake_verbs import compile_program, environment, needs_compiler

pytestmark = needs_compiler

EXPECTED = {
    "write": """
        post: 0
        post: 0
        a: wr_id 2 status 0 opcode 1
        b: wr_id 100 status 0 opcode 129 imm 11223344 nbytes 61
        bytes: right
        post: 0
        post: 0
        a: wr_id 3 status 0 opcode 1
        b: wr_id 101 status 0 opcode 129 imm 5 nbytes 0
        a: wr_id 4 status 0 opcode 1
        b: wr_id 102 status 0 opcode 129 imm 6 nbytes 2999
        inline too long: refused
    """,
    "full": """
        a queue at least: ok
        then: 0
        a: wr_id 5 status 0 opcode 1
    """,
    "key": """
        a: wr_id 1 status 10
        a: wr_id 2 status 5
        b: wr_id 100 status 5
        a: state 6
        b: state 6
        a: wr_id 3 status 5
    """,
    "range": "a: wr_id 1 status 10",
    "flush": """
        b: wr_id 100 status 5
        b: wr_id 101 status 5
    """,
    "unready": """
        a: wr_id 1 status 13
        a: state 6
    """,
    "late": """
        a: wr_id 1 status 0 opcode 1
        b: wr_id 100 status 0 opcode 129 imm 1 nbytes 8
    """,
    "lost": """
        a: wr_id 1 status 12
        a: state 6
    """,
    "event": """
        none: -1 Resource temporarily unavailable
        before: 0
        after: 1
        whose: 1 1
        b: wr_id 100 status 0 opcode 129 imm 1 nbytes 8
        b: wr_id 101 status 0 opcode 129 imm 2 nbytes 8
        a: wr_id 3 status 0 opcode 1
        not armed: 0
        resized: yes
        b: wr_id 102 status 0 opcode 129 imm 3 nbytes 8
    """,
    "states": """
        RTS to RTR: refused
        a: state 3
        RESET to RTS: refused
        1000 pieces: Invalid argument
        CQ too long: Invalid argument
        unmapped: Bad address
        domain in use: refused
    """,
}


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """trial(name, **variables) -> the lines of one trial."""
    program = compile_program(tmp_path_factory.mktemp("trial"), "verbs_trial")

    def run(name, **variables):
        command = [program, "libibverbs.so.1", "fake0", "1", name]
        made = {**environment(**variables), "LC_ALL": "C"}
        done = subprocess.run(command, env=made, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    return run


@pytest.mark.parametrize("name", EXPECTED)
def test_as_on_a_device(trial, name):
    assert trial(name) == [line.strip() for line in EXPECTED[name].strip().splitlines()]


@pytest.mark.parametrize("variables", [{}, {"FAKEVERBS_MINUS_ONE": "1"}], ids=["errno", "minus-one"])
def test_both_ways_to_say_that_a_queue_is_full(trial, variables):
    assert trial("full", **variables)[0] == "a queue at least: ok"


def test_a_wrong_answer_would_be_seen(trial):
    """The trial fails where a post is refused for another reason than a full queue."""
    assert trial("full", FAKEVERBS_FAIL="post_send=5@9")[0] != "a queue at least: ok"
