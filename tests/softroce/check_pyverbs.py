"""Inside a guest: rank 0 is hetccl's, rank 1 is pyverbs_peer.py, which knows only docs/wire-protocol.md.

hetccl runs on rank 1, too, as far as MPI is concerned: from its communicator, whose network nobody uses, come the
secret and the address that MPI has brought there. The peer, a program of its own, then takes its place.
"""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
from mpi4py import MPI

from hetccl import PeerError, bootstrap
from hetccl.net.network import Network
from mpi.support import raises, run_checks

WORLD = MPI.COMM_WORLD
RANK = WORLD.Get_rank()
PEER = Path(__file__).with_name("pyverbs_peer.py")
PYTHON, PACKAGES = "/usr/bin/python3", "/usr/lib/python3/dist-packages"
GUARD = 0xA5


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
    peer = subprocess.Popen([PYTHON, PEER, deed], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    peer.stdin.write(json.dumps(told))
    peer.stdin.close()
    return peer


def cards(network):
    return [
        {name: network.card["verbs"][mine][name] for name in ("device", "gid", "gid_index")}
        for mine, _ in network.paths[0].rails
    ]


def against(comm, deed, play):
    """Rank 0 plays once the peer is connected; rank 1 watches the peer."""
    if RANK == 0:
        assert WORLD.recv(source=1) == "up"
        play(comm)
        return
    peer = start(deed)
    WORLD.send(peer.stdout.readline().strip(), dest=0)
    assert peer.stdout.readline() == "done\n", peer.wait(60)
    assert peer.wait(60) == 0, "it did not hear that rank 0 leaves"


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


def breach(deed):
    def run(comm):
        def play(comm):
            with raises(PeerError, names="broke the wire protocol"):
                comm.Recv(np.empty(1, np.uint8), 1, 1)

        against(comm, deed, play)

    return run


def check_cell_with_a_wrong_position(comm):
    breach("wrong_position")(comm)


def check_fin_for_nothing(comm):
    breach("fin_for_nothing")(comm)


def check_cts_for_nothing(comm):
    breach("ask_for_nothing")(comm)


def check_cts_out_of_turn(comm):
    breach("ask_out_of_turn")(comm)


def refused(comm, deed):
    if RANK == 1:
        peer = start(deed)
        assert peer.stdout.readline() == "done\n", peer.wait(60)
    WORLD.Barrier()


def check_wrong_secret(comm):
    refused(comm, "wrong_secret")
    check_eager(comm)


def check_wrong_version(comm):
    refused(comm, "wrong_version")
    check_eager(comm)


if __name__ == "__main__":
    run_checks(globals())
