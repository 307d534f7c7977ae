"""Strangers at the listening sockets of a job that runs over a network, and receivers that do not come: the job goes on
and its memory is bounded."""

import contextlib
import os
import socket
import threading
import time

import numpy as np
from mpi4py import MPI
from support import equal, make_comm, process_counts, resident_bytes, run_checks, settled_counts, still_works

from hetccl import bootstrap
from hetccl.net import handshake
from hetccl.net.handshake import Hello, Keys

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.Get_size(), WORLD.Get_rank()
NEXT, BEFORE = (RANK + 1) % SIZE, (RANK - 1) % SIZE
LARGE = 1 << 17
# More than the threads that answer strangers.
IDLE = 40
SLOW_S = 3
GONE_S = 100


def networks():
    return [joined for joined in list(bootstrap._joined) if hasattr(joined, "wire")]


def listeners():
    """(address, port) of every rank's listening socket: all of one process share it."""
    card = networks()[0].card["tcp"]
    return WORLD.allgather((card["addresses"][0]["address"], card["port"]))


def values(seed, count, rank=RANK):
    return np.arange(count, dtype=np.int64) * 7 + 1000 * seed + rank


def pass_on(comm, seed, count):
    """Send to the next rank, and compare what comes from the one before."""
    out = np.full(count, -1, np.int64)
    comm.Sendrecv(values(seed, count), NEXT, seed, out, BEFORE, seed)
    equal(out, values(seed, count, BEFORE))


def start_all_threads(comm):
    """The communicator's come when they are needed: for a call that is not complete at once, and for a long wait."""
    out = np.full(5, -1, np.int64)
    request = comm.Irecv(out, BEFORE, 0)
    comm.Barrier()
    comm.Send(values(0, 5), NEXT, 0)
    request.Wait()
    equal(out, values(0, 5, BEFORE))
    for late in range(SIZE):
        if late == RANK:
            time.sleep(0.2)
        comm.Barrier()


def garbage(sock, hello):
    sock.sendall(os.urandom(300))


def half_a_greeting(sock, hello):
    sock.sendall(hello.pack(os.urandom(32))[:40])


def no_proof(sock, hello):
    sock.sendall(hello.pack(os.urandom(32)))
    sock.recv(80, socket.MSG_WAITALL)
    sock.sendall(bytes(32))


def replay(sock, hello):
    """The same greeting, nonce included, and the same proof for whatever the answer."""
    sock.sendall(hello.pack(bytes(32)) + bytes(range(32)))


def nothing(sock, hello):
    sock.shutdown(socket.SHUT_WR)


DEEDS = (garbage, half_a_greeting, no_proof, replay, nothing)


@contextlib.contextmanager
def attack(where, keys):
    """Connections from a thread of this rank to all listeners, until the end of the block; yields [how many]."""
    done, count = threading.Event(), [0]

    def work():
        while not done.is_set():
            for rank, address in enumerate(where):
                for kind, deed in zip((handshake.CONTROL, handshake.DATA) * 3, DEEDS):
                    hello = Hello(kind, keys.communicator, (rank + 1) % SIZE, rank, SIZE)
                    with contextlib.suppress(OSError), socket.create_connection(address, 60) as sock:
                        deed(sock, hello)
                        count[0] += 1
            time.sleep(0.01)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield count
    finally:
        done.set()
        thread.join()


def check_strangers_while_messages_pass(comm):
    """They know the communicator's public name, and not its secret."""
    start_all_threads(comm)
    files, threads, _ = settled_counts()
    keys = Keys.of(networks()[0].secret)
    with attack(listeners(), keys) as count:
        for seed in range(100):
            pass_on(comm, seed, 1 + seed)
            pass_on(comm, seed, LARGE + seed)
            still_works(comm)
        # Connections are made meanwhile, too.
        for seed in range(10):
            with make_comm() as other:
                pass_on(other, seed, 100)
        deadline = time.monotonic() + GONE_S
        while count[0] <= 20:
            assert time.monotonic() < deadline, "hardly any stranger came"
            time.sleep(0.05)
    comm.Barrier()
    deadline = time.monotonic() + GONE_S
    while process_counts()[0] > files or process_counts()[1] > threads:
        assert time.monotonic() < deadline, f"{process_counts()} files and threads, before: {files}, {threads}"
        time.sleep(0.05)
    still_works(comm)


def check_idle_strangers_while_ranks_connect(comm):
    """More of them than there are threads for connections: peers wait for their turn, and get it."""
    where = listeners()
    WORLD.Barrier()
    idle = [socket.create_connection(address, 60) for address in where for _ in range(IDLE // SIZE + 1)]
    try:
        WORLD.Barrier()
        pass_on(comm, 1, 5)
        pass_on(comm, 2, LARGE)
        still_works(comm)
    finally:
        for sock in idle:
            sock.close()


def check_receiver_that_comes_late(comm):
    """A thousand small messages and some large ones wait at their sender, not without end in anybody's memory."""
    small, large = 1000, 4
    pass_on(comm, 0, LARGE)
    before = resident_bytes()
    out = [np.full(3, -1, np.int64) for _ in range(small)] + [np.full(LARGE, -1, np.int64) for _ in range(large)]
    data = [values(n, array.size) for n, array in enumerate(out)]
    requests = [comm.Isend(array, NEXT, 3) for array in data]
    if RANK == 0:
        time.sleep(SLOW_S)
    for array in out:
        comm.Recv(array, BEFORE, 3)
    for request in requests:
        request.Wait()
    for n, array in enumerate(out):
        equal(array, values(n, array.size, BEFORE))
    grown = resident_bytes() - before - 2 * large * 8 * LARGE
    assert grown < 16 << 20, f"{grown} bytes more"
    still_works(comm)


if __name__ == "__main__":
    run_checks(globals())
