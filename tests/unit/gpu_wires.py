"""For prog_wire_device.py: GPUs' memory of the fakes, and wires between devices of the fake libibverbs.

Memory of the fake GPUs is mapped without any right for the CPU: whoever touched it would end with SIGSEGV. Devices see
it through mappings of their own.
"""

import ctypes
import os
from contextlib import contextmanager

import numpy as np

from fakes.build import build
from hetccl import _cuda, _hip, _wire
from hetccl._rdma import RdmaPort
from hetccl._wire_device_trial import Message, poll
from softroce import alone

# So that the fake driver finds it, as its flush lets what was written be seen.
verbs = ctypes.CDLL("libibverbs.so.1", mode=ctypes.RTLD_GLOBAL)
CUDA, HIP = build("fakecuda"), build("fakehip")
RUNTIMES = {"cuda": _cuda.open(CUDA), "hip": _hip.open(CUDA and HIP)}
FAKES = {"cuda": ctypes.CDLL(CUDA), "hip": ctypes.CDLL(HIP)}
for fake in FAKES.values():
    fake.fakeWindow.restype = ctypes.c_void_p
    fake.fakeWindow.argtypes = [ctypes.c_void_p]
DONE, AGAIN, EPEER, ENETWORK, EDIRECT = 1, 0, -1, -7, -8
MANAGED, REFUSED, SHORT, TCP, SHM, LOOP, FLUSH, FETCH = 2, 4, 5, 8, 9, 10, 11, 12
COLLECTIVE, POINT_TO_POINT = 0, 1
# Below, of and above a cell's payload (224 bytes), a chunk (1024), and what is cut over two rails.
CELLS, CELL_BYTES, CHUNK = 4, 256, 1024
PAYLOAD = CELL_BYTES - _wire.HEADER_BYTES
SIZES = (1, 31, PAYLOAD - 1, PAYLOAD, PAYLOAD + 1, CHUNK + 1, 5 * CHUNK + 7, 100_003)
GUARD = 64


def body(seed, nbytes):
    """Bytes that differ by message and by index."""
    return np.random.default_rng(seed).integers(0, 256, nbytes, "u1")


@contextmanager
def variables(**values):
    """Environment variables, for a while; the fakes read them at each call."""
    before = {name: os.environ.get(name) for name in values}
    for name, value in values.items():
        os.environ[name] = str(value)
    yield
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})


