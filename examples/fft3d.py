"""A distributed three-dimensional Fourier transform: a 2-D grid of ranks, pencils turned by Alltoallw.

    mpirun -n 4 python examples/fft3d.py [--mpi]

Every rank holds a pencil: all of one axis, and a part of the two others. It transforms the whole axis with NumPy, then
a row (or a column) of the grid turns the array, so that the next axis is whole. Nothing is packed by hand: a subarray
datatype says which part of the pencil goes to whom. The turns are persistent calls, started anew for each transform.
"""

import sys
from contextlib import nullcontext

import numpy as np
from common import parse_options, report, share
from mpi4py import MPI

import hetccl

TRANSFORMS = 3  # fields that are transformed one after another, by the same persistent calls


class Turn:
    """Turns pencils that are whole along one axis into pencils that are whole along another, and back.

    comm           : the ranks that turn together: a row or a column of the grid
    source, target : complex128 pencils, whole along `source_axis` and `target_axis`
    """

    def __init__(self, comm, source, source_axis, target, target_axis):
        away = self._parts(comm, source, source_axis)
        home = self._parts(comm, target, target_axis)
        self.datatypes = away + home
        self.forward = comm.Alltoallw_init([source, away], [target, home])
        self.backward = comm.Alltoallw_init([target, home], [source, away])

    @staticmethod
    def _parts(comm, array, axis):
        """For each rank the datatype of its part of the pencil along this axis."""
        datatypes = []
        for rank in range(comm.Get_size()):
            part = share(array.shape[axis], rank, comm.Get_size())
            shape, start = list(array.shape), [0] * array.ndim
            shape[axis], start[axis] = part.stop - part.start, part.start
            datatypes.append(MPI.DOUBLE_COMPLEX.Create_subarray(array.shape, shape, start).Commit())
        return datatypes

    def free(self):
        for handle in (self.forward, self.backward, *self.datatypes):
            handle.Free()


def run(request):
    """One round of a persistent call."""
    request.Start()
    request.Wait()


class Transform:
    """Three-dimensional FFT of an array that is cut along its first two axes.

    comm, shape   : the communicator of all ranks; the whole array's shape
    input, output : this rank's slices of the whole array, before and after
    """

    def __init__(self, comm, shape):
        rows, columns = MPI.Compute_dims(comm.Get_size(), 2)
        row, column = divmod(comm.Get_rank(), columns)
        self.in_row, self.in_column = comm.Split(row, column), comm.Split(column, row)

        everything = [slice(0, n) for n in shape]
        self.input = (share(shape[0], row, rows), share(shape[1], column, columns), everything[2])
        between = (share(shape[0], row, rows), everything[1], share(shape[2], column, columns))
        self.output = (everything[0], share(shape[1], row, rows), share(shape[2], column, columns))
        self.z, self.y, self.x = (
            np.empty([s.stop - s.start for s in pencil], np.complex128) for pencil in (self.input, between, self.output)
        )
        self.turns = Turn(self.in_row, self.z, 2, self.y, 1), Turn(self.in_column, self.y, 1, self.x, 0)

    def forward(self, block):
        """The transform of all ranks' blocks of the input: this rank's block of the output."""
        self.z[:] = np.fft.fft(block, axis=2)
        run(self.turns[0].forward)
        self.y[:] = np.fft.fft(self.y, axis=1)
        run(self.turns[1].forward)
        return np.fft.fft(self.x, axis=0)

    def backward(self, block):
        """The inverse of forward()."""
        self.x[:] = np.fft.ifft(block, axis=0)
        run(self.turns[1].backward)
        self.y[:] = np.fft.ifft(self.y, axis=1)
        run(self.turns[0].backward)
        return np.fft.ifft(self.z, axis=2)

    def free(self):
        for turn in self.turns:
            turn.free()
        self.in_row.Free()
        self.in_column.Free()


def energy(comm, block):
    """The sum of |a|^2 over the blocks of all ranks."""
    total = np.array([np.vdot(block, block).real])
    comm.Allreduce(MPI.IN_PLACE, total, op=MPI.SUM)
    return total[0]


def main():
    options = parse_options(__doc__, size=(30, "elements along the first axis; the others are longer"))
    shape = (options.size, options.size + 3, options.size + 10)
    with nullcontext(MPI.COMM_WORLD) if options.mpi else hetccl.Comm(MPI.COMM_WORLD) as comm:
        transform = Transform(comm, shape)
        forward = backward = parseval = 0.0
        for seed in range(TRANSFORMS):
            real, imaginary = np.random.default_rng(seed).standard_normal((2, *shape))
            field = real + 1j * imaginary
            block = field[transform.input]
            found = transform.forward(block)
            energies = energy(comm, block), energy(comm, found) / np.prod(shape)
            forward = max(forward, abs(found - np.fft.fftn(field)[transform.output]).max())
            backward = max(backward, abs(transform.backward(found) - block).max())
            parseval = max(parseval, abs(energies[1] / energies[0] - 1))
        transform.free()
        errors = {
            "against numpy.fft.fftn, largest difference": (forward, 1e-10),
            "there and back, largest difference": (backward, 1e-12),
            "Parseval's theorem, relative": (parseval, 1e-12),
        }
        grid = " x ".join(map(str, MPI.Compute_dims(comm.Get_size(), 2)))
        return report(comm, f"{TRANSFORMS} fields of {shape} on {grid} pencils", errors)


if __name__ == "__main__":
    sys.exit(main())
