"""Compare hetccl over verbs with perftest, between two devices of one host, and with MPI: a Markdown table on stdout.

    python tests/softroce/vm.py -- mpirun -n 2 python bench/rdma.py [--rounds 7] [--devices rxe0,rxe1] [--json FILE]

Messages: a window of nonblocking sends and receives of arrays that are used again, against `ib_write_bw`; blocking
ping-pong, against `ib_write_lat`; on the same two devices, in turn, in one job. All-reduce: against mpi4py, over
whatever the environment lets MPI use (which is printed by MPI, not by us). Figures are medians over the rounds, the
ratio that of the rounds' ratios with the smallest and largest. Over Soft-RoCE only the ratios mean anything.
"""

import argparse
import json
import os
import statistics
import time

import numpy as np
import rails_verbs
from mpi4py import MPI

SIZES = (4096, 65536, 262144, 1 << 20, 4 << 20)
WINDOW = 16
TOTAL_BYTES = 16 << 20
PING_PONGS, PING_BYTES = 500, 8
REDUCED = (8, 4096, 65536, 1 << 20, 8 << 20)
GID_INDEX = 1
WORLD = MPI.COMM_WORLD
TAG, DONE = 1, 2


def build(devices):
    """A communicator whose ranks have a device each."""
    os.environ.update(HETCCL_TRANSPORT="verbs", HETCCL_IB_HCA=devices[WORLD.rank])
    import hetccl

    return hetccl.Comm(WORLD)


def windows(nbytes):
    return max(2, min(20, TOTAL_BYTES // nbytes // WINDOW))


def bandwidth(comm, nbytes):
    """MiB/s from rank 0 to rank 1; None on the other."""
    buffers = [np.full(nbytes, number, np.uint8) for number in range(WINDOW)]
    done = np.zeros(1)
    for count in (1, windows(nbytes)):  # the first one warms up
        start = time.perf_counter()
        for _ in range(count):
            call = comm.Isend if comm.rank == 0 else comm.Irecv
            for request in [call(buffer, 1 - comm.rank, TAG) for buffer in buffers]:
                request.Wait()
        if comm.rank == 0:
            comm.Recv(done, 1, DONE)
        else:
            comm.Send(done, 0, DONE)
        seconds = time.perf_counter() - start
    return count * WINDOW * nbytes / seconds / (1 << 20) if comm.rank == 0 else None


def latency(comm):
    """Microseconds one way; None on rank 1."""
    data, times = np.zeros(PING_BYTES, np.uint8), []
    for _ in range(PING_PONGS):
        start = time.perf_counter()
        if comm.rank == 0:
            comm.Send(data, 1, TAG)
            comm.Recv(data, 1, TAG)
        else:
            comm.Recv(data, 0, TAG)
            comm.Send(data, 0, TAG)
        times.append(time.perf_counter() - start)
    return statistics.median(times) / 2 * 1e6 if comm.rank == 0 else None


def allreduce(comm, nbytes):
    """Microseconds for each call, on every rank."""
    send, recv = np.ones(nbytes // 4 or 1, np.float32), np.zeros(nbytes // 4 or 1, np.float32)
    count = max(3, min(50, (4 << 20) // nbytes))
    times = []
    for _ in range(count + 1):
        start = time.perf_counter()
        comm.Allreduce(send, recv)
        times.append(time.perf_counter() - start)
    assert recv[-1] == comm.Get_size()
    return statistics.median(times[1:]) * 1e6


class Table:
    """Rows of (what, unit, ours, theirs) by round, printed by rank 0."""

    def __init__(self):
        self.rows = []

    def add(self, what, unit, peer, ours, theirs):
        if WORLD.rank != 0:
            return
        ratios = [mine / other for mine, other in zip(ours, theirs)]
        row = [statistics.median(values) for values in (ours, theirs, ratios)]
        self.rows.append((what, unit, peer, *row, min(ratios), max(ratios)))
        ratio = f"{row[2]:.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        print(f"| {what} | {row[0]:.1f} {unit} | {peer} {row[1]:.1f} | {ratio} |", flush=True)


def with_perftest(measure, program, column, devices, options):
    """(ours, theirs) of one round: perftest runs while the other rank sleeps in MPI."""
    ours = measure()
    theirs = rails_verbs.perftest(program, devices, GID_INDEX, column, *options) if WORLD.rank == 0 else None
    request = WORLD.Ibarrier()
    while not request.Test():
        time.sleep(0.01)
    return ours, theirs


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--devices", default="rxe0,rxe1")
    parser.add_argument("--json")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="of messages, against perftest")
    parser.add_argument("--only", choices=("perftest", "allreduce"))
    args = parser.parse_args()
    devices = args.devices.split(",")
    comm, table = build(devices), Table()
    if WORLD.rank == 0:
        print("| what | hetccl | peer | ratio |\n|---|---|---|---|")
    rounds = range(args.rounds)
    for nbytes in args.sizes if args.only != "allreduce" else ():
        count = str(windows(nbytes) * WINDOW)
        options = ("-s", str(nbytes), "-n", count, "-t", str(WINDOW))
        pairs = [
            with_perftest(lambda size=nbytes: bandwidth(comm, size), "ib_write_bw", 3, devices, options) for _ in rounds
        ]
        table.add(f"{nbytes} bytes", "MiB/s", "ib_write_bw", *zip(*pairs))
    if args.only != "allreduce":
        options = ("-s", str(PING_BYTES), "-n", str(PING_PONGS))
        pairs = [with_perftest(lambda: latency(comm), "ib_write_lat", 4, devices, options) for _ in rounds]
        table.add(f"{PING_BYTES} bytes", "us", "ib_write_lat", *zip(*pairs))
    for nbytes in REDUCED if args.only != "perftest" else ():
        pairs = [(allreduce(comm, nbytes), allreduce(WORLD, nbytes)) for _ in rounds]
        table.add(f"all-reduce of {nbytes} bytes", "us", "MPI", *zip(*pairs))
    if args.json and WORLD.rank == 0:
        with open(args.json, "w") as file:
            json.dump(table.rows, file)
    comm.Free()


if __name__ == "__main__":
    main()
