"""The fake run-time compilers' command: compile a file of kernels for the host, and print the library's path.

usage: python tests/fakes/compile_kernels.py in.cpp
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from fakes import build

print(build.kernels(Path(sys.argv[1]).read_text()), end="")
