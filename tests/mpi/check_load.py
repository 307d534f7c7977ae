"""Many requests and communicators at once and one after another: nothing is lost, held or in the way of another."""

import gc
import time

import numpy as np
from mpi4py import MPI
from support import equal, resident_bytes, run_checks, settled_counts, still_works

import hetccl

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.Get_size(), WORLD.Get_rank()
AFTER, BEFORE = (RANK + 1) % SIZE, (RANK - 1) % SIZE
ALL = SIZE * (SIZE + 1) // 2


def check_two_communicators_in_opposite_orders(comm):
    """Ranks start and await requests of two communicators in different orders: each goes on by itself."""
    copy = comm.Dup()
    for count in (3, 70_001):
        mine = [(comm, np.full(count, RANK + 1)), (copy, np.full(count, 10 * (RANK + 1)))]
        outs = [np.zeros(count, int) for _ in mine]
        order = (0, 1) if RANK % 2 else (1, 0)
        requests = {place: mine[place][0].Iallreduce(mine[place][1], outs[place]) for place in order}
        for place in order:
            requests[place].Wait()
        equal(outs[0], np.full(count, ALL))
        equal(outs[1], np.full(count, 10 * ALL))
    copy.Free()


def check_twenty_thousand_requests(comm):
    """Far more sends than any ring holds, started before the first is waited for; then their receives."""
    number = 20_000
    sent = np.arange(number) + 1_000_000 * RANK
    got = np.zeros(number, int)
    requests = [comm.Isend(sent[place : place + 1], AFTER, place % 7) for place in range(number)]
    comm.Barrier()
    requests += [comm.Irecv(got[place : place + 1], BEFORE, place % 7) for place in range(number)]
    hetccl.Request.Waitall(requests)
    equal(got, np.arange(number) + 1_000_000 * BEFORE)


def check_thousand_collectives_under_way(comm):
    """The row of collectives is as long as it takes."""
    outs = [np.zeros(5, int) for _ in range(1000)]
    requests = [comm.Iallreduce(np.full(5, place * (RANK + 1)), out) for place, out in enumerate(outs)]
    hetccl.Request.Waitall(requests)
    equal(np.concatenate(outs), np.repeat(np.arange(1000), 5) * ALL)


def check_one_rank_sends_nothing(comm):
    """An Alltoallv in which one rank has nothing for anybody, and one pair nothing for each other."""
    ranks = range(SIZE)
    counts = [[0 if not source or {source, dest} == {1, SIZE - 1} else 3 for dest in ranks] for source in ranks]
    mine, theirs = counts[RANK], [row[RANK] for row in counts]
    out = np.full(sum(theirs), -1)
    comm.Alltoallv([np.repeat(np.arange(SIZE) + 100 * RANK, mine), mine], [out, theirs])
    equal(out, np.repeat(np.arange(SIZE) * 100 + RANK, theirs))


def check_requests_outlive_their_communicator(comm):
    """The user drops the communicator while its collectives are under way: they end well all the same."""
    data, outs = np.arange(200_003) * (RANK + 1), [np.zeros(200_003, int) for _ in range(5)]
    other = comm.Dup()
    requests = [other.Iallreduce(data, out) for out in outs] if RANK else None
    if RANK:
        del other
        gc.collect()
        # What was freed would be overwritten.
        filler = [np.full(number, -1) for number in range(1, 5000)]
        time.sleep(0.2)
        del filler
    else:
        time.sleep(0.4)
        requests = [other.Iallreduce(data, out) for out in outs]
    hetccl.Request.Waitall(requests)
    for out in outs:
        equal(out, np.arange(200_003) * ALL)


def check_copies_leak_nothing(comm):
    """Dup, Split and Free: open files, threads and mappings are as before, and MPI has communicators left."""
    measured = {}
    for number in range(1, 401):
        copy = comm.Dup()
        part = copy.Split(RANK % 2 if number % 2 else MPI.UNDEFINED)
        if number % 100 == 1:
            still_works(copy)
            part.Barrier()
        if part != MPI.COMM_NULL:
            part.Free()
        copy.Free()
        if number in (100, 400):
            gc.collect()
            measured[number] = (settled_counts(), resident_bytes())
    (counts, memory), (counts_after, memory_after) = measured[100], measured[400]
    assert counts_after[:2] == counts[:2], f"files, threads: {counts} -> {counts_after}"
    assert counts_after[2] <= counts[2] + 4, f"mappings: {counts} -> {counts_after}"
    assert memory_after - memory < 4 << 20, f"{memory_after - memory} bytes more after 300 rounds"
    still_works(comm)


def check_many_small_requests(comm):
    """Memory does not grow per request: up to 40,000 rounds, fewer on a slow machine."""
    send, out, got, more = np.ones(2), np.zeros(2), np.zeros(2), np.zeros(1, np.int32)
    persistent = comm.Allreduce_init(send, out)
    start, memory = time.monotonic(), None
    for batch in range(20):
        for _ in range(2000):
            requests = [comm.Iallreduce(send, out), comm.Irecv(got, BEFORE), comm.Isend(send, AFTER)]
            hetccl.Request.Waitall(requests)
            persistent.Start()
            persistent.Wait()
        if batch == 2:
            memory = resident_bytes()
        more[0] = time.monotonic() - start < 8 or batch < 5
        comm.Bcast(more, root=0)
        if not more[0]:
            break
    persistent.Free()
    grown = resident_bytes() - memory
    assert grown < 1 << 20, f"{grown} bytes more after {(batch - 2) * 2000} rounds"
    equal(out, np.full(2, float(SIZE)))
    equal(got, send)


if __name__ == "__main__":
    run_checks(globals())
