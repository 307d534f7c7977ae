"""Inside a guest: rails over verbs, checks that take long."""

import ctypes
import mmap
import os
import subprocess
import threading
import time

from softroce.alone import ENDLESS, End, drive, limit, loss, pair, post, resources, run_checks, shell

PIECE = 64 << 20
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
MAP_FIXED = 0x10


def _repeated(nbytes):
    """Address of a mapping of so many bytes, whose pages are those of one piece again and again: little memory."""
    fd = os.memfd_create("piece")
    os.ftruncate(fd, PIECE)
    base = libc.mmap(None, nbytes, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    for at in range(0, nbytes, PIECE):
        place = libc.mmap(base + at, PIECE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | MAP_FIXED, fd, 0)
        assert place == base + at, os.strerror(ctypes.get_errno())
    os.close(fd)
    return base


@limit(150)
def check_offset_above_two_gib():
    nbytes = (2 << 30) + PIECE
    with pair() as (a, b):
        base = _repeated(nbytes)
        large = b.trial.reg_at(base, nbytes)
        a.memory[:1000] = bytes(i % 251 for i in range(1000))
        place = base + (2 << 30) + 12345
        assert a.trial.write([(a.mr.address, 1000, a.mr.lkey)], place, large.rkey, imm=1) == "done"
        drive(a, b, until=lambda: b.trial.take() == [1])
        assert ctypes.string_at(place, 1000) == a.memory[:1000]
        large.dereg()
        libc.munmap(ctypes.c_void_p(base), ctypes.c_size_t(nbytes))


@limit(200)
def check_two_hundred_times():
    """Nothing of a rail, its port or its device stays."""
    before, descriptors = resources(), len(os.listdir("/proc/self/fd"))
    for i in range(200):
        with pair(nbytes=4096) as (a, b):
            post(a, b, 8, imm=i)
            drive(a, b, until=lambda: b.trial.take() == [i])  # noqa: B023
    assert resources() == before
    assert len(os.listdir("/proc/self/fd")) == descriptors


@limit(120)
def check_port_that_flaps():
    with pair(timeout=17, retry_cnt=ENDLESS) as (a, b):
        stop = threading.Event()

        def flap():
            while not stop.is_set():
                shell("ip link set port1 down")
                time.sleep(0.2)
                shell("ip link set port1 up")
                time.sleep(0.8)

        thread = threading.Thread(target=flap)
        thread.start()
        try:
            for i in range(400):
                post(a, b, 1 << 14, imm=i)
                time.sleep(0.01)
            drive(a, b, until=lambda: b.trial.came == 400, seconds=60)
        finally:
            stop.set()
            thread.join()
        assert b.trial.take() == list(range(400))


@limit(200)
def check_loss_of_twenty_percent():
    with pair(timeout=10, retry_cnt=ENDLESS, send_queue=32) as (a, b), loss(20, "nic0"):
        for i in range(200):
            post(a, b, 512, target=512 * (i % 100), imm=i)
        drive(a, b, until=lambda: b.trial.came == 200, seconds=150)
        assert b.trial.take() == list(range(200))


def check_device_that_disappears():
    """The link of the NIC is taken away for good: a named fault in bounded time, and everything can be closed."""
    before = resources()
    shell("ip link add nicx mtu 9000 type veth peer name portx mtu 9000")
    shell("ip link set portx master fabric up; ip link set nicx up; ip addr add 10.99.0.99/24 dev nicx")
    shell("rdma link add rxex type rxe netdev nicx")
    a, b = End("rxex", timeout=14, retry_cnt=1), End("rxe1", timeout=14, retry_cnt=1)
    a.rail.connect(b.rail.local())
    b.rail.connect(a.rail.local())
    post(a, b, 8, imm=1)
    drive(a, b, until=lambda trial=b.trial: trial.take() == [1])
    # It ends when the last user has closed the device.
    removal = subprocess.Popen(["ip", "link", "del", "nicx"])
    time.sleep(1)
    for end, other in ((a, b), (b, a)):
        end.write(other, 8, imm=2)
        assert end.trial.wait_failed(20), end.trial.counts
        assert end.rail.fault()
    a.close()
    b.close()
    del a, b, end, other
    assert removal.wait(30) == 0
    deadline = time.monotonic() + 10
    while resources() != before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert resources() == before


if __name__ == "__main__":
    run_checks(globals())
