"""What every runtime must do, whoever made it: one body for the fake driver, the host, and real GPUs.

Each check takes a Table whose device is current, and a stream. `needs`: what the runtime must have, for the check to
make sense.
"""

import ctypes
import mmap
import os
import re
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from runtime_table import bytes_at

CHECKS = []
GUARD = 0x5C
FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
LIMIT_S = 20.0
NOT_SUPPORTED = 801  # CUDA_ERROR_NOT_SUPPORTED, hipErrorNotSupported


def check(*needs):
    def register(function):
        function.needs = needs
        CHECKS.append(function)
        return function

    return register


def pattern(nbytes, seed=1):
    return np.random.default_rng(seed).integers(0, 256, nbytes, "u1")


@check()
def devices(table, stream):
    runtime = table.runtime
    count = runtime.device_count()
    assert count >= 1
    active = ctypes.c_int(-1)
    table("device_active", table.device, ctypes.byref(active))
    assert active.value == 1
    assert runtime.device_current() == table.device
    assert table.code("device_arch", count, ctypes.create_string_buffer(64)) != 0


@check()
def rdma_writes(table, stream):
    """How writes of RDMA devices are ordered, and that they can be flushed where the runtime says so."""
    scope, flushable = ctypes.c_int(-1), ctypes.c_int(-1)
    table("rdma_ordering", table.device, ctypes.byref(scope), ctypes.byref(flushable))
    assert scope.value in (0, 100, 200) and flushable.value in (0, 1)
    for wanted in (100, 200):
        assert (table.code("rdma_flush", wanted) == 0) == bool(flushable.value)


