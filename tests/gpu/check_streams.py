"""Streams and lifetimes on a real GPU, with CuPy: calls are queued behind what the program queued before them.

No check synchronizes before its end: right and wrong values are counted on the device, by kernels on the same stream.
"""

import cupy as cp
import cupyx
import numpy as np
from device_support import ARRAYS, NEXT, RANK, SIZE, device_works, ramp, total
from support import equal, make_comm, process_counts, raises, resident_bytes, run_checks, still_works

import hetccl

RANKS = sum(range(SIZE))
SPIN = cp.RawKernel(
    """extern "C" __global__ void spin(long long nanoseconds) {
        long long begin, now;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
        do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - begin < nanoseconds);
    }""",
    "spin",
)


def spin(milliseconds):
    """Keep the current stream busy."""
    SPIN((1,), (1,), (np.int64(milliseconds * 1_000_000),))


class Tally:
    """Counts wrong results on the device, in the current stream."""

    def __init__(self):
        self.wrong = cp.zeros(1, np.int64)

    def expect(self, out, value):
        self.wrong += cp.count_nonzero(out != value)

    def check(self):
        cp.cuda.Device().synchronize()
        assert not self.wrong.get().any(), f"{self.wrong.get()} elements are wrong"


def check_ten_thousand_calls_on_changing_streams(comm):
    """Right after kernels of 1 to 50 ms now and then."""
    streams = [cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(), cp.cuda.Stream.null, cp.cuda.Stream.ptds]
    counts = (1, 7, 1023, 65537)
    parts = []
    for stream, count in zip(streams, counts):
        with stream:
            parts.append((stream, cp.zeros(count), cp.zeros(count), Tally()))
    cp.cuda.Device().synchronize()
    for number in range(10_000):
        stream, data, out, tally = parts[number % len(parts)]
        with stream:
            if number % 251 == 0:
                spin((1, 5, 20, 50)[(number + RANK) % 4])
            data.fill(number + RANK)
            comm.Allreduce(data, out)
            tally.expect(out, number * SIZE + RANKS)
            data.fill(-1)
    for *_, tally in parts:
        tally.check()


def check_temporaries(comm):
    """An array that the program lets go of at once is not overwritten by the next one in its place."""
    out, tally = cp.zeros(5000), Tally()
    for number in range(3000):
        if number % 300 == 0:
            spin(20)
        comm.Allreduce(cp.ones(5000) * (number + RANK), out)
        cp.full(5000, -1.0)
        tally.expect(out, number * SIZE + RANKS)
    tally.check()


def check_arrays_of_another_streams_pool(comm):
    """With stream=, the array library does not know who still reads: the call holds the array as long as needed."""
    other, tally = cp.cuda.Stream(non_blocking=True), Tally()
    outs = [cp.zeros(5000) for _ in range(4)]
    cp.cuda.Device().synchronize()
    for number in range(400):
        data = cp.full(5000, number + RANK, np.float64)
        other.wait_event(cp.cuda.get_current_stream().record())
        with other:
            if number % 50 == 0:
                spin(10)
        comm.Allreduce(data, outs[number % 4], stream=other)
        del data
        cp.full(5000, -1.0)
        with other:
            tally.expect(outs[number % 4], number * SIZE + RANKS)
    tally.check()


def check_requests_on_a_busy_stream(comm):
    stream, tally = cp.cuda.Stream(non_blocking=True), Tally()
    cp.cuda.Device().synchronize()
    with stream:
        data, out = cp.zeros(1000), cp.zeros(1000)
        for number in range(200):
            if number % 50 == 0:
                spin(10)
            data.fill(number + RANK)
            comm.Iallreduce(data, out).Wait()
            tally.expect(out, number * SIZE + RANKS)
    tally.check()


def check_request_is_complete_when_it_says_so(comm):
    """Test is false while the stream is busy; after Wait or a true Test another stream may use the result."""
    device_works(comm)
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        data, out = cp.full(1000, float(RANK)), cp.zeros(1000)
        spin(200)
        request = comm.Iallreduce(data, out)
    assert not request.Test()
    while not request.Test():
        pass
    stream.synchronize()
    equal(out.get(), np.full(1000, float(RANKS)))


