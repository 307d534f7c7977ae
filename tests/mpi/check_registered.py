"""Buffers of calls and of Comm.register on a communicator that believes to have RDMA devices: what is registered, when,
and that it is given back. The device is the fake of tests/fakes/fakemr.c; the data go through shared memory."""

import contextlib
import dataclasses
import gc
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI
from support import equal, raises, run_checks

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
import mr_fake as fake  # noqa: E402

import hetccl  # noqa: E402
from hetccl import _mr_trial, bootstrap  # noqa: E402

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.Get_size(), WORLD.Get_rank()
FROM_BYTES = 1 << 16
COUNT = 3 << 14


def join_with_devices(join):
    return lambda comm: dataclasses.replace(join(comm), note_bytes=FROM_BYTES)


@contextlib.contextmanager
def device():
    """(a communicator with one device, its cache); nothing may be registered afterwards."""
    gc.collect()
    library = fake.load()
    library.fake_reset()
    cache = _mr_trial.Cache(library.fake_table(), 0, "fake0")
    cache.limit(100, 1 << 40)
    join = bootstrap.join
    bootstrap.join = join_with_devices(join)
    try:
        comm = hetccl.Comm(WORLD)
    finally:
        bootstrap.join = join
    try:
        yield comm, cache
    finally:
        comm.Free()
        gc.collect()
        cache.close()
        assert library.fake_live() == 0, f"{library.fake_live()} registrations are left"


def is_noted(cache, array):
    """Whether a rail would get keys for the array's memory."""
    keys = cache.get(array.ctypes.data, array.nbytes)
    if keys is not None:
        keys.put()
    return keys is not None


def check_a_call_notes_its_large_buffers(_):
    with device() as (comm, cache):
        send, recv = np.full(COUNT, RANK + 1.0), np.empty(COUNT)
        small, total = np.full(10, 1.0), np.empty(10)
        comm.Allreduce(small, total)
        comm.Allreduce(send, recv)
        equal(recv, np.full(COUNT, SIZE * (SIZE + 1) / 2))
        assert is_noted(cache, send) and is_noted(cache, recv)
        assert not is_noted(cache, small) and not is_noted(cache, total)
        del send
        assert cache.counts == (1, recv.nbytes, 0)


CALLS = {
    "Bcast": lambda comm, x, y: comm.Bcast(x, root=0),
    "Send and Recv": lambda comm, x, y: comm.Sendrecv(x, (RANK + 1) % SIZE, 3, y, (RANK - 1) % SIZE, 3),
    "Isend and Irecv": lambda comm, x, y: hetccl.Request.Waitall(
        [comm.Irecv(y, (RANK - 1) % SIZE), comm.Isend(x, (RANK + 1) % SIZE)]
    ),
    "Allgatherv": lambda comm, x, y: comm.Allgatherv(x[: COUNT // SIZE], y),
    "Alltoallv": lambda comm, x, y: comm.Alltoallv(x, y),
    "Reduce in place": lambda comm, x, y: comm.Reduce(hetccl.IN_PLACE if RANK == 0 else x, x, root=0),
    "Allreduce with a spec": lambda comm, x, y: comm.Allreduce([x[8:], COUNT - 16], [y, (COUNT - 16, 4)]),
}


def check_every_kind_of_call_notes(_):
    for name, call in CALLS.items():
        with device() as (comm, cache):
            x, y = np.full(COUNT, RANK + 1.0), np.zeros(COUNT)
            call(comm, x, y)
            assert is_noted(cache, x), name
            assert is_noted(cache, y) == (name not in ("Bcast", "Reduce in place")), name


def check_a_persistent_call_notes(_):
    with device() as (comm, cache):
        x, y = np.full(COUNT, RANK + 1.0), np.zeros(COUNT)
        request = comm.Allreduce_init(x, y)
        for _ in range(3):
            request.Start()
            request.Wait()
        equal(y, np.full(COUNT, SIZE * (SIZE + 1) / 2))
        assert is_noted(cache, x) and is_noted(cache, y)


def check_buffers_of_unknown_life_work_all_the_same(_):
    with device() as (comm, cache):
        data = bytearray(np.full(COUNT, RANK + 1.0))
        recv = np.empty(COUNT)
        comm.Allreduce([data, "d"], recv)
        equal(recv, np.full(COUNT, SIZE * (SIZE + 1) / 2))
        assert not is_noted(cache, np.frombuffer(data))
        data.extend(b"12345678")


def check_layouts_are_packed_and_not_noted(_):
    with device() as (comm, cache):
        x, y = np.arange(2.0 * COUNT), np.zeros(COUNT)
        column = MPI.DOUBLE.Create_vector(COUNT, 1, 2).Commit()
        comm.Sendrecv([x, 1, column], (RANK + 1) % SIZE, 0, y, (RANK - 1) % SIZE, 0)
        column.Free()
        equal(y, x[::2])
        assert not is_noted(cache, x)
        assert is_noted(cache, y)


def check_register(_):
    with device() as (comm, cache):
        data = bytearray(8 * COUNT)
        array = np.frombuffer(data)
        with comm.register(data) as registered:
            assert registered.devices == 1
            assert is_noted(cache, array)
            assert cache.counts == (1, 8 * COUNT, 0)
            comm.Allreduce(hetccl.IN_PLACE, array)
        assert registered.devices == 0
        assert not is_noted(cache, array)
        del array
        data.extend(b"x")


def check_registered_memory_stays_where_it_is(_):
    with device() as (comm, _):
        data = bytearray(8 * COUNT)
        registered = comm.register(data)
        with raises(BufferError):
            data.extend(b"x")
        registered.Free()
        data.extend(b"x")
        registered.Free()


def check_registered_twice_and_in_parts(_):
    with device() as (comm, cache):
        x = np.zeros(COUNT)
        first, second = comm.register(x), comm.register(x[10:20])
        assert (first.devices, second.devices) == (1, 1)
        first.Free()
        assert is_noted(cache, x)
        second.Free()
        assert is_noted(cache, x), "its owner lives"


def check_a_registration_that_is_dropped_ends(_):
    with device() as (comm, cache):
        data = bytearray(8 * COUNT)
        registered = comm.register(data)
        assert cache.counts[0] == 1
        del registered
        gc.collect()
        assert cache.counts[0] == 1, "the communicator holds it"
    with device() as (comm, cache):
        comm.register(bytearray(8 * COUNT))
        comm.register(np.zeros(COUNT))
        assert cache.counts[0] == 2


def check_what_cannot_be_registered_says_so(_):
    with device() as (comm, _):
        fake.load().fake_fail(fake.REG, 0, 100, 14)
        x = np.zeros(COUNT)
        with comm.register(x) as registered:
            assert registered.devices == 0
            comm.Allreduce(hetccl.IN_PLACE, x)


def check_register_refuses(_):
    with device() as (comm, _):
        with raises(ValueError, names="array"):
            comm.register(np.zeros(0))
        with raises(BufferError, names="array"):
            comm.register(np.zeros(COUNT)[::2])
        with raises(TypeError, names="array"):
            comm.register(None)
        with raises(TypeError, names="array"):
            comm.register(3)


def check_register_without_devices(comm):
    x = np.zeros(COUNT)
    with comm.register(x) as registered:
        assert registered.devices == 0
        comm.Allreduce(hetccl.IN_PLACE, x)
    with raises(ValueError, names="array"):
        comm.register(np.zeros(0))


if __name__ == "__main__":
    run_checks(globals())
