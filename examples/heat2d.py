"""Heat spreads over a square plate: a 2-D grid of ranks, halos exchanged by nonblocking messages.

    mpirun -n 4 python examples/heat2d.py [--mpi]

Each rank has a block of the plate with a border one cell wide, which holds its neighbours' outermost cells. Rows of a
block are contiguous; columns are sent where they lie, through a vector datatype. The grid of ranks is an MPI Cartesian
communicator. Blocks are compared bit by bit with those of the whole plate, computed on each rank by itself.
"""

import sys
from contextlib import nullcontext

import numpy as np
from common import parse_options, report, share
from mpi4py import MPI

import hetccl

RATE = 0.2  # time step * conductivity / cell^2; stable up to 0.25
CHECK_EVERY = 20  # steps between sums of what has changed


def new_plate(rows, columns, size):
    """A part of the plate and its border: cold, but for the warm upper edge and a hot spot. Indices count from -1."""
    i, j = np.ogrid[rows.start - 1 : rows.stop + 1, columns.start - 1 : columns.stop + 1]
    spot = np.exp(-((i - 0.3 * size) ** 2 + (j - 0.6 * size) ** 2) / (0.1 * size) ** 2)
    return np.where(i < 0, 0.5, np.where((i < size) & (j >= 0) & (j < size), spot, 0.0))


def step(old, new):
    """One time step of all cells but the border."""
    around = old[:-2, 1:-1] + old[2:, 1:-1] + old[1:-1, :-2] + old[1:-1, 2:]
    new[1:-1, 1:-1] = old[1:-1, 1:-1] + RATE * (around - 4 * old[1:-1, 1:-1])


class Halo:
    """Exchanges borders between neighbours. comm : Cartesian, of two dimensions; shape : of a block with border"""

    def __init__(self, comm, shape):
        self.comm, self.width = comm, shape[1]
        rows, columns = shape[0] - 2, shape[1] - 2
        self.row = MPI.DOUBLE.Create_contiguous(columns).Commit()
        self.column = MPI.DOUBLE.Create_vector(rows, 1, self.width).Commit()
        up, down = comm.Shift(0, 1)
        left, right = comm.Shift(1, 1)
        # Neighbour, datatype, first cell to send, first cell to receive, tags of what is sent and received.
        self.sides = (
            (up, self.row, (1, 1), (0, 1), 0, 1),
            (down, self.row, (rows, 1), (rows + 1, 1), 1, 0),
            (left, self.column, (1, 1), (1, 0), 2, 3),
            (right, self.column, (1, columns), (1, columns + 1), 3, 2),
        )

    def exchange(self, block):
        """Fill the block's border with the neighbours' cells; it stays as it is at the edge of the plate."""
        requests = []
        for neighbour, datatype, _, border, _, tag in self.sides:
            requests.append(self.comm.Irecv([self._from(block, border), 1, datatype], neighbour, tag))
        for neighbour, datatype, inner, _, tag, _ in self.sides:
            requests.append(self.comm.Isend([self._from(block, inner), 1, datatype], neighbour, tag))
        for request in requests:
            request.Wait()

    def _from(self, block, cell):
        return block.reshape(-1)[cell[0] * self.width + cell[1] :]

    def free(self):
        self.row.Free()
        self.column.Free()


def simulate(comm, rows, columns, size, steps):
    """The rank's block (with border) after so many steps, and the last root mean square change of the whole plate."""
    old = new_plate(rows, columns, size)
    new = old.copy()
    halo = Halo(comm, old.shape)
    change = np.zeros(1)
    for number in range(1, steps + 1):
        halo.exchange(old)
        step(old, new)
        if number % CHECK_EVERY == 0 or number == steps:
            change[0] = ((new - old)[1:-1, 1:-1] ** 2).sum()
            comm.Allreduce(MPI.IN_PLACE, change, op=MPI.SUM)
        old, new = new, old
    halo.free()
    return old, np.sqrt(change[0]) / size


def main():
    options = parse_options(__doc__, size=(96, "cells along an edge of the plate"), steps=(200, "time steps"))
    size, steps = options.size, options.steps
    cart = MPI.COMM_WORLD.Create_cart(MPI.Compute_dims(MPI.COMM_WORLD.size, 2))
    with nullcontext(cart) if options.mpi else hetccl.Comm(cart) as comm:
        (row, column), (rows, columns) = cart.coords, cart.dims
        my_rows, my_columns = share(size, row, rows), share(size, column, columns)
        block, change = simulate(comm, my_rows, my_columns, size, steps)

        before = after = new_plate(slice(0, size), slice(0, size), size)
        for _ in range(steps):
            before, after = after, after.copy()
            step(before, after)
        expected = after[1:-1, 1:-1][my_rows, my_columns]
        expected_change = np.sqrt(((after - before) ** 2).sum()) / size
        errors = {
            "block against the whole plate's, largest difference": (abs(block[1:-1, 1:-1] - expected).max(), 0.0),
            "change of the last step against the whole plate's": (abs(change - expected_change), 1e-14),
        }
        title = f"{size} x {size} cells on {rows} x {columns} ranks, {steps} steps: last change {change:.2e}"
        status = report(comm, title, errors)
    cart.Free()
    return status


if __name__ == "__main__":
    sys.exit(main())