class Gpu:
    """nbytes of a GPU's memory between guard bytes."""

    def __init__(self, nbytes, kind="cuda", device=1, managed=False):
        self.nbytes, self.kind = nbytes, kind
        self.library, self.runtime = FAKES[kind], RUNTIMES[kind]
        self.call("Init", 0)
        self.enter(device)
        out = ctypes.c_void_p()
        whole = ctypes.c_size_t(nbytes + 2 * GUARD)
        names = {"cuda": ("cuMemAllocManaged", "cuMemAlloc_v2"), "hip": ("hipMallocManaged", "hipMalloc")}[kind]
        flags = (1,) if managed else ()
        assert getattr(self.library, names[not managed])(ctypes.byref(out), whole, *flags) == 0
        self.base, self.address = out.value, out.value + GUARD
        self.leave()
        window = self.library.fakeWindow(self.base)
        self.all = np.ndarray(nbytes + 2 * GUARD, "u1", (ctypes.c_char * (nbytes + 2 * GUARD)).from_address(window))
        self.all[:] = 0x5C
        self.view = self.all[GUARD : GUARD + nbytes]

    def call(self, name, *arguments):
        assert getattr(self.library, {"cuda": "cu", "hip": "hip"}[self.kind] + name)(*arguments) == 0, name

    def enter(self, device):
        if self.kind == "hip":
            self.call("SetDevice", device)
            return
        context = ctypes.c_void_p()
        self.call("DevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("CtxSetCurrent", context)

    def leave(self):
        """As the progress thread is: without a current context."""
        if self.kind == "cuda":
            self.call("CtxSetCurrent", None)
        else:
            self.call("SetDevice", 0)

    def free(self):
        self.enter(1)
        self.view = self.all = None
        self.call({"cuda": "MemFree_v2", "hip": "Free"}[self.kind], ctypes.c_void_p(self.base))
        self.leave()

    def put(self, values):
        self.view[:] = values

    def got(self):
        assert set(self.all[:GUARD]) == set(self.all[-GUARD:]) == {0x5C}, "guard bytes"
        return bytes(self.view)

    def arguments(self):
        return {"memory": None, "runtime": self.runtime, "address": self.address, "nbytes": self.nbytes}


class Host:
    """nbytes of host memory between guard bytes."""

    def __init__(self, nbytes):
        self.nbytes = nbytes
        self.all = bytearray(b"\x5c" * (nbytes + 2 * GUARD))
        self.view = memoryview(self.all)[GUARD : GUARD + nbytes]

    def put(self, values):
        self.view[:] = bytes(values)

    def got(self):
        assert set(self.all[:GUARD]) == set(self.all[-GUARD:]) == {0x5C}, "guard bytes"
        return bytes(self.view)

    def arguments(self):
        return {"memory": self.view}


class Tracked(Message):
    """A message, and what the link has answered in the end."""

    result = None


class Net:
    """Two wires, of ranks 0 and 1, joined by queue pairs between devices of their own: rails of rank 0 on gdr0 and
    gdr1, of rank 1 on gdr2 and gdr3."""

    def __init__(self, nrails=2, ask=True, **settings):
        settings = {"chunk_bytes": CHUNK, "chunks": 2, "cut_bytes": 64, **settings}
        self.nrails = nrails
        self.wires = [_wire.Wire(rank, 2, CELLS, CELL_BYTES, ("host0", "host1"), **settings) for rank in range(2)]
        receives = _wire.most_immediates(CELLS)
        self.ports = [
            [
                RdmaPort(alone.card(f"gdr{2 * rank + i}"), receives=receives, settings=alone.FAST_FAILURE)
                for i in range(nrails)
            ]
            for rank in range(2)
        ]
        for wire, ports in zip(self.wires, self.ports, strict=True):
            for port in ports:
                wire.add_port(port)
        self.rails = [[port.rail(1 - rank, i) for i, port in enumerate(self.ports[rank])] for rank in range(2)]
        inboxes = [self.wires[rank].prepare(1 - rank, self.rails[rank]) for rank in range(2)]
        for mine, theirs in zip(*self.rails, strict=True):
            mine.connect(theirs.local())
            theirs.connect(mine.local())
        for rank in range(2):
            self.wires[rank].attach(1 - rank, inboxes[1 - rank])
        for rank in range(2):
            self.wires[rank].go(1 - rank)
        self.messages = []
        if ask:
            self.ask()

    def ask(self):
        """What callers do first: the loops are made."""
        probe = Gpu(8)
        for rank in range(2):
            assert self.wires[rank].direct(1 - rank, probe.runtime, probe.address, 8) == (True, "")
        probe.free()

    def message(self, rank, receive, place, tag=7, cls=POINT_TO_POINT, **options):
        arguments = place.arguments()
        memory = arguments.pop("memory")
        made = Tracked(self.wires[rank], 1 - rank, receive, cls, tag, memory, **arguments, **options)
        self.messages.append(made)
        return made

    def step(self):
        """Poll both, and advance each message that is not over: whether anything moved."""
        moved = [poll(wire) for wire in self.wires]
        for message in self.messages:
            if message.result is None:
                status = message.advance()
                moved.append(status != AGAIN)
                message.result = status if status == DONE or status < 0 else None
        self.messages = [message for message in self.messages if message.result is None]
        return any(moved)

    def settle(self):
        idle = 0
        for _ in range(100000):
            idle = 0 if self.step() else idle + 1
            if idle == 20:
                return
        raise AssertionError("the wires move for ever")

    def carry(self, source, target, seed=1, **options):
        """One message from rank 0 to rank 1, with new contents: its bytes must be there."""
        values = body(seed, source.nbytes)
        source.put(values)
        sent, got = self.message(0, False, source, **options), self.message(1, True, target, **options)
        self.settle()
        assert (sent.result, got.result) == (DONE, DONE), (sent.result, sent.why, got.result, got.why)
        assert target.got() == bytes(values)
        return sent, got

    def counters(self, rank):
        return self.wires[rank].counters()[1 - rank]

    def close(self):
        for wire in self.wires:
            wire.close()


def live():
    return {kind: verbs.fakeverbs_live(kind.encode(), None) for kind in ("mr", "cq", "qp", "channel")}


@contextmanager
def net(**settings):
    made = Net(**settings)
    try:
        yield made
    finally:
        made.close()
    # Registrations of GPUs' memory are kept by the device, which goes with its last port.
    del made


def places(kinds, nbytes):
    return [Host(nbytes) if kind == "host" else Gpu(nbytes, kind) for kind in kinds]


def registered(way):
    """What the ladder may use: dma-buf, a peer-memory module, neither."""
    fails = {"dmabuf": "", "peermem": "reg_dmabuf_mr=95", "none": "reg_dmabuf_mr=95"}[way]
    verbs.fakeverbs_fail(fails.encode())
    return variables(**({"FAKEVERBS_PEERMEM": 1} if way == "peermem" else {}))


def windows(*gpus):
    """Let devices see these without dma-buf."""
    verbs.fakeverbs_no_gpu()
    for gpu in gpus:
        nbytes = gpu.nbytes + 2 * GUARD
        at = [ctypes.c_uint64(value) for value in (gpu.base, nbytes, gpu.library.fakeWindow(gpu.base))]
        verbs.fakeverbs_window(*at)


def flushes(kind="cuda"):
    """(how many, device of the last, its scope)"""
    device, scope = ctypes.c_int(), ctypes.c_int()
    count = FAKES[kind].fakeFlushes(ctypes.byref(device), ctypes.byref(scope))
    return count, device.value, scope.value


def mend(it, index):
    told = [it.wires[rank].close_rail(1 - rank, index) for rank in range(2)]
    for rank in range(2):
        it.wires[rank].resume(1 - rank, index, told[1 - rank])
