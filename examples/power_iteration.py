"""The largest eigenvalue of a symmetric matrix by power iteration, its rows shared unequally among the ranks.

    mpirun -n 4 python examples/power_iteration.py [--mpi]

Every rank multiplies its rows with the whole vector (Allgatherv puts it together from parts of unequal length) and the
norms are sums over all ranks (Allreduce). The result is compared with NumPy's eigenvalues of the whole matrix.
"""

import sys
from contextlib import nullcontext

import numpy as np
from common import parse_options, report
from mpi4py import MPI

import hetccl

MOST_ITERATIONS = 500
CONVERGED = 1e-13  # relative change of the eigenvalue from one iteration to the next


def matrix_rows(rows, size):
    """Some rows of a symmetric matrix: neighbours are alike, and the diagonal is uneven."""
    i, j = np.ogrid[rows, :size]
    return np.exp(-10 * abs(i - j) / size) + np.where(i == j, np.sin(i), 0)


def unequal_rows(size, rank, ranks):
    """Rank r takes about r+1 parts of the rows: as where some processors are faster than others."""
    bound = [size * r * (r + 1) // (ranks * (ranks + 1)) for r in (rank, rank + 1)]
    return slice(*bound)


def sum_over_ranks(comm, number):
    total = np.array([number])
    comm.Allreduce(MPI.IN_PLACE, total, op=MPI.SUM)
    return total[0]


def power_iteration(comm, size):
    """The largest eigenvalue and its vector of unit length, the same on all ranks, and the number of iterations."""
    rank, ranks = comm.Get_rank(), comm.Get_size()
    parts = [unequal_rows(size, r, ranks) for r in range(ranks)]
    starts = [part.start for part in parts]
    counts = [part.stop - part.start for part in parts]

    mine = parts[rank]
    rows = matrix_rows(mine, size)
    vector = np.full(size, 1 / np.sqrt(size))
    before, eigenvalue, iterations = np.inf, 0.0, 0
    while abs(eigenvalue - before) > CONVERGED * abs(eigenvalue) and iterations < MOST_ITERATIONS:
        product = rows @ vector
        before, eigenvalue = eigenvalue, sum_over_ranks(comm, vector[mine] @ product)
        product /= np.sqrt(sum_over_ranks(comm, product @ product))
        comm.Allgatherv(product, [vector, (counts, starts)])
        iterations += 1
    return eigenvalue, vector, iterations


def main():
    options = parse_options(__doc__, size=(600, "rows of the matrix"))
    with nullcontext(MPI.COMM_WORLD) if options.mpi else hetccl.Comm(MPI.COMM_WORLD) as comm:
        eigenvalue, vector, iterations = power_iteration(comm, options.size)

        eigenvalues, vectors = np.linalg.eigh(matrix_rows(slice(options.size), options.size))
        expected = vectors[:, -1] * np.sign(vectors[:, -1].sum())
        title = f"eigenvalue {eigenvalue:.9f} of {options.size} rows in {iterations} iterations"
        errors = {
            "eigenvalue against NumPy's, relative": (abs(eigenvalue / eigenvalues[-1] - 1), 1e-11),
            "eigenvector against NumPy's, largest difference": (abs(vector - expected).max(), 1e-5),
        }
        return report(comm, title, errors)


if __name__ == "__main__":
    sys.exit(main())
