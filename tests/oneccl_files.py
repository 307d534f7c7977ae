"""Where the tests find oneCCL: in the virtual environment, where tools/oneccl.py puts it."""

import json
import sys
from pathlib import Path

LIB = Path(sys.prefix) / "lib"
HEADERS = Path(sys.prefix) / "include"


def absent():
    """Why there is no oneCCL to test with; "" if there is."""
    if (LIB / "libccl.so.2").exists():
        return ""
    state = Path(sys.prefix) / "environment.json"
    told = json.loads(state.read_text()).get("no oneccl") if state.exists() else None
    return f"no oneCCL: {told}" if told else f"no oneCCL in {LIB}: `make test` fetches it where the registry has it"
