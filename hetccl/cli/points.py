"""What bench knows of messages between two ranks, the first and the last: the other ranks wait.

latency is a ping-pong, and its time that of one way, as in the OSU micro-benchmarks. bandwidth and bidirectional have a
window of messages under way, in one direction or in both; a row's time is that of one message, and its algbw counts
the bytes of both directions.
"""

from hetccl.cli.collectives import Collective

# Messages that are under way at once, fewer of them where they are large: their receive buffers are all different.
WINDOW, WINDOW_BYTES = 64, 64 << 20
# Round trips in one timing: enough that the barrier before them does not show.
ROUND_TRIPS = 10
DATA, ANSWER = 1, 2


def window(nbytes):
    """How many messages of a size are under way at once."""
    return max(2, min(WINDOW, WINDOW_BYTES // max(1, nbytes)))


def ends(comm):
    """(this rank's peer, whether it is the first of the two); None for a rank that only waits."""
    first, last = 0, comm.size - 1
    return {first: (last, True), last: (first, False)}.get(comm.rank)


def _latency(side, send, recv, root):
    comm, end = side.comm, ends(side.comm)
    if end is None:
        return
    peer, is_first = end
    for _ in range(ROUND_TRIPS):
        if is_first:
            comm.Send(send, peer, DATA)
            comm.Recv(recv, peer, DATA)
        else:
            comm.Recv(recv, peer, DATA)
            comm.Send(send, peer, DATA)


def _bandwidth(side, send, recv, root):
    end = ends(side.comm)
    if end is not None:
        peer, is_first = end
        _stream(side, send, recv, peer, sends=is_first, receives=not is_first)


def _bidirectional(side, send, recv, root):
    end = ends(side.comm)
    if end is not None:
        _stream(side, send, recv, end[0], sends=True, receives=True)


def _stream(side, send, recv, peer, sends, receives):
    """A window of messages; who has only sent waits for an answer, so that its time holds the arrival of all."""
    comm, count = side.comm, len(send)
    requests = []
    if receives:
        requests += [comm.Irecv(recv[at : at + count], peer, DATA) for at in range(0, len(recv), count)]
    if sends:
        requests += [comm.Isend(send, peer, DATA) for _ in range(len(recv) // count)]
    for request in requests:
        request.Wait()
    if not receives:
        comm.Recv(recv[:1], peer, ANSWER)
    elif not sends:
        comm.Send(send[:1], peer, ANSWER)


def _of_the_other(inputs, rank, count):
    """What the other end has sent."""
    return {0: inputs.of(inputs.size - 1, 0, count), inputs.size - 1: inputs.of(0, 0, count)}.get(rank)


def _of_the_first(inputs, rank, count):
    return inputs.of(0, 0, count) if rank == inputs.size - 1 else None


POINTS = {
    "latency": Collective(
        method="Send",
        pair=True,
        modes=("out",),
        units=lambda p: (1, 1),
        factor=lambda p: 1.0,
        call=_latency,
        expected=lambda inputs, rank, root, count: _of_the_other(inputs, rank, count),
        repeats=lambda nbytes: 2 * ROUND_TRIPS,
    ),
    "bandwidth": Collective(
        method="Isend",
        pair=True,
        window=True,
        modes=("out",),
        units=lambda p: (1, 1),
        factor=lambda p: 1.0,
        call=_bandwidth,
        expected=lambda inputs, rank, root, count: _of_the_first(inputs, rank, count),
        repeats=window,
    ),
    # Both ends send: twice the bytes in the same time.
    "bidirectional": Collective(
        method="Isend",
        pair=True,
        window=True,
        ways=2,
        modes=("out",),
        units=lambda p: (1, 1),
        factor=lambda p: 1.0,
        call=_bidirectional,
        expected=lambda inputs, rank, root, count: _of_the_other(inputs, rank, count),
        repeats=window,
    ),
}
