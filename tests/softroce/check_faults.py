"""Inside a guest with four devices: cables pulled, lost packets, short queues, slow receivers and wrong settings, each
met with the right data or with an error that says what failed; nothing is left behind.

Rank 0 has rxe0 and rxe2, rank 1 rxe1 and rxe3: a rail between the first two, and another between the others.
"""

import contextlib
import fcntl
import gc
import os
import socket
import struct
import threading
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import hetccl
from mpi.support import equal, make_comm, process_counts, raises, resident_bytes, run_checks
from softroce.alone import loss, resources

WORLD = MPI.COMM_WORLD
RANK = WORLD.Get_rank()
PEER = 1 - RANK
ONE_RAIL = {"HETCCL_IB_HCA": f"rxe{RANK}"}
TWO_RAILS = {"HETCCL_IB_HCA": f"rxe{RANK},rxe{RANK + 2}"}
# The retry limit: (2 + 1) x 67 ms, and ticks of the kernel; the default's is 7.5 s.
SOON = {"HETCCL_IB_TIMEOUT": "14", "HETCCL_IB_RETRY_CNT": "2"}
# Of the time-out, 60 s, none may be used up.
BOUND_S = 30
MANY_BYTES = 16 << 20
GONE_S = 10
IFREQ = struct.Struct("16sh22x")
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


def values(seed, count, rank=RANK):
    """Different for each rank, place and seed."""
    return np.arange(count, dtype=np.int64) * 7 + 1000003 * seed + 17 * rank


def swap(comm, nbytes, seed=1):
    """Send to the other rank and compare what comes from it."""
    count = nbytes // 8
    send, recv = values(seed, count), np.full(count, -1, np.int64)
    comm.Sendrecv(send, PEER, seed, recv, PEER, seed)
    equal(recv, values(seed, count, PEER))


@contextlib.contextmanager
def communicator(settings, gone=()):
    """A communicator with variables of its own; afterwards the kernel must have as many objects as before, but for
    devices that are gone."""
    WORLD.Barrier()
    before = {device: counts for device, counts in resources().items() if device not in gone}
    WORLD.Barrier()
    kept = dict(os.environ)
    os.environ.update(settings)
    try:
        comm = make_comm()
    finally:
        os.environ.clear()
        os.environ.update(kept)
    try:
        yield comm
    finally:
        comm.Free()
        WORLD.Barrier()
    assert_left(before, gone)


def assert_left(before, gone):
    """The other rank may still be giving back what it had."""
    end = time.monotonic() + GONE_S
    while (now := {device: counts for device, counts in resources().items() if device not in gone}) != before:
        gc.collect()
        assert time.monotonic() < end, f"left behind: {now}, before: {before}"
        time.sleep(0.1)


