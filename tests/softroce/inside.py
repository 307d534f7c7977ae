"""Inside a guest: runs the programs of a plan and reports each check.

usage: inside.py FOLDER

FOLDER/plan.json is a list of {"program" (path), "layout", "names", "env", "nodes", "timeout"}: the checks `names` of a
program, one job for each item, as tests/mpi/jobs.py runs them. One line per check goes to FOLDER/found.jsonl: {"item",
"name", "ran": {rank: problem or null}, "text" (the job's output, if a rank did not finish)}.
"""

import json
import sys
import time
from pathlib import Path

import launch
from mpi import jobs


class Runs(jobs.CheckRuns):
    """The checks of one item of the plan."""

    def __init__(self, item):
        self.key = (item["program"], item["layout"])
        super().__init__({self.key: item["names"]})
        self.env = {"HETCCL_TIMEOUT": "60", **item["env"]}
        self.timeout = item["timeout"]
        launch.HOSTS[:] = [f"node{node}" for node in range(item["nodes"])] if item["nodes"] > 1 else []

    def start(self, program, layout, names):
        if layout == jobs.ALONE:
            return jobs.run_alone(program, *names, env=self.env, timeout=self.timeout)
        return jobs.run(program, layout, *names, env=self.env, timeout=self.timeout)

    def results(self):
        """Yield (name, {rank: problem}, text)."""
        self._run(*self.key, self.chosen[self.key])
        for name in self.chosen[self.key]:
            ran, text = self.found[(*self.key, name)]
            yield name, ran, text if len(ran) < self.ranks(self.key[1]) else ""


def main():
    folder = Path(sys.argv[1])
    with open(folder / "found.jsonl", "a", buffering=1) as found:
        for number, item in enumerate(json.loads((folder / "plan.json").read_text())):
            start = time.monotonic()
            for name, ran, text in Runs(item).results():
                found.write(json.dumps({"item": number, "name": name, "ran": ran, "text": text}) + "\n")
            seconds = time.monotonic() - start
            print(f"{Path(item['program']).name} {item['layout']} {item['env']}: {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
