"""Vectors that are cut among the ranks: scattered from one rank, dot products and norms, gathered back.

    mpirun -n 4 python examples/dot.py [--mpi]

The class has the shape of pylops_mpi.DistributedArray: solvers for distributed inverse problems are written with such
vectors. Every result is compared with what NumPy finds for the whole vector on one rank.
"""

import sys
from contextlib import nullcontext

import numpy as np
from common import parse_options, report, share
from mpi4py import MPI

import hetccl


class DistributedVector:
    """This rank's part of a vector of `size` elements. comm : any communicator; part : float64 array"""

    def __init__(self, comm, size, part=None):
        self.comm, self.size = comm, size
        slices = [share(size, rank, comm.Get_size()) for rank in range(comm.Get_size())]
        self.starts = [s.start for s in slices]
        self.counts = [s.stop - s.start for s in slices]
        self.part = np.empty(self.counts[comm.Get_rank()]) if part is None else part

    @classmethod
    def scatter(cls, comm, size, whole, root=0):
        """Cut the vector that root has; the others pass None."""
        vector = cls(comm, size)
        sent = [whole, (vector.counts, vector.starts)] if comm.Get_rank() == root else None
        comm.Scatterv(sent, vector.part, root=root)
        return vector

    def gather(self, root=0):
        """The whole vector on root, None elsewhere."""
        at_root = self.comm.Get_rank() == root
        whole = np.empty(self.size) if at_root else None
        self.comm.Gatherv(self.part, [whole, (self.counts, self.starts)] if at_root else None, root=root)
        return whole

    def dot(self, other):
        """The dot product, on all ranks."""
        return self._over_ranks(self.part @ other.part, MPI.SUM)

    def norm(self, order):
        """The norm of this order (1, 2 or infinity), on all ranks."""
        if order == np.inf:
            return self._over_ranks(abs(self.part).max(initial=0), MPI.MAX)
        return self._over_ranks((abs(self.part) ** order).sum(), MPI.SUM) ** (1 / order)

    def __sub__(self, other):
        return DistributedVector(self.comm, self.size, self.part - other.part)

    def __rmul__(self, factor):
        return DistributedVector(self.comm, self.size, factor * self.part)

    def _over_ranks(self, number, op):
        number = np.array([number])
        self.comm.Allreduce(MPI.IN_PLACE, number, op=op)
        return number[0]


def main():
    options = parse_options(__doc__, size=(100_003, "elements of the vectors"))
    with nullcontext(MPI.COMM_WORLD) if options.mpi else hetccl.Comm(MPI.COMM_WORLD) as comm:
        root = comm.Get_size() - 1
        whole_x, whole_y = np.random.default_rng(20).standard_normal((2, options.size))
        at_root = comm.Get_rank() == root
        x = DistributedVector.scatter(comm, options.size, whole_x if at_root else None, root)
        y = DistributedVector.scatter(comm, options.size, whole_y if at_root else None, root)

        # The part of x that is orthogonal to y.
        rest = x - (x.dot(y) / y.dot(y)) * y
        expected = whole_x - (whole_x @ whole_y) / (whole_y @ whole_y) * whole_y
        scale = np.linalg.norm(whole_x) * np.linalg.norm(whole_y)
        gathered = rest.gather(root)

        errors = {
            "dot product against NumPy's": (abs(x.dot(y) - whole_x @ whole_y) / scale, 1e-14),
            "orthogonal": (abs(rest.dot(y)) / scale, 1e-14),
            "gathered vector against NumPy's": (abs(gathered - expected).max() if at_root else 0.0, 1e-13),
        }
        for order in (1, 2, np.inf):
            wanted = np.linalg.norm(expected, order)
            errors[f"norm of order {order} against NumPy's"] = (abs(rest.norm(order) - wanted) / max(wanted, 1), 1e-12)
        return report(comm, f"{options.size} elements in parts of {max(x.counts)} or fewer", errors)


if __name__ == "__main__":
    sys.exit(main())
