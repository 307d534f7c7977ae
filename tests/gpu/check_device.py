"""What holds for device arrays of every library, on real GPUs and on the fakes, beside the matrix."""

import time

import numpy as np
from device_arrays import from_numpy
from device_cases import REFUSED
from device_support import ARRAYS, NEXT, PREVIOUS, RANK, SIZE, WORLD, Device, device_works, ramp, total, zeros
from mpi4py import MPI
from reference import dtype_of
from support import equal, make_comm, raises, run_checks, still_works

import hetccl

LARGE = 1 << 18


def check_host_and_device_calls_on_one_communicator(comm):
    for count in (5, LARGE):
        still_works(comm)
        out = zeros(count)
        comm.Allreduce(Device(ramp(count=count)).array, out.array)
        equal(out.get(), total(count))
    still_works(comm)


def check_alltoallw(comm):
    """Blocks of their own lengths, places and types: bytes to some, doubles to others."""
    types = [(MPI.DOUBLE, MPI.BYTE)[(RANK + peer) % 2] for peer in range(SIZE)]
    counts = [4 if kind is MPI.DOUBLE else 32 for kind in types]
    offsets = [32 * peer for peer in range(SIZE)]
    data = np.concatenate([ramp(RANK, 4) + 1000 * peer for peer in range(SIZE)])
    send, receive = Device(data), zeros(4 * SIZE)
    comm.Alltoallw([send.array, (counts, offsets), types], [receive.array, (counts, offsets), types])
    equal(receive.get(), np.concatenate([ramp(peer, 4) + 1000 * RANK for peer in range(SIZE)]))


def check_send_and_receive(comm):
    """Blocking messages in the order that every MPI program uses."""
    if SIZE == 1:
        return
    for count in (1, 7, LARGE):
        data = zeros(count)
        if RANK == 0:
            comm.Send(Device(ramp(0, count)).array, NEXT, 3)
            comm.Recv(data.array, PREVIOUS, 3)
        else:
            comm.Recv(data.array, PREVIOUS, 3)
            comm.Send(Device(ramp(RANK, count)).array, NEXT, 3)
        equal(data.get(), ramp(PREVIOUS, count))


def check_receive_is_posted_first(comm):
    """Every rank posts its receive before its send: in a group, since a library's receive waits on the stream."""
    if SIZE == 1:
        return
    for count in (1, LARGE):
        data = zeros(count)
        with comm.group():
            comm.Recv(data.array, PREVIOUS, 1)
            comm.Send(Device(ramp(count=count)).array, NEXT, 1)
        equal(data.get(), ramp(PREVIOUS, count))


def check_messages_keep_their_order(comm):
    outs = [zeros(5) for _ in range(8)]
    with comm.group():
        for number, out in enumerate(outs):
            comm.Send(Device(ramp(count=5) + number).array, NEXT, 2)
            comm.Recv(out.array, PREVIOUS, 2)
    for number, out in enumerate(outs):
        equal(out.get(), ramp(PREVIOUS, 5) + number)


def check_group_of_many(comm):
    """Messages both ways round a ring and two collectives, as one."""
    data, back, out, copy = zeros(LARGE), zeros(LARGE), zeros(), zeros()
    if RANK == 0:
        copy = Device(ramp(7))
    with comm.group():
        comm.Send(Device(ramp(count=LARGE)).array, NEXT, 1)
        comm.Send(Device(ramp(count=LARGE) + 1).array, PREVIOUS, 2)
        comm.Recv(data.array, PREVIOUS, 1)
        comm.Recv(back.array, NEXT, 2)
        comm.Allreduce(Device(ramp()).array, out.array)
        comm.Bcast(copy.array, root=0)
    equal(data.get(), ramp(PREVIOUS, LARGE))
    equal(back.get(), ramp(NEXT, LARGE) + 1)
    equal(out.get(), total())
    equal(copy.get(), ramp(7))


def check_persistent_calls_read_again(comm):
    """Each start reads what the buffers hold then."""
    send, out = Device(ramp()), zeros()
    request = comm.Allreduce_init(send.array, out.array)
    for number in range(3):
        send.array[:] = Device(ramp() + number).array
        request.Start()
        request.Wait()
        equal(out.get(), total() + SIZE * number)
    request.Free()


def check_average_is_near(comm):
    """AVG divides by the number of ranks; the libraries may round each rank's part before they add."""
    for name, limit in (("float32", 1e-6), ("float64", 1e-14), ("float16", 2e-3)):
        out = zeros(12, name)
        comm.Allreduce(Device(ramp(dtype=name)).array, out.array, op=hetccl.AVG)
        want = sum(ramp(rank) for rank in range(SIZE)) / SIZE
        assert np.allclose(out.get(), want, rtol=limit, atol=0), (name, out.get(), want)


def check_premultiplied_sum(comm):
    out = zeros()
    comm.Allreduce(Device(ramp()).array, out.array, op=hetccl.premul_sum(0.5))
    equal(out.get(), total() / 2)


def check_refused_dtypes_and_ops(comm):
    """What no vendor's library reduces is a TypeError on every rank, before anything has moved."""
    for dtype, op in REFUSED:
        if dtype not in ARRAYS.carries:
            continue
        send, out = Device(np.ones(7, dtype_of(dtype))), Device(np.full(7, 3).astype(dtype))
        for call in (comm.Allreduce, comm.Reduce, comm.Scan, comm.Exscan, comm.Iallreduce):
            with raises(TypeError):
                call(send.array, out.array, op=getattr(hetccl, op))
        equal(out.get(), np.full(7, 3).astype(dtype))
    device_works(comm)


