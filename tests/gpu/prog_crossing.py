"""Run the matrix between islands: arguments are <report folder> <layout> <scope> [part of a case's name]."""

import sys
import traceback

import crossing_cases
import device_matrix
import numpy as np
from crossing_support import ARRAYS, PLACE
from support import Report, make_comm

import hetccl


def main(folder, scope, wanted=""):
    report = Report(folder)
    comm = make_comm()
    with np.errstate(all="ignore"):
        for number, case in enumerate(crossing_cases.cases(comm.Get_size(), scope, PLACE)):
            if wanted not in str(case):
                continue
            try:
                problem = device_matrix.problem_of(comm, ARRAYS, case, shift=number % 2)
            except hetccl.HetcclError:
                # The communicator is of no more use; cases that did not run count as failed.
                report.write(case=str(case), problem=traceback.format_exc())
                break
            except (BufferError, TypeError, ValueError):
                problem = traceback.format_exc()
            report.write(case=str(case), problem=problem)
    comm.Free()
    report.write(end=True)


if __name__ == "__main__":
    main(sys.argv[1], *sys.argv[3:])
