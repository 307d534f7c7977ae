"""Cost of parsing a send and a receive buffer and of releasing both, as every collective does before it starts.

`python bench/buffer.py` prints, for each kind of buffer, nanoseconds per pair (best of 7 runs, call included)
and the ratio to NumPy's. Ratios carry over to other machines, nanoseconds do not.
"""

import array
import importlib
import sys
import timeit
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from hetccl._buffer import check_overlap

CALLS, RUNS = 20_000, 7


class Dlpack:
    """NumPy's own DLPack export and nothing else, behind one Python frame."""

    def __init__(self, values):
        self.values = values

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **wishes):
        return self.values.__dlpack__(**wishes)


def nanoseconds(pair):
    names = {"parse": check_overlap, "send": pair[0], "recv": pair[1]}
    return min(timeit.repeat("parse(send, recv)", number=CALLS, repeat=RUNS, globals=names)) / CALLS * 1e9


def pairs():
    values = np.arange(16, dtype="f4")
    made = {
        "numpy": values.copy,
        "[numpy, count]": lambda: [values.copy(), 16],
        "[numpy, count, 'f']": lambda: [values.copy(), 16, "f"],
        "array.array": lambda: array.array("f", values),
        "bytearray": lambda: bytearray(64),
        "DLPack 1.x (NumPy's, in Python)": lambda: Dlpack(values.copy()),
    }
    try:
        torch = importlib.import_module("torch")
        made["torch"] = lambda: torch.from_numpy(values.copy())
    except ImportError:
        print("torch is not installed: left out")
    return {name: (make(), make()) for name, make in made.items()}


def main():
    base = None
    print(f"{'kind':40}{'ns per pair':>12}{'to numpy':>10}")
    for name, pair in pairs().items():
        cost = nanoseconds(pair)
        base = base or cost
        print(f"{name:40}{cost:12.0f}{cost / base:10.1f}")


if __name__ == "__main__":
    main()
