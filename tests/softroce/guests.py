"""For the tests: run the checks that pytest selected in as few guests as possible, and look each one up."""

import json
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

from mpi import jobs
from softroce import image, vm

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


class Machine(NamedTuple):
    """A guest: nics: RDMA devices of each node · nodes: hosts · timeout: seconds for all its checks together."""

    nics: int = 2
    nodes: int = 1
    timeout: int = 1800


class Item(NamedTuple):
    """Checks of a program that run in one job.

    program : path below tests/        layout : a letter for each rank, or jobs.ALONE: one process without mpirun
    env     : pairs (name, value)      timeout : seconds for the job
    """

    program: str
    layout: str = jobs.ALONE
    env: tuple = ()
    timeout: int = 600
    machine: Machine = Machine()

    @property
    def path(self):
        return str(ROOT / "tests" / self.program)

    def __str__(self):
        words = [Path(self.program).stem.removeprefix("check_"), self.layout, *(value for _, value in self.env)]
        words += [f"{self.machine.nodes} nodes"] if self.machine.nodes > 1 else []
        return "-".join(word for word in words if word != jobs.ALONE)


class GuestRuns:
    """Runs all selected items of a machine in one guest at the first question about one of them."""

    def __init__(self, chosen):
        # {Item: [check, ...]}
        self.chosen = chosen
        self.found = {}
        self.texts = {}

    @classmethod
    def of(cls, request, test):
        """For the cases of a test (parameters `item` and `name`) that pytest selected."""
        chosen = {}
        for selected in request.session.items:
            if selected.function is test:
                params = selected.callspec.params
                chosen.setdefault(params["item"], []).append(params["name"])
        return cls(chosen)

    def verify(self, item, name):
        """AssertionError unless every rank ran the check and found nothing; skipped where no guest can be booted."""
        if item.machine not in self.texts:
            self._run(item.machine)
        ran, text = self.found.get((item, name), ({}, ""))
        problems = [f"rank {rank}: {problem}" for rank, problem in sorted(ran.items()) if problem]
        assert not problems, "\n".join(problems)
        ranks = 1 if item.layout == jobs.ALONE else len(item.layout)
        missing = set(map(str, range(ranks))) - set(ran)
        assert not missing, f"ranks {sorted(missing)} did not finish {name}\n{text or self.texts[item.machine]}"

    def _run(self, machine):
        items = [item for item in self.chosen if item.machine == machine]
        plan = [
            dict(
                program=item.path,
                layout=item.layout,
                names=self.chosen[item],
                env=dict(item.env),
                timeout=item.timeout,
                nodes=machine.nodes,
            )
            for item in items
        ]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "plan.json").write_text(json.dumps(plan))
            options = vm.Options(
                nics=machine.nics,
                nodes=machine.nodes,
                timeout=machine.timeout,
                rw=(folder,),
                env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
            )
            try:
                result = vm.run([sys.executable, HERE / "inside.py", folder], options)
            except image.CannotPrepare as error:
                pytest.skip(f"no Soft-RoCE here: {error}")
            self.texts[machine] = f"the guest ended with status {result.status}\n{result.text}"
            found = folder / "found.jsonl"
            for line in found.read_text().splitlines() if found.exists() else []:
                fields = json.loads(line)
                self.found[items[fields["item"]], fields["name"]] = (fields["ran"], fields["text"])
