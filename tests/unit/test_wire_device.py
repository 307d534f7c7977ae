"""A wire between GPUs' memory, on the fakes of libibverbs, CUDA and HIP (prog_wire_device.py): in a process of its own.

What it cannot show: that a NIC reaches a GPU, and that a GPU sees what was written once it is flushed.
"""

import signal
import subprocess

import fake_verbs
import pytest
from fake_verbs import ROOT, needs_compiler

from fakes import build
from mpi import jobs

PROGRAM = ROOT / "tests" / "unit" / "prog_wire_device.py"
NAMES = jobs.check_names(PROGRAM)

pytestmark = needs_compiler


@pytest.fixture(scope="module")
def problems(tmp_path_factory):
    variables = {"FAKEVERBS_DEVICES": fake_verbs.devices("gdr", 4), "FAKEVERBS_FORK": "2"}
    guards = {"FAKE_CUDA_GUARD": "1", "FAKE_HIP_GUARD": "1"}
    return fake_verbs.problems(PROGRAM.name, tmp_path_factory.mktemp("device"), NAMES, **variables, **guards)


@pytest.mark.parametrize("name", NAMES)
def test_check(problems, name):
    assert problems[name] is None, problems[name]


TOUCHES = """
#include "hetccl/message.h"
int main(void) {
    static const char runtime;
    uint8_t memory[8] = {0}, copy[8];
    hetccl_msg_t msg = {.ptr = memory, .nbytes = 8};
    hetccl_msg_get(&msg, 0, 8, copy);
    hetccl_msg_put(&msg, 0, 8, copy);
    msg.device.runtime = (const void *)&runtime;
    hetccl_msg_get(&msg, 0, 0, copy);
    hetccl_msg_put(&msg, 0, 0, copy);
    hetccl_msg_CALL(&msg, 0, 1, copy);
    return 0;
}
"""


@pytest.mark.parametrize("call", ["get", "put"])
def test_no_code_of_ours_copies_such_a_message(tmp_path, call):
    """Whatever its pointer is: the process ends before a byte is touched."""
    source, program = tmp_path / "touches.c", tmp_path / "touches"
    source.write_text(TOUCHES.replace("CALL", call))
    command = [build.compiler(), "-std=gnu11", "-O1", f"-I{ROOT / 'include'}", str(source), "-o", str(program)]
    subprocess.run(command, check=True, timeout=120)
    assert subprocess.run([str(program)], timeout=60).returncode in (-signal.SIGILL, -signal.SIGTRAP, -signal.SIGABRT)
