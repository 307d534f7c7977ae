"""Many ranks on few cores: a mix of small and large calls; arguments are <report folder> <layout>."""

import sys

import numpy as np
from support import Report, equal, make_comm

report = Report(sys.argv[1])
with make_comm() as comm:
    size, rank, calls = comm.Get_size(), comm.Get_rank(), 0
    for count in (1, 300, 100_000):
        out, gathered = np.zeros(count), np.zeros(count * size)
        for _ in range(30):
            comm.Allreduce(np.full(count, rank + 1.0), out)
            comm.Alltoall(np.full(count * size, float(rank)), gathered)
            comm.Barrier()
            calls += 3
        equal(out, np.full(count, size * (size + 1) / 2))
        equal(gathered, np.repeat(np.arange(float(size)), count))
report.write(calls=calls)
