"""Streams and lifetimes on a real GPU, with PyTorch: its streams, its reuse of memory, and autograd's flags."""

import torch
from device_support import ARRAYS, RANK, SIZE
from support import equal, raises, run_checks

RANKS = sum(range(SIZE))
HERE = f"cuda:{ARRAYS.device}"
# Cycles of about a millisecond on the clocks that these GPUs have; the checks hold whatever it is.
MILLISECOND = 1_800_000


def expect(wrong, out, value):
    wrong += (out != value).sum()


def check_changing_streams(comm):
    streams = [torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.default_stream()]
    parts = []
    for stream in streams:
        with torch.cuda.stream(stream):
            parts.append((stream, *(torch.zeros(2000, device=HERE) for _ in range(2)), torch.zeros(1, device=HERE)))
    torch.cuda.synchronize()
    for number in range(3000):
        stream, data, out, wrong = parts[number % len(parts)]
        with torch.cuda.stream(stream):
            if number % 151 == 0:
                torch.cuda._sleep(MILLISECOND * (1, 5, 20)[(number + RANK) % 3])
            data.fill_(number + RANK)
            comm.Allreduce(data, out)
            expect(wrong, out, number * SIZE + RANKS)
            data.fill_(-1)
    torch.cuda.synchronize()
    for *_, wrong in parts:
        equal(wrong.cpu().numpy(), [0.0])


def check_temporaries(comm):
    out, wrong = torch.zeros(5000, device=HERE), torch.zeros(1, device=HERE)
    for number in range(2000):
        if number % 200 == 0:
            torch.cuda._sleep(20 * MILLISECOND)
        comm.Allreduce(torch.ones(5000, device=HERE) * (number + RANK), out)
        torch.full((5000,), -1.0, device=HERE)
        expect(wrong, out, number * SIZE + RANKS)
    equal(wrong.cpu().numpy(), [0.0])


def check_arrays_of_another_streams_pool(comm):
    other, wrong = torch.cuda.Stream(), torch.zeros(1, device=HERE)
    outs = [torch.zeros(5000, device=HERE) for _ in range(4)]
    torch.cuda.synchronize()
    for number in range(300):
        data = torch.full((5000,), float(number + RANK), device=HERE)
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            if number % 50 == 0:
                torch.cuda._sleep(10 * MILLISECOND)
        comm.Allreduce(data, outs[number % 4], stream=other)
        del data
        torch.full((5000,), -1.0, device=HERE)
        with torch.cuda.stream(other):
            expect(wrong, outs[number % 4], number * SIZE + RANKS)
    torch.cuda.synchronize()
    equal(wrong.cpu().numpy(), [0.0])


def check_tensors_that_mean_something_else(comm):
    """A conjugated or negated view has other values than its memory: refused, not sent wrong."""
    out = torch.zeros(4, dtype=torch.complex64, device=HERE)
    with raises(BufferError, TypeError, ValueError, names="sendbuf"):
        comm.Allreduce(torch.ones(4, dtype=torch.complex64, device=HERE).conj(), out)
    leaf = torch.ones(4, device=HERE, requires_grad=True)
    back = torch.zeros(4, device=HERE)
    comm.Allreduce(leaf.detach(), back)
    equal(back.cpu().numpy(), [float(SIZE)] * 4)


def check_graph(comm):
    stream = torch.cuda.Stream()
    data, out = torch.zeros(1000, device=HERE), torch.zeros(1000, device=HERE)
    comm.Allreduce(data, out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        comm.Allreduce(data, out)
    for number in range(5):
        data.fill_(number + RANK)
        graph.replay()
        equal(out.cpu().numpy(), [float(number * SIZE + RANKS)] * 1000)


if __name__ == "__main__":
    run_checks(globals())
