"""What holds for calls on GPU buffers between islands, beside the matrix: on the fakes, emulated, and on real GPUs."""

import gc
import time

import device_arrays
import numpy as np
from device_support import KIND, PLACE, RANK, SIZE, Device, device_works, ramp, total, zeros
from mpi4py import MPI
from reference import dtype_of
from support import equal, make_comm, process_counts, raises, resident_bytes, run_checks, still_works

import hetccl

# More than a portion, and an odd end.
LARGE = 3 * (1 << 20) + 17
ROUNDS = 1000


def expect(buffer, want):
    equal(buffer.get(), want)


def check_host_calls_beside(comm):
    """Calls on host memory and on GPU memory take turns."""
    for count in (5, LARGE):
        still_works(comm)
        out = zeros(count)
        comm.Allreduce(Device(ramp(count=count)).array, out.array)
        expect(out, total(count))
    still_works(comm)


def check_many_requests_under_way(comm):
    outs = [zeros(1000 + number) for number in range(20)]
    sends = [Device(ramp(count=1000 + number) + number) for number in range(20)]
    requests = [comm.Iallreduce(send.array, out.array) for send, out in zip(sends, outs)]
    hetccl.Request.Waitall(requests[::2])
    for number, out in enumerate(outs):
        requests[number].Wait()
        expect(out, total(1000 + number) + SIZE * number)


def check_test_until_done(comm):
    out = zeros(LARGE)
    request = comm.Iallreduce(Device(ramp(count=LARGE)).array, out.array)
    end = time.monotonic() + 60
    while not request.Test():
        assert time.monotonic() < end
    expect(out, total(LARGE))


def check_persistent_calls_read_again(comm):
    send, out = Device(ramp()), zeros()
    request = comm.Allreduce_init(send.array, out.array)
    for number in range(50):
        send.array[:] = Device(ramp() + number).array
        request.Start()
        request.Wait()
        expect(out, total() + SIZE * number)
    request.Free()


def check_group(comm):
    """Calls in GPU memory and in host memory, started together."""
    outs, host = [zeros(100 + number) for number in range(5)], np.zeros(9)
    with comm.group():
        for number, out in enumerate(outs):
            comm.Allreduce(Device(ramp(count=100 + number)).array, out.array)
        comm.Allreduce(ramp(count=9), host)
    for number, out in enumerate(outs):
        expect(out, total(100 + number))
    equal(host, total(9))