def set_link(port, up):
    """`ip link set PORT up` or `down`, in less time than a process takes to start there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        name, flags = struct.unpack(
            "16sh", fcntl.ioctl(sock, SIOCGIFFLAGS, struct.pack("16sh14x", port.encode(), 0))[:18]
        )
        flags = flags | IFF_UP if up else flags & ~IFF_UP
        fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sh14x", name, flags))


def received(nic):
    return int(Path("/sys/class/net", nic, "statistics/rx_bytes").read_text())


@contextlib.contextmanager
def pulled(port, back_after=None, after_bytes=MANY_BYTES // 16):
    """Rank 0 pulls the cable of a port once so many bytes have come through it, and plugs it in again: after some
    seconds, or at the end. Yields a list that gets the bytes which had come."""
    nic, came, problems = port.replace("port", "nic"), [], []

    def pull():
        start, end = received(nic), time.monotonic() + BOUND_S
        while received(nic) < start + after_bytes:
            if time.monotonic() > end:
                problems.append(f"only {received(nic) - start} bytes came through {nic}")
                return
            time.sleep(0.001)
        set_link(port, False)
        came.append(received(nic) - start)
        if back_after is not None:
            time.sleep(back_after)
            set_link(port, True)

    thread = threading.Thread(target=pull)
    if RANK == 0:
        thread.start()
    try:
        yield came
    finally:
        if RANK == 0:
            thread.join()
            set_link(port, True)
        WORLD.Barrier()
    assert not problems, problems


def check_cable_back_before_the_retry_limit(_):
    with communicator(ONE_RAIL) as comm:
        swap(comm, 64)
        with pulled("port1", back_after=1) as came:
            swap(comm, MANY_BYTES)
        assert RANK or came[0] < MANY_BYTES, f"the transfer was over: {came}"
        swap(comm, 1 << 20, 2)


def check_cable_pulled_for_good(_):
    with communicator(ONE_RAIL | SOON) as comm:
        swap(comm, 64)
        with pulled("port1"):
            start = time.monotonic()
            text = refused(comm, MANY_BYTES)
            assert time.monotonic() - start < BOUND_S
        # Each rank says what its own device met, or what the other rank told when it closed the rail.
        assert "RETRY_EXC_ERR" in text and "on rxe" in text, text
        start = time.monotonic()
        refused(comm, 64)
        assert time.monotonic() - start < BOUND_S


def refused(comm, nbytes):
    """The text of the PeerError that a transfer must end with; its frames would keep the buffers alive."""
    with raises(hetccl.PeerError) as caught:
        swap(comm, nbytes)
    error = caught.pop()
    assert error.peer == PEER, error.peer
    return str(error)


def check_cable_of_the_only_rail_pulled_while_idle(_):
    with communicator(ONE_RAIL | SOON) as comm:
        swap(comm, 64)
        with pulled("port1", after_bytes=0) as came:
            while RANK == 0 and not came:
                time.sleep(0.01)
            WORLD.Barrier()
            assert "RETRY_EXC_ERR" in refused(comm, 64)


def check_one_of_two_cables_pulled(_):
    with communicator(TWO_RAILS | SOON) as comm:
        swap(comm, 64)
        with pulled("port1") as came:
            swap(comm, 2 * MANY_BYTES)
            swap(comm, 64, 2)
            swap(comm, 1 << 20, 3)
        assert RANK or came[0] < MANY_BYTES, f"the transfer over this rail was over: {came}"
        swap(comm, 1 << 20, 4)


def check_the_other_of_two_cables_pulled(_):
    with communicator(TWO_RAILS | SOON) as comm:
        swap(comm, 64)
        with pulled("port3") as came:
            swap(comm, 2 * MANY_BYTES)
            swap(comm, 64, 2)
        assert RANK or came[0] < MANY_BYTES, f"the transfer over this rail was over: {came}"
        swap(comm, 1 << 20, 3)


def check_both_cables_pulled(_):
    with communicator(TWO_RAILS | SOON) as comm:
        swap(comm, 64)
        with pulled("port1"), pulled("port3"):
            assert "RETRY_EXC_ERR" in refused(comm, 2 * MANY_BYTES)


def lose(percent, most_bytes, settings):
    """Messages of up to so many bytes, and a collective, while both ranks' packets are lost."""
    with communicator(ONE_RAIL | settings) as comm:
        swap(comm, 64)
        with loss(percent, f"nic{RANK}"):
            WORLD.Barrier()
            for seed in range(20):
                swap(comm, 8 + 8 * seed, seed)
            for nbytes in (32760, 32768, 32776, most_bytes // 4, most_bytes):
                swap(comm, nbytes, nbytes)
            total = np.empty(4097, np.int64)
            comm.Allreduce(values(3, 4097), total)
            equal(total, values(3, 4097) + values(3, 4097, PEER))
            WORLD.Barrier()


def check_one_packet_of_a_hundred_lost(_):
    lose(1, 4 << 20, {})


def check_one_packet_of_ten_lost(_):
    # A device counts the tries of a request, which may be hundreds of packets: six are soon used up. 7 is without end;
    # each lasts 17 ms in the place of a second.
    lose(10, 256 << 10, {"HETCCL_IB_RETRY_CNT": "7", "HETCCL_IB_TIMEOUT": "12"})


def stream(comm, messages, window, pause=0):
    """Rank 0 sends messages of 1 to 8 numbers, `window` at once; rank 1 receives them, the first after a pause."""
    if RANK == 1:
        time.sleep(pause)
    for first in range(0, messages, window):
        numbers = range(first, min(messages, first + window))
        if RANK == 0:
            hetccl.Request.Waitall([comm.Isend(values(n, 1 + n % 8), 1, 5) for n in numbers])
            continue
        arrays = [np.full(8, -1, np.int64) for _ in numbers]
        hetccl.Request.Waitall([comm.Irecv(array[: 1 + n % 8], 0, 5) for n, array in zip(numbers, arrays)])
        for n, array in zip(numbers, arrays):
            equal(array[: 1 + n % 8], values(n, 1 + n % 8, 0))
            assert (array[1 + n % 8 :] == -1).all()


def check_ten_thousand_messages_through_a_short_send_queue(_):
    with communicator(ONE_RAIL | {"HETCCL_IB_SEND_QUEUE": "16"}) as comm:
        stream(comm, 10000, 100)
        swap(comm, 4 << 20)


def check_large_messages_through_the_shortest_send_queue(_):
    with communicator(TWO_RAILS | {"HETCCL_IB_SEND_QUEUE": "8"}) as comm:
        for seed in range(3):
            swap(comm, (4 << 20) + 8, seed)


def check_slow_receiver(_):
    with communicator(ONE_RAIL) as comm:
        stream(comm, 100, 50)
        before = resident_bytes()
        stream(comm, 1000, 50, pause=5)
        grown = resident_bytes() - before
        assert grown < 16 << 20, f"memory has grown by {grown} bytes"


def check_gid_index_that_no_port_has(_):
    wrong(ONE_RAIL | {"HETCCL_IB_GID_INDEX": "7"}, ("HETCCL_IB_GID_INDEX=7", "GID 7 is empty", f"rxe{RANK}"))


def check_device_that_is_not_there(_):
    wrong({"HETCCL_IB_HCA": "mlx5_0"}, ("HETCCL_IB_HCA=mlx5_0", "no RDMA device", "rxe0"))


def wrong(settings, names):
    start = time.monotonic()
    with raises(hetccl.HetcclError, names=("rank 0: ValueError", "rank 1: ValueError", *names)):
        with communicator(settings):
            pass
    assert time.monotonic() - start < BOUND_S
    with communicator(ONE_RAIL) as comm:
        swap(comm, 64)


def check_fifty_communicators(_):
    """The first ones may make what is made once."""

    def several(number):
        for seed in range(number):
            with communicator(TWO_RAILS) as comm:
                swap(comm, 64, seed)
                swap(comm, 1 << 17, seed)

    several(3)
    files, threads, _ = process_counts()
    several(50)
    assert process_counts()[:2] == (files, threads), f"{process_counts()} files and threads, before: {files}, {threads}"


if __name__ == "__main__":
    run_checks(globals(), build=None)
