"""Inside a guest: rank 0 is hetccl's, rank 1 is pyverbs_peer.py, which knows only docs/wire-protocol.md.

hetccl runs on rank 1, too, as far as MPI is concerned: from its communicator, whose network nobody uses, come the
secret and the address that MPI has brought there. The peer, a program of its own, then takes its place.
"""

import gc
import json
import logging
import os
import subprocess
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

from hetccl import PeerError, _rdma, bootstrap
from hetccl.net.network import Network
from mpi.support import raises, run_checks

WORLD = MPI.COMM_WORLD
RANK = WORLD.Get_rank()
PEER = Path(__file__).with_name("pyverbs_peer.py")
PYTHON, PACKAGES = "/usr/bin/python3", "/usr/lib/python3/dist-packages"
GUARD = 0xA5
# What docs/wire-protocol.md says of every queue pair; state 3 is RTS, access 2 remote write.
ATTRIBUTES = dict(state=3, timeout=18, retry_cnt=6, rnr_retry=6, min_rnr_timer=12, access=2, pkey_index=0, port=1)
ATTRIBUTES |= dict(is_global=1, sl=0, traffic_class=0, hop_limit=64, max_rd_atomic=1, max_dest_rd_atomic=1)
# 2 (n + 64 + 256 + 4) with hetccl's 16 cells.
LEAST_RECEIVES = 680
LOGGED_SECONDS = 20


def data(nbytes, seed):
    place = np.arange(nbytes, dtype=np.int64)
    return ((131 * place + 17 * (place >> 8) + 29 * seed) % 256).astype(np.uint8)


def receive(comm, tag, nbytes, seed):
    memory = np.full(nbytes + 32, GUARD, np.uint8)
    comm.Recv(memory[16 : 16 + nbytes], 1, tag)
    check(memory, nbytes, seed)


def check(memory, nbytes, seed):
    assert (memory[:16] == GUARD).all() and (memory[16 + nbytes :] == GUARD).all()
    assert (memory[16 : 16 + nbytes] == data(nbytes, seed)).all()


def start(deed):
    """The peer, told where rank 0 is; on rank 1."""
    network = next(joined for joined in bootstrap._joined if isinstance(joined, Network) and joined.group)
    path = network.paths[0]
    told = {
        "secret": network.secret.hex(),
        "address": path.addresses[0][1:],
        "cards": cards(network),
    }
    env = {**os.environ, "PYTHONPATH": PACKAGES}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    peer = subprocess.Popen([PYTHON, PEER, deed], **pipes, text=True, env=env)
    peer.stdin.write(json.dumps(told))
    peer.stdin.close()
    return peer


def ended(peer, line):
    """The peer has said its last line: it must be "done", and the peer has nothing against what it met."""
    with peer:
        try:
            status = peer.wait(60)
        finally:
            peer.kill()
        assert (line, status) == ("done", 0), f"{line!r}, status {status}: {peer.stderr.read()}"


def cards(network):
    return [
        {name: network.card["verbs"][mine][name] for name in ("device", "gid", "gid_index")}
        for mine, _ in network.paths[0].rails
    ]


def against(comm, deed, play):
    """Rank 0 plays once the peer is connected; rank 1 watches the peer, and tells rank 0 what it says, "" at an end."""
    begun[0] += 1
    if RANK == 0:
        assert hear() == "up"
        play(comm)
        return
    peer = start(deed)
    line = None
    while line not in ("", "done"):
        line = peer.stdout.readline().strip()
        WORLD.send(line, 0, begun[0])
    ended(peer, line)


# How many peers; tells apart what they say, for a check that fails leaves some of it unheard.
begun = [0]


def hear():
    """What the peer says next."""
    return WORLD.recv(source=1, tag=begun[0])


def check_eager(comm):
    def play(comm):
        for seed, nbytes in enumerate((0, 1, 7, 992)):
            comm.Send(data(nbytes, seed), 1, 10 + seed)
        for seed, nbytes in enumerate((0, 1, 33, 32800)):
            receive(comm, 20 + seed, nbytes, seed)

    against(comm, "eager", play)


def check_credits(comm):
    def play(comm):
        for seed in range(100):
            comm.Send(data(seed, seed), 1, 30)
        for seed in range(100):
            receive(comm, 31, seed, seed)

    against(comm, "credits", play)


def check_announced(comm):
    def play(comm):
        comm.Send(data(300007, 1), 1, 40)
        receive(comm, 41, 700001, 2)

    against(comm, "announced", play)


