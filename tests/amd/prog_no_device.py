"""Ranks with a HIP runtime and without a device: host buffers before and after a call on memory that says it is HIP's.

Each rank prints JSON: the error's class, code and text, and whether every call on host buffers was right.
"""

import json

import numpy as np
from mpi4py import MPI

import hetccl
from buffers import Dlpack1
from hetccl.errors import HetcclError

ROCM = 10  # of DLPack's devices


def host_is_right(comm):
    sent, received = np.arange(5.0) + comm.Get_rank(), np.zeros(5)
    comm.Allreduce(sent, received)
    return bool((received == np.arange(5.0) * comm.Get_size() + sum(range(comm.Get_size()))).all())


def main():
    comm = hetccl.Comm(MPI.COMM_WORLD)
    right = [host_is_right(comm)]
    sent, received = (Dlpack1(np.arange(5.0), (ROCM, 0)) for _ in range(2))
    found = {}
    try:
        comm.Allreduce(sent, received)
    except HetcclError as error:
        found = {"error": type(error).__name__, "code": error.code, "call": error.call, "text": str(error)}
    right += [bool((received.values == np.arange(5.0)).all()), host_is_right(comm)]
    comm.Free()
    print(json.dumps({**found, "right": right}))


if __name__ == "__main__":
    main()
