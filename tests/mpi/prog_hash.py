"""Digests of sums of random numbers: arguments are <report folder> <layout>."""

import hashlib
import sys

import numpy as np
from reference import dtype_of
from support import Report, make_comm

import hetccl

report = Report(sys.argv[1])
with make_comm() as comm:
    digests = []
    for name in ("float16", "bfloat16", "float32", "float64"):
        for count in (7, 1023, 65537, 300_007):
            data = np.random.default_rng([comm.Get_rank(), count]).standard_normal(count).astype(dtype_of(name))
            for op in (hetccl.SUM, hetccl.PROD, hetccl.AVG):
                out = np.empty_like(data)
                comm.Allreduce(data, out, op=op)
                digests.append(hashlib.sha256(out.tobytes()).hexdigest()[:16])
report.write(digests=digests)
