"""Over verbs: two rails against one, with what each device has sent; and what Python's calls add to a small message.

    python tests/softroce/vm.py --nics 4 -- mpirun -n 2 python bench/rdma_rails.py [--rounds 5] [--json FILE]

Rank 0 has the devices rxe0 and rxe2, rank 1 rxe1 and rxe3 (--devices). One communicator has a rail, another two; they
take turns. The packets are the devices' own counters. Latencies, in turn too: Send and Recv of hetccl; the same writes
on a queue pair of their own without a call of Python between them; `ib_write_lat`, as it is and without inline data.
Figures are medians over the rounds, the ratio that of the rounds' ratios. Over Soft-RoCE only the ratios mean anything.
"""

import argparse
import json
import os
import statistics
from pathlib import Path

import numpy as np
import rails_verbs
import rdma
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
SIZES = (65536, 1 << 20, 4 << 20)
COUNTERS = Path("/sys/class/infiniband")


def build(devices, rails):
    """A communicator that uses so many rails of this rank's devices."""
    os.environ.update(HETCCL_TRANSPORT="verbs", HETCCL_RAILS=str(rails), HETCCL_IB_HCA=",".join(devices[:rails]))
    import hetccl

    return hetccl.Comm(WORLD)


def packets(devices):
    """Packets that each device has sent since it exists."""
    return [int((COUNTERS / device / "ports/1/hw_counters/sent_pkts").read_text()) for device in devices]


def compare_rails(comms, devices, sizes, rounds):
    """Yield, for each size, {"nbytes", "one", "two": MiB/s of each round, "packets": of each device, two rails}."""
    for nbytes in sizes:
        row = {"nbytes": nbytes, "one": [], "two": [], "packets": [0] * len(devices)}
        for _ in range(rounds):
            row["one"].append(rdma.bandwidth(comms[0], nbytes))
            before = packets(devices)
            row["two"].append(rdma.bandwidth(comms[1], nbytes))
            row["packets"] = [sum(some) for some in zip(row["packets"], packets(devices), map(int.__neg__, before))]
        yield row


def rail_alone(device):
    """A function that times the ping-pong of writes on a queue pair of its own; us one way."""
    end = rails_verbs.End(device, rdma.GID_INDEX)
    end.connect(WORLD.allgather(end.record())[1 - WORLD.rank])

    def once():
        WORLD.Barrier()
        return float(np.median(end.ping_pong(WORLD.rank == 0))) / rails_verbs.ROUNDS_TIMED / 2000

    return once


def compare_latency(comm, firsts, rounds):
    """{what: us of each round} of 8 bytes, one way. firsts : the first device of each rank"""
    found = {"Send and Recv": [], "rail alone": [], "ib_write_lat": [], "ib_write_lat -I 0": []}
    alone = rail_alone(firsts[WORLD.rank])
    options = ("-s", str(rdma.PING_BYTES), "-n", str(rdma.PING_PONGS))
    for _ in range(rounds):
        found["rail alone"].append(alone())
        for name, more in (("ib_write_lat", ()), ("ib_write_lat -I 0", ("-I", "0"))):
            ours, theirs = rdma.with_perftest(lambda: rdma.latency(comm), "ib_write_lat", 4, firsts, (*options, *more))
            found[name].append(theirs)
        found["Send and Recv"].append(ours)
    return found


def median_and_spread(ours, theirs):
    """Of the rounds' ratios: "1.02 (0.95-1.10)"."""
    ratios = [mine / other for mine, other in zip(ours, theirs)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def print_rails(row):
    one, two = statistics.median(row["one"]), statistics.median(row["two"])
    ratio = median_and_spread(row["two"], row["one"])
    packets_sent = ", ".join(map(str, row["packets"]))
    print(f"| {row['nbytes']} | {one:.1f} | {two:.1f} | {ratio} | {packets_sent} |", flush=True)


def print_latencies(found):
    print("\n| 8 bytes, one way | us | to ib_write_lat |\n|---|---|---|")
    for name, times in found.items():
        print(f"| {name} | {statistics.median(times):.1f} | {median_and_spread(times, found['ib_write_lat'])} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--devices", nargs=2, default=["rxe0,rxe2", "rxe1,rxe3"], help="of rank 0, of rank 1")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="of messages, one rail against two")
    args = parser.parse_args()
    devices = [names.split(",") for names in args.devices]
    comms = [build(devices[WORLD.rank], rails) for rails in (1, 2)]
    every = devices[0] + devices[1]
    if WORLD.rank == 0:
        print(
            f"| bytes | 1 rail, MiB/s | 2 rails, MiB/s | ratio | packets of {', '.join(every)} |\n|---|---|---|---|---|"
        )
    rows = []
    for row in compare_rails(comms, every, args.sizes, args.rounds):
        rows.append(row)
        if WORLD.rank == 0:
            print_rails(row)
    latencies = compare_latency(comms[0], [names[0] for names in devices], args.rounds)
    if WORLD.rank == 0:
        print_latencies(latencies)
        if args.json:
            args.json.write_text(json.dumps({"rails": rows, "latency": latencies}))
    for comm in comms:
        comm.Free()


if __name__ == "__main__":
    main()
