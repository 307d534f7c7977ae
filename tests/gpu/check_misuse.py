"""What programs do wrong, or seldom: on the fakes, each check with the faults that test_misuse.py asks of them."""

import gc
import signal
import sys
import threading
import time
import types
import weakref
from pathlib import Path

import numpy as np
from device_support import NEXT, PREVIOUS, RANK, SIZE, WORLD, Device, device_works, ramp, total, zeros
from mpi4py import MPI
from support import equal, raises, run_checks, signal_in_wait, still_works

import hetccl
from hetccl import _buffer


class Interrupted(Exception):
    pass


def handled_in_wait(handler):
    """Have a signal handler run once this thread waits."""
    signal.signal(signal.SIGALRM, handler)
    signal_in_wait(signal.SIGALRM)


def check_receive_before_group(comm):
    """A receive that waits to be queued goes with the group's sends: alone it would block the stream they come on."""
    device_works(comm)
    first, second = zeros(5), zeros(5)
    request = comm.Irecv(first.array, PREVIOUS)
    with comm.group():
        late = comm.Irecv(second.array, PREVIOUS)
        comm.Send(Device(ramp(count=5)).array, NEXT)
        comm.Send(Device(ramp(count=5) + 1).array, NEXT)
    request.Wait()
    late.Wait()
    equal(first.get(), ramp(PREVIOUS, 5))
    equal(second.get(), ramp(PREVIOUS, 5) + 1)


def check_collective_in_a_group_after_a_receive(comm):
    """Reading the arguments of a collective inside a group queues nothing."""
    device_works(comm)
    got, out = zeros(5), zeros(5)
    request = comm.Irecv(got.array, PREVIOUS)
    with comm.group():
        comm.Allreduce(Device(ramp(count=5)).array, out.array)
        comm.Send(Device(ramp(count=5)).array, NEXT)
    request.Wait()
    equal(got.get(), ramp(PREVIOUS, 5))
    equal(out.get(), sum(ramp(rank, 5) for rank in range(SIZE)))


def check_library_without_broadcast(comm):
    """Nothing stands in for what the library lacks, and it is no success."""
    device_works(comm)
    buffer = Device(ramp())
    with raises(hetccl.SymbolNotFound, names="ncclBroadcast"):
        comm.Bcast(buffer.array)
    equal(buffer.get(), ramp())
    device_works(comm)


def check_two_threads_wait(comm):
    """Neither thread is told that a message has come while the other still queues it."""
    device_works(comm)
    out, got = zeros(5), []
    if RANK == 0:
        request = comm.Irecv(out.array, 1)

        def wait():
            request.Wait()
            got.append(out.get())

        threads = [threading.Thread(target=wait) for _ in range(2)]
        for thread in threads:
            thread.start()
            time.sleep(0.3)
        for thread in threads:
            thread.join()
        for values in got:
            equal(values, ramp(1, 5))
        assert len(got) == 2
    elif RANK == 1:
        time.sleep(1)
        comm.Send(Device(ramp(count=5)).array, 0)
    WORLD.Barrier()
    device_works(comm)


def check_device_of_one_rank_is_wrong(comm):
    """All ranks hear of it, with the rank and the argument."""
    wrong = (("0", TypeError), (1.5, TypeError), (2**40, ValueError), (-(2**70), ValueError), (-1, ValueError))
    for value, error in wrong:
        with raises(error, names=("rank 0: device",)):
            hetccl.Comm(WORLD, device=value if RANK == 0 else RANK)
    still_works(comm)