def check_own_op_and_long_double_are_refused(comm):
    out = zeros()
    op = MPI.Op.Create(lambda a, b, dt: None, commute=True)
    with raises(TypeError):
        comm.Allreduce(Device(ramp()).array, out.array, op=op)
    op.Free()
    wide, back = Device(np.ones(2, np.longdouble).view(np.uint8)), zeros(32, np.uint8)
    with raises(TypeError):
        comm.Allreduce([wide.array, 2, MPI.LONG_DOUBLE], [back.array, 2, MPI.LONG_DOUBLE])
    device_works(comm)


def check_mixed_host_and_device(comm):
    """One buffer on the host and one on the device: an error that says so, either way round."""
    device, host = zeros(), ramp()
    for send, receive in ((host, device.array), (device.array, host)):
        with raises(BufferError, TypeError, ValueError):
            comm.Allreduce(send, receive)
        with raises(BufferError, TypeError, ValueError):
            comm.Allgather(send[:1], receive[:SIZE])
    equal(host, ramp())
    device_works(comm)


def check_strided_arrays(comm):
    wide = Device(np.stack([ramp(), ramp()], axis=1))
    column, out = wide.array.reshape(12, 2)[:, 0], zeros()
    with raises(BufferError, names="sendbuf"):
        comm.Allreduce(column, out.array)
    with raises(BufferError, names="recvbuf"):
        comm.Allreduce(out.array, column)
    device_works(comm)


def check_overlapping_buffers(comm):
    both = Device(ramp(count=18))
    with raises(BufferError, ValueError):
        comm.Allreduce(both.array[:12], both.array[6:])
    equal(both.get(), ramp(count=18))
    device_works(comm)


def check_counts_and_types_that_differ(comm):
    short, out = zeros(11), zeros()
    with raises(ValueError):
        comm.Allreduce(Device(ramp()).array, short.array)
    with raises(TypeError, ValueError):
        comm.Allreduce(Device(ramp(dtype=np.float32)).array, out.array)
    device_works(comm)


def check_stream_argument(comm):
    """0 is the legacy default stream; what is no stream is refused."""
    out = zeros()
    comm.Allreduce(Device(ramp()).array, out.array, stream=0)
    equal(out.get(), total())
    for wrong, error in ((-1, ValueError), ("0", TypeError), (1.5, TypeError), (object(), TypeError)):
        with raises(error, names="stream"):
            comm.Allreduce(Device(ramp()).array, out.array, stream=wrong)
    device_works(comm)


def check_copies_and_parts(comm):
    """Communicators made from one that has used the device, and before it has."""
    with make_comm() as fresh:
        for parent in (comm, fresh):
            child = parent.Split(RANK % 2, -RANK)
            ranks = [rank for rank in reversed(range(SIZE)) if rank % 2 == RANK % 2]
            out = zeros(3 * len(ranks))
            child.Allgather(Device(ramp(count=3)).array, out.array)
            equal(out.get(), np.concatenate([ramp(rank, 3) for rank in ranks]))
            copy = parent.Dup()
            device_works(copy)
            copy.Free()
            child.Free()
            device_works(parent)


def check_part_without_some_ranks(comm):
    device_works(comm)
    child = comm.Split(0 if RANK == 0 else MPI.UNDEFINED)
    assert bool(child) == (RANK == 0)
    if child:
        out = zeros()
        child.Allreduce(Device(ramp()).array, out.array)
        equal(out.get(), ramp())
        child.Free()
    device_works(comm)


def check_many_communicators(comm):
    for _ in range(5):
        with make_comm() as other:
            device_works(other)
    device_works(comm)


def check_closed_communicator(comm):
    other = make_comm()
    device_works(other)
    other.Free()
    with raises(hetccl.CommClosed):
        other.Allreduce(Device(ramp()).array, zeros().array)
    device_works(comm)


def check_first_device_call_is_a_message(comm):
    """The vendor's communicator is set up by all ranks at whatever call comes first."""
    data = zeros()
    comm.Sendrecv(Device(ramp()).array, NEXT, 1, data.array, PREVIOUS, 1)
    equal(data.get(), ramp(PREVIOUS))


def check_device_is_named_at_construction(comm):
    with hetccl.Comm(WORLD, device=ARRAYS.device) as early:
        device_works(early)
    for wrong, error in ((-1, ValueError), (4096, ValueError), ("0", TypeError)):
        with raises(error, names="device"):
            hetccl.Comm(WORLD, device=wrong)


def check_two_ranks_on_one_device(comm):
    """An error on every rank, before the library is asked, that names the ranks."""
    if SIZE == 1:
        return
    arrays = type(ARRAYS)(0)
    try:
        with make_comm() as other, raises(hetccl.HetcclError, ValueError, names=("0", "1")):
            other.Allreduce(from_numpy(arrays, ramp()), from_numpy(arrays, ramp()))
    finally:
        type(ARRAYS)(RANK)
    device_works(comm)


def check_barrier(comm):
    """It is done with host memory, and every rank comes before any leaves."""
    device_works(comm)
    if RANK == 0:
        time.sleep(0.2)
    entered = time.monotonic()
    comm.Barrier()
    left = time.monotonic()
    assert left >= max(WORLD.allgather(entered))
    device_works(comm)


def check_zero_sized_arrays_decide_nothing(comm):
    empty = from_numpy(ARRAYS, np.zeros(0))
    comm.Allreduce(empty, empty)
    device_works(comm)


if __name__ == "__main__":
    run_checks(globals())