@check("device_pci")
def places(table, stream):
    runtime = table.runtime
    texts = [runtime.device_pci(d) for d in range(runtime.device_count())]
    assert all(re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", text) for text in texts)
    assert len(set(texts)) == len(texts)


@check()
def current_is_restored(table, stream):
    def current_of_new_thread():
        before = table.current()
        with table:
            inside = table.current()
        seen.append((before, inside, table.current()))

    seen = []
    thread = threading.Thread(target=current_of_new_thread)
    thread.start()
    thread.join(LIMIT_S)
    before, inside, after = seen[0]
    assert inside == table.device
    assert after == before


@check()
def current_of_every_device(table, stream):
    for device in range(table.runtime.device_count()):
        saved = ctypes.c_void_p()
        table("enter", device, ctypes.byref(saved))
        inside = table.current()
        table("leave", saved)
        assert (inside, table.current()) == (device, table.device)


@check()
def no_such_device(table, stream):
    saved = ctypes.c_void_p()
    assert table.code("enter", table.runtime.device_count(), ctypes.byref(saved)) != 0
    assert table.code("enter", -1, ctypes.byref(saved)) != 0
    assert table.current() == table.device


@check()
def copies(table, stream):
    for nbytes in (1, 3, 4096, 1000003):
        values = pattern(nbytes, nbytes)
        first, second = table.made("alloc", nbytes + 2), table.made("alloc_async", nbytes + 2, stream)
        table("fill_async", second, GUARD, 1, nbytes + 2, stream)
        table.put(first + 1, values, stream)
        table("copy_async", second + 1, first + 1, nbytes, stream)
        got = table.get(second, nbytes + 2, stream)
        assert np.array_equal(got[1:-1], values)
        assert (got[0], got[-1]) == (GUARD, GUARD)
        table("dealloc", first)
        table("dealloc_async", second, stream)
        table("stream_synchronize", stream)


@check()
def copies_of_nothing(table, stream):
    table("copy_async", 0, 0, 0, stream)
    device = table.made("alloc", 16)
    table("copy_async", device, device, 0, stream)
    table("fill_async", device, 1, 8, 0, stream)
    table("stream_synchronize", stream)
    table("dealloc", device)


@check()
def fills(table, stream):
    device = table.made("alloc", 8 * 4099 + 128)
    for width, count in [(w, c) for w in (1, 2, 4, 8) for c in (0, 1, 2, 3, 1001, 4099)]:
        for value in (0, 0x0123456789ABCDEF, 0xFFFFFFFFFFFFFFFF):
            table("fill_async", device, GUARD, 1, width * count + 128, stream)
            table("fill_async", device + 64, value, width, count, stream)
            got = table.get(device, width * count + 128, stream)
            expected = np.full(count, value & (1 << 8 * width) - 1, f"u{width}").view("u1")
            assert np.array_equal(got[64:-64], expected), (width, count, value)
            assert set(got[:64]) == set(got[-64:]) == {GUARD}, (width, count, value)
    assert table.code("fill_async", device, 0, 3, 1, stream) != 0
    table("dealloc", device)


@check()
def pinned(table, stream):
    address, memory = table.pinned(1001)
    device = table.made("alloc", 1001)
    values = pattern(1001)
    memory[:] = values
    table("copy_async", device, address, 1001, stream)
    assert np.array_equal(table.get(device, 1001, stream), values)
    about = table.about(address + 1000)
    assert (about.kind, about.registered, about.managed) == (0, 1, 0)
    seen = ctypes.c_void_p()
    table("host_address", address, ctypes.byref(seen))
    assert seen.value
    table("dealloc", device)
    table("host_dealloc", address)


@check()
def registered(table, stream):
    memory = mmap.mmap(-1, 3 * mmap.PAGESIZE)
    view = np.frombuffer(memory, "u1")
    address = view.ctypes.data
    host_only = table.about(address)
    assert (host_only.kind, host_only.managed, host_only.buffer_id) == (0, 0, 0)
    table("host_register", address, 2 * mmap.PAGESIZE)
    about = table.about(address + 5)
    assert (about.kind, about.registered) == (0, 1)
    seen = ctypes.c_void_p()
    table("host_address", address, ctypes.byref(seen))
    table("fill_async", seen.value, 0x42, 1, 2 * mmap.PAGESIZE, stream)
    table("stream_synchronize", stream)
    assert (view[: 2 * mmap.PAGESIZE] == 0x42).all()
    assert (view[2 * mmap.PAGESIZE :] == 0).all()
    table("host_unregister", address)
    assert table.about(address).registered == host_only.registered


@check("ipc_export")
def pointers(table, stream):
    device = table.made("alloc", 5000)
    about, inside = table.about(device), table.about(device + 4999)
    assert (about.kind, about.device, about.registered) == (table.runtime.kind, table.device, 0)
    assert (about.buffer_id, about.base) == (inside.buffer_id, inside.base)
    assert about.buffer_id != 0
    assert about.base <= device
    assert about.base + about.nbytes >= device + 5000
    table("dealloc", device)
    again = table.made("alloc", 5000)
    assert table.about(again).buffer_id != about.buffer_id
    table("dealloc", again)
    local = np.zeros(8)
    unknown = table.about(local.ctypes.data)
    assert (unknown.kind, unknown.registered, unknown.managed, unknown.buffer_id) == (0, 0, 0, 0)
    assert table.about(0).kind == 0


@check()
def streams(table, stream):
    other = table.made("stream_create")
    capturing = ctypes.c_int(-1)
    table("stream_capturing", other, ctypes.byref(capturing))
    assert capturing.value == 0
    table("stream_synchronize", other)
    assert table.code("stream_query", other) == 0
    table("stream_destroy", other)
    table("stream_synchronize", None)
    table("stream_capturing", None, ctypes.byref(capturing))


@check()
def events(table, stream):
    other, event = table.made("stream_create"), table.made("event_create")
    device = table.made("alloc", 1 << 20)
    for value in range(1, 50):
        table("fill_async", device, value, 1, 1 << 20, stream)
        table("event_record", event, stream)
        table("stream_wait_event", other, event)
        got = table.get(device, 1 << 20, other)
        assert (got == value).all()
        table("event_record", event, other)
        table("event_synchronize", event)
        assert table.code("event_query", event) == 0
    table("event_destroy", event)
    table("stream_destroy", other)
    table("dealloc", device)


@check()
def written_values(table, stream):
    address, memory = table.pinned(64)
    memory[:] = GUARD
    words = memory.view("u4")
    for value in (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF):
        table("stream_write32", stream, address + 4, value)
        table("stream_synchronize", stream)
        assert words[1] == value
        table("stream_wait32", stream, address + 4, value)
        table("stream_synchronize", stream)
    assert (np.delete(memory, range(4, 8)) == GUARD).all()
    table("host_dealloc", address)


def values_wrap_around(table, stream):
    """Only CUDA compares by the sign of the difference."""
    address, memory = table.pinned(8)
    words = memory.view("u4")
    for now, wanted in ((5, 0xFFFFFFF0), (0x80000005, 0x7FFFFFFF)):
        words[0] = now
        table("stream_wait32", stream, address, wanted)
        table("stream_synchronize", stream)
    table("host_dealloc", address)


@check()
def host_functions(table, stream):
    address, memory = table.pinned(1 << 20)
    device = table.made("alloc", 1 << 20)
    seen = []

    def called(argument):
        seen.append((argument, int(memory[0]), int(memory[-1])))

    function = FUNCTION(called)
    for value in range(1, 8):
        table("fill_async", device, value, 1, 1 << 20, stream)
        table("copy_async", address, device, 1 << 20, stream)
        table("host_function", stream, function, 1000 + value)
        table("stream_synchronize", stream)
    assert seen == [(1000 + value, value, value) for value in range(1, 8)]
    table("dealloc", device)
    table("host_dealloc", address)


@check("ipc_export")
def between_processes(table, stream):
    """Another process opens this one's memory, checks it, and changes it."""
    device = table.made("alloc", 1 << 16)
    values = pattern(1 << 16)
    table.put(device, values, stream)
    handle = ctypes.create_string_buffer(64)
    table("ipc_export", device, handle)
    other = [sys.executable, os.path.join(os.path.dirname(__file__), "runtime_peer.py"), table.runtime.name]
    arguments = [table.runtime.library.path, str(table.device), handle.raw.hex(), values.tobytes()[:64].hex()]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([*other, *arguments], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    got = table.get(device, 1 << 16, stream)
    assert np.array_equal(got[64:], values[64:])
    assert (got[:64] == 0x77).all()
    table("dealloc", device)


@check("dmabuf_export")
def dmabufs(table, stream):
    device = table.made("alloc", 4 << 20)
    for start, nbytes in ((0, 4 << 20), (0, 100), (12, 4000)):
        fd, offset = ctypes.c_int(-1), ctypes.c_uint64(1 << 60)
        code = table.code("dmabuf_export", device + start, nbytes, ctypes.byref(fd), ctypes.byref(offset))
        if code == NOT_SUPPORTED:
            pytest.skip("this device, or its kernel driver, exports no dma-buf")
        table.runtime.check_code(code, "dmabuf_export")
        assert offset.value < 4 << 20
        assert os.fstat(fd.value)
        os.close(fd.value)
    table("dealloc", device)


@check("ipc_export")
def wrong_use(table, stream):
    """What a driver can see is an error code, not a crash."""
    local = np.zeros(64, "u1")
    assert table.code("dealloc", local.ctypes.data) != 0
    assert table.code("host_unregister", local.ctypes.data) != 0
    assert table.code("module_load", ctypes.byref(ctypes.c_void_p()), b"no image at all") != 0
    assert table.code("ipc_open", bytes(64), ctypes.byref(ctypes.c_void_p())) != 0
    assert b"" != table.code("error_text", 1) != table.code("error_text", 123456)


def waits(table, stream):
    """Only where streams run by themselves: one that waits for a value holds its work back, and lets it go."""
    address, memory = table.pinned(64)
    memory[:] = 0
    device = table.made("alloc", 64)
    event = table.made("event_create")
    table("fill_async", device, 1, 1, 64, stream)
    table("stream_synchronize", stream)
    table("stream_wait32", stream, address, 3)
    table("fill_async", device, 9, 1, 64, stream)
    table("event_record", event, stream)
    memory.view("u4")[0] = 2
    time.sleep(0.2)
    assert table.code("stream_query", stream) == table.code("event_query", event) != 0
    memory.view("u4")[0] = 3
    table("event_synchronize", event)
    assert table.code("event_query", event) == 0
    assert (table.get(device, 64, stream) == 9).all()
    table("event_destroy", event)
    table("dealloc", device)
    table("host_dealloc", address)


def launches(table, stream, image):
    """A kernel `increment(uint32_t *data, uint32_t by, uint32_t count)` of an image, on a grid that does not divide."""
    count, block = 1000, 128
    device = table.made("alloc", 4 * count + 4)
    values = np.arange(count + 1, dtype="u4") * 3
    table.put(device, values, stream)
    module = table.made("module_load", image)
    function = ctypes.c_void_p()
    table("module_function", ctypes.byref(function), module, b"increment")
    assert table.code("module_function", ctypes.byref(ctypes.c_void_p()), module, b"absent") != 0
    data, by, n = ctypes.c_void_p(device), ctypes.c_uint32(7), ctypes.c_uint32(count)
    arguments = (ctypes.c_void_p * 3)(*(ctypes.addressof(a) for a in (data, by, n)))
    grid, threads = (ctypes.c_uint * 3)(-(-count // block), 1, 1), (ctypes.c_uint * 3)(block, 1, 1)
    table("launch", function, grid, threads, 0, stream, arguments)
    got = table.get(device, 4 * count + 4, stream).view("u4")
    assert np.array_equal(got[:count], values[:count] + 7)
    assert got[count] == values[count]
    table("module_unload", module)
    table("dealloc", device)


def dmabuf_is_the_memory(table, stream):
    """Only of the fake driver, whose device memory a process can map: offset and bytes are right."""
    device = table.made("alloc", 3 * mmap.PAGESIZE)
    values = pattern(3 * mmap.PAGESIZE)
    table.put(device, values, stream)
    fd, offset = ctypes.c_int(-1), ctypes.c_uint64()
    table("dmabuf_export", device + 100, 500, ctypes.byref(fd), ctypes.byref(offset))
    with mmap.mmap(fd.value, 3 * mmap.PAGESIZE) as view:
        assert view[offset.value : offset.value + 500] == values[100:600].tobytes()
        assert view[:] == bytes_at(device, 3 * mmap.PAGESIZE).tobytes()
    os.close(fd.value)
    table("dealloc", device)
