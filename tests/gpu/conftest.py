"""The modules that pytest shares with the programs of this folder are found as the programs find them."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "mpi")]