def check_no_op(comm):
    """op=None is refused, also where arrays have a current stream and the call takes the short way."""
    send, out = Device(ramp()), zeros()
    _buffer.describe(send.array)  # how it is read is known before the library is there
    stream = types.SimpleNamespace(cuda_stream=0)
    cuda = types.SimpleNamespace(current_stream=lambda device: stream)
    sys.modules["torch"] = types.SimpleNamespace(Tensor=type(send.array), cuda=cuda)
    try:
        for _ in range(2):
            comm.Allreduce(send.array, out.array)
            equal(out.get(), total())
        before = out.get()
        with raises(TypeError, names="op"):
            comm.Allreduce(send.array, out.array, None)
        with raises(TypeError, names="op"):
            comm.Reduce_scatter_block(send.array, zeros(12 // SIZE).array, op=None)
        equal(out.get(), before)
    finally:
        del sys.modules["torch"]
    device_works(comm)


def check_calls_from_a_signal_handler(comm):
    """The thread is inside the library: whatever needs it is refused, and does not wait for itself."""
    comm = hetccl.Comm(WORLD, device=RANK)
    caught = []

    def handle(*_):
        for call in (
            lambda: comm.Allreduce(Device(ramp()).array, zeros().array),
            lambda: comm.register(Device(ramp()).array),
            comm.Dup,
            comm.Free,
        ):
            with raises(RuntimeError, names="signal handler") as errors:
                call()
            caught.extend(errors)

    send, out = Device(ramp()), zeros()
    with raises(hetccl.CommTimeout):
        handled_in_wait(handle)
        comm.Allreduce(send.array, out.array)
    assert len(caught) == 4
    comm.Free()


def check_interrupted_wait(comm):
    """The stream goes on behind a wait that was given up: the buffers are kept."""
    send, out = Device(ramp()), zeros()
    arrays = [weakref.ref(send.array), weakref.ref(out.array)]
    request = comm.Iallreduce(send.array, out.array)

    def handle(*_):
        raise Interrupted

    with raises(Interrupted):
        handled_in_wait(handle)
        request.Wait()
    del send, out, request
    gc.collect()
    assert all(array() is not None for array in arrays)


def check_registrations_are_forgotten(comm):
    device_works(comm)
    data = Device(ramp())
    for _ in range(50):
        with comm.register(data.array):
            pass
    gc.collect()
    assert not [1 for thing in gc.get_objects() if type(thing).__name__ == "Registration"]
    with raises(ValueError, names="array"):
        comm.register(zeros(0).array)


def segments():
    return sum("hetccl" in line for line in Path("/proc/self/maps").read_text().splitlines() if ".so" not in line)


def check_library_cannot_free(comm):
    """The error is raised, and the rest is given back."""
    before = segments()
    other = hetccl.Comm(WORLD, device=RANK)
    assert segments() > before
    with raises(hetccl.NcclError, names="ncclCommDestroy"):
        other.Free()
    assert segments() == before


def check_group_with_a_wrong_call(comm):
    """A message to oneself without its other side is refused; host calls of the group are done all the same."""
    device_works(comm)
    out = np.zeros(3)
    with raises(ValueError, names="itself"), comm.group():
        comm.Allreduce(np.arange(3.0) + RANK, out)
        comm.Send(Device(ramp()).array, RANK)
    equal(out, np.arange(3.0) * SIZE + sum(range(SIZE)))
    still_works(comm)
    device_works(comm)


def check_argument_is_named(comm):
    """As the call names it: buf where there is one."""
    device_works(comm)
    gaps = MPI.DOUBLE.Create_vector(3, 1, 2).Commit()
    spec = [Device(ramp()).array, 1, gaps]
    for call in (lambda: comm.Bcast(spec, 0), lambda: comm.Isend(spec, NEXT), lambda: comm.Irecv(spec, PREVIOUS)):
        with raises(NotImplementedError) as errors:
            call()
        assert str(errors[0]).startswith("buf:"), errors
    gaps.Free()
    device_works(comm)


class Claim:
    """Says of an allocation what it is told to."""

    def __init__(self, address, count):
        data = {"shape": (count,), "typestr": "<f8", "data": (address, False), "version": 3}
        self.__cuda_array_interface__ = data


def check_claims_beyond_the_memory(comm):
    device_works(comm)
    data = Device(ramp())
    for count in (2**20, 2**33, 2**59):
        with raises(ValueError, names="recvbuf"):
            comm.Allreduce(hetccl.IN_PLACE, Claim(data.raw.address, count))
    equal(data.get(), ramp())
    comm.Allreduce(hetccl.IN_PLACE, Claim(data.raw.address, 12))
    equal(data.get(), total())


if __name__ == "__main__":
    run_checks(globals())
