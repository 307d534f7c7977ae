"""What holds for messages between islands whose ends may be in GPU memory: on the fakes, and on real GPUs."""

import ctypes
import os
import time

import numpy as np
from device_support import ARRAYS, KIND, NEXT, PREVIOUS, RANK, SIZE, Device, device_works, ramp, total, zeros
from mpi4py import MPI
from support import Guarded, equal, raises, run_checks, still_works

import hetccl

# Bytes: none, few, what comes whole from host memory and one more, a portion, several; on two ranks more than a ring
# holds, too.
LARGE = (9 << 20) + 5
SIZES = (0, 1, 7, 1 << 20, (1 << 20) + 1, 8 << 20, LARGE, *([(34 << 20) + 3] if SIZE == 2 else []))
GUARD = 64


class Buffer:
    """A receive buffer with guard bytes on both sides, of this rank's kind of memory."""

    def __init__(self, nbytes):
        self.nbytes = nbytes
        self.device = Device(np.full(nbytes + 2 * GUARD, 0xA5, np.uint8))
        self.array = ARRAYS.view(self.device.raw, GUARD, GUARD + nbytes, np.dtype(np.uint8))

    def expect(self, want):
        got = self.device.get()
        assert (got[:GUARD] == 0xA5).all() and (got[GUARD + self.nbytes :] == 0xA5).all(), "guard bytes"
        equal(got[GUARD : GUARD + len(want)], want)


def data(nbytes, rank=RANK, number=0):
    """Bytes that differ by sender, message and place."""
    place = np.arange(nbytes, dtype=np.uint32)
    return (place * 7 + (place >> 11) + 31 * rank + 5 * number).astype(np.uint8)


def sent(nbytes, number=0):
    return Device(data(nbytes, RANK, number)).array


def check_both_directions(comm):
    """Around a ring of ranks, all sizes."""
    for number, nbytes in enumerate(SIZES):
        out = Buffer(nbytes)
        comm.Sendrecv(sent(nbytes, number), NEXT, number, out.array, PREVIOUS, number)
        out.expect(data(nbytes, PREVIOUS, number))


def check_one_direction(comm):
    """From each rank to the next in turn; the send returns before its receive is called."""
    for number, nbytes in enumerate((0, 13, SIZES[4], SIZES[-1])):
        for sender in range(SIZE):
            if sender == RANK:
                comm.Send(sent(nbytes, number), NEXT, 3)
            if (sender + 1) % SIZE == RANK:
                out = Buffer(nbytes)
                comm.Recv(out.array, sender, 3)
                out.expect(data(nbytes, sender, number))


