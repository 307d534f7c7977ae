"""Inside a guest: what RDMA devices register of users' memory, that it is right when addresses are used again and after
forks, and what happens when no more may be pinned."""

import contextlib
import ctypes
import gc
import logging
import mmap
import os
import resource
import subprocess
import sys
import traceback

import numpy as np
from mpi4py import MPI

from hetccl import CommClosed, _mr_cache
from mpi.support import equal, raises, run_checks

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.Get_size(), WORLD.Get_rank()
NEXT, BEFORE = (RANK + 1) % SIZE, (RANK - 1) % SIZE
COUNT = 1 << 15
M_MMAP_THRESHOLD = -3
MAP_FIXED = 0x10
LINUX_CAPABILITY_VERSION_3, CAP_IPC_LOCK = 0x20080522, 14

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)


def values(seed, rank=RANK):
    """Different for each rank, place and seed."""
    return np.arange(COUNT, dtype=np.int64) * 7 + 1000003 * seed + 17 * rank


def pass_on(comm, send, recv, seed):
    """Send to the next rank, and compare what comes from the one before with what that must have sent."""
    recv[:] = -1
    comm.Sendrecv(send, NEXT, seed, recv, BEFORE, seed)
    equal(recv, values(seed, BEFORE))


def arrays():
    """Registrations of users' memory on the first device."""
    return _mr_cache.registered()[0]["arrays"]


def check_arrays_are_registered_once_and_given_back(comm):
    send, recv = values(1), np.empty(COUNT, np.int64)
    for _ in range(3):
        pass_on(comm, send, recv, 1)
    for device in _mr_cache.registered():
        assert (device["arrays"], device["nbytes"]) == (2, 2 * send.nbytes), device
    del send
    assert arrays() == 1
    del recv
    assert arrays() == 0


def check_arrays_at_used_addresses(comm):
    """Each array is a mapping of its own, which goes with it: the next one at its address has other pages."""
    assert libc.mallopt(M_MMAP_THRESHOLD, 1 << 16) == 1
    seen, again = set(), 0
    for seed in range(25):
        send, recv = values(seed), np.empty(COUNT, np.int64)
        again += send.ctypes.data in seen and recv.ctypes.data in seen
        seen |= {send.ctypes.data, recv.ctypes.data}
        pass_on(comm, send, recv, seed)
        assert arrays() == 2
        del send, recv
    assert again > 5, f"addresses were used again {again} times"


def check_memory_mapped_again_behind_our_back(comm):
    nbytes = 8 * COUNT
    place = libc.mmap(None, 2 * nbytes, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    for seed in range(5):
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED
        assert libc.mmap(place, 2 * nbytes, 3, flags, -1, 0) == place
        both = np.ctypeslib.as_array((ctypes.c_int64 * (2 * COUNT)).from_address(place))
        both[:COUNT] = values(seed)
        pass_on(comm, both[:COUNT], both[COUNT:], seed)
        assert arrays() == 0


def check_buffers_that_the_user_registers(comm):
    data = bytearray(8 * COUNT)
    send, recv = np.frombuffer(data, np.int64), np.empty(COUNT, np.int64)
    send[:] = values(3)
    pass_on(comm, send, recv, 3)
    assert arrays() == 1
    with comm.register(data) as registered:
        assert registered.devices == len(_mr_cache.registered())
        assert arrays() == 2
        pass_on(comm, send, recv, 3)
    assert arrays() == 1
    send[:] = values(4)
    pass_on(comm, send, recv, 4)


def check_a_child_of_fork(comm):
    """It may touch what its parent has registered, and so may the parent; only the parent's communicator works."""
    send, recv = values(5), np.empty(COUNT, np.int64)
    pass_on(comm, send, recv, 5)
    before = _mr_cache.registered()
    said, say = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            equal(send, values(5))
            send[:] = recv[:] = 99
            with raises(CommClosed):
                comm.Allreduce(send, recv)
            del send, recv
            gc.collect()
        except BaseException:
            os.write(say, traceback.format_exc().encode())
        os._exit(0)
    os.close(say)
    send[:] = values(6)
    pass_on(comm, send, recv, 6)
    with open(said) as pipe:
        problem = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert (problem, status) == ("", 0), f"the child ended with {status}: {problem}"
    subprocess.run([sys.executable, "-c", "pass"], check=True, timeout=60)
    send[:] = values(7)
    pass_on(comm, send, recv, 7)
    assert _mr_cache.registered() == before


def check_what_may_not_be_pinned_is_staged(comm):
    small = np.full(4, RANK + 1)
    comm.Allreduce(small, np.empty(4, np.int64))
    with no_more_pinned_memory(), records() as logged:
        for seed in range(3):
            send, recv = values(seed), np.empty(COUNT, np.int64)
            pass_on(comm, send, recv, seed)
            pass_on(comm, send, recv, seed)
            assert arrays() == 0
        with comm.register(send) as registered:
            assert registered.devices == 0
    said = [record.getMessage() for record in logged if "ulimit -l" in record.getMessage()]
    assert len(said) == len(_mr_cache.registered()), said
    for part in ("ENOMEM", "64 KiB", "limits.conf"):
        assert part in said[0], said
    send = values(8)
    pass_on(comm, send, recv, 8)
    assert arrays() == 1, "what is new is tried"


def give_up_ipc_lock():
    """Be limited in what may be pinned, as a user is. Before a device is opened: the kernel takes no more work on it
    from a process whose credentials have changed."""
    header = (ctypes.c_uint32 * 2)(LINUX_CAPABILITY_VERSION_3, 0)
    caps = (ctypes.c_uint32 * 6)()
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert libc.capget(header, caps) == 0
    caps[0] &= ~(1 << CAP_IPC_LOCK)
    assert libc.capset(header, caps) == 0


@contextlib.contextmanager
def no_more_pinned_memory():
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 * 1024, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@contextlib.contextmanager
def records():
    """The records that hetccl logs meanwhile."""
    found = []

    class Keep(logging.Handler):
        def emit(self, record):
            found.append(record)

    handler, logger = Keep(), logging.getLogger("hetccl")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield found
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


if __name__ == "__main__":
    give_up_ipc_lock()
    run_checks(globals())
