"""Prints, as JSON, what hetccl's HIP table finds in a library, and how it is opened. usage: ... <library>"""

import json
import sys

from hetccl import _hip
from hetccl.errors import GpuError


def main(path):
    runtime = _hip.load(path)
    found = {
        "path": runtime.library.path,
        "version": runtime.version,
        "missing": runtime.missing(),
        "unresolved": [symbol for _, symbol, name in runtime.symbols() if not name],
    }
    try:
        _hip.open(path)
    except GpuError as error:
        found.update(error=type(error).__name__, code=error.code, text=str(error))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
