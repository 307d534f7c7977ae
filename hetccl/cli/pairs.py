"""What doctor measures: latency and bandwidth of pairs of ranks, on messages of host memory between them.

Two ranks send one message to and fro; half the time of a round trip is the latency of 8 bytes, and the bandwidth of
LARGE_BYTES. Pairs without a common host are measured at the same time, all others one after another.
"""

import random
import statistics
import time
from typing import NamedTuple

import numpy as np

# Jobs of more ranks measure a sample, of so many pairs for each kind of path.
ALL_PAIRS_RANKS = 12
SAMPLE = 16
SMALL_BYTES, LARGE_BYTES = 8, 4 << 20
WARMUP, LEAST_TRIPS, MOST_TRIPS = 3, 5, 1000
SECONDS = 0.15
TAG = 7
# Below this part of what is expected, or of what pairs of the same kind have, a pair is slow.
SLOW_PART = 0.5
ALIKE = 4


class Measured(NamedTuple):
    """One pair. kind : of paths.Path     latency_us : microseconds     gb_s, expected : GB/s one way; of links.Limit"""

    low: int
    high: int
    kind: str
    latency_us: float
    gb_s: float
    expected: dict


def choose(kinds_of, nranks):
    """The pairs to measure: [(low, high)], all of a small job, else a sample of each kind.

    kinds_of : function: (low, high) -> kind of path, "" if there is none
    """
    if nranks <= ALL_PAIRS_RANKS:
        pairs = [(low, high) for low in range(nranks) for high in range(low + 1, nranks)]
        return [pair for pair in pairs if kinds_of(*pair)]
    # Neighbours, and ranks at every power of two: near ones, and far ones of every kind.
    steps = [1 << power for power in range(nranks.bit_length()) if 1 << power < nranks]
    candidates = [(rank, rank + step) for step in steps for rank in range(nranks - step)]
    random.Random(nranks).shuffle(candidates)
    chosen = {}
    for pair in candidates:
        taken = chosen.setdefault(kinds_of(*pair), [])
        if len(taken) < SAMPLE:
            taken.append(pair)
    return sorted(pair for kind, pairs in chosen.items() if kind for pair in pairs)


def rounds(pairs, hosts):
    """The pairs in rounds: pairs of one round have no host in common. hosts : of each rank, anything hashable."""
    made = []
    for pair in pairs:
        ends = {hosts[rank] for rank in pair}
        for used, members in made:
            if not used & ends:
                used |= ends
                members.append(pair)
                break
        else:
            made.append((ends, [pair]))
    return [members for _, members in made]


def measure(comm, schedule, ways):
    """Measure; collective. Returns the list of Measured of the pairs whose lower rank this is.

    comm     : hetccl.Comm     schedule : of rounds(), the same on all ranks     ways : of hetccl.cli.network
    Raises   : what its calls raise, CommTimeout and PeerError among them
    """
    about = {peer: way for way in ways for peer in way["ranks"]}
    found = []
    for pairs in schedule:
        comm.Barrier()
        for low, high in pairs:
            if comm.rank == low:
                latency, large = (_lead(comm, high, nbytes) for nbytes in (SMALL_BYTES, LARGE_BYTES))
                way = about[high]
                found.append(
                    Measured(low, high, way["kind"], latency * 1e6, LARGE_BYTES / large / 1e9, way["expected"])
                )
            elif comm.rank == high:
                for nbytes in (SMALL_BYTES, LARGE_BYTES):
                    _follow(comm, low, nbytes)
    return found


def slow(measured):
    """The pairs that are much slower than they should be: [(list of Measured, GB/s to compare with, what that is)]."""
    kinds = {}
    for pair in measured:
        kinds.setdefault(pair.kind, []).append(pair.gb_s)
    found = {}
    for pair in measured:
        expected = pair.expected["gb_s"]
        usual = statistics.median(kinds[pair.kind])
        if expected and pair.kind != "shm" and pair.gb_s < SLOW_PART * expected:
            found.setdefault((expected, pair.expected["why"]), []).append(pair)
        elif len(kinds[pair.kind]) >= ALIKE and pair.gb_s < SLOW_PART * usual:
            found.setdefault((usual, f"the median of {len(kinds[pair.kind])} pairs by {pair.kind}"), []).append(pair)
    return [(alike, *about) for about, alike in found.items()]


def lines(measured, nranks):
    """Tables of what was measured, for a person; [] of a big job, or of one pair."""
    if not 2 < nranks <= ALL_PAIRS_RANKS:
        return []
    return [
        *_table(measured, nranks, "measured latency, us", lambda pair: f"{pair.latency_us:.1f}"),
        *_table(measured, nranks, "measured bandwidth, GB/s", lambda pair: f"{pair.gb_s:.2f}"),
    ]


def _table(measured, nranks, title, text):
    cells = {(pair.low, pair.high): text(pair) for pair in measured}
    width = max([len(cell) for cell in cells.values()] + [4]) + 1
    said = [title, " " * 4 + "".join(str(rank).rjust(width) for rank in range(nranks))]
    for row in range(nranks):
        line = [cells.get((min(row, col), max(row, col)), "." if row == col else "-") for col in range(nranks)]
        said.append(str(row).rjust(4) + "".join(cell.rjust(width) for cell in line))
    return said


def _lead(comm, peer, nbytes):
    """Seconds of one way: half the median round trip. A message's first byte tells the peer whether it is the last."""
    out, back = np.ones(nbytes, np.uint8), np.empty(nbytes, np.uint8)
    trips = []
    until = time.perf_counter() + SECONDS
    while out[0]:
        done = len(trips) - WARMUP
        if done >= LEAST_TRIPS and (done >= MOST_TRIPS or time.perf_counter() > until):
            out[0] = 0
        start = time.perf_counter()
        comm.Send(out, peer, TAG)
        comm.Recv(back, peer, TAG)
        trips.append(time.perf_counter() - start)
    return statistics.median(trips[WARMUP:]) / 2


def _follow(comm, peer, nbytes):
    message = np.ones(nbytes, np.uint8)
    while message[0]:
        comm.Recv(message, peer, TAG)
        comm.Send(message, peer, TAG)
