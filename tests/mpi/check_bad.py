"""Bad input gets a clear error on every rank before any byte moves, and the communicator goes on working."""

import os

import numpy as np
from mpi4py import MPI
from support import Guarded, equal, raises, run_checks, still_works

import hetccl

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.Get_size(), WORLD.Get_rank()
N = 4


def calls(comm, send=None, receive=None):
    """(name, call, argument that holds `send`, argument that holds `receive`) of every collective with fitting sizes.

    send, receive : function of a number of elements -> buffer; default: float64 zeros
    """
    send, receive = send or np.zeros, receive or np.zeros
    return (
        ("Allreduce", lambda: comm.Allreduce(send(N), receive(N))),
        ("Reduce", lambda: comm.Reduce(send(N), receive(N), root=0)),
        ("Allgather", lambda: comm.Allgather(send(N), receive(N * SIZE))),
        ("Reduce_scatter_block", lambda: comm.Reduce_scatter_block(send(N * SIZE), receive(N))),
        ("Alltoall", lambda: comm.Alltoall(send(N * SIZE), receive(N * SIZE))),
    )


def refused(comm, classes, send=None, receive=None, names=(), only_root_receives=True):
    """Every collective raises one of `classes` for these buffers, and works afterwards."""
    for name, call in calls(comm, send, receive):
        if name == "Reduce" and receive is not None and only_root_receives and RANK != 0:
            # A receive buffer means nothing here, so that only the root can refuse it; its peers must not wait.
            continue
        with raises(*classes, names=names):
            call()
    still_works(comm)


def check_strided(comm):
    for make in (
        lambda n: np.zeros(2 * n)[::2],
        lambda n: np.zeros(n)[::-1],
        lambda n: np.zeros((n, 2))[:, 1],
        lambda n: np.zeros((3, n, 3)).transpose(1, 2, 0)[:, :1, :1],
        lambda n: np.broadcast_to(np.zeros(1), (n,)),
    ):
        refused(comm, (BufferError,), send=make, names="sendbuf")
    for make in (lambda n: np.zeros(2 * n)[::2], lambda n: np.zeros(n)[::-1], lambda n: np.zeros((n, 2))[:, 1]):
        refused(comm, (BufferError,), receive=make, names="recvbuf")
        with raises(BufferError, names="buf"):
            comm.Bcast(make(N))
    still_works(comm)


def check_strided_leaves_padding_alone(comm):
    base = np.full((N, 3), 7.0)
    with raises(BufferError, names="recvbuf"):
        comm.Allreduce(np.ones(N), base[:, 0])
    equal(base, np.full((N, 3), 7.0))
    still_works(comm)


def check_memory_orders(comm):
    """A matrix in C order and one in Fortran order hold their elements differently: refused, not transposed."""
    with raises(BufferError, ValueError, names="contiguous"):
        comm.Allreduce(np.zeros((N, 3)), np.zeros((N, 3), order="F"))
    still_works(comm)


def check_read_only_receive(comm):
    def frozen(n):
        array = np.zeros(n)
        array.flags.writeable = False
        return array

    refused(comm, (BufferError,), receive=frozen, names="recvbuf")
    refused(comm, (BufferError,), send=lambda n: np.zeros(n, np.uint8), receive=bytes, names="recvbuf")
    with raises(BufferError, names="recvbuf"):
        comm.Allreduce(MPI.IN_PLACE, frozen(N))
    still_works(comm)


def check_bcast_read_only_receive(comm):
    """Only ranks that receive can refuse; where all refuse nothing is left behind."""
    data = np.zeros(N)
    data.flags.writeable = False
    if SIZE > 1:
        with hetccl.Comm(WORLD) as other:
            root_is_elsewhere = (RANK + 1) % SIZE
            with raises(BufferError, names="buf"):
                other.Bcast(data, root=root_is_elsewhere)
    still_works(comm)


def check_byte_swapped(comm):
    swapped = np.dtype(np.float64).newbyteorder()
    refused(comm, (TypeError, BufferError), send=lambda n: np.zeros(n, swapped), names="sendbuf")
    refused(comm, (TypeError, BufferError), receive=lambda n: np.zeros(n, swapped), names="recvbuf")
    with raises(TypeError, BufferError, names="buf"):
        comm.Bcast(np.zeros(N, swapped))
    still_works(comm)