def check_two_communicators_on_two_streams(comm):
    with make_comm() as second:
        parts = []
        for each in (comm, second):
            stream = cp.cuda.Stream(non_blocking=True)
            with stream:
                parts.append((each, stream, cp.zeros(3000), cp.zeros(3000), Tally()))
        cp.cuda.Device().synchronize()
        for number in range(2500):
            for each, stream, data, out, tally in parts:
                with stream:
                    if number % 500 == 0 and (each is comm) == (RANK % 2 == 0):
                        spin(5)
                    data.fill(number + RANK)
                    each.Allreduce(data, out)
                    tally.expect(out, number * SIZE + RANKS)
        for *_, tally in parts:
            tally.check()


def check_array_interface_says_its_stream(comm):
    """The `stream` key of __cuda_array_interface__ is waited for, and so is DLPack's exporter."""

    class Cai:
        def __init__(self, array, stream):
            self.__cuda_array_interface__ = {**array.__cuda_array_interface__, "stream": stream.ptr, "version": 3}

    class Dlpack:
        def __init__(self, array, stream):
            self.array, self.stream = array, stream

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

        def __dlpack__(self, **options):
            with self.stream:
                return self.array.__dlpack__(**options)

    stream, consumer, tally = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True), Tally()
    with consumer:
        out = cp.zeros(1000)
    cp.cuda.Device().synchronize()
    for number, cls in enumerate((Cai, Dlpack) * 5):
        with stream:
            spin(20)
            data = cp.full(1000, number + RANK, np.float64)
        with consumer:
            comm.Allreduce(cls(data, stream), out)
            tally.expect(out, number * SIZE + RANKS)
    tally.check()


def check_per_thread_default_stream(comm):
    for stream in (cp.cuda.Stream.ptds, cp.cuda.Stream.null):
        with stream:
            data, out, tally = cp.zeros(1000), cp.zeros(1000), Tally()
            for number in range(50):
                if number % 10 == 0:
                    spin(5)
                data.fill(number + RANK)
                comm.Allreduce(data, out, stream=None if number % 2 else stream)
                tally.expect(out, number * SIZE + RANKS)
            tally.check()


def check_graph(comm):
    """An all-reduce inside a CUDA graph reads and writes the same arrays at every launch."""
    device_works(comm)
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        data, out, tally = cp.zeros(1000), cp.zeros(1000), Tally()
        comm.Allreduce(data, out)
        stream.synchronize()
        stream.begin_capture()
        comm.Allreduce(data, out)
        comm.Allgather(out[:5], out[500 : 500 + 5 * SIZE])
        graph = stream.end_capture()
        for number in range(20):
            data.fill(number + RANK)
            graph.launch(stream)
            tally.expect(out, number * SIZE + RANKS)
        tally.check()
    device_works(comm)


def check_memory_kinds(comm):
    """Managed and pool memory is the device's; pinned and registered memory is the host's."""
    device_works(comm)
    pools = (cp.cuda.MemoryPool(cp.cuda.malloc_managed), cp.cuda.MemoryAsyncPool(), cp.cuda.MemoryPool())
    for pool in pools:
        with cp.cuda.using_allocator(pool.malloc):
            data, out = cp.asarray(ramp()), cp.zeros(12)
            comm.Allreduce(data, out)
            equal(out.get(), total())
    pinned = [cupyx.empty_pinned(12), cupyx.empty_pinned(12)]
    pinned[0][:] = ramp()
    comm.Allreduce(*pinned)
    equal(pinned[1], total())
    registered, back = np.zeros(1 << 15), np.zeros(1 << 15)
    registered[:] = ramp(count=1 << 15)
    cp.cuda.runtime.hostRegister(registered.ctypes.data, registered.nbytes, 0)
    try:
        comm.Allreduce(registered, back)
    finally:
        cp.cuda.runtime.hostUnregister(registered.ctypes.data)
    equal(back, total(1 << 15))
    for host in (pinned[0], registered[:12]):
        with raises(BufferError, TypeError, ValueError):
            comm.Allreduce(host, cp.zeros(12))
    device_works(comm)


