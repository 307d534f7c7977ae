"""Run the matrix between islands: arguments are <report folder> <layout> <scope> [part of a case's name]."""

import sys

import crossing_cases
import device_matrix
from device_support import ARRAYS, PLACE

if __name__ == "__main__":
    # Ranks have arrays of different libraries, and must run the same cases.
    device_matrix.run(
        sys.argv[1], ARRAYS, *sys.argv[3:], cases=lambda size, scope, _: crossing_cases.cases(size, scope, PLACE)
    )