def check_object_and_void(comm):
    """Python objects go nowhere; elements that no reduction is defined on can be moved alone."""
    with raises(TypeError, BufferError, names="buf"):
        comm.Bcast(np.zeros(N, object))
    for dtype in ("V8", [("x", "f4"), ("y", "i4")], "M8[s]", "S3", "U2"):
        values = np.zeros(N, dtype)
        with raises(TypeError, names="recvbuf"):
            comm.Allreduce(values, values.copy())
        with raises(TypeError, names="recvbuf" if RANK == 0 else "sendbuf"):
            comm.Reduce(values, values.copy())
        with raises(TypeError, names="recvbuf"):
            comm.Scan(values, values.copy())
    still_works(comm)


def check_no_buffer(comm):
    for thing in (5, "text", [1.0, 2.0], object()):
        refused(comm, (TypeError, BufferError, ValueError), send=lambda n, thing=thing: thing, names="sendbuf")
    refused(comm, (TypeError,), receive=lambda n: None, names="recvbuf")
    still_works(comm)


def check_different_dtypes(comm):
    for other in (np.float32, np.int64, np.complex128):
        refused(comm, (ValueError,), receive=lambda n, other=other: np.zeros(n, other))


def check_short_receive(comm):
    untouched = []

    def short(n):
        untouched.append(Guarded(np.full(n - 1, 7.0)))
        return untouched[-1].array

    refused(comm, (ValueError,), receive=short, names="recvbuf")
    for buffer in untouched:
        equal(buffer.array, np.full(buffer.array.size, 7.0))
        assert buffer.overwritten() is None


def check_blocks_that_do_not_divide(comm):
    """A buffer that is cut into one block per rank must be a multiple of the number of ranks."""
    if SIZE == 1:
        return
    with raises(ValueError, names="buf"):
        comm.Alltoall(np.zeros(N * SIZE + 1), np.zeros(N * SIZE + 1))
    with raises(ValueError):
        comm.Reduce_scatter_block(np.zeros(N * SIZE + 1), np.zeros(N))
    with raises(ValueError, names="recvbuf"):
        comm.Allgather(MPI.IN_PLACE, np.zeros(N * SIZE + 1))
    still_works(comm)


def check_overlap(comm):
    """Send and receive memory that overlaps, wholly or by one element, is refused: that is what IN_PLACE is for."""
    base = np.zeros(3 * N * SIZE)
    for shift in (0, 1, N - 1):
        size = N * SIZE
        pairs = (
            (comm.Allreduce, base[:N], base[shift : shift + N]),
            (comm.Allgather, base[:N], base[shift : shift + size]),
            (comm.Reduce_scatter_block, base[:size], base[shift : shift + N]),
            (comm.Alltoall, base[:size], base[shift : shift + size]),
        )
        for call, send, receive in pairs:
            with raises(ValueError, BufferError, names="IN_PLACE"):
                call(send, receive)
    still_works(comm)
    # Neighbours that only touch do not overlap.
    base = np.arange(2.0 * N)
    comm.Allreduce(base[:N], base[N:])
    equal(base, np.concatenate([np.arange(N), SIZE * np.arange(N)]).astype(float))


def check_root_out_of_range(comm):
    data = np.zeros(N)
    for root in (SIZE, -1, SIZE + 7, -(2**31), 2**40):
        with raises(ValueError, OverflowError, names="root"):
            comm.Reduce(data, np.zeros(N), root=root)
        with raises(ValueError, OverflowError, names="root"):
            comm.Bcast(data, root=root)
    for root in ("0", 0.5, None):
        with raises(TypeError):
            comm.Bcast(data, root=root)
    still_works(comm)


def check_op_none(comm):
    with raises(TypeError, ValueError, names="op"):
        comm.Allreduce(np.zeros(N), np.zeros(N), op=None)
    still_works(comm)