def check_synchronous(comm):
    def play(comm):
        comm.Ssend(data(5, 42), 1, 42)
        comm.Ssend(data(0, 43), 1, 43)
        receive(comm, 44, 5, 44)
        receive(comm, 45, 0, 45)

    against(comm, "synchronous", play)


def check_out_of_order(comm):
    def play(comm):
        sources = data(100003, 50), data(50021, 51)
        requests = [comm.Isend(sources[0], 1, 50), comm.Isend(sources[1], 1, 51)]
        for request in requests:
            request.Wait()
        receive(comm, 61, 90001, 61)
        receive(comm, 60, 100003, 60)

    against(comm, "out_of_order", play)


def check_many_pieces(comm):
    against(comm, "many_pieces", lambda comm: comm.Send(data(150001, 3), 1, 1))


def check_receiver_first(comm):
    nbytes = 100003

    def gather(comm, seed):
        memory = np.full(2 * nbytes, GUARD, np.uint8)
        comm.Gather(data(nbytes, 9), memory, 0)
        assert (memory == np.concatenate([data(nbytes, 9), data(nbytes, seed)])).all()

    def scatter(comm, seed):
        mine = np.empty(nbytes, np.uint8)
        comm.Scatter(np.concatenate([data(nbytes, 9), data(nbytes, seed)]), mine, 0)
        assert (mine == data(nbytes, 9)).all()

    def play(comm):
        gather(comm, 1)
        gather(comm, 2)
        scatter(comm, 3)
        comm.Recv(np.empty(0, np.uint8), 1, 70)
        scatter(comm, 4)

    against(comm, "receiver_first", play)


def check_attributes(comm):
    def play(comm):
        expected = sorted((ATTRIBUTES | pair for pair in json.loads(hear())), key=str)
        found = [each.attributes() for each in gc.get_objects() if isinstance(each, _rdma.QueuePair)]
        assert all(pair["max_recv_wr"] >= LEAST_RECEIVES for pair in found), found
        assert sorted(({name: pair[name] for name in expected[0]} for pair in found), key=str) == expected

    against(comm, "attributes", play)


def check_another_rail_than_the_carrier_down(comm):
    def play(comm):
        request = comm.Isend(data(600011, 40), 1, 40)
        receive(comm, 41, 100003, 41)
        request.Wait()
        comm.Send(data(7, 42), 1, 42)

    against(comm, "other_rail_down", play)


def check_the_carrier_down(comm):
    def play(comm):
        request = comm.Isend(data(100003, 50), 1, 50)
        assert hear() == "stopped"
        for tag in (51, 52, 53):
            comm.Send(data(17 * tag, tag), 1, tag)
        receive(comm, 60, 50021, 60)
        receive(comm, 61, 33, 61)
        request.Wait()

    against(comm, "carrier_down", play)


def breach(comm, deed, kind):
    def play(comm):
        with raises(PeerError, names=("broke the wire protocol", kind)):
            comm.Recv(np.empty(1, np.uint8), 1, 1)

    against(comm, deed, play)


def check_cell_with_a_wrong_position(comm):
    breach(comm, "wrong_position", "CELL")


def check_fin_for_nothing(comm):
    breach(comm, "fin_for_nothing", "FIN")


def check_cts_for_nothing(comm):
    breach(comm, "ask_for_nothing", "CTS")


def check_cts_out_of_turn(comm):
    breach(comm, "ask_out_of_turn", "CTS")


def check_credit_for_nothing(comm):
    breach(comm, "credit_for_nothing", "CREDIT")


class Warnings(logging.Handler):
    """What hetccl logs at the level WARNING."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def refused(comm, deed, text):
    """Rank 0 refuses the peer and says so in its log; the communicator goes on as if nothing had been."""
    if RANK == 1:
        peer = start(deed)
        ended(peer, peer.stdout.readline().strip())
        WORLD.Barrier()
    else:
        logged = Warnings()
        logging.getLogger("hetccl").addHandler(logged)
        try:
            WORLD.Barrier()
            end = time.monotonic() + LOGGED_SECONDS
            while not any(text in line for line in logged.texts):
                assert time.monotonic() < end, logged.texts
                time.sleep(0.01)
        finally:
            logging.getLogger("hetccl").removeHandler(logged)
    check_eager(comm)


def check_wrong_secret(comm):
    refused(comm, "wrong_secret", "communicator")


def check_wrong_version(comm):
    refused(comm, "wrong_version", "version 2")


def check_forged_proof(comm):
    refused(comm, "forged", "does not know the secret")


def check_recorded_handshake(comm):
    refused(comm, "replayed", "does not know the secret")


if __name__ == "__main__":
    run_checks(globals())
