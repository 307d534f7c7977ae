"""Inside a guest with four devices: queue pairs that break, ports that are down from the start.
Ranks and devices are those of check_faults.py.
"""

import os
import struct
import subprocess
import threading
import time
from pathlib import Path

from mpi4py import MPI

import hetccl
from mpi.support import raises, run_checks
from softroce.check_faults import (
    BOUND_S,
    MANY_BYTES,
    ONE_RAIL,
    RANK,
    SOON,
    TWO_RAILS,
    communicator,
    received,
    refused,
    set_link,
    swap,
)  # fmt: skip

WORLD = MPI.COMM_WORLD
PORT_DOWN_S = 10
# Commands of /dev/infiniband/uverbs, as <rdma/ib_user_verbs.h> numbers them: number, words in, words out.
MODIFY_QP = struct.Struct("<IHH 64x I I 16x 4x 4x B 15x")
MODIFY_QP_COMMAND, QP_STATE_MASK, STATE_ERR = 26, 1, 6
HANDLES = 256


def devices_open():
    """{uverbs device: descriptors of this process}"""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        target = os.path.realpath(f"/proc/self/fd/{name}")
        if target.startswith("/dev/infiniband/uverbs"):
            found.setdefault(Path(target).name, []).append(int(name))
    return found


def break_queue_pairs(device):
    """Put all queue pairs that this process has on a device to ERR, behind the back of libibverbs. Returns how many."""
    broken = 0
    for uverbs, descriptors in devices_open().items():
        if Path("/sys/class/infiniband_verbs", uverbs, "ibdev").read_text().strip() != device:
            continue
        for descriptor in descriptors:
            for handle in range(HANDLES):
                command = MODIFY_QP.pack(
                    MODIFY_QP_COMMAND, MODIFY_QP.size // 4, 0, handle, QP_STATE_MASK, STATE_ERR
                )  # fmt: skip
                try:
                    os.write(descriptor, command)
                    broken += 1
                except OSError:  # not a queue pair, or nothing
                    continue
    return broken


class Breaker:
    """While the block runs, rank 0 breaks its queue pairs on rxe0 once some of the data has come."""

    def __enter__(self):
        self.broken = 0
        self.thread = threading.Thread(target=self._run)
        if RANK == 0:
            self.thread.start()
        return self

    def _run(self):
        start, end = received("nic0"), time.monotonic() + BOUND_S
        while received("nic0") < start + MANY_BYTES // 16 and time.monotonic() < end:
            time.sleep(0.001)
        self.broken = break_queue_pairs("rxe0")

    def __exit__(self, *raised):
        if RANK == 0:
            self.thread.join()
            assert self.broken, "no queue pair was found"


def check_broken_queue_pair_of_the_only_rail(_):
    with communicator(ONE_RAIL | SOON) as comm:
        swap(comm, 64)
        with Breaker():
            start = time.monotonic()
            text = refused(comm, MANY_BYTES)
            assert time.monotonic() - start < BOUND_S
        assert "on rxe" in text and "ERR" in text, text


def check_broken_queue_pair_of_one_of_two_rails(_):
    with communicator(TWO_RAILS | SOON) as comm:
        swap(comm, 64)
        with Breaker():
            swap(comm, 2 * MANY_BYTES)
        swap(comm, 64, 2)
        swap(comm, 1 << 20, 3)


def check_broken_queue_pair_of_an_idle_rail(_):
    with communicator(ONE_RAIL | SOON) as comm:
        swap(comm, 64)
        WORLD.Barrier()
        assert RANK or break_queue_pairs("rxe0")
        WORLD.Barrier()
        refused(comm, 64)


def await_state(device, wanted):
    deadline = time.monotonic() + PORT_DOWN_S
    while wanted not in Path("/sys/class/infiniband", device, "ports/1/state").read_text():
        assert time.monotonic() < deadline, f"{device} does not become {wanted}"
        time.sleep(0.05)


class Down:
    """Rank 0 takes the cables of these ports out for the block, before anything is connected."""

    def __init__(self, *numbers):
        self.numbers = numbers

    def set(self, up):
        WORLD.Barrier()
        if RANK == 0:
            for number in self.numbers:
                set_link(f"port{number}", up)
            for number in self.numbers:
                await_state(f"rxe{number}", "ACTIVE" if up else "DOWN")
        WORLD.Barrier()

    def __enter__(self):
        self.set(False)

    def __exit__(self, *raised):
        self.set(True)


def check_port_that_is_down_from_the_start(_):
    with Down(1):
        start = time.monotonic()
        with raises(hetccl.HetcclError, names="rxe1"):
            with communicator(ONE_RAIL) as comm:
                swap(comm, 64)
        assert time.monotonic() - start < BOUND_S
    with communicator(ONE_RAIL) as comm:
        swap(comm, 64)


def check_one_of_two_ports_is_down_from_the_start(_):
    with Down(3), communicator(TWO_RAILS) as comm:
        swap(comm, 64)
        swap(comm, 1 << 20, 2)


def check_device_that_is_deleted(_):
    """`rdma link delete` waits for those who use the device: they are served to their end."""
    deleting = None
    try:
        with communicator(TWO_RAILS | SOON, gone=("rxe3",)) as comm:
            swap(comm, 64)
            WORLD.Barrier()
            if RANK == 0:
                deleting = subprocess.Popen(["rdma", "link", "delete", "rxe3"])
            swap(comm, MANY_BYTES)
            swap(comm, 64, 2)
        assert deleting is None or deleting.wait(BOUND_S) == 0
    finally:
        WORLD.Barrier()
        if RANK == 0:
            subprocess.run(["rdma", "link", "add", "rxe3", "type", "rxe", "netdev", "nic3"], check=True)
            await_state("rxe3", "ACTIVE")
        WORLD.Barrier()
    with communicator(TWO_RAILS) as comm:
        swap(comm, MANY_BYTES)


def check_interface_that_disappears_under_one_of_two_rails(_):
    """The last check: the device goes with it for good."""
    with communicator(TWO_RAILS | SOON, gone=("rxe3",)) as comm:
        swap(comm, 64)
        WORLD.Barrier()
        deleting = subprocess.Popen(["ip", "link", "delete", "nic3"]) if RANK == 0 else None
        swap(comm, 2 * MANY_BYTES)
        swap(comm, 64, 2)
        swap(comm, 1 << 20, 3)
    assert deleting is None or deleting.wait(BOUND_S) == 0


if __name__ == "__main__":
    run_checks(globals(), build=None)