def check_unknown_op(comm):
    for op in ("SUM", 17, object(), MPI.MAXLOC, MPI.BAND, MPI.REPLACE):
        for call in (
            lambda op=op: comm.Allreduce(np.zeros(N), np.zeros(N), op=op),
            lambda op=op: comm.Reduce(np.zeros(N), np.zeros(N), op=op),
            lambda op=op: comm.Reduce_scatter_block(np.zeros(N * SIZE), np.zeros(N), op=op),
        ):
            with raises(TypeError, ValueError, names="op"):
                call()
    still_works(comm)


def check_op_undefined_for_dtype(comm):
    import ml_dtypes

    for dtype, ops in (
        (np.complex64, (hetccl.MIN, hetccl.MAX)),
        (np.complex128, (hetccl.MIN, hetccl.MAX)),
        (np.bool_, (hetccl.AVG,)),
        (np.float32, (hetccl.LAND, hetccl.BXOR, hetccl.MINLOC)),
        (ml_dtypes.float8_e4m3fn, (hetccl.BAND, hetccl.LOR)),
        (np.int16, (hetccl.MAXLOC,)),
    ):
        for op in ops:
            with raises(TypeError, names=np.dtype(dtype).name):
                comm.Allreduce(np.zeros(N, dtype), np.zeros(N, dtype), op=op)
            with raises(TypeError):
                comm.Reduce_scatter_block(np.zeros(N * SIZE, dtype), np.zeros(N, dtype), op=op)
    still_works(comm)


def check_complex_product(comm):
    """The product of complex numbers: right, or refused; never the product of their parts."""
    parts = [np.array([1 + 2j, 3 - 1j]) * (rank + 1) for rank in range(SIZE)]
    out = np.zeros(2, complex)
    try:
        comm.Allreduce(parts[RANK], out, op=hetccl.PROD)
    except TypeError as error:
        assert "complex128" in str(error)
    else:
        equal(out, np.prod(parts, axis=0))
    still_works(comm)


def check_bad_in_place(comm):
    data = np.zeros(N)
    with raises(TypeError, ValueError, BufferError):
        comm.Allreduce(data, MPI.IN_PLACE)
    with raises(TypeError, ValueError, BufferError):
        comm.Bcast(MPI.IN_PLACE)
    with raises(TypeError, ValueError, BufferError):
        comm.Allreduce(MPI.IN_PLACE, MPI.IN_PLACE)
    still_works(comm)


def check_bad_specs(comm):
    data = np.zeros(N)
    for spec in ([], [data, N + 1, MPI.DOUBLE], [data, -1, MPI.DOUBLE], [data, N, MPI.DOUBLE, 1, 2]):
        with raises(TypeError, ValueError, BufferError, names="sendbuf"):
            comm.Allreduce(spec, np.zeros(N))
        with raises(TypeError, ValueError, BufferError, names="recvbuf"):
            comm.Allreduce(data, spec)
    still_works(comm)


def check_not_a_communicator(comm):
    """Comm takes a live MPI intracommunicator and nothing else."""
    for thing in (MPI.COMM_NULL, MPI.INFO_NULL, 0, "COMM_WORLD"):
        with raises(TypeError, ValueError):
            hetccl.Comm(thing)
    freed = WORLD.Dup()
    freed.Free()
    with raises(TypeError, ValueError):
        hetccl.Comm(freed)
    with raises(TypeError):
        hetccl.Comm()
    still_works(comm)


def check_unknown_algorithm(comm):
    """A name that no collective has is refused, not taken for the default."""
    os.environ["HETCCL_ALGORITHM"] = "hierarchic"
    try:
        with raises(hetccl.HetcclError, names=("HETCCL_ALGORITHM", "hierarchical")):
            hetccl.Comm(WORLD)
    finally:
        del os.environ["HETCCL_ALGORITHM"]
    still_works(comm)


def check_intercommunicator(comm):
    if SIZE == 1:
        return
    half = WORLD.Split(color=RANK % 2)
    inter = half.Create_intercomm(0, WORLD, 1 - RANK % 2, tag=3)
    with raises(TypeError, ValueError, names="ntercommunicator"):
        hetccl.Comm(inter)
    inter.Free()
    half.Free()
    still_works(comm)


if __name__ == "__main__":
    run_checks(globals())