def check_every_pair_in_a_group(comm):
    for nbytes in (0, 13, LARGE // 4):
        outs = [Buffer(nbytes + rank) for rank in range(SIZE)]
        with comm.group():
            for rank in range(SIZE):
                comm.Send(sent(nbytes + RANK, rank), rank, 5)
            for rank in reversed(range(SIZE)):
                comm.Recv(outs[rank].array, rank, 5)
        for rank, out in enumerate(outs):
            out.expect(data(nbytes + rank, rank, RANK))


def check_tags_in_another_order(comm):
    """Large ones, received last to first; small ones, by tags that the sender did not use in that order."""
    for nbytes in (9, LARGE // 3):
        outs = [Buffer(nbytes) for _ in range(5)]
        requests = [comm.Isend(sent(nbytes, number), NEXT, number) for number in range(5)]
        requests += [comm.Irecv(outs[number].array, PREVIOUS, number) for number in reversed(range(5))]
        for number in (5, 2, 9, 0, 7, 1, 3, 4, 6, 8):
            requests[number].Wait()
        for number, out in enumerate(outs):
            out.expect(data(nbytes, PREVIOUS, number))


def check_order_of_equal_tags(comm):
    """Messages of one sender and tag arrive in the order of their calls, whatever memory they come from."""
    outs = [Buffer(3000 + 1000 * number) for number in range(4)]
    host = [np.zeros(100 * (1 + number), np.uint8) for number in range(2)]
    requests = []
    for number, out in enumerate(outs):
        requests.append(comm.Irecv(out.array, PREVIOUS, 8))
        if number % 2:
            requests.append(comm.Irecv(host[number // 2], PREVIOUS, 8))
    for number in range(4):
        requests.append(comm.Isend(sent(3000 + 1000 * number, number), NEXT, 8))
        if number % 2:
            requests.append(comm.Isend(data(100 * (1 + number // 2), RANK, 9), NEXT, 8))
    hetccl.Request.Waitall(requests)
    for number, out in enumerate(outs):
        out.expect(data(3000 + 1000 * number, PREVIOUS, number))
    for number, got in enumerate(host):
        equal(got, data(100 * (1 + number), PREVIOUS, 9))


def check_any_source_and_tag(comm):
    """Rank 0 takes what comes, and its status says from whom; the receives are queued before anything is sent."""
    nbytes = LARGE // 5
    if RANK == 0:
        outs = [Buffer(nbytes) for _ in range(SIZE - 1)]
        requests = [comm.Irecv(out.array, MPI.ANY_SOURCE, MPI.ANY_TAG) for out in outs]
        senders = set()
        for request, out in zip(requests, outs):
            status = MPI.Status()
            request.Wait(status)
            sender = status.Get_source()
            assert status.Get_tag() == 10 + sender and status.Get_count(MPI.BYTE) == nbytes
            out.expect(data(nbytes, sender))
            senders.add(sender)
        assert senders == set(range(1, SIZE))
    else:
        comm.Send(sent(nbytes), 0, 10 + RANK)


def check_status_tells_a_shorter_message(comm):
    """With a status the call waits for its message on the host, and may get less than there is room for."""
    for nbytes in (0, 5, LARGE // 2):
        out, status = Buffer(LARGE), MPI.Status()
        request = comm.Isend(sent(nbytes), NEXT, 2)
        comm.Recv(out.array, PREVIOUS, MPI.ANY_TAG, status)
        assert (status.Get_source(), status.Get_tag(), status.Get_count(MPI.BYTE)) == (PREVIOUS, 2, nbytes)
        out.expect(np.concatenate([data(nbytes, PREVIOUS), np.full(LARGE - nbytes, 0xA5, np.uint8)]))
        request.Wait()


def check_a_longer_message_stays(comm):
    """The receive with a status raises, and the next one gets it."""
    request = comm.Isend(sent(5000), NEXT, 2)
    with raises(ValueError, names=["5000", "100"]):
        comm.Recv(Buffer(100).array, PREVIOUS, 2, MPI.Status())
    out = Buffer(5000)
    comm.Recv(out.array, PREVIOUS, 2)
    out.expect(data(5000, PREVIOUS))
    request.Wait()


def check_persistent(comm):
    for nbytes in (77, LARGE // 2):
        source, out = Device(data(nbytes)), Buffer(nbytes)
        requests = [comm.Send_init(source.array, NEXT, 4), comm.Recv_init(out.array, PREVIOUS, 4)]
        for number in range(3):
            source.array[:] = sent(nbytes, number)
            hetccl.Prequest.Startall(requests[:: 1 if number % 2 else -1])
            hetccl.Request.Waitall(requests)
            out.expect(data(nbytes, PREVIOUS, number))
        for request in requests:
            request.Free()


def check_synchronous(comm):
    """Ssend returns when its receive has begun; Issend completes then."""
    for nbytes in (10, LARGE // 3):
        out = Buffer(nbytes)
        if RANK == 0:
            request = comm.Issend(sent(nbytes), 1, 1)
            assert not request.Test()
            comm.Send(np.ones(1), 1, 99)
            request.Wait()
            comm.Ssend(sent(nbytes, 1), 1, 2)
        elif RANK == 1:
            comm.Recv(np.zeros(1), 0, 99)
            comm.Recv(out.array, 0, 1)
            out.expect(data(nbytes, 0))
            comm.Recv(out.array, 0, 2)
            out.expect(data(nbytes, 0, 1))


def check_replace(comm):
    for nbytes in (1, LARGE, SIZES[-1]):
        both = Buffer(nbytes)
        both.array[:] = sent(nbytes)
        comm.Sendrecv_replace(both.array, NEXT, 0, PREVIOUS, 0)
        both.expect(data(nbytes, PREVIOUS))


def check_probe(comm):
    """Messages from a GPU are seen with their length; a matched one goes to host memory."""
    nbytes = LARGE // 4
    request = comm.Isend(sent(nbytes), NEXT, 6)
    status = MPI.Status()
    comm.Probe(PREVIOUS, MPI.ANY_TAG, status)
    assert (status.Get_tag(), status.Get_count(MPI.BYTE)) == (6, nbytes)
    message = comm.Mprobe(PREVIOUS, 6)
    assert not comm.Iprobe(PREVIOUS, 6)
    got = Guarded(dtype=np.uint8, count=nbytes)
    message.Recv(got.array)
    equal(got.array, data(nbytes, PREVIOUS))
    assert got.overwritten() is None
    request.Wait()


def check_bsend_and_rsend(comm):
    for nbytes in (100, LARGE // 6):
        outs = [Buffer(nbytes), Buffer(nbytes)]
        requests = [comm.Irecv(out.array, PREVIOUS, number) for number, out in enumerate(outs)]
        comm.Bsend(sent(nbytes, 0), NEXT, 0)
        comm.Rsend(sent(nbytes, 1), NEXT, 1)
        hetccl.Request.Waitall(requests)
        for number, out in enumerate(outs):
            out.expect(data(nbytes, PREVIOUS, number))


def check_nobody(comm):
    out = Buffer(10)
    comm.Send(sent(10), MPI.PROC_NULL)
    comm.Recv(out.array, MPI.PROC_NULL)
    comm.Sendrecv(sent(10), MPI.PROC_NULL, 0, out.array, MPI.PROC_NULL, 0)
    out.expect(np.full(10, 0xA5, np.uint8))


def check_between_collectives(comm):
    """Messages and collectives on one stream, each using what the one before has brought."""
    for count in (50, (1 << 20) + 3):
        x, y, out = Device(ramp(count=count)), zeros(count), zeros(count)
        for number in range(3):
            comm.Sendrecv(x.array, NEXT, number, y.array, PREVIOUS, number)
            comm.Allreduce(y.array, out.array)
            comm.Send(out.array, NEXT, 50)
            comm.Recv(y.array, PREVIOUS, 50)
            comm.Bcast(y.array, root=number % SIZE)
        equal(y.get(), total(count))


def check_collectives_pass_messages_that_wait(comm):
    """A receive that comes late holds up neither a collective nor a message of another kind."""
    nbytes = LARGE // 8
    requests = [comm.Isend(sent(nbytes, number), NEXT, number) for number in range(6)]
    device_works(comm)
    still_works(comm)
    got = np.zeros(5)
    comm.Sendrecv(np.full(5, 1.0 + RANK), NEXT, 77, got, PREVIOUS, 77)
    equal(got, np.full(5, 1.0 + PREVIOUS))
    outs = [Buffer(nbytes) for _ in range(6)]
    for number in (3, 0, 5, 1, 4, 2):
        comm.Recv(outs[number].array, PREVIOUS, number)
    for number, out in enumerate(outs):
        out.expect(data(nbytes, PREVIOUS, number))
    hetccl.Request.Waitall(requests)


def check_host_wait_does_not_hold_up_messages(comm):
    """What waits for a host message has the GPU's messages queued that its sender waits for."""
    nbytes = LARGE // 2
    if RANK == 0:
        request = comm.Isend(sent(nbytes), 1, 1)
        answer = np.zeros(1)
        comm.Irecv(answer, 1, 2).Wait()
        equal(answer, np.full(1, 5.0))
        request.Wait()
    elif RANK == 1:
        out = Buffer(nbytes)
        comm.Recv(out.array, 0, 1)
        out.expect(data(nbytes, 0))
        comm.Send(np.full(1, 5.0), 0, 2)


def check_mixed_group(comm):
    """Host and GPU messages and a collective, started together."""
    out, total_, host = Buffer(LARGE), zeros(30), np.zeros(7)
    with comm.group():
        comm.Recv(host, PREVIOUS, 1)
        comm.Send(sent(LARGE), NEXT, 2)
        comm.Allreduce(Device(ramp(count=30)).array, total_.array)
        comm.Recv(out.array, PREVIOUS, 2)
        comm.Send(np.full(7, 3.0 * RANK), NEXT, 1)
    out.expect(data(LARGE, PREVIOUS))
    equal(total_.get(), total(30))
    equal(host, np.full(7, 3.0 * PREVIOUS))


def check_test_until_done(comm):
    out = Buffer(LARGE)
    requests = [comm.Irecv(out.array, PREVIOUS, 1), comm.Isend(sent(LARGE), NEXT, 1)]
    end = time.monotonic() + 60
    while not hetccl.Request.Testall(requests):
        assert time.monotonic() < end
    out.expect(data(LARGE, PREVIOUS))


def check_many_small(comm):
    """More than there are berths, in both directions, and temporaries whose memory others get."""
    outs = [Buffer(40 + number) for number in range(150)]
    requests = [comm.Irecv(out.array, PREVIOUS, number) for number, out in enumerate(outs)]
    for number in range(150):
        requests.append(comm.Isend(sent(40 + number, number), NEXT, number))
        Device(np.full(40 + number, 0xEE, np.uint8))
    hetccl.Request.Waitall(requests)
    for number, out in enumerate(outs):
        out.expect(data(40 + number, PREVIOUS, number))


def check_free_delivers(comm):
    """What has been sent is there although the sender frees the communicator at once."""
    copy = comm.Dup()
    if RANK == 0:
        copy.Send(sent(LARGE), 1)
    elif RANK == 1:
        time.sleep(0.3)
        out = Buffer(LARGE)
        copy.Recv(out.array, 0)
        out.expect(data(LARGE, 0))
    copy.Free()
    device_works(comm)


def check_few_commands(comm):
    """The GPU's queue gets fewer commands than a large call has pieces of 8 MiB, each of which would take four."""
    fake = ctypes.CDLL(os.environ["HETCCL_HIP_LIB" if KIND == "H" else "HETCCL_CUDA_LIB"])
    fake.fakeCalls.restype = ctypes.c_long
    functions = ("MemcpyAsync", "StreamWaitValue32", "StreamWaitValue32_v2", "LaunchHostFunc")

    def commands():
        return sum(
            fake.fakeCalls(f"{library}{function}".encode()) for function in functions for library in ("cu", "hip")
        )

    x, out = zeros((128 << 20) // 8), zeros((128 << 20) // 8)
    before = commands()
    comm.Allreduce(x.array, out.array)
    assert KIND == "N" or 0 < commands() - before <= 40 * (1 + (KIND == "H")), commands() - before


if __name__ == "__main__":
    run_checks(globals())
