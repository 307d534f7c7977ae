"""The fake libibverbs in a process of its own: a library is opened once for each process."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fakes import build

ROOT = Path(__file__).resolve().parents[2]
needs_compiler = pytest.mark.skipif(build.compiler() is None, reason="no C compiler to make the fake libibverbs")
KINDS = ("context", "pd", "mr", "channel", "cq", "qp")
GIDS = "gid=0/fe80000000000000000000fffe00000{0}/2/1 gid=1/00000000000000000000ffff0a63000{0}/2/1"

HEAD = f"""
import ctypes, errno, json, os, resource, sys
from hetccl import _verbs, errors
fake = ctypes.CDLL("libibverbs.so.1")
def live():
    return {{kind: fake.fakeverbs_live(kind.encode(), None) for kind in {KINDS}}}
def raised(call, *arguments, **keywords):
    try:
        call(*arguments, **keywords)
    except Exception as error:
        return [type(error).__name__, str(error), getattr(error, "call", None), getattr(error, "code", None)]
    return None
"""


def environment(without=(), **variables):
    """The variables with which libibverbs.so.1 is the fake. without : functions that it shall lack"""
    folder = os.path.dirname(build.build("fakeverbs", without=without))
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {name: value for name, value in os.environ.items() if not name.startswith("FAKEVERBS_")}
    return {**own, "LD_LIBRARY_PATH": folder, "PYTHONPATH": path, **variables}


def run(body, without=(), **variables):
    """Run code that ends by printing; what it printed. In it: _verbs, errors, fake (ctypes), live(), raised()."""
    command = [sys.executable, "-c", HEAD + textwrap.dedent(body)]
    made = environment(without, **variables)
    done = subprocess.run(command, env=made, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def devices(prefix, count):
    """FAKEVERBS_DEVICES for RoCE devices, each with an address of its own; up to 9."""
    return " ".join(f"device={prefix}{i} {GIDS.format(i + 1)}" for i in range(count))


def problems(program, folder, names, **variables):
    """{check: None or its traceback} of one process that runs checks of a program of tests/unit.

    folder : a new one, for its report     names : of the checks     variables : as environment() takes them
    """
    command = [sys.executable, "-X", "faulthandler", str(ROOT / "tests" / "unit" / program), str(folder), "fake"]
    done = subprocess.run([*command, *names], env=environment(**variables), capture_output=True, text=True, timeout=300)
    lines = [json.loads(line) for line in (folder / "0.jsonl").read_text().splitlines()]
    found = {line["name"]: line["problem"] for line in lines}
    return {name: found.get(name, f"no report:\n{done.stdout}{done.stderr}") for name in names}


def compile_program(folder, name):
    """A program of tests/fakes, compiled against the package's headers: its path."""
    program = Path(folder, name)
    source = ROOT / "tests" / "fakes" / f"{name}.c"
    command = [build.compiler(), "-std=gnu11", "-O1", f"-I{ROOT / 'include'}", str(source), "-ldl", "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return str(program)
