"""Calls between islands on real GPUs, with CuPy, behind kernels that take long; see check_streams for the rest."""

import cupy as cp
import numpy as np
from check_streams import Tally, spin
from device_support import RANK, SIZE, device_works
from support import raises, run_checks

import hetccl

RANKS = sum(range(SIZE))
# Several portions, and an odd end.
LARGE = (1 << 23) + 5


def check_long_producers_before_large_calls(comm):
    """Kernels of 50 ms before the call, whose result is used at once, and whose operand is overwritten at once."""
    stream, tally = cp.cuda.Stream(non_blocking=True), Tally()
    cp.cuda.Device().synchronize()
    with stream:
        data, out = cp.zeros(LARGE, np.float32), cp.zeros(LARGE, np.float32)
        for number in range(6):
            spin(50)
            data.fill(number + RANK)
            comm.Allreduce(data, out)
            data.fill(-1)
            tally.expect(out, number * SIZE + RANKS)
            comm.Allgather(out[:1001], data[: 1001 * SIZE])
            tally.expect(data[: 1001 * SIZE], number * SIZE + RANKS)
    stream.synchronize()
    tally.check()


def check_large_temporaries(comm):
    out, tally = cp.zeros(LARGE, np.float32), Tally()
    for number in range(20):
        if number % 5 == 0:
            spin(20)
        comm.Allreduce(cp.full(LARGE, number + RANK, np.float32), out)
        cp.full(LARGE, -1.0, np.float32)
        tally.expect(out, number * SIZE + RANKS)
    tally.check()


def check_the_host_is_not_blocked(comm):
    """The call returns while the kernel before it runs: the stream is busy, and Test says so."""
    device_works(comm)
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        data, out = cp.full(1000, float(RANK)), cp.zeros(1000)
        stream.synchronize()
        spin(500)
        comm.Allreduce(data, out)
        request = comm.Iallreduce(data, out)
    assert not stream.done and not request.Test()
    request.Wait()
    stream.synchronize()
    assert (out.get() == RANKS).all()


def check_capture_is_refused(comm):
    """A graph's replay would not reach the engine; what the stream captured before stays whole."""
    device_works(comm)
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        data, out = cp.zeros(1000), cp.zeros(1000)
        stream.synchronize()
        stream.begin_capture()
        data += 1
        for call in (comm.Allreduce, comm.Iallreduce):
            with raises(ValueError, names="graph"):
                call(data, out)
        graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()
        assert (data.get() == 1).all()
    device_works(comm)


def check_half_precision_rounds_once(comm):
    """float16 is added up in float32: sums that float16 cannot hold on the way come out right."""
    values = np.full(999, 40000.0 if RANK == 0 else -39000.0 / (SIZE - 1), np.float16)
    out = cp.zeros(999, np.float16)
    comm.Allreduce(cp.asarray(values), out)
    want = np.float16(40000.0) + np.float32(np.float16(-39000.0 / (SIZE - 1))) * (SIZE - 1)
    assert (out.get() == np.float16(want)).all()
    comm.Allreduce(cp.asarray(values), out, op=hetccl.MAX)
    assert (out.get() == 40000.0).all()


if __name__ == "__main__":
    run_checks(globals())
