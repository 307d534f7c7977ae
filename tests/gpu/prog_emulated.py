"""Run a program of this folder on ranks that take their NVIDIA GPU, or the fake one, for an AMD GPU: emulated.

arguments: <report folder> <layout> <program> [the program's own]
"""

import dataclasses
import runpy
import sys
from pathlib import Path

from hetccl import topology

EMULATED = "emulated AMD"
LIBRARIES = ("libamdhip64.so", "librccl.so")


def as_amd(see):
    """topology.local, but for a GPU of AMD's."""

    def local(config, *roots):
        mine = see(config, *roots)
        return dataclasses.replace(
            mine, vendor="amd", runtime="hip", device=EMULATED, label=config.island or "amd", pci=""
        )

    return local


def loaded():
    """The files of AMD's names that this process has loaded."""
    paths = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
    return sorted(path for path in paths if Path(path).name.startswith(LIBRARIES))


def main():
    folder, layout, program, *rest = sys.argv[1:]
    topology.local = as_amd(topology.local)
    sys.argv = [program, folder, layout, *rest]
    try:
        runpy.run_path(program, run_name="__main__")
    finally:
        print(f"{EMULATED}: {' '.join(loaded())}", flush=True)


if __name__ == "__main__":
    main()
