"""What bench/gpu.py compares: each class calls NCCL its own way on the same arrays and the same stream.

`call(collective, send, recv, count)` gives a function of the number of calls that queues them and returns the host's
seconds. `count` is in float32 elements per rank, for an all-reduce in all.
"""

import ctypes
import itertools
import tempfile
import time
from pathlib import Path

import cupy

COLLECTIVES = ("allreduce", "allgather", "reducescatter", "alltoall")


def timed(function, *arguments):
    """A function of the number of calls that makes them and returns the seconds."""

    def run(calls):
        begin = time.perf_counter()
        for _ in itertools.repeat(None, calls):
            function(*arguments)
        return time.perf_counter() - begin

    return run


def loaded(name):
    """The paths of the loaded libraries whose file name begins so."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(None, 5)[5] for line in lines if len(line.split(None, 5)) == 6}
    return sorted(path for path in paths if Path(path).name.startswith(name))


class Hetccl:
    name = "hetccl"

    def __init__(self, world, stream):
        import hetccl

        self.comm = hetccl.Comm(world)

    def call(self, collective, send, recv, count):
        method = {
            "allreduce": self.comm.Allreduce,
            "allgather": self.comm.Allgather,
            "reducescatter": self.comm.Reduce_scatter_block,
            "alltoall": self.comm.Alltoall,
        }[collective]
        return timed(method, send, recv)

    def close(self):
        self.comm.Free()


class CLoop:
    """blocking : whether the communicator is one whose calls may answer that they are under way"""

    blocking = 1
    name = "C loop"

    def __init__(self, world, stream):
        (path,) = loaded("libnccl.so")
        self.library, self.size, self.stream = ctypes.CDLL(str(library_path())), world.Get_size(), stream
        self.comm, version = ctypes.c_void_p(), ctypes.c_int()
        self.check(self.library.ccl_loop_open(path.encode(), ctypes.byref(version)))
        self.version, self.path = version.value, path
        unique = ctypes.create_string_buffer(128)
        if world.Get_rank() == 0:
            self.check(self.library.ccl_loop_id(unique))
        unique.raw = world.bcast(unique.raw)
        self.check(
            self.library.ccl_loop_init(self.size, unique, world.Get_rank(), self.blocking, ctypes.byref(self.comm))
        )

    def check(self, code):
        if code:
            raise RuntimeError(f"NCCL answered {code}")

    def call(self, collective, send, recv, count):
        seconds = ctypes.c_double()
        arguments = (
            COLLECTIVES.index(collective),
            ctypes.c_void_p(send.data.ptr),
            ctypes.c_void_p(recv.data.ptr),
            ctypes.c_size_t(count),
            self.size,
            self.comm,
            ctypes.c_void_p(self.stream.ptr),
        )

        def run(calls):
            self.check(self.library.ccl_loop_run(*arguments, calls, ctypes.byref(seconds)))
            return seconds.value

        return run

    def close(self):
        self.check(self.library.ccl_loop_close(self.comm))


class CLoopNonblocking(CLoop):
    blocking = 0
    name = "C loop, non-blocking"


class Cupy:
    name = "CuPy"

    def __init__(self, world, stream):
        from cupy.cuda import nccl

        self.nccl, self.size, self.stream = nccl, world.Get_size(), stream.ptr
        unique = world.bcast(nccl.get_unique_id() if world.Get_rank() == 0 else None)
        self.comm = nccl.NcclCommunicator(self.size, unique, world.Get_rank())

    def call(self, collective, send, recv, count):
        nccl, source, target = self.nccl, send.data.ptr, recv.data.ptr
        if collective == "allreduce":
            return timed(self.comm.allReduce, source, target, count, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, self.stream)
        if collective == "allgather":
            return timed(self.comm.allGather, source, target, count, nccl.NCCL_FLOAT32, self.stream)
        if collective == "reducescatter":
            return timed(self.comm.reduceScatter, source, target, count, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, self.stream)
        return timed(self.exchange, source, target, count)

    def exchange(self, source, target, count):
        """CuPy binds no all-to-all: a group of messages, as its users write it."""
        nccl, nbytes = self.nccl, 4 * count
        nccl.groupStart()
        for peer in range(self.size):
            self.comm.send(source + peer * nbytes, count, nccl.NCCL_FLOAT32, peer, self.stream)
            self.comm.recv(target + peer * nbytes, count, nccl.NCCL_FLOAT32, peer, self.stream)
        nccl.groupEnd()

    def close(self):
        self.comm.destroy()


class CupyArrays(Cupy):
    """As a program calls it that holds arrays, not their addresses, and follows CuPy's current stream."""

    name = "CuPy, from arrays"

    def call(self, collective, send, recv, count):
        return timed(getattr(self, collective), send, recv)

    def allreduce(self, send, recv):
        stream, nccl = cupy.cuda.get_current_stream().ptr, self.nccl
        self.comm.allReduce(send.data.ptr, recv.data.ptr, send.size, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream)

    def allgather(self, send, recv):
        stream = cupy.cuda.get_current_stream().ptr
        self.comm.allGather(send.data.ptr, recv.data.ptr, send.size, self.nccl.NCCL_FLOAT32, stream)

    def reducescatter(self, send, recv):
        stream, nccl = cupy.cuda.get_current_stream().ptr, self.nccl
        self.comm.reduceScatter(send.data.ptr, recv.data.ptr, recv.size, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream)

    def alltoall(self, send, recv):
        self.exchange(send.data.ptr, recv.data.ptr, send.size // self.size)


class Nccl4py:
    name = "nccl4py"

    def __init__(self, world, stream):
        import nccl.core as nccl

        self.nccl, self.stream = nccl, stream.ptr
        unique = world.bcast(nccl.get_unique_id() if world.Get_rank() == 0 else None)
        self.comm = nccl.Communicator.init(world.Get_size(), world.Get_rank(), unique)

    def call(self, collective, send, recv, count):
        comm, total = self.comm, self.nccl.SUM
        function = {
            "allreduce": lambda: comm.allreduce(send, recv, total, stream=self.stream),
            "allgather": lambda: comm.allgather(send, recv, stream=self.stream),
            "reducescatter": lambda: comm.reduce_scatter(send, recv, total, stream=self.stream),
            "alltoall": lambda: comm.alltoall(send, recv, stream=self.stream),
        }[collective]
        return timed(function)

    def close(self):
        self.comm.destroy()


class Torch:
    """torch.distributed has its own stream, and an all-reduce in place only."""

    name = "torch"

    def __init__(self, world, stream):
        import torch
        import torch.distributed

        self.torch, self.distributed = torch, torch.distributed
        device = torch.device("cuda", cupy.cuda.Device().id)
        torch.cuda.set_device(device)
        torch.cuda.set_stream(torch.cuda.ExternalStream(stream.ptr))
        place = world.bcast(f"file://{rendezvous()}" if world.Get_rank() == 0 else None)
        self.distributed.init_process_group("nccl", place, rank=world.Get_rank(), world_size=world.Get_size())

    def call(self, collective, send, recv, count):
        send, recv = self.torch.from_dlpack(send), self.torch.from_dlpack(recv)
        distributed = self.distributed
        if collective == "allreduce":
            return timed(distributed.all_reduce, recv)
        if collective == "alltoall":
            return timed(distributed.all_to_all_single, recv, send)
        if collective == "allgather":
            return timed(distributed.all_gather_into_tensor, recv, send)
        return timed(distributed.reduce_scatter_tensor, recv, send)

    def close(self):
        self.distributed.destroy_process_group()


CONTENDERS = (Hetccl, CLoop, CLoopNonblocking, Cupy, CupyArrays, Nccl4py, Torch)


def rendezvous():
    """A file that does not exist yet, where torch's ranks meet."""
    return Path(tempfile.mkdtemp(prefix="hetccl-bench-"), "store")


def library_path():
    return Path(__file__).resolve().parent.parent / "build" / "ccl_loop.so"