def check_premultiplied_sum(comm):
    """Each rank's own factor; in place too, in one portion and in several, and on parts of unequal length."""
    factor = 0.5 * (1 + RANK)
    for count in (12, LARGE):
        want = sum(ramp(rank, count) * 0.5 * (1 + rank) for rank in range(SIZE))
        out, both = zeros(count), Device(ramp(count=count))
        comm.Allreduce(Device(ramp(count=count)).array, out.array, op=hetccl.premul_sum(factor))
        comm.Allreduce(hetccl.IN_PLACE, both.array, op=hetccl.premul_sum(factor))
        expect(out, want)
        expect(both, want)
        counts = [count // SIZE + (rank < count % SIZE) for rank in range(SIZE)]
        part = zeros(counts[RANK])
        comm.Reduce_scatter(Device(ramp(count=count)).array, part.array, counts, op=hetccl.premul_sum(factor))
        begin = sum(counts[:RANK])
        expect(part, want[begin : begin + counts[RANK]])


def check_gaps_keep_their_bytes(comm):
    """Parts with gaps between them, received in several portions."""
    for each in (3, LARGE // SIZE):
        gap = 5
        out = Device(np.full((each + gap) * SIZE, -7.0))
        places = [(each + gap) * rank for rank in range(SIZE)]
        comm.Allgatherv(Device(ramp(count=each)).array, [out.array, ([each] * SIZE, places), MPI.DOUBLE])
        want = np.full((each + gap) * SIZE, -7.0)
        for rank, place in enumerate(places):
            want[place : place + each] = ramp(rank, each)
        expect(out, want)


def check_first_of_an_exscan_keeps_its_bytes(comm):
    out = Device(np.full(LARGE, -7.0))
    comm.Exscan(Device(ramp(count=LARGE)).array, out.array)
    expect(out, sum(ramp(rank, LARGE) for rank in range(RANK)) if RANK else np.full(LARGE, -7.0))


def check_alltoallw(comm):
    types = [(MPI.DOUBLE, MPI.BYTE)[(RANK + peer) % 2] for peer in range(SIZE)]
    counts = [4 if kind is MPI.DOUBLE else 32 for kind in types]
    offsets = [32 * peer for peer in range(SIZE)]
    data = np.concatenate([ramp(RANK, 4) + 1000 * peer for peer in range(SIZE)])
    send, receive = Device(data), zeros(4 * SIZE)
    comm.Alltoallw([send.array, (counts, offsets), types], [receive.array, (counts, offsets), types])
    expect(receive, np.concatenate([ramp(peer, 4) + 1000 * RANK for peer in range(SIZE)]))


def check_large_values_in_every_call(comm):
    """Several portions of each call, whose results are used as the operands of the next."""
    count = LARGE // SIZE * SIZE
    block = count // SIZE
    x, y, part = Device(ramp(count=count)), zeros(count), zeros(block)
    comm.Reduce_scatter_block(x.array, part.array)
    comm.Allgather(part.array, y.array)
    expect(y, total(count))
    comm.Alltoall(y.array, x.array)
    expect(x, np.tile(total(count)[RANK * block : (RANK + 1) * block], SIZE))
    comm.Bcast(y.array, root=SIZE - 1)
    expect(y, total(count))


def check_temporaries(comm):
    """Operands that the program drops at once, whose memory others get."""
    outs = [zeros(500) for _ in range(50)]
    for number, out in enumerate(outs):
        comm.Allreduce(Device(ramp(count=500) + number).array, out.array)
        Device(np.full(500, -1.0))
    for number, out in enumerate(outs):
        expect(out, total(500) + SIZE * number)


def check_thousand_calls_keep_memory_flat(comm):
    send, out = Device(ramp(count=100)), zeros(100)

    def calls(n):
        for _ in range(n):
            comm.Allreduce(send.array, out.array)
        expect(out, total(100))
        gc.collect()
        return resident_bytes(), process_counts()

    calls(ROUNDS)
    (before, counts), (after, later) = calls(1), calls(ROUNDS)
    # A call that kept its pinned memory would take 64 KiB each time; the arrays of the fakes take some.
    assert after - before < 8 << 20, (before, after)
    assert all(b - a <= 2 for a, b in zip(counts, later)), (counts, later)


def check_sizes_that_grow(comm):
    """The ring's memory is replaced while calls are under way."""
    for power in (0, 10, 16, 18, 20, 4):
        outs = [zeros(1 << power) for _ in range(6)]
        for out in outs:
            comm.Allreduce(Device(ramp(count=1 << power)).array, out.array)
        for out in outs:
            expect(out, total(1 << power))


def check_children(comm):
    """Copies have rings of their own; a part in another order has its own order of results."""
    with comm.Dup() as copy:
        device_works(copy)
        device_works(comm)
    with comm.Split(0, SIZE - RANK) as turned:
        out = zeros(5 * SIZE)
        turned.Allgather(Device(ramp(count=5)).array, out.array)
        expect(out, np.concatenate([ramp(rank, 5) for rank in reversed(range(SIZE))]))
    device_works(comm)


def check_many_communicators(comm):
    """Streams, events and pinned memory are given back."""

    def round_trip(n):
        for _ in range(n):
            with comm.Dup() as copy:
                for count in (33, 50_000):
                    device_works(copy, count)
        gc.collect()
        return process_counts()

    round_trip(3)
    before, after = round_trip(1), round_trip(10)
    assert all(b - a <= 3 for a, b in zip(before, after)), (before, after)


def check_two_communicators(comm):
    """Calls of two communicators, interleaved in the same order on all ranks."""
    with comm.Dup() as other:
        outs = [zeros(2000) for _ in range(20)]
        requests = [
            (comm, other)[number % 2].Iallreduce(Device(ramp(count=2000) + number).array, out.array)
            for number, out in enumerate(outs)
        ]
        hetccl.Request.Waitall(requests)
        for number, out in enumerate(outs):
            expect(out, total(2000) + SIZE * number)


def check_free_with_calls_under_way(comm):
    """Free waits for what is queued."""
    out = zeros(LARGE)
    copy = comm.Dup()
    copy.Allreduce(Device(ramp(count=LARGE)).array, out.array)
    copy.Free()
    expect(out, total(LARGE))


def check_dropped_communicator(comm):
    """One that is not freed goes with its last call's end."""
    out = zeros()
    made = make_comm()
    made.Allreduce(Device(ramp()).array, out.array)
    expect(out, total())
    MPI.COMM_WORLD.Barrier()
    del made
    gc.collect()
    device_works(comm)


def check_refused(comm):
    """Errors before a byte moves, after which the communicator works."""
    if KIND != "N":
        x, out = Device(ramp()), zeros()
        with raises(TypeError, names="function"):
            comm.Allreduce(x.array, out.array, op=hetccl.Op.Create(lambda a, b, t: None))
        with raises(ValueError, names="memory"):
            comm.Allreduce(np.zeros(12), out.array)
        with raises(ValueError):
            comm.Allreduce(zeros(11).array, out.array)
        types = [MPI.DOUBLE.Create_vector(2, 1, 2).Commit()] * SIZE
        with raises(NotImplementedError, names="gaps"):
            comm.Alltoallw([x.array, ([0] * SIZE, [0] * SIZE), types], [out.array, ([0] * SIZE, [0] * SIZE), types])
    device_works(comm)


def check_compared_calls(comm):
    """HETCCL_CHECK: every rank hears that the roots differ, and that the counts do; nothing waits for the rest."""
    out = zeros(7)
    device_works(comm)
    with raises(ValueError, names="root"):
        comm.Bcast(Device(ramp(count=7)).array, root=RANK % 2)
    with raises(ValueError, names="count"):
        comm.Allreduce(Device(ramp(count=5 + RANK % 2)).array, zeros(5 + RANK % 2).array)
    request = comm.Iallreduce(Device(ramp(count=7)).array, out.array)
    request.Wait()
    expect(out, total(7))
    device_works(comm)


def check_every_dtype_of_the_engine(comm):
    """Those that no vendor's library reduces."""
    for name in ("int16", "uint16", "float8_e4m3fn", "bfloat16", "complex64", "bool"):
        if name not in device_arrays.LIBRARIES[PLACE].carries:
            continue
        dtype = dtype_of(name)
        values = np.array([1, 0, 1, 1, 0], dtype)
        out = zeros(5, dtype)
        comm.Allreduce(Device(values).array, out.array, op=hetccl.PROD)
        expect(out, values)


if __name__ == "__main__":
    run_checks(globals())
