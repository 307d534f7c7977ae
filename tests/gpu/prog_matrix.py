"""Run the device matrix: arguments are <report folder> <layout> <library> <scope> [part of a case's name]."""

import sys

import device_arrays
import device_matrix
from mpi4py import MPI

if __name__ == "__main__":
    arrays = device_arrays.LIBRARIES[sys.argv[3]](MPI.COMM_WORLD.Get_rank())
    device_matrix.run(sys.argv[1], arrays, *sys.argv[4:])