def check_current_device_is_restored(comm):
    """Whatever device is current, the call runs on its arrays' device and leaves the current one as it was."""
    send, out = cp.asarray(ramp()), cp.zeros(12)
    cp.cuda.Device().synchronize()
    for device in range(cp.cuda.runtime.getDeviceCount()):
        with cp.cuda.Device(device):
            comm.Allreduce(send, out)
            comm.Iallreduce(send, out).Wait()
            assert cp.cuda.runtime.getDevice() == device
            with make_comm() as other:
                other.Allreduce(send, out)
            assert cp.cuda.runtime.getDevice() == device
    equal(out.get(), total())


def check_array_on_another_device(comm):
    """Refused on the ranks that do so, and the communicator still works."""
    device_works(comm)
    if cp.cuda.runtime.getDeviceCount() == 1:
        return
    with cp.cuda.Device(NEXT if SIZE > 1 else 1):
        elsewhere, out = cp.asarray(ramp()), cp.zeros(12)
    here = cp.asarray(ramp())
    for send, receive in ((elsewhere, out), (here, out), (elsewhere, here)):
        with raises(BufferError, ValueError, names="device"):
            comm.Allreduce(send, receive)
    device_works(comm)


def check_host_and_device_in_turns(comm):
    """Host collectives between device ones, while the device is still busy."""
    data, out, tally = cp.zeros(1000), cp.zeros(1000), Tally()
    for number in range(200):
        if number % 50 == 0:
            spin(10)
        data.fill(number + RANK)
        comm.Allreduce(data, out)
        still_works(comm)
        tally.expect(out, number * SIZE + RANKS)
    tally.check()


def check_hundred_thousand_small_calls_keep_no_memory(comm):
    data, out = cp.zeros(4), cp.zeros(4)
    for rounds in (10_000, 90_000):
        before = resident_bytes(), process_counts()
        for number in range(rounds):
            comm.Allreduce(data, out)
            if number % 1000 == 0:
                cp.cuda.get_current_stream().synchronize()
        cp.cuda.get_current_stream().synchronize()
        after = resident_bytes(), process_counts()
    assert after[0] - before[0] < 16 << 20, f"{after[0] - before[0]} bytes more"
    assert after[1][:2] == before[1][:2], f"open files and threads: {before[1]} -> {after[1]}"


def check_end_with_work_in_flight(comm):
    """Freeing a communicator whose calls are still queued behind a long kernel lets them finish."""
    other = make_comm()
    data, out = cp.full(1000, float(RANK)), cp.zeros(1000)
    other.Allreduce(data, out)
    spin(100)
    other.Allreduce(data, out)
    other.Free()
    equal(out.get(), np.full(1000, float(RANKS)))
    assert ARRAYS.device == cp.cuda.runtime.getDevice()
    device_works(comm)


def check_first_call_on_a_busy_device(comm):
    """Setting up the vendor's communicator does not disturb, and does not need an idle device."""
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        data, out = cp.zeros(10), cp.zeros(10)
        spin(300)
        data.fill(RANK)
        comm.Allreduce(data, out)
    stream.synchronize()
    equal(out.get(), np.full(10, float(RANKS)))


def check_average_of_the_last_rank(comm):
    """A root other than 0 and an op other than SUM, on a stream that is busy."""
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        data, out = cp.zeros(10), cp.zeros(10)
        spin(20)
        data.fill(RANK)
        comm.Reduce(data, out, op=hetccl.AVG, root=SIZE - 1)
    stream.synchronize()
    equal(out.get(), np.full(10, RANKS / SIZE if RANK == SIZE - 1 else 0.0))


if __name__ == "__main__":
    run_checks(globals())
